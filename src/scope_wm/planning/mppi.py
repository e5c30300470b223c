"""MPPI: every candidate counts, by the exponential of its cost.

    w_j = softmax(-cost_j / (temperature * spread))        mu := sum_j w_j A_j        result: mu

The spread is the root mean square of the costs above the least, so that the temperature has no unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.planning.cem import gaussian
from scope_wm.planning.search import Cost, Gaussian, Limits, OnIteration, Plan, search


@dataclass(frozen=True, kw_only=True)
class MPPISettings:
    """How widely and how long to search, how sharply to weigh, and how fast the noise shrinks."""

    samples: int = 100
    iterations: int = 10
    temperature: float = 0.1
    shrink: float = 0.8

    def __post_init__(self) -> None:
        """Refuse a search that cannot work."""
        if self.samples < 1 or not self.temperature > 0:
            raise ValueError(f"expected at least one sample and a temperature above 0, got {self}")


def mppi(
    cost: Cost,
    start: Gaussian,
    generators: Sequence[torch.Generator],
    settings: MPPISettings,
    *,
    limits: Limits | None = None,
    on_iteration: OnIteration | None = None,
) -> Plan:
    """Search for the cheapest actions of every problem."""

    def sample(belief: Gaussian, _: int) -> Tensor:
        candidates = gaussian(belief.mean, belief.std, settings.samples, generators)
        candidates[:, 0] = belief.mean
        return candidates

    def update(belief: Gaussian, candidates: Tensor, costs: Tensor) -> Gaussian:
        share = weights(costs, settings.temperature)
        mean = (share[:, :, None, None] * candidates).sum(1)
        return Gaussian(mean=mean, std=settings.shrink * belief.std)

    return search(cost, start, sample, update, settings.iterations, limits, on_iteration)


def weights(costs: Float[Tensor, "B S"], temperature: float) -> Float[Tensor, "B S"]:
    """Return the share of every candidate; one that costs NaN or infinity has none. NaN if all do."""
    usable = costs.isfinite()
    excess = costs - torch.where(usable, costs, torch.inf).amin(1, keepdim=True)
    squares = torch.where(usable, excess, 0.0).square().sum(1, keepdim=True)
    spread = (squares / usable.sum(1, keepdim=True)).sqrt()
    exponent = -excess / (temperature * spread).clamp(min=torch.finfo(costs.dtype).tiny)
    return torch.where(usable, exponent, -torch.inf).softmax(1)
