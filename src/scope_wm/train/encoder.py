"""Train the small encoder: distil the tokens of a large one, over frames of several tasks.

    loss = mean_i  || student(frame_i) - y_i ||^2 / v(task of i)          y = PCA(teacher(frame))

v is how much the targets of a task vary at their places, among training frames that are not altered: a small
ball in a maze changes ten times less than a block that is pushed about, and without v would not be learned.
Held out are frames of validation episodes:

    R^2 = 1 - error / variance          beyond position: the variance is that around the mean of each place
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from accelerate import PartialState
from jaxtyping import Float, Int
from torch import Tensor, nn

from scope_wm.data.progress import progress
from scope_wm.data.token_cache import choose_device
from scope_wm.model.encoder import EncoderConfig, HubEncoder
from scope_wm.model.reduced import ReducedEncoder
from scope_wm.model.student import Student, StudentConfig
from scope_wm.records import to_json
from scope_wm.train.encoder_targets import Part, Targets, choose_parts, fit_targets_pca, make_targets
from scope_wm.train.loop import Fit, FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, making
from scope_wm.types import UsageError

BATCH = 50  # of validation
SPREAD_FRAMES = 500  # of every store, to see how much the targets vary
PCA_FILE = "pca.safetensors"


@dataclass(frozen=True, kw_only=True)
class TrainEncoderSettings:
    """Distil a small encoder from a large one, over frames of several stores.

    Example: scope-wm train encoder --teacher facebook/dinov2-small --data data/push_t data/wall --out student
    """

    teacher: str
    """directory or hub id of the large encoder"""
    data: tuple[Path, ...]
    """stores, one for each task"""
    out: Path
    """directory of the student"""
    layer: int = 9
    """layer of the teacher whose tokens are learned; the middle ones know best where things are"""
    frames: int = 3000
    """frames of every store to learn from"""
    held_out: int = 200
    """frames of every store's validation episodes to judge with"""
    student: StudentConfig = field(default_factory=StudentConfig)
    """sizes of the student"""
    fit: FitSettings = field(
        default_factory=lambda: FitSettings(
            optimiser=OptimiserSettings(
                lr=2e-3, weight_decay=0.05, schedule="cosine", warmup=200, clip=1.0, ema=0.999
            ),
            epochs=12,
            batch=32,
        )
    )
    """how to train"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""

    def __post_init__(self) -> None:
        """Refuse what cannot be trained from."""
        if not self.data:
            raise UsageError("expected --data with at least one store")


class DistillationLoss(nn.Module):
    """The error of a student, each task's on the scale of how much its targets vary."""

    def __init__(self, student: Student, variance: Float[Tensor, " tasks"]) -> None:
        super().__init__()
        self.student = student
        self.variance: Tensor
        self.register_buffer("variance", variance)

    def forward(
        self, frames: Tensor, targets: Float[Tensor, "B N V"], task: Int[Tensor, " B"]
    ) -> Float[Tensor, ""]:
        """Return the mean error of a batch."""
        error = (self.student(frames) - targets).square().mean((1, 2))
        return (error / self.variance[task]).mean()


def train_encoder(settings: TrainEncoderSettings) -> None:
    """Make the targets, train the student on them, and write it."""
    parts = choose_parts(list(settings.data), settings.frames, settings.held_out, settings.fit.seed)
    teacher = HubEncoder(EncoderConfig(source=settings.teacher, layer=settings.layer))
    teacher.to(choose_device(settings.run.device))
    folder = settings.out / "targets"
    with making(settings.out, encoder_recipe(settings, teacher, parts), settings.run) as work:
        if work is not None:
            if work.first:
                all_targets(teacher, parts, settings.student.dim, folder)
            PartialState().wait_for_everyone()
            student, figures = fit_student(settings, parts, folder)
            work.finish(figures, lambda made: student.save_pretrained(settings.out, torch.float16, made))
    # Gigabytes that nobody needs any more; perhaps those of a run that was killed when it had just finished.
    shutil.rmtree(folder, ignore_errors=True)


def fit_student(
    settings: TrainEncoderSettings, parts: tuple[list[Part], list[Part]], folder: Path
) -> tuple[Student, dict[str, float]]:
    """Train the student, and return it with its figures."""
    samples, held_out = (Targets(folder, part) for part in parts)
    variance = torch.stack([spread_at_places(tokens) for _, tokens in by_part(samples, SPREAD_FRAMES)])
    torch.manual_seed(settings.fit.seed)
    student = Student(settings.student)
    fit = Fit(
        loss=DistillationLoss(student, variance),
        samples=samples,
        settings=settings.fit,
        validate=lambda: agreement(student, held_out, variance, [part.name for part in parts[1]]),
        best="error",
        directory=settings.out,
        run=settings.run,
    )
    return student, dict(fit()) | {"kept_by_pca": kept_by_pca(folder)}


def encoder_recipe(
    settings: TrainEncoderSettings, teacher: HubEncoder, parts: tuple[list[Part], list[Part]]
) -> Recipe:
    """Return what decides the student."""
    return Recipe(
        stage="encoder",
        settings={
            "layer": settings.layer,
            "frames": settings.frames,
            "held_out": settings.held_out,
            "student": to_json(settings.student),
            "fit": to_json(settings.fit),
        },
        inputs={"teacher": teacher.digest()} | {part.name: part.split.store.digest for part in parts[0]},
    )


def all_targets(teacher: HubEncoder, parts: tuple[list[Part], list[Part]], dim: int, folder: Path) -> None:
    """Make the targets that are not there yet."""
    training, validation = parts
    folder.mkdir(exist_ok=True)
    blocks = sum(len(list(part.blocks())) for part in (*training, *validation))
    with progress("blocks of targets", len(training) + blocks) as advance:
        pca = fit_targets_pca(teacher, training, dim, folder / PCA_FILE, advance)
        make_targets(ReducedEncoder(teacher, pca), [*validation, *training], folder, advance)


def kept_by_pca(folder: Path) -> float:
    """Return the share of the change of the teacher's tokens that the targets keep."""
    return float(safetensors.torch.load_file(folder / PCA_FILE)["explained"])


def spread_at_places(tokens: Float[Tensor, "n N V"]) -> Float[Tensor, ""]:
    """Return how much tokens vary around the mean of their place."""
    return (tokens - tokens.mean(0)).square().mean()


def agreement(
    student: Student, targets: Targets, weight: Float[Tensor, " tasks"], names: list[str]
) -> dict[str, float]:
    """Return how well the student's tokens agree with the targets, in all and for each part.

    `error` is on the scale of the loss, R^2 on that of the held-out targets themselves.
    """
    device = next(student.parameters()).device
    everything, errors = [], []
    for frames, tokens in by_part(targets):
        guesses = torch.cat([student(batch.to(device)).cpu() for batch in frames.split(BATCH)])
        errors.append((guesses - tokens).square().mean())
        everything.append(tokens)
    error, tokens = torch.stack(errors), torch.cat(everything)
    total = (tokens - tokens.mean((0, 1))).square().mean()
    variance = torch.stack([spread_at_places(part) for part in everything])
    beyond = 1 - error / variance
    return {
        "error": float((error / weight).mean()),
        "R2": float(1 - error.mean() / total),
        "R2_beyond_position": float(1 - error.mean() / variance.mean()),
    } | {f"R2_beyond_position/{name}": float(value) for name, value in zip(names, beyond, strict=True)}


def by_part(targets: Targets, most: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the frames and targets of every part, so many at most, that are not altered."""
    for part in np.unique(targets.part):
        yield targets.batch(np.flatnonzero((targets.part == part) & ~targets.altered)[:most])[:2]
