"""The task of the guide owes what every task owes; a test to copy for your own."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from scope_wm.data.collect import record
from scope_wm.data.store import Store
from scope_wm.planning.cem import CEMSettings, cem
from scope_wm.planning.models import SimulatorModel, policy_scale
from scope_wm.planning.mpc import Controller, MPCSettings, solve
from scope_wm.planning.planners import Memoryless
from scope_wm.tasks import find_task
from scope_wm.tasks.task import Task, episode_rng

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.syspath_prepend(EXAMPLES)
    return find_task("puck:Puck")()


@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space")
@pytest.mark.filterwarnings("ignore:.*Box observation space m..imum value is -?infinity")
def test_gymnasium_finds_no_fault(task: Task) -> None:
    check_env(task, skip_render_check=True)  # that one is for a task with an id


def test_any_state_can_be_continued_bit_by_bit(task: Task) -> None:
    episode = record(task, episode_rng(7, 0), task.episode_length)
    for t, action in enumerate(episode.actions):
        other = type(task)()
        other.set_state(episode.states[t])
        other.advance(action)
        assert np.array_equal(other.state(), episode.states[t + 1])
        assert np.array_equal(other.render(), episode.frames[t + 1])


def test_the_policy_sees_all_of_the_table_and_stays_in_the_action_space(task: Task) -> None:
    episodes = [record(task, episode_rng(0, number), task.episode_length) for number in range(12)]
    places = np.concatenate([episode.states[:, :2] for episode in episodes])
    visits, *_ = np.histogram2d(*places.T, bins=4, range=[(0, 1), (0, 1)])
    assert visits.min() >= 5  # of 600 frames, in every sixteenth of the table
    assert all(task.action_space.contains(action) for episode in episodes for action in episode.actions)


def test_a_puck_bounces_off_the_cushion_and_comes_to_rest(task: Task) -> None:
    task.set_state([0.9, 0.5, 0.1, 0.0])
    task.advance([0.0, 0.0])  # 0.9 + 0.08 is 0.06 beyond 0.92
    np.testing.assert_allclose(task.state(), [0.86, 0.5, -0.08, 0.0])
    for _ in range(60):
        task.advance([0.0, 0.0])
    # 0.08 (0.8 + 0.8^2 + ...) = 0.32 further
    np.testing.assert_allclose(task.state(), [0.54, 0.5, 0.0, 0.0], atol=1e-5)


def test_the_planner_with_the_true_dynamics_solves_its_problems(task: Task) -> None:
    seeds = [1, 100, 199]
    problems = [task.sample_problem(seed) for seed in seeds]
    assert not any(task.success(problem.start, problem.goal) for problem in problems)
    planner = Memoryless(optimiser=partial(cem, settings=CEMSettings(samples=30, elites=5, iterations=5)))
    model = SimulatorModel(task, policy_scale(task))
    outcomes = solve(task, problems, seeds, Controller(model, planner, MPCSettings(max_steps=6)))
    assert all(outcome.success for outcome in outcomes)


def test_the_command_line_finds_it_in_worker_processes_too(tmp_path: Path) -> None:
    words = ["collect", "--task", "puck:Puck", "--episodes", "40", "--length", "8", "--workers", "2"]
    subprocess.run(
        [sys.executable, "-m", "scope_wm", *words, "--out", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES)},
        check=True,
    )
    store = Store.open(tmp_path)
    assert (len(store), store.config.task) == (40, "puck:Puck")
