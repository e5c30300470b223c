import os
import signal
from pathlib import Path

import pytest

from scope_wm.data.workers import Report, run_in_processes, usable_cores

ROOT = Path(__file__).parents[2]


def end(how: str, report: Report) -> None:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError(how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", "killed by signal 9, perhaps for want of memory"),
        ("failed", "exit code 1: its error is above"),
    ],
)
def test_how_a_worker_ended_is_told(how: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)  # where the worker finds what it is to do
    with pytest.raises(ChildProcessError, match=message):
        run_in_processes(end, [how], lambda _: None)


def test_cores_are_those_that_the_process_was_given() -> None:
    given = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(given)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, given)
    assert usable_cores() == len(given)
