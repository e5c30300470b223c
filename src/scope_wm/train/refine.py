"""Train a finished world model further, on frames that it imagines itself.

    z_1 observed, z_{t+1} = model(z_t, a_t)        loss = MSE over all N tokens of the L imagined frames

The loss of one step shows a model real frames only, and a planner shows it its own. Here the gradient goes
through the whole rollout. It is not of the paper, and comes after its trainings. Predictor and background are
trained; the embeddings and the selector stay as they are.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import WorldModel
from scope_wm.records import to_json
from scope_wm.train.dynamics import Dynamics, SelectBy
from scope_wm.train.finished import FinishedModel, open_model
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, making
from scope_wm.types import UsageError

STAGE = "refine"
FRAMES = 3
USUAL_FIT = FitSettings(optimiser=OptimiserSettings(lr=1e-4), epochs=10)
OTHER_DATA = (
    "{model} was not trained on {data}: it may have learned from episodes that are to judge it now, if they "
    "were collected with the same seed"
)


@dataclass(frozen=True, kw_only=True)
class TrainRefineSettings:
    """Train a finished world model further, dense or sparse, on frames that it imagines itself.

    Example: scope-wm train refine --model models/wall-k32 --data data/wall --tokens tokens/wall
    --out models/wall-k32-refined
    """

    model: Path
    """directory of the model, or the name of one that ships"""
    data: Path
    """the store that it was trained on"""
    tokens: str
    """directory of its tokens, or on-the-fly: encode in the training loop"""
    out: Path
    """directory of the refined model"""
    frames: int = FRAMES
    """frames to imagine, one after the other"""
    fit: FitSettings = USUAL_FIT
    """how to train"""
    select_by: SelectBy = "rollout"
    """what chooses the best weights: held-out rollouts, or planning on instances that are not the test's"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""

    def __post_init__(self) -> None:
        """Refuse a rollout of nothing."""
        if self.frames < 1:
            raise UsageError(f"expected --frames of at least 1, got {self.frames}")


class RolloutLoss(nn.Module):
    """The error of what a world model imagines from the first frame of a window."""

    def __init__(self, model: WorldModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        visual: Float[Tensor, "B T N V"],
        proprio: Float[Tensor, "B T P"],
        actions: Float[Tensor, "B T-1 A"],
    ) -> Float[Tensor, ""]:
        """Return the mean error of frames 2..T: visual and proprio channels of all N tokens."""
        visual, fuse = visual.float(), self.model.fuse
        compared = slice(fuse.config.visual + fuse.config.embedding)  # all but the action channels
        imagined = rollout(self.model, visual[:, 0], proprio[:, 0], actions)
        real = fuse(visual[:, 1:], fuse.proprio(proprio[:, 1:]), fuse.action(actions)).detach()
        return F.mse_loss(imagined[..., compared], real[..., compared])


def refine_recipe(settings: TrainRefineSettings) -> Recipe:
    """Return what decides the refined model."""
    opened = open_model(settings.model, settings.data, settings.tokens, settings.run.device)
    expect_refinable(opened, settings.frames)
    return Recipe(
        stage=STAGE,
        settings={
            "frames": settings.frames,
            "fit": to_json(settings.fit),
            "select_by": settings.select_by,
        },
        inputs={"model": opened.digest, "tokens": opened.tokens.digest},
    )


def train_refine(settings: TrainRefineSettings) -> None:
    """Refine the model, unless that is finished, and write it with how it was made before."""
    with making(settings.out, refine_recipe(settings), settings.run) as work:
        if work is None:
            return
        opened = open_model(settings.model, settings.data, settings.tokens, settings.run.device)
        trained = opened.load()
        freeze(trained.world_model)
        training = Dynamics(
            trained=trained,
            experience=opened.experience(settings.frames),
            select_by=settings.select_by,
            loss=RolloutLoss,
            start_counts=True,
        )
        before = opened.header.get("made")
        if (before or {}).get("inputs", {}).get("tokens") not in (None, opened.tokens.digest):
            print(OTHER_DATA.format(model=opened.directory, data=settings.data), file=sys.stderr)
        figures = training.fit(settings.fit, settings.run, settings.out)
        work.finish(
            figures, lambda made: trained.save_pretrained(settings.out, made=made | {"before": before})
        )


def expect_refinable(opened: FinishedModel, frames: int) -> None:
    """Refuse a model of some patches only, and rollouts that never fill the window that it sees."""
    if opened.config.background.kind == "ignored":
        raise UsageError(f"expected a model that imagines whole frames, {opened.directory} ignores a part")
    if frames < opened.config.history:
        raise UsageError(
            f"expected --frames of at least {opened.config.history}, for {opened.directory} sees so many "
            f"frames, got {frames}"
        )


def freeze(model: WorldModel) -> None:
    """Let the predictor and the background update learn, and nothing else."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("predictor.", "background.")))
