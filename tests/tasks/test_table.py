"""What Rope and Granular share: pushes, the data policy, poses of starts and goals, and the metric."""

import math

import numpy as np
import pytest

from scope_wm.tasks import table
from scope_wm.tasks.granular import Granular
from scope_wm.tasks.rope import Rope
from scope_wm.tasks.task import Policy

TableTask = Rope | Granular
tasks = pytest.mark.parametrize("task", [Rope(), Granular()], ids=lambda task: task.name)


@tasks
def test_a_push_that_touches_nothing_changes_nothing(task: TableTask) -> None:
    task.set_state(type(task)().state())
    task.advance([3.9, 3.9, 1.4, 1.4])
    assert np.array_equal(task.state(), type(task)().state())


@tasks
def test_an_action_out_of_range_is_clipped(task: TableTask) -> None:
    ends = []
    for action in ([-9.0, 0.0, 7.0, 0.2], [-4.0, 0.0, 1.5, 0.2]):
        task.set_state(type(task)().state())
        task.advance(action)
        ends.append(task.state())
    assert np.array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], type(task)().state())


@tasks
def test_frames_show_a_motion_of_a_fiftieth_of_a_unit_and_less(task: TableTask) -> None:
    start = task.sample_start(np.random.default_rng(1)).reshape(-1, 4)
    task.set_state(start.ravel())
    frame = task.render().astype(int)
    for motion in (0.02, 0.005):
        for axis in (0, 2):
            moved = start.copy()
            moved[:, axis] += motion
            task.set_state(moved.ravel())
            assert np.abs(task.render() - frame).max() >= 5


@tasks
def test_an_aimed_push_starts_clear_and_ends_behind_a_particle(task: TableTask) -> None:
    rng = np.random.default_rng(5)
    act = table.aimed_pushes(rng)
    for _ in range(50):
        state = task.sample_start(rng)
        action = act(state)
        points = state.reshape(-1, 4)[:, [0, 2]] * [1, -1]
        start, end = action[:2], action[2:]
        along = (end - start) / np.linalg.norm(end - start)
        left = np.linalg.norm(points - start, axis=1)
        aside = (points - start) @ [-along[1], along[0]]
        overshoot = (end - points) @ along
        assert np.abs(start).max() <= 4.0
        assert np.abs(end).max() < 1.5
        assert left.min() > 0.2
        assert ((np.abs(aside) < 1e-9) & (overshoot >= 0.4 - 1e-9) & (overshoot <= 1.0 + 1e-9)).any()


@tasks
def test_aimed_pushes_hit(task: TableTask) -> None:
    rng = np.random.default_rng(6)
    assert hits(task, table.aimed_pushes(rng), rng) >= 27


def test_a_model_of_the_rope_sees_pushes_that_miss() -> None:
    rng = np.random.default_rng(6)
    assert 12 <= hits(Rope(), Rope().policy(rng), rng) <= 24


def hits(task: TableTask, act: Policy, rng: np.random.Generator) -> int:
    """Return how many of 30 pushes move something."""
    task.set_state(task.sample_start(rng))
    count = 0
    for _ in range(30):
        before = task.state()
        task.advance(act(before))
        count += np.abs(task.state() - before).max() > 0.1
    return count


def test_half_of_the_pushes_in_data_of_the_rope_are_aimed() -> None:
    task = Rope()
    state, pushes, aimed = task.sample_start(np.random.default_rng(0)), 400, 0
    act = task.policy(np.random.default_rng(8))
    points = state.reshape(-1, 4)[:, [0, 2]] * [1, -1]
    for _ in range(pushes):
        start, end = np.split(act(state), 2)
        along = (end - start) / np.linalg.norm(end - start)
        aimed += (np.abs((points - start) @ [-along[1], along[0]]) < 1e-9).any()
    assert 0.4 < aimed / pushes < 0.6


def test_the_policy_pushes_at_random_where_no_push_can_be_aimed() -> None:
    task = Rope()
    state = task.state().reshape(-1, 4)
    state[:, 2] -= 2.6  # to z from -0.6 to -4.35, of which the policy's z is the negative
    state[:, 0] = 3.4  # farther from the ends' limit than any push goes past its particle
    action = table.aimed_pushes(np.random.default_rng(0))(state.ravel())
    assert task.action_space.contains(action)


def test_transformed_moves_by_the_same_length_along_both_axes_with_any_signs() -> None:
    signs = set()
    for seed in range(20):
        origin = np.zeros((1, 4))  # which scale and angle leave where it is
        shift = table.transformed(origin, 0.7, 1.1, np.random.default_rng(seed))[[0, 2]]
        assert abs(shift[0]) == abs(shift[1]) <= 1.0
        signs.add(tuple(np.sign(shift)))
    assert len(signs) == 4


def test_transformed_turns_z_towards_x() -> None:
    particles = np.array([[0.0, 0.6, 1.0, 5.0], [0.0, 0.6, 0.0, 5.0]])
    moved = table.transformed(particles, 2.0, math.radians(30), np.random.default_rng(0)).reshape(-1, 4)
    np.testing.assert_allclose(moved[0, [0, 2]] - moved[1, [0, 2]], [2 * 0.5, 2 * math.sqrt(3) / 2])
    assert moved[:, [1, 3]].tolist() == [[0.6, 5.0], [0.6, 5.0]]


@tasks
def test_distance_is_the_chamfer_distance_over_xyz(task: TableTask) -> None:
    rng = np.random.default_rng(7)
    a, b = task.sample_start(rng), task.sample_start(rng)
    points_a, points_b = a.reshape(-1, 4)[:, :3].tolist(), b.reshape(-1, 4)[:, :3].tolist()
    there = [min(math.dist(p, q) for q in points_b) for p in points_a]
    back = [min(math.dist(p, q) for q in points_a) for p in points_b]
    expected = sum(there) / len(there) + sum(back) / len(back)
    assert task.distance(a, b) == pytest.approx(expected, rel=1e-12)
    assert task.distance(a, a) == 0.0


def test_chamfer_of_two_small_sets_by_hand() -> None:
    a = np.array([[0.0, 0, 0, 1], [4, 0, 0, 1]])
    b = np.array([[0.0, 3, 0, 9], [4, 0, 0, 9], [4, 0, 1, 9]])
    assert table.chamfer(a, b) == pytest.approx((3 + 0) / 2 + (3 + 0 + 1) / 3)


@tasks
def test_a_state_off_the_table_is_an_error(task: TableTask) -> None:
    state = task.state()
    state[4] = 3.6
    with pytest.raises(ValueError, match="expected particles on the table"):
        task.set_state(state)


@tasks
def test_proprio_is_one_zero(task: TableTask) -> None:
    assert task.proprio().tolist() == [0.0]


@tasks
def test_the_limits_of_actions_are_those_of_the_facts(task: TableTask) -> None:
    assert task.action_space.low.tolist() == [-4.0, -4.0, -1.5, -1.5]
    assert task.action_space.high.tolist() == [4.0, 4.0, 1.5, 1.5]
