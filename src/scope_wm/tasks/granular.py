"""Granular: a board pushes 81 small pieces over a table; a goal is the grid of them, shrunk and moved.

This is the kind of task that DINO-WM has, rebuilt as a planar world on pymunk. It is not the benchmark of the
paper, which ran on PyFleX: figures of the two cannot be compared.

The state is 81 particles [x, y, z, angle], one for each piece; the angle stands where PyFleX has the inverse
mass, which is the same for all. The pieces are irregular convex polygons of six to ten corners that belong to
the task, not to the state: their corners lie on an ellipse, at uneven distances.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pymunk
from jaxtyping import Float64
from numpy.typing import ArrayLike

from scope_wm.tasks import camera, table
from scope_wm.tasks.table import ACTION_LIMIT, TABLE_TOP, XZ, Particles
from scope_wm.tasks.task import (
    Observation,
    Policy,
    checked_render_mode,
    observation_space,
    observe,
    problem_rng,
)
from scope_wm.types import Image, Problem, Proprio, State

ROWS, FIRST, SPACING = 9, -1.0, 0.23  # of the grid at rest: pieces a side, x and z of the first, pitch
PIECES = ROWS**2
RADIUS, HEIGHT = 0.112, 0.14  # of a piece; the radius reaches its farthest corner
CORNERS = 10  # pieces with fewer repeat their last one
BOARD_THICKNESS, BOARD_WIDTH = 0.26, 1.02
FRICTION = 1.0
ITERATIONS = 10
UNPACK_STEPS = 300  # in which the most overlapping goal comes apart

TOP, SIDE = (237, 145, 33), (140, 80, 14)
BEVEL = 0.88  # size of the bright top relative to the piece, which leaves a dark rim between neighbours


class Granular(gymnasium.Env[Observation, ArrayLike]):
    """Push pieces on a table. There is no rule of success: the Chamfer distance is the figure to look at."""

    name: ClassVar[str] = "granular"
    frameskip: ClassVar[int] = 1
    history: ClassVar[int] = 1
    episode_length: ClassVar[int] = 20
    state_width: ClassVar[int] = 4 * PIECES
    proprio_width: ClassVar[int] = 1
    action_width: ClassVar[int] = len(ACTION_LIMIT)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium forbids ClassVar)

    def __init__(self, render_mode: str = "rgb_array") -> None:
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space = observation_space(self.proprio_width)
        self.action_space = gymnasium.spaces.Box(-ACTION_LIMIT, ACTION_LIMIT, dtype=np.float64)
        self._particles = _at_rest()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Lay the pieces out in their grid, somewhere, and observe them."""
        super().reset(seed=seed, options=options)
        self.set_state(self.sample_start(self.np_random))
        return observe(self), {}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Push once and observe."""
        self.advance(action)
        return observe(self), 0.0, self.spoilt(), False, {}

    def advance(self, action: ArrayLike) -> None:
        """Push once without drawing; the board stands across its way."""
        reach = (BOARD_THICKNESS / 2 + RADIUS, BOARD_WIDTH / 2 + RADIUS)
        push = table.sweep(action, self._particles[:, XZ], reach)
        if push is None:
            return
        space, bodies = _pile(self._particles)
        hand = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        hand.angle = float(np.arctan2(push.heading[1], push.heading[0]))
        board = pymunk.Poly.create_box(hand, (BOARD_THICKNESS, BOARD_WIDTH))
        board.friction = FRICTION
        table.drive(space, hand, board, [push.begin, push.begin, push.end])
        self._particles[:, XZ] = [body.position for body in bodies]
        self._particles[:, 3] = [body.angle for body in bodies]

    def render(self) -> Image:
        """Draw the table from above at an angle, with the pieces back to front and their shadows."""
        canvas = camera.empty_table()
        bottom = _faces(self._particles, 1.0, -HEIGHT / 2)
        top = _faces(self._particles, 1.0, HEIGHT / 2)
        bright = camera.on_canvas(camera.project(_faces(self._particles, BEVEL, HEIGHT / 2)))
        solids = camera.on_canvas(camera.project(np.concatenate([bottom, top], axis=1)))
        shadows = camera.on_canvas(camera.project(np.concatenate([bottom, camera.shadow(top)], axis=1)))
        for outline in shadows:
            camera.fill(canvas, outline, camera.SHADOW)
        for i in np.argsort(-camera.depth(self._particles[:, :3]), kind="stable"):
            camera.fill(canvas, solids[i], SIDE)
            camera.fill(canvas, bright[i], TOP)
        return camera.to_image(canvas)

    def state(self) -> State:
        """Return the particles."""
        return self._particles.flatten()

    def set_state(self, state: ArrayLike) -> None:
        """Continue from these particles."""
        self._particles = table.checked_particles(state, self.state_width)

    def proprio(self) -> Proprio:
        """Return one zero: the robot is out of view between pushes."""
        return np.zeros(self.proprio_width, np.float32)

    def spoilt(self) -> bool:
        """Return False: the walls keep the pieces on the table."""
        return False

    def sample_start(self, rng: np.random.Generator) -> State:
        """Lay the grid out moved, as goals are, but not shrunk, so that data covers the places of goals."""
        return table.transformed(_at_rest(), 1.0, 0.0, rng)

    def sample_problem(self, seed: int) -> Problem:
        """Draw a start after 0 to 19 aimed pushes, and as goal a shrunk grid, which overlaps."""
        rng = problem_rng(seed)
        start = table.pushed_state(Granular(), rng)
        return Problem(start=start, goal=table.transformed(_at_rest(), rng.uniform(0.6, 0.9), 0.0, rng))

    def distance(self, state: State, goal: State) -> float:
        """Return the Chamfer distance of the particles."""
        return table.chamfer(state.reshape(-1, 4), goal.reshape(-1, 4))

    def packed(self, goal: State) -> State:
        """Return the pieces of a goal, which overlap, pushed apart until they touch: about the nearest."""
        particles = goal.reshape(-1, 4).copy()
        space, bodies = _pile(particles)
        table.settle(space, UNPACK_STEPS)
        particles[:, XZ] = [body.position for body in bodies]
        particles[:, 3] = [body.angle for body in bodies]
        return particles.flatten()

    def path_left(self, state: State, goal: State) -> float:
        """Return the Chamfer distance."""
        return self.distance(state, goal)

    def success(self, state: State, goal: State) -> bool:
        """Return False: the paper has no rule of success for this task, so every push it may have is made."""
        return False

    def policy(self, rng: np.random.Generator) -> Policy:
        """Return a behaviour whose every push aims through a piece; of others the board would hit most."""
        return table.aimed_pushes(rng)


def _outline(rng: np.random.Generator) -> Float64[np.ndarray, "10 2"]:
    """Make a piece about its centre of gravity."""
    corners = int(rng.integers(6, CORNERS, endpoint=True))
    angles = 2 * np.pi / corners * (np.arange(corners) + rng.uniform(-0.35, 0.35, corners))
    tilt = rng.uniform(0.0, np.pi)
    turn = np.array([[np.cos(tilt), np.sin(tilt)], [-np.sin(tilt), np.cos(tilt)]])
    outline = np.stack([np.cos(angles), rng.uniform(0.65, 1.0) * np.sin(angles)], axis=1) @ turn
    outline -= pymunk.Poly(None, outline.tolist()).center_of_gravity
    outline *= RADIUS / np.linalg.norm(outline, axis=1).max()
    return np.pad(outline, ((0, CORNERS - corners), (0, 0)), mode="edge")


def _outlines() -> Float64[np.ndarray, "81 10 2"]:
    """Make the pieces of the task, always the same."""
    rng = np.random.default_rng(0)
    return np.stack([_outline(rng) for _ in range(PIECES)])


OUTLINES = _outlines()
MOMENTS = [pymunk.moment_for_poly(1.0, outline) for outline in OUTLINES.tolist()]


def _at_rest() -> Particles:
    """Return the grid of pieces, none of them turned."""
    particles = np.zeros((PIECES, 4))
    row, column = np.divmod(np.arange(PIECES), ROWS)
    particles[:, 0] = FIRST + SPACING * column
    particles[:, 1] = TABLE_TOP + HEIGHT / 2
    particles[:, 2] = FIRST + SPACING * row
    return particles


def _pile(particles: Particles) -> tuple[pymunk.Space, list[pymunk.Body]]:
    """Build the pieces on an empty table."""
    space = table.empty_space(ITERATIONS)
    bodies = []
    for (x, _, z, angle), outline, moment in zip(particles.tolist(), OUTLINES.tolist(), MOMENTS, strict=True):
        body = pymunk.Body(1.0, moment)
        body.position = x, z
        body.angle = angle
        piece = pymunk.Poly(body, outline)
        piece.friction = FRICTION
        space.add(body, piece)
        bodies.append(body)
    return space, bodies


def _faces(particles: Particles, size: float, lift: float) -> Float64[np.ndarray, "81 10 3"]:
    """Return the outlines of the pieces in the world, resized and lifted from their middle."""
    cos, sin = np.cos(particles[:, 3]), np.sin(particles[:, 3])
    turn = np.stack([cos, sin, -sin, cos], axis=1).reshape(-1, 2, 2)
    corners = np.empty((PIECES, CORNERS, 3))
    corners[..., XZ] = size * OUTLINES @ turn + particles[:, None, XZ]
    corners[..., 1] = particles[:, None, 1] + lift
    return corners
