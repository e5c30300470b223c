"""Named settings of the whole pipeline: paper, lite, tiny; one plain function each.

    paper    the paper's sizes and settings: DINOv2 tokens, for GPUs
    lite     for a laptop: the shipped encoder's 14 x 14 tokens of 64 channels, one frame of history
    tiny     the whole chain in minutes, to see that it works; its models are not good

A preset says what to make of a task; `run.py` says in what order and where.
"""

from dataclasses import dataclass, field
from typing import Literal

from scope_wm.evaluate.settings import PROTOCOLS, TaskName
from scope_wm.model.architecture import BackgroundConfig
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.encoders import SHIPPED
from scope_wm.model.transformer import TransformerConfig
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.teacher import DynamicsConfig

PresetName = Literal["paper", "lite", "tiny"]


@dataclass(frozen=True, kw_only=True)
class SelectorPreset:
    """How the selector is distilled."""

    windows: int = 3200
    hidden: int = 128
    fit: FitSettings


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Everything that a run of one task is made with."""

    episodes: int
    encoder: EncoderConfig
    model: DynamicsConfig
    teacher: FitSettings
    selector: SelectorPreset
    sparse: FitSettings
    ks: tuple[int, ...] = (98, 32)
    background: BackgroundConfig = field(default_factory=lambda: BackgroundConfig(kind="foreground-delta"))
    instances: int
    max_steps: int | None = None  # of control; None: as in the paper


def paper(task: TaskName) -> Preset:
    """Return the paper's settings for a task."""
    table = task in ("rope", "granular")
    return Preset(
        episodes={"point_maze": 2000, "wall": 1920, "push_t": 18685, "rope": 1000, "granular": 1000}[task],
        encoder=EncoderConfig(),
        model=DynamicsConfig(),
        teacher=FitSettings(optimiser=OptimiserSettings(lr=5e-4, weight_decay=0.01), epochs=100, batch=32),
        selector=SelectorPreset(
            fit=FitSettings(optimiser=OptimiserSettings(lr=3e-4, weight_decay=1e-4), epochs=80, batch=256)
        ),
        sparse=FitSettings(
            optimiser=OptimiserSettings(lr=1e-4, weight_decay=0.01), epochs=100, batch=64 if table else 512
        ),
        instances=PROTOCOLS[task].instances,
    )


def lite(task: TaskName) -> Preset:
    """Return settings with which a laptop trains a task in an evening."""
    teacher, sparse = {"wall": (120_000, 240_000)}.get(task, (300_000, 500_000))
    return Preset(
        episodes={"point_maze": 1000, "wall": 800, "push_t": 1500, "rope": 1000, "granular": 1000}[task],
        encoder=EncoderConfig(source=SHIPPED),
        model=DynamicsConfig(
            history=1,
            transformer=TransformerConfig(depth=4, heads=4, head_width=32, mlp_width=256, dropout=0.0),
            output="residual",
        ),
        teacher=small_fit(samples=teacher, batch=64),
        selector=SelectorPreset(
            hidden=64,
            fit=FitSettings(
                optimiser=OptimiserSettings(lr=2e-3, weight_decay=1e-4, schedule="cosine"),
                epochs=40,
                batch=64,
            ),
        ),
        sparse=small_fit(samples=sparse, batch=64),
        instances=PROTOCOLS[task].instances,
    )


def tiny(task: TaskName) -> Preset:
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
        instances=2,
        max_steps=1,
    )


def small_fit(*, samples: int, batch: int) -> FitSettings:
    """Return how small models are trained for so many samples, whatever the size of the store."""
    return FitSettings(
        optimiser=OptimiserSettings(lr=2e-3, schedule="cosine", warmup=100, clip=1.0, ema=0.998),
        epochs=1000,
        max_samples=samples,
        batch=batch,
    )


PRESETS = {"paper": paper, "lite": lite, "tiny": tiny}
