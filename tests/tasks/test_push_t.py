"""Push-T: physics against hand calculation and an independent simulation, exactness, pictures, problems."""

import math

import numpy as np
import pymunk
import pytest

from scope_wm.tasks.push_t import BLOCK_COG, BLOCK_MOMENT, PushT, clearance
from scope_wm.tasks.task import episode_rng, problem_rng
from scope_wm.types import Problem

SEEDS = [99 * i + 1 for i in range(50)]


def collected(seed: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return states [steps + 1, 7] and actions [steps, 2] of the data policy."""
    env, rng = PushT(), episode_rng(seed, 0)
    env.set_state(env.sample_start(rng))
    policy, states, actions = env.policy(rng), [env.state()], []
    for _ in range(steps):
        actions.append(policy(states[-1]))
        env.advance(actions[-1])
        states.append(env.state())
    return np.array(states), np.array(actions)


def never_rebuilt(start: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the block's pose after each action in one ordinary pymunk space, [actions, 3].

    pymunk moves bodies first and solves contacts afterwards, so the pose that an action leads to is there
    after the first substep of the next one; an action that stays put is added for the last.
    """
    x, y, block_x, block_y, angle, vx, vy = start
    space = pymunk.Space()
    space.damping = 0
    for ends in [((5, 506), (5, 5)), ((5, 5), (506, 5)), ((506, 5), (506, 506)), ((5, 506), (506, 506))]:
        space.add(pymunk.Segment(space.static_body, *ends, 2))
    agent, block = pymunk.Body(body_type=pymunk.Body.KINEMATIC), pymunk.Body(1, 3000)
    agent.position, agent.velocity = (x, y), (vx, vy)
    block.center_of_gravity, block.angle = (0, 45), angle
    block.position = block_x, block_y
    bar = pymunk.Poly(block, [(-60, 30), (60, 30), (60, 0), (-60, 0)])
    stem = pymunk.Poly(block, [(-15, 30), (-15, 120), (15, 120), (15, 30)])
    space.add(agent, pymunk.Circle(agent, 15), block, bar, stem)
    poses = []
    for action in [*actions, (0, 0)]:
        target = agent.position + 100 * pymunk.Vec2d(*action)
        for _ in range(10):
            agent.velocity += 0.01 * (100 * (target - agent.position) - 20 * agent.velocity)
            space.step(0.01)
            poses.append((*block.position, block.angle))
    return np.array(poses[10::10])


def touches_a_wall(state: np.ndarray) -> bool:
    """Tell whether a corner of the block is within half a unit of a wall's inner side."""
    corners = [(-60, 0), (60, 0), (60, 30), (-60, 30), (15, 120), (-15, 120)]
    cos, sin = math.cos(state[4]), math.sin(state[4])
    places = [(state[2] + cos * x - sin * y, state[3] + sin * x + cos * y) for x, y in corners]
    return min(map(min, places)) < 7.5 or max(map(max, places)) > 503.5


def test_moment_and_centre_of_gravity_follow_from_the_two_boxes() -> None:
    bar_about_its_centre = (120**2 + 30**2) / 12
    assert BLOCK_MOMENT == 2 * (bar_about_its_centre + 15**2) == 3000
    assert BLOCK_COG == (0, (15 + 75) / 2)


def test_a_free_agent_follows_the_controller() -> None:
    env = PushT()
    env.set_state([100, 120, 300, 300, 1.0, 10, -20])
    env.advance([0.3, -0.1])
    x, y, vx, vy = 100.0, 120.0, 10.0, -20.0
    for _ in range(10):
        vx, vy = vx + 0.01 * (100 * (130 - x) - 20 * vx), vy + 0.01 * (100 * (110 - y) - 20 * vy)
        x, y = x + 0.01 * vx, y + 0.01 * vy
    np.testing.assert_allclose(env.state(), [x, y, 300, 300, 1.0, vx, vy], rtol=1e-13)
    np.testing.assert_allclose(env.proprio(), [x, y, vx, vy], rtol=1e-6)


def test_an_action_of_one_moves_a_resting_agent_by_less_than_a_third_of_the_way() -> None:
    env = PushT()
    env.set_state([100, 100, 300, 300, 0, 0, 0])
    env.advance([1, 0])
    # Critically damped at 10 / s: 100 * (1 - 2 / e) = 26.4; the substeps of 0.01 s make it a little more.
    assert env.state()[0] - 100 == pytest.approx(26.4, abs=4)


def test_an_untouched_block_keeps_its_exact_pose_and_a_pushed_one_moves() -> None:
    env = PushT()
    pose = [301.7, 288.3, 5.1]  # pymunk itself would read 301.69999999999993
    env.set_state([100, 100, *pose, 0, 0])
    for _ in range(20):
        env.advance([0.1, 0])
    assert env.state()[2:5].tolist() == pose
    env.set_state([256, 200, 256, 256, 0, 0, 0])
    for _ in range(5):
        env.advance([0, 0.5])
    assert env.state()[3] > 300


def test_an_off_centre_push_turns_the_block_as_mass_and_moment_say() -> None:
    env = PushT()
    env.set_state([286, 240.5, 256, 256, 0, 0, 0])  # touches the bar's outer edge 30 beside its middle
    env.advance([0, 0.1])
    y, angle = env.state()[3:5]
    travel = y + 45 * math.cos(angle) - (256 + 45)
    # An impulse j at arm r moves by j / m and turns by j r / I: 30 * 1 / 3000 per unit of travel.
    assert travel > 1
    assert angle / travel == pytest.approx(0.01, rel=0.03)


def test_rebuilding_departs_from_one_running_space_by_rounding_until_a_wall_is_touched() -> None:
    """Over 200 contact-rich steps: until then all below 0.05 and most below 1e-9, in all most below 1."""
    free_departures, departures = [], []
    for seed in range(12):
        states, actions = collected(seed, 200)
        off = states[1:, 2:5] - never_rebuilt(states[0], actions)
        turned = np.abs(np.remainder(off[:, 2] + math.pi, 2 * math.pi) - math.pi)
        departure = np.hypot(off[:, 0], off[:, 1])
        in_contact = np.any(states[1:, 2:5] != states[:-1, 2:5], axis=1).sum()
        walled = [touches_a_wall(state) for state in states[1:]]
        free = walled.index(True) if any(walled) else len(walled)
        free_departures.append((departure[:free].max(), turned[:free].max()))
        departures.append(departure.max())
        print(f"seed {seed}: {in_contact} steps in contact, first wall after {free}, departs by", end=" ")
        print(
            f"{departure[:free].max():.0e} until then, {departure.max():.0e}, {turned.max():.0e} rad in all"
        )
        assert in_contact > 20
    assert np.max(free_departures, axis=0)[0] < 0.05
    assert np.quantile(free_departures, 0.75, axis=0).max() < 1e-9
    assert np.quantile(departures, 0.75) < 1


def test_stepping_on_equals_stepping_after_set_state_bit_for_bit() -> None:
    env, again = PushT(), PushT()
    states, actions = collected(3, 100)
    assert np.any(states[1:, 2:5] != states[:-1, 2:5], axis=1).sum() > 20
    env.set_state(states[0])
    for action, after in zip(actions, states[1:], strict=True):
        again.set_state(env.state())
        env.advance(action)
        again.advance(action)
        assert env.state().tobytes() == again.state().tobytes() == after.tobytes()
        assert np.array_equal(env.render(), again.render())


@pytest.mark.parametrize("angle", [-1e-20, 2 * math.pi, -7.0, 100.0])
def test_angles_are_kept_below_a_full_turn_and_then_unchanged(angle: float) -> None:
    env = PushT()
    env.set_state([100, 100, 300, 300, angle, 0, 0])
    first = env.state()
    env.set_state(first)
    assert 0 <= first[4] < 2 * math.pi
    assert math.cos(first[4]) == pytest.approx(math.cos(angle))
    assert env.state().tobytes() == first.tobytes()


@pytest.mark.parametrize("size", [2.0, 1e3, 1e9, 1e30])
def test_any_finite_action_gives_a_finite_state_and_a_picture(size: float) -> None:
    env = PushT()
    rng = np.random.default_rng(0)
    env.set_state(env.sample_start(rng))
    for _ in range(20):
        observation, _, _, _, _ = env.step(rng.normal(size=2) * size)
        assert np.isfinite(env.state()).all()
        assert observation["image"].shape == (224, 224, 3)


@pytest.mark.parametrize(
    ("change", "reached"),
    [
        ([19.9, 0, 0, 0, 0], True),
        ([20.1, 0, 0, 0, 0], False),
        ([0, 12, 0, 16.1, 0], False),
        ([0, 12, 0, 15.9, 0], True),
        ([0, 0, 0, 0, math.pi / 9 - 0.01], True),
        ([0, 0, 0, 0, math.pi / 9 + 0.01], False),
        ([0, 0, 0, 0, 2 * math.pi - 0.2], True),
    ],
)
def test_success_needs_positions_within_20_and_the_angle_within_a_ninth_of_pi(
    change: list[float], reached: bool
) -> None:
    env, goal = PushT(), np.array([200.0, 210.0, 250.0, 260.0, 0.1, 0.0, 0.0])
    state = goal + np.array([*change, 300.0, -300.0])
    assert env.success(state, goal) is reached
    assert env.distance(state, goal) == pytest.approx(math.hypot(*change[:4]))


def test_the_block_must_move_if_its_own_pose_is_out_of_tolerance() -> None:
    env, goal = PushT(), np.array([200.0, 210.0, 250.0, 260.0, 0.1, 0.0, 0.0])

    def needed(change: list[float]) -> bool:
        return env.block_must_move(Problem(start=goal + np.array(change), goal=goal))

    assert not needed([200, 0, 19, 0, 0.3, 0, 0])
    assert needed([0, 0, 21, 0, 0, 0, 0])
    assert needed([0, 0, 0, 0, 6.6, 0, 0]) is False  # a full turn and 0.32
    assert needed([0, 0, 0, 0, 0.4, 0, 0])


def test_clearance_is_the_gap_to_the_nearest_side_or_corner() -> None:
    assert clearance(np.array([256.0, 216, 256, 256, 0, 0, 0])) == pytest.approx(40 - 15)
    assert clearance(np.array([256.0 + 40, 346, 256, 256, 0, 0, 0])) == pytest.approx(40 - 15 - 15)
    assert clearance(np.array([256.0 + 63, 252, 256, 256, 0, 0, 0])) == pytest.approx(5 - 15)
    quarter_turn = np.array(
        [256.0 + 40, 256, 256, 256, math.pi / 2, 0, 0]
    )  # the outer edge looks to the right
    assert clearance(quarter_turn) == pytest.approx(40 - 15)


def test_starts_are_in_range_at_rest_and_overlap_nothing() -> None:
    env, rng = PushT(), np.random.default_rng(0)
    starts = np.array([env.sample_start(rng) for _ in range(300)])
    assert starts[:, :2].min() >= 50
    assert starts[:, :2].max() < 450
    assert starts[:, 2:4].min() >= 100
    assert starts[:, 2:4].max() < 400
    assert np.ptp(starts[:, 4]) > 6
    assert not starts[:, 5:].any()
    assert min(clearance(start) for start in starts) > 0
    for start in starts:
        env.set_state(start)
        env.advance([0, 0])
        assert np.array_equal(env.state(), start)


def test_a_block_outside_the_walls_terminates() -> None:
    env = PushT()
    env.set_state([100, 100, 300, 300, 0, 0, 0])
    assert env.step([0, 0])[2] is False
    env.set_state([100, 100, 300, 470, 0, 0, 0])  # the centre of gravity is at y = 515
    assert env.spoilt()
    env.set_state([100, 100, 515, 300, math.pi / 2, 0, 0])  # the origin is outside, the centre at x = 470
    assert env.spoilt()


def test_the_picture_has_the_colours_and_sizes_of_the_scene() -> None:
    env = PushT()
    env.set_state([100, 400, 256, 60, 0, 0, 0])
    image = env.render()
    assert image[round(400.5 * 0.4375 - 0.5), round(100.5 * 0.4375 - 0.5)].tolist() == [78, 126, 255]
    assert image[round(75 * 0.4375), 112].tolist() == [143, 163, 184]
    assert image[round(290 * 0.4375), round(222 * 0.4375)].tolist() == [144, 238, 144]
    assert image[150, 200].tolist() == [255, 255, 255]
    assert image[112, 2].tolist() == pytest.approx([211, 211, 211], abs=12)
    bar = (image[round(75 * 0.4375), 4:220, 0] < 200).sum()
    assert bar == pytest.approx(124 * 0.4375, abs=1)
    agent = (image[round(400 * 0.4375), 4:220, 0] < 160).sum()
    assert agent == pytest.approx(30 * 0.4375, abs=1)


@pytest.mark.parametrize("entry", [0, 1, 2, 3])
def test_a_motion_of_a_seventh_of_a_pixel_changes_the_picture(entry: int) -> None:
    env = PushT()
    state = np.array([120.0, 140, 300, 300, 0.4, 0, 0])
    env.set_state(state)
    before = env.render().astype(int)
    state[entry] += 0.3
    env.set_state(state)
    assert np.abs(env.render() - before).max() >= 5


def test_the_same_seed_gives_the_same_behaviour() -> None:
    _, actions = collected(1, 60)
    assert np.array_equal(actions, collected(1, 60)[1])
    assert not np.array_equal(actions, collected(2, 60)[1])


def test_the_behaviour_is_rich_in_contact_and_sized_like_the_data_of_the_paper() -> None:
    episodes = [collected(seed, 99) for seed in range(20)]
    states, actions = np.stack([s for s, _ in episodes]), np.stack([a for _, a in episodes])
    moves = np.diff(states[:, :, 2:4], axis=1)
    turns = np.abs(np.remainder(np.diff(states[:, :, 4], axis=1) + math.pi, 2 * math.pi) - math.pi)
    assert np.abs(actions).max() <= 1
    assert actions.std(axis=(0, 1)) == pytest.approx([0.2, 0.2], abs=0.02)
    assert states[:, 1:, 5:].std(axis=(0, 1)) == pytest.approx([75, 74], abs=8)
    assert np.mean((moves != 0).any(axis=-1)) > 0.2
    assert np.linalg.norm(moves, axis=-1).sum(axis=1).mean() > 100
    assert turns.sum(axis=1).mean() > math.pi / 9
    sides = (
        np.arctan2(states[:, 1:, 1] - states[:, 1:, 3], states[:, 1:, 0] - states[:, 1:, 2])
        - states[:, 1:, 4]
    )
    touched, _ = np.histogram(
        np.remainder(sides[(moves != 0).any(axis=-1)], 2 * math.pi), 6, (0, 2 * math.pi)
    )
    assert touched.min() > 0.03 * touched.sum()


def test_most_problems_need_the_block_to_move_and_none_is_solved_or_spoilt() -> None:
    env = PushT()
    before = env.state()
    problems = [env.sample_problem(seed) for seed in SEEDS]
    assert np.array_equal(env.state(), before)
    assert not any(env.success(problem.start, problem.goal) for problem in problems)
    for pose in [state for problem in problems for state in (problem.start, problem.goal)]:
        env.set_state(pose)
        assert not env.spoilt()
    share = np.mean([env.block_must_move(problem) for problem in problems])
    print(f"the block must move in {share:.0%} of the problems")
    assert 0.6 <= share < 1


def test_an_episode_in_which_the_block_leaves_the_arena_makes_no_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = PushT()
    inside = env.sample_start(np.random.default_rng(0))
    starts = iter([np.array([256.0, 256, 256, 600, 0, 0, 0]), inside])
    monkeypatch.setattr(env, "sample_start", lambda _: next(starts))
    env.set_state(env.sample_problem(1).start)
    assert not env.spoilt()
    assert next(starts, None) is None


def test_a_problem_is_25_steps_of_the_data_policy() -> None:
    env, rng = PushT(), problem_rng(1)
    problem = env.sample_problem(1)
    policy = env.policy(rng)
    env.set_state(env.sample_start(rng))
    skipped = rng.integers(100 - 25)
    for _ in range(skipped):
        env.advance(policy(env.state()))
    assert env.state().tobytes() == problem.start.tobytes()
    actions = []
    for _ in range(25):
        actions.append(policy(env.state()))
        env.advance(actions[-1])
    env.set_state(problem.start)
    for action in actions:
        env.advance(action)
    assert env.state().tobytes() == problem.goal.tobytes()


def test_the_path_left_puts_the_block_before_the_agent() -> None:
    task = PushT()
    goal = np.array([100.0, 100.0, 300.0, 300.0, 0.0, 0.0, 0.0])
    agent_away, block_away = goal.copy(), goal.copy()
    agent_away[0] += 200.0
    block_away[2] += 40.0
    assert task.path_left(goal, goal) == 0.0
    assert task.path_left(agent_away, goal) == pytest.approx(200 / 20)
    assert task.path_left(block_away, goal) > task.path_left(agent_away, goal)
    # The block must go left: its right is where it is pushed from.
    behind, before = block_away.copy(), block_away.copy()
    behind[:2] = [410.0, 345.0]
    before[:2] = [270.0, 345.0]
    assert task.path_left(behind, goal) < task.path_left(before, goal)
