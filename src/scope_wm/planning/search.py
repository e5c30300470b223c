"""What every optimiser of action sequences shares: the cost it lowers, where it starts, what it returns.

A cost maps candidates [B S L A] to [B S]; a planner knows nothing else of a model. Actions are standardised,
so a search starts from mean 0 and std 1. Every problem has a generator of its own, and its noise
is drawn before anything is cut to chunks: neither the batch nor the chunks change a plan.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Cost(Protocol):
    """How bad action sequences are; lower is better, NaN is never chosen."""

    def __call__(self, candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
        """Return the cost of every candidate of every problem."""
        ...


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """What a search believes of the best actions of each problem."""

    mean: Float[Tensor, "B L A"]
    std: Float[Tensor, "B L A"]

    @property
    def actions(self) -> Float[Tensor, "B L A"]:
        """Return the mean: what a search that ends here has found."""
        return self.mean


def standard_start(problems: int, horizon: int, action: int, device: torch.device | None = None) -> Gaussian:
    """Return mean 0 and standard deviation 1, where every search without a better idea begins."""
    if horizon < 1:
        raise ValueError(f"expected a horizon of at least 1, got {horizon}")
    mean = torch.zeros(problems, horizon, action, device=device)
    return Gaussian(mean=mean, std=torch.ones_like(mean))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a search may do: actions within bounds, so many candidates at a time (memory), so many seconds."""

    low: Float[Tensor, " A"] | None = None
    high: Float[Tensor, " A"] | None = None
    chunk: int | None = None
    seconds: float | None = None

    def bound(self, actions: Float[Tensor, "*B L A"]) -> Float[Tensor, "*B L A"]:
        """Bring actions within the bounds."""
        return actions if self.low is None and self.high is None else actions.clamp(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a search found for each problem, and what its last complete iteration looked at."""

    actions: Float[Tensor, "B L A"]
    candidates: Float[Tensor, "B S L A"]
    costs: Float[Tensor, "B S"]
    trace: Float[Tensor, "iterations B"]  # the lowest cost of every complete iteration


@runtime_checkable
class Belief(Protocol):
    """What a search carries from one iteration to the next; `actions` is what it has found so far."""

    @property
    def actions(self) -> Float[Tensor, "B L A"]:
        """Return the plan of each problem."""
        ...


B = TypeVar("B", bound=Belief)
Sample = Callable[[B, int], Float[Tensor, "B S L A"]]
Update = Callable[[B, Float[Tensor, "B S L A"], Float[Tensor, "B S"]], B]
OnIteration = Callable[[Plan], None]


def search(
    cost: Cost,
    belief: B,
    sample: Sample[B],
    update: Update[B],
    iterations: int,
    limits: Limits | None = None,
    on_iteration: OnIteration | None = None,
) -> Plan:
    """Sample, cost, update, so many times; out of time, return the last complete iteration's plan.

    Before the first iteration is complete, that is the best candidate scored.
    """
    limits, began = limits or Limits(), time.monotonic()

    def out_of_time() -> bool:
        return limits.seconds is not None and time.monotonic() - began >= limits.seconds

    plan, trace = None, list[Tensor]()
    for iteration in range(iterations):
        candidates = limits.bound(sample(belief, iteration))
        costs = score(cost, candidates, limits.chunk, out_of_time)
        if costs.shape[1] < candidates.shape[1]:
            return plan or best_scored(candidates, costs)
        belief = update(belief, candidates, costs)
        candidates, costs = candidates.detach(), costs.detach()
        trace.append(costs.gather(1, lowest(costs, 1)).squeeze(1))
        actions = limits.bound(belief.actions)  # the mean of elites on a bound may be rounded beyond it
        plan = Plan(actions=actions, candidates=candidates, costs=costs, trace=torch.stack(trace))
        if on_iteration is not None:
            on_iteration(plan)
        if out_of_time():
            break
    if plan is None:
        raise ValueError(f"expected at least one iteration, got {iterations}")
    return plan


def score(
    cost: Cost, candidates: Float[Tensor, "B S L A"], chunk: int | None, out_of_time: Callable[[], bool]
) -> Float[Tensor, "B scored"]:
    """Return the costs of the candidates, chunk by chunk; of fewer than all when the time is over."""
    costs = []
    for part in candidates.split(chunk or candidates.shape[1], dim=1):
        costs.append(cost(part))
        if out_of_time():
            break
    return torch.cat(costs, dim=1)


def best_scored(candidates: Float[Tensor, "B S L A"], costs: Float[Tensor, "B scored"]) -> Plan:
    """Return the cheapest of those candidates that were scored."""
    scored = candidates[:, : costs.shape[1]]
    best = lowest(costs, 1)
    return Plan(
        actions=taken(scored, best).squeeze(1),
        candidates=scored,
        costs=costs,
        trace=costs.gather(1, best).T,
    )


def normal(
    generators: Sequence[torch.Generator], shape: Sequence[int], like: Tensor
) -> Float[Tensor, "B ..."]:
    """Draw standard normal noise of this shape for each problem from its own generator."""
    drawn = [torch.randn(tuple(shape), generator=g, device=g.device, dtype=like.dtype) for g in generators]
    return torch.stack(drawn).to(like.device)


def lowest(costs: Float[Tensor, "B S"], count: int) -> Int[Tensor, "B count"]:
    """Return which candidates cost least, best first; NaN counts as infinite, ties go to the lower index."""
    if costs.isnan().all(dim=1).any():
        raise ValueError("every candidate of a problem costs NaN: the model or the observation is broken")
    return costs.nan_to_num(nan=torch.inf).argsort(dim=1, stable=True)[:, :count]


def taken(candidates: Float[Tensor, "B S L A"], rows: Int[Tensor, "B E"]) -> Float[Tensor, "B E L A"]:
    """Return the candidates of these rows, each problem its own."""
    return candidates.gather(1, rows[:, :, None, None].expand(-1, -1, *candidates.shape[2:]))
