import json
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from jaxtyping import Float64

from scope_wm.records import from_json, installed_versions, to_json
from scope_wm.types import UsageError


@dataclass(frozen=True, kw_only=True)
class Part:
    share: float
    colour: tuple[int, float] = (1, 2.0)


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    kind: Literal["big", "small"]
    values: Float64[np.ndarray, " n"]
    part: Part
    parts: list[Part] = field(default_factory=list)
    count: int = 3
    flag: bool = False
    limit: int | None = None
    other: Part | None = None
    span: tuple[float, float] | None = None
    label: str = field(default_factory=lambda: "made")


WHOLE = Whole(
    name="a",
    kind="small",
    values=np.array([0.1, -2.0, 1e-300]),
    part=Part(share=1 / 3),
    parts=[Part(share=0.25), Part(share=0.5, colour=(3, 4.0))],
    limit=5,
    other=Part(share=0.75),
    span=(0.5, 2.0),
    flag=True,
)


def changed(**changes: object) -> dict[str, Any]:
    return json.loads(json.dumps(to_json(WHOLE))) | changes


def test_a_record_comes_back_from_json_as_it_was() -> None:
    text = json.dumps(to_json(WHOLE))
    read = from_json(Whole, json.loads(text), "file")
    np.testing.assert_array_equal(read.values, WHOLE.values)
    assert read.values.dtype == np.float64
    assert read.part == WHOLE.part
    assert read.parts == WHOLE.parts
    assert read.other == WHOLE.other
    assert read.span == WHOLE.span
    assert json.dumps(to_json(read)) == text


def test_defaults_may_be_left_out() -> None:
    read = from_json(Whole, {"name": "a", "kind": "big", "values": [], "part": {"share": 0.5}}, "file")
    assert (read.count, read.flag, read.limit, read.label) == (3, False, None, "made")
    assert read.part.colour == (1, 2.0)


def test_an_int_becomes_the_float_that_is_wanted() -> None:
    share = from_json(Part, {"share": 2}, "file").share
    assert share == 2.0
    assert type(share) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed(extra=1, more=2), "file: unknown ['extra', 'more'], expected only ['count', "),
        ({"name": "a", "part": {"share": 1.0}}, "file: missing ['kind', 'values']"),
        (changed(name=1), "file: name: expected str, got 1"),
        (changed(name=None), "file: name: expected str, got None"),
        (changed(kind="huge"), "file: kind: expected one of ['big', 'small'], got 'huge'"),
        (changed(kind=["big"]), "file: kind: expected one of"),
        (changed(count=1.5), "file: count: expected int, got 1.5"),
        (changed(count=True), "file: count: expected int, got True"),
        (changed(count="3"), "file: count: expected int, got '3'"),
        (changed(flag=1), "file: flag: expected bool, got 1"),
        (changed(limit="5"), "file: limit: expected int | None, got '5'"),
        (changed(span=[1.0]), "file: span: expected tuple[float, float], got [1.0]"),
        (changed(values=1.0), "file: values: expected a list of numbers, got 1.0"),
        (changed(values=None), "file: values: expected a list of numbers, got None"),
        (changed(values=["1"]), "file: values: expected a list of numbers, got ['1']"),
        (changed(values=[[1.0]]), "file: values: expected a list of numbers, got [[1.0]]"),
        (changed(values=[True]), "file: values: expected a list of numbers, got [True]"),
        (changed(values=[float("nan")]), "file: values: expected a list of numbers, got [nan]"),
        (changed(part=3), "file: part: expected an object with the fields of Part, got 3"),
        (changed(part={"share": "a"}), "file: part: share: expected float, got 'a'"),
        (
            changed(part={"share": 1.0, "colour": [1]}),
            "file: part: colour: expected tuple[int, float], got [1]",
        ),
        (changed(part={"share": 1.0, "colour": [1, "b"]}), "file: part: colour: expected float, got 'b'"),
        (changed(parts={"share": 1.0}), "file: parts: expected a list, got {'share': 1.0}"),
        (
            changed(parts=[{"share": 1.0}, 2]),
            "file: parts: expected an object with the fields of Part, got 2",
        ),
        ([], "file: expected an object with the fields of Whole, got []"),
        (None, "file: expected an object with the fields of Whole, got None"),
    ],
)
def test_what_does_not_fit_is_refused_naming_the_place(values: object, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        from_json(Whole, values, "file")
    assert str(refusal.value).startswith(message)


def test_versions_are_those_of_packages_that_are_installed() -> None:
    assert installed_versions(["numpy", "no-such-package"]) == {"numpy": np.__version__}
