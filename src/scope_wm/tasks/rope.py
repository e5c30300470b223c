"""Rope: a small cylinder pushes a rope over a table; a goal is the straight rope in another pose.

This is the kind of task that DINO-WM has, rebuilt as a planar world on pymunk. It is not the benchmark of the
paper, which ran on PyFleX: figures of the two cannot be compared.

The state is 61 particles [x, y, z, inverse mass] with 60 segments between them. Each is a disc that does not
turn, and joints hold it to others of the rope:

- one segment on, at exactly the segment's length s;
- two segments on, at no less than in a bend of radius r = 0.2, 2 r sin(n s / 2 r) for n segments: no kinks;
- eight segments on, at no less than in a bend of radius 0.6, but weakly: a stiffness that slowly opens bends;
- 4 to 32 segments on, at no more than the rope between is long. That follows from the first; having it as a
  joint lets a pull reach the far end in a step, where the solver would take many from segment to segment.
"""

import math
from itertools import pairwise
from typing import Any, ClassVar

import cv2
import gymnasium
import numpy as np
import pymunk
from jaxtyping import Float64
from numpy.typing import ArrayLike

from scope_wm.tasks import camera, table
from scope_wm.tasks.table import ACTION_LIMIT, TABLE_TOP, XZ, Particles, Point, Points
from scope_wm.tasks.task import (
    Observation,
    Policy,
    checked_render_mode,
    observation_space,
    observe,
    problem_rng,
)
from scope_wm.types import Image, Problem, Proprio, State

PARTICLES, LENGTH, RADIUS, PUSHER_RADIUS = 61, 3.75, 0.1, 0.1
SEGMENT = LENGTH / (PARTICLES - 1)
FIRST_Z = 2.0  # of the first particle at rest; the others follow towards -z
FRICTION = 0.3
ITERATIONS = 30
JOINT_BIAS = 0.6  # share of a joint's error that one step leaves
BENDS = ((8, 0.6, 0.005), (2, 0.2, math.inf))  # span in segments, radius, greatest force
LONG_SPANS = (4, 8, 16, 32)
ASIDE = 0.06  # nearest that the pusher comes down to a particle

COLOUR = np.array([0.5, 0.5, 1.0])
RINGS = 6  # shades from the rope's edge to its highlight
HIGHLIGHT = np.array([0.25, -0.45])  # from the middle of a disc, in radii of the image


class Rope(gymnasium.Env[Observation, ArrayLike]):
    """Push a rope on a table. There is no rule of success: the Chamfer distance is the figure to look at."""

    name: ClassVar[str] = "rope"
    frameskip: ClassVar[int] = 1
    history: ClassVar[int] = 1
    episode_length: ClassVar[int] = 20
    state_width: ClassVar[int] = 4 * PARTICLES
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
        """Lay the rope out straight in a random pose and observe it."""
        super().reset(seed=seed, options=options)
        self.set_state(self.sample_start(self.np_random))
        return observe(self), {}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Push once and observe."""
        self.advance(action)
        return observe(self), 0.0, self.spoilt(), False, {}

    def advance(self, action: ArrayLike) -> None:
        """Push once without drawing."""
        line = self._particles[:, XZ]
        reach = RADIUS + PUSHER_RADIUS
        push = table.sweep(action, line, (reach, reach))
        if push is None:
            return
        space, bodies = _rope(line)
        hand = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        pusher = pymunk.Circle(hand, PUSHER_RADIUS)
        pusher.friction = FRICTION
        table.drive(space, hand, pusher, [_landing(line, push.begin), push.begin, push.end])
        self._particles[:, XZ] = [body.position for body in bodies]

    def render(self) -> Image:
        """Draw the table from above at an angle, with the rope as a shaded tube and its shadow."""
        canvas = camera.empty_table()
        centres = self._particles[:, :3]
        pixels = camera.project(centres)
        radii = camera.FOCAL * RADIUS / camera.depth(centres)
        _discs(canvas, camera.project(camera.shadow(centres)), radii, camera.SHADOW)
        for size in np.linspace(1.0, 0.0, RINGS, endpoint=False):
            light = 0.55 + 0.45 * np.sqrt(1 - size**2)  # of a round surface lit along the line of sight
            shift = (1 - size) * radii[:, None] * HIGHLIGHT
            r, g, b = np.rint(255 * light * COLOUR).astype(int).tolist()
            _discs(canvas, pixels + shift, size * radii, (r, g, b))
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
        """Return False: the walls keep the rope on the table."""
        return False

    def sample_start(self, rng: np.random.Generator) -> State:
        """Lay the rope out as goals do, turned and moved, so that data covers the poses that goals have."""
        return table.transformed(_at_rest(), 1.0, rng.uniform(0.0, np.pi / 2), rng)

    def sample_problem(self, seed: int) -> Problem:
        """Draw a start after 0 to 19 aimed pushes, and a straight rope as the goal."""
        rng = problem_rng(seed)
        start = table.pushed_state(Rope(), rng)
        return Problem(start=start, goal=self.sample_start(rng))

    def distance(self, state: State, goal: State) -> float:
        """Return the Chamfer distance of the particles."""
        return table.chamfer(state.reshape(-1, 4), goal.reshape(-1, 4))

    def path_left(self, state: State, goal: State) -> float:
        """Return the Chamfer distance."""
        return self.distance(state, goal)

    def success(self, state: State, goal: State) -> bool:
        """Return False: the paper has no rule of success for this task, so every push it may have is made."""
        return False

    def policy(self, rng: np.random.Generator) -> Policy:
        """Return a behaviour half of whose pushes aim through the rope; many of the others miss it."""
        return table.half_aimed_pushes(rng)


def _at_rest() -> Particles:
    """Return the rope laid out straight."""
    particles = np.zeros((PARTICLES, 4))
    particles[:, 1] = TABLE_TOP + RADIUS
    particles[:, 2] = FIRST_Z - SEGMENT * np.arange(PARTICLES)
    particles[:, 3] = 1.0
    return particles


def _rope(line: Points) -> tuple[pymunk.Space, list[pymunk.Body]]:
    """Build the rope on an empty table."""
    space = table.empty_space(ITERATIONS)
    bodies = []
    for i, (x, z) in enumerate(line.tolist()):
        body = pymunk.Body(1.0, math.inf)
        body.position = x, z
        disc = pymunk.Circle(body, RADIUS)
        disc.friction = FRICTION
        # Discs overlap along the rope: blocks of four neither meet themselves nor the blocks beside them.
        block = i // 4
        disc.filter = pymunk.ShapeFilter(
            categories=1 << block, mask=pymunk.ShapeFilter.ALL_MASKS() & ~(0b111 << block >> 1)
        )
        space.add(body, disc)
        bodies.append(body)
    space.add(*_joints(bodies))
    return space, bodies


def _joints(bodies: list[pymunk.Body]) -> list[pymunk.Constraint]:
    """Tie the particles together; the solver takes joints in turn, so what must hold best comes last."""
    middle = (0.0, 0.0)
    joints: list[pymunk.Constraint] = []
    for span, radius, force in BENDS:
        chord = 2 * radius * math.sin(span * SEGMENT / (2 * radius))
        for a, b in zip(bodies, bodies[span:], strict=False):
            joints.append(pymunk.SlideJoint(a, b, middle, middle, chord, span * SEGMENT))
            joints[-1].max_force = force
    for span in LONG_SPANS:
        every = span // 2
        for a, b in zip(bodies[::every], bodies[span::every], strict=False):
            joints.append(pymunk.SlideJoint(a, b, middle, middle, 0.0, span * SEGMENT))
    for a, b in pairwise(bodies):
        link = pymunk.PinJoint(a, b)
        link.distance = SEGMENT
        joints.append(link)
    for joint in joints:
        joint.error_bias = JOINT_BIAS
    return joints


def _landing(line: Points, begin: Point) -> Point:
    """Return where the pusher comes down: at `begin`, or a little aside if the middle of the rope is there.

    From the side it shoves the rope over the shorter way as it goes to `begin`; put down on the middle, it
    would press some particles out to the left and others to the right.
    """
    offset = line - begin
    nearest = int(np.linalg.norm(offset, axis=1).argmin())
    if np.linalg.norm(offset[nearest]) >= ASIDE:
        return begin
    along = table.direction(line[max(nearest - 1, 0)], line[min(nearest + 1, PARTICLES - 1)])
    across = np.array([-along[1], along[0]])
    side = float(offset[nearest] @ across)
    return begin - math.copysign(ASIDE - abs(side), side) * across


def _discs(
    canvas: camera.Canvas, pixels: Points, radii: Float64[np.ndarray, " points"], colour: tuple[int, int, int]
) -> None:
    """Paint discs, given in pixels of the image."""
    fixed_radii = np.rint(radii * camera.SUPERSAMPLING * 2**camera.SHIFT).astype(int)
    for centre, radius in zip(camera.on_canvas(pixels).tolist(), fixed_radii.tolist(), strict=True):
        cv2.circle(canvas, centre, radius, colour, cv2.FILLED, cv2.LINE_AA, camera.SHIFT)
