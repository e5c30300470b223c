import numpy as np
import pytest

from scope_wm.tasks.point_maze import PointMaze
from scope_wm.types import State

MASS = 1000 * 4 / 3 * np.pi * 0.1**3  # a ball of radius 0.1 and density 1000
PIXELS_PER_UNIT = 27.775  # 224 / (2 * 9.7348 * tan(22.5 degrees))


@pytest.fixture
def maze() -> PointMaze:
    return PointMaze()


def after_step(maze: PointMaze, state: list[float], action: list[float]) -> State:
    maze.set_state(state)
    maze.advance(action)
    return maze.state()


def free_motion(position: float, velocity: float, force: float) -> tuple[float, float]:
    """Five Euler steps of 10 ms with damping 1, which MuJoCo integrates implicitly."""
    for _ in range(5):
        velocity += 0.01 * (100 * force - velocity) / (MASS + 0.01)
        position += 0.01 * velocity
    return position, velocity


def free_cells(states: np.ndarray) -> np.ndarray:
    """Which positions are in free cells, by hand: the inner wall is at 1.3 < x < 2.3, y < 2.3."""
    x, y = states[:, 0], states[:, 1]
    within = (x > 0.3) & (x < 3.3) & (y > 0.3) & (y < 3.3)
    return within & ~((x > 1.3) & (x < 2.3) & (y < 2.3))


def ball_pixels(maze: PointMaze, position: list[float]) -> np.ndarray:
    """Draw the ball here and return the rows and columns of the green pixels."""
    maze.set_state([*position, 0.0, 0.0])
    red, green, blue = maze.render().astype(int).transpose(2, 0, 1)
    return np.argwhere((green > red + 15) & (green > blue + 15))


def test_the_ball_weighs_what_the_original_weighs(maze: PointMaze) -> None:
    assert pytest.approx(4.18879, abs=1e-5) == MASS
    assert maze._model.body("ball").mass[0] == pytest.approx(MASS)


def test_free_motion_is_five_euler_steps(maze: PointMaze) -> None:
    x, vx = free_motion(0.8, 2.0, 0.5)
    y, vy = free_motion(1.5, -1.0, -1.0)
    assert after_step(maze, [0.8, 1.5, 2.0, -1.0], [0.5, -1.0]) == pytest.approx([x, y, vx, vy], abs=1e-12)


def test_forces_beyond_one_count_as_one(maze: PointMaze) -> None:
    full = after_step(maze, [0.8, 1.5, 0.0, 0.0], [1.0, -1.0])
    assert np.array_equal(after_step(maze, [0.8, 1.5, 0.0, 0.0], [7.0, -1e300]), full)
    assert not np.array_equal(after_step(maze, [0.8, 1.5, 0.0, 0.0], [0.9, -1.0]), full)


def test_speed_is_clipped_to_five_at_the_start_of_a_step(maze: PointMaze) -> None:
    x, vx = free_motion(0.8, 5.0, 0.0)
    y, vy = free_motion(2.5, -5.0, 0.0)
    assert after_step(maze, [0.8, 2.5, 1e6, -5.1], [0.0, 0.0]) == pytest.approx([x, y, vx, vy], abs=1e-12)


@pytest.mark.parametrize(
    ("start", "force", "axis", "rest"),
    [
        ([0.8, 0.8], [-1.0, 0.0], 0, 0.4),  # outer wall: its face is at world 1.5, the ball is 0.1 thick
        ([0.8, 0.8], [1.0, 0.0], 0, 1.2),  # inner wall: its face is at world 2.5
        ([0.8, 0.8], [0.0, -1.0], 1, 0.4),
        ([1.8, 2.8], [0.0, -1.0], 1, 2.4),  # inner wall, from the passage around its end
        ([1.8, 2.8], [0.0, 1.0], 1, 3.2),
    ],
)
def test_walls_hold_the_ball(
    maze: PointMaze, start: list[float], force: list[float], axis: int, rest: float
) -> None:
    maze.set_state([*start, 0.0, 0.0])
    for _ in range(60):
        maze.advance(force)
    state = maze.state()
    assert state[axis] == pytest.approx(rest, abs=0.01)
    assert state[2:] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert state[1 - axis] == pytest.approx(start[1 - axis], abs=1e-9)


def test_data_stay_in_the_free_cells_and_cover_places_and_speeds(maze: PointMaze) -> None:
    rng = np.random.default_rng(0)
    states = []
    for _ in range(40):
        maze.set_state(maze.sample_start(rng))
        act = maze.policy(rng)
        for _ in range(50):
            maze.advance(act(maze.state()))
            states.append(maze.state())
    visited = np.array(states)
    assert free_cells(visited).all()
    cells, _, _ = np.histogram2d(*visited[:, :2].T, bins=3, range=[[0.3, 3.3]] * 2)
    assert ((cells > 80) == [[1, 1, 1], [0, 0, 1], [1, 1, 1]]).all()
    assert (np.abs(visited[:, 2:]).max(axis=0) > 5).all()


def test_policy_holds_its_force_four_steps_of_five_in_half_of_the_episodes(maze: PointMaze) -> None:
    rng = np.random.default_rng(0)
    policies = [maze.policy(rng) for _ in range(200)]
    forces = np.array([[act(maze.state()) for _ in range(100)] for act in policies])
    held = (forces[:, 1:] == forces[:, :-1]).all(axis=2).mean(axis=1)
    holding = held > 0
    assert holding.mean() == pytest.approx(0.5, abs=0.1)
    assert held[holding].mean() == pytest.approx(0.8, abs=0.02)


def test_policy_asks_for_more_than_the_motors_give(maze: PointMaze) -> None:
    rng = np.random.default_rng(0)
    forces = np.array([maze.policy(rng)(maze.state()) for _ in range(4000)])
    assert np.abs(forces).max() == pytest.approx(3.5, abs=0.01)
    assert forces.std(axis=0) == pytest.approx([3.5 / np.sqrt(3)] * 2, abs=0.05)
    ends = []
    for force in (1.0, 3.5):
        maze.set_state([1.0, 1.0, 0.0, 0.0])
        maze.advance([0.0, force])
        ends.append(maze.state())
    np.testing.assert_array_equal(*ends)


def test_starts_and_goals_are_drawn_from_the_free_region_with_speed(maze: PointMaze) -> None:
    problems = [maze.sample_problem(seed) for seed in range(300)]
    ends = np.array([[problem.start, problem.goal] for problem in problems]).reshape(-1, 4)
    x, y = ends[:, 0], ends[:, 1]
    sides = ((x >= 0.5) & (x <= 1.1)) | ((x >= 2.5) & (x <= 3.1))
    middle = (x > 1.1) & (x < 2.5) & (y >= 2.5)
    assert ((sides | middle) & (y >= 0.5) & (y <= 3.1)).all()
    # Areas 2 x 0.6 x 2.6 and 1.4 x 0.6: 21 % of the positions are in the middle.
    assert middle.mean() == pytest.approx(0.212, abs=0.05)
    assert np.abs(ends[:, 2:]).max() == pytest.approx(5.2262554, abs=0.1)


def test_success_is_nearer_than_half_a_unit_at_any_speed(maze: PointMaze) -> None:
    goal = np.array([1.0, 1.0, 0.0, 0.0])
    assert maze.distance(np.array([1.3, 1.4, 5.0, -5.0]), goal) == pytest.approx(0.5)
    assert maze.success(np.array([1.0, 1.499, 5.0, -5.0]), goal)
    assert not maze.success(np.array([1.0, 1.5, 0.0, 0.0]), goal)


def test_the_picture_shows_the_maze_and_the_ball_where_they_are(maze: PointMaze) -> None:
    ball = ball_pixels(maze, [0.8, 1.8])  # (2, 3) in the world
    image = maze.render().astype(int)
    row, column = ball.mean(axis=0) + 0.5
    assert column == pytest.approx(112 - PIXELS_PER_UNIT, abs=0.2)
    assert row == pytest.approx(112, abs=0.2)
    assert len(ball) == pytest.approx(np.pi * (0.2 * PIXELS_PER_UNIT) ** 2, rel=0.15)
    brightest = image[112, int(112 - PIXELS_PER_UNIT)]
    assert brightest == pytest.approx([104, 196, 104], abs=8)  # 255 (1.2 colour + 0.05)
    assert image[112, 112] == pytest.approx([227, 166, 105], abs=2)  # the inner wall is at the centre
    assert image[5, 5] == pytest.approx([25, 51, 76], abs=1)  # world (-0.9, -0.9), a dark tile
    assert image[5, 60] == pytest.approx([51, 76, 102], abs=1)  # world (1.1, -0.9), a light one


def test_y_points_down_in_the_picture(maze: PointMaze) -> None:
    upper, lower = (ball_pixels(maze, [0.8, y]).mean(axis=0)[0] for y in (0.8, 2.8))
    assert lower - upper == pytest.approx(2 * PIXELS_PER_UNIT, abs=0.3)


def test_walls_hide_the_part_of_the_ball_that_reaches_into_them(maze: PointMaze) -> None:
    # At 0.4 the ball touches the wall: its centre is in column 112 - 1.4 x 27.775 = 73.1, its radius is 5.56.
    # The wall's edge, higher up, is in column 112 - 1.5 x 270.4 / 9.5348 = 69.5, and cuts 11.4 % off a disc.
    whole, part = (len(ball_pixels(maze, [x, 1.5])) for x in (0.8, 0.4))
    assert part / whole == pytest.approx(0.886, abs=0.03)


@pytest.mark.parametrize("position", [[1.8, 1.0], [-0.5, 1.0], [1.0, 99.0], [1e300, 1.0]])
def test_a_ball_in_a_wall_or_outside_is_refused(maze: PointMaze, position: list[float]) -> None:
    with pytest.raises(ValueError, match="free cell"):
        maze.set_state([*position, 0.0, 0.0])


def test_the_path_left_goes_around_the_corners() -> None:
    task = PointMaze()
    first, last = np.array([1.2, 0.8, 0.0, 0.0]), np.array([2.4, 0.8, 0.0, 0.0])
    assert task.path_left(first, last) == pytest.approx(1.6 + 1.2 + 1.6)
    assert task.path_left(last, first) == pytest.approx(1.6 + 1.2 + 1.6)
    assert task.path_left(first, np.array([1.2, 2.0, 5.0, 0.0])) == pytest.approx(1.2)
    assert task.path_left(np.array([1.8, 2.8, 0.0, 0.0]), first) == pytest.approx(np.hypot(0.6, 0.4) + 1.6)
