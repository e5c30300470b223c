"""`scope-wm report`: runs and evaluations as one page beside the paper's tables.

report.html    everything, in one file that needs no network: tables, plots, pictures, videos
report.md      its tables and plots, for the docs; the plots are in `plots`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from scope_wm.data.progress import progress
from scope_wm.evaluate.settings import expect_at_least, expect_writable
from scope_wm.files import write_files
from scope_wm.report.evaluated import is_evaluation, read_evaluations
from scope_wm.report.ours import Ours, evaluations_section, ours_of
from scope_wm.report.page import PLOTS, Section, html_page, markdown_page, plot_files
from scope_wm.report.paper_tables import paper_sections
from scope_wm.report.plots import plots
from scope_wm.report.run_directory import trained_stages
from scope_wm.report.run_pictures import Job, picture_jobs, replay_jobs
from scope_wm.report.run_tables import run_tables
from scope_wm.types import UsageError

PAGE, TABLES = "report.html", "report.md"
TITLE = "Scope-WM: results"
BANNER = (
    "Figures of the presets lite and tiny are of small models with a small encoder of our own. They are not "
    "the paper's benchmark: beside its figures, compare tendencies, not numbers."
)
TRADE_OFFS = "Trade-offs"
PLOTS_NOTE = (
    "Bars are 95 % intervals. Dense models, and sparse ones with the paper's selection and background."
)


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Write runs and evaluations as one page: tables beside the paper's, plots, pictures and videos.

    Example: scope-wm report runs/wall-lite runs/push_t-lite --out report
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """directories of scope-wm run, or of scope-wm evaluate"""
    out: Path | None = None
    """directory for report.html and report.md; None: `report` in the first run"""
    videos: int = 1
    """solved problems of each run and task to plan again and show, and as many unsolved ones; 0: none"""

    def __post_init__(self) -> None:
        """Refuse what cannot be reported."""
        expect_at_least(self, {"videos": 0})
        if not self.runs:
            raise UsageError("expected the directory of at least one run")


def report(settings: ReportSettings) -> None:
    """Write the report and tell where it is."""
    out = settings.out or settings.runs[0] / "report"
    print(write_report(settings.runs, out, videos=settings.videos))


def write_report(runs: Sequence[Path], out: Path, *, videos: int = 1) -> Path:
    """Write the report of what runs have so far into a directory, and return its page."""
    for run in runs:
        expect_run(run)
    expect_writable(out)
    ours = ours_of(read_evaluations(runs))
    sections = comparison(ours)
    alone = [run for run in runs if is_evaluation(run)]
    sections += draw(replay_jobs([one for one in ours.found if one.run.path in alone], videos), 2)
    for run in runs:
        if run not in alone:
            sections += run_sections(run, videos)
    content = {
        out / PAGE: html_page(TITLE, BANNER, sections).encode(),
        out / TABLES: markdown_page(TITLE, BANNER, sections).encode(),
        **{out / PLOTS / name: plot for name, plot in plot_files(sections).items()},
    }
    for path in content:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_files(content)
    return out / PAGE


def run_summary(run: Path) -> str:
    """Return the tables of one run alone, to be printed."""
    ours = ours_of(read_evaluations([run]))
    told = [evaluations_section(ours)] if ours.found else []
    return markdown_page(TITLE, BANNER, [*run_tables(run, trained_stages(run)), *told])


def expect_run(run: Path) -> None:
    """Refuse a directory that is neither a run nor an evaluation."""
    parts = any((run / part).is_dir() for part in ("data", "evaluate"))
    if not (parts or is_evaluation(run) or trained_stages(run)):
        raise UsageError(
            "expected the directory of a run, with `data`, trained stages or `evaluate`, or that of an "
            f"evaluation, got {run}"
        )


def comparison(ours: Ours) -> list[Section]:
    """Return all evaluations, the paper's tables and the plots, if anything was evaluated."""
    if not ours.found:
        return []
    sections = [evaluations_section(ours), *paper_sections(ours)]
    drawn = plots(ours)
    return [*sections, Section(TRADE_OFFS, [PLOTS_NOTE, *drawn])] if drawn else sections


def run_sections(run: Path, videos: int) -> list[Section]:
    """Return the tables and pictures of one run."""
    trained, found = trained_stages(run), read_evaluations([run])
    jobs = picture_jobs(run, trained, found, videos)
    return [*run_tables(run, trained), *draw(jobs, 3)]


def draw(jobs: list[Job], level: Literal[2, 3]) -> list[Section]:
    """Draw pictures, each under a heading of its own, and tell how far that is."""
    sections = []
    with progress("pictures", len(jobs)) as advance:
        for job in jobs:
            sections.append(Section(job.title, job.draw(), level))
            advance(note=job.title)
    return sections
