"""Rope: what a push does to it, that it stays a rope whatever is done to it, problems and pictures."""

import numpy as np
import pytest

from scope_wm.tasks import camera, table
from scope_wm.tasks.rope import Rope

LENGTH, SEGMENTS, THICKNESS = 3.75, 60, 0.2


def line(task: Rope) -> np.ndarray:
    """Return x and z of the particles, [61, 2]."""
    return task.state().reshape(-1, 4)[:, [0, 2]]


def stretch(points: np.ndarray) -> tuple[float, float]:
    """Return by how much, relatively, the whole rope and the worst segment are off their lengths."""
    segments = np.linalg.norm(np.diff(points, axis=0), axis=1)
    return abs(segments.sum() / LENGTH - 1), np.abs(segments * SEGMENTS / LENGTH - 1).max()


def self_overlap(points: np.ndarray) -> float:
    """Return how deep the rope is in itself, in thicknesses, between particles at least eight apart."""
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    return 1 - distance[np.triu_indices(len(points), 8)].min() / THICKNESS


def crossings(points: np.ndarray) -> int:
    """Return how many pairs of segments that are not neighbours cross."""
    a, b = points[:-1], points[1:]

    def side(origin: np.ndarray, tip: np.ndarray, point: np.ndarray) -> np.ndarray:
        (x, z), (u, v) = np.moveaxis(tip - origin, -1, 0), np.moveaxis(point - origin, -1, 0)
        return np.sign(x * v - z * u)

    split = side(a[:, None], b[:, None], a) * side(a[:, None], b[:, None], b) < 0
    return int(np.triu(split & split.T, 2).sum())


def test_at_rest_it_is_straight_along_z_with_the_listed_length() -> None:
    state = Rope().state().reshape(-1, 4)
    assert state.shape == (61, 4)
    assert np.ptp(state[:, 2]) == pytest.approx(3.75)
    assert state[:, 2].mean() == pytest.approx(0.125)
    np.testing.assert_allclose(state[:, [0, 1, 3]], [[0.0, 0.6, 1.0]] * 61)


def test_a_push_along_x_takes_the_middle_of_the_rope_to_the_front_of_the_pusher() -> None:
    task = Rope()
    task.advance([-1.0, 0.0, 0.5, 0.0])
    points = line(task)
    # The pusher's radius and the rope's are 0.1 each: in front of it the rope ends 0.2 past its end, less a
    # little that the bend opens after the pusher has gone.
    assert 0.67 < points[:, 0].max() < 0.701
    assert abs(points[points[:, 0].argmax(), 1]) < 0.1
    assert np.abs(points[[0, -1], 0]).max() < 0.2


def test_z_of_an_action_is_the_negative_of_the_particles() -> None:
    task = Rope()
    task.advance([-1.0, -1.2, 0.5, -1.2])
    points = line(task)
    assert points[points[:, 0].argmax(), 1] == pytest.approx(1.2, abs=0.2)
    assert points[-1, 0] == pytest.approx(0.0, abs=1e-3)
    assert -1.75 < points[-1, 1] < -1.55


@pytest.mark.parametrize("x", [-0.03, -1e-9, 0.0, 0.03])
def test_a_rope_under_the_pusher_moves_out_whole_and_the_shorter_way(x: float) -> None:
    task = Rope()
    task.advance([x, 0.3, x, 0.3])
    points = line(task)
    beside = points[np.abs(points[:, 1] + 0.3) < 0.1, 0]
    assert np.linalg.norm(points - [x, -0.3], axis=1).min() > 0.19
    assert len(beside) >= 2
    assert (np.sign(beside) == (1 if x < 0 else np.sign(beside[0]) if x == 0 else -1)).all()
    assert max(stretch(points)) < 0.05


def test_the_rope_hardly_stretches_even_while_it_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    task, pulled, stretches = Rope(), Rope(), []
    for episode in range(3):
        rng = np.random.default_rng(episode)
        task.set_state(task.sample_start(rng))
        act = task.policy(rng)
        for _ in range(15):
            action = act(task.state())
            with monkeypatch.context() as patch:
                patch.setattr(table, "SETTLE_STEPS", 0)
                pulled.set_state(task.state())
                pulled.advance(action)
            stretches.append(stretch(line(pulled))[0])
            task.advance(action)
    assert max(stretches) < 0.03
    assert np.mean(stretches) < 0.01


def test_a_hook_pulls_the_rope_without_stretching_it() -> None:
    task = Rope()
    for action in (
        [-1.0, -1.5, 1.4, -1.0],
        [1.4, 1.5, -1.4, -1.4],
        [-1.5, 0.0, 1.5, 0.5],
        [3, -1, -1.4, 1.4],
    ):
        task.advance(action)
        whole, worst = stretch(line(task))
        assert whole < 0.01
        assert worst < 0.06


def test_1000_random_actions_leave_a_whole_rope_on_the_table() -> None:
    task, rng = Rope(), np.random.default_rng(0)
    for push in range(1000):
        if push % 250 == 0:
            task.set_state(task.sample_start(rng))
        action = rng.uniform(-5.0, 5.0, 4)
        if push % 3 == 0:  # start on the rope
            action[:2] = rng.choice(line(task)) * [1, -1] + rng.normal(0.0, 0.05, 2)
        task.advance(action)
        points = line(task)
        assert (np.abs(points) <= [3.5, 4.5]).all()
        whole, worst = stretch(points)
        assert whole < 0.02
        assert worst < 0.1
        assert self_overlap(points) < 0.05
        assert crossings(points + rng.normal(0.0, 1e-9, points.shape)) == 0  # no three points in one line


def test_a_rope_along_the_edge_of_the_table_is_held_by_it() -> None:
    task, rng = Rope(), np.random.default_rng(1)
    state = task.state().reshape(-1, 4)
    state[:, 0] += 3.39
    task.set_state(state.ravel())
    for x in (3.2, 3.35, 3.45):
        task.advance([x, rng.uniform(-1, 1), 1.5, 0.0])
        assert line(task)[:, 0].max() < 3.41


def test_goals_are_the_straight_rope_turned_by_up_to_a_right_angle() -> None:
    task = Rope()
    angles = []
    for seed in range(6):
        goal = task.sample_problem(seed).goal.reshape(-1, 4)[:, [0, 2]]
        x, z = goal[0] - goal[-1]
        angles.append(np.degrees(np.arctan2(x, z)))
        middle = goal.mean(axis=0) - 0.125 * np.array([x, z]) / LENGTH
        assert np.hypot(x, z) == pytest.approx(LENGTH)
        assert abs(middle[0]) == pytest.approx(abs(middle[1]))
        assert stretch(goal)[1] < 1e-9
    assert 0 <= min(angles) < 45 < max(angles) <= 90


def test_the_picture_shows_a_blue_tube_lighter_than_its_edge() -> None:
    task = Rope()
    image = task.render().astype(int)
    (u, v), *_ = camera.project(np.array([[0.0, 0.6, 0.125]])).astype(int)
    blue = image[..., 2] - image[..., 0] > 40
    assert image[v, u, 2] > 230
    assert blue[v, u]
    # 3.75 units at 20 to 22 pixels a unit, 0.2 thick: about 80 x 4 pixels, fewer as it runs across the view.
    assert 200 < blue.sum() < 400
    assert image[blue][:, 2].min() < 200
