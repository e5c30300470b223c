"""The cross-entropy method: sample -> cost -> elites -> refit.

    A_j ~ N(mu, sigma^2), A_0 := mu
    mu, sigma := mean and unbiased standard deviation of the cheapest        result: mu

What candidates are drawn from is a `Proposal`: the Gaussian itself, or one that also uses a bank of elites.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.planning.search import Cost, Gaussian, Limits, OnIteration, Plan, lowest, normal, search, taken


@runtime_checkable
class Proposal(Protocol):
    """Draw candidates, given the current Gaussian of every problem."""

    def __call__(
        self,
        mean: Float[Tensor, "B L A"],
        std: Float[Tensor, "B L A"],
        count: int,
        generators: Sequence[torch.Generator],
    ) -> Float[Tensor, "B S L A"]:
        """Return `count` candidates for each problem."""
        ...


@dataclass(frozen=True, kw_only=True)
class CEMSettings:
    """How widely and how long CEM searches; the defaults are the paper's."""

    samples: int = 100
    elites: int = 10
    iterations: int = 10

    def __post_init__(self) -> None:
        """Refuse a search that cannot work."""
        if not 2 <= self.elites <= self.samples:
            raise ValueError(
                f"expected 2 <= elites <= samples, got {self.elites} elites of {self.samples} samples"
            )
        if self.iterations < 1:
            raise ValueError(f"expected at least one iteration, got {self.iterations}")


def gaussian(
    mean: Float[Tensor, "B L A"],
    std: Float[Tensor, "B L A"],
    count: int,
    generators: Sequence[torch.Generator],
) -> Float[Tensor, "B S L A"]:
    """Draw from the Gaussian."""
    return mean.unsqueeze(1) + std.unsqueeze(1) * normal(generators, (count, *mean.shape[1:]), mean)


def cem(
    cost: Cost,
    start: Gaussian,
    generators: Sequence[torch.Generator],
    settings: CEMSettings,
    *,
    proposal: Proposal = gaussian,
    limits: Limits | None = None,
    on_iteration: OnIteration | None = None,
) -> Plan:
    """Search for the cheapest actions of every problem."""

    def sample(belief: Gaussian, _: int) -> Tensor:
        candidates = proposal(belief.mean, belief.std, settings.samples, generators)
        candidates[:, 0] = belief.mean
        return candidates

    def update(_: Gaussian, candidates: Tensor, costs: Tensor) -> Gaussian:
        elites = lowest(costs, settings.elites)
        return refit(taken(candidates, elites), costs.gather(1, elites))

    return search(cost, start, sample, update, settings.iterations, limits, on_iteration)


def refit(elites: Float[Tensor, "B E L A"], costs: Float[Tensor, "B E"]) -> Gaussian:
    """Return mean and unbiased standard deviation of the elites, leaving out those that cost NaN."""
    weight = (~costs.isnan()).to(elites.dtype)[:, :, None, None]
    count = weight.sum(1)
    mean = (weight * elites).sum(1) / count
    variance = (weight * (elites - mean.unsqueeze(1)).square()).sum(1) / (count - 1).clamp(min=1)
    return Gaussian(mean=mean, std=variance.sqrt())
