"""Train the dense world model: the teacher of the selector, and the yardstick of the sparse models.

loss = MSE of frames 2..H+1 predicted from 1..H, visual and proprio channels
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from scope_wm.data.split import open_splits
from scope_wm.data.token_cache import SplitTokens, open_tokens
from scope_wm.model.architecture import BackgroundConfig, EncoderReference, ModelConfig, SelectorConfig, build
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import TokenConfig
from scope_wm.records import to_json
from scope_wm.tasks import find_task
from scope_wm.train.dynamics import Dynamics, SelectBy, open_experience
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, making
from scope_wm.types import Statistics

PAPER_FIT = FitSettings(optimiser=OptimiserSettings(lr=5e-4, weight_decay=0.01), epochs=100, batch=32)


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig:
    """Sizes of a dense world model; the defaults are the paper's."""

    history: int | None = None
    """frames that the model sees at most; None: as in the paper, 3 or 1 by task"""
    embedding: int = 10
    """width of the embeddings of proprio and action"""
    transformer: TransformerConfig = field(default_factory=TransformerConfig)
    """sizes of the predictor"""
    output: Literal["absolute", "residual"] = "absolute"
    """what the predictor gives: the next token, or its change"""

    def history_of(self, task: str) -> int:
        """Return how many frames a model of a task sees at most."""
        return self.history or find_task(task).history


@dataclass(frozen=True, kw_only=True)
class TrainTeacherSettings:
    """Train the dense world model of a store's task.

    Example: scope-wm train teacher --data data/wall --tokens tokens/wall --out models/wall
    """

    data: Path
    """the store"""
    tokens: str
    """directory of its tokens, or on-the-fly: encode in the training loop"""
    out: Path
    """directory of the model"""
    encoder: str = "student"
    """the encoder when tokens are made on the fly"""
    model: DynamicsConfig = field(default_factory=DynamicsConfig)
    """sizes of the model"""
    fit: FitSettings = PAPER_FIT
    """how to train"""
    select_by: SelectBy = "rollout"
    """what chooses the best weights: held-out rollouts, or planning on instances that are not the test's"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""


def open_tokens_of(settings: TrainTeacherSettings) -> SplitTokens:
    """Open what the dense model learns from."""
    encoder = EncoderConfig(source=settings.encoder)
    return open_tokens(settings.tokens, settings.data, encoder, settings.run.device)


def teacher_recipe(settings: TrainTeacherSettings) -> Recipe:
    """Return what decides the dense model."""
    return Recipe(
        stage="teacher",
        settings={
            "model": to_json(settings.model),
            "fit": to_json(settings.fit),
            "select_by": settings.select_by,
        },
        inputs={"tokens": open_tokens_of(settings).digest},
    )


def train_teacher(settings: TrainTeacherSettings) -> None:
    """Train the dense model, unless it is finished, and write it."""
    with making(settings.out, teacher_recipe(settings), settings.run) as work:
        if work is None:
            return
        task = open_splits(settings.data).training.store.config.task
        tokens, history = open_tokens_of(settings), settings.model.history_of(task)
        frameskip = find_task(task).frameskip
        experience = open_experience(settings.data, tokens, history=history, frameskip=frameskip)
        eye, values = tokens.training, experience.statistics
        config = dense_config(
            task, values, settings.model, eye.encoder, num_tokens=eye.num_tokens, visual=eye.dim
        )
        torch.manual_seed(settings.fit.seed)
        trained = TrainedModel(config=config, world_model=build(config))
        training = Dynamics(trained=trained, experience=experience, select_by=settings.select_by)
        figures = training.fit(settings.fit, settings.run, settings.out)
        work.finish(figures, lambda made: trained.save_pretrained(settings.out, made=made))


def dense_config(
    task: str,
    statistics: Statistics,
    model: DynamicsConfig,
    encoder: EncoderReference,
    *,
    num_tokens: int,
    visual: int,
) -> ModelConfig:
    """Return the complete description of a dense model of an encoder's tokens and their width."""
    kind = find_task(task)
    return ModelConfig(
        task=task,
        frameskip=kind.frameskip,
        statistics=statistics,
        encoder=encoder,
        tokens=TokenConfig(
            num_tokens=num_tokens,
            visual=visual,
            proprio=kind.proprio_width,
            action=kind.frameskip * kind.action_width,
            embedding=model.embedding,
        ),
        history=model.history_of(task),
        transformer=model.transformer,
        selector=SelectorConfig(kind="every-token", k=num_tokens),
        background=BackgroundConfig(kind="copy"),
        output=model.output,
    )
