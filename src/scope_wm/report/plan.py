"""`scope-wm plan`: solve one problem, and show in a video how it was planned and what happened."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool

from scope_wm.data.play import write_mp4
from scope_wm.data.problems import problem_from_store
from scope_wm.data.split import open_splits
from scope_wm.evaluate.settings import PROTOCOLS, SIMULATOR, PlannerName, TaskName, expect_at_least
from scope_wm.planning.models import LatentModel, Observations, PlanningModel, SimulatorModel, policy_scale
from scope_wm.planning.mpc import Controller, MPCSettings, Outcome, observe_states, solve
from scope_wm.planning.planner import CHUNK, load_latent_model
from scope_wm.planning.planners import PLANNERS
from scope_wm.planning.search import Limits, Plan
from scope_wm.report.plan_video import Scene, Story, video
from scope_wm.tasks import TASKS
from scope_wm.tasks.task import Task
from scope_wm.types import Problem, UsageError


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Solve one problem and write a video of it.

    The video shows what happened, the goal, the cost of the best candidate in every iteration of a search,
    and which tokens of the image a sparse model gives full dynamics.

    Example: scope-wm plan --task push_t --model simulator --seed 7 --out plan.mp4
    """

    task: TaskName
    """what to do"""
    model: str
    """directory or hub id of a model, or the word simulator: plan with the true dynamics"""
    out: Path
    """video to write, .mp4"""
    seed: int = 0
    """which problem"""
    planner: PlannerName = "eb-cem"
    """how to search"""
    max_steps: int | None = None
    """plans at most; None: 15, and 7 for rope and granular"""
    problems_from: Path | None = None
    """a store: start and goal are from one of its validation episodes; None: the task draws them"""
    encoder: str | None = None
    """directory of the model's frozen encoder, if it is not where the model says"""
    device: str = "cpu"
    """where the model runs, such as cuda"""

    def __post_init__(self) -> None:
        """Refuse what cannot be done before anything is."""
        expect_at_least(self, {"seed": 0, "max_steps": 1})
        if self.out.suffix != ".mp4":
            raise UsageError(f"expected --out to end with .mp4, got {self.out}")
        if self.model == SIMULATOR and self.planner == "gradient":
            raise UsageError("the simulator has no gradient: choose another --planner")
        if self.model == SIMULATOR and self.encoder is not None:
            raise UsageError("the simulator sees states: it takes no --encoder")


def plan(settings: PlanSettings) -> None:
    """Solve the problem, tell how each step goes, and write the video."""
    task = TASKS[settings.task]()
    problem, model = choose_problem(settings, task), load_model(settings, task)
    protocol = PROTOCOLS[settings.task]
    mpc = MPCSettings(max_steps=settings.max_steps or protocol.max_steps)
    plans: list[Plan] = []

    def remember(latest: Plan) -> None:
        if len(latest.trace) > 1:  # of the same search as the one before
            plans.pop()
        plans.append(latest)

    controller = Controller(
        model, PLANNERS[settings.planner], mpc, limits=Limits(chunk=CHUNK), on_iteration=remember
    )
    (outcome,) = solve(task, [problem], [settings.seed], controller, teller(task, plans, mpc.max_steps))
    distance = task.distance(outcome.state, problem.goal)
    result = verdict(outcome, distance, has_success=protocol.has_success)
    story = Story(
        task=settings.task,
        note=f"{settings.planner}, {Path(settings.model).name}, problem {settings.seed}",
        goal=observe_states(task, [problem.goal]).images[0],
        scenes=scenes(task, model, outcome, plans),
        max_steps=mpc.max_steps,
        verdict=result,
        success=outcome.success,
    )
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(settings.out, video(story))
    print(f"{result}, {sum(step.plan_seconds for step in outcome.steps):.1f} s of planning")
    print(settings.out)


def verdict(outcome: Outcome, distance: float, *, has_success: bool) -> str:
    """Say how it ended; some tasks have a distance only."""
    count = len(outcome.steps)
    end = "solved" if outcome.success else "not solved" if has_success else f"distance {distance:.3g}"
    return f"{end} after {count} step{'' if count == 1 else 's'}"


def choose_problem(settings: PlanSettings, task: Task) -> Problem:
    """Return the problem of the seed."""
    if settings.problems_from is None:
        return task.sample_problem(settings.seed)
    return problem_from_store(open_splits(settings.problems_from).validation, task, settings.seed)


def load_model(settings: PlanSettings, task: Task) -> PlanningModel:
    """Return what is planned with."""
    if settings.model == SIMULATOR:
        return SimulatorModel(task, policy_scale(task))
    return load_latent_model(
        settings.model, task=settings.task, encoder=settings.encoder, device=settings.device
    )


def teller(task: Task, plans: list[Plan], max_steps: int) -> Callable[[list[Outcome]], None]:
    """Return a function that tells, after every step, how far it has led."""

    def tell(outcomes: list[Outcome]) -> None:
        steps, problem = outcomes[0].steps, outcomes[0].problem
        distance = task.distance(steps[-1].state, problem.goal)
        cost, seconds = float(plans[-1].trace[-1, 0]), steps[-1].plan_seconds
        print(
            f"step {len(steps):>2}/{max_steps}  cost {cost:.4g}  distance {distance:.4g}  {seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )

    return tell


def scenes(task: Task, model: PlanningModel, outcome: Outcome, plans: list[Plan]) -> list[Scene]:
    """Play the executed actions again, step by step, with what the model made of the state before them."""
    found, before = list[Scene](), outcome.problem.start
    for step, chosen in zip(outcome.steps, plans, strict=True):
        kept = kept_tokens(model, observe_states(task, [before]), chosen)
        task.set_state(before)
        frames, distances = [task.render()], [task.distance(before, outcome.problem.goal)]
        for action in step.actions:
            task.advance(action)
            frames.append(task.render())
            distances.append(task.distance(task.state(), outcome.problem.goal))
        trace = chosen.trace[:, 0].double().numpy()
        found.append(Scene(frames=np.stack(frames), distances=distances, trace=trace, kept=kept))
        before = step.state
    return found


@torch.no_grad()
def kept_tokens(
    model: PlanningModel, now: Observations, chosen: Plan
) -> Bool[np.ndarray, "side side"] | None:
    """Tell which patches of the observed image get full dynamics for the first planned action, if not all.

    A selector that draws at random does so afresh here.
    """
    if not isinstance(model, LatentModel):
        return None
    visual, proprio = model.seen(now)
    fuse = model.world_model.fuse
    action = fuse.action(chosen.actions[:, 0].to(visual.device))
    indices = model.world_model.select(fuse(visual, fuse.proprio(proprio), action))
    kept = torch.zeros(visual.shape[:2], dtype=torch.bool).scatter(1, indices.cpu(), True)
    return None if kept.all() else kept.reshape(isqrt(kept.numel()), -1).numpy()
