"""Gradient descent on the actions, through the model, from several random beginnings at once.

A <- A - Adam(dcost/dA) + noise        result: the cheapest candidate ever scored

What a gradient takes of memory is not estimated: limit the chunk instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.planning.cem import gaussian
from scope_wm.planning.search import Cost, Gaussian, Limits, OnIteration, Plan, lowest, normal, search, taken

DECAY, DECAY_OF_SQUARES, EPSILON = 0.9, 0.999, 1e-8  # Adam's usual constants


@dataclass(frozen=True, kw_only=True)
class GradientSettings:
    """How many beginnings, how many steps, their size, and the noise that is added to each."""

    samples: int = 10
    iterations: int = 50
    rate: float = 0.1
    noise: float = 0.003

    def __post_init__(self) -> None:
        """Refuse a search that cannot work."""
        if self.samples < 2:
            raise ValueError(f"expected at least 2 samples, one of them the best so far, got {self.samples}")


@dataclass(frozen=True, kw_only=True)
class Belief:
    """Candidates on their way down, Adam's two averages, and the cheapest candidate so far with its cost."""

    candidates: Float[Tensor, "B S L A"]
    slope: Float[Tensor, "B S L A"]
    square: Float[Tensor, "B S L A"]
    actions: Float[Tensor, "B L A"]
    cost: Float[Tensor, " B"]
    step: int = 0


def gradient(
    cost: Cost,
    start: Gaussian,
    generators: Sequence[torch.Generator],
    settings: GradientSettings,
    *,
    limits: Limits | None = None,
    on_iteration: OnIteration | None = None,
) -> Plan:
    """Search for the cheapest actions of every problem; the cost must be differentiable."""
    slopes: list[Tensor] = []  # of the chunks of this iteration

    def slope_too(candidates: Tensor) -> Tensor:
        """Differentiate every chunk at once: what its graph holds is free before the next."""
        with torch.enable_grad():
            leaf = candidates.detach().requires_grad_()
            costs = cost(leaf)
            slopes.extend(torch.autograd.grad(costs.sum(), leaf))
        return costs.detach()

    def sample(belief: Belief, _: int) -> Tensor:
        return belief.candidates

    def update(belief: Belief, candidates: Tensor, costs: Tensor) -> Belief:
        slope = torch.cat(slopes, dim=1).nan_to_num()
        slopes.clear()
        best = lowest(costs, 1)
        least = costs.gather(1, best).squeeze(1)
        better = least < belief.cost
        actions = torch.where(better[:, None, None], taken(candidates, best).squeeze(1), belief.actions)
        cheapest = replace(belief, actions=actions, cost=torch.where(better, least, belief.cost))
        moved = descend(cheapest, candidates, slope, settings.rate)
        shaken = moved.candidates + settings.noise * normal(generators, candidates.shape[1:], candidates)
        shaken[:, 0] = actions  # so that a step of all others into a region of NaN is no end
        return replace(moved, candidates=shaken)

    beginnings = gaussian(start.mean, start.std, settings.samples, generators)
    beginnings[:, 0] = start.mean
    zero, nothing = torch.zeros_like(beginnings), torch.full_like(start.mean[:, 0, 0], torch.inf)
    belief = Belief(candidates=beginnings, slope=zero, square=zero, actions=start.mean, cost=nothing)
    return search(slope_too, belief, sample, update, settings.iterations, limits, on_iteration)


def descend(
    belief: Belief, candidates: Float[Tensor, "B S L A"], slope: Float[Tensor, "B S L A"], rate: float
) -> Belief:
    """Move the candidates down by one step of Adam."""
    step = belief.step + 1
    mean = DECAY * belief.slope + (1 - DECAY) * slope
    square = DECAY_OF_SQUARES * belief.square + (1 - DECAY_OF_SQUARES) * slope.square()
    scale = (square / (1 - DECAY_OF_SQUARES**step)).sqrt() + EPSILON
    moved = candidates - rate * mean / (1 - DECAY**step) / scale
    return replace(belief, candidates=moved, slope=mean, square=square, step=step)
