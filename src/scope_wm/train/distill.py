"""Train the selector: distil a dense model's relevance into a small head.

L_DRS = KL(q || softmax(s))        held out: KL, and recall of the teacher's top K, K / N by chance
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from scope_wm.data.progress import progress
from scope_wm.data.token_cache import choose_device
from scope_wm.evaluate.settings import expect_at_least
from scope_wm.files import CONFIG
from scope_wm.model.directory import WEIGHTS, load_weights, read_kind, write_directory
from scope_wm.records import from_json, to_json
from scope_wm.selector import RelevanceHead, distillation_loss, recall
from scope_wm.train.finished import FinishedModel, open_teacher
from scope_wm.train.loop import Fit, FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.relevance import RelevanceTargets, export_targets, joined
from scope_wm.train.stage import Recipe, making

KIND = "selector"
KS = (98, 32)  # of the paper's two models
HELD_OUT = 10  # one window in so many
PAPER_WINDOWS, PAPER_HIDDEN = 3200, 128
PAPER_FIT = FitSettings(optimiser=OptimiserSettings(lr=3e-4, weight_decay=1e-4), epochs=80, batch=256)


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Sizes of the head, and the hash of the dense model it was distilled from."""

    visual: int
    embedding: int
    hidden: int
    teacher: str


@dataclass(frozen=True, kw_only=True)
class TrainSelectorSettings:
    """Distil the relevance of a dense model into a selector.

    Example: scope-wm train selector --teacher models/wall --data data/wall --tokens tokens/wall --out drs
    """

    teacher: Path
    """directory of the dense model"""
    data: Path
    """the store that it was trained on"""
    tokens: str
    """directory of its tokens, or on-the-fly: encode where they are needed"""
    out: Path
    """directory of the selector"""
    windows: int = PAPER_WINDOWS
    """windows to compute the relevance of"""
    windows_at_once: int = 8
    """windows in one batch of the teacher"""
    hidden: int = PAPER_HIDDEN
    """width of the head"""
    fit: FitSettings = PAPER_FIT
    """how to train"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense; some windows are kept to judge with."""
        expect_at_least(self, {"windows": 2, "windows_at_once": 1, "hidden": 1})


class HeadLoss(nn.Module):
    """The divergence of the head's scores from the teacher's relevance."""

    def __init__(self, head: RelevanceHead) -> None:
        super().__init__()
        self.head = head

    def forward(
        self,
        visual: Float[Tensor, "B H N V"],
        proprio: Float[Tensor, "B H E"],
        action: Float[Tensor, "B H E"],
        q: Float[Tensor, "B H N"],
    ) -> Float[Tensor, ""]:
        """Return the mean over frames."""
        return distillation_loss(self.head(visual, proprio, action), q)


def selector_recipe(settings: TrainSelectorSettings) -> Recipe:
    """Return what decides the selector."""
    teacher = open_teacher(settings.teacher, settings.data, settings.tokens, settings.run.device)
    return Recipe(
        stage="selector",
        settings={
            "windows": settings.windows,
            "windows_at_once": settings.windows_at_once,
            "hidden": settings.hidden,
            "fit": to_json(settings.fit),
        },
        inputs={"teacher": teacher.digest, "tokens": teacher.tokens.digest},
    )


def train_selector(settings: TrainSelectorSettings) -> None:
    """Compute the teacher's relevance, distil it, and write the head."""
    with making(settings.out, selector_recipe(settings), settings.run) as work:
        if work is None:
            return
        teacher = open_teacher(settings.teacher, settings.data, settings.tokens, settings.run.device)
        targets = relevance_of(teacher, settings)
        held = max(1, len(targets) // HELD_OUT)
        held_out, tokens = targets.part(slice(held)), teacher.config.tokens
        torch.manual_seed(settings.fit.seed)
        head = RelevanceHead(visual=tokens.visual, embedding=tokens.embedding, hidden=settings.hidden)
        fit = Fit(
            loss=HeadLoss(head),
            samples=targets.part(slice(held, None)),
            settings=settings.fit,
            validate=lambda: head_figures(head, held_out),
            best="KL",
            directory=settings.out,
            run=settings.run,
        )
        sizes = HeadConfig(
            visual=tokens.visual, embedding=tokens.embedding, hidden=settings.hidden, teacher=teacher.digest
        )
        work.finish(fit(), lambda made: write_directory(settings.out, KIND, sizes, head, made=made))


def relevance_of(teacher: FinishedModel, settings: TrainSelectorSettings) -> RelevanceTargets:
    """Compute the relevance targets of windows chosen at random."""
    windows = teacher.experience().training
    model = teacher.load().world_model.to(choose_device(settings.run.device))
    rows = np.random.default_rng(settings.fit.seed).permutation(len(windows))[: settings.windows]
    parts = []
    with progress("batches of relevance", -(-len(rows) // settings.windows_at_once)) as advance:
        for part in export_targets(model, windows, rows, settings.windows_at_once):
            parts.append(part)
            advance()
    return joined(parts)


@torch.no_grad()
def head_figures(head: RelevanceHead, targets: RelevanceTargets) -> dict[str, float]:
    """Return the divergence on held-out windows, and the recall of the teacher's top K beside chance."""
    visual, proprio, action, q = (part.to(head.visual.weight.device) for part in targets.batch(_all(targets)))
    logits, tokens = head(visual, proprio, action), q.shape[-1]
    figures = {"KL": float(distillation_loss(logits, q))}
    for k in (k for k in KS if k < tokens):
        figures |= {f"recall_{k}": recall(logits, q, k), f"chance_{k}": k / tokens}
    return figures


def load_head(directory: Path) -> tuple[RelevanceHead, HeadConfig]:
    """Load a distilled head and its sizes."""
    header = read_kind(directory, KIND)
    config = from_json(HeadConfig, header["model"], str(directory / CONFIG))
    head = RelevanceHead(visual=config.visual, embedding=config.embedding, hidden=config.hidden)
    load_weights(head, directory / WEIGHTS, header["weights"])
    return head, config


def _all(targets: RelevanceTargets) -> Int64[np.ndarray, " W"]:
    return np.arange(len(targets))
