import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_wm.tasks.wall import Wall

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ACTIONS = st.lists(st.tuples(FINITE, FINITE) | st.tuples(st.floats(-20, 20), st.floats(-20, 20)), max_size=15)


@pytest.fixture
def wall() -> Wall:
    return Wall()


def after_step(wall: Wall, start: tuple[float, float], action: tuple[float, float]) -> list[float]:
    wall.set_state(list(start))
    wall.advance(list(action))
    return wall.state().tolist()


def place(x: float, y: float) -> str:
    """Name the part of the world that holds a point; the face of a wall is part of its room."""
    if 4 <= x <= 29 and 4 <= y <= 60:
        return "left"
    if 35 <= x <= 60 and 4 <= y <= 60:
        return "right"
    if 29 < x < 35 and 26 <= y <= 34:
        return "door"
    return "wall"


@pytest.fixture(scope="module")
def episodes() -> np.ndarray:
    """The paths of 200 episodes of the data policy."""
    wall = Wall()
    rng = np.random.default_rng(0)
    paths = []
    for _ in range(200):
        wall.set_state(wall.sample_start(rng))
        act = wall.policy(rng)
        path = [wall.state()]
        for _ in range(wall.episode_length - 1):
            wall.advance(act(path[-1]))
            path.append(wall.state())
        paths.append(path)
    return np.array(paths)


@pytest.mark.parametrize(
    ("start", "action", "expected"),
    [
        ((10, 10), (1.5, -0.5), [13, 9]),  # free: twice the action
        ((10, 10), (0, 0), [10, 10]),
        ((10, 10), (0, 3), [10, 16]),  # straight down: no slope to divide by
        ((20, 20), (10, 0), [28.5, 20.5]),  # the wall, from the left, at y = 20
        ((19, 20), (10, -5), [28.5, 15.5]),  # the wall, at y = 20 - 10 / 2
        ((50, 50), (-20, 0), [35.5, 50.5]),  # the wall, from the right
        ((20, 20), (4.5, 0), [28.5, 20.5]),  # to touch a wall is to meet it
        ((20, 20), (4.4, 0), [28.8, 20]),
        ((20, 30), (10, 0), [40, 30]),  # through the door
        ((25, 28), (10, 2), [45, 32]),
        ((20, 30), (6, 0), [32, 30]),  # into the door
        ((32, 30), (-6, 0), [20, 30]),  # and out again
        ((32, 30), (0, -10), [32.5, 26.5]),  # the upper jamb, from inside
        ((32, 30), (0.5, 10), [32.7, 33.5]),  # the lower jamb, at x = 32 + 4 / 20
        ((25, 29), (4, 4), [30.5, 33.5]),  # the lower jamb, entering at y = 33, met at x = 30
        ((25, 30), (5, 5), [29.5, 33.5]),  # the edge of the jamb, met exactly
        ((25, 31), (4, 4), [28.5, 35.5]),  # beside the door, at y = 35
        ((10, 30), (-10, 0), [4.5, 30.5]),  # left border
        ((50, 30), (10, 0), [59.5, 30.5]),
        ((10, 10), (0, -10), [10.5, 4.5]),
        ((10, 50), (0, 10), [10.5, 59.5]),
        ((50, 50), (10, 10), [59.5, 59.7]),  # a corner: kept 0.3 from the other side
        ((28.9, 10), (0, -10), [28.7, 4.5]),  # along the wall into the top border
        ((20, 30), (1e6, 0), [59.5, 30.5]),  # any length: through the door as far as the border
        ((20, 20), (1e6, 0), [28.5, 20.5]),
        ((20, 20), (1e308, 0), [28.5, 20.5]),
        ((29, 10), (1, 0), [28.5, 10.5]),  # from the very face of the wall
    ],
)
def test_steps_end_where_a_hand_calculation_puts_them(
    wall: Wall, start: tuple[float, float], action: tuple[float, float], expected: list[float]
) -> None:
    assert after_step(wall, start, action) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(
    start=st.tuples(st.floats(4, 29) | st.floats(35, 60), st.floats(4, 60))
    | st.tuples(st.floats(29, 35), st.floats(26, 34)),
    actions=ACTIONS,
)
def test_no_finite_action_leaves_the_rooms_or_crosses_the_wall_beside_the_door(
    start: tuple[float, float], actions: list[tuple[float, float]]
) -> None:
    wall = Wall()
    wall.set_state(list(start))
    for action in actions:
        (x, y), before = wall.state(), place(*wall.state())
        wall.advance(list(action))
        after = place(*wall.state())
        assert after != "wall"
        if {before, after} == {"left", "right"}:
            slope = action[1] / action[0]
            heights = [y + (face - x) * slope for face in (29, 35)]
            assert min(heights) >= 26 - 1e-6
            assert max(heights) <= 34 + 1e-6


def test_blocked_steps_keep_their_distance_from_every_wall(wall: Wall) -> None:
    rng = np.random.default_rng(0)
    wall.set_state([10, 10])
    for action in rng.uniform(-200, 200, (2000, 2)):  # too long to end free
        wall.advance(action)
        x, y = wall.state()
        low, high = {"left": (4, 29), "door": (29, 35), "right": (35, 60)}[place(x, y)]
        assert low + 0.3 <= x <= high - 0.3
        assert 4.3 <= y <= 59.7


def test_half_of_the_episodes_cross_the_door(episodes: np.ndarray) -> None:
    x = episodes[..., 0]
    crossed = (x.min(axis=1) < 29) & (x.max(axis=1) > 35)
    assert 0.45 < crossed.mean() < 0.7
    assert 0.4 < (x[crossed, 0] < 29).mean() < 0.6  # from either side


def test_data_cover_both_rooms_without_clinging_to_the_borders(episodes: np.ndarray) -> None:
    points = episodes.reshape(-1, 2)
    counts, _, _ = np.histogram2d(*points.T, bins=[[4, 16.5, 29, 35, 47.5, 60], np.linspace(4, 60, 5)])
    assert counts[[0, 1, 3, 4]].min() > 100
    at_border = ((points < 5) | (points > 59)).any(axis=1)
    assert 0.02 < at_border.mean() < 0.2


def test_policy_steps_are_twice_as_wide_as_those_of_dino_wm(wall: Wall) -> None:
    rng = np.random.default_rng(0)
    policies = [wall.policy(rng) for _ in range(100)]
    actions = np.array([[act(np.array([16.0, 30.0])) for _ in range(40)] for act in policies]).reshape(-1, 2)
    lengths = np.linalg.norm(actions, axis=1)
    assert lengths.min() == pytest.approx(0.2, abs=0.01)
    assert lengths.max() == pytest.approx(3.6, abs=0.01)
    # Lengths N(1, 0.4) in any direction have a deviation of sqrt((1 + 0.16) / 2) along an axis.
    assert np.sqrt(np.mean(lengths**2) / 2) == pytest.approx(2 * np.sqrt(1.16 / 2), abs=0.03)


def test_some_episodes_turn_anywhere_at_every_step(wall: Wall) -> None:
    rng = np.random.default_rng(0)
    persistence = []
    for _ in range(200):
        act, state = wall.policy(rng), np.array([16.0, 32.0])
        headings = []
        for _ in range(40):
            action = act(state)
            headings.append(np.arctan2(action[1], action[0]))
            state = state + 2 * action  # as if there were no walls
        persistence.append(np.cos(np.diff(headings[20:])).mean())  # behind the door
    # Turns of a von Mises distribution of concentration 5 have a mean cosine of I1(5) / I0(5) = 0.894.
    assert (np.array(persistence) < 0.45).mean() == pytest.approx(0.25, abs=0.1)


def test_starts_are_anywhere_in_either_room(wall: Wall) -> None:
    rng = np.random.default_rng(0)
    starts = np.array([wall.sample_start(rng) for _ in range(1000)])
    assert {place(*start) for start in starts} == {"left", "right"}
    assert (starts[:, 0] < 29).mean() == pytest.approx(0.5, abs=0.05)
    assert starts.min(axis=0) == pytest.approx([4.5, 4.5], abs=0.3)
    assert starts.max(axis=0) == pytest.approx([59.5, 59.5], abs=0.3)


def test_problems_lead_to_the_other_room(wall: Wall) -> None:
    problems = [wall.sample_problem(seed) for seed in range(400)]
    ends = np.array([sorted([tuple(p.start), tuple(p.goal)]) for p in problems])
    assert ends.min(axis=0) == pytest.approx(np.array([[7.4, 7.4], [38.4, 7.4]]), abs=0.5)
    assert ends.max(axis=0) == pytest.approx(np.array([[25.6, 56.6], [56.6, 56.6]]), abs=0.5)
    assert np.mean([p.start[0] < p.goal[0] for p in problems]) == pytest.approx(0.5, abs=0.08)


def test_success_is_nearer_than_four_and_a_half_pixels(wall: Wall) -> None:
    goal = np.array([10.0, 10.0])
    assert wall.distance(np.array([13.0, 14.0]), goal) == 5.0
    assert wall.success(np.array([10.0, 14.49]), goal)
    assert not wall.success(np.array([14.5, 10.0]), goal)


def test_the_picture_is_the_small_world_enlarged(wall: Wall) -> None:
    wall.set_state([16.0, 20.0])
    image = wall.render()

    def at(x: float, y: float) -> list[int]:
        """The pixel whose centre is nearest to a point of the world."""
        return image[int((y + 0.5) * 224 / 65), int((x + 0.5) * 224 / 65)].tolist()

    assert at(10, 50) == [255, 255, 255]
    assert at(32, 10) == at(32, 55) == [0, 0, 0]  # the wall
    assert at(32, 30) == [255, 255, 255]  # the door
    assert max(at(4, 50)) < 64  # border lines, one pixel of the world wide
    assert max(at(50, 60)) < 64
    red, green, blue = at(16, 20)
    assert red == 255
    assert green == blue < 20  # the dot
    assert at(16 + 1.7, 20)[1] == pytest.approx(255 * (1 - np.exp(-0.5)), abs=15)


def test_a_wall_hides_the_dot_behind_it(wall: Wall) -> None:
    wall.set_state([28.5, 12.0])
    image = wall.render()
    assert image[43, 104:120].max() == 0  # row 12 of the world, columns 30 to 34
    assert image[43, 95].tolist()[0] == 255
    assert image[43, 95].tolist()[1] < 100


@pytest.mark.parametrize("position", [(32, 10), (2, 30), (30, 61), (1e300, 30)])
def test_a_dot_in_a_wall_or_outside_is_refused(wall: Wall, position: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="in a room or the door"):
        wall.set_state(list(position))


def test_the_path_left_leads_through_the_door() -> None:
    task = Wall()
    left, door = np.array([10.0, 30.0]), np.array([32.0, 30.0])
    assert task.path_left(left, np.array([20.0, 30.0])) == pytest.approx(10.0)
    assert task.path_left(left, np.array([50.0, 30.0])) == pytest.approx(40.0)
    around = np.hypot(1, 20) + 6 + np.hypot(1, 20)
    assert task.path_left(np.array([28.0, 50.0]), np.array([36.0, 50.0])) == pytest.approx(around)
    assert task.path_left(door, left) == pytest.approx(22.0)
