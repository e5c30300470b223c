"""PointMaze: a ball driven by forces through a U-shaped maze, seen from above (D4RL's maze2d-umaze).

State and proprio: [x, y, vx, vy]. Action: the force along each axis in units of 100 N; the motors clip it to
±1. One step is five MuJoCo substeps of 10 ms. The ground is only drawn: contacts have no friction and the
ball cannot move vertically, so the original's ground plane never acts on it.

The maze is ray-cast once, from a camera above its centre; each frame adds the ball. Light falls straight
down: colour x (0.4 + 0.8 n) + 0.05 h^64, where n is the cosine between the surface's normal and the light,
and h that between the normal and the direction halfway from the light to the viewer.
"""

import math
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import cv2
import gymnasium
import mujoco
import numpy as np
from jaxtyping import Bool, Float
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

MAZE = ("#####", "#...#", "###.#", "#...#", "#####")  # rows along x, columns along y, cells of 1 x 1
WALLS = np.array([[cell == "#" for cell in row] for row in MAZE])
ORIGIN = 1.2  # where the ball is in the world when its state is 0; cell (i, j) is centred on (i + 1, j + 1)
CORNERS = np.array([[1.2, 2.4], [2.4, 2.4]])  # where the ball turns from one leg of the U into the next
SUBSTEPS = 5
MAX_SPEED = 5.0  # per axis, enforced at the start of every step
START_SPEED = 5.2262554
SUCCESS_DISTANCE = 0.5

# A planner's candidates are as wide as the actions of the data. Where the motors cut most of them off, more
# of them take the ball round the U within one plan.
WIDEST_FORCE = 3.5
HOLDING_SHARE = 0.5  # of the data policy's episodes, that hold a force; in the others every step has another
REDRAW = 0.2  # chance per step of another force where it is held

WALL_HEIGHT, GROUND_HEIGHT, BALL_RADIUS = 0.2, -0.1, 0.2  # what is drawn; the ball collides with radius 0.1
CAMERA_HEIGHT = 9.7348
CENTRE = 3.0  # of the maze, along x and y
FOCAL = IMAGE_SIZE / 2 / np.tan(np.pi / 8)  # pixels, for a field of view of 45 degrees
SUPERSAMPLING = 4
TILE = 2.0  # side of a tile of the ground
LIGHT_TILE, DARK_TILE = np.array([0.2, 0.3, 0.4]), np.array([0.1, 0.2, 0.3])
WALL_COLOUR, BALL_COLOUR = np.array([0.7, 0.5, 0.3]), np.array([0.3, 0.6, 0.3])


class PointMaze(gymnasium.Env[Observation, ArrayLike]):
    """A ball in a U-shaped maze that has to come to a place; `action_space` is what the data policy uses."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 (Gymnasium forbids ClassVar)
    name: ClassVar[str] = "point_maze"
    frameskip: ClassVar[int] = 5
    history: ClassVar[int] = 3
    episode_length: ClassVar[int] = 100
    state_width: ClassVar[int] = 4
    proprio_width: ClassVar[int] = 4
    action_width: ClassVar[int] = 2

    def __init__(self, render_mode: str = "rgb_array") -> None:
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space = observation_space(self.proprio_width)
        self.action_space = gymnasium.spaces.Box(
            -WIDEST_FORCE, WIDEST_FORCE, (self.action_width,), np.float64
        )
        self._model = mujoco.MjModel.from_xml_string(_mjcf())
        self._data = mujoco.MjData(self._model)
        self._state = np.array([1.0, 1.0, 0.0, 0.0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Put the ball anywhere in the maze, moving, and observe it."""
        super().reset(seed=seed, options=options)
        self.set_state(self.sample_start(self.np_random))
        return observe(self), {}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Apply a force for 50 ms and observe."""
        self.advance(action)
        return observe(self), 0.0, self.spoilt(), False, {}

    def advance(self, action: ArrayLike) -> None:
        """Apply a force for 50 ms without drawing."""
        force = checked("action", action, self.action_width)
        # MuJoCo starts its solver from the last solution; a reset makes the step a function of the state.
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos = self._state[:2]
        self._data.qvel = self._state[2:].clip(-MAX_SPEED, MAX_SPEED)
        self._data.ctrl = force  # the motors clip it
        mujoco.mj_step(self._model, self._data, nstep=SUBSTEPS)
        self._state = np.concatenate([self._data.qpos, self._data.qvel])

    def render(self) -> Image:
        """Draw the maze from above, x to the right and y down."""
        background, visible = _scene()
        image = background.copy()
        centre = IMAGE_SIZE / 2 + FOCAL / CAMERA_HEIGHT * (self._state[:2] + ORIGIN - CENTRE)
        radius = FOCAL / CAMERA_HEIGHT * BALL_RADIUS
        left, top = (centre - radius - 1).astype(int)
        size = int(2 * radius) + 4
        patch = np.s_[top : top + size, left : left + size]
        x = np.arange(left, left + size) + 0.5 - centre[0]
        y = np.arange(top, top + size) + 0.5 - centre[1]
        distance = np.sqrt(x**2 + y[:, None] ** 2)
        coverage = (radius + 0.5 - distance).clip(0.0, 1.0) * visible[patch]
        normal = np.sqrt((1 - (distance / radius) ** 2).clip(0.0))
        ball = _shade(BALL_COLOUR, normal, normal)
        image[patch] = np.rint(image[patch] + coverage[..., None] * (255 * ball - image[patch]))
        return image

    def state(self) -> State:
        """Return the ball's position and velocity."""
        return self._state.copy()

    def set_state(self, state: ArrayLike) -> None:
        """Put the ball in a free cell of the maze, with any velocity."""
        values = checked("state", state, self.state_width)
        x, y = values[:2, None] + ORIGIN
        if not _in_cells(~WALLS, x, y).all():
            raise ValueError(f"expected state to have the ball in a free cell of the maze, got {values}")
        self._state = values

    def proprio(self) -> Proprio:
        """Return the ball's position and velocity."""
        return self._state.astype(np.float32)

    def spoilt(self) -> bool:
        """Return False: the ball cannot leave the maze."""
        return False

    def sample_start(self, rng: np.random.Generator) -> State:
        """Draw a position in the free cells, away from the walls, and a velocity."""
        while True:
            x, y = rng.uniform(0.5, 3.1, 2)
            if not 1.1 < x < 2.5 or y >= 2.5:
                return np.array([x, y, *rng.uniform(-START_SPEED, START_SPEED, 2)])

    def sample_problem(self, seed: int) -> Problem:
        """Draw a start and a goal in the same way; the goal is somewhere else."""
        rng = problem_rng(seed)
        start, goal = self.sample_start(rng), self.sample_start(rng)
        while self.success(start, goal):
            start, goal = self.sample_start(rng), self.sample_start(rng)
        return Problem(start=start, goal=goal)

    def distance(self, state: State, goal: State) -> float:
        """Return the distance between the positions."""
        return float(np.linalg.norm(state[:2] - goal[:2]))

    def path_left(self, state: State, goal: State) -> float:
        """Return the length of the way to the goal around the corners of the U."""
        first, last = _leg(state), _leg(goal)
        corners = CORNERS[first:last] if first <= last else CORNERS[last:first][::-1]
        return sum(math.dist(a, b) for a, b in pairwise([state[:2], *corners, goal[:2]]))

    def success(self, state: State, goal: State) -> bool:
        """Tell whether the ball is at the goal, at whatever speed."""
        return self.distance(state, goal) < SUCCESS_DISTANCE

    def policy(self, rng: np.random.Generator) -> Policy:
        """Return a behaviour that draws a force anew at every step, or holds it for some."""
        redraw = REDRAW if rng.random() < HOLDING_SHARE else 1.0
        force = rng.uniform(-WIDEST_FORCE, WIDEST_FORCE, self.action_width)

        def act(_: State) -> Action:
            nonlocal force
            if rng.random() < redraw:
                force = rng.uniform(-WIDEST_FORCE, WIDEST_FORCE, self.action_width)
            return force

        return act


def _leg(state: State) -> int:
    """Return which leg of the U the ball is in, counted along it."""
    if state[1] >= CORNERS[0, 1]:
        return 1
    return 0 if state[0] < CORNERS[:, 0].mean() else 2


def _mjcf() -> str:
    """Describe the maze, the ball and its two motors to MuJoCo."""
    walls = "".join(
        f'<geom type="box" pos="{i + 1} {j + 1} 0" size=".5 .5 .2"/>' for i, j in np.argwhere(WALLS)
    )
    return f"""
    <mujoco model="point_maze">
      <option timestep=".01" gravity="0 0 0" iterations="20" integrator="Euler"/>
      <default>
        <joint type="slide" damping="1" limited="false"/>
        <geom friction=".5 .1 .1" density="1000" margin=".002" condim="1" contype="2" conaffinity="1"/>
        <motor ctrllimited="true" ctrlrange="-1 1" gear="100"/>
      </default>
      <worldbody>
        {walls}
        <body name="ball" pos="{ORIGIN} {ORIGIN} 0">
          <geom type="sphere" size=".1" contype="1"/>
          <joint name="x" axis="1 0 0"/>
          <joint name="y" axis="0 1 0"/>
        </body>
      </worldbody>
      <actuator>
        <motor joint="x"/>
        <motor joint="y"/>
      </actuator>
    </mujoco>"""


@cache
def _scene() -> tuple[Image, Float[np.ndarray, "224 224"]]:
    """Draw the empty maze; also return how much of a ball at each pixel the walls leave visible."""
    slope = ((np.arange(IMAGE_SIZE * SUPERSAMPLING) + 0.5) / SUPERSAMPLING - IMAGE_SIZE / 2) / FOCAL
    roof = CENTRE + (CAMERA_HEIGHT - WALL_HEIGHT) * slope  # where the rays meet the top of the walls ...
    ground = CENTRE + (CAMERA_HEIGHT - GROUND_HEIGHT) * slope  # ... and the ground, along either axis
    top = _in_cells(WALLS, roof, roof[:, None])
    foot = _in_cells(WALLS, ground, ground[:, None])
    tile = np.floor(ground / TILE)
    tiles = np.where((tile + tile[:, None])[..., None] % 2 == 0, DARK_TILE, LIGHT_TILE)
    halfway = np.cos(np.arctan(np.hypot(slope, slope[:, None])) / 2)
    walls = _shade(WALL_COLOUR, 1.0 * top, halfway * top)  # light grazes the sides: both cosines are 0
    scene = np.where((top | foot)[..., None], walls, tiles)
    image = np.rint(255 * _downsample(scene)).astype(np.uint8)
    return image, 1 - _downsample(1.0 * top)


def _downsample(picture: Float[np.ndarray, "v u ..."]) -> Float[np.ndarray, "224 224 ..."]:
    """Average the sub-pixels of every pixel."""
    return cv2.resize(picture, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_AREA)


def _in_cells(
    cells: Bool[np.ndarray, "i j"], x: Float[np.ndarray, "..."], y: Float[np.ndarray, "..."]
) -> Bool[np.ndarray, "..."]:
    """Tell which points of the world lie in the marked cells of the maze."""
    i, j = np.floor(x - 0.5), np.floor(y - 0.5)
    rows, columns = cells.shape
    inside = (i >= 0) & (i < rows) & (j >= 0) & (j < columns)
    marked: np.ndarray = cells[i.clip(0, rows - 1).astype(int), j.clip(0, columns - 1).astype(int)]
    return inside & marked


def _shade(
    colour: Float[np.ndarray, "3"],
    normal: Float[np.ndarray, "*pixels"],
    halfway: Float[np.ndarray, "*pixels"],
) -> Float[np.ndarray, "*pixels 3"]:
    """Light a surface; the cosines are those of the module's formula."""
    return (0.4 + 0.8 * normal[..., None]) * colour + 0.05 * halfway[..., None] ** 64
