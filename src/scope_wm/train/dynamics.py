"""What the training of a dense and of a sparse world model share: windows, loss, held-out figures.

    one step      error of the prediction after one action          each relative to that of copying the frame
    rollout       mean error of L imagined frames
    background    one-step error of the tokens that are not selected

Copying is what a model does that has learned nothing: everything below 1 is knowledge.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from scope_wm.background import Ignored, background_mask
from scope_wm.data.split import Splits, open_splits
from scope_wm.data.statistics import statistics
from scope_wm.data.token_cache import SplitTokens
from scope_wm.data.windows import Window, Windows, spread_rows
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.predictor import random_groups
from scope_wm.model.rollout import rollout
from scope_wm.model.subset import draw_patches, of_patches
from scope_wm.model.world_model import WorldModel, dense, prediction_loss
from scope_wm.train.by_planning import planning_figures
from scope_wm.train.loop import Fit, FitSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.types import Statistics, UsageError

HORIZON = 5  # of held-out rollouts: as long as plans are
HELD_OUT = 128  # rollouts
BATCH = 32  # of them
PLANNER = "cem"  # when weights are chosen by planning

SelectBy = Literal["rollout", "planning"]


@dataclass(frozen=True, kw_only=True)
class Experience:
    """What a world model is learned from: windows of one task, and what they are standardised with."""

    task: str
    statistics: Statistics
    tokens: SplitTokens
    training: Windows
    held_out: list[Window]  # batches of windows of HORIZON + 1 frames


def open_experience(
    data: Path, tokens: SplitTokens, *, history: int, frameskip: int, values: Statistics | None = None
) -> Experience:
    """Open the windows of a store, with the tokens of its frames; `values` are a model's statistics."""
    splits = open_splits(data)
    values = values or statistics(splits.training)
    read = tokens.training.read
    training = Windows(splits.training, values, history=history, frameskip=frameskip, read=read)
    return Experience(
        task=splits.training.store.config.task,
        statistics=values,
        tokens=tokens,
        training=training,
        held_out=held_out_batches(splits, values, tokens, frameskip),
    )


def held_out_batches(splits: Splits, values: Statistics, tokens: SplitTokens, frameskip: int) -> list[Window]:
    """Return windows of validation episodes to judge with, evenly spread and always the same."""
    read = tokens.validation.read
    windows = Windows(splits.validation, values, history=HORIZON, frameskip=frameskip, read=read)
    rows = spread_rows(len(windows), HELD_OUT)
    return [windows.batch(part.tolist()) for part in np.array_split(rows, max(1, len(rows) // BATCH))]


class PredictionLoss(nn.Module):
    """The world model's loss as what is trained: a batch of windows to its error."""

    def __init__(self, model: WorldModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        visual: Float[Tensor, "B T N V"],
        proprio: Float[Tensor, "B T P"],
        actions: Float[Tensor, "B T-1 A"],
    ) -> Float[Tensor, ""]:
        """Return the error of predicting every next frame; tokens may come in half precision."""
        return prediction_loss(self.model, visual.float(), proprio, actions)


class GroupedLoss(nn.Module):
    """The loss of Sparse Imagination: every token is predicted, from a random group of about K tokens."""

    def __init__(self, model: WorldModel) -> None:
        super().__init__()
        self.model = model
        self.everything = dense(model.fuse, model.predictor)
        self.groups = max(1, round(model.fuse.config.num_tokens / model.selector.k))
        self.generator = torch.Generator()

    def forward(
        self,
        visual: Float[Tensor, "B T N V"],
        proprio: Float[Tensor, "B T P"],
        actions: Float[Tensor, "B T-1 A"],
    ) -> Float[Tensor, ""]:
        """Return the error of predicting every next frame; tokens may come in half precision."""
        return prediction_loss(self.everything, visual.float(), proprio, actions, self.draw)

    def draw(self, indices: Int[Tensor, "B T N"]) -> Int[Tensor, "B T N"]:
        """Return the group of every token."""
        return random_groups(indices, indices.shape[-1], self.groups, self.generator)


def loss_of(model: WorldModel) -> nn.Module:
    """Return what a model is trained with."""
    return GroupedLoss(model) if isinstance(model.background, Ignored) else PredictionLoss(model)


@dataclass(frozen=True, kw_only=True)
class Dynamics:
    """The training of what is not frozen of a world model; `start_counts` if it was trained before."""

    trained: TrainedModel
    experience: Experience
    select_by: SelectBy
    loss: Callable[[WorldModel], nn.Module] = loss_of
    start_counts: bool = False

    def fit(self, settings: FitSettings, run: RunSettings, out: Path) -> dict[str, float]:
        """Train, leave the best weights in the model, and return their figures."""
        training = Fit(
            loss=self.loss(self.trained.world_model),
            samples=self.experience.training,
            settings=settings,
            validate=self.judge(),
            best={"rollout": "rollout_of_copy", "planning": "planning"}[self.select_by],
            directory=out,
            run=run,
            start_counts=self.start_counts,
        )
        return dict(training())

    def judge(self) -> Callable[[], dict[str, float]]:
        """Return what computes the held-out figures of the present weights."""
        model, batches = self.trained.world_model, self.experience.held_out
        if self.select_by == "rollout":
            return lambda: held_out_figures(model, batches)
        plan = planning_figures(self.trained, PLANNER)
        return lambda: held_out_figures(model, batches) | plan()


@torch.no_grad()
def held_out_figures(model: WorldModel, batches: list[Window]) -> dict[str, float]:
    """Return the errors of one step, of rollouts and of the background, each relative to copying.

    A model that ignores the background is judged as it is planned with: on patches drawn for each batch.
    """
    device = next(model.parameters()).device
    sums: dict[str, Tensor] = {}
    for batch in batches:
        visual, proprio, actions = (part.to(device).float() for part in batch)
        judged = model
        if isinstance(model.background, Ignored):
            patches = draw_patches(model)
            judged, visual = of_patches(model, patches), visual[:, :, patches]
        for name, value in window_errors(judged, visual, proprio, actions).items():
            sums[name] = sums.get(name, 0.0) + value
    figures = {name: float(value) / len(batches) for name, value in sums.items()}
    if figures["rollout_copy"] == 0:
        raise UsageError("nothing moves in the episodes to judge with: there is nothing to learn from them")
    of_copy = {
        f"{name}_of_copy": figures[name] / figures[f"{name}_copy"]
        for name in ("one_step", "rollout", "last", "background")
        if figures.get(f"{name}_copy", 0.0) > 0
    }
    return {"loss_held_out": figures["loss"], "one_step": figures["one_step"]} | of_copy


def window_errors(
    model: WorldModel,
    visual: Float[Tensor, "B T N V"],
    proprio: Float[Tensor, "B T P"],
    actions: Float[Tensor, "B T-1 A"],
) -> dict[str, Tensor]:
    """Return mean squared errors of a batch of windows, and those of copying the first frame."""
    width, seen = model.fuse.config.visual, min(model.history, actions.shape[1])
    first = model.fuse(visual[:, 0], model.fuse.proprio(proprio[:, 0]), model.fuse.action(actions[:, 0]))
    # The selection of this one step tells what is background: a random selector draws anew in a rollout.
    indices = model.select(first)
    background = background_mask(indices, visual.shape[-2]).squeeze(-1)
    following = model(first.unsqueeze(1), indices.unsqueeze(1)).squeeze(1)
    frames = rollout(model, visual[:, 0], proprio[:, 0], actions)
    result = {
        "loss": prediction_loss(model, visual[:, : seen + 1], proprio[:, : seen + 1], actions[:, :seen])
    }
    for suffix, one, many in (("", following, frames), ("_copy", first, first.unsqueeze(1))):
        step = (one[..., :width] - visual[:, 1]).square().mean(-1)  # [B N]
        path = (many[..., :width] - visual[:, 1:]).square().mean(-1)  # [B L N]
        result |= {
            f"one_step{suffix}": step.mean(),
            f"rollout{suffix}": path.mean(),
            f"last{suffix}": path[:, -1].mean(),
        }
        if background.any():
            result[f"background{suffix}"] = step[background].mean()
    return result
