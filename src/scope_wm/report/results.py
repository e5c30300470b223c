"""Finished runs of `evaluate` as a table in Markdown, for a page that is to show them.

python -m scope_wm.report.results docs/results/simulator/*
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from scope_wm.evaluate.run import Run, read_run
from scope_wm.evaluate.summary import way_text

COLUMNS = ("task", "result", "95 % interval", "steps to success", "final distance", "samples")


@dataclass(frozen=True, kw_only=True)
class ResultsSettings:
    """Print finished runs of scope-wm evaluate as a table in Markdown."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """directories of runs"""


def results(settings: ResultsSettings) -> None:
    """Print the table."""
    print(markdown([read_run(path) for path in settings.runs]))


def markdown(runs: list[Run]) -> str:
    """Return the table: a row for every run, and one for the Push-T problems whose block must move."""
    rows = []
    for run in runs:
        task, summary = run.config["settings"]["task"], run.summary
        rows.append(row(task, summary["success"], summary))
        if summary["success_block_must_move"] is not None:
            rows.append(row(f"{task}, block must move", summary["success_block_must_move"], None))
    return table(COLUMNS, rows)


def table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return rows of cells in Markdown, the first column left-aligned and the others right."""
    lines = [columns, ("---", *["---:"] * (len(columns) - 1)), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def row(name: str, success: dict[str, Any] | None, summary: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a row; a part of a run has nothing but its success.

    A task without a rule of success has the share of the way that was made as its result.
    """
    result = interval = steps = "-"
    if success is not None:
        low, high = (100 * end for end in success["interval"])
        result = f"{success['solved']} of {success['instances']}"
        interval = f"{low:.1f} to {high:.1f} %"
    elif summary is not None:
        low, high = summary["final_distance_interval"]
        result = way_text(summary["way_made"])
        interval = f"distance {low:.3g} to {high:.3g}"
    if summary is None:
        return name, result, interval, "", "", ""
    if summary["mean_steps_to_success"] is not None:
        steps = f"{summary['mean_steps_to_success']:.2f}"
    distance, samples = summary["mean_final_distance"], summary["mean_samples"]
    return name, result, interval, steps, f"{distance:.3g}", f"{samples:.0f}"


if __name__ == "__main__":
    results(tyro.cli(ResultsSettings))
