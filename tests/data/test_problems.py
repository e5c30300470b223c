from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scope_wm.data.problems import problem_from_store, problems
from scope_wm.data.split import Split, open_splits, starts
from scope_wm.data.store import Store
from scope_wm.tasks import TASKS
from scope_wm.types import Problem, UsageError

MakeStore = Callable[..., Store]


def place(validation: Split, problem: Problem) -> tuple[int, int, int]:
    """Return the episode of a problem and the frames of its start and its goal."""
    for index in validation.episodes:
        states = validation.store.episode(int(index)).states
        start = np.flatnonzero((states == problem.start).all(axis=1))
        goal = np.flatnonzero((states == problem.goal).all(axis=1))
        if len(start) and len(goal):
            return int(index), int(start[0]), int(goal[0])
    raise AssertionError("not from the validation split")


def test_start_and_goal_are_five_actions_apart_in_a_validation_episode(wall_path: Path) -> None:
    validation, task = open_splits(wall_path).validation, TASKS["wall"]()
    places = [place(validation, problem_from_store(validation, task, i)) for i in range(20)]
    assert {goal - start for _, start, goal in places} == {25}
    assert {episode for episode, _, _ in places} == set(validation.episodes)
    assert len({start for _, start, _ in places}) > 5


def test_no_problem_is_solved_at_its_start(wall_path: Path) -> None:
    validation, task = open_splits(wall_path).validation, TASKS["wall"]()
    states = validation.store.states
    assert any(task.success(states[start], states[start + 25]) for start in starts(validation, 25))
    for problem in problems(validation, task):
        assert task.distance(problem.start, problem.goal) >= 4.5


def test_every_problem_comes_once_and_the_number_decides(wall_path: Path) -> None:
    validation, task = open_splits(wall_path).validation, TASKS["wall"]()
    states = validation.store.states
    unsolved = [s for s in starts(validation, 25) if not task.success(states[s], states[s + 25])]
    every = [problem_from_store(validation, task, number) for number in range(len(unsolved))]
    assert len(every) > 20
    assert len({(*problem.start, *problem.goal) for problem in every}) == len(every)
    again = problem_from_store(validation, task, 7)
    assert np.array_equal(again.start, every[7].start)
    assert np.array_equal(again.goal, every[7].goal)
    with pytest.raises(UsageError, match=f"at least {len(every) + 1} problems, .* has {len(every)}:"):
        problem_from_store(validation, task, len(every))


def test_a_store_without_problems_is_an_error(make_store: MakeStore) -> None:
    store, task = make_store([30, 25]), TASKS["wall"]()
    # States are (episode, t): 25 steps apart are 25 units apart, so the long episode has problems.
    assert problem_from_store(Split(store, np.array([0])), task, 0).goal[1] >= 25
    with pytest.raises(UsageError, match=r"has 0: .* 25 steps apart in one of its 1 validation episodes"):
        problem_from_store(Split(store, np.array([1])), task, 0)


def test_a_store_of_another_task_is_refused(make_store: MakeStore) -> None:
    store = make_store([30], task="push_t")
    with pytest.raises(UsageError, match=r"expected a store of wall, .* is one of push_t"):
        problem_from_store(Split(store, np.array([0])), TASKS["wall"](), 0)
