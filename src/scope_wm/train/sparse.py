"""Train a sparse world model: predictor and background update together, from scratch.

    loss = MSE over all N tokens of every predicted frame, foreground and background

The selector, and the teacher's embeddings of proprio and action that it was distilled with, stay frozen: to
train them on would change the selector's input under its feet.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import torch

from scope_wm.background import Ignored
from scope_wm.model.architecture import BackgroundConfig, ModelConfig, SelectorConfig, build
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.directory import read_kind
from scope_wm.model.world_model import WorldModel
from scope_wm.records import to_json
from scope_wm.selector import DistilledSelector, MotionSelector
from scope_wm.train.distill import KIND as SELECTOR
from scope_wm.train.distill import load_head
from scope_wm.train.dynamics import Dynamics, Experience, SelectBy
from scope_wm.train.finished import FinishedModel, open_teacher
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.oracle import oracle_figures
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, making
from scope_wm.types import UsageError

MEAN_FRAMES = 500  # of the training split, for the mean token of every place
WithoutHead = Literal["random", "latin-hypercube", "motion"]
WITHOUT_HEAD: tuple[WithoutHead, ...] = get_args(WithoutHead)

PAPER_FIT = FitSettings(optimiser=OptimiserSettings(lr=1e-4, weight_decay=0.01), epochs=100, batch=512)


@dataclass(frozen=True, kw_only=True)
class TrainSparseSettings:
    """Train a sparse world model that keeps K tokens.

    Example: scope-wm train sparse --teacher models/wall --selector selector --k 32 --data data/wall
    --tokens tokens/wall --out models/wall-k32

    The baseline Sparse Imagination: --selector random --background.kind ignored
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
    selector: str
    """what selects them: directory of a distilled selector, or random, latin-hypercube, motion"""
    background: BackgroundConfig = field(default_factory=lambda: BackgroundConfig(kind="foreground-delta"))
    """what updates the others"""
    fit: FitSettings = PAPER_FIT
    """how to train"""
    select_by: SelectBy = "rollout"
    """what chooses the best weights: held-out rollouts, or planning on instances that are not the test's"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""


def sparse_recipe(settings: TrainSparseSettings) -> Recipe:
    """Return what decides the sparse model."""
    teacher = open_teacher(settings.teacher, settings.data, settings.tokens, settings.run.device)
    sparse_config(settings, teacher.config)  # refuses what cannot be, before anything is written
    inputs = {"teacher": teacher.digest, "tokens": teacher.tokens.digest}
    if settings.selector not in WITHOUT_HEAD:
        inputs["selector"] = selector_digest(Path(settings.selector), teacher.digest)
    return Recipe(
        stage="sparse",
        settings={
            "k": settings.k,
            "selector": settings.selector if settings.selector in WITHOUT_HEAD else "distilled",
            "background": to_json(settings.background),
            "fit": to_json(settings.fit),
            "select_by": settings.select_by,
        },
        inputs=inputs,
    )


def train_sparse(settings: TrainSparseSettings) -> None:
    """Train the sparse model, unless it is finished, and write it."""
    with making(settings.out, sparse_recipe(settings), settings.run) as work:
        if work is None:
            return
        teacher = open_teacher(settings.teacher, settings.data, settings.tokens, settings.run.device)
        experience = teacher.experience()
        torch.manual_seed(settings.fit.seed)
        trained = sparse_model(settings, teacher, experience)
        training = Dynamics(trained=trained, experience=experience, select_by=settings.select_by)
        figures = training.fit(settings.fit, settings.run, settings.out)
        if not isinstance(trained.world_model.background, Ignored):
            figures |= oracle_figures(trained.world_model, teacher.load().world_model, experience.held_out)
        work.finish(figures, lambda made: trained.save_pretrained(settings.out, made=made))


def sparse_config(settings: TrainSparseSettings, teacher: ModelConfig) -> ModelConfig:
    """Return the complete description of the model to train."""
    if settings.selector in WITHOUT_HEAD:
        selector = SelectorConfig(kind=settings.selector, k=settings.k)
    else:
        _, sizes = load_head(Path(settings.selector))
        selector = SelectorConfig(kind="distilled", k=settings.k, hidden=sizes.hidden)
    return replace(teacher, selector=selector, background=settings.background)


def sparse_model(
    settings: TrainSparseSettings, teacher: FinishedModel, experience: Experience
) -> TrainedModel:
    """Return the model to train: a fresh predictor and background update around what is taken over."""
    config = sparse_config(settings, teacher.config)
    model = build(config)
    take_over_embeddings(model, teacher.load().world_model)
    if isinstance(model.selector, DistilledSelector):
        head, _ = load_head(Path(settings.selector))
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
