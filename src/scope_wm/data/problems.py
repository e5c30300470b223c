"""Problems from a store: a start and a goal, five world-model actions apart in one validation episode."""

from scope_wm.data.split import Split, starts
from scope_wm.tasks.task import Task, problem_rng
from scope_wm.types import Problem, UsageError

GOAL_ACTIONS = 5  # DINO-WM's goal_H


def problem_from_store(validation: Split, task: Task, seed: int) -> Problem:
    """Draw the problem of this seed from all pairs of states that are not solved at the start."""
    store, episodes = validation
    if store.config.task != task.name:
        raise UsageError(f"expected a store of {task.name}, {store.path} is one of {store.config.task}")
    apart = GOAL_ACTIONS * task.frameskip
    for start in problem_rng(seed).permutation(starts(validation, apart)):
        problem = Problem(start=store.states[start], goal=store.states[start + apart])
        if not task.success(problem.start, problem.goal):
            return problem
    raise UsageError(
        f"{store.path} has no problem: none of its {len(episodes)} validation episodes has two states "
        f"{apart} steps apart of which the first does not already satisfy the second as a goal"
    )
