"""What came out of one run, in tables: its stages, and how well each does on what it was not trained with."""

import json
from datetime import timedelta
from pathlib import Path

from rich.filesize import decimal

from scope_wm.data.split import open_splits
from scope_wm.data.store import Store
from scope_wm.files import METRICS
from scope_wm.report.evaluated import preset_text
from scope_wm.report.page import Block, Notes, Section, Table
from scope_wm.report.run_directory import TrainedStage, gaps, is_finished, tokens_kept

ERRORS = {
    "one_step_of_copy": "one step",
    "rollout_of_copy": "rollout",
    "background_of_copy": "background",
    "oracle_of_copy": "one step, oracle",
}
TIMES_NOTE = "Times of `data` are summed over processes; those of trainings count steps and validations."
COPYING_NOTE = (
    "Each error is relative to that of copying the frame: below 1 is knowledge. The windows are of "
    "validation episodes; weights that were chosen by rollouts were chosen in these very windows. The oracle "
    "selects what mattered most to the dense model in that very step, which no planner can know."
)
SEEN_EPISODES = "in windows of training episodes that it was not distilled from"


def run_tables(run: Path, trained: dict[str, TrainedStage]) -> list[Section]:
    """Return the tables of a run under its own title."""
    stages: list[Block] = [stages_table(run, trained), Notes([TIMES_NOTE, *gaps(run)])]
    sections = [Section(title(run, trained), []), Section("Stages", stages, 3)]
    if judged := held_out(trained):
        sections.append(Section("Held out", judged, 3))
    return sections


def title(run: Path, trained: dict[str, TrainedStage]) -> str:
    """Say which run it is: its name, task and preset."""
    name = run.resolve().name
    if teacher := trained.get("teacher"):
        return f"Run {name}: {teacher.header['model']['task']}, {preset_text(teacher.header)}"
    if (run / "data").is_dir():
        return f"Run {name}: {open_splits(run / 'data').training.store.config.task}"
    return f"Run {name}"


def stages_table(run: Path, trained: dict[str, TrainedStage]) -> Table:
    """Return what was made, from how much and in what time."""
    rows = [cells for cells in (data_row(run), tokens_row(run)) if cells]
    for stage in trained.values():
        steps = f"{stage.samples:,}", f"{stage.steps:,}", duration(stage.seconds)
        rows.append((stage.name, f"{stage.parameters:,} parameters", *steps))
    return Table(("stage", "size", "samples", "steps", "time"), rows)


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


def held_out(trained: dict[str, TrainedStage]) -> list[Block]:
    """Return the figures that the stages were recorded with, if there are any."""
    models, lines = [], []
    for stage in trained.values():
        figures = stage.made["figures"]
        if kept := tokens_kept(stage):
            errors = [figures.get(name) for name in ERRORS]
            cells = ("" if error is None else f"{error:.3f}" for error in errors)
            models.append((stage.name, str(kept), *cells))
        elif stage.name == "selector":
            lines.append(f"selector, {SEEN_EPISODES}: {selector_text(figures)}")
        elif stage.name == "decoder":
            share = f"{figures['error_of_mean_frame']:.3f} of that of the mean frame"
            lines.append(f"decoder: PSNR {figures['PSNR']:.1f} dB, its error is {share}")
    columns = ("model", "K", *ERRORS.values())
    blocks: list[Block] = [Table(columns, models), Notes([COPYING_NOTE])] if models else []
    return [*blocks, Notes(lines)] if lines else blocks


def selector_text(figures: dict[str, float]) -> str:
    """Return the divergence of a selector, and its recall beside chance."""
    texts = [f"KL {figures['KL']:.3f}"]
    for k in (name.removeprefix("recall_") for name in figures if name.startswith("recall_")):
        found, chance = figures[f"recall_{k}"], figures[f"chance_{k}"]
        texts.append(f"{found:.3f} of the teacher's top {k} (chance: {chance:.3f})")
    return ", ".join(texts)


def measured(stage: Path, name: str) -> float:
    """Return the sum of one figure over the metrics of a stage, and of its parts if it has any."""
    lines = [json.loads(line) for file in stage.rglob(METRICS) for line in file.read_text().splitlines()]
    return float(sum(line[name] for line in lines))


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))
