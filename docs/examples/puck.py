"""Puck: nudge a puck over a table; it slides on, slows down, and bounces off the cushions.

State and proprio are [x, y, vx, vy] on a table from 0 to 1, x to the right and y down.
"""

from typing import Any, ClassVar

import cv2
import gymnasium
import numpy as np
from numpy.typing import ArrayLike

from scope_wm.tasks.task import Observation, Policy, checked, observation_space, observe, problem_rng
from scope_wm.types import IMAGE_SIZE, Action, Image, Problem, Proprio, State

RADIUS = 0.08
LOW, HIGH = RADIUS, 1 - RADIUS  # where the puck's centre can be
GLIDE = 0.8  # share of the speed that is left after a step
LARGEST_NUDGE = 0.02
SUCCESS_DISTANCE = RADIUS
TABLE, PUCK = (222, 235, 228), (196, 52, 44)
SUBPIXEL_BITS = 4  # a motion of a sixteenth of a pixel shows


class Puck(gymnasium.Env[Observation, ArrayLike]):
    """A puck on a table; an action is added to its velocity."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    name: ClassVar[str] = "puck:Puck"  # module:Class, which is what --task says
    frameskip: ClassVar[int] = 5  # steps in one action of the world model
    history: ClassVar[int] = 1  # frames that it sees: velocity is in proprio, so one is enough
    episode_length: ClassVar[int] = 50  # frames
    state_width: ClassVar[int] = 4
    proprio_width: ClassVar[int] = 4
    action_width: ClassVar[int] = 2

    def __init__(self, render_mode: str = "rgb_array") -> None:
        self.render_mode = render_mode
        self.observation_space = observation_space(self.proprio_width)
        self.action_space = gymnasium.spaces.Box(-LARGEST_NUDGE, LARGEST_NUDGE, (2,), np.float64)
        self._state = np.array([0.5, 0.5, 0.0, 0.0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Put the puck anywhere, at rest."""
        super().reset(seed=seed, options=options)
        self.set_state(self.sample_start(self.np_random))
        return observe(self), {}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Nudge the puck and look: there is no reward, and no end."""
        self.advance(action)
        return observe(self), 0.0, self.spoilt(), False, {}

    def advance(self, action: ArrayLike) -> None:
        """Nudge the puck and let it slide; at a cushion it turns back."""
        nudge = checked("action", action, self.action_width)
        velocity = GLIDE * self._state[2:] + nudge
        position = self._state[:2] + velocity
        inside = position.clip(LOW, HIGH)
        velocity = np.where(inside == position, velocity, -velocity)
        self._state = np.concatenate([(2 * inside - position).clip(LOW, HIGH), velocity])

    def render(self) -> Image:
        """Draw the table from above."""
        image = np.full((IMAGE_SIZE, IMAGE_SIZE, 3), TABLE, np.uint8)
        scale = IMAGE_SIZE * 2**SUBPIXEL_BITS
        x, y, radius = (round(scale * length) for length in (*self._state[:2], RADIUS))
        cv2.circle(image, (x, y), radius, PUCK, cv2.FILLED, cv2.LINE_AA, SUBPIXEL_BITS)
        return image

    def state(self) -> State:
        """Return position and velocity."""
        return self._state.copy()

    def set_state(self, state: ArrayLike) -> None:
        """Put the puck somewhere on the table, with a velocity."""
        wanted = checked("state", state, self.state_width)
        if not ((wanted[:2] >= LOW) & (wanted[:2] <= HIGH)).all():
            raise ValueError(f"expected the puck to be from {LOW} to {HIGH}, got {wanted[:2]}")
        self._state = wanted

    def proprio(self) -> Proprio:
        """Return position and velocity."""
        return self._state.astype(np.float32)

    def spoilt(self) -> bool:
        """Return False: the puck cannot leave the table."""
        return False

    def sample_start(self, rng: np.random.Generator) -> State:
        """Draw a position anywhere, at rest."""
        return np.concatenate([rng.uniform(LOW, HIGH, 2), np.zeros(2)])

    def sample_problem(self, seed: int) -> Problem:
        """Draw two positions that are not close to each other."""
        rng = problem_rng(seed)
        while True:
            problem = Problem(start=self.sample_start(rng), goal=self.sample_start(rng))
            if self.distance(problem.start, problem.goal) > 3 * SUCCESS_DISTANCE:
                return problem

    def distance(self, state: State, goal: State) -> float:
        """Return the distance between the positions; the velocity does not matter."""
        return float(np.linalg.norm(state[:2] - goal[:2]))

    def path_left(self, state: State, goal: State) -> float:
        """Return the distance: nothing is in the way on this table."""
        return self.distance(state, goal)

    def success(self, state: State, goal: State) -> bool:
        """Tell whether the puck is at the goal."""
        return self.distance(state, goal) < SUCCESS_DISTANCE

    def policy(self, rng: np.random.Generator) -> Policy:
        """Return a behaviour that goes on nudging in one direction for a while, and so sees all the table."""
        nudge = np.zeros(2)

        def act(state: State) -> Action:
            nonlocal nudge
            wish = 0.8 * nudge + rng.normal(0.0, 0.5 * LARGEST_NUDGE, 2)
            nudge = wish.clip(-LARGEST_NUDGE, LARGEST_NUDGE)
            return nudge

        return act
