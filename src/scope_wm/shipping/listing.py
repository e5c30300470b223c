"""`scope-wm models`: what ships with the package, on one screen."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from scope_wm.model.checkpoint import read_header
from scope_wm.model.shipped import shipped_models
from scope_wm.shipping.card import planner_text
from scope_wm.shipping.record import Result, read_record

COLUMNS = ("name", "task", "K", "parameters", "size", "results")


@dataclass(frozen=True, kw_only=True)
class ModelsSettings:
    """List the models that ship with the package; every --model takes their names.

    Example: scope-wm models
    """


def models(settings: ModelsSettings) -> None:
    """Print the list."""
    del settings
    found = shipped_models()
    if not found:
        print("no models ship with this version")
        return
    table = Table(*COLUMNS, box=None, padding=(0, 2, 0, 0))
    for name, directory in found.items():
        table.add_row(*row(name, directory))
    Console().print(table)


def row(name: str, directory: Path) -> tuple[str, ...]:
    """Return the cells of one model."""
    _, config = read_header(directory)
    record = read_record(directory)
    size = sum(file.stat().st_size for file in directory.iterdir())
    results = "\n".join(map(result_text, record.results)) or "not evaluated"
    return name, config.task, str(config.selector.k), f"{record.parameters:,}", decimal(size), results


def result_text(result: Result) -> str:
    """Return one evaluation in a few words; a task without a rule of success has distances."""
    count = f"{'the first ' if result.instances < result.all_of else ''}{result.instances}"
    if result.solved is None:
        share = f"distance {result.start_distance:.3g} to {result.final_distance:.3g} in {count}"
    else:
        share = f"{result.solved} of {count} solved"
    return f"{share}, {planner_text(result)}"
