"""Granular: what a push does to the pieces, that they stay pieces whatever is done, problems and pictures."""

import numpy as np
import pytest

from scope_wm.tasks import camera
from scope_wm.tasks.granular import OUTLINES, Granular

SIZE = 0.224  # twice the radius of a piece
Polygon = np.ndarray


def particles(task: Granular) -> np.ndarray:
    return task.state().reshape(-1, 4)


def polygons(state: np.ndarray) -> list[Polygon]:
    """Return the corners of the pieces on the table, each [corners, 2]."""
    placed = []
    for (x, _, z, angle), outline in zip(state, OUTLINES, strict=True):
        corners = np.unique(outline, axis=0, return_index=True)[1]
        c, s = np.cos(angle), np.sin(angle)
        placed.append(outline[np.sort(corners)] @ [[c, s], [-s, c]] + [x, z])
    return placed


def penetration(a: Polygon, b: Polygon) -> float:
    """Return how far two convex polygons must move to come apart, by the separating-axis theorem."""
    depths = []
    for polygon in (a, b):
        edges = np.roll(polygon, -1, axis=0) - polygon
        normals = np.stack([edges[:, 1], -edges[:, 0]]) / np.linalg.norm(edges, axis=1)
        on_a, on_b = a @ normals, b @ normals
        depths.append(np.minimum(on_a.max(0) - on_b.min(0), on_b.max(0) - on_a.min(0)).min())
    return min(depths)


def deepest(state: np.ndarray) -> float:
    """Return the deepest penetration of any two pieces."""
    placed = polygons(state)
    near = np.linalg.norm(state[:, None, [0, 2]] - state[None, :, [0, 2]], axis=-1) < SIZE
    return max((penetration(placed[i], placed[j]) for i, j in np.argwhere(np.triu(near, 1))), default=0.0)


def board(x: float, z: float) -> Polygon:
    """Return the board on its way along x."""
    return np.array([(x - 0.13, z - 0.51), (x + 0.13, z - 0.51), (x + 0.13, z + 0.51), (x - 0.13, z + 0.51)])


def test_the_pieces_are_irregular_convex_polygons_a_fifth_of_a_unit_across() -> None:
    corners = [len(np.unique(outline, axis=0)) for outline in OUTLINES]
    across = [np.linalg.norm(o[:, None] - o[None], axis=-1).max() for o in OUTLINES]
    assert len(OUTLINES) == 81
    assert set(corners) == {6, 7, 8, 9, 10}
    assert 0.19 < min(across) < max(across) <= SIZE
    for outline in polygons(np.zeros((81, 4))):
        edge = np.roll(outline, -1, axis=0) - outline
        following = np.roll(edge, -1, axis=0)
        assert (edge[:, 0] * following[:, 1] - edge[:, 1] * following[:, 0] > 0).all()


def test_at_rest_they_lie_in_the_listed_grid_and_do_not_touch() -> None:
    state = Granular().state().reshape(9, 9, 4)
    np.testing.assert_allclose(state[0, 0], [-1.0, 0.57, -1.0, 0.0])
    np.testing.assert_allclose(state[8, 8], [0.84, 0.57, 0.84, 0.0])
    np.testing.assert_allclose(np.diff(state[0, :, 0]), 0.23)
    assert deepest(state.reshape(-1, 4)) == 0.0


def test_a_push_clears_the_way_of_the_board_in_its_direction() -> None:
    task = Granular()
    before = particles(task)
    task.advance([0.0, -3.0, 0.0, 0.0])  # from z = 3 to z = 0 in the particles' z
    after = particles(task)
    in_the_way = (np.abs(before[:, 0]) < 0.4) & (before[:, 2] > 0)
    assert in_the_way.sum() == 16
    assert (after[in_the_way, 2] < -0.13).sum() >= 14  # one or two may slip round its ends
    assert not ((np.abs(after[:, 0]) < 0.5) & (after[:, 2] > -0.13)).any()
    assert (after[:, 2] <= before[:, 2] + 0.1).all()


def test_pieces_that_nothing_reaches_stay_bit_equal() -> None:
    task = Granular()
    before = particles(task)
    task.advance([-3.0, 1.0, -0.9, 1.0])  # shoves the corner at (-1, -1)
    after = particles(task)
    moved = (after != before).any(axis=1)
    far = before[:, 2] > -0.1  # five rows of nine
    assert moved[0]
    assert after[0, 0] > -0.9 + 0.13
    assert far.sum() == 45
    assert not moved[far].any()
    assert np.array_equal(after[:, 1], before[:, 1])


@pytest.mark.parametrize(("x", "side"), [(-1.05, -1), (-0.95, 1)])
def test_a_piece_under_the_board_moves_out_the_shortest_way(x: float, side: int) -> None:
    task = Granular()
    state = particles(task)
    state[:, [0, 2]] += 2.0
    state[0, [0, 2]] = x, -1.0
    task.set_state(state.ravel())
    task.advance([-1.0, 1.0, -1.0, 1.0])
    after = particles(task)
    assert penetration(polygons(after)[0], board(-1.0, -1.0)) < 0.005
    assert side * (after[0, 0] + 1.0) == pytest.approx(0.13 + SIZE / 2, abs=0.045)
    assert after[0, 2] == pytest.approx(-1.0, abs=0.02)
    assert np.array_equal(after[1:], state[1:])


def test_a_board_put_down_in_the_middle_of_the_pile_makes_room_for_itself() -> None:
    task = Granular()
    task.advance([0.0, 0.0, 0.0, 0.0])
    after = particles(task)
    assert max(penetration(piece, board(0.0, 0.0)) for piece in polygons(after)) < 0.005
    assert deepest(after) < 0.03 * SIZE


def test_1000_random_actions_leave_the_pieces_apart_and_on_the_table() -> None:
    task, rng = Granular(), np.random.default_rng(0)
    for push in range(1000):
        if push % 250 == 0:
            task.set_state(task.sample_start(rng))
        action = rng.uniform(-5.0, 5.0, 4)
        if push % 3 == 0:  # start in the pile
            action[:2] = rng.choice(particles(task)[:, [0, 2]]) * [1, -1] + rng.normal(0.0, 0.05, 2)
        task.advance(action)
        state = particles(task)
        assert np.isfinite(state).all()
        assert (np.abs(state[:, [0, 2]]) <= [3.5, 4.5]).all()
        if push % 5 == 0:
            assert deepest(state) < 0.03 * SIZE


def test_pieces_in_a_corner_of_the_table_are_held_by_its_edges() -> None:
    task, rng = Granular(), np.random.default_rng(1)
    state = particles(task)
    state[:, [0, 2]] += [3.38 - 0.84, 4.38 - 0.84]
    task.set_state(state.ravel())
    for _ in range(10):
        start = rng.choice(particles(task)[:, [0, 2]]) * [1, -1]
        task.advance([*start, *rng.uniform(-1.5, 1.5, 2)])
        reach = np.concatenate(polygons(particles(task))).max(axis=0)
        assert (reach < [3.505, 4.505]).all()
        assert deepest(particles(task)) < 0.03 * SIZE


def test_goals_are_the_grid_shrunk_and_moved_and_can_be_drawn_and_pushed() -> None:
    task = Granular()
    for seed in range(3):
        goal = task.sample_problem(seed).goal
        grid = goal.reshape(9, 9, 4)
        scale = (grid[0, 1, 0] - grid[0, 0, 0]) / 0.23
        shift = grid[0, 0, [0, 2]] + scale
        assert 0.6 <= scale <= 0.9
        assert abs(shift[0]) == pytest.approx(abs(shift[1]))
        np.testing.assert_allclose(np.diff(grid[:, 0, 2]), 0.23 * scale)
        assert deepest(goal.reshape(-1, 4)) > 0.005
        task.set_state(goal)
        frame = task.render()
        task.advance(task.policy(np.random.default_rng(seed))(goal))
        assert not np.array_equal(task.render(), frame)
        assert deepest(particles(task)) < 0.03 * SIZE


def test_the_picture_shows_single_orange_pieces_with_darker_sides_and_shadows() -> None:
    task = Granular()
    image = task.render().astype(int)
    table = camera.to_image(camera.empty_table()).astype(int)
    tops = particles(task)[:, :3] + [0.0, 0.07, 0.0]
    u, v = camera.project(tops).astype(int).T
    orange = image[v, u]
    between = camera.project((tops[:-10] + tops[10:]) / 2).astype(int)  # of diagonal neighbours
    gaps = image[between[:, 1], between[:, 0]]
    assert np.abs(orange - [237, 145, 33]).max(axis=1).mean() < 30
    assert gaps[:, 0].mean() < 0.8 * orange[:, 0].mean()
    assert ((image - table)[..., 2] < -10).sum() > 500
    shaded = (np.ptp(image, axis=-1) < 12) & (image.mean(axis=-1) < table.mean(axis=-1) - 15)
    assert shaded.sum() > 10


@pytest.mark.parametrize("seed", [1, 100, 199])
def test_a_packed_goal_is_the_goal_without_its_overlaps(seed: int) -> None:
    task = Granular()
    goal = task.sample_problem(seed).goal
    packed = task.packed(goal)
    assert deepest(goal.reshape(-1, 4)) > 0.01
    assert deepest(packed.reshape(-1, 4)) < 0.006  # three times what the simulator leaves alone
    middle, about = (state.reshape(-1, 4)[:, [0, 2]].mean(axis=0) for state in (packed, goal))
    np.testing.assert_allclose(middle, about, atol=0.05)
    assert 0 < task.distance(packed, goal) < 0.3


def test_what_does_not_overlap_is_packed_already() -> None:
    task = Granular()
    task.reset(seed=0)
    np.testing.assert_allclose(task.packed(task.state()), task.state(), atol=1e-9)
