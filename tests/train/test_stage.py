import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scope_wm.files import UNFINISHED
from scope_wm.hardware import machine
from scope_wm.model.student import Student, StudentConfig
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, making
from scope_wm.train.state import CHECKPOINT
from scope_wm.types import MadeOtherwise, UsageError

RECIPE = Recipe(
    stage="encoder", settings={"fit": {"optimiser": {"lr": 0.1}, "batch": 8}}, inputs={"teacher": "abc"}
)


def make(directory: Path, recipe: Recipe = RECIPE) -> bool:
    """Make a stage, and tell whether there was work to do."""
    with making(directory, recipe, RunSettings(device="cpu")) as work:
        if work is None:
            return False
        torch.manual_seed(0)
        student = Student(StudentConfig(dim=4, width=16, stages=1, heads=2))
        (directory / CHECKPOINT).write_bytes(b"where the training is")
        work.finish({"error": 0.5}, lambda made: student.save_pretrained(directory, made=made))
        return True


def break_off(directory: Path) -> None:
    with pytest.raises(KeyboardInterrupt), making(directory, RECIPE, RunSettings(device="cpu")):
        raise KeyboardInterrupt


def test_an_interrupted_stage_is_work_again(tmp_path: Path) -> None:
    break_off(tmp_path / "stage")
    assert json.loads((tmp_path / "stage" / UNFINISHED).read_text())["inputs"] == {"teacher": "abc"}
    assert make(tmp_path / "stage")


def test_a_finished_stage_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert not make(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "is finished: error 0.5" in capsys.readouterr().out


@pytest.mark.parametrize("finished", [True, False])
def test_what_was_made_otherwise_is_refused_by_name(tmp_path: Path, finished: bool) -> None:
    if finished:
        make(tmp_path)
    else:
        break_off(tmp_path)
    other = Recipe(
        stage="encoder", settings={"fit": {"optimiser": {"lr": 0.2}, "batch": 8}}, inputs={"teacher": "abd"}
    )
    with pytest.raises(MadeOtherwise) as refused:
        make(tmp_path, other)
    assert "fit.optimiser.lr: 0.1 there, 0.2 here" in str(refused.value)
    assert "inputs.teacher: 'abc' there, 'abd' here" in str(refused.value)
    assert "batch" not in str(refused.value)


def test_a_record_from_before_there_was_a_choice_of_optimisers_was_made_with_adamw() -> None:
    old = {"stage": RECIPE.stage, "settings": RECIPE.settings, "inputs": RECIPE.inputs}
    fit = RECIPE.settings["fit"]
    for kind, differences in (("adamw", []), ("muon", ["fit.optimiser.kind: 'adamw' there, 'muon' here"])):
        today = replace(RECIPE, settings={"fit": fit | {"optimiser": {"kind": kind, "lr": 0.1}}})
        assert today.differs(old) == differences


def test_two_cannot_make_the_same_stage(tmp_path: Path) -> None:
    with (
        making(tmp_path, RECIPE, RunSettings(device="cpu")),
        pytest.raises(UsageError, match="another process"),
    ):
        make(tmp_path)


def made_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())["made"]


def test_a_stage_tells_versions_and_machine(tmp_path: Path) -> None:
    make(tmp_path)
    made = made_of(tmp_path)
    assert made["versions"]["torch"] == torch.__version__
    assert made["machine"] == machine(torch.device("cpu"))
    assert made["machine"]["cores"] == os.cpu_count()
    assert "resumed" not in made


def test_who_goes_on_is_told_beside_who_began(tmp_path: Path) -> None:
    break_off(tmp_path)
    break_off(tmp_path)
    began = json.loads((tmp_path / UNFINISHED).read_text())
    assert "resumed" not in began
    here = {name: began[name] for name in ("versions", "machine", "precision")}
    first = {"versions": {"torch": "0.1"}, "machine": {"cores": 64}}
    (tmp_path / UNFINISHED).write_text(json.dumps(began | first))
    break_off(tmp_path)
    assert make(tmp_path)
    made = made_of(tmp_path)
    assert {name: made[name] for name in first} == first
    assert made["resumed"] == [here]


@pytest.mark.parametrize("name", ["config.json", UNFINISHED])
@pytest.mark.parametrize("content", ["", '{"made": {"stage"', "[]", '{"made": {"stage": "encoder"}}'])
def test_a_damaged_record_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / name))):
        make(tmp_path)
    assert (tmp_path / name).read_text() == content


def test_versions_may_differ(tmp_path: Path) -> None:
    make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["made"]["versions"] = {"torch": "0.1"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not make(tmp_path)


def test_a_model_that_was_not_trained_here_is_not_written_over(tmp_path: Path) -> None:
    Student(StudentConfig(dim=4, width=16, stages=1, heads=2)).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="not trained here"):
        make(tmp_path)
