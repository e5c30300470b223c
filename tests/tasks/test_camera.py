"""The camera above the table against hand calculation, and the empty table as it sees it."""

import math

import numpy as np
import pytest

from scope_wm.tasks import camera

FOCAL = 112 * (1 + math.sqrt(2))  # tan(22.5 degrees) = sqrt(2) - 1


@pytest.mark.parametrize(
    ("point", "pixel"),
    [
        # The line of sight falls by 9.5 over 9.5 of level ground: 9.5 / sqrt(2) along each of -x and z.
        ((6 - 9.5 / math.sqrt(2), 0.5, -6 + 9.5 / math.sqrt(2)), (112.0, 112.0)),
        # (0, 0.5, 0) is (-6, -9.5, 6) from the camera: 12.717514 forward, 0.717514 down, nothing to the side.
        ((0.0, 0.5, 0.0), (112.0, 112 + FOCAL * 0.7175144 / 12.7175144)),
        # (3.5, 0.5, 4.5) is (-2.5, -9.5, 10.5) from it: 13.217514 forward, 0.217514 down, 5.656854 left.
        ((3.5, 0.5, 4.5), (112 - FOCAL * 5.6568542 / 13.2175144, 112 + FOCAL * 0.2175144 / 13.2175144)),
    ],
)
def test_points_are_seen_where_a_hand_calculation_puts_them(
    point: tuple[float, float, float], pixel: tuple[float, float]
) -> None:
    np.testing.assert_allclose(camera.project(np.array([point])), [pixel], atol=1e-4)


def test_depth_is_measured_along_the_line_of_sight() -> None:
    assert camera.depth(np.array([[0.0, 0.5, 0.0]])) == pytest.approx(6 + 9.5 / math.sqrt(2))


def test_shadows_lie_on_the_table_and_reach_farther_from_higher_points() -> None:
    points = np.array([[1.0, 0.5, 2.0], [1.0, 0.6, 2.0], [1.0, 0.8, 2.0]])
    cast = camera.shadow(points)
    reach = np.linalg.norm(cast[:, [0, 2]] - points[:, [0, 2]], axis=1)
    np.testing.assert_allclose(cast[:, 1], 0.5)
    np.testing.assert_allclose(reach / reach[1], [0.0, 1.0, 3.0], atol=1e-12)


def test_the_empty_table_is_grey_has_two_darker_sides_and_a_plain_background() -> None:
    image = camera.to_image(camera.empty_table())
    left, right = camera.project(np.array([[3.5, 0.0, 0.0], [0.0, 0.0, -4.5]])).astype(int)
    assert image[112, 112].tolist() == [160, 160, 160]
    assert image[0].std(axis=0).tolist() == [0, 0, 0]
    assert image[0, 0].min() > 200
    assert 80 < image[left[1], left[0]].mean() < image[right[1], right[0]].mean() < 150


def test_drawing_on_a_table_leaves_the_next_one_empty() -> None:
    camera.empty_table()[:] = 0
    assert camera.empty_table().max() > 200
