import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scope_wm.train.loop import Fit, FitSettings, OptimiserSettings, Order, rate_at
from scope_wm.train.recorder import RunSettings, read_metrics
from scope_wm.train.state import CHECKPOINT, Watch
from scope_wm.types import TrainingError, UsageError

ADAMW = OptimiserSettings(lr=1e-2, schedule="cosine", warmup=5, clip=1.0, ema=0.9)
SETTINGS = FitSettings(optimiser=ADAMW, epochs=3, batch=8, validations=4)
RUN = RunSettings(device="cpu", log_every=5)


class Points:
    """Rows of a linear map with noise; one row may be spoilt."""

    def __init__(self, spoilt: int | None = None) -> None:
        draw = np.random.default_rng(0)
        self.x = draw.normal(size=(80, 4)).astype(np.float32)
        self.y = (self.x @ draw.normal(size=(4, 2)) + 0.1 * draw.normal(size=(80, 2))).astype(np.float32)
        if spoilt is not None:
            self.y[spoilt] = np.nan

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, rows: np.ndarray) -> tuple[Tensor, ...]:
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])


class Regression(nn.Module):
    """A network with dropout, so that what is drawn at random matters."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.layers(x) - y).square().mean()


def training(directory: Path, settings: FitSettings = SETTINGS, points: Points | None = None) -> Fit:
    directory.mkdir(parents=True, exist_ok=True)
    loss, held_out = Regression(), Points().batch(np.arange(40))

    def validate() -> Mapping[str, float]:
        return {"error": loss(*held_out).item()}

    return Fit(
        loss=loss,
        samples=points or Points(),
        settings=settings,
        validate=validate,
        best="error",
        directory=directory,
        run=RUN,
    )


def weights(fit: Fit) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in fit.loss.parameters()]


def test_training_lowers_the_error_and_records_it(tmp_path: Path) -> None:
    fit = training(tmp_path, replace(SETTINGS, epochs=20))
    first = float(fit.validate()["error"])
    figures = fit()
    assert figures["error"] < 0.3 * first
    lines = read_metrics(tmp_path)
    judged = [line for line in lines if "error" in line]
    assert [line["step"] for line in judged] == [50, 100, 150, 200]
    assert figures["error"] == min(line["error"] for line in judged)
    assert float(fit.validate()["error"]) == pytest.approx(figures["error"], rel=1e-6)
    assert len([line for line in lines if "loss" in line]) == 40
    assert list((tmp_path / "tensorboard").iterdir())


def test_the_best_weights_are_kept_not_the_last(tmp_path: Path) -> None:
    fit = training(tmp_path, replace(SETTINGS, optimiser=OptimiserSettings(lr=0.5), epochs=15, validations=3))
    figures = fit()
    judged = [line["error"] for line in read_metrics(tmp_path) if "error" in line]
    assert min(judged) < judged[-1]
    assert float(fit.validate()["error"]) == pytest.approx(min(judged), rel=1e-6) == figures["error"]


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tmp_path: Path) -> None:
    runs = [
        training(tmp_path / name, replace(SETTINGS, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    for run in runs:
        run()
    a, b, c = (weights(run) for run in runs)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a[0], c[0])


@pytest.mark.parametrize("parts", [2, 3, 20])  # of batches of 8
def test_a_batch_in_parts_gives_the_weights_of_a_whole_one(tmp_path: Path, parts: int) -> None:
    fits = [
        replace(training(tmp_path / name), run=replace(RUN, parts=count))
        for name, count in (("whole", 1), ("parts", parts))
    ]
    for fit in fits:
        fit.loss.layers[2].p = 0.0  # dropout draws other numbers for a part than for a whole batch
    whole, in_parts = (fit()["error"] for fit in fits)
    assert in_parts == pytest.approx(whole, rel=1e-5)
    told = [[line["loss"] for line in read_metrics(fit.directory) if "loss" in line] for fit in fits]
    assert told[1] == pytest.approx(told[0], rel=1e-5)
    torch.testing.assert_close(weights(fits[1]), weights(fits[0]), rtol=1e-4, atol=1e-6)


class Killed(Exception):
    pass


class Mortal(Points):
    """Samples whose reading fails after some batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def batch(self, rows: np.ndarray) -> tuple[Tensor, ...]:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().batch(rows)


@pytest.mark.parametrize("batches", [1, 7, 16, 29])
def test_a_run_that_broke_off_goes_on_to_the_same_weights_and_metrics(tmp_path: Path, batches: int) -> None:
    whole, broken = training(tmp_path / "whole"), tmp_path / "broken"
    figures = whole()
    eager = replace(RUN, checkpoint_seconds=0.0)
    with pytest.raises(Killed):
        replace(training(broken, points=Mortal(batches)), run=eager)()
    resumed = training(broken)
    assert resumed() == figures
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))
    told = [[line | {"seconds": 0} for line in read_metrics(d)] for d in (tmp_path / "whole", broken)]
    assert told[0] == told[1]


def test_a_killed_process_resumes_to_the_same_weights(tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", LONG)
    whole()
    process = subprocess.Popen([sys.executable, __file__, str(tmp_path / "killed")], env=ENVIRONMENT)
    checkpoint = tmp_path / "killed" / CHECKPOINT
    deadline = time.monotonic() + 60
    while not checkpoint.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    resumed = training(tmp_path / "killed", LONG)
    resumed()
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))


def test_a_loss_that_is_not_a_number_names_its_batch_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    fit = replace(training(tmp_path, points=Points(spoilt=17)), run=replace(RUN, checkpoint_seconds=0.0))
    with pytest.raises(TrainingError, match="the loss is nan at step"):
        fit()
    report = json.loads((tmp_path / "diverged.json").read_text())
    assert 17 in report["rows"]
    assert len(report["rows"]) == 8
    assert (tmp_path / CHECKPOINT).exists() == (report["step"] > 0)


def test_a_loss_that_grows_for_good_is_noticed() -> None:
    watch = Watch()
    assert not any(watch.trouble(1.0, 1.0) for _ in range(100))
    trouble = [watch.trouble(30.0, 1.0) for _ in range(60)]
    assert trouble[0] == ""
    assert "times its lowest" in trouble[-1]
    assert "gradient" in Watch().trouble(1.0, math.inf)


def test_every_epoch_sees_every_sample_once() -> None:
    order = Order(10, seed=4)
    rows = np.concatenate([order.rows(first, 4) for first in range(0, 40, 4)])
    for epoch in range(4):
        assert sorted(rows[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert not np.array_equal(rows[:10], rows[10:20])
    assert np.array_equal(Order(10, seed=4).rows(17, 6), rows[17:23])


def test_rates_follow_their_schedule() -> None:
    cosine = OptimiserSettings(lr=2.0, schedule="cosine", warmup=4)
    assert [rate_at(cosine, step, 12) for step in (0, 3, 4, 8)] == pytest.approx([0.5, 2.0, 2.0, 1.0])
    assert rate_at(cosine, 12, 12) == pytest.approx(0.0)
    assert rate_at(OptimiserSettings(lr=2.0), 7, 12) == 2.0


def test_samples_limit_the_steps() -> None:
    assert FitSettings(optimiser=ADAMW, epochs=2, batch=10).steps(100) == 20
    assert FitSettings(optimiser=ADAMW, epochs=2, batch=10, max_samples=50).steps(100) == 5
    with pytest.raises(UsageError, match="at least one batch"):
        FitSettings(optimiser=ADAMW, batch=10, max_samples=5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.0}, "--fit.optimiser.lr above 0, got 0.0"),
        ({"lr": math.nan}, "--fit.optimiser.lr above 0, got nan"),
        ({"weight_decay": -1.0}, "--fit.optimiser.weight-decay of at least 0, got -1.0"),
        ({"warmup": -1}, "--fit.optimiser.warmup of at least 0, got -1"),
        ({"clip": 0.0}, "--fit.optimiser.clip above 0, got 0.0"),
        ({"ema": 1.0}, "--fit.optimiser.ema from 0 to below 1, got 1.0"),
    ],
)
def test_an_optimiser_that_makes_no_sense_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        replace(ADAMW, **changes)


LONG = replace(SETTINGS, epochs=40)
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}

if __name__ == "__main__":
    replace(training(Path(sys.argv[1]), LONG), run=replace(RUN, checkpoint_seconds=0.0))()
