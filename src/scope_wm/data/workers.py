"""Work spread over processes that report to the one that started them, and never outlive it.

Processes are spawned, not forked: libraries with threads do not survive a fork. When the parent is killed its
end of the pipe closes, and a worker ends with its next report.
"""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import cv2

Job = TypeVar("Job")
Report = Callable[[Any], None]


def usable_cores() -> int:
    """Return how many cores this process may use, which is not always all; elsewhere than on Linux, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_processes(work: Callable[[Job, Report], None], jobs: Sequence[Job], report: Report) -> None:
    """Do every job in a process of its own and pass on its reports; an OSError of one ends them all."""
    workers: dict[Connection, BaseProcess] = {}
    try:
        for job in jobs:
            receiver, process = _start(work, job)
            workers[receiver] = process
        running = dict(workers)
        while running:
            for ready in wait(running):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except EOFError:
                    _expect_success(running.pop(ready))
                    continue
                if isinstance(message, OSError):
                    raise message
                report(message)
    finally:
        for receiver, process in workers.items():
            process.terminate()
            process.join()
            receiver.close()


def _start(work: Callable[[Job, Report], None], job: Job) -> tuple[Connection, BaseProcess]:
    """Start a worker that leaves Ctrl-C to its parent: blocked signals stay blocked in what is spawned."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_worker, args=(work, job, sender), daemon=True)
    resource_tracker.ensure_running()  # or the first process starts it, which unblocks Ctrl-C again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    sender.close()
    return receiver, process


def _worker(work: Callable[[Job, Report], None], job: Job, sender: Connection) -> None:
    cv2.setNumThreads(1)  # the other cores have workers of their own
    with contextlib.suppress(BrokenPipeError):  # the parent is gone: so is the reason to work
        try:
            work(job, sender.send)
        except BrokenPipeError:
            raise
        except OSError as error:
            sender.send(error)


def _expect_success(process: BaseProcess) -> None:
    process.join()
    code = process.exitcode or 0
    if code < 0:
        raise ChildProcessError(
            f"a worker process was killed by signal {-code}, perhaps for want of memory: try fewer --workers"
        )
    if code > 0:
        raise ChildProcessError(f"a worker process ended with exit code {code}: its error is above")
