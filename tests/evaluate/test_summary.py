"""The share of the way that was made, where there is no rule of success."""

import pytest

from scope_wm.evaluate.instances import InstanceRecord
from scope_wm.evaluate.summary import way_made, way_text


def record(start: float, final: float, least: float | None = 0.0) -> InstanceRecord:
    """Return an instance that went from one distance to another."""
    return InstanceRecord(
        instance=0,
        seed=1,
        success=False,
        steps=7,
        start_distance=start,
        final_distance=final,
        path_left=final,
        plan_seconds=1.0,
        samples=100,
        peak_memory=None,
        least_distance=least,
    )


def test_the_way_is_a_ratio_of_mean_distances() -> None:
    assert way_made([record(4.0, 1.0), record(2.0, 2.0)]) == pytest.approx(3 / 6)
    assert way_made([record(4.0, 2.0, least=1.0), record(2.0, 2.0, least=1.0)]) == pytest.approx(2 / 4)
    assert way_made([record(2.0, 3.0)]) == pytest.approx(-0.5)


def test_there_is_no_way_where_nothing_can_come_nearer() -> None:
    assert way_made([record(1.0, 1.0, least=1.0)]) is None
    assert way_made([record(2.0, 1.0), record(2.0, 1.0, least=None)]) is None  # of an earlier version
    assert way_text(None) == ""
    assert way_text(0.625) == "62 % of the way"
