"""The page of all benchmarks: beside it, in a directory of its name, JSON and a plot for each measurement.

The page is made anew from all JSON files that are there, so measurements of several tasks come together.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_wm.bench.plan_page import plan_plot, plan_section
from scope_wm.bench.plan_results import About, Round, Row
from scope_wm.bench.scaling_page import scaling_plot, scaling_section
from scope_wm.bench.scaling_results import Measurement, ScalingAbout
from scope_wm.files import json_bytes, write_file, write_files
from scope_wm.records import from_json, to_json

INTRODUCTION = """# Benchmarks

Made by `scope-wm bench plan` and `scope-wm bench scaling`; do not edit. Models have random weights: time and
memory depend on sizes alone. The JSON files beside the plots hold every round.
"""


def write_plan(page: Path, about: About, rows: Sequence[Row], rounds: Sequence[Round]) -> None:
    """Write the results of one run of `bench plan`, and the page."""
    content = {
        "about": to_json(about),
        "rows": list(map(to_json, rows)),
        "rounds": list(map(to_json, rounds)),
    }
    write_run(page, f"plan-{about.task}-{about.preset}", content, plan_plot(rows))


def write_scaling(page: Path, about: ScalingAbout, measured: Sequence[Measurement]) -> None:
    """Write the results of one run of `bench scaling`, and the page."""
    content = {"about": to_json(about), "measured": list(map(to_json, measured))}
    write_run(page, f"scaling-{about.task}-{about.preset}", content, scaling_plot(measured))


def write_run(page: Path, name: str, content: dict[str, Any], plot: bytes) -> None:
    """Write one run, and the page of all."""
    directory = page.with_suffix("")
    directory.mkdir(parents=True, exist_ok=True)
    write_files({directory / f"{name}.json": json_bytes(content), directory / f"{name}.png": plot})
    write_file(page, page_of(directory).encode())


def page_of(directory: Path) -> str:
    """Return the page of all runs in a directory."""
    sections = [INTRODUCTION]
    for path in sorted(directory.glob("plan-*.json")):
        about, found = read(path, About, Row, "rows")
        sections.append(plan_section(about, found, picture_of(path)))
    for path in sorted(directory.glob("scaling-*.json")):
        what, measured = read(path, ScalingAbout, Measurement, "measured")
        sections.append(scaling_section(what, measured, picture_of(path)))
    return "\n".join(sections)


def read(path: Path, about: type[Any], record: type[Any], name: str) -> tuple[Any, list[Any]]:
    """Read what a run is about, and its records."""
    content = json.loads(path.read_text())
    where = str(path)
    return from_json(about, content["about"], where), [from_json(record, r, where) for r in content[name]]


def picture_of(path: Path) -> str:
    """Return a run's plot as the page refers to it."""
    return f"{path.parent.name}/{path.stem}.png"
