"""A small world to train in: a few episodes of Wall, and their tokens from an untrained small encoder."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.encode import EncodeSettings, encode
from scope_wm.model.student import Student, StudentConfig
from scope_wm.model.transformer import TransformerConfig
from scope_wm.train.distill import TrainSelectorSettings, train_selector
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.teacher import DynamicsConfig, TrainTeacherSettings, train_teacher

FIT = FitSettings(optimiser=OptimiserSettings(lr=2e-3), max_samples=64, batch=8, validations=2)
RUN = RunSettings(device="cpu", log_every=1)


@dataclass(frozen=True, kw_only=True)
class World:
    """Where things are, and how the dense model is trained."""

    data: Path
    tokens: Path
    encoder: Path
    teacher: TrainTeacherSettings
    selector: TrainSelectorSettings


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    data, tokens, eye = folder / "data", folder / "tokens", folder / "encoder"
    torch.manual_seed(0)
    Student(StudentConfig(dim=6, width=16, stages=1, heads=2)).save_pretrained(eye)
    collect(CollectSettings(task="wall", episodes=10, length=30, out=data, workers=1))
    encode(EncodeSettings(data=data, out=tokens, encoder=str(eye), device="cpu", workers=1))
    teacher = TrainTeacherSettings(
        data=data,
        tokens=str(tokens),
        out=folder / "teacher",
        model=DynamicsConfig(
            history=2,
            embedding=3,
            transformer=TransformerConfig(depth=1, heads=2, head_width=8, mlp_width=16),
            output="residual",
        ),
        fit=FIT,
        run=RUN,
    )
    selector = TrainSelectorSettings(
        teacher=teacher.out,
        data=data,
        tokens=str(tokens),
        out=folder / "selector",
        windows=40,
        hidden=8,
        fit=replace(FIT, max_samples=None, epochs=30),
        run=RUN,
    )
    train_teacher(teacher)
    train_selector(selector)
    return World(data=data, tokens=tokens, encoder=eye, teacher=teacher, selector=selector)
