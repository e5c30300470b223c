import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scope_wm.cli import main
from scope_wm.evaluate.run import read_records
from scope_wm.evaluate.runner import Job, solve_instances
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings
from scope_wm.model.architecture import BackgroundConfig, SelectorConfig, build
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning.load import ModelSettings, load_latent_model

SMALL = ["--samples", "6", "--elites", "2", "--horizon", "2", "--max-steps", "2", "--instances", "3"]
SEARCH = SearchSettings(samples=6, elites=2, horizon=2, max_steps=2)

pytestmark = pytest.mark.usefixtures("threads")


@pytest.fixture(scope="module")
def model(random_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that selects at random: the hardest case, for its draws must not depend on earlier ones."""
    config = TrainedModel.from_pretrained(random_model("wall")).config
    selector, background = SelectorConfig(kind="random", k=6), BackgroundConfig(kind="copy")
    config = replace(config, selector=selector, background=background)
    torch.manual_seed(2)
    folder = tmp_path_factory.mktemp("random-selector")
    TrainedModel(config=config, world_model=build(config)).save_pretrained(folder)
    return folder


def settings(model: Path, out: Path) -> EvaluateSettings:
    return EvaluateSettings(task="wall", model=ModelSettings(model=str(model)), out=out, search=SEARCH)


def test_a_model_is_evaluated_and_the_order_of_instances_changes_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["evaluate", "--task", "wall", "--model", str(model), "--out", str(out), "--workers", "2", *SMALL]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "success " in shown
    assert "a reference" not in shown
    records = read_records(out)
    again = []
    solve_instances(Job(settings(model, out), None, [2, 1, 0]), again.append)
    for record in again:
        mine = records[record.instance]
        assert record.final_distance == mine.final_distance
        assert (record.steps, record.samples, record.success) == (mine.steps, mine.samples, mine.success)
    config = json.loads((out / "config.json").read_text())
    assert config["model_digest"] == hashlib.sha256((model / "config.json").read_bytes()).hexdigest()
    assert config["settings"]["alpha"] == 1.0


def test_alpha_is_that_of_the_task_unless_it_is_given(model: Path, tmp_path: Path) -> None:
    asked = settings(model, tmp_path)
    assert load_latent_model(asked.model).alpha == asked.alpha == 1.0
    other = replace(asked, model=replace(asked.model, alpha=0.25))
    assert load_latent_model(other.model).alpha == other.alpha == 0.25
    assert replace(asked, task="point_maze").alpha == 0.0


def test_another_k_needs_permission(model: Path) -> None:
    chosen = ModelSettings(model=str(model), k=3, allow_other_k=True)
    assert load_latent_model(chosen).world_model.selector.k == 3


def test_a_damaged_model_is_wrong_usage_and_leaves_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, out = tmp_path / "model", tmp_path / "run"
    words = ["evaluate", "--task", "wall", "--model", str(copy), "--out", str(out), *SMALL]
    for missing in ("config.json", "model.safetensors"):
        shutil.copytree(model, copy, dirs_exist_ok=True)
        (copy / missing).unlink()
        assert main(words) == 2
        assert missing in capsys.readouterr().err
        assert not out.exists()


def test_another_model_under_the_same_name_is_not_mixed_in(
    model: Path, random_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, out = tmp_path / "model", tmp_path / "run"
    shutil.copytree(model, copy)
    words = ["evaluate", "--task", "wall", "--model", str(copy), "--out", str(out), "--workers", "1", *SMALL]
    assert main([*words, "--instances", "1"]) == 0
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    shutil.copytree(random_model("wall"), copy, dirs_exist_ok=True)
    assert main(words) == 2
    assert "was evaluated with model" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "wall", "--k", "3"], "was trained with K = 6"),
        (["--task", "rope"], "expected a model of rope"),
        (["--task", "wall", "--encoder", "/no/such/encoder"], "/no/such/encoder"),
    ],
)
def test_a_model_that_does_not_fit_is_wrong_usage_and_leaves_nothing(
    options: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["evaluate", "--model", str(model), "--out", str(out), *options]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
