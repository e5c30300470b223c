"""The whole chain, from nothing to a planner, with real parts: `scope-wm run --preset tiny`."""

import json
from pathlib import Path
from typing import Any

import pytest

from scope_wm.cli import main
from scope_wm.evaluate.run import read_run
from scope_wm.pipeline.settings import PipelineSettings
from scope_wm.pipeline.stages import stages
from scope_wm.types import UsageError

TINY = ["run", "--task", "wall", "--preset", "tiny", "--run.device", "cpu"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "wall-tiny"
    assert (
        main(["run", "--task", "wall", "--preset", "tiny", "--out", str(folder), "--run.device", "cpu"]) == 0
    )
    return folder


def figures(stage: Path) -> dict[str, Any]:
    return json.loads((stage / "config.json").read_text())["made"]["figures"]


def test_the_teacher_knows_more_than_copying(run: Path) -> None:
    assert figures(run / "teacher")["one_step_of_copy"] < 0.8
    assert figures(run / "teacher")["rollout_of_copy"] < 0.8


def test_the_selector_finds_what_matters_far_more_often_than_by_chance(run: Path) -> None:
    found = figures(run / "selector")
    assert found["recall_32"] > 3 * found["chance_32"]


def test_the_background_update_knows_more_than_copying(run: Path) -> None:
    found = figures(run / "sparse-k32")
    assert found["background_of_copy"] < 0.97
    assert found["one_step_of_copy"] < 0.8


@pytest.mark.parametrize(("refined", "before"), [("refined-dense", "teacher"), ("refined-k32", "sparse-k32")])
def test_what_a_refined_model_imagines_is_better(run: Path, refined: str, before: str) -> None:
    assert figures(run / refined)["last_of_copy"] < figures(run / before)["last_of_copy"]


def test_every_model_plans(run: Path) -> None:
    for name in ("refined-dense-cem", "refined-k32-cem", "refined-k32-eb-cem"):
        records = read_run(run / "evaluate" / name).records
        assert len(records) == 2
        assert all(record.final_distance != record.start_distance for record in records.values()), name


def test_the_report_tells_it_all(run: Path) -> None:
    text = (run / "report" / "report.md").read_text()
    stages = ("data", "tokens", "teacher", "selector", "sparse-k32", "refined-k32", "refined-k32-eb-cem")
    for stage in stages:
        assert f"| {stage} |" in text
    assert "not the paper's" in text


def test_a_change_remakes_only_what_depends_on_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifacts = sorted(run.glob("*/config.json")) + sorted(run.glob("evaluate/*/config.json"))
    before = {path: path.stat().st_mtime_ns for path in artifacts}
    config = json.loads((run / "sparse-k32" / "config.json").read_text())
    config["made"]["settings"]["fit"]["optimiser"]["lr"] = 0.5
    (run / "sparse-k32" / "config.json").write_text(json.dumps(config))
    capsys.readouterr()
    assert main([*TINY, "--out", str(run), "--dry-run"]) == 0
    cells = [line.split("│")[1:3] for line in capsys.readouterr().out.splitlines() if "│" in line]
    states = [state.split()[0] for name, state in cells if name.strip()]  # a long state has a second line
    assert states == ["finished"] * 4 + ["to", "finished", "after", "finished", "after", "after"]
    # Trained again it has the same weights, by which evaluations know it.
    assert main([*TINY, "--out", str(run)]) == 0
    assert [path for path in artifacts if path.stat().st_mtime_ns != before[path]] == [
        run / "sparse-k32" / "config.json"
    ]
    assert (run / "replaced" / "sparse-k32-1" / "model.safetensors").is_file()


def test_what_depends_on_a_changed_teacher_is_made_again(run: Path) -> None:
    file = run / "teacher" / "config.json"
    before = file.read_text()
    config = json.loads(before)
    config["weights"] = "another"
    file.write_text(json.dumps(config))
    changed = []
    for stage in stages(PipelineSettings(task="wall", preset="tiny", out=run)):
        try:
            assert stage.is_finished()
        except UsageError:
            changed.append(stage.name)
    file.write_text(before)
    assert changed == ["selector", "sparse-k32", "refined-dense"]
