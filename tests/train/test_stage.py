import json
from pathlib import Path

import pytest
import torch

from scope_wm.model.student import Student, StudentConfig
from scope_wm.train.stage import UNFINISHED, Recipe, begin, finish
from scope_wm.train.state import CHECKPOINT
from scope_wm.types import MadeOtherwise, UsageError

RECIPE = Recipe(
    stage="encoder", settings={"fit": {"optimiser": {"lr": 0.1}, "batch": 8}}, inputs={"teacher": "abc"}
)


def make(directory: Path, recipe: Recipe = RECIPE) -> None:
    torch.manual_seed(0)
    student = Student(StudentConfig(dim=4, width=16, stages=1, heads=2))
    student.save_pretrained(directory, made=recipe.made() | {"figures": {"error": 0.5}})
    finish(directory)


def test_a_new_directory_is_work_and_so_is_an_interrupted_one(tmp_path: Path) -> None:
    assert begin(tmp_path / "stage", RECIPE)
    assert begin(tmp_path / "stage", RECIPE)
    assert json.loads((tmp_path / "stage" / UNFINISHED).read_text())["inputs"] == {"teacher": "abc"}


def test_a_finished_stage_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin(tmp_path, RECIPE)
    (tmp_path / CHECKPOINT).write_bytes(b"where the training is")
    make(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert not begin(tmp_path, RECIPE)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "is finished: error 0.5" in capsys.readouterr().out


@pytest.mark.parametrize("finished", [True, False])
def test_what_was_made_otherwise_is_refused_by_name(tmp_path: Path, finished: bool) -> None:
    begin(tmp_path, RECIPE)
    if finished:
        make(tmp_path)
    other = Recipe(
        stage="encoder", settings={"fit": {"optimiser": {"lr": 0.2}, "batch": 8}}, inputs={"teacher": "abd"}
    )
    with pytest.raises(MadeOtherwise) as refused:
        begin(tmp_path, other)
    assert "fit.optimiser.lr: 0.1 there, 0.2 here" in str(refused.value)
    assert "inputs.teacher: 'abc' there, 'abd' here" in str(refused.value)
    assert "batch" not in str(refused.value)


def test_versions_may_differ(tmp_path: Path) -> None:
    begin(tmp_path, RECIPE)
    make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["made"]["versions"] = {"torch": "0.1"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not begin(tmp_path, RECIPE)


def test_a_model_that_was_not_trained_here_is_not_written_over(tmp_path: Path) -> None:
    Student(StudentConfig(dim=4, width=16, stages=1, heads=2)).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="not trained here"):
        begin(tmp_path, RECIPE)
