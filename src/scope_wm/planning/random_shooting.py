"""Random shooting: draw once, take the cheapest. The yardstick that every other optimiser must beat."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scope_wm.planning.cem import gaussian
from scope_wm.planning.search import Cost, Gaussian, Limits, OnIteration, Plan, lowest, search, taken


def random_shooting(
    cost: Cost,
    start: Gaussian,
    generators: Sequence[torch.Generator],
    samples: int = 1000,
    *,
    limits: Limits | None = None,
    on_iteration: OnIteration | None = None,
) -> Plan:
    """Return the cheapest of so many draws for every problem."""

    def sample(belief: Gaussian, _: int) -> Tensor:
        return gaussian(belief.mean, belief.std, samples, generators)

    def update(belief: Gaussian, candidates: Tensor, costs: Tensor) -> Gaussian:
        return Gaussian(mean=taken(candidates, lowest(costs, 1)).squeeze(1), std=belief.std)

    return search(cost, start, sample, update, 1, limits, on_iteration)
