from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scope_wm.report.evaluated import Evaluated, read_evaluations
from scope_wm.report.replay import instances_to_show, most_telling, replay

Make = Callable[..., Evaluated]


@pytest.mark.parametrize("number", [0, 1], ids=["cem", "eb-cem"])
def test_a_replay_is_what_was_measured(tiny_run: Path, number: int) -> None:
    one = read_evaluations([tiny_run])[number]
    shown, record = replay(one, 1), one.run.records[1]
    outcome = shown.outcome
    assert (outcome.success, len(outcome.steps)) == (record.success, record.steps)
    assert shown.task.distance(outcome.problem.start, outcome.problem.goal) == record.start_distance
    assert shown.task.distance(outcome.state, outcome.problem.goal) == record.final_distance
    assert outcome.samples == record.samples


def test_without_the_device_of_an_evaluation_the_processor_plans(tiny_run: Path) -> None:
    one = read_evaluations([tiny_run])[0]
    one.run.config["settings"]["device"] = "cuda:99"
    shown, record = replay(one, 0), one.run.records[0]
    assert shown.model.device == torch.device("cpu")
    assert shown.task.distance(shown.outcome.state, shown.outcome.problem.goal) == record.final_distance


def test_only_a_planner_with_a_bank_has_one(tiny_run: Path) -> None:
    cem, eb_cem = read_evaluations([tiny_run])
    assert replay(cem, 0).bank is None
    bank = replay(eb_cem, 0).bank
    assert bank is not None
    assert bank.shape == (6, 2, 10)  # three times two elites, two actions of five steps in two numbers


def test_the_smallest_model_with_a_bank_is_looked_at(evaluated: Make, tmp_path: Path) -> None:
    here = [
        replace(evaluated(k=k, planner=planner), directory=tmp_path)
        for k, planner in ((98, "eb-cem"), (16, "cem"), (32, "eb-cem"), (196, "cem"))
    ]
    assert most_telling(here) is here[2]
    assert most_telling([here[0], here[1]]) is here[0]
    other_k = replace(evaluated(k=98), directory=tmp_path)
    other_k.run.config["settings"]["k"] = 32
    assert most_telling([other_k, here[2]]) is here[2]
    assert most_telling([replace(evaluated(k=16), directory=tmp_path), here[2]]) is here[2]
    assert most_telling([here[1], here[3]]) is here[1]
    assert most_telling([evaluated(), here[3]]) is here[3]  # the first one's model is not there
    assert most_telling([]) is None


def test_problems_that_are_gone_cannot_be_looked_at(evaluated: Make, tmp_path: Path) -> None:
    one = replace(evaluated(), directory=tmp_path)
    one.run.config["settings"]["problems_from"] = str(tmp_path / "gone")
    assert most_telling([one]) is None
    one.run.config["settings"]["problems_from"] = str(tmp_path)
    assert most_telling([one]) is one


def test_solved_problems_come_first_then_failed_ones(evaluated: Make) -> None:
    assert instances_to_show(evaluated(solved=44), 2) == [0, 1, 44, 45]
    assert instances_to_show(evaluated(solved=50), 1) == [0]
    assert instances_to_show(evaluated(solved=0), 1) == [0]
