"""`scope-wm demo`: three problems, each planned with the dense model and with the sparsest, on one page."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scope_wm.data.play import mp4
from scope_wm.evaluate.settings import PlannerName, SearchSettings, expect_at_least, expect_writable
from scope_wm.files import write_file
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.mpc import Outcome, solve
from scope_wm.report.page import Media, Section, Table, html_page
from scope_wm.report.plan import scenes, story_of, teller
from scope_wm.report.plan_video import video
from scope_wm.report.results import table
from scope_wm.tasks import find_task
from scope_wm.tasks.task import Task

TASK = "push_t"
PROBLEMS = {"A push on the corner": 100, "Around the block": 694, "Down and past it": 1288}  # by seed
PAGE = "report.html"
TITLE = "Scope-WM: dense and sparse side by side"
BANNER = (
    "Small models with a small encoder of our own, as they ship. Not the paper's benchmark: three problems "
    "show how planning looks, not how often it succeeds."
)
COLUMNS = ("problem", "model", "planner", "", "steps", "planning")


class Way(NamedTuple):
    """A shipped model, and the planner that goes with it."""

    model: str
    planner: PlannerName


DENSE, SPARSE = WAYS = (Way(f"{TASK}/dense", "cem"), Way(f"{TASK}/faster", "eb-cem"))


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Plan three problems with shipped models, dense beside sparse, and show them on a page with videos.

    Example: scope-wm demo
    """

    out: Path = Path("demo")
    """directory for the page, report.html"""
    max_steps: int = 3
    """plans for each problem at most"""
    samples: int | None = None
    """candidates of an iteration, fewer to be done sooner; None: 100"""

    def __post_init__(self) -> None:
        """Refuse what cannot be done before anything is."""
        expect_at_least(self, {"max_steps": 1, "samples": 10})
        expect_writable(self.out)

    def search(self, way: Way) -> SearchSettings:
        """Return how to search, with elites in proportion to the samples."""
        elites = None if self.samples is None else max(2, self.samples // 10)
        return SearchSettings(
            planner=way.planner, samples=self.samples, elites=elites, max_steps=self.max_steps
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How one problem went one way."""

    problem: str
    way: Way
    outcome: Outcome
    max_steps: int


def demo(settings: DemoSettings) -> None:
    """Plan, tell how it goes, and write the page."""
    task = find_task(TASK)()
    models = {way: load_latent_model(ModelSettings(model=way.model), TASK) for way in WAYS}
    attempts = [
        attempt(settings, task, problem, way, model) for problem in PROBLEMS for way, model in models.items()
    ]
    rows = [cells(each) for each in attempts]
    films = [
        Section(problem, [film(task, each, models[each.way]) for each in attempts if each.problem == problem])
        for problem in PROBLEMS
    ]
    told = Section("Three problems", [Table(COLUMNS, rows), speed(attempts)])
    settings.out.mkdir(parents=True, exist_ok=True)
    page = settings.out / PAGE
    write_file(page, html_page(TITLE, BANNER, [told, *films]).encode())
    print(f"\n{table(COLUMNS, rows)}\n\n{speed(attempts)}\nLook at {page}")


def attempt(settings: DemoSettings, task: Task, problem: str, way: Way, model: LatentModel) -> Attempt:
    """Solve a problem, and tell how each step goes."""
    print(f"{problem}, {way.model}, {way.planner}", file=sys.stderr)
    seed, steps = PROBLEMS[problem], settings.max_steps
    controller = settings.search(way).controller(model, TASK, seed=0)
    (outcome,) = solve(task, [task.sample_problem(seed)], [seed], controller, teller(task, steps))
    return Attempt(problem=problem, way=way, outcome=outcome, max_steps=steps)


def cells(one: Attempt) -> tuple[str, ...]:
    """Return a row of the table."""
    solved = "solved" if one.outcome.success else "not solved"
    return one.problem, *one.way, solved, str(len(one.outcome.steps)), f"{one.outcome.plan_seconds:.1f} s"


def speed(attempts: Sequence[Attempt]) -> str:
    """Say how fast the sparse model imagines beside the dense one, and how long all planning took."""
    dense, sparse = ([each for each in attempts if each.way == way] for way in (DENSE, SPARSE))
    slow, fast = (sum(each.outcome.plan_seconds for each in part) for part in (dense, sparse))
    slow_each, fast_each = (
        1000 * seconds / sum(each.outcome.samples for each in part)
        for seconds, part in ((slow, dense), (fast, sparse))
    )
    return (
        f"A candidate takes {fast_each:.1f} ms with {SPARSE.model} and {slow_each:.1f} ms with "
        f"{DENSE.model}: {slow_each / fast_each:.1f} times as fast. All planning took {fast:.1f} and "
        f"{slow:.1f} s; the first search of eb-cem has three times the candidates."
    )


def film(task: Task, one: Attempt, model: LatentModel) -> Media:
    """Make the video of an attempt."""
    played = scenes(task, one.outcome, model, decoder=None)
    story = story_of(task, one.outcome, played, f"{one.way.model}, {one.way.planner}", one.max_steps)
    return Media(
        mp4(video(story)),
        "video/mp4",
        f"{story.note}: {story.verdict}, {one.outcome.plan_seconds:.1f} s of planning.",
    )
