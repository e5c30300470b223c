from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.train.conftest import World

from scope_wm.evaluate.instances import instance_seed
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.planning.mpc import MPCSettings
from scope_wm.train import by_planning, dynamics
from scope_wm.train.by_planning import planning_figures
from scope_wm.train.teacher import train_teacher

QUICK = MPCSettings(horizon=1, max_steps=1)


def test_planning_tells_what_is_unsolved_and_how_far_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_planning, "INSTANCES", 2)
    trained = TrainedModel.from_pretrained(world.teacher.out)
    figures = planning_figures(trained, "random-shooting", QUICK)()
    assert figures["unsolved"] in (0.0, 0.5, 1.0)
    assert figures["distance_left"] > 0
    assert figures["planning"] == pytest.approx(figures["unsolved"] + 0.01 * figures["distance_left"])


def test_the_instances_are_none_that_are_evaluated() -> None:
    assert by_planning.FIRST > 100_000
    assert instance_seed(by_planning.FIRST) == 99_000_001


def test_weights_can_be_chosen_by_planning(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_planning, "INSTANCES", 2)
    monkeypatch.setattr(dynamics, "planning_figures", partial(planning_figures, settings=QUICK))
    monkeypatch.setattr(dynamics, "PLANNER", "random-shooting")
    fit = replace(world.teacher.fit, max_samples=16, validations=2)
    train_teacher(replace(world.teacher, fit=fit, select_by="planning", out=tmp_path / "chosen"))
    figures = read_header(tmp_path / "chosen")[0]["made"]["figures"]
    assert {"planning", "unsolved", "rollout_of_copy"} <= set(figures)
