"""Compare runs with the first of them, instance by instance: success, final distance, plan time.

Runs are paired: an instance is the same problem in all of them. Success is tested with McNemar's exact test,
distances by flipping the signs of their differences. Every run is tested against the first by itself, without
a correction for how many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from scope_wm.evaluate.instances import InstanceRecord
from scope_wm.evaluate.run import Run, read_run, settings_of
from scope_wm.evaluate.statistics import LEVEL, Interval, bootstrap, mcnemar, sign_flips, wilson
from scope_wm.types import UsageError

Records = Sequence[InstanceRecord]
TOLD = {"task", "model", "out", "instances", "problems_from"}  # settings that the table and its names tell


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """Compare finished runs of scope-wm evaluate on the same problems with the first of them.

    Example: scope-wm compare runs/push_t-dense runs/push_t-faster
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """directories of two or more runs"""

    def __post_init__(self) -> None:
        """Refuse what is no comparison."""
        if len(set(self.runs)) < max(2, len(self.runs)):
            raise UsageError(f"expected two or more different runs, got {len(self.runs)}")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How one run differs from the first; a positive difference is a longer distance than the first's."""

    p_success: float | None  # None: the task has no rule of success
    distance_difference: float
    distance_interval: Interval
    p_distance: float
    time_ratio: float

    def cells(self) -> tuple[str, str, str]:
        """Return p-value, difference and ratio as text."""
        low, high = self.distance_interval
        difference = (
            f"{self.distance_difference:+.3g}\n({low:+.3g} to {high:+.3g})\np = {self.p_distance:.3g}"
        )
        p_success = "-" if self.p_success is None else f"{self.p_success:.3g}"
        return p_success, difference, f"{self.time_ratio:.2f}"


def compare(settings: CompareSettings) -> None:
    """Print a table of the runs and what is not significant."""
    runs = [read_run(path) for path in settings.runs]
    paired = pair(runs)
    has_success = runs[0].summary["success"] is not None
    comparisons = [compare_records(paired[0], other, has_success=has_success) for other in paired[1:]]
    console = Console()
    console.print(table(runs, paired, comparisons))
    for run, comparison in zip(runs[1:], comparisons, strict=True):
        console.print(verdict(str(run.path), comparison), highlight=False)
        if found := differences(runs[0], run):
            console.print(f"{run.path}: not as the first: {', '.join(found)}", highlight=False)
    if not all(times_compare(runs[0], run) for run in runs[1:]):
        console.print("* Made on another machine or by other workers: these times do not compare.")


def differences(first: Run, other: Run) -> list[str]:
    """Name the settings and versions in which a run differs from the first."""
    before, after = (settings_of(run.config) | run.config["versions"] for run in (first, other))
    return [
        f"{name} {after.get(name)} (first {before.get(name)})"
        for name in before | after
        if name not in TOLD and before.get(name) != after.get(name)
    ]


def times_compare(first: Run, other: Run) -> bool:
    """Tell whether two runs were made alike, as far as time is concerned.

    If numbers of workers took turns, nobody knows which instance was whose: its times are like no other's.
    """
    ours, theirs = ((run.config["machine"], run.config["settings"]["workers"]) for run in (first, other))
    return first is other or (ours == theirs and isinstance(ours[1], int))


def pair(runs: Sequence[Run]) -> list[list[InstanceRecord]]:
    """Return the records of the instances that all runs have; refuse runs on other problems."""
    first = runs[0]
    common = sorted(set.intersection(*(set(run.records) for run in runs)))  # all have instance 0
    for run in runs[1:]:
        for what in ("task", "data"):
            ours, theirs = (_problem_origin(r)[what] for r in (first, run))
            if ours != theirs:
                raise UsageError(
                    f"expected runs on the same problems: {first.path} is on {what} {ours}, "
                    f"{run.path} on {what} {theirs}"
                )
        for i in common:
            starts = (one.records[i].start_distance for one in (first, run))
            if not isclose(*starts):
                raise UsageError(
                    f"expected runs on the same problems: instance {i} of {run.path} starts elsewhere than "
                    f"that of {first.path}"
                )
    return [[run.records[i] for i in common] for run in runs]


def compare_records(first: Records, other: Records, *, has_success: bool = True) -> Comparison:
    """Compare the records of the same instances."""
    pairs = list(zip(first, other, strict=True))
    only_first = sum(a.success and not b.success for a, b in pairs)
    only_other = sum(b.success and not a.success for a, b in pairs)
    differences = np.array([b.final_distance - a.final_distance for a, b in pairs])
    seconds = [sum(record.plan_seconds for record in records) for records in (first, other)]
    return Comparison(
        p_success=mcnemar(only_first, only_other) if has_success else None,
        distance_difference=float(differences.mean()),
        distance_interval=bootstrap(differences),
        p_distance=sign_flips(differences),
        time_ratio=seconds[1] / seconds[0],
    )


def table(runs: Sequence[Run], paired: Sequence[Records], comparisons: Sequence[Comparison]) -> Table:
    """Return one row for every run."""
    made = Table("run", "success", "p", "distance", "difference", "plan time", "ratio")
    made.columns[0].overflow = "fold"
    made.title = f"{runs[0].config['settings']['task']}, {len(paired[0])} instances"
    has_success = comparisons[0].p_success is not None
    for run, records, comparison in zip(runs, paired, [None, *comparisons], strict=True):
        p, difference, ratio = ("", "", "") if comparison is None else comparison.cells()
        mark = "" if times_compare(runs[0], run) else " *"
        made.add_row(
            str(run.path),
            success_cell(records) if has_success else "-",
            p,
            f"{np.mean([record.final_distance for record in records]):.4g}",
            difference,
            f"{np.mean([record.plan_seconds for record in records]):.2f} s",
            ratio + mark,
        )
    return made


def success_cell(records: Records) -> str:
    """Return the share of successes above its interval."""
    solved = sum(record.success for record in records)
    low, high = wilson(solved, len(records))
    return f"{100 * solved / len(records):.1f} %\n({100 * low:.0f} to {100 * high:.0f} %)"


def verdict(name: str, comparison: Comparison) -> str:
    """Say which differences from the first run are significant at 5 %, and which are not."""
    clear = {"final distance": comparison.p_distance < LEVEL}
    if comparison.p_success is not None:
        clear = {"success": comparison.p_success < LEVEL} | clear
    weak, strong = ([what for what in clear if clear[what] is wanted] for wanted in (False, True))
    parts = {"not significant at 5 %": weak, "significant": strong}
    return f"{name}: " + "; ".join(f"{word}: {', '.join(found)}" for word, found in parts.items() if found)


def _problem_origin(run: Run) -> dict[str, object]:
    return {"task": run.config["settings"]["task"], "data": run.config["data_digest"]}
