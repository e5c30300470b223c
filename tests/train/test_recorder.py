import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from scope_wm.train.recorder import Recorder, RunSettings, read_metrics
from scope_wm.train.state import CHECKPOINT, State
from scope_wm.types import UsageError


def state() -> State:
    parameters = [nn.Parameter(torch.ones(2))]
    return State(parameters, torch.optim.AdamW(parameters), ema=None)


def test_a_silent_recorder_writes_nothing(tmp_path: Path) -> None:
    with Recorder(tmp_path, RunSettings(checkpoint_seconds=0.0), state(), 1, silent=True) as record:
        record.step(loss=1.0, rate=0.1)
        record.figures({"error": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_lines_after_the_checkpoint_are_taken_back(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    resumed = state()
    resumed.log_size = len('{"step": 1}\n')
    with Recorder(tmp_path, RunSettings(), resumed, 5, silent=False) as record:
        record.figures({"error": 3.0})
    assert read_metrics(tmp_path) == [{"step": 1}, {"step": 0, "error": 3.0}]


def test_a_checkpoint_before_the_next_line_knows_where_the_file_ends(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    resumed = state()
    resumed.log_size = len('{"step": 1}\n')
    with Recorder(tmp_path, RunSettings(), resumed, 5, silent=False):
        pass
    assert resumed.log_size == len('{"step": 1}\n')
    assert read_metrics(tmp_path) == [{"step": 1}]


def test_weights_that_have_left_their_way_are_not_kept(tmp_path: Path) -> None:
    wild = state()
    for loss in [1.0] * 100 + [50.0]:
        wild.watch.trouble(loss, 1.0)
    with Recorder(tmp_path, RunSettings(checkpoint_seconds=0.0), wild, 5, silent=False) as record:
        record.step(loss=50.0, rate=0.1)
        assert not (tmp_path / CHECKPOINT).exists()


def test_what_is_not_a_number_is_never_the_best() -> None:
    judged = state()
    for value, error in ((1.0, math.nan), (2.0, 0.5), (3.0, 0.7), (4.0, math.nan)):
        judged.parameters[0].data.fill_(value)
        judged.judge({"error": error}, "error")
    assert judged.figures == {"error": 0.5}
    assert judged.best[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["log_every", "parts"])
def test_lines_are_at_least_a_step_apart_and_a_batch_has_a_part(name: str) -> None:
    with pytest.raises(UsageError, match=rf"expected --run\.{name.replace('_', '-')} of at least 1, got 0"):
        RunSettings(**{name: 0})


def test_an_interrupted_step_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Recorder(tmp_path, RunSettings(), state(), 5, silent=False):
        raise KeyboardInterrupt
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="Weights & Biases is installed")
def test_weights_and_biases_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pip install wandb"):
        Recorder(tmp_path, RunSettings(wandb="project"), state(), 5, silent=False).__enter__()


def test_weights_and_biases_get_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    fake = ModuleType("wandb")
    fake.init = lambda **options: told.append(options) or fake  # type: ignore[attr-defined]
    fake.log = lambda values, step: told.append((step, values))  # type: ignore[attr-defined]
    fake.finish = lambda: told.append("finished")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    directory = tmp_path / "run" / "teacher"
    directory.mkdir(parents=True)
    with Recorder(directory, RunSettings(wandb="project"), state(), 5, silent=False) as record:
        record.figures({"error": 3.0})
    assert told[0] == {
        "project": "project",
        "name": "run-teacher",
        "id": (directory / "wandb-id").read_text(),
        "resume": "allow",
        "dir": str(directory),
    }
    assert told[1:] == [(0, {"error": 3.0}), "finished"]
