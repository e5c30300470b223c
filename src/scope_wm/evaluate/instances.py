"""One instance: a problem, solved by itself, and the record of how that went."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_wm.data.problems import problem_from_store
from scope_wm.data.split import open_splits
from scope_wm.evaluate.memory import PeakMemory
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.planning.mpc import Controller, Outcome, solve
from scope_wm.tasks import find_task
from scope_wm.tasks.granular import Granular
from scope_wm.tasks.push_t import PushT
from scope_wm.tasks.task import Task
from scope_wm.types import Problem

SEED_STEP = 99


@dataclass(frozen=True, kw_only=True)
class InstanceRecord:
    """One line of instances.jsonl; distances are in the units of the task, the last four of Push-T only.

    Goals of Granular overlap: `least_distance` is about as near as pieces can come. Earlier versions did not
    record it.
    """

    instance: int
    seed: int
    success: bool
    steps: int  # plans that were executed
    start_distance: float
    final_distance: float
    path_left: float
    plan_seconds: float  # of all steps together: encoding what is seen, and the search
    samples: int
    peak_memory: int | None  # bytes
    least_distance: float | None = None
    block_must_move: bool | None = None
    agent_distance: float | None = None
    block_distance: float | None = None
    block_turn: float | None = None


def instance_seed(instance: int) -> int:
    """Return the seed of an instance: 1, 100, 199, ..."""
    return SEED_STEP * instance + 1


def problem_source(task: Task, problems_from: Path | None) -> Callable[[int], Problem]:
    """Return what makes the problem of a seed: the task, or the validation episodes of a store.

    Instance i has problem i of the store, so no two have the same; seeds in between count on from there.
    """
    if problems_from is None:
        return task.sample_problem
    validation = open_splits(problems_from).validation
    return lambda seed: problem_from_store(validation, task, sum(divmod(max(seed - 1, 0), SEED_STEP)))


def data_digest(settings: EvaluateSettings) -> str | None:
    """Return what identifies the store of the problems, if any; refuse one of another task or too small."""
    if settings.problems_from is None:
        return None
    validation = open_splits(settings.problems_from).validation
    problem_from_store(validation, find_task(settings.task)(), settings.count - 1)
    return validation.store.digest


def run_instance(
    task: Task, problem: Problem, instance: int, controller: Controller, memory: PeakMemory
) -> InstanceRecord:
    """Solve one problem and record how that went."""
    seed = instance_seed(instance)
    memory.restart()
    (outcome,) = solve(task, [problem], [seed], controller)
    peak, state, goal = memory.peak(), outcome.state, problem.goal
    return InstanceRecord(
        instance=instance,
        seed=seed,
        success=outcome.success,
        steps=len(outcome.steps),
        start_distance=task.distance(problem.start, goal),
        final_distance=task.distance(state, goal),
        path_left=task.path_left(state, goal),
        plan_seconds=outcome.plan_seconds,
        samples=outcome.samples,
        peak_memory=peak,
        least_distance=task.distance(task.packed(goal), goal) if isinstance(task, Granular) else 0.0,
        **(push_t_details(task, outcome) if isinstance(task, PushT) else {}),
    )


def push_t_details(task: PushT, outcome: Outcome) -> dict[str, Any]:
    """Return whether the block had to move, and what is left to the goal, part by part."""
    state, goal = outcome.state, outcome.problem.goal
    return {
        "block_must_move": task.block_must_move(outcome.problem),
        "agent_distance": math.dist(state[:2], goal[:2]),
        "block_distance": math.dist(state[2:4], goal[2:4]),
        "block_turn": abs(math.remainder(state[4] - goal[4], 2 * math.pi)),
    }
