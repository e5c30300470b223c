"""The seam between a task and everything that uses one, and the few lines that tasks share.

A task is a `gymnasium.Env` whose `state` is complete: after `set_state(state())` the same actions give
bit-equal states and frames, in any process. It has no reward; what to reach comes as a `Problem`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from scope_wm.types import IMAGE_SIZE, Action, Image, Problem, Proprio, State

Observation = dict[str, np.ndarray]
Policy = Callable[[State], Action]


@runtime_checkable
class Task(Protocol):
    """What every task offers. `advance` moves the physics only; `step` also draws."""

    name: ClassVar[str]
    frameskip: ClassVar[int]  # simulator steps in one action of the world model
    history: ClassVar[int]  # frames the world model of the paper sees
    episode_length: ClassVar[int]  # frames in one collected episode
    state_width: ClassVar[int]
    proprio_width: ClassVar[int]
    action_width: ClassVar[int]
    observation_space: gymnasium.spaces.Space[Any]
    action_space: gymnasium.spaces.Space[Any]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start from a random state and observe it."""
        ...

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Apply one action and observe; `terminated` means that the scene is spoilt."""
        ...

    def advance(self, action: ArrayLike) -> None:
        """Apply one action without drawing."""
        ...

    def render(self) -> Image:
        """Draw the current state."""
        ...

    def state(self) -> State:
        """Return everything that the future depends on."""
        ...

    def set_state(self, state: ArrayLike) -> None:
        """Continue from this state, exactly."""
        ...

    def proprio(self) -> Proprio:
        """Return what the robot knows of itself."""
        ...

    def spoilt(self) -> bool:
        """Tell whether the scene has left the range in which it is worth recording."""
        ...

    def sample_start(self, rng: np.random.Generator) -> State:
        """Draw a state to begin an episode with."""
        ...

    def sample_problem(self, seed: int) -> Problem:
        """Make the problem of this seed; its start does not satisfy its goal."""
        ...

    def distance(self, state: State, goal: State) -> float:
        """Return how far a state is from the goal, in the units of the success rule."""
        ...

    def path_left(self, state: State, goal: State) -> float:
        """Return a distance that falls along the whole way to the goal, also where walls are in between."""
        ...

    def success(self, state: State, goal: State) -> bool:
        """Tell whether a state counts as having reached the goal."""
        ...

    def policy(self, rng: np.random.Generator) -> Policy:
        """Return the behaviour that collects data; it may remember what it is doing."""
        ...


def missing_members(task: object) -> list[str]:
    """Return what an object lacks to be a task."""
    members = sorted(name for name in {*vars(Task), *Task.__annotations__} if not name.startswith("_"))
    return [name for name in members if not hasattr(task, name)]


def observe(task: Task) -> Observation:
    """Return Gymnasium's observation of a task."""
    return {"image": task.render(), "proprio": task.proprio()}


def observation_space(proprio_width: int) -> gymnasium.spaces.Space[Any]:
    """Return the space of `observe`."""
    image = gymnasium.spaces.Box(0, 255, (IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    proprio = gymnasium.spaces.Box(-np.inf, np.inf, (proprio_width,), np.float32)
    return gymnasium.spaces.Dict({"image": image, "proprio": proprio})


def checked(what: str, values: ArrayLike, width: int) -> np.ndarray:
    """Return `values` as a float64 vector of this width, or say what is wrong with them."""
    vector = np.array(values, dtype=np.float64)
    if vector.shape != (width,):
        raise ValueError(f"expected {what} of shape ({width},), got {vector.shape}")
    if not np.isfinite(vector).all():
        raise ValueError(f"expected {what} to be finite, got {vector}")
    return vector


def checked_render_mode(mode: str) -> str:
    """Return the one way in which tasks draw, or say that there is no other."""
    if mode != "rgb_array":
        raise ValueError(f"expected render_mode 'rgb_array', got {mode!r}")
    return mode


def episode_rng(seed: int, episode: int) -> np.random.Generator:
    """Return the random stream of one collected episode."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, episode)))


def problem_rng(seed: int) -> np.random.Generator:
    """Return the random stream of one problem, disjoint from every episode's."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
