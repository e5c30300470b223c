"""What the pages tell of results is what the kept evaluations and the models that ship amount to."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_wm.evaluate.compare import compare_records, pair
from scope_wm.evaluate.models import model_digest
from scope_wm.evaluate.run import read_config, read_run
from scope_wm.evaluate.settings import protocol_of
from scope_wm.evaluate.summary import way_made, way_text
from scope_wm.model import shipped
from scope_wm.model.checkpoint import read_header
from scope_wm.pipeline.variants import trials
from scope_wm.planning.load import ModelSettings
from scope_wm.presets import lite
from scope_wm.report.run_report import write_report
from scope_wm.shipping.add import STAGES
from scope_wm.shipping.record import read_record
from scope_wm.tasks import TASKS

DOCS = Path(__file__).parents[2] / "docs"
SIMULATOR = sorted((DOCS / "results" / "simulator").iterdir())
TRUE_DYNAMICS = sorted((DOCS / "results" / "true-dynamics").iterdir())
LITE = sorted((DOCS / "results" / "lite").glob("*/*"))
ABLATIONS = sorted((DOCS / "results" / "ablations").glob("*/*"))


def test_the_page_is_what_the_kept_evaluations_amount_to(tmp_path: Path) -> None:
    assert LITE
    write_report([*SIMULATOR, *TRUE_DYNAMICS, *LITE, *ABLATIONS], tmp_path, videos=0)
    assert (DOCS / "results.md").read_text() == (tmp_path / "report.md").read_text(), "run `make results`"
    assert contents(DOCS / "plots") == contents(tmp_path / "plots"), "run `make results`"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_readme_tells_the_same() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", readme, re.MULTILINE)
    assert {task for task, *_ in rows} == set(TASKS)
    for task, *cells in rows:
        runs = [
            DOCS / "results" / "lite" / task / name for name in ("dense-cem", "fast-eb-cem", "faster-eb-cem")
        ]
        assert cells == [in_short(read_run(run).summary) if run.is_dir() else "not evaluated" for run in runs]


def test_no_sparse_model_solves_significantly_fewer_problems() -> None:
    runs = {path: read_run(path) for path in LITE}
    with_success = {path: run for path, run in runs.items() if run.summary["success"]}
    ps = [
        compare_records(*pair([runs[path.parent / "dense-cem"], run])).p_success
        for path, run in with_success.items()
        if path.name != "dense-cem"
    ]
    told = " ".join((DOCS.parent / "README.md").read_text().split())
    assert f"(McNemar's exact test, p at least {min(ps):.3g})" in told
    assert min(ps) > 0.05


def in_short(summary: dict[str, Any]) -> str:
    """Return a result with its interval and the plan time, as the README tells them."""
    if success := summary["success"]:
        low, high = (100 * end for end in success["interval"])
        result = f"{success['solved']} of {success['instances']} ({low:.0f} to {high:.0f} %)"
    else:
        low, high = summary["final_distance_interval"]
        result = f"{100 * summary['way_made']:.0f} % of the way ({low:.2f} to {high:.2f})"
    return f"{result}, {summary['mean_plan_seconds']:.1f} s"


@pytest.mark.parametrize("path", LITE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_evaluation_is_of_the_model_that_ships(path: Path) -> None:
    run = read_run(path)
    task, model = run.config["settings"]["task"], run.config["settings"]["model"]
    assert run.config["settings"]["out"] == str(path.relative_to(DOCS.parent))
    assert model.startswith(f"{task}/")
    assert run.config["model_digest"] == model_digest(ModelSettings(model=model), task)
    told = read_record(shipped.FOLDER / model).results
    assert run.config["settings"]["planner"] in [
        result.planner for result in told if result.all_of == len(run.records)
    ]


@pytest.mark.parametrize("path", ABLATIONS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_ablation_is_one_of_those_that_a_run_makes(path: Path) -> None:
    asked = read_config(path)["settings"]
    assert asked["out"] == str(path.relative_to(DOCS.parent))
    made = {trial.name: trial for trial in trials(lite(asked["task"]), ablations=True)}[path.name]
    folder, model = asked["model"].split("/", 1)
    assert made.model in (STAGES[model] if folder == asked["task"] else [Path(model).name])
    assert (asked["k"], asked["planner"]) == (made.k, made.search.planner)
    usual = replace(made.search, samples=asked["samples"], first_samples=asked["first_samples"])
    assert usual.sample_counts == made.search.sample_counts
    assert len(read_run(path).records) == protocol_of(asked["task"]).instances


def test_findings_are_those_of_the_evaluations() -> None:
    page = (DOCS / "findings.md").read_text()
    told = re.findall(r"^\|.*\| (\d+) \| (.*?) \| `(.*?)` \|$", page, re.MULTILINE)
    assert told
    for count, result, evaluation in told:
        run = read_run(DOCS / "results" / evaluation)
        first = [run.records[i] for i in range(int(count))]
        solved = f"{sum(record.success for record in first)} of {count}"
        assert result == (solved if run.summary["success"] else way_text(way_made(first)))
    maze = read_run(DOCS / "results" / "lite" / "point_maze" / "dense-cem")
    failed = [record for record in maze.records.values() if not record.success]
    assert f"In all {len(failed)} failures of the dense model, of {len(maze.records)} problems," in page
    assert all(record.path_left >= 2 * record.final_distance for record in failed)
    searched = (
        "ablations/push_t/refined-k32-cem",
        "lite/push_t/faster-eb-cem",
        "ablations/push_t/refined-k32-icem",
    )
    runs = [read_run(DOCS / "results" / path) for path in searched]
    candidates = [np.mean([run.records[i].samples for i in range(50)]) for run in runs]
    assert "({:,.0f} for a problem in the mean, EB-CEM {:,.0f})".format(*candidates[:2]) in page
    assert f"iCEM needs the fewest, {candidates[2]:,.0f}" in page
    for verdict, first, other in (
        (True, "rope/dense-cem", "rope/fast-eb-cem"),
        (True, "rope/dense-cem", "rope/faster-eb-cem"),
        (False, "rope/dense-cem", "rope/fast-cem"),
        (False, "rope/dense-cem", "rope/faster-cem"),
        (True, "rope/fast-cem", "rope/fast-eb-cem"),
        (True, "rope/faster-cem", "rope/faster-eb-cem"),
        (False, "granular/dense-cem", "granular/fast-eb-cem"),
        (False, "granular/dense-cem", "granular/faster-eb-cem"),
    ):
        assert distance_differs(first, other) == verdict
    errors = re.findall(r"^\| `(.*?)` \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert errors
    for model, *shown in errors:
        made = read_header(shipped.FOLDER / model)[0]["made"]
        figures = (made.get("before") or made)["figures"]
        assert shown == [f"{figures[key]:.3f}" for key in ("one_step_of_copy", "oracle_of_copy")]


def distance_differs(first: str, other: str) -> bool:
    """Tell whether two evaluations of shipped models end significantly unlike far from the goal."""
    runs = [read_run(DOCS / "results" / "lite" / path) for path in (first, other)]
    return compare_records(*pair(runs), has_success=False).distance_differs


def test_the_guide_tells_what_refining_did() -> None:
    text = " ".join((DOCS / "training.md").read_text().split())
    for name, told in (
        ("faster", "that K = 32 imagines fell from"),
        ("dense", "that of the dense model from"),
    ):
        header, _ = read_header(shipped.FOLDER / "push_t" / name)
        before, after = (
            part["figures"]["last_of_copy"] for part in (header["made"]["before"], header["made"])
        )
        assert f"{told} {before:.3f} to {after:.3f}" in text
    made = read_header(shipped.FOLDER / "point_maze" / "faster")[0]["made"]
    before, after = (part["figures"]["one_step_of_copy"] for part in (made["before"], made))
    assert f"there K = 32 has an error of {after:.3f} after {before:.3f}" in text
