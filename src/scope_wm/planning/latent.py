"""A learned world model to plan with: observations are encoded once, candidates are imagined from there."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scope_wm.model.encoder import Encoder
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import WorldModel
from scope_wm.planning.models import ActionScale, Observations
from scope_wm.planning.objective import Goal, frame_costs, last_frame
from scope_wm.types import Statistics


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the model sees of each of B problems: visual tokens and standardised proprio, on its device."""

    visual: Float[Tensor, "B N V"]
    proprio: Float[Tensor, "B P"]


@dataclass(frozen=True, kw_only=True)
class LatentCost:
    """How far from the goal a world model imagines that candidates end."""

    model: WorldModel
    now: Seen
    goal: Seen
    previous: Seen | None
    alpha: float

    def __call__(self, candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
        """Imagine every candidate, and compare its last frame with the goal."""
        model, samples = self.model, candidates.shape[1]
        frames = imagine(model, repeated(self.now, samples), candidates.flatten(0, 1), self._before(samples))
        goal = Goal(
            visual=self.goal.visual.unsqueeze(1), proprio=model.fuse.proprio(self.goal.proprio).unsqueeze(1)
        )
        costs = frame_costs(model.fuse, frames.unflatten(0, (-1, samples)), goal, self.alpha)
        return last_frame(costs)

    def bytes_per_candidate(self, horizon: int) -> int:
        """Return how much memory it takes to imagine a candidate."""
        return rollout_bytes(self.model, horizon)

    def _before(self, samples: int) -> Seen | None:
        return None if self.previous is None else repeated(self.previous, samples)


class LatentModel:
    """A learned world model with its frozen encoder; `alpha` weighs the proprio part of the cost."""

    def __init__(
        self,
        world_model: WorldModel,
        encoder: Encoder,
        statistics: Statistics,
        *,
        frameskip: int,
        alpha: float,
    ) -> None:
        self.world_model = world_model
        self.encoder = encoder
        self.statistics = statistics
        self.alpha = alpha
        self.scale = ActionScale(mean=statistics.action_mean, std=statistics.action_std, frameskip=frameskip)
        self.action_width = self.scale.width
        self.task_actions = self.scale.to_task

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return next(self.world_model.parameters()).device

    @torch.no_grad()
    def see(self, observations: Observations) -> Seen:
        """Encode the images and standardise proprio."""
        visual = self.encoder(torch.from_numpy(observations.images).to(self.device))
        standard = (observations.proprio - self.statistics.proprio_mean) / self.statistics.proprio_std
        # First the type, then the device: not every device has float64.
        return Seen(visual=visual, proprio=torch.from_numpy(standard).to(visual.dtype).to(self.device))

    def cost(self, now: Seen, goal: Seen, previous: Seen | None = None) -> LatentCost:
        """Return the cost of plans that begin now; `previous` is for a selector that looks at motion."""
        return LatentCost(model=self.world_model, now=now, goal=goal, previous=previous, alpha=self.alpha)


def imagine(
    model: WorldModel, now: Seen, actions: Float[Tensor, "B L A"], previous: Seen | None
) -> Float[Tensor, "B L N D"]:
    """Return the frames that follow from what is seen now; `previous` was seen before it, if anything was."""
    before = None if previous is None else previous.visual
    return rollout(model, now.visual, now.proprio, actions, before)


def repeated(seen: Seen, times: int) -> Seen:
    """Return what is seen of every problem, so many times in a row."""
    return Seen(
        visual=seen.visual.repeat_interleave(times, dim=0),
        proprio=seen.proprio.repeat_interleave(times, dim=0),
    )


def rollout_bytes(model: WorldModel, horizon: int) -> int:
    """Estimate the memory of one candidate's rollout; at the sizes of the paper it takes 0.6 to 0.9 of this.

    The L + 1 frames are held and stacked (4 copies). For a window of T = min(H, L) frames, the background
    update holds 12 values of every token's width at its widest, the transformer, for the K kept tokens,
    4 of them and twice its widest layer.
    """
    tokens = model.fuse.config
    window = min(model.history, horizon)
    widest = max(layer.out_features for layer in model.predictor.modules() if isinstance(layer, nn.Linear))
    grid = tokens.num_tokens * tokens.width * (4 * (horizon + 1) + 12 * window)
    kept = window * model.selector.k * (4 * tokens.width + 2 * widest)
    return (grid + kept) * next(model.parameters()).element_size()
