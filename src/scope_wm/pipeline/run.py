"""Run the whole pipeline of one task; what is finished is skipped, what was interrupted goes on.

If a setting or an input of a stage has changed, what it had made is put aside into `replaced` and made again,
and so is everything that depends on it; nothing else is.
"""

import os
import time
from pathlib import Path

from rich.console import Console

from scope_wm.files import only_writer
from scope_wm.pipeline.estimate import show_plan
from scope_wm.pipeline.settings import PipelineSettings
from scope_wm.pipeline.stages import Stage, stages
from scope_wm.report.run_report import run_summary, write_report
from scope_wm.types import MadeOtherwise, UsageError


def run(settings: PipelineSettings) -> None:
    """Make every stage that is not finished, write the report and print it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("scope-wm run is one process: launch the train commands with several, one by one")
    plan = stages(settings)
    if settings.dry_run:
        show_plan(settings, plan)
        return
    console = Console(stderr=True)
    for number, stage in enumerate(plan, 1):
        console.rule(f"{number}/{len(plan)}  {stage.name}", align="left")
        began = time.monotonic()
        make(stage, settings.path)
        console.print(f"{stage.name}: {time.monotonic() - began:.0f} s")
    page = write_report([settings.path], settings.path / "report")
    print(run_summary(settings.path))
    print(f"The report is {page}")


def make(stage: Stage, run: Path) -> None:
    """Make a stage; what was made otherwise is put aside first."""
    try:
        stage.make()
    except MadeOtherwise as changed:
        aside = free_name(run / "replaced", stage.name.replace("/", "-"))
        aside.parent.mkdir(exist_ok=True)
        with only_writer(run / stage.name):
            (run / stage.name).rename(aside)
        print(f"{changed}\n{stage.name} is made again; the old one is now {aside}")
        stage.make()


def free_name(folder: Path, name: str) -> Path:
    """Return a path in a folder that nothing has yet."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"
