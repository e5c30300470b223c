"""What the pages tell of results is what the kept evaluations and the models that ship amount to."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scope_wm.evaluate.compare import compare_records, pair
from scope_wm.evaluate.models import model_digest
from scope_wm.evaluate.run import read_config, read_run
from scope_wm.evaluate.settings import protocol_of
from scope_wm.evaluate.statistics import LEVEL, bootstrap
from scope_wm.evaluate.summary import success_of, way_made, way_text
from scope_wm.model import shipped
from scope_wm.model.checkpoint import read_header
from scope_wm.pipeline.variants import trials
from scope_wm.planning.load import ModelSettings
from scope_wm.presets import lite
from scope_wm.report.run_report import write_report
from scope_wm.shipping.add import STAGES
from scope_wm.shipping.record import read_record
from scope_wm.tasks import TASKS
from scope_wm.train.refine import STAGE as REFINE

DOCS = Path(__file__).parents[2] / "docs"
SIMULATOR = sorted((DOCS / "results" / "simulator").iterdir())
TRUE_DYNAMICS = sorted((DOCS / "results" / "true-dynamics").iterdir())
LITE = sorted((DOCS / "results" / "lite").glob("*/*"))
ABLATIONS = sorted((DOCS / "results" / "ablations").glob("*/*"))
RECOVERED = (
    "On PointMaze the first plan solves, of {} problems, {} with the dense model and CEM and {} with K = 98 "
    "and EB-CEM, and later plans {} and {} of the others; on Wall, of {}, {} and {}, and later plans {} and "
    "{}."
)


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
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", readme, re.MULTILINE)
    assert [task for task, *_ in rows] == list(TASKS)
    for task, *cells in rows:
        assert cells == in_short(task)
    text = " ".join(readme.split())
    assert ratios() in text
    ways = [read_run(DOCS / "results" / "lite" / "rope" / f"{name}-cem") for name in ("fast", "faster")]
    shares = [f"{100 * run.summary['way_made']:.0f}" for run in ways]
    assert f"{' and '.join(shares)} % of the way" in text


def ratios() -> str:
    """Return how many times as fast sparse models plan as dense ones, as the pages tell it."""
    told = []
    for name in ("faster-eb-cem", "fast-eb-cem"):
        found = []
        for task in ("point_maze", "wall", "push_t"):
            runs = [read_run(DOCS / "results" / "lite" / task / each) for each in ("dense-cem", name)]
            found.append(f"{1 / compare_records(*pair(runs)).time_ratio:.1f}")
        told.append("{}, {} and {}".format(*found))
    return f"{told[0]} times as fast as with the dense model and CEM, with K = 98 {told[1]} times"


def recovered() -> str:
    """Return how many problems the first plan solves and how many of the others later ones do, as told."""
    told: list[object] = []
    for task in ("point_maze", "wall"):
        names = ("dense-cem", "fast-eb-cem")
        paired = pair([read_run(DOCS / "results" / "lite" / task / name) for name in names])
        at_once = [sum(record.success and record.steps == 1 for record in records) for records in paired]
        later = [
            f"{sum(record.success for record in records) - first} of {len(records) - first}"
            for records, first in zip(paired, at_once, strict=True)
        ]
        told += [len(paired[0]), *at_once, *later]
    return RECOVERED.format(*told)


def in_short(task: str) -> list[str]:
    """Return results, p-values and plan times on problems that all have, as the README tells them."""
    names = ("dense-cem", "fast-eb-cem", "faster-eb-cem")
    runs = [read_run(DOCS / "results" / "lite" / task / name) for name in names]
    dense, *_ = paired = pair(runs)
    has_success = bool(runs[0].summary["success"])
    cells = []
    for records in paired:
        success = success_of(records) if has_success else None
        if success is not None:
            low, high = (100 * end for end in success.interval)
            told = [f"{success.solved} of {success.instances} ({low:.0f} to {high:.0f} %)"]
        else:
            low, high = bootstrap(np.array([record.final_distance for record in records]))
            told = [f"{way_text(way_made(records))} (distance {low:.2f} to {high:.2f})"]
        if records is not dense:
            found = compare_records(dense, records, has_success=has_success)
            told.append(f"p = {found.p_distance if found.p_success is None else found.p_success:.2g}")
        cells.append(", ".join([*told, f"{np.mean([record.plan_seconds for record in records]):.1f} s"]))
    return cells


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
    text = " ".join(page.split())
    assert ratios() in text
    assert recovered() in text
    method = read_run(DOCS / "results" / "lite" / "push_t" / "faster-eb-cem")
    p_of = {}
    for other in ("random", "copy", "random-copy", "motion", "cross-attention"):
        run = read_run(DOCS / "results" / "ablations" / "push_t" / f"refined-k32-{other}-eb-cem")
        p_of[other] = compare_records(*pair([method, run])).p_success
    assert max(p_of[other] for other in ("random", "copy", "random-copy")) < LEVEL
    assert f"(p = {p_of['motion']:.2g}, not significant)" in text
    assert min(p_of["motion"], p_of["cross-attention"]) > LEVEL
    p_against_dense = {}
    for task in ("point_maze", "wall", "push_t"):
        for name in ("fast", "faster"):
            paths = [DOCS / "results" / "lite" / task / each for each in ("dense-cem", f"{name}-eb-cem")]
            p_success = compare_records(*pair([read_run(path) for path in paths])).p_success
            assert p_success is not None
            assert p_success > LEVEL
            p_against_dense[task, name] = f"{p_success:.2g}"
    verdict = "(PointMaze: p = {} and {}, Wall: p = {} and {})"
    assert verdict.format(*list(p_against_dense.values())[:4]) in text
    told = re.findall(r"^\|.*\| (\d+) \| (.*?) \| `(.*?)` \|$", page, re.MULTILINE)
    assert told
    for count, result, evaluation in told:
        run = read_run(DOCS / "results" / evaluation)
        first = [run.records[i] for i in range(int(count))]
        solved = f"{sum(record.success for record in first)} of {count}"
        assert result == (solved if run.summary["success"] else way_text(way_made(first)))
    learned, mixed, true = (
        read_run(DOCS / "results" / path)
        for path in ("lite/point_maze/dense-cem", "true-dynamics/point_maze", "simulator/point_maze")
    )
    ps = [compare_records(*pair(runs)).p_success for runs in ([learned, mixed], [mixed, true])]
    assert f"(McNemar's p = {ps[0]:.3f})" in page
    assert f"significantly fewer than with the true path (p = {ps[1]:.3f})" in page
    assert min(ps) > LEVEL
    failed = [record for record in learned.records.values() if not record.success]
    on_wall = read_run(DOCS / "results" / "lite" / "wall" / "dense-cem").records.values()
    failed_on_wall = [record for record in on_wall if not record.success]
    assert f"In all {len(failed)} failures of the dense model, of {len(learned.records)} problems," in text
    assert f"It is so in all {len(failed_on_wall)} of Wall, of {len(on_wall)}:" in text
    assert all(record.path_left >= 2 * record.final_distance for record in [*failed, *failed_on_wall])
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
    assert {model: shown for model, *shown in errors} == oracle_errors()


def oracle_errors() -> dict[str, list[str]]:
    """Return the errors of shipped models with their own selection and the oracle's, where it is known."""
    found = {}
    for record in shipped.FOLDER.glob("*/*/record.json"):
        folder = record.parent
        made = read_header(folder)[0]["made"]
        figures = (made.get("before") or made)["figures"]
        if "oracle_of_copy" in figures:
            told = [f"{figures[key]:.3f}" for key in ("one_step_of_copy", "oracle_of_copy")]
            found[f"{folder.parent.name}/{folder.name}"] = told
    return found


def test_the_guide_tells_which_models_are_refined() -> None:
    tasks = {
        "PointMaze": "point_maze",
        "Wall": "wall",
        "Push-T": "push_t",
        "Rope": "rope",
        "Granular": "granular",
    }
    text = " ".join((DOCS / "models.md").read_text().split())
    told = re.search(r"Those of ([^.]*) are \[refined\]", text)
    assert told is not None
    for name, task in tasks.items():
        for folder in (shipped.FOLDER / task).iterdir():
            assert (read_header(folder)[0]["made"]["stage"] == REFINE) == (name in told[1])


def distance_differs(first: str, other: str) -> bool:
    """Tell whether two evaluations of shipped models end significantly unlike far from the goal."""
    runs = [read_run(DOCS / "results" / "lite" / path) for path in (first, other)]
    return compare_records(*pair(runs), has_success=False).p_distance < LEVEL


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
    for task, told in (
        ("point_maze", "fifth frame fell from {} to {}, and that of the first step rose from {} to {};"),
        ("wall", "on Wall the fifth fell from {} to {}, and the first rose from {} to {}."),
    ):
        made = read_header(shipped.FOLDER / task / "faster")[0]["made"]
        errors = [
            f"{part['figures'][name]:.3f}"
            for name in ("last_of_copy", "one_step_of_copy")
            for part in (made["before"], made)
        ]
        assert told.format(*errors) in text
