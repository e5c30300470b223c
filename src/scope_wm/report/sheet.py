"""A sheet of pictures: a title above every column, a label before every row, a note below every picture."""

import io
from typing import Any, NamedTuple

import imageio.v3 as iio
import numpy as np
from matplotlib.figure import Figure
from PIL import Image as Canvas

from scope_wm.data.play import GAP, LABEL_WIDTH, MARGIN, NAME_SIZE, PAPER, Picture, place, write
from scope_wm.types import IMAGE_SIZE, Image

ROW = IMAGE_SIZE + 2 * NAME_SIZE
HEADING = NAME_SIZE + GAP


class Cell(NamedTuple):
    """A picture, and what is to be said of it."""

    picture: Image
    note: str = ""


def sheet(titles: list[str], rows: dict[str, list[Cell]]) -> Picture:
    """Place the pictures, one row for every label."""
    first = MARGIN + LABEL_WIDTH
    width = first + len(titles) * (IMAGE_SIZE + GAP) - GAP + MARGIN
    canvas = Canvas.new("RGB", (width, MARGIN + HEADING + len(rows) * ROW), PAPER)
    for column, title in enumerate(titles):
        middle = first + column * (IMAGE_SIZE + GAP) + IMAGE_SIZE // 2
        write(canvas, (middle, MARGIN), title, "ma", note=True)
        for row, cells in enumerate(rows.values()):
            top = MARGIN + HEADING + row * ROW
            place(canvas, cells[column].picture, middle - IMAGE_SIZE // 2, top)
            write(canvas, (middle, top + IMAGE_SIZE + GAP), cells[column].note, "ma", note=True)
    for row, label in enumerate(rows):
        write(canvas, (MARGIN, MARGIN + HEADING + row * ROW + IMAGE_SIZE // 2), label, "lm")
    return np.array(canvas)


def png(picture: Picture) -> bytes:
    """Return a picture as the content of a PNG file."""
    return iio.imwrite("<bytes>", picture, extension=".png", optimize=True)


def figure_bytes(figure: Figure, **options: Any) -> bytes:
    """Return a figure as the content of a file; the options are those of `savefig`."""
    content = io.BytesIO()
    figure.savefig(content, **options)
    return content.getvalue()
