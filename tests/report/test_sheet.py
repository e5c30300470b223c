import io

import imageio.v3 as iio
import numpy as np

from scope_wm.report.sheet import Cell, png, sheet


def red(level: int) -> Cell:
    picture = np.zeros((224, 224, 3), np.uint8)
    picture[..., 0] = level
    return Cell(picture)


def corner(canvas: np.ndarray, level: int) -> tuple[int, int]:
    """Return where the picture of a colour begins, after seeing that all of it is there."""
    rows, columns = np.nonzero((canvas == (level, 0, 0)).all(-1))
    assert len(rows) == 224 * 224
    assert np.ptp(rows) == np.ptp(columns) == 223
    return int(rows.min()), int(columns.min())


def test_every_picture_has_its_place_in_the_grid() -> None:
    canvas = sheet(["one", "two"], {"a": [red(100), red(101)], "b": [red(102), red(103)]})
    (top, left), (top_2, right), (bottom, left_2), (bottom_2, right_2) = (
        corner(canvas, level) for level in (100, 101, 102, 103)
    )
    assert (top, left, bottom, right) == (top_2, left_2, bottom_2, right_2)
    assert left < right
    assert top < bottom


def test_a_note_is_written_below_its_picture() -> None:
    plain = sheet(["one", "two"], {"a": [red(100), red(101)]})
    noted = sheet(["one", "two"], {"a": [red(100), Cell(red(101).picture, "half")]})
    rows, columns = np.nonzero((plain != noted).any(-1))
    top, left = corner(noted, 101)
    assert rows.min() >= top + 224
    assert left <= columns.min() <= columns.max() < left + 224


def test_a_png_is_the_picture() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    np.testing.assert_array_equal(iio.imread(io.BytesIO(png(picture))), picture)
