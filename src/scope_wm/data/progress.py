"""Progress of a long job, with rate and time left: a bar in a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import rich.progress
from rich.console import Console

LINE_SECONDS = 10.0


@contextmanager
def progress(unit: str, total: int, done: int) -> Iterator[Callable[[], None]]:
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

    def advance() -> None:
        nonlocal now, last_line
        now += 1
        bar.update(shown, completed=now, description=status())
        if not console.is_terminal and time.monotonic() - last_line > LINE_SECONDS:
            last_line = time.monotonic()
            print(status(), file=console.file, flush=True)

    with bar:
        shown = bar.add_task(status(), total=total, completed=done)
        yield advance
