"""Train the dense world model: the teacher of the selector, and the yardstick of the sparse models.

loss = MSE of frames 2..H+1 predicted from 1..H, visual and proprio channels
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from scope_wm.data.split import open_splits
from scope_wm.data.token_cache import open_tokens
from scope_wm.files import only_writer
from scope_wm.model.architecture import BackgroundConfig, ModelConfig, SelectorConfig, build
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import TokenConfig
from scope_wm.records import to_json
from scope_wm.tasks import TASKS
from scope_wm.train.dynamics import Experience, PredictionLoss, held_out_figures, open_experience
from scope_wm.train.loop import Fit, FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, begin, finish


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
    fit: FitSettings = field(
        default_factory=lambda: FitSettings(optimiser=OptimiserSettings(lr=5e-4, weight_decay=0.01))
    )
    """how to train"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""


def train_teacher(settings: TrainTeacherSettings) -> None:
    """Train the dense model, unless it is finished, and write it."""
    encoder = EncoderConfig(source=settings.encoder)
    tokens = open_tokens(settings.tokens, settings.data, encoder, settings.run.device)
    recipe = Recipe(
        stage="teacher",
        settings={"model": to_json(settings.model), "fit": to_json(settings.fit)},
        inputs={"tokens": tokens.digest},
    )
    if not begin(settings.out, recipe):
        return
    with only_writer(settings.out):
        kind = TASKS[open_splits(settings.data).training.store.config.task]
        history = settings.model.history or kind.history
        experience = open_experience(settings.data, tokens, history=history, frameskip=kind.frameskip)
        config = dense_config(experience, settings.model, history, kind.frameskip)
        torch.manual_seed(settings.fit.seed)
        trained = TrainedModel(config=config, world_model=build(config))
        figures = fit_dynamics(trained, experience, settings.fit, settings.run, settings.out)
        trained.save_pretrained(settings.out, made=recipe.made() | {"figures": figures})
        finish(settings.out)


def dense_config(experience: Experience, model: DynamicsConfig, history: int, frameskip: int) -> ModelConfig:
    """Return the complete description of a dense model of this experience."""
    values, tokens = experience.statistics, experience.tokens.training
    return ModelConfig(
        task=experience.task,
        frameskip=frameskip,
        statistics=values,
        encoder=tokens.encoder,
        tokens=TokenConfig(
            num_tokens=tokens.num_tokens,
            visual=tokens.dim,
            proprio=len(values.proprio_mean),
            action=frameskip * len(values.action_mean),
            embedding=model.embedding,
        ),
        history=history,
        transformer=model.transformer,
        selector=SelectorConfig(kind="every-token", k=tokens.num_tokens),
        background=BackgroundConfig(kind="copy"),
        output=model.output,
    )


def fit_dynamics(
    trained: TrainedModel, experience: Experience, fit: FitSettings, run: RunSettings, out: Path
) -> dict[str, float]:
    """Train what is not frozen of a world model; the best weights are those of the best rollouts."""
    model = trained.world_model
    training = Fit(
        loss=PredictionLoss(model),
        samples=experience.training,
        settings=fit,
        validate=lambda: held_out_figures(model, experience.held_out),
        best="rollout_of_copy",
        directory=out,
        run=run,
    )
    return dict(training())
