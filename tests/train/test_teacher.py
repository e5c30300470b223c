import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.train.conftest import World

from scope_wm.cli import main
from scope_wm.data.token_cache import ON_THE_FLY
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.train.dynamics import held_out_figures
from scope_wm.train.finished import open_teacher
from scope_wm.train.recorder import read_metrics
from scope_wm.train.state import CHECKPOINT
from scope_wm.train.teacher import train_teacher
from scope_wm.types import MadeOtherwise, UsageError


def losses(directory: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(directory) if "loss" in line]


def test_a_teacher_is_a_complete_model_directory(world: World) -> None:
    trained = TrainedModel.from_pretrained(world.teacher.out)
    config = trained.config
    assert (config.task, config.frameskip, config.history, config.selector.k) == ("wall", 5, 2, 196)
    assert (config.tokens.visual, config.tokens.proprio, config.tokens.action) == (6, 2, 10)
    assert trained.load_encoder().dim == 6
    made = read_header(world.teacher.out)[0]["made"]
    assert made["stage"] == "teacher"
    assert made["settings"]["fit"]["optimiser"]["lr"] == 2e-3
    assert set(made["figures"]) >= {"one_step_of_copy", "rollout_of_copy", "loss_held_out"}


def test_tokens_made_on_the_fly_give_the_same_loss_curve(world: World, tmp_path: Path) -> None:
    train_teacher(
        replace(world.teacher, tokens=ON_THE_FLY, encoder=str(world.encoder), out=tmp_path / "live")
    )
    assert losses(tmp_path / "live") == losses(world.teacher.out)
    assert len(losses(tmp_path / "live")) == 8


def test_a_finished_teacher_is_not_trained_again_and_another_is_not_written_over(
    world: World, tmp_path: Path
) -> None:
    weights = (world.teacher.out / "model.safetensors").stat().st_mtime_ns
    train_teacher(world.teacher)
    with pytest.raises(MadeOtherwise, match=r"fit\.batch: 8 there, 4 here"):
        train_teacher(replace(world.teacher, fit=replace(world.teacher.fit, batch=4)))
    assert (world.teacher.out / "model.safetensors").stat().st_mtime_ns == weights


def test_a_model_that_has_learned_nothing_is_as_good_as_copying(world: World, tmp_path: Path) -> None:
    fit = replace(world.teacher.fit, optimiser=replace(world.teacher.fit.optimiser, lr=1e-9))
    train_teacher(replace(world.teacher, fit=fit, out=tmp_path / "idle"))
    figures = read_header(tmp_path / "idle")[0]["made"]["figures"]
    assert figures["one_step_of_copy"] == pytest.approx(1.0)
    assert figures["rollout_of_copy"] == pytest.approx(1.0)


def test_episodes_in_which_nothing_moves_are_refused(world: World) -> None:
    opened = open_teacher(world.teacher.out, world.data, str(world.tokens), "cpu")
    (window, *_) = opened.experience().held_out
    still = window._replace(visual=window.visual[:, :1].expand_as(window.visual))
    with pytest.raises(UsageError, match="nothing moves in the episodes to judge with"):
        held_out_figures(opened.load().world_model, [still])


def test_mixed_precision_keeps_weights_whole(world: World, tmp_path: Path) -> None:
    fit, run = replace(world.teacher.fit, max_samples=16), replace(world.teacher.run, precision="bfloat16")
    train_teacher(replace(world.teacher, fit=fit, run=run, out=tmp_path / "half"))
    assert read_header(tmp_path / "half")[0]["made"]["precision"] == "bfloat16"
    weights = TrainedModel.from_pretrained(tmp_path / "half").world_model.predictor.positions
    assert weights.dtype == torch.float32
    assert torch.isfinite(weights).all()
    half, whole = losses(tmp_path / "half")[0], losses(world.teacher.out)[0]
    assert half != whole
    assert half == pytest.approx(whole, rel=0.02)


def options(world: World, samples: int, out: Path) -> list[str]:
    model = "--model.history 2 --model.embedding 3 --model.output residual --model.transformer.depth 1 "
    model += "--model.transformer.heads 2 --model.transformer.head-width 8 --model.transformer.mlp-width 16 "
    model += (
        f"--model.transformer.dropout 0 --fit.optimiser.lr 2e-3 --fit.max-samples {samples} --fit.batch 8 "
    )
    model += f"--run.log-every 1 --run.device cpu --data {world.data} --tokens {world.tokens} --out {out}"
    return ["train", "teacher", *model.split()]


def test_a_killed_command_resumes_to_the_same_weights(world: World, tmp_path: Path) -> None:
    whole, killed = (options(world, 800, tmp_path / name) for name in ("whole", "killed"))
    command = [sys.executable, "-m", "scope_wm", *killed, "--run.checkpoint-seconds", "0"]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while not (tmp_path / "killed" / CHECKPOINT).exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "config.json").exists()
    assert main(whole) == main(killed) == 0
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert first == second


def test_two_processes_have_the_losses_of_one(world: World, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1"]
    for count in ("1", "2"):
        how = ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_processes", count]
        asked = [*options(world, 48, tmp_path / count), "--run.parts", count]  # also in as many parts
        command = [*launch, *how, "-m", "scope_wm", *asked]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    one, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert len(one) == 6
    assert two == pytest.approx(one, rel=1e-4)
    assert TrainedModel.from_pretrained(tmp_path / "2").config.history == 2
