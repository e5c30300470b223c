"""`scope-wm report`: what came out of a run, as report.md with its pictures beside it.

report.md           the stages with their held-out figures, the evaluations, what is not there
curves.png          learning curves
selector-map.png    the teacher's relevance beside the selector's
imagined.png        rollouts, if there is a decoder to draw them
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.filesize import decimal

from scope_wm.data.split import open_splits
from scope_wm.data.store import Store
from scope_wm.evaluate.run import Run, machine
from scope_wm.files import write_file
from scope_wm.presets import PRESETS
from scope_wm.records import to_json
from scope_wm.report.imagined import write_imagined
from scope_wm.report.learning_curves import learning_curves
from scope_wm.report.results import COLUMNS, row, table
from scope_wm.report.run_directory import (
    TrainedStage,
    evaluations,
    gaps,
    is_finished,
    tokens_kept,
    trained_stages,
)
from scope_wm.report.selector_map import write_selector_map
from scope_wm.types import UsageError

FILE, CURVES = "report.md", "curves.png"
ERRORS = ("one_step", "rollout", "background")
PAPER_NOTE = "The settings are the paper's; the figures are this run's own."
OTHER_NOTE = (
    "Models, data and encoder are not the paper's: these figures are this run's own, and cannot be held "
    "against the paper's."
)
TIMES_NOTE = "Times of `data` are summed over processes; those of trainings count steps and validations."
COPYING_NOTE = "Each error is relative to that of copying the frame: below 1 is knowledge."


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Write the report of a run: tables, learning curves and pictures.

    Example: scope-wm report runs/wall-lite
    """

    run: tyro.conf.Positional[Path]
    """directory of the run"""
    out: Path | None = None
    """directory of the report; None: `report` in the run"""


def report(settings: ReportSettings) -> None:
    """Write the report and tell where it is."""
    print(write_report(settings.run, settings.out or settings.run / "report"))


def write_report(run: Path, out: Path) -> Path:
    """Write the report of what a run has so far into a directory, and return its file."""
    trained, evaluated = trained_stages(run), evaluations(run)
    if not (run / "data").is_dir() and not trained:
        raise UsageError(f"expected the directory of a run with `data` and trained stages, got {run}")
    out.mkdir(parents=True, exist_ok=True)
    sections = [heading(run, trained), stages_section(run, trained), *held_out_section(trained)]
    if evaluated:
        sections.append(evaluations_section(evaluated))
    sections += pictures(run, trained, out)
    write_file(out / FILE, ("\n\n".join(sections) + "\n").encode())
    return out / FILE


def heading(run: Path, trained: dict[str, TrainedStage]) -> str:
    """Say which task and preset it is, and on what machine the report is made."""
    if teacher := trained.get("teacher"):
        task, preset = teacher.header["model"]["task"], preset_of(teacher)
    else:
        task, preset = open_splits(run / "data").training.store.config.task, None
    title = f"# {task}, preset {preset}" if preset else f"# {task}, settings of its own"
    note = PAPER_NOTE if preset == "paper" else OTHER_NOTE
    return f"{title}\n\n{note}\n\nThis report was made on: {described(machine(torch.device('cpu')))}."


def preset_of(teacher: TrainedStage) -> str | None:
    """Return the preset whose dense model this is, trained as the preset trains it."""
    settings = {name: teacher.made["settings"][name] for name in ("model", "fit")}
    for name, preset in PRESETS.items():
        wanted = preset(teacher.header["model"]["task"])
        if settings == {"model": to_json(wanted.model), "fit": to_json(wanted.teacher)}:
            return name
    return None


def stages_section(run: Path, trained: dict[str, TrainedStage]) -> str:
    """Return what was made, from how much and in what time, and what is not there."""
    rows = [cells for cells in (data_row(run), tokens_row(run)) if cells]
    for stage in trained.values():
        steps = f"{stage.samples:,}", f"{stage.steps:,}", duration(stage.seconds)
        rows.append((stage.name, f"{stage.parameters:,} parameters", *steps))
    notes = "\n".join(f"- {line}" for line in [TIMES_NOTE, *gaps(run)])
    return f"## Stages\n\n{table(('stage', 'size', 'samples', 'steps', 'time'), rows)}\n\n{notes}"


def data_row(run: Path) -> tuple[str, ...] | None:
    """Return the row of the store."""
    if not (run / "data").is_dir():
        return None
    splits = open_splits(run / "data")
    stores: set[Store] = {splits.training.store, splits.validation.store}
    size = f"{sum(map(len, stores)):,} episodes, {sum(store.num_frames for store in stores):,} frames"
    return ("data", size, "", "", duration(measured(run / "data", "seconds")))


def tokens_row(run: Path) -> tuple[str, ...] | None:
    """Return the row of the tokens, if they were kept."""
    if not is_finished(run / "tokens"):
        return None
    size = decimal(int(measured(run / "tokens", "bytes")))
    return ("tokens", size, "", "", duration(measured(run / "tokens", "seconds")))


def held_out_section(trained: dict[str, TrainedStage]) -> list[str]:
    """Return how well every stage does on what it was not trained with, if there is any."""
    models, lines = [], []
    for stage in trained.values():
        figures = stage.made["figures"]
        if kept := tokens_kept(stage):
            errors = [figures.get(f"{name}_of_copy") for name in ERRORS]
            cells = ("" if error is None else f"{error:.3f}" for error in errors)
            models.append((stage.name, str(kept), *cells))
        elif stage.name == "selector":
            lines.append(f"- selector: {selector_text(figures)}")
        elif stage.name == "decoder":
            share = f"{figures['error_of_mean_frame']:.3f} of that of the mean frame"
            lines.append(f"- decoder: PSNR {figures['PSNR']:.1f} dB, its error is {share}")
    if models:
        columns = ("model", "K", *(name.replace("_", " ") for name in ERRORS))
        lines = [table(columns, models), "", f"- {COPYING_NOTE}", *lines]
    return ["## Held out\n\n" + "\n".join(lines)] if lines else []


def selector_text(figures: dict[str, float]) -> str:
    """Return the divergence of a selector, and its recall beside chance."""
    texts = [f"KL {figures['KL']:.3f}"]
    for k in (name.removeprefix("recall_") for name in figures if name.startswith("recall_")):
        found, chance = figures[f"recall_{k}"], figures[f"chance_{k}"]
        texts.append(f"{found:.3f} of the teacher's top {k} (chance: {chance:.3f})")
    return ", ".join(texts)


def evaluations_section(runs: list[Run]) -> str:
    """Return the table of evaluations."""
    rows = []
    for run in runs:
        name, summary = run.path.name, run.summary
        rows.append((*row(name, summary["success"], summary), f"{summary['mean_plan_seconds']:.2f} s"))
        if summary["success_block_must_move"] is not None:
            moved = row(f"{name}, block must move", summary["success_block_must_move"], None)
            rows.append((*moved, ""))
    columns = ("model and planner", *COLUMNS[1:], "plan time an instance")
    machines = dict.fromkeys(described(run.config["machine"]) for run in runs)
    notes = dict.fromkeys(note for run in runs for note in run.summary["notes"])
    lines = "\n".join(f"- {line}" for line in [f"Measured on: {'; '.join(machines)}.", *notes])
    return f"## Planning\n\n{table(columns, rows)}\n\n{lines}"


def pictures(run: Path, trained: dict[str, TrainedStage], out: Path) -> list[str]:
    """Draw the pictures that the stages allow, and return their sections."""
    sections = []
    if trained:
        write_file(out / CURVES, learning_curves({name: stage.metrics for name, stage in trained.items()}))
        sections.append(f"## Learning curves\n\n![Loss and held-out figures against the step]({CURVES})")
    if not (run / "data").is_dir():
        return sections
    if {"teacher", "selector"} <= set(trained):
        file = write_selector_map(run, out)
        caption = "Relevance for the teacher and for the selector, and the tokens that are kept"
        sections.append(f"## What the selector looks at\n\n![{caption}]({file.name})")
    models = [stage.name for stage in trained.values() if tokens_kept(stage)]
    if models and "decoder" in trained:
        file = write_imagined(run, models, out)
        caption = "Imagined frames above the real ones, in the held-out window that changes most"
        sections.append(f"## What the models imagine\n\n![{caption}]({file.name})")
    return sections


def measured(stage: Path, name: str) -> float:
    """Return the sum of one figure over the metrics of a stage, and of its parts if it has any."""
    lines = [
        json.loads(line) for file in stage.rglob("metrics.jsonl") for line in file.read_text().splitlines()
    ]
    return float(sum(line[name] for line in lines))


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


def described(machine: dict[str, Any]) -> str:
    """Return a machine in words."""
    return f"{machine['processor']}, {machine['cores']} cores, {machine['device']}, {machine['system']}"
