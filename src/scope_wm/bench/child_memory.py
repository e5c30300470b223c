"""The peak memory of a piece of work in a process that has done nothing else: above its size before."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from scope_wm.data.workers import run_in_processes
from scope_wm.evaluate.memory import PeakMemory

Prepare = Callable[[Any], Callable[[], object]]


class ChildWork(NamedTuple):
    """What a process does: `prepare` makes, from its job, the work whose peak counts."""

    prepare: Prepare
    job: Any
    threads: int


def peak_memory(prepare: Prepare, job: object, threads: int) -> int | None:
    """Return the peak in bytes, or None where the system does not tell."""
    peaks: list[int | None] = []
    run_in_processes(measure, [ChildWork(prepare, job, threads)], peaks.append)
    return peaks[0]


def measure(child: ChildWork, report: Callable[[int | None], None]) -> None:
    """Prepare the work, do it, and report the peak."""
    torch.set_num_threads(child.threads)
    work = child.prepare(child.job)
    memory = PeakMemory(torch.device("cpu"))
    memory.restart()
    work()
    report(memory.peak())
