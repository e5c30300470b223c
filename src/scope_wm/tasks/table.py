"""The table that Rope and Granular share: what a push is, who pushes when data is collected, and the metric.

Both are planar worlds on pymunk, whose second axis is the world's z; heights never change. There is no
momentum (damping 0, as in Push-T): things move while they are pushed and stay where they are left. One unit
of time is one simulator step, so a collision bias of 0.8 means that each step removes a fifth of an overlap.

A push [x_s, z_s, x_e, z_e] has z negated relative to the particles. The pusher appears at its start, goes
straight to its end and is taken away. The space of pymunk is built for every push from positions alone, so
that no contact cache outlives it. A table at rest stays at rest: the travel before anything can be touched is
skipped, and a push that can touch nothing changes nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pymunk
from jaxtyping import Float64
from numpy.typing import ArrayLike

from scope_wm.tasks.task import Policy, Task, checked
from scope_wm.types import Action, State

Particles = Float64[np.ndarray, "particles 4"]
Points = Float64[np.ndarray, "points 2"]
Point = Float64[np.ndarray, " 2"]

XZ = [0, 2]  # the columns of a particle that lie in the plane
TABLE_HALF = np.array([3.5, 0.5, 4.5])  # half extents; the table is centred on the origin
TABLE_TOP = 0.5
LOWEST, HIGHEST = np.array([-3.5, TABLE_TOP, -4.5]), np.array([3.5, 1.0, 4.5])  # where a particle may be
ACTION_LIMIT = np.array([4.0, 4.0, 1.5, 1.5])

STRIDE = 0.02  # how far the pusher goes in one simulator step
SETTLE_STEPS = 20
COLLISION_BIAS = 0.8  # share of an overlap that one step leaves
COLLISION_SLOP = 0.002  # overlap that is left alone, which keeps resting contacts still
WALL_RADIUS = 1.0  # so thick that nothing is pushed out on the far side

CLEARANCE = 0.2  # of the policy's start from every particle
AIM_RADIUS = 2.0  # around the median, where the policy picks a particle to push
OVERSHOOT = (0.4, 1.0)  # how far past that particle it goes
TRIES = 1000
ANYWHERE = 0.5  # share of pushes that are not aimed, of the policy that mixes


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The part of a push in which the pusher can touch something, in the particles' x and z."""

    begin: Point
    end: Point
    heading: Point


def checked_particles(state: ArrayLike, width: int) -> Particles:
    """Return a state as particles, or say what is wrong with it."""
    particles = checked("state", state, width).reshape(-1, 4)
    outside = ((particles[:, :3] < LOWEST) | (particles[:, :3] > HIGHEST)).any(axis=1)
    if outside.any():
        first = particles[outside][0, :3]
        raise ValueError(f"expected particles on the table, between {LOWEST} and {HIGHEST}, got {first}")
    return particles


def direction(start: Point, end: Point) -> Point:
    """Return the unit vector from start to end, or along x if they are the same."""
    length = np.linalg.norm(end - start)
    return (end - start) / length if length > 0 else np.array([1.0, 0.0])


def sweep(action: ArrayLike, points: Points, reach: tuple[float, float]) -> Sweep | None:
    """Clip a push to its limits and skip its free travel; return None if it can touch no point.

    `reach` is how far from its centre, along and across its way, the pusher can touch a point.
    """
    push = checked("action", action, len(ACTION_LIMIT)).clip(-ACTION_LIMIT, ACTION_LIMIT) * [1, -1, 1, -1]
    start, end = push[:2], push[2:]
    heading = direction(start, end)
    ahead = (points - start) @ heading
    aside = np.abs((points - start) @ [-heading[1], heading[0]])
    met = (aside <= reach[1]) & (ahead >= -reach[0]) & (ahead <= np.linalg.norm(end - start) + reach[0])
    if not met.any():
        return None
    travel = max(0.0, ahead[met].min() - reach[0])
    return Sweep(begin=start + travel * heading, end=end, heading=heading)


def empty_space(iterations: int) -> pymunk.Space:
    """Return a table without momentum, with invisible walls along its edges."""
    space = pymunk.Space()
    space.damping = 0.0
    space.iterations = iterations
    space.collision_bias = COLLISION_BIAS
    space.collision_slop = COLLISION_SLOP
    x, z = TABLE_HALF[XZ] + WALL_RADIUS
    corners = [(-x, -z), (x, -z), (x, z), (-x, z)]
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        space.add(pymunk.Segment(space.static_body, a, b, WALL_RADIUS))
    return space


def drive(space: pymunk.Space, body: pymunk.Body, pusher: pymunk.Shape, path: Sequence[Point]) -> None:
    """Put the pusher down, take it along the path and away, and settle.

    If something is under it where it is put down, it waits at each stop until that has moved out.
    """
    body.position = tuple(path[0])
    under = space.shape_query(pusher)
    space.add(body, pusher)
    for a, b in pairwise(path):
        steps = max(1, math.ceil(np.linalg.norm(b - a) / STRIDE))
        body.velocity = tuple((b - a) / steps)
        for _ in range(steps):
            space.step(1.0)
        if under:
            body.velocity = (0.0, 0.0)
            settle(space)
    space.remove(body, pusher)
    settle(space)


def settle(space: pymunk.Space, steps: int = SETTLE_STEPS) -> None:
    """Let overlaps be pushed apart, each the shortest way."""
    for _ in range(steps):
        space.step(1.0)


def transformed(particles: Particles, scale: float, angle: float, rng: np.random.Generator) -> State:
    """Scale and turn particles about the origin, then move them by ± the same random length along x and z."""
    moved = particles.copy()
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    moved[:, XZ] = particles[:, XZ] @ [[cos, -sin], [sin, cos]]
    moved[:, XZ] += rng.uniform(-1.0, 1.0) * rng.choice([-1.0, 1.0], 2)
    return moved.ravel()


def pushed_state(task: Task, rng: np.random.Generator) -> State:
    """Return a state from anywhere in an episode whose every push is aimed; the task is left in it."""
    task.set_state(task.sample_start(rng))
    act = aimed_pushes(rng)
    for _ in range(rng.integers(task.episode_length)):
        task.advance(act(task.state()))
    return task.state()


def chamfer(a: Particles, b: Float64[np.ndarray, "others 4"]) -> float:
    """Return the mean distance of a particle to the nearest of the other set, summed over both directions."""
    distance = np.linalg.norm(a[:, None, :3] - b[None, :, :3], axis=-1)
    return float(distance.min(axis=0).mean() + distance.min(axis=1).mean())


def half_aimed_pushes(rng: np.random.Generator) -> Policy:
    """Return a behaviour whose pushes are aimed, or go from anywhere to anywhere as those of planners do.

    So a model sees pushes that miss, too.
    """
    aimed = aimed_pushes(rng)

    def act(state: State) -> Action:
        if rng.random() < ANYWHERE:
            return rng.uniform(-ACTION_LIMIT, ACTION_LIMIT)
        return aimed(state)

    return act


def aimed_pushes(rng: np.random.Generator) -> Policy:
    """Return a behaviour that starts clear of everything and pushes through a particle near the median.

    Where a thousand tries give no such push within the limits, it pushes at random.
    """

    def act(state: State) -> Action:
        points = state.reshape(-1, 4)[:, XZ] * [1, -1]
        from_median = np.linalg.norm(points - np.median(points, axis=0), axis=1)
        targets = points[from_median <= max(AIM_RADIUS, from_median.min())]
        for _ in range(TRIES):
            start = rng.uniform(-ACTION_LIMIT[:2], ACTION_LIMIT[:2])
            target = rng.choice(targets)
            end = target + rng.uniform(*OVERSHOOT) * direction(start, target)
            clear = np.linalg.norm(points - start, axis=1).min() > CLEARANCE
            if clear and (np.abs(end) < ACTION_LIMIT[2:]).all():
                return np.concatenate([start, end])
        return rng.uniform(-ACTION_LIMIT, ACTION_LIMIT)

    return act
