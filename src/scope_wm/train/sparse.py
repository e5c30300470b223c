"""Train a sparse world model: predictor and background update together, from scratch.

    loss = MSE over all N tokens of every predicted frame, foreground and background

The selector, and the teacher's embeddings of proprio and action that it was distilled with, stay frozen: to
train them on would change the selector's input under its feet.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from scope_wm.data.token_cache import open_tokens
from scope_wm.files import only_writer
from scope_wm.model.architecture import BackgroundConfig, ModelConfig, SelectorConfig, build
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.model.directory import read_kind
from scope_wm.model.world_model import WorldModel
from scope_wm.records import to_json
from scope_wm.selector import DistilledSelector, MotionSelector
from scope_wm.train.distill import KIND as SELECTOR
from scope_wm.train.distill import load_head
from scope_wm.train.dynamics import Experience, open_experience
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, begin, finish
from scope_wm.train.teacher import fit_dynamics
from scope_wm.types import UsageError

MEAN_FRAMES = 500  # of the training split, for the mean token of every place


@dataclass(frozen=True, kw_only=True)
class TrainSparseSettings:
    """Train a sparse world model that keeps K tokens.

    Example: scope-wm train sparse --teacher models/wall --selector selector --k 32 --data data/wall
    --tokens tokens/wall --out models/wall-k32
    """

    teacher: Path
    """directory of the dense model: its sizes and embeddings are taken over"""
    data: Path
    """the store that it was trained on"""
    tokens: str
    """directory of its tokens, or on-the-fly: encode in the training loop"""
    out: Path
    """directory of the model"""
    k: int
    """tokens to keep of every frame"""
    selector: Path | None = None
    """directory of the distilled selector, if that is what selects"""
    selection: Literal["distilled", "random", "latin-hypercube", "motion"] = "distilled"
    """what selects the tokens"""
    background: BackgroundConfig = field(default_factory=lambda: BackgroundConfig(kind="foreground-delta"))
    """what updates the others"""
    fit: FitSettings = field(
        default_factory=lambda: FitSettings(
            optimiser=OptimiserSettings(lr=1e-4, weight_decay=0.01), batch=512
        )
    )
    """how to train"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""

    def __post_init__(self) -> None:
        """Refuse a selection without its selector, and a selector that is not used."""
        if (self.selection == "distilled") != (self.selector is not None):
            raise UsageError("expected --selector for --selection distilled, and for no other")


def train_sparse(settings: TrainSparseSettings) -> None:
    """Train the sparse model, unless it is finished, and write it."""
    header, dense = read_header(settings.teacher)
    if dense.selector.kind != "every-token":
        raise UsageError(f"expected a dense model as the teacher, {settings.teacher} is a sparse one")
    tokens = open_tokens(settings.tokens, settings.data, dense.encoder.config, settings.run.device)
    tokens.check_encoder(dense.encoder)
    inputs = {"teacher": header["weights"], "tokens": tokens.digest}
    if settings.selector is not None:
        inputs["selector"] = selector_digest(settings.selector, header["weights"])
    recipe = Recipe(
        stage="sparse",
        settings={
            "k": settings.k,
            "selection": settings.selection,
            "background": to_json(settings.background),
            "fit": to_json(settings.fit),
        },
        inputs=inputs,
    )
    if not begin(settings.out, recipe):
        return
    with only_writer(settings.out):
        experience = open_experience(settings.data, tokens, history=dense.history, frameskip=dense.frameskip)
        torch.manual_seed(settings.fit.seed)
        trained = sparse_model(dense, settings, experience)
        figures = fit_dynamics(trained, experience, settings.fit, settings.run, settings.out)
        trained.save_pretrained(settings.out, made=recipe.made() | {"figures": figures})
        finish(settings.out)


def sparse_model(dense: ModelConfig, settings: TrainSparseSettings, experience: Experience) -> TrainedModel:
    """Return the model to train: a fresh predictor and background update around what is taken over."""
    selector = SelectorConfig(kind=settings.selection, k=settings.k)
    head = None
    if settings.selector is not None:
        head, sizes = load_head(settings.selector)
        selector = replace(selector, hidden=sizes.hidden)
    config = replace(dense, selector=selector, background=settings.background)
    model = build(config)
    take_over_embeddings(model, TrainedModel.from_pretrained(settings.teacher).world_model)
    if isinstance(model.selector, DistilledSelector) and head is not None:
        model.selector.head.load_state_dict(head.state_dict())
    if isinstance(model.selector, MotionSelector):
        model.selector.mean.copy_(mean_tokens(experience))
    return TrainedModel(config=config, world_model=model)


def take_over_embeddings(model: WorldModel, teacher: WorldModel) -> None:
    """Give a model the teacher's embeddings of proprio and action, frozen."""
    model.fuse.load_state_dict(teacher.fuse.state_dict())
    model.fuse.requires_grad_(False)


def mean_tokens(experience: Experience) -> torch.Tensor:
    """Return the mean token of every place over frames of the training split."""
    windows = experience.training
    rows = torch.linspace(0, len(windows) - 1, min(MEAN_FRAMES, len(windows))).round().long()
    return windows.batch(rows.tolist()).visual[:, 0].float().mean(0)


def selector_digest(directory: Path, teacher: str) -> str:
    """Return the hash of a selector's weights; refuse one that was distilled from another model."""
    header = read_kind(directory, SELECTOR)
    if header["model"]["teacher"] != teacher:
        raise UsageError(f"{directory} was distilled from another dense model than the given --teacher")
    return str(header["weights"])
