from pathlib import Path

import numpy as np
import pytest

from scope_wm.data.play import GAP, LABEL_WIDTH, MARGIN
from scope_wm.planning.models import observe_states
from scope_wm.report.bank_paths import PLACES, draw_bank, drawn, path
from scope_wm.report.evaluated import read_evaluations
from scope_wm.report.plan_video import AMBER, BLUE
from scope_wm.report.replay import replay
from scope_wm.report.sheet import HEADING
from scope_wm.tasks import TASKS

# Two states of each task that differ in where the agent is.
STATES = {
    "wall": ([15.0, 20.0], [50.0, 50.0]),
    "push_t": ([100.0, 120.0, 350.0, 300.0, 0.5, 0.0, 0.0], [420.0, 100.0, 350.0, 300.0, 0.5, 0.0, 0.0]),
    "point_maze": ([0.8, 1.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_agent_is_drawn_where_its_path_begins(name: str) -> None:
    states = [np.array(state) for state in STATES[name]]
    first, second = observe_states(TASKS[name](), states).images.astype(int)
    rows, columns = np.nonzero(np.abs(first - second).sum(-1) > 60)
    for state in states:
        x, y = PLACES[name](state)
        near = np.hypot(rows - y, columns - x) < 40
        assert np.hypot(rows[near].mean() - y, columns[near].mean() - x) < 0.7


def test_a_path_is_what_the_simulator_does() -> None:
    task = TASKS["wall"]()
    points = path(task, np.array([15.0, 20.0]), np.array([[1.0, 0.0], [0.0, 1.5]]))
    scale = 224 / 65  # a step is twice the action
    np.testing.assert_allclose(np.diff(points, axis=0), [[2 * scale, 0], [0, 3 * scale]])
    blocked = path(task, np.array([15.0, 20.0]), np.tile([2.0, 0.0], (8, 1)))
    assert blocked[-1, 0] < 29 * scale  # the wall is in the way


def test_a_path_is_drawn_from_end_to_end() -> None:
    white = np.full((224, 224, 3), 255, np.uint8)
    picture = drawn(white, np.array([[10.0, 50.0], [100.0, 50.0]]), BLUE, 2)
    assert (picture[50, 10:100] == BLUE).all()
    assert (picture[80:] == 255).all()
    assert (white == 255).all()


def test_the_picture_shows_bank_and_deed_over_every_step_and_the_goal(tiny_run: Path) -> None:
    shown = replay(read_evaluations([tiny_run])[1], 0)
    assert shown.bank is not None
    canvas = draw_bank(shown, shown.bank)
    steps, problem, place = shown.outcome.steps, shown.outcome.problem, PLACES["wall"]
    states = [problem.start, *(step.state for step in steps)]
    for column, state in enumerate(states[: len(steps)]):
        cell = panel(canvas, column)
        x, y = place(states[column + 1]).round().astype(int)
        assert tuple(cell[y, x]) == BLUE  # where the step has led
        assert (cell == AMBER).all(-1).sum() > 20
        assert not np.array_equal(cell, observe_states(shown.task, [state]).images[0])
    goal = observe_states(shown.task, [problem.goal]).images[0]
    np.testing.assert_array_equal(panel(canvas, len(steps)), goal)


def panel(canvas: np.ndarray, column: int) -> np.ndarray:
    left, top = MARGIN + LABEL_WIDTH + column * (224 + GAP), MARGIN + HEADING
    return canvas[top : top + 224, left : left + 224]
