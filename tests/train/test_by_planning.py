from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.train.conftest import World

from scope_wm.evaluate.instances import instance_seed
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.planning.mpc import MPCSettings, Outcome, StepRecord
from scope_wm.tasks.wall import Wall
from scope_wm.train import by_planning, dynamics
from scope_wm.train.by_planning import distance_left, planning_figures
from scope_wm.train.teacher import train_teacher

QUICK = MPCSettings(horizon=1, max_steps=1)


def test_planning_tells_what_is_unsolved_and_how_far_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_planning, "INSTANCES", 2)
    trained = TrainedModel.from_pretrained(world.teacher.out)
    judge = planning_figures(trained, "random-shooting", QUICK)
    assert judge()["unsolved"] == 1.0  # an untrained encoder, and one short step
    assert 0.3 < judge()["distance_left"] <= 1.0
    monkeypatch.setattr(Wall, "success", lambda *_: True)
    assert judge()["unsolved"] == 0.0
    assert judge()["planning"] == pytest.approx(0.01 * judge()["distance_left"])


def test_a_problem_that_ends_far_away_has_all_of_its_distance_left() -> None:
    task = Wall()
    problem = task.sample_problem(1)
    away = 2 * problem.start - problem.goal
    for state, share in ((away, 1.0), (problem.start, 1.0), ((problem.start + problem.goal) / 2, 0.5)):
        step = StepRecord(
            actions=np.zeros((1, 2)),
            state=state,
            plan_seconds=0.0,
            samples=0,
            planned=torch.zeros(1, 2),
            trace=np.zeros(1),
        )
        outcome = Outcome(problem=problem, success=False, steps=(step,))
        assert distance_left(task, outcome) == pytest.approx(share)


def test_the_instances_are_none_that_are_evaluated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    sample = Wall.sample_problem
    monkeypatch.setattr(Wall, "sample_problem", lambda task, seed: seeds.append(seed) or sample(task, seed))
    planning_figures(TrainedModel.from_pretrained(world.teacher.out), "cem")
    assert len(seeds) == 10
    assert min(seeds) > instance_seed(100_000)


def test_the_weights_that_plan_best_are_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[torch.Tensor] = []

    def scripted(trained: TrainedModel, planner: str) -> Callable[[], dict[str, float]]:
        def figures() -> dict[str, float]:
            told.append(trained.world_model.predictor.positions.detach().clone())
            return {"planning": [0.3, 0.1, 0.2][len(told) - 1]}

        return figures

    monkeypatch.setattr(dynamics, "planning_figures", scripted)
    fit = replace(world.teacher.fit, max_samples=24, validations=3)
    train_teacher(replace(world.teacher, fit=fit, select_by="planning", out=tmp_path / "chosen"))
    kept = TrainedModel.from_pretrained(tmp_path / "chosen").world_model.predictor.positions
    assert torch.equal(kept, told[1])
    assert not torch.equal(kept, told[2])
    assert read_header(tmp_path / "chosen")[0]["made"]["figures"]["planning"] == 0.1
