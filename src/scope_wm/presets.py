"""Named settings of the whole pipeline: paper, lite, tiny; one plain function each.

    paper    the paper's sizes and settings: DINOv2 tokens, for GPUs
    lite     for a laptop: the shipped encoder's 14 x 14 tokens of 64 channels, one frame of history
    tiny     the whole chain in minutes, to see that it works; its models are not good

A preset says what to make of a task; `pipeline/stages.py` says in what order and where.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from scope_wm.evaluate.settings import PROTOCOLS, TaskName
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.encoders import SHIPPED
from scope_wm.model.transformer import TransformerConfig
from scope_wm.train import distill, sparse, teacher
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.teacher import DynamicsConfig

PresetName = Literal["paper", "lite", "tiny"]


@dataclass(frozen=True, kw_only=True)
class SelectorPreset:
    """How the selector is distilled."""

    windows: int = distill.PAPER_WINDOWS
    hidden: int = distill.PAPER_HIDDEN
    fit: FitSettings = distill.PAPER_FIT


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
    instances: int
    max_steps: int | None = None  # of control; None: as in the paper


def paper(task: TaskName) -> Preset:
    """Return the paper's settings for a task."""
    episodes = {"point_maze": 2000, "wall": 1920, "push_t": 18685, "rope": 1000, "granular": 1000}
    batch = 64 if task in ("rope", "granular") else sparse.PAPER_FIT.batch
    return Preset(
        episodes=episodes[task],
        sparse=replace(sparse.PAPER_FIT, batch=batch),
        instances=PROTOCOLS[task].instances,
    )


def lite(task: TaskName) -> Preset:
    """Return settings with which a laptop trains a task in an evening."""
    # The dot of Wall is soon learned; what blocks and ropes do takes longer.
    dense_samples, sparse_samples = (120_000, 240_000) if task == "wall" else (300_000, 500_000)
    return Preset(
        episodes={"point_maze": 1000, "wall": 800, "push_t": 1500, "rope": 1000, "granular": 1000}[task],
        encoder=EncoderConfig(source=SHIPPED),
        model=DynamicsConfig(
            history=1,
            transformer=TransformerConfig(depth=4, heads=4, head_width=32, mlp_width=256, dropout=0.0),
            output="residual",
        ),
        teacher=small_fit(samples=dense_samples, batch=64),
        selector=SelectorPreset(
            hidden=64,
            fit=FitSettings(
                optimiser=OptimiserSettings(lr=2e-3, weight_decay=1e-4, schedule="cosine"),
                epochs=40,
                batch=64,
            ),
        ),
        sparse=small_fit(samples=sparse_samples, batch=64),
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
