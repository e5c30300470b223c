import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from scope_wm.cli import main
from scope_wm.model.checkpoint import TrainedModel, model_directory
from scope_wm.planning.planner import Planner
from scope_wm.tasks import TASKS
from scope_wm.types import UsageError

QUICK = ["--planner", "cem", "--samples", "4", "--elites", "2", "--horizon", "2", "--max-steps", "1"]


def test_a_name_is_a_model(ships: Path) -> None:
    assert model_directory("wall/faster") == ships / "wall" / "faster"
    assert TrainedModel.from_pretrained("wall/fast").config.selector.k == 98


def test_a_directory_of_that_name_wins_if_a_model_is_in_it(
    ships: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wall/faster").mkdir(parents=True)
    assert model_directory("wall/faster") == ships / "wall" / "faster"
    shutil.copytree(ships / "wall" / "dense", "wall/faster", dirs_exist_ok=True)
    assert model_directory("wall/faster") == Path("wall/faster")


@pytest.mark.parametrize("name", ["wall/fastest", "wall/..", "push_t/faster", "faster", "./wall/faster"])
def test_an_unknown_name_is_told_which_there_are(ships: Path, name: str) -> None:
    with pytest.raises(UsageError, match="wall/dense, wall/fast, wall/faster"):
        model_directory(name)


def test_an_unknown_name_without_the_hub_is_told_which_there_are(
    ships: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"wall/faster; the hub needs: pip install"):
        model_directory("pusht/faster")


def test_the_planner_of_a_robot_takes_a_name(ships: Path) -> None:
    task = TASKS["wall"]()
    problem = task.sample_problem(seed=1)
    planner = Planner.from_pretrained("wall/faster", planner="random-shooting", horizon=1, device="cpu")
    seen = []
    for state in (problem.goal, problem.start):
        task.set_state(state)
        seen.append((task.render(), task.proprio()))
    planner.reset(*seen[0])
    actions = planner.act(*seen[1])
    assert actions.shape == (5, 2)
    assert np.isfinite(actions).all()


def test_plan_takes_a_name_and_looks_for_a_decoder_beside_the_model_only(
    ships: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wall/decoder").mkdir(parents=True)
    Path("wall/decoder/config.json").write_text("{}")
    assert main(["plan", "--task", "wall", "--model", "wall/faster", "--device", "cpu", *QUICK]) == 0
    assert "runs/wall/plan/faster-cem-0.mp4" in capsys.readouterr().out
    assert Path("runs/wall/plan/faster-cem-0.mp4").stat().st_size > 1000


def test_a_model_of_another_task_is_wrong_usage(ships: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--task", "push_t", "--model", "wall/faster", *QUICK]) == 2
    assert "expected a model of push_t, wall/faster is one of wall" in capsys.readouterr().err
