"""`scope-wm plan`: solve one problem, and show in a video how it was planned and what happened."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isqrt
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from jaxtyping import Bool, Float
from torch import Tensor

from scope_wm.background import Ignored
from scope_wm.data.play import VIDEOS, write_video
from scope_wm.evaluate.instances import problem_source
from scope_wm.evaluate.models import planning_model, simulator_scale
from scope_wm.evaluate.settings import (
    SearchSettings,
    expect_at_least,
    expect_plannable,
    expect_writable,
    home,
    protocol_of,
)
from scope_wm.files import CONFIG
from scope_wm.model.checkpoint import model_directory
from scope_wm.model.decoder import GRID, Decoder, to_uint8
from scope_wm.model.fast_rollout import last_imagined
from scope_wm.planning.latent import LatentModel, Seen, chance_of
from scope_wm.planning.load import ModelSettings
from scope_wm.planning.models import PlanningModel, observe_states
from scope_wm.planning.mpc import Outcome, StepRecord, solve
from scope_wm.report.plan_video import Scene, Story, video
from scope_wm.tasks import TaskName, find_task
from scope_wm.tasks.task import Task
from scope_wm.types import Image, State, UsageError


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Solve one problem and write a video of it.

    The video shows what happened, the goal, and the cost of the best candidate in every iteration of a
    search; of a learned model, the end that it imagines, if there is a decoder to draw it, and which tokens
    of the image get full dynamics, if not all do and they are not drawn at random.

    Example: scope-wm plan --task push_t --model push_t/faster --seed 7
    """

    task: TaskName
    """what to do"""
    model: Annotated[ModelSettings, tyro.conf.arg(name="")]
    search: Annotated[SearchSettings, tyro.conf.arg(name="")] = field(default_factory=SearchSettings)
    out: Path | None = None
    """video to write, .mp4 or .gif; None: plan/MODEL-PLANNER-SEED.mp4 beside the model, or in runs/TASK"""
    seed: int = 0
    """which problem; 1, 100, 199, ... are the instances of scope-wm evaluate"""
    problems_from: Path | None = None
    """a store: start and goal are from one of its validation episodes; None: the task draws them"""
    decoder: Path | None = None
    """directory of a decoder, to draw the imagined end; None: `decoder` beside the model, if it is there"""

    def __post_init__(self) -> None:
        """Refuse what cannot be done before anything is."""
        expect_at_least(self, {"seed": 0})
        expect_plannable(self.model, self.search)
        if self.path.suffix not in VIDEOS:
            raise UsageError(f"expected --out to end with {' or '.join(VIDEOS)}, got {self.out}")
        if self.path.is_dir():
            raise UsageError(f"expected --out to name a file, {self.path} is a directory")
        expect_writable(self.path.parent)
        if self.model.plays and self.decoder is not None:
            raise UsageError("the simulator imagines no images: it takes no --decoder")

    @property
    def path(self) -> Path:
        """Return the video to write."""
        name = f"{self.model.name}-{self.search.planner}-{self.seed}.mp4"
        return self.out or home(self.task, self.model) / "plan" / name


def plan(settings: PlanSettings) -> None:
    """Solve the problem, tell how each step goes, and write the video."""
    task = find_task(settings.task)()
    problem = problem_source(task, settings.problems_from)(settings.seed)
    model, decoder = load_model(settings, task)
    controller = settings.search.controller(model, settings.task, seed=0)
    max_steps = controller.settings.max_steps
    (outcome,) = solve(task, [problem], [settings.seed], controller, teller(task, max_steps))
    note = f"{settings.search.planner}, {settings.model.name}, problem {settings.seed}"
    story = story_of(task, outcome, scenes(task, outcome, model, decoder), note, max_steps)
    settings.path.parent.mkdir(parents=True, exist_ok=True)
    write_video(settings.path, video(story))
    print(f"{story.verdict}, {outcome.plan_seconds:.1f} s of planning")
    print(settings.path)


def story_of(task: Task, outcome: Outcome, scenes: list[Scene], note: str, max_steps: int) -> Story:
    """Put together what the video of a problem tells."""
    distance = task.distance(outcome.state, outcome.problem.goal)
    has_success = protocol_of(task.name).has_success
    return Story(
        task=task.name,
        note=note,
        goal=observe_states(task, [outcome.problem.goal]).images[0],
        scenes=scenes,
        max_steps=max_steps,
        verdict=verdict(outcome, distance, has_success=has_success),
        success=outcome.success,
    )


def verdict(outcome: Outcome, distance: float, *, has_success: bool) -> str:
    """Say how it ended; some tasks have a distance only."""
    count = len(outcome.steps)
    end = "solved" if outcome.success else "not solved" if has_success else f"distance {distance:.3g}"
    return f"{end} after {count} step{'' if count == 1 else 's'}"


def load_model(settings: PlanSettings, task: Task) -> tuple[PlanningModel[Any], Decoder | None]:
    """Return what is planned with, and what draws what it imagines, if there is such a thing."""
    chosen = settings.model
    scale = simulator_scale(settings.task, settings.problems_from) if chosen.simulated else None
    model = planning_model(chosen, task, scale)
    if not isinstance(model, LatentModel):
        return model, None
    if not imagines_frames(model):
        if settings.decoder is not None:
            raise UsageError(f"{chosen.model} imagines no whole images: it takes no --decoder")
        return model, None
    beside = model_directory(chosen.model).resolve().parent / "decoder"
    directory = settings.decoder or (beside if (beside / CONFIG).is_file() else None)
    if directory is None:
        return model, None
    decoder = Decoder.from_pretrained(directory).to(model.device)
    tokens = model.world_model.fuse.config
    if (decoder.config.visual, GRID**2) != (tokens.visual, tokens.num_tokens):
        raise UsageError(
            f"expected a decoder of {tokens.num_tokens} tokens with {tokens.visual} channels, as the model "
            f"has: {directory} draws {GRID**2} with {decoder.config.visual}"
        )
    return model, decoder


def imagines_frames(model: LatentModel) -> bool:
    """Tell whether a model imagines whole frames; one that ignores the background imagines some patches."""
    return not isinstance(model.world_model.background, Ignored)


def teller(task: Task, max_steps: int) -> Callable[[list[Outcome]], None]:
    """Return a function that tells, after every step, how far it has led."""

    def tell(outcomes: list[Outcome]) -> None:
        steps, goal = outcomes[0].steps, outcomes[0].problem.goal
        step, distance = steps[-1], task.distance(steps[-1].state, goal)
        cost = f"best cost {step.trace[-1]:.4g}" if len(step.trace) else "no complete iteration"
        print(
            f"step {len(steps):>2}/{max_steps}  {cost}  distance {distance:.4g}  {step.plan_seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )

    return tell


def scenes(task: Task, outcome: Outcome, model: PlanningModel[Any], decoder: Decoder | None) -> list[Scene]:
    """Play the executed actions again, step by step, with what the model made of the state before them."""
    found, state, previous = list[Scene](), outcome.problem.start, None
    for step in outcome.steps:
        scene = play(task, state, step, outcome.problem.goal)
        if isinstance(model, LatentModel):
            now, planned = model.see(observe_states(task, [state])), step.planned[None]
            kept = kept_tokens(model, now, planned, previous)
            end = None
            if decoder is not None and imagines_frames(model):
                end = imagined_end(model, decoder, now, planned, previous)
            scene, previous = replace(scene, kept=kept, imagined=end), now
        found.append(scene)
        state = step.state
    return found


def play(task: Task, state: State, step: StepRecord, goal: State) -> Scene:
    """Play the actions of one step, and draw the frame after each."""
    task.set_state(state)
    frames, distances = [task.render()], [task.distance(state, goal)]
    for action in step.actions:
        task.advance(action)
        frames.append(task.render())
        distances.append(task.distance(task.state(), goal))
    return Scene(frames=np.stack(frames), distances=distances, trace=step.trace)


@torch.no_grad()
def kept_tokens(
    model: LatentModel, now: Seen, planned: Float[Tensor, "1 L A"], previous: Seen | None
) -> Bool[np.ndarray, "side side"] | None:
    """Tell which patches of the observed image get full dynamics for the first planned action, if not all.

    Nothing is told of a selector that draws at random: another draw would not show what was planned with.
    """
    if chance_of(model.world_model) is not None:
        return None
    world_model, fuse = model.world_model, model.world_model.fuse
    action = fuse.action(planned[:, 0])
    tokens = fuse(now.visual, fuse.proprio(now.proprio), action)
    before = None if previous is None else fuse(previous.visual, fuse.proprio(previous.proprio), action)
    indices = world_model.select(tokens, before)
    kept = torch.zeros(now.visual.shape[:2], dtype=torch.bool).scatter(1, indices.cpu(), True)
    return None if kept.all() else kept.reshape(isqrt(kept.numel()), -1).numpy()


@torch.no_grad()
def imagined_end(
    model: LatentModel, decoder: Decoder, now: Seen, planned: Float[Tensor, "1 L A"], previous: Seen | None
) -> Image:
    """Draw the last frame that the model imagines of the chosen actions."""
    before = None if previous is None else previous.visual
    last = last_imagined(model.world_model, now.visual, now.proprio, planned, before)
    visual, *_ = model.world_model.fuse.split(last)
    return to_uint8(decoder(visual))[0].cpu().numpy()
