import json
from pathlib import Path

import pytest

from scope_wm.evaluate.models import simulator_scale
from scope_wm.evaluate.run import comparable, read_config, read_run, run_config
from scope_wm.evaluate.runner import Job, solve_instances
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings
from scope_wm.evaluate.statistics import wilson
from scope_wm.evaluate.summary import SIMULATOR_NOTE, TABLE_NOTE
from scope_wm.planning.load import ModelSettings
from scope_wm.report.results import ResultsSettings, results

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "docs" / "results" / "simulator").iterdir())
SOLVABLE = ["point_maze", "push_t", "wall"]
SHAPED = ["rope", "granular"]  # without a rule of success


def settings(task: str) -> EvaluateSettings:
    """What the commands of the page ask for."""
    slow = task in SHAPED
    small = {"samples": 20, "elites": 5, "iterations": 5} if slow else {}
    return EvaluateSettings(
        task=task,
        model=ModelSettings(model="simulator"),
        search=SearchSettings(planner="cem", **small),
        out=Path("docs/results/simulator") / task,
        instances=5 if slow else 50,
        workers=1,
    )


def test_the_page_shows_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    results(ResultsSettings(runs=tuple(RUNS)))
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + len(RUNS) + 1  # a part of Push-T has a row of its own
    assert table in (ROOT / "docs" / "simulator.md").read_text()


def test_the_true_dynamics_solve_nearly_all_problems() -> None:
    for task in SOLVABLE:
        run = read_run(ROOT / settings(task).out)
        assert list(run.records) == list(range(50))
        solved = sum(record.success for record in run.records.values())
        assert solved >= 0.95 * 50
        assert run.summary["success"]["solved"] == solved
        assert run.summary["success"]["interval"] == list(wilson(solved, 50))


def test_the_true_dynamics_bring_particles_most_of_the_way() -> None:
    for task in SHAPED:
        run = read_run(ROOT / settings(task).out)
        start, final, least = (
            sum(getattr(record, name) for record in run.records.values())
            for name in ("start_distance", "final_distance", "least_distance")
        )
        assert len(run.records) == 5
        assert run.summary["way_made"] == pytest.approx((start - final) / (start - least))
        assert run.summary["way_made"] > 0.6


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_a_run_of_the_page_was_made_by_its_command(path: Path) -> None:
    assert path.name in SOLVABLE + SHAPED
    assert comparable(read_run(path).config) == comparable(run_config(settings(path.name)))


@pytest.mark.parametrize("task", SOLVABLE)
def test_a_record_of_the_page_is_what_is_found_today(task: str) -> None:
    asked, found = settings(task), []
    shown = min(read_run(ROOT / asked.out).records.values(), key=lambda record: record.plan_seconds)
    solve_instances(Job(asked, simulator_scale(task, None), [shown.instance]), found.append)
    assert (found[0].success, found[0].steps, found[0].samples) == (shown.success, shown.steps, shown.samples)
    assert found[0].start_distance == pytest.approx(shown.start_distance)
    assert found[0].final_distance == pytest.approx(shown.final_distance, rel=1e-3)


def test_the_committed_runs_are_small_and_name_no_place_of_a_machine() -> None:
    assert sum(file.stat().st_size for path in RUNS for file in path.iterdir()) < 200_000
    for path in RUNS:
        assert not Path(read_config(path)["settings"]["out"]).is_absolute()
        notes = [SIMULATOR_NOTE, TABLE_NOTE] if path.name in SHAPED else [SIMULATOR_NOTE]
        assert json.loads((path / "summary.json").read_text())["notes"] == notes
