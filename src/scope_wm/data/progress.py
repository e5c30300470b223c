"""Progress of a long job, with rate and time left: a bar in a terminal, elsewhere a line now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import rich.progress
from rich.console import Console

LINE_SECONDS = 10.0


class Advance(Protocol):
    """Tell that one more unit is finished, and what to say of it."""

    def __call__(self, *, note: str = "") -> None:
        """Show it."""
        ...


@contextmanager
def progress(unit: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Yield a function to call after each finished unit of a job of which some may be done already."""
    console = Console(stderr=True)
    began = last_line = time.monotonic()
    now = done

    def status() -> str:
        elapsed = time.monotonic() - began
        if now == done:
            return f"{now}/{total} {unit}"
        left = timedelta(seconds=round((total - now) * elapsed / (now - done)))
        return f"{now}/{total} {unit}, {(now - done) / elapsed:.1f}/s, {left} left"

    bar = rich.progress.Progress(
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
    )

    def advance(*, note: str = "") -> None:
        nonlocal now, last_line
        now += 1
        shown_status = f"{status()}, {note}" if note else status()
        bar.update(shown, completed=now, description=shown_status)
        if not console.is_terminal and time.monotonic() - last_line > LINE_SECONDS:
            last_line = time.monotonic()
            print(shown_status, file=console.file, flush=True)

    with bar:
        shown = bar.add_task(status(), total=total, completed=done)
        yield advance
