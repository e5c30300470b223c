"""How time and memory grow with one size while the others stay: what is measured, and the fitted exponents.

seconds = c * size^e        log seconds = log c + e log size, by least squares
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scope_wm.bench.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """K kept of N tokens, S candidates, L actions, H frames of history."""

    k: int
    s: int
    horizon: int
    history: int
    n: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What imagining takes at one value of one size."""

    axis: str
    value: int
    seconds: float
    memory: int | None  # bytes


@dataclass(frozen=True, kw_only=True)
class ScalingAbout:
    """What was measured, and on what; `chunk` candidates are imagined at a time."""

    task: str
    preset: str
    base: Sizes
    chunk: int
    repeats: int
    machine: Machine


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The exponents of one size; memory's is None where the system does not tell it."""

    axis: str
    seconds: float
    memory: float | None


def growth(measured: Sequence[Measurement]) -> list[Growth]:
    """Fit the exponents of every size."""
    found = []
    for axis in dict.fromkeys(point.axis for point in measured):
        points = [point for point in measured if point.axis == axis]
        values, memory = [p.value for p in points], [p.memory for p in points if p.memory]
        found.append(
            Growth(
                axis=axis,
                seconds=exponent(values, [p.seconds for p in points]),
                memory=exponent(values, memory) if len(memory) == len(points) else None,
            )
        )
    return found


def exponent(values: Sequence[int], results: Sequence[int] | Sequence[float]) -> float:
    """Return the slope of the line through the logarithms."""
    return float(np.polyfit(np.log(values), np.log(results), 1)[0])
