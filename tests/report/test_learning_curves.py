import io

import imageio.v3 as iio
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_wm.report.learning_curves import draw_figures, draw_losses, learning_curves

SPARSE = [
    {"step": 5, "loss": 0.4, "rate": 0.1, "seconds": 1.0},
    {
        "step": 6,
        "loss_held_out": 0.3,
        "one_step_of_copy": 0.7,
        "last_of_copy": 0.9,
        "background_of_copy": 0.8,
    },
    {"step": 10, "loss": 0.2, "rate": 0.0, "seconds": 1.0},
]
SELECTOR = [
    {"step": 4, "KL": 0.5, "recall_98": 0.6, "chance_98": 0.5},
    {"step": 8, "loss": 0.3, "rate": 0.0, "seconds": 1.0},
    {"step": 8, "KL": 0.4, "recall_98": 0.7, "chance_98": 0.5},
]


def axes() -> Axes:
    return Figure().subplots()


def lines(drawn: Axes) -> dict[str, list[tuple[float, float]]]:
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()]
        for line in drawn.get_lines()
    }


def test_losses_are_drawn_at_their_steps() -> None:
    drawn = axes()
    draw_losses(drawn, SPARSE)
    assert lines(drawn) == {"loss": [(5, 0.4), (10, 0.2)], "held out": [(6, 0.3)]}
    assert drawn.get_yscale() == "log"


def test_errors_are_drawn_with_the_line_of_copying() -> None:
    drawn = axes()
    draw_figures(drawn, SPARSE)
    found = lines(drawn)
    assert {name: y for name, ((_, y), *_) in found.items()} == {
        "one step": 0.7,
        "background": 0.8,
        "copying": 1,
    }


def test_recall_is_drawn_with_chance() -> None:
    drawn = axes()
    draw_figures(drawn, SELECTOR)
    assert lines(drawn) == {"recall of the top 98": [(4, 0.6), (8, 0.7)], "chance": [(4, 0.5), (8, 0.5)]}


def test_every_stage_has_a_row() -> None:
    one, two = (
        iio.imread(io.BytesIO(learning_curves(stages)))
        for stages in ({"sparse-k32": SPARSE}, {"sparse-k32": SPARSE, "selector": SELECTOR})
    )
    assert two.shape[:2] == (2 * one.shape[0], one.shape[1])
