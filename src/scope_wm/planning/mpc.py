"""Model predictive control: observe, plan, execute all planned actions, check, again.

The mean and spread of a search restart at every step. Success is checked after the last action of a step,
never in between, and a problem that has succeeded stops. The simulator never ends a search.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scope_wm.elite_bank import EliteBank
from scope_wm.planning.models import Observations, PlanningModel, execute, observe_states
from scope_wm.planning.planners import StepPlanner
from scope_wm.planning.search import Limits, OnIteration, Plan, standard_start
from scope_wm.tasks.task import Task
from scope_wm.types import Problem, State

V = TypeVar("V", bound=Any)


@dataclass(frozen=True, kw_only=True)
class MPCSettings:
    """World-model actions in a plan, plans at most, and the seed of the searches."""

    horizon: int = 5
    max_steps: int = 15
    seed: int = 0


class Controller:
    """Plan towards the goals of several problems; holds what must be remembered from step to step."""

    def __init__(
        self,
        model: PlanningModel[Any],
        planner: StepPlanner,
        settings: MPCSettings,
        *,
        limits: Limits | None = None,
        on_iteration: OnIteration | None = None,
    ) -> None:
        self.model = model
        self.planner = planner
        self.settings = settings
        self.limits = limits
        self.on_iteration = on_iteration
        self._goal: Any = None

    def reset(self, goals: Observations, seeds: Sequence[int]) -> None:
        """Begin with new goals; the searches of a problem depend on its seed, whatever others are planned."""
        if any(seed < 0 for seed in seeds):
            raise ValueError(f"expected seeds of at least 0, got {list(seeds)}")
        self.model.reseed(seeds)
        self._goal = self.model.see(goals)
        self._previous: Any = None
        self._seeds = list(seeds)
        self.bank: EliteBank | None = None
        self._step = 0

    @torch.no_grad()
    def act(self, now: Observations) -> tuple[Float64[np.ndarray, "B steps action"], Plan]:
        """Return the actions to execute for each problem, in units of the task, and the plan behind them."""
        if self._goal is None:
            raise ValueError("expected reset with a goal before the first act")
        if len(now.images) != len(self._seeds):
            raise ValueError(f"expected to see {len(self._seeds)} problems, got {len(now.images)}")
        model, seen = self.model, self.model.see(now)
        cost = model.cost(seen, self._goal, self._previous)
        start = standard_start(len(self._seeds), self.settings.horizon, model.action_width, model.device)
        generators = [search_generator(self.settings.seed, seed, self._step) for seed in self._seeds]
        plan, self.bank = self.planner(
            cost, start, generators, self.bank, limits=self.limits, on_iteration=self.on_iteration
        )
        self._previous = seen
        self._step += 1
        return model.task_actions(plan.actions), plan

    def keep(self, unsolved: Bool[np.ndarray, " B"]) -> None:
        """Go on with some of the problems; goal, what was seen last, seed and bank follow them."""
        rows = np.flatnonzero(unsolved)
        self._goal, self._previous = (part and select(part, rows) for part in (self._goal, self._previous))
        self._seeds = [self._seeds[row] for row in rows]
        self.bank = None if self.bank is None else self.bank.of(torch.from_numpy(rows))


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What one step of control did for one problem."""

    actions: Float64[np.ndarray, "steps action"]
    state: State  # after the last of them
    plan_seconds: float  # encoding what is seen, and the search
    samples: int  # candidates judged
    planned: Float[Tensor, "L A"]  # the actions as they were planned, standardised
    trace: Float64[np.ndarray, " iterations"]  # the lowest cost of every complete iteration


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one problem went."""

    problem: Problem
    success: bool
    steps: tuple[StepRecord, ...] = ()

    @property
    def state(self) -> State:
        """Return the state at the end."""
        return self.steps[-1].state if self.steps else self.problem.start

    @property
    def plan_seconds(self) -> float:
        """Return the time of planning, over all steps."""
        return sum(step.plan_seconds for step in self.steps)

    @property
    def samples(self) -> int:
        """Return how many candidates were judged, over all steps."""
        return sum(step.samples for step in self.steps)


def solve(
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    controller: Controller,
    on_step: Callable[[list[Outcome]], None] | None = None,
) -> list[Outcome]:
    """Control every problem until it is solved or the steps are over."""
    outcomes = [Outcome(problem=problem, success=False) for problem in problems]
    controller.reset(observe_states(task, [problem.goal for problem in problems]), seeds)
    active = list(range(len(problems)))
    for _ in range(controller.settings.max_steps):
        now = observe_states(task, [outcomes[i].state for i in active])
        began = time.perf_counter()
        actions, plan = controller.act(now)
        seconds = (time.perf_counter() - began) / len(active)
        for row, (i, block) in enumerate(zip(active, actions, strict=True)):
            state = execute(task, outcomes[i].state, block)
            record = StepRecord(
                actions=block,
                state=state,
                plan_seconds=seconds,
                samples=plan.samples,
                planned=plan.actions[row],
                trace=plan.trace[:, row].cpu().double().numpy(),
            )
            solved = task.success(state, problems[i].goal)
            outcomes[i] = replace(outcomes[i], success=solved, steps=(*outcomes[i].steps, record))
        if on_step is not None:
            on_step(outcomes)
        unsolved = np.array([not outcomes[i].success for i in active])
        controller.keep(unsolved)
        active = [i for i in active if not outcomes[i].success]
        if not active:
            break
    return outcomes


def select(seen: V, rows: Int64[np.ndarray, " rows"]) -> V:
    """Return what is seen of some of the problems."""
    return replace(seen, **{part.name: getattr(seen, part.name)[rows] for part in fields(seen)})


def search_generator(run_seed: int, problem_seed: int, step: int) -> torch.Generator:
    """Return the random stream of one search."""
    sequence = np.random.SeedSequence(run_seed, spawn_key=(problem_seed, step))
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
