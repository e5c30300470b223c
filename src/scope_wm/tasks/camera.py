"""The camera above the table of Rope and Granular, and what it sees of the empty table.

A pinhole at (6, 10, -6), turned by 135 degrees about the vertical y axis and tilted down by 45, with a field
of view of 45 degrees. With r, u and f the directions to its right, up and forward, a point p is seen at

    (112, 112) + 112 / tan(22.5°) * (r·(p - c), -u·(p - c)) / f·(p - c)

in pixels from the image's upper left corner. Frames are drawn on a canvas of 4 x 4 sub-pixels and averaged.
"""

from functools import cache

import cv2
import numpy as np
from jaxtyping import Float64, Int32, UInt8

from scope_wm.tasks.table import TABLE_HALF, TABLE_TOP
from scope_wm.types import IMAGE_SIZE, Image

POSITION = np.array([6.0, 10.0, -6.0])
YAW, PITCH, FIELD_OF_VIEW = np.radians([135.0, -45.0, 45.0])
FORWARD = np.array([-np.sin(YAW) * np.cos(PITCH), np.sin(PITCH), -np.cos(YAW) * np.cos(PITCH)])
RIGHT = np.array([np.cos(YAW), 0.0, -np.sin(YAW)])
UP = np.cross(RIGHT, FORWARD)
FOCAL = IMAGE_SIZE / 2 / np.tan(FIELD_OF_VIEW / 2)

SUPERSAMPLING = 4
SHIFT = 4  # OpenCV's fixed-point numbers count sixteenths of a sub-pixel

BACKGROUND, TABLE = (226, 231, 236), (160, 160, 160)
LEFT_SIDE, RIGHT_SIDE = (96, 96, 98), (122, 122, 124)
SHADOW = (118, 118, 118)
SHADOW_SLANT = np.array([-0.45, -1.0, -0.2])  # where a shadow falls, per unit of height above the table

Canvas = UInt8[np.ndarray, "896 896 3"]


def depth(points: Float64[np.ndarray, "*shape 3"]) -> Float64[np.ndarray, "*shape"]:
    """Return how far in front of the camera points of the world are."""
    return (points - POSITION) @ FORWARD


def project(points: Float64[np.ndarray, "*shape 3"]) -> Float64[np.ndarray, "*shape 2"]:
    """Return where points of the world are seen, in pixels of the image."""
    offset = points - POSITION
    across, down = offset @ RIGHT, -(offset @ UP)
    return IMAGE_SIZE / 2 + FOCAL * np.stack([across, down], axis=-1) / depth(points)[..., None]


def shadow(points: Float64[np.ndarray, "*shape 3"]) -> Float64[np.ndarray, "*shape 3"]:
    """Return where the shadows of points fall on the table."""
    return points + (points[..., 1:2] - TABLE_TOP) * SHADOW_SLANT


def on_canvas(pixels: Float64[np.ndarray, "*shape 2"]) -> Int32[np.ndarray, "*shape 2"]:
    """Return pixels as OpenCV's fixed-point numbers, which count from the middle of the first sub-pixel."""
    return np.rint((pixels * SUPERSAMPLING - 0.5) * 2**SHIFT).astype(np.int32)


def fill(canvas: Canvas, points: Int32[np.ndarray, "points 2"], colour: tuple[int, int, int]) -> None:
    """Paint the convex hull of points on the canvas."""
    cv2.fillConvexPoly(canvas, cv2.convexHull(points), colour, cv2.LINE_AA, SHIFT)


def to_image(canvas: Canvas) -> Image:
    """Average the sub-pixels of every pixel."""
    return cv2.resize(canvas, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_AREA)


def empty_table() -> Canvas:
    """Return a fresh picture of the empty table to draw on."""
    return _empty_table().copy()


@cache
def _empty_table() -> Canvas:
    side = IMAGE_SIZE * SUPERSAMPLING
    canvas = np.full((side, side, 3), BACKGROUND, np.uint8)
    faces = {
        TABLE: [(-1, 1, -1), (1, 1, -1), (1, 1, 1), (-1, 1, 1)],
        LEFT_SIDE: [(1, 1, -1), (1, 1, 1), (1, -1, 1), (1, -1, -1)],
        RIGHT_SIDE: [(1, 1, -1), (-1, 1, -1), (-1, -1, -1), (1, -1, -1)],
    }
    for colour, corners in faces.items():
        fill(canvas, on_canvas(project(TABLE_HALF * corners)), colour)
    return canvas
