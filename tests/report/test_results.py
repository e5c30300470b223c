import json
from pathlib import Path

import pytest

from scope_wm.evaluate.models import simulator_scale
from scope_wm.evaluate.run import comparable, read_config, read_run, run_config
from scope_wm.evaluate.runner import Job, solve_instances
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings
from scope_wm.evaluate.statistics import wilson
from scope_wm.evaluate.summary import SIMULATOR_NOTE
from scope_wm.planning.load import ModelSettings
from scope_wm.report.results import ResultsSettings, results

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "docs" / "results" / "simulator").iterdir())
TASKS = ["point_maze", "push_t", "wall"]


def settings(task: str) -> EvaluateSettings:
    """What the command of the page asks for."""
    return EvaluateSettings(
        task=task,
        model=ModelSettings(model="simulator"),
        search=SearchSettings(planner="cem"),
        out=Path("docs/results/simulator") / task,
        instances=50,
        workers=1,
    )


def test_the_page_shows_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    results(ResultsSettings(runs=tuple(RUNS)))
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + len(TASKS) + 1  # a part of Push-T has a row of its own
    assert table in (ROOT / "docs" / "simulator.md").read_text()


def test_the_true_dynamics_solve_nearly_all_problems() -> None:
    assert [path.name for path in RUNS] == TASKS
    for path in RUNS:
        run = read_run(path)
        assert comparable(run.config) == comparable(run_config(settings(path.name)))
        assert list(run.records) == list(range(50))
        solved = sum(record.success for record in run.records.values())
        assert solved >= 0.95 * 50
        assert run.summary["success"]["solved"] == solved
        assert run.summary["success"]["interval"] == list(wilson(solved, 50))


@pytest.mark.parametrize("task", TASKS)
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
        assert json.loads((path / "summary.json").read_text())["notes"] == [SIMULATOR_NOTE]
