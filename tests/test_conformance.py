"""What all five tasks owe to those who use them. Run as a script, it prints what a fresh process computes."""

import hashlib
import itertools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from scope_wm.tasks import TASKS
from scope_wm.tasks.task import Task, episode_rng, problem_rng
from scope_wm.types import Episode

# frameskip, history, episode length; width of state, proprio and action
FACTS = {
    "point_maze": (5, 3, 100, 4, 4, 2),
    "wall": (5, 1, 50, 2, 2, 2),
    "push_t": (5, 3, 100, 7, 4, 2),
    "rope": (1, 1, 20, 4 * 61, 1, 4),
    "granular": (1, 1, 20, 4 * 81, 1, 4),
}
IDS = {
    "point_maze": "ScopeWM/PointMaze-v0",
    "wall": "ScopeWM/Wall-v0",
    "push_t": "ScopeWM/PushT-v0",
    "rope": "ScopeWM/Rope-v0",
    "granular": "ScopeWM/Granular-v0",
}
# A motion of the first coordinate of the state by a fraction of a pixel.
NUDGES = {"point_maze": 0.01, "wall": 0.05, "push_t": 0.5, "rope": 0.01, "granular": 0.01}


def record(name: str) -> Episode:
    """Collect an episode with one task that is stepped on and on."""
    task = TASKS[name]()
    rng = episode_rng(7, 0)
    task.set_state(task.sample_start(rng))
    act = task.policy(rng)
    frames, proprio, states, actions = [task.render()], [task.proprio()], [task.state()], []
    for _ in range(task.episode_length - 1):
        actions.append(act(task.state()))
        observation, *_ = task.step(actions[-1])
        frames.append(observation["image"])
        proprio.append(observation["proprio"])
        states.append(task.state())
    return Episode(
        frames=np.stack(frames), proprio=np.stack(proprio), states=np.stack(states), actions=np.stack(actions)
    )


def digest(episode: Episode) -> str:
    """Return a hash of every bit of an episode."""
    parts = (episode.frames, episode.proprio, episode.states, episode.actions)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


@pytest.fixture(params=FACTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def task(name: str) -> Task:
    return TASKS[name]()


@pytest.fixture(scope="module")
def episodes() -> dict[str, Episode]:
    return {name: record(name) for name in FACTS}


@pytest.fixture(scope="module")
def digests_of_another_process() -> dict[str, str]:
    lines = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True).stdout
    return dict(line.split() for line in lines.splitlines())


def test_the_five_tasks_are_there() -> None:
    assert list(TASKS) == list(FACTS)


def test_task_has_everything_of_the_seam(name: str, task: Task) -> None:
    seam = {*vars(Task), *Task.__annotations__}
    assert [member for member in seam if not member.startswith("_") and not hasattr(task, member)] == []
    widths = (task.state_width, task.proprio_width, task.action_width)
    assert (task.frameskip, task.history, task.episode_length, *widths) == FACTS[name]
    assert task.name == name


def test_observations_and_states_have_their_types_and_widths(name: str, task: Task) -> None:
    *_, state_width, proprio_width, action_width = FACTS[name]
    observation, info = task.reset(seed=0)
    assert info == {}
    assert (observation["image"].shape, observation["image"].dtype) == ((224, 224, 3), np.uint8)
    assert (observation["proprio"].shape, observation["proprio"].dtype) == ((proprio_width,), np.float32)
    assert (task.state().shape, task.state().dtype) == ((state_width,), np.float64)
    assert task.action_space.shape == (action_width,)
    assert np.array_equal(observation["image"], task.render())
    assert np.array_equal(observation["proprio"], task.proprio())


# Gymnasium's advice for learning by reward: actions within ±1 and bounded observations.
@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space")
@pytest.mark.filterwarnings("ignore:.*Box observation space m..imum value is -?infinity")
def test_gymnasium_makes_the_task_and_finds_no_fault(name: str) -> None:
    task = gymnasium.make(IDS[name]).unwrapped
    assert type(task) is TASKS[name]
    check_env(task)


def test_only_pictures_can_be_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match=r"rgb_array.*'human'"):
        TASKS[name](render_mode="human")


def test_any_state_can_be_continued_bit_by_bit(name: str, episodes: dict[str, Episode]) -> None:
    episode = episodes[name]
    moving = (episode.states[1:] != episode.states[:-1]).any(axis=1)
    assert moving.mean() > (0.5 if name == "rope" else 0.8)  # many of its pushes miss
    for t, action in enumerate(episode.actions):
        task = TASKS[name]()
        task.set_state(episode.states[t])
        assert np.array_equal(task.state(), episode.states[t])
        assert np.array_equal(task.render(), episode.frames[t])
        task.advance(action)
        assert np.array_equal(task.state(), episode.states[t + 1])
        assert np.array_equal(task.render(), episode.frames[t + 1])


def test_another_process_computes_the_same_bits(
    name: str, episodes: dict[str, Episode], digests_of_another_process: dict[str, str]
) -> None:
    assert digests_of_another_process[name] == digest(episodes[name])


def test_states_belong_to_the_caller(task: Task) -> None:
    task.reset(seed=0)
    before = task.state()
    given = task.state()
    task.set_state(given)
    given += 1.0
    task.state()[:] = 0.0
    assert np.array_equal(task.state(), before)


def test_the_policy_stays_in_the_action_space(name: str, task: Task, episodes: dict[str, Episode]) -> None:
    assert all(task.action_space.contains(action) for action in episodes[name].actions)


def test_wrong_actions_are_refused_and_change_nothing(task: Task) -> None:
    task.reset(seed=0)
    before, width = task.state(), task.action_width
    with pytest.raises(ValueError, match=rf"action of shape \({width},\), got \({width + 1},\)"):
        task.advance(np.zeros(width + 1))
    with pytest.raises(ValueError, match=rf"action of shape \({width},\), got \(1, {width}\)"):
        task.step(np.zeros((1, width)))
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="action to be finite"):
            task.advance(np.array([*np.zeros(width - 1), value]))
    assert np.array_equal(task.state(), before)


def test_wrong_states_are_refused_and_change_nothing(task: Task) -> None:
    task.reset(seed=0)
    before, width = task.state(), task.state_width
    with pytest.raises(ValueError, match=rf"state of shape \({width},\), got \({width - 1},\)"):
        task.set_state(before[:-1])
    with pytest.raises(ValueError, match="state to be finite"):
        task.set_state(np.array([*before[:-1], np.nan]))
    assert np.array_equal(task.state(), before)


def test_problems_are_unsolved_and_made_from_their_seed_alone(task: Task) -> None:
    task.reset(seed=0)
    before = task.state()
    seeds = [99 * i + 1 for i in range(10)]
    problems = [task.sample_problem(seed) for seed in seeds]
    assert np.array_equal(task.state(), before)
    for problem in problems:
        assert not task.success(problem.start, problem.goal)
        assert task.distance(problem.start, problem.goal) > 0.01
        task.set_state(problem.start)
        task.set_state(problem.goal)
    again = type(task)().sample_problem(seeds[1])
    assert np.array_equal(again.start, problems[1].start)
    assert np.array_equal(again.goal, problems[1].goal)
    for a, b in itertools.combinations(problems, 2):
        assert not np.array_equal(a.start, b.start)
        assert not np.array_equal(a.goal, b.goal)


def test_a_goal_reaches_itself_where_there_is_a_rule_of_success(name: str, task: Task) -> None:
    task.reset(seed=0)
    goal = task.state()
    assert task.distance(goal, goal) == 0.0
    assert task.path_left(goal, goal) == 0.0
    assert task.success(goal, goal) == (name not in ("rope", "granular"))


def test_a_motion_of_less_than_a_pixel_changes_the_picture(name: str, task: Task) -> None:
    task.reset(seed=0)
    image, state = task.render(), task.state()
    state[0] += NUDGES[name]
    task.set_state(state)
    changed = (task.render() != image).any(axis=-1).sum()
    assert 5 <= changed < 2000


def test_no_problem_shares_its_random_stream_with_an_episode() -> None:
    seeds = [*range(30), *(99 * i + 1 for i in range(50))]
    problems = {int(problem_rng(seed).integers(2**62)) for seed in seeds}
    episodes = {int(episode_rng(seed, i).integers(2**62)) for seed in seeds for i in range(50)}
    assert len(problems) == len(set(seeds))
    assert len(episodes) == 50 * len(set(seeds))
    assert problems.isdisjoint(episodes)


if __name__ == "__main__":
    for _name in FACTS:
        print(_name, digest(record(_name)))
