"""Problems from a store: a start and a goal, five world-model actions apart in one validation episode."""

from collections.abc import Iterator
from itertools import islice

from scope_wm.data.split import Split, starts
from scope_wm.tasks.task import Task, problem_rng
from scope_wm.types import Problem, UsageError

GOAL_ACTIONS = 5  # DINO-WM's goal_H
ORDER_SEED = 0


def problems(validation: Split, task: Task) -> Iterator[Problem]:
    """Return all problems that are not solved at the start, each once, in one order, mixed at random."""
    store, apart = validation.store, GOAL_ACTIONS * task.frameskip
    for start in problem_rng(ORDER_SEED).permutation(starts(validation, apart)):
        problem = Problem(start=store.states[start], goal=store.states[start + apart])
        if not task.success(problem.start, problem.goal):
            yield problem


def problem_from_store(validation: Split, task: Task, number: int) -> Problem:
    """Return the problem of this number, from 0; say how many there are if that is too few."""
    store, episodes = validation
    if store.config.task != task.name:
        raise UsageError(f"expected a store of {task.name}, {store.path} is one of {store.config.task}")
    for problem in islice(problems(validation, task), number, None):
        return problem
    available = sum(1 for _ in problems(validation, task))
    raise UsageError(
        f"expected a store of at least {number + 1} problems, {store.path} has {available}: starts and goals "
        f"{GOAL_ACTIONS * task.frameskip} steps apart in one of its {len(episodes)} validation episodes, "
        "not solved at the start"
    )
