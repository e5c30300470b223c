"""Wall: a dot that has to pass the door in the wall between two rooms (DINO-WM's "wall_single").

State and proprio: [x, y] in a world of 65 x 65 pixels, x to the right and y down. One step moves the dot by
twice the action. Free space is three rectangles from left to right: a room, the door, a room. A step runs
through them along a straight line. Where it meets the side of a rectangle that is not open, it ends 0.5 off
that side and 0.5 further along the other axis, but at least 0.3 from every side of the rectangle.
"""

import math
from itertools import pairwise
from typing import Any, ClassVar

import cv2
import gymnasium
import numpy as np
from jaxtyping import Bool, Float32, UInt8
from numpy.typing import ArrayLike

from scope_wm.tasks.task import (
    Observation,
    Policy,
    checked,
    checked_render_mode,
    observation_space,
    observe,
    problem_rng,
)
from scope_wm.types import IMAGE_SIZE, Action, Image, Problem, Proprio, State

WORLD_SIZE = 65
LEFT_ROOM, DOOR, RIGHT_ROOM = REGIONS = range(3)
LOW = np.array([[4.0, 4.0], [29.0, 26.0], [35.0, 4.0]])  # least x and y of the left room, door, right room
HIGH = np.array([[29.0, 60.0], [35.0, 34.0], [60.0, 60.0]])
DOOR_ENDS = np.array([[29.0, 30.0], [35.0, 30.0]])  # the middle of the door, on either side of the wall
STEP_PER_ACTION = 2.0
REBOUND, CLEARANCE = 0.5, 0.3
DOT_STD = 1.7
PROBLEM_MARGIN = 3.4  # of starts and goals from every wall
SUCCESS_DISTANCE = 4.5

CROSSING_SHARE = 0.5  # of the data policy's episodes, that head for the other room
SHAKING_SHARE = 0.5  # of the others, whose every step goes anywhere, as in the candidates of a planner
TURN_CONCENTRATION = 5.0  # of the von Mises distribution of the turns
# A planner's candidates are as wide as the actions of the data. With the steps of DINO-WM's, half as wide,
# they often stay on this side of the wall, and the search ends as near to the goal as that lets it.
STEP_LENGTHS = (0.2, 3.6)
WAYPOINT_DISTANCE = 3.0


class Wall(gymnasium.Env[Observation, ArrayLike]):
    """A dot in two rooms; any finite action is accepted, `action_space` is what the data policy uses."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium forbids ClassVar)
    name: ClassVar[str] = "wall"
    frameskip: ClassVar[int] = 5
    history: ClassVar[int] = 1
    episode_length: ClassVar[int] = 50
    state_width: ClassVar[int] = 2
    proprio_width: ClassVar[int] = 2
    action_width: ClassVar[int] = 2

    def __init__(self, render_mode: str = "rgb_array") -> None:
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space = observation_space(self.proprio_width)
        self.action_space = gymnasium.spaces.Box(
            -STEP_LENGTHS[1], STEP_LENGTHS[1], (self.action_width,), np.float64
        )
        self._position = np.array([16.5, 32.0])
        self._free = _free_pixels()
        self._red = _enlarge(self._free)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Put the dot anywhere in either room and observe it."""
        super().reset(seed=seed, options=options)
        self.set_state(self.sample_start(self.np_random))
        return observe(self), {}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move the dot and observe."""
        self.advance(action)
        return observe(self), 0.0, self.spoilt(), False, {}

    def advance(self, action: ArrayLike) -> None:
        """Move the dot by twice the action, or as far as the walls let it."""
        move = checked("action", action, self.action_width)
        # A move longer than the world meets the same wall however long it is; shortened, it cannot overflow.
        move *= STEP_PER_ACTION / max(1.0, np.abs(move).max() / WORLD_SIZE)
        self._position = _destination(self._position, self._position + move)

    def render(self) -> Image:
        """Draw white rooms, black walls and a soft red dot."""
        offset = np.arange(WORLD_SIZE) - self._position[:, None]
        dot_x, dot_y = np.exp(-(offset**2) / (2 * DOT_STD**2)).astype(np.float32)
        green_and_blue = _enlarge(self._free * (1 - np.outer(dot_y, dot_x)))
        return cv2.merge([self._red, green_and_blue, green_and_blue])

    def state(self) -> State:
        """Return the dot's position."""
        return self._position.copy()

    def set_state(self, state: ArrayLike) -> None:
        """Put the dot in a room or the door."""
        position = checked("state", state, self.state_width)
        if not _containing(position).any():
            raise ValueError(f"expected state to have the dot in a room or the door, got {position}")
        self._position = position

    def proprio(self) -> Proprio:
        """Return the dot's position."""
        return self._position.astype(np.float32)

    def spoilt(self) -> bool:
        """Return False: the dot cannot leave the rooms."""
        return False

    def sample_start(self, rng: np.random.Generator) -> State:
        """Draw a position anywhere in either room."""
        room = rng.choice([LEFT_ROOM, RIGHT_ROOM])
        return rng.uniform(LOW[room] + REBOUND, HIGH[room] - REBOUND)

    def sample_problem(self, seed: int) -> Problem:
        """Draw a start in one room and a goal in the other."""
        rng = problem_rng(seed)
        ends = [
            rng.uniform(LOW[room] + PROBLEM_MARGIN, HIGH[room] - PROBLEM_MARGIN)
            for room in rng.permutation([LEFT_ROOM, RIGHT_ROOM])
        ]
        return Problem(start=ends[0], goal=ends[1])

    def distance(self, state: State, goal: State) -> float:
        """Return the distance between the positions."""
        return float(np.linalg.norm(state - goal))

    def path_left(self, state: State, goal: State) -> float:
        """Return the length of the way to the goal, through the door if it is in the other room."""
        ends = DOOR_ENDS if state[0] < goal[0] else DOOR_ENDS[::-1]
        between = [end for end in ends if min(state[0], goal[0]) < end[0] < max(state[0], goal[0])]
        return sum(self.distance(a, b) for a, b in pairwise([state, *between, goal]))

    def success(self, state: State, goal: State) -> bool:
        """Tell whether the dot is at the goal."""
        return self.distance(state, goal) < SUCCESS_DISTANCE

    def policy(self, rng: np.random.Generator) -> Policy:
        """Return a walk that wanders and turns at walls.

        In half of the episodes it first passes the door, in half of the others every step goes anywhere.
        """
        crosses, shakes = rng.random() < CROSSING_SHARE, rng.random() < SHAKING_SHARE
        concentration = 0.0 if shakes and not crosses else TURN_CONCENTRATION
        heading, waypoints = 0.0, list[State]()
        expected: State | None = None  # where the last move leads if nothing is in its way

        def act(state: State) -> Action:
            nonlocal heading, waypoints, expected
            if expected is None and crosses:
                waypoints = _way_through_door(state, rng)
            if waypoints and self.distance(state, waypoints[0]) < WAYPOINT_DISTANCE:
                waypoints.pop(0)
            if waypoints:
                heading = math.atan2(waypoints[0][1] - state[1], waypoints[0][0] - state[0])
            elif expected is None or not np.array_equal(state, expected):
                heading = rng.uniform(-math.pi, math.pi)
            heading += rng.vonmises(0.0, concentration)
            length = rng.uniform(*STEP_LENGTHS)
            action = length * np.array([math.cos(heading), math.sin(heading)])
            expected = state + STEP_PER_ACTION * action
            return action

        return act


def _containing(position: State) -> Bool[np.ndarray, "3"]:
    """Tell which of the left room, the door and the right room hold a position; touching a side counts."""
    return np.logical_and.reduce((position >= LOW) & (position <= HIGH), axis=1)


def _destination(start: State, end: State) -> State:
    """Follow the line from start to end, through the door if it leads there, until a wall stops it."""
    region = int(np.argmax(_containing(start)))
    while True:
        low, high, move = LOW[region], HIGH[region], end - start
        side = np.where(move > 0, high, low)  # on each axis, the one that the dot moves towards
        reached = (move != 0) & ((end - side) * move >= 0)
        if not reached.any():
            return end
        when = np.divide(side - start, move, out=np.full(2, np.inf), where=reached)
        axis, direction = int(np.argmin(when)), np.sign(move)
        meeting = (start + when[axis] * move).clip(low, high)  # rounding must not put it outside
        meeting[axis] = side[axis]
        following = region + int(direction[0])
        opens = axis == 0 and following in REGIONS and LOW[DOOR, 1] <= meeting[1] <= HIGH[DOOR, 1]
        if not opens:
            rebound = meeting + REBOUND
            rebound[axis] = side[axis] - REBOUND * direction[axis]
            return rebound.clip(low + CLEARANCE, high - CLEARANCE)
        start, region = meeting, following


def _way_through_door(position: State, rng: np.random.Generator) -> list[State]:
    """Return points before the door, behind it and anywhere in the other room."""
    y = rng.uniform(LOW[DOOR, 1] + 2.0, HIGH[DOOR, 1] - 2.0)
    left, right = np.array([LOW[DOOR, 0] - 3.0, y]), np.array([HIGH[DOOR, 0] + 3.0, y])
    if position[0] < WORLD_SIZE / 2:
        return [left, right, rng.uniform(LOW[RIGHT_ROOM], HIGH[RIGHT_ROOM])]
    return [right, left, rng.uniform(LOW[LEFT_ROOM], HIGH[LEFT_ROOM])]


def _free_pixels() -> Float32[np.ndarray, "65 65"]:
    """Return 0 for the pixels of the borders and the wall, 1 for the others."""
    free = np.ones((WORLD_SIZE, WORLD_SIZE), np.float32)
    free[:, 29:36] = 0
    free[26:35, 29:36] = 1
    free[[4, 60]] = 0
    free[:, [4, 60]] = 0
    return free


def _enlarge(channel: Float32[np.ndarray, "65 65"]) -> UInt8[np.ndarray, "224 224"]:
    """Resample one channel of the world, from 0 to 1, to the size of the image."""
    resized = cv2.resize(channel, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_LINEAR)
    return np.rint(255 * resized).astype(np.uint8)
