"""A picture of the elite bank: its action sequences as paths over the image, from where every step begins.

A path is where the simulator takes the agent with a sequence; the model had to guess that. Amber: the bank,
which the first step filled. Blue: what was executed. Only for tasks whose agent is a point in the image.
"""

from collections.abc import Callable

import cv2
import numpy as np
from jaxtyping import Float64

from scope_wm.data.play import Picture
from scope_wm.planning.models import observe_states
from scope_wm.report.plan_video import AMBER, BLUE, Colour
from scope_wm.report.replay import Replay, Sequences
from scope_wm.report.sheet import Cell, sheet
from scope_wm.tasks import point_maze, push_t, wall
from scope_wm.tasks.task import Task
from scope_wm.types import IMAGE_SIZE, Image, State

STEPS = 4  # shown at most
SHIFT = 4  # OpenCV's fixed-point numbers count sixteenths of a pixel
WHITE = (255, 255, 255)

Actions = Float64[np.ndarray, "steps action"]
Point = Float64[np.ndarray, "2"]
Points = Float64[np.ndarray, "points 2"]

# Where the agent is in the image, in pixels from the middle of the first one.
PLACES: dict[str, Callable[[State], Point]] = {
    "wall": lambda state: (state + 0.5) * IMAGE_SIZE / wall.WORLD_SIZE - 0.5,
    "push_t": lambda state: (state[:2] + 0.5) * push_t.SCALE - 0.5,
    "point_maze": lambda state: (
        (state[:2] + point_maze.ORIGIN - point_maze.CENTRE) * point_maze.FOCAL / point_maze.CAMERA_HEIGHT
        + IMAGE_SIZE / 2
        - 0.5
    ),
}


def draw_bank(shown: Replay, bank: Sequences) -> Picture:
    """Draw the bank over the first steps of a problem, and its goal."""
    task, outcome = shown.task, shown.outcome
    sequences = shown.model.task_actions(bank)
    titles, cells, state = [], [], outcome.problem.start
    for number, step in enumerate(outcome.steps[:STEPS], 1):
        picture = observe_states(task, [state]).images[0]
        for actions in sequences:
            picture = drawn(picture, path(task, state, actions), AMBER, 1)
        executed = path(task, state, step.actions)
        picture = drawn(drawn(picture, executed, WHITE, 4), executed, BLUE, 2)
        titles.append(f"step {number}")
        cells.append(Cell(picture, f"distance {task.distance(state, outcome.problem.goal):.3g}"))
        state = step.state
    goal = observe_states(task, [outcome.problem.goal]).images[0]
    return sheet([*titles, "goal"], {f"instance {shown.instance}": [*cells, Cell(goal)]})


def path(task: Task, state: State, actions: Actions) -> Points:
    """Return where the agent is in the image, before and after every action."""
    place = PLACES[task.name]
    task.set_state(state)
    points = [place(task.state())]
    for action in actions:
        task.advance(action)
        points.append(place(task.state()))
    return np.stack(points)


def drawn(picture: Image, points: Points, colour: Colour, thickness: int) -> Image:
    """Draw a path with a dot at its end."""
    fixed, copy = np.rint(points * 2**SHIFT).astype(np.int32), picture.copy()
    cv2.polylines(copy, [fixed], False, colour, thickness, cv2.LINE_AA, SHIFT)
    radius = (thickness + 1) * 2**SHIFT
    return cv2.circle(copy, fixed[-1].tolist(), radius, colour, cv2.FILLED, cv2.LINE_AA, SHIFT)
