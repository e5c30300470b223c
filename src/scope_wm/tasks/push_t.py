"""Push-T: a disc pushes a T-shaped block over a plane; a goal is a pose of both.

The physics is DINO-WM's, in units of its 512 x 512 window. An action puts the target of the agent at
`position + 100 * action`; then come ten substeps of 0.01 s, each

    v += 0.01 * (100 * (target - position) - 20 * v)

and one step of pymunk. The agent is kinematic: nothing stops it, not even a wall. Damping 0 takes all
velocity from the block in every substep, so that it moves only while it is pushed.

The state is [agent x y, block x y, block angle in [0, 2 pi), agent vx vy]. The space of pymunk is built from
these seven numbers for every action, so that no contact cache outlives it and they alone decide what follows.
Beside a space that runs on, that departs by rounding until the block touches a wall; later a block pinned
between agent and wall slips out one way or the other, and the solver's memory of the last contacts can tip it
(docs/tasks.md has the figures).
"""

import math
from collections.abc import Generator
from typing import Any, ClassVar

import cv2
import gymnasium
import numpy as np
import pymunk
from jaxtyping import Float64, Int32
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

Box = tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]
Colour = tuple[int, int, int]
Point = Float64[np.ndarray, " 2"]
Points = Float64[np.ndarray, "points 2"]
Pixels = Int32[np.ndarray, "points 2"]
Behaviour = Generator[Action, State, State]

TAU = 2 * math.pi
SUBSTEPS, DT = 10, 0.01
STIFFNESS, DAMPING, ACTION_SCALE = 100.0, 20.0, 100.0
POSITION_TOLERANCE, ANGLE_TOLERANCE = 20.0, math.pi / 9
# Of the path left, in tolerances: the block is home below the first; the others weigh what is left to do.
HOME, FAR_FROM_HOME, BLOCK_WEIGHT, APPROACH_WEIGHT = 0.5, 20.0, 5.0, 0.3
TURN_ONLY, PUSH_FROM, PUSH_SPREAD = 5.0, 70.0, 30.0  # a shorter way is a mere turn; where to push from
PROBLEM_ACTIONS = 5  # of the world model: `frameskip` times as many steps

WINDOW, LOW, HIGH, WALL_RADIUS = 512, 5.0, 506.0, 2.0
ARENA: Box = ((LOW, LOW), (HIGH, LOW), (HIGH, HIGH), (LOW, HIGH))
AGENT_RADIUS, BLOCK_MASS, BLOCK_MOMENT, BLOCK_COG = 15.0, 1.0, 3000.0, (0.0, 45.0)
# The block's own frame begins in the middle of the outer edge of its bar.
BAR: Box = ((-60.0, 0.0), (60.0, 0.0), (60.0, 30.0), (-60.0, 30.0))
STEM: Box = ((-15.0, 30.0), (15.0, 30.0), (15.0, 120.0), (-15.0, 120.0))
OUTLINE = np.array([(-60.0, 0), (60, 0), (60, 30), (15, 30), (15, 120), (-15, 120), (-15, 30), (-60, 30)])

WHITE, LIGHT_GREEN, LIGHT_GRAY = (255, 255, 255), (144, 238, 144), (211, 211, 211)
AGENT_COLOUR, AGENT_LIGHT = (65, 105, 225), (78, 126, 255)
BLOCK_COLOUR, BLOCK_LIGHT = (119, 136, 153), (143, 163, 184)
MARK_POSE = (256.0, 256.0, math.pi / 4)  # a green T in every picture, not the goal of any problem
SCALE, SHIFT = IMAGE_SIZE / WINDOW, 8
RIM = 2.0  # half the width of an outline
BLEED = 0.6 / SCALE  # OpenCV paints 0.6 pixels beyond an anti-aliased edge: draw that much smaller

REACH, PUSH_RANGE = (40.0, 472.0), (90.0, 422.0)  # limits of targets, and of where the block is pushed to
SPEED, SHAKE = (0.15, 0.42), 0.05  # lengths of actions, and the noise on both of their numbers
WANDER_SHARE, LEG_STEPS, ARRIVED, LOST = 0.15, 30, 15.0, 40.0
STAND_OFF, RING = 25.0, 105.0  # from the outline to where a push begins; radius of the way around the block
PUSH_LENGTH, PUSH_SLANT, PUSH_TRIES = (50.0, 200.0), 0.3, 40


class PushT(gymnasium.Env[dict[str, Any], ArrayLike]):
    """Push a T-shaped block; any finite action is accepted, `action_space` is what the data policy uses."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium forbids ClassVar)
    name: ClassVar[str] = "push_t"
    frameskip: ClassVar[int] = 5
    history: ClassVar[int] = 3
    episode_length: ClassVar[int] = 100
    state_width: ClassVar[int] = 7
    proprio_width: ClassVar[int] = 4
    action_width: ClassVar[int] = 2

    def __init__(self, render_mode: str = "rgb_array") -> None:
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space = observation_space(self.proprio_width)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.action_width,), np.float64)
        self._background = _background()
        rims = (RIM - BLEED, -RIM - BLEED)
        self._layers = np.concatenate([_grown(box, rim) for box in (BAR, STEM) for rim in rims])
        self.set_state([128, 128, *MARK_POSE, 0, 0])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start from a random state and observe it."""
        super().reset(seed=seed, options=options)
        self.set_state(self.sample_start(self.np_random))
        return observe(self), {}

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Apply one action and observe; `terminated` means that the block has left the arena."""
        self.advance(action)
        return observe(self), 0.0, self.spoilt(), False, {}

    def advance(self, action: ArrayLike) -> None:
        """Move the agent towards `position + 100 * action` for 0.1 s, without drawing."""
        push_x, push_y = checked("action", action, self.action_width).tolist()
        x, y, *pose, vx, vy = self._state.tolist()
        target_x, target_y = x + ACTION_SCALE * push_x, y + ACTION_SCALE * push_y
        space, agent, block = _simulation(self._state)
        at_rest = block.position, block.angle
        for _ in range(SUBSTEPS):
            x, y = agent.position
            vx += DT * (STIFFNESS * (target_x - x) - DAMPING * vx)
            vy += DT * (STIFFNESS * (target_y - y) - DAMPING * vy)
            agent.velocity = vx, vy
            space.step(DT)
        # pymunk moves bodies before it solves contacts: what the last substep gave the block is still to be
        # moved, and no number of the state could hold it until the next action.
        pymunk.Body.update_position(block, DT)
        # pymunk derives the position from the centre of gravity and may round it: an untouched block stays.
        if (block.position, block.angle) != at_rest:
            pose = [*block.position, block.angle]
        self.set_state([*agent.position, *pose, vx, vy])

    def render(self) -> Image:
        """Draw the current state."""
        image = self._background.copy()
        agent = _pixels(self._state[None, :2])
        _fill_disc(image, agent, AGENT_RADIUS, AGENT_COLOUR)
        _fill_disc(image, agent, AGENT_RADIUS - 2 * RIM, AGENT_LIGHT)
        corners = _pixels(_placed(self._layers, self._state[2:4], self._state[4])).reshape(4, 4, 2)
        for polygon, colour in zip(corners, 2 * (BLOCK_COLOUR, BLOCK_LIGHT), strict=True):
            _fill(image, polygon, colour)
        return image

    def state(self) -> State:
        """Return [agent x y, block x y, block angle, agent vx vy]."""
        return self._state.copy()

    def set_state(self, state: ArrayLike) -> None:
        """Continue from this state, exactly; the angle is taken modulo 2 pi."""
        self._state = checked("state", state, self.state_width)
        self._state[4] = self._state[4] % TAU % TAU  # the first may round up to 2 pi itself

    def proprio(self) -> Proprio:
        """Return the position and the velocity of the agent."""
        return self._state[[0, 1, 5, 6]].astype(np.float32)

    def spoilt(self) -> bool:
        """Tell whether the block's origin or its centre of gravity is outside the walls."""
        points = _placed(np.array([(0.0, 0.0), BLOCK_COG]), self._state[2:4], self._state[4])
        return bool((points < LOW).any() or (points > HIGH).any())

    def sample_start(self, rng: np.random.Generator) -> State:
        """Draw a state at rest in which nothing overlaps: pymunk would throw overlapping shapes apart."""
        while True:
            agent, block = rng.integers(50, 450, 2), rng.integers(100, 400, 2)
            angle = (rng.normal() * TAU - math.pi) % TAU
            start = np.array([*agent, *block, angle, 0.0, 0.0])
            outline = _placed(OUTLINE, start[2:4], angle)
            inside = outline.min() > LOW + WALL_RADIUS and outline.max() < HIGH - WALL_RADIUS
            if inside and clearance(start) > 0:
                return start

    def sample_problem(self, seed: int) -> Problem:
        """Make the problem of this seed: 25 actions of the data policy lead from start to goal."""
        rng, scratch = problem_rng(seed), PushT()
        steps = PROBLEM_ACTIONS * self.frameskip
        while True:
            policy, states = self.policy(rng), [self.sample_start(rng)]
            scratch.set_state(states[0])
            first = int(rng.integers(self.episode_length - steps))
            while len(states) <= first + steps and not scratch.spoilt():
                scratch.advance(policy(states[-1]))
                states.append(scratch.state())
            if not scratch.spoilt() and not self.success(states[first], states[-1]):
                return Problem(start=states[first], goal=states[-1])

    def block_must_move(self, problem: Problem) -> bool:
        """Tell whether no motion of the agent alone can solve this problem."""
        moved = math.dist(problem.start[2:4], problem.goal[2:4])
        return moved > POSITION_TOLERANCE or _turn(problem.start[4], problem.goal[4]) > ANGLE_TOLERANCE

    def distance(self, state: State, goal: State) -> float:
        """Return the distance over the positions of agent and block together."""
        return math.dist(state[:4], goal[:4])

    def path_left(self, state: State, goal: State) -> float:
        """Return what is left to do, in tolerances: the block's way above all, then the agent's.

        Until the block is home, the agent is needed behind it, as seen from the block's goal: a sum of both
        distances to the goal would hold an agent that is home there, with the block left where it is.
        """
        turn = _turn(state[4], goal[4]) / ANGLE_TOLERANCE
        block = math.hypot(math.dist(state[2:4], goal[2:4]) / POSITION_TOLERANCE, turn)
        if block < HOME:
            return BLOCK_WEIGHT * block + math.dist(state[:2], goal[:2]) / POSITION_TOLERANCE
        (here,), (there,) = (_placed(np.array([BLOCK_COG]), pose[2:4], pose[4]) for pose in (state, goal))
        way, from_block = math.dist(here, there), math.dist(state[:2], here)
        if way < TURN_ONLY:
            approach = max(from_block - PUSH_FROM, 0)
        else:
            behind = here - PUSH_FROM * (there - here) / way
            approach = max(math.dist(state[:2], behind) - PUSH_SPREAD, 0)
        return FAR_FROM_HOME + BLOCK_WEIGHT * block + APPROACH_WEIGHT * approach / POSITION_TOLERANCE

    def success(self, state: State, goal: State) -> bool:
        """Tell whether positions are within 20 of the goal and the angle is within pi / 9."""
        near = self.distance(state, goal) < POSITION_TOLERANCE
        return near and _turn(state[4], goal[4]) < ANGLE_TOLERANCE

    def policy(self, rng: np.random.Generator) -> Policy:
        """Return a behaviour that walks around the block, pushes it, and now and then wanders."""
        behaviour = _behaviour(rng)
        next(behaviour)
        return behaviour.send


def clearance(state: State) -> float:
    """Return the gap between agent and block, negative where they overlap."""
    dx, dy = state[0] - state[2], state[1] - state[3]
    cos, sin = math.cos(state[4]), math.sin(state[4])
    x, y = cos * dx + sin * dy, cos * dy - sin * dx
    boxes = ((*box[0], *box[2]) for box in (BAR, STEM))
    gaps = [math.hypot(max(x0 - x, 0, x - x1), max(y0 - y, 0, y - y1)) for x0, y0, x1, y1 in boxes]
    return min(gaps) - AGENT_RADIUS


def _simulation(state: State) -> tuple[pymunk.Space, pymunk.Body, pymunk.Body]:
    """Return a new space in this state, its agent and its block."""
    x, y, block_x, block_y, angle, vx, vy = state.tolist()
    space = pymunk.Space()
    space.damping = 0
    walls = [pymunk.Segment(space.static_body, ARENA[i - 1], ARENA[i], WALL_RADIUS) for i in range(4)]
    agent = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
    agent.position, agent.velocity = (x, y), (vx, vy)
    block = pymunk.Body(BLOCK_MASS, BLOCK_MOMENT)
    block.center_of_gravity = BLOCK_COG
    block.angle = angle  # before the position, which pymunk keeps as that of the centre of gravity
    block.position = block_x, block_y
    boxes = [pymunk.Poly(block, box) for box in (BAR, STEM)]
    space.add(agent, block, *walls, pymunk.Circle(agent, AGENT_RADIUS), *boxes)
    return space, agent, block


def _grown(box: Box, by: float) -> Points:
    """Return the corners of an upright box whose sides have moved outwards."""
    corners = np.array(box)
    return corners + by * np.sign(corners - corners.mean(axis=0))


def _placed(points: Points, position: Point, angle: float) -> Points:
    """Return points of the block's frame in the frame of the window."""
    cos, sin = math.cos(angle), math.sin(angle)
    return points @ np.array([(cos, sin), (-sin, cos)]) + position


def _turn(angle: float, other: float) -> float:
    """Return by how much two angles differ, at most pi."""
    return abs(math.remainder(angle - other, TAU))


def _background() -> Image:
    """Draw what never moves: the walls and the T-shaped mark."""
    image = np.full((IMAGE_SIZE, IMAGE_SIZE, 3), WHITE, dtype=np.uint8)
    _fill(image, _pixels(_grown(ARENA, WALL_RADIUS - BLEED)), LIGHT_GRAY)
    _fill(image, _pixels(_grown(ARENA, -WALL_RADIUS - BLEED)), WHITE)
    *position, angle = MARK_POSE
    whole_stem = ((-15.0, 0.0), (15.0, 0.0), *STEM[2:])  # through the bar, so that no seam shows
    for box in (BAR, whole_stem):
        _fill(image, _pixels(_placed(_grown(box, -BLEED), np.array(position), angle)), LIGHT_GREEN)
    return image


def _pixels(points: Points) -> Pixels:
    """Return window coordinates as OpenCV's fixed-point pixels; what is far out of sight stays so."""
    seen = points.clip(-4 * WINDOW, 4 * WINDOW)
    pixels: Pixels = np.rint(((seen + 0.5) * SCALE - 0.5) * 2**SHIFT).astype(np.int32)
    return pixels


def _fill(image: Image, corners: Pixels, colour: Colour) -> None:
    """Draw a filled convex polygon."""
    cv2.fillConvexPoly(image, corners, colour, cv2.LINE_AA, SHIFT)


def _fill_disc(image: Image, centre: Pixels, radius: float, colour: Colour) -> None:
    """Draw a filled disc."""
    size = round((radius - BLEED) * SCALE * 2**SHIFT)
    cv2.circle(image, centre[0].tolist(), size, colour, cv2.FILLED, cv2.LINE_AA, SHIFT)


def _behaviour(rng: np.random.Generator) -> Behaviour:
    """Act for ever: receive states, yield actions. The first action answers no state and is not used."""
    state = yield np.zeros(2)
    while True:
        if rng.random() < WANDER_SHARE:
            state = yield from _wander(rng, state)
        stand, heading, length = _chosen_push(rng, state)
        state = yield from _approach(rng, state, stand)
        state = yield from _push(rng, state, heading, length)


def _wander(rng: np.random.Generator, state: State) -> Behaviour:
    """Go to a random point, whatever is in the way."""
    aim, speed = rng.uniform(*REACH, 2), rng.uniform(*SPEED)
    for _ in range(LEG_STEPS):
        if math.dist(state[:2], aim) < ARRIVED:
            break
        state = yield _action_towards(rng, state, aim, speed)
    return state


def _approach(rng: np.random.Generator, state: State, stand: Point) -> Behaviour:
    """Go around the block to a point of its frame."""
    speed = rng.uniform(*SPEED)
    for _ in range(LEG_STEPS):
        way = _way_around(stand, state)
        if len(way) == 1 and math.dist(state[:2], way[0]) < ARRIVED:
            break
        state = yield _action_towards(rng, state, way[0], speed)
    return state


def _push(rng: np.random.Generator, state: State, heading: float, length: float) -> Behaviour:
    """Go straight for a length, in a direction of the block's frame."""
    direction = np.array([math.cos(state[4] + heading), math.sin(state[4] + heading)])
    origin, speed = state[:2].copy(), rng.uniform(*SPEED)
    for _ in range(LEG_STEPS):
        if (state[:2] - origin) @ direction > length or clearance(state) > LOST:
            break
        state = yield _action_towards(rng, state, state[:2] + WINDOW * direction, speed)
    return state


def _chosen_push(rng: np.random.Generator, state: State) -> tuple[Point, float, float]:
    """Choose where to stand and which way to push, in the block's frame, and how far.

    Beside a random point of the outline, nearer ones more often; drawn again if the way there leaves the
    arena or the push would carry the block to a wall, which is where an agent that never yields jams it.
    """
    edges = np.roll(OUTLINE, -1, axis=0) - OUTLINE
    lengths = np.linalg.norm(edges, axis=1)
    for _ in range(PUSH_TRIES):
        side = rng.choice(len(edges), p=lengths / lengths.sum())
        inward = math.atan2(edges[side, 1], edges[side, 0]) + math.pi / 2
        contact = OUTLINE[side] + rng.random() * edges[side]
        stand = contact - STAND_OFF * np.array([math.cos(inward), math.sin(inward)])
        heading, length = inward + rng.normal(0, PUSH_SLANT), rng.uniform(*PUSH_LENGTH)
        pushed = np.array([BLOCK_COG]) + length * np.array([math.cos(heading), math.sin(heading)])
        way, (end,) = _way_around(stand, state), _placed(pushed, state[2:4], state[4])
        if _within(REACH, way) and _within(PUSH_RANGE, end) and len(way) <= rng.integers(1, 7):
            break
    return stand, heading, length


def _way_around(stand: Point, state: State) -> Points:
    """Return the way to a point of the block's frame: the shorter way along a ring, then inwards."""
    centre, aim = _placed(np.array([BLOCK_COG, stand]), state[2:4], state[4])
    (x, y), (aim_x, aim_y) = state[:2] - centre, aim - centre
    bearing = math.atan2(y, x)
    turn = math.remainder(math.atan2(aim_y, aim_x) - bearing, TAU)
    legs = 1 + int(abs(turn) / 0.5)  # of half a radian at most
    first = 0 if legs > 1 and math.hypot(x, y) < 0.9 * RING else 1  # from within the ring, back off to it
    bearings = bearing + turn / legs * np.arange(first, legs)
    ring = centre + RING * np.stack([np.cos(bearings), np.sin(bearings)], axis=1)
    return np.concatenate([ring, aim[None]])


def _within(limits: tuple[float, float], places: np.ndarray) -> bool:
    """Tell whether all coordinates are between the limits."""
    return bool(limits[0] <= places.min() and places.max() <= limits[1])


def _action_towards(rng: np.random.Generator, state: State, aim: Point, speed: float) -> Action:
    """Return a noisy action towards a point, shorter than `speed` only where that would overshoot."""
    agent, length = state[:2], ACTION_SCALE * speed
    reach = length / max(math.dist(aim, agent), length)
    target = agent + reach * (aim - agent) + rng.normal(0, ACTION_SCALE * SHAKE, 2)
    return ((target.clip(*REACH) - agent) / ACTION_SCALE).clip(-1.0, 1.0)
