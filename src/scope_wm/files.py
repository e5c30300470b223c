"""Files that are either complete under their name or not there at all.

Content is written under a temporary name, synced, renamed, and the directory synced. Whatever goes wrong
before the rename (a kill, a full disk) leaves the old file as it was.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scope_wm.types import UsageError

PARTIAL = ".partial"
# Of every directory that is made: its settings, what was measured meanwhile, its settings until it is done.
CONFIG, METRICS, UNFINISHED = "config.json", "metrics.jsonl", "unfinished.json"


def write_file(path: Path, content: bytes) -> None:
    """Replace a file at once; a failure is an OSError and leaves no temporary file."""
    write_files({path: content})


def write_files(contents: dict[Path, bytes]) -> None:
    """Replace files: all are written before the first is renamed."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}") for path in contents}
    try:
        for path, content in contents.items():
            with temporary[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in contents:
            temporary[path].replace(path)
    except BaseException:
        for partial in temporary.values():
            partial.unlink(missing_ok=True)
        raise
    for directory in {path.parent for path in contents}:
        _sync_directory(directory)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file at once; NaN, which is not JSON, is refused."""
    write_file(path, json_bytes(value))


def json_bytes(value: object) -> bytes:
    """Return the content of a JSON file; NaN, which is not JSON, is refused."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object, or say what is wrong with it."""
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): it is damaged or half copied") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expected an object, got {values!r}")
    return values


def sweep(directory: Path) -> None:
    """Remove what killed processes left half-written."""
    for path in directory.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


def is_unused(directory: Path) -> bool:
    """Tell whether a directory is empty but for what killed processes left half-written."""
    return all(path.match(f".*{PARTIAL}") for path in directory.iterdir())


@contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Keep other processes from writing into a directory; a killed one keeps nobody out."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            told = f"another process is writing into {directory}: wait for it, or stop it"
            raise UsageError(told) from error
        yield
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
