"""iCEM: CEM with noise that is correlated in time, fewer samples as it goes, and elites that are kept.

Noise has a power spectrum f^-beta along the horizon, so that actions in a row resemble each other. Some
elites compete again in the next iteration. The result is the cheapest candidate ever scored, not the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.planning.cem import refit
from scope_wm.planning.search import (
    Cost,
    Gaussian,
    Limits,
    OnIteration,
    Plan,
    lowest,
    lowest_in_turn,
    normal,
    search,
    taken,
)


@dataclass(frozen=True, kw_only=True)
class ICEMSettings:
    """How widely and how long to search, the colour of the noise, and how many elites are kept."""

    samples: int = 100
    elites: int = 10
    iterations: int = 10
    beta: float = 2.0
    kept: int = 3
    decay: float = 1.25

    def __post_init__(self) -> None:
        """Refuse a search that cannot work."""
        if not 2 <= self.elites <= self.samples or not 0 <= self.kept <= self.elites:
            raise ValueError(f"expected kept <= elites <= samples and at least 2 elites, got {self}")

    def count(self, iteration: int) -> int:
        """Return how many fresh candidates an iteration draws."""
        return max(2 * self.elites, round(self.samples * self.decay**-iteration))


@dataclass(frozen=True, kw_only=True)
class Belief:
    """The Gaussian to draw from, the elites that stay, and the cheapest candidate so far with its cost."""

    gaussian: Gaussian
    kept: Float[Tensor, "B kept L A"]
    actions: Float[Tensor, "B L A"]
    cost: Float[Tensor, " B"]


def icem(
    cost: Cost,
    start: Gaussian,
    generators: Sequence[torch.Generator],
    settings: ICEMSettings,
    *,
    limits: Limits | None = None,
    on_iteration: OnIteration | None = None,
) -> Plan:
    """Search for the cheapest actions of every problem."""

    def sample(belief: Belief, iteration: int) -> Tensor:
        mean, std = belief.gaussian.mean.unsqueeze(1), belief.gaussian.std.unsqueeze(1)
        white = normal(generators, (settings.count(iteration), *mean.shape[2:]), mean)
        return torch.cat([belief.kept, mean + std * coloured(white, settings.beta)], dim=1)

    def update(belief: Belief, candidates: Tensor, costs: Tensor) -> Belief:
        order = lowest(costs, settings.elites)
        elites, elite_costs = taken(candidates, order), costs.gather(1, order)
        better = elite_costs[:, 0] < belief.cost
        return Belief(
            gaussian=refit(elites, elite_costs),
            kept=taken(candidates, lowest_in_turn(costs, settings.kept)),
            actions=torch.where(better[:, None, None], elites[:, 0], belief.actions),
            cost=torch.where(better, elite_costs[:, 0], belief.cost),
        )

    nothing = torch.full_like(start.mean[:, 0, 0], torch.inf)
    belief = Belief(gaussian=start, kept=start.mean.unsqueeze(1), actions=start.mean, cost=nothing)
    return search(cost, belief, sample, update, settings.iterations, limits, on_iteration)


def coloured(white: Float[Tensor, "*B L A"], beta: float) -> Float[Tensor, "*B L A"]:
    """Give white noise the power spectrum f^-beta along the horizon, at unit variance."""
    length = white.shape[-2]
    frequency = torch.fft.rfftfreq(length, device=white.device, dtype=white.dtype)
    frequency = frequency.clamp(min=1 / length)  # a constant has no frequency: it counts as the lowest
    scale = frequency ** (-beta / 2)
    paired = torch.full_like(scale, 2.0)  # every frequency but the ends of the spectrum stands for two
    paired[0] = 1.0
    if length % 2 == 0:
        paired[-1] = 1.0
    scale = scale / ((paired * scale.square()).sum() / length).sqrt()
    return torch.fft.irfft(torch.fft.rfft(white, dim=-2) * scale[:, None], n=length, dim=-2)
