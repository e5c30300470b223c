"""A learned world model to plan with: observations are encoded once, candidates are imagined from there."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_wm.background import Ignored
from scope_wm.model.encoder import Encoder
from scope_wm.model.fast_rollout import bytes_to_imagine, last_imagined
from scope_wm.model.subset import draw_patches, of_patches
from scope_wm.model.world_model import WorldModel
from scope_wm.planning.models import ActionScale, Observations
from scope_wm.planning.objective import Goal, frame_costs, last_frame
from scope_wm.planning.side_by_side import Imagine
from scope_wm.selector import LatinHypercubeSelector, RandomSelector
from scope_wm.types import Statistics


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the model sees of each of B problems: visual tokens and standardised proprio, on its device."""

    visual: Float[Tensor, "B N V"]
    proprio: Float[Tensor, "B P"]

    def at(self, patches: Int[Tensor, " K"]) -> "Seen":
        """Return what is seen in some patches only."""
        return Seen(visual=self.visual[:, patches], proprio=self.proprio)


@dataclass(frozen=True, kw_only=True)
class LatentCost:
    """How far from the goal a world model imagines that candidates end."""

    model: WorldModel
    imagine: Imagine
    now: Seen
    goal: Seen
    previous: Seen | None
    alpha: float

    def __call__(self, candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
        """Imagine every candidate, and compare its last frame with the goal."""
        model, samples = self.model, candidates.shape[1]
        now, before = repeated(self.now, samples), self._before(samples)
        last = self.imagine(now.visual, now.proprio, candidates.flatten(0, 1), before)
        goal = Goal(
            visual=self.goal.visual.unsqueeze(1), proprio=model.fuse.proprio(self.goal.proprio).unsqueeze(1)
        )
        frames = last.unflatten(0, (-1, samples)).unsqueeze(2)  # [B S 1 N D]
        return last_frame(frame_costs(model.fuse, frames, goal, self.alpha))

    def bytes_per_candidate(self) -> int:
        """Return how much memory it takes to imagine a candidate."""
        return bytes_to_imagine(self.model)

    def _before(self, samples: int) -> Float[Tensor, "B N V"] | None:
        return None if self.previous is None else repeated(self.previous, samples).visual


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
        imagine: Imagine | None = None,
    ) -> None:
        self.world_model = world_model
        self.imagine = imagine or partial(last_imagined, world_model)
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

    def reseed(self, seeds: Sequence[int]) -> None:
        """Restart the draws of a random selector, so that plans do not depend on those before."""
        if (chance := chance_of(self.world_model)) is not None:
            chance.manual_seed(int(np.random.SeedSequence(list(seeds)).generate_state(1)[0]))

    @torch.no_grad()
    def see(self, observations: Observations) -> Seen:
        """Encode the images and standardise proprio."""
        visual = self.encoder(torch.from_numpy(observations.images).to(self.device))
        standard = (observations.proprio - self.statistics.proprio_mean) / self.statistics.proprio_std
        # First the type, then the device: not every device has float64.
        return Seen(visual=visual, proprio=torch.from_numpy(standard).to(visual.dtype).to(self.device))

    def cost(self, now: Seen, goal: Seen, previous: Seen | None = None) -> LatentCost:
        """Return the cost of plans that begin now; `previous` is for a selector that looks at motion."""
        model, imagine = self.world_model, self.imagine
        if isinstance(model.background, Ignored):
            patches = draw_patches(model)
            model, now, goal, previous = of_patches(model, patches), now.at(patches), goal.at(patches), None
            imagine = partial(last_imagined, model)
        return LatentCost(
            model=model, imagine=imagine, now=now, goal=goal, previous=previous, alpha=self.alpha
        )


def chance_of(model: WorldModel) -> torch.Generator | None:
    """Return what the selector of a model draws its tokens with, if it does so at random."""
    selector = model.selector
    return selector.generator if isinstance(selector, RandomSelector | LatinHypercubeSelector) else None


def repeated(seen: Seen, times: int) -> Seen:
    """Return what is seen of every problem, so many times in a row."""
    return Seen(
        visual=seen.visual.repeat_interleave(times, dim=0),
        proprio=seen.proprio.repeat_interleave(times, dim=0),
    )
