"""What a run would do, and how long it may take on this machine: `scope-wm run --dry-run`.

Nothing is made. The time of a stage is that of a small piece of its work, done now, times how many there are:
an episode, a batch of frames, a step on random tokens, some imagined candidates. An evaluation ends when its
problems are solved, so its time is between that of one step of control and that of all.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from scope_wm.data.collect import CollectSettings, record
from scope_wm.data.encode import EncodeSettings
from scope_wm.elite_bank import FIRST_STEP, LATER_STEPS
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.model.architecture import (
    BackgroundConfig,
    EncoderReference,
    ModelConfig,
    SelectorConfig,
    build,
)
from scope_wm.model.encoders import open_encoder
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import TokenConfig
from scope_wm.pipeline.stages import PipelineSettings, Stage
from scope_wm.presets import PRESETS
from scope_wm.tasks import TASKS
from scope_wm.tasks.task import episode_rng
from scope_wm.train.decoder import TrainDecoderSettings
from scope_wm.train.distill import TrainSelectorSettings
from scope_wm.train.dynamics import PredictionLoss
from scope_wm.train.loop import FitSettings
from scope_wm.train.sparse import TrainSparseSettings
from scope_wm.train.teacher import TrainTeacherSettings
from scope_wm.types import IMAGE_SIZE, MadeOtherwise, Statistics

FINISHED = "finished"
PIECE = 8  # frames, windows or candidates that are timed


def show_plan(asked: PipelineSettings, plan: list[Stage]) -> None:
    """Print every stage with its state and how long it may take."""
    table = Table("stage", "state", "may take")
    estimate, total, pending = Estimate(asked), 0.0, set[str]()
    for stage in plan:
        waits = [name for name in stage.after if name in pending]
        state = f"after {waits[-1]}" if waits else state_of(stage)
        if state == FINISHED:
            table.add_row(stage.name, state, "")
            continue
        pending.add(stage.name)
        least, most = estimate.seconds(stage)
        total += most
        table.add_row(stage.name, state, between(least, most))
    console = Console()
    console.print(table)
    console.print(f"In all at most about {between(total, total)} on this machine, into {asked.path}")


def state_of(stage: Stage) -> str:
    """Tell what would happen to a stage whose inputs are finished."""
    try:
        if stage.is_finished():
            return FINISHED
    except MadeOtherwise:
        return "to be made again, for its settings or inputs have changed"
    return "to be made, or gone on with"


def between(least: float, most: float) -> str:
    """Return a span of seconds as text."""
    ends = dict.fromkeys(str(timedelta(seconds=round(end))) for end in (least, most))
    return " to ".join(ends)


def timed(piece: Callable[[], object]) -> float:
    """Return the seconds of a piece of work, done once before to be warm."""
    piece()
    began = time.perf_counter()
    piece()
    return time.perf_counter() - began


@dataclass(frozen=True)
class Estimate:
    """How long the stages of one run may take."""

    asked: PipelineSettings

    def seconds(self, stage: Stage) -> tuple[float, float]:
        """Return the least and the most seconds of a stage from its beginning."""
        settings = stage.settings
        match settings:
            case CollectSettings():
                most = settings.episodes * timed(self.episode) / self.workers
            case EncodeSettings():
                most = self.frames * timed(self.frame_batch) / PIECE / self.workers
            case TrainTeacherSettings():
                most = self.training(settings.fit, self.dense())
            case TrainSparseSettings():
                most = self.training(settings.fit, self.sparse(settings.k))
            case TrainSelectorSettings():
                most = settings.windows * timed(self.step(self.dense())) / PIECE
            case TrainDecoderSettings():
                most = settings.fit.steps(self.frames) * settings.fit.batch * timed(self.frame_batch) / PIECE
            case EvaluateSettings():
                return self.evaluation(settings)
        return most, most

    @property
    def workers(self) -> int:
        """Return how many processes share a stage that is not a training."""
        return self.asked.workers or os.cpu_count() or 1

    @property
    def frames(self) -> int:
        """Return how many frames are collected, at most."""
        return PRESETS[self.asked.preset](self.asked.task).episodes * TASKS[self.asked.task].episode_length

    def episode(self) -> object:
        """Collect one episode."""
        task = TASKS[self.asked.task]()
        return record(task, episode_rng(0, 0), task.episode_length)

    def frame_batch(self) -> object:
        """Encode some frames."""
        encoder = open_encoder(PRESETS[self.asked.preset](self.asked.task).encoder)
        return encoder(torch.zeros(PIECE, IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8))

    def dense(self) -> ModelConfig:
        """Return a dense model of the right sizes."""
        preset, task = PRESETS[self.asked.preset](self.asked.task), TASKS[self.asked.task]
        encoder = open_encoder(preset.encoder)
        action, proprio = np.zeros(task.action_width), np.zeros(task.proprio_width)
        return ModelConfig(
            task=self.asked.task,
            frameskip=task.frameskip,
            statistics=Statistics(
                action_mean=action, action_std=action + 1, proprio_mean=proprio, proprio_std=proprio + 1
            ),
            encoder=EncoderReference(config=preset.encoder, digest=""),
            tokens=TokenConfig(
                num_tokens=encoder.num_tokens,
                visual=encoder.dim,
                proprio=len(proprio),
                action=task.frameskip * len(action),
                embedding=preset.model.embedding,
            ),
            history=preset.model.history or task.history,
            transformer=preset.model.transformer,
            selector=SelectorConfig(kind="every-token", k=encoder.num_tokens),
            background=BackgroundConfig(kind="copy"),
            output=preset.model.output,
        )

    def sparse(self, k: int) -> ModelConfig:
        """Return a sparse model of the right sizes."""
        preset = PRESETS[self.asked.preset](self.asked.task)
        selector = SelectorConfig(kind="distilled", k=k, hidden=preset.selector.hidden)
        return replace(self.dense(), selector=selector, background=preset.background)

    def step(self, config: ModelConfig) -> Callable[[], object]:
        """Return a training step on some random windows."""
        loss, tokens, frames = PredictionLoss(build(config)), config.tokens, config.history + 1
        visual = torch.randn(PIECE, frames, tokens.num_tokens, tokens.visual)
        proprio, actions = (
            torch.randn(PIECE, frames, tokens.proprio),
            torch.randn(PIECE, frames - 1, tokens.action),
        )
        return lambda: loss(visual, proprio, actions).backward()

    def training(self, fit: FitSettings, config: ModelConfig) -> float:
        """Return the seconds of a training."""
        return fit.steps(self.frames) * fit.batch * timed(self.step(config)) / PIECE

    def evaluation(self, settings: EvaluateSettings) -> tuple[float, float]:
        """Return the seconds of an evaluation whose problems need one step of control, or all."""
        name = settings.model.model.rpartition("-k")[2]
        config = self.sparse(int(name)) if name.isdigit() else self.dense()
        model, tokens = build(config).eval(), config.tokens
        visual = torch.randn(PIECE, tokens.num_tokens, tokens.visual)
        proprio, actions = (
            torch.randn(PIECE, tokens.proprio),
            torch.randn(PIECE, settings.mpc.horizon, tokens.action),
        )
        with torch.no_grad():
            candidate = timed(lambda: rollout(model, visual, proprio, actions)) / PIECE
        first = FIRST_STEP if settings.search.planner == "eb-cem" else LATER_STEPS
        each = LATER_STEPS.samples * LATER_STEPS.iterations
        once = first.samples * first.iterations
        later = (settings.mpc.max_steps - 1) * each
        share = settings.count * candidate / self.workers
        return share * once, share * (once + later)
