"""Named settings of the whole pipeline: paper, lite, tiny; one plain function each.

    paper    the paper's sizes and settings: DINOv2 tokens, for GPUs
    lite     for a laptop: the shipped encoder's 14 x 14 tokens of 64 channels, one frame of history
    tiny     the whole chain in minutes, to see that it works; its models are not good

A preset says what to make of a task; `pipeline/stages.py` says in what order and where.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from scope_wm.evaluate.settings import protocol_of
from scope_wm.model.architecture import BackgroundConfig, EncoderReference, ModelConfig, SelectorConfig
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.encoders import SHIPPED
from scope_wm.model.transformer import TransformerConfig
from scope_wm.tasks import find_task
from scope_wm.train import distill, sparse, teacher
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.refine import FRAMES
from scope_wm.train.teacher import DynamicsConfig, dense_config
from scope_wm.types import Statistics

PresetName = Literal["paper", "lite", "tiny"]


@dataclass(frozen=True, kw_only=True)
class SelectorPreset:
    """How the selector is distilled."""

    windows: int = distill.PAPER_WINDOWS
    hidden: int = distill.PAPER_HIDDEN
    fit: FitSettings = distill.PAPER_FIT


@dataclass(frozen=True, kw_only=True)
class RefinePreset:
    """How models are trained further on what they imagine."""

    frames: int = FRAMES
    fit: FitSettings


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Everything that a run of one task is made with; the defaults are the paper's."""

    episodes: int
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    model: DynamicsConfig = field(default_factory=DynamicsConfig)
    teacher: FitSettings = teacher.PAPER_FIT
    selector: SelectorPreset = SelectorPreset()
    sparse: FitSettings = sparse.PAPER_FIT
    ks: tuple[int, ...] = (98, 32)
    refine: RefinePreset | None = None  # None: as in the paper, not at all
    instances: int
    max_steps: int | None = None  # of control; None: as in the paper

    def untrained(self, task: str, *, num_tokens: int, visual: int, k: int | None = None) -> ModelConfig:
        """Describe a model to measure with, which keeps K of an encoder's tokens, or all: the dense one.

        Values are not standardised, for there is no data to do it with.
        """
        kind = find_task(task)
        action, proprio = np.zeros(kind.action_width), np.zeros(kind.proprio_width)
        plain = Statistics(
            action_mean=action, action_std=action + 1, proprio_mean=proprio, proprio_std=proprio + 1
        )
        encoder = EncoderReference(config=self.encoder, digest="")
        dense = dense_config(task, plain, self.model, encoder, num_tokens=num_tokens, visual=visual)
        if k is None:
            return dense
        selector = SelectorConfig(kind="distilled", k=k, hidden=self.selector.hidden)
        return replace(dense, selector=selector, background=BackgroundConfig(kind="foreground-delta"))


def paper(task: str) -> Preset:
    """Return the paper's settings for a task."""
    episodes = {"point_maze": 2000, "wall": 1920, "push_t": 18685, "rope": 1000, "granular": 1000}
    batch = 64 if task in ("rope", "granular") else sparse.PAPER_FIT.batch
    return Preset(
        episodes=episodes.get(task, 2000),
        sparse=replace(sparse.PAPER_FIT, batch=batch),
        instances=protocol_of(task).instances,
    )


def lite(task: str) -> Preset:
    """Return settings with which a laptop trains a task in an evening."""
    # The others have as many as Wall, until their errors ask for more.
    samples = 300_000 if task == "push_t" else 120_000
    # With K = 32, 1e-3 refines better than 2e-4 on Push-T, worse on Wall and PointMaze; others: not tried.
    rate = 1e-3 if task == "push_t" else 2e-4
    return Preset(
        episodes=1500 if task == "push_t" else 1000,
        encoder=EncoderConfig(source=SHIPPED),
        model=DynamicsConfig(
            history=1,
            transformer=TransformerConfig(depth=4, heads=4, head_width=32, mlp_width=256, dropout=0.0),
            output="residual",
        ),
        teacher=small_fit(samples=samples, batch=32),
        selector=SelectorPreset(
            hidden=64,
            fit=FitSettings(
                optimiser=OptimiserSettings(lr=2e-3, weight_decay=1e-4, schedule="cosine"),
                epochs=40,
                batch=64,
            ),
        ),
        sparse=small_fit(samples=samples, batch=32),
        refine=RefinePreset(fit=small_fit(samples=samples // 5, batch=16, lr=rate)),
        instances=protocol_of(task).instances,
    )


def tiny(task: str) -> Preset:
    """Return settings that take minutes and still learn something."""
    return Preset(
        episodes=40,
        encoder=EncoderConfig(source=SHIPPED),
        model=DynamicsConfig(
            history=1,
            transformer=TransformerConfig(depth=2, heads=2, head_width=32, mlp_width=128, dropout=0.0),
            output="residual",
        ),
        teacher=small_fit(samples=6_000, batch=32),
        selector=SelectorPreset(
            windows=400,
            hidden=64,
            fit=FitSettings(
                optimiser=OptimiserSettings(lr=3e-3, weight_decay=1e-4, schedule="cosine"),
                epochs=15,
                batch=32,
            ),
        ),
        sparse=small_fit(samples=6_000, batch=32),
        ks=(32,),
        refine=RefinePreset(fit=small_fit(samples=1_600, batch=16, lr=1e-3, warmup=10)),
        instances=2,
        max_steps=1,
    )


def small_fit(*, samples: int, batch: int, lr: float = 2e-3, warmup: int = 100) -> FitSettings:
    """Return how small models are trained for so many samples, whatever the size of the store."""
    return FitSettings(
        optimiser=OptimiserSettings(
            kind="muon", lr=lr, schedule="cosine", warmup=warmup, clip=1.0, ema=0.998
        ),
        epochs=1000,
        max_samples=samples,
        batch=batch,
    )


PRESETS = {"paper": paper, "lite": lite, "tiny": tiny}
