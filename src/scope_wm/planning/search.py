"""What every optimiser of action sequences shares: the cost it lowers, where it starts, what it returns.

A cost maps candidates [B S L A] to [B S]; a planner knows nothing else of a model. Actions are standardised,
so a search starts from mean 0 and std 1, or from any other `Gaussian`, such as the rest of an earlier plan.
Every problem has a generator of its own, and its noise is drawn before anything is cut to chunks: neither
the batch nor the chunks nor the device change what a search draws. (What a random selector draws is the
model's own affair, and goes by chunks.)
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_wm.planning.memory import fair_share

DEADLINE_CHUNK = 50  # candidates judged at a time where a deadline is to be kept: it is checked in between
THREAD_CHUNK = 50  # candidates a thread of a processor imagines at a time: more take memory and save no time


@runtime_checkable
class Cost(Protocol):
    """How bad action sequences are; lower is better, NaN is never chosen."""

    def __call__(self, candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
        """Return the cost of every candidate of every problem."""
        ...


@runtime_checkable
class SizedCost(Cost, Protocol):
    """A cost that knows how much memory it takes to judge a candidate."""

    def bytes_per_candidate(self) -> int:
        """Return about how many bytes one candidate of one problem takes."""
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


def warm_start(actions: Float[Tensor, "B L A"], executed: int) -> Gaussian:
    """Return what is left of a plan after its first actions, 0 where it ends, with a spread of 1 again."""
    if not 0 <= executed <= actions.shape[1]:
        raise ValueError(f"expected 0 to {actions.shape[1]} executed actions, got {executed}")
    mean = torch.zeros_like(actions)
    mean[:, : actions.shape[1] - executed] = actions[:, executed:]
    return Gaussian(mean=mean, std=torch.ones_like(mean))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a search may take.

    `low` and `high` bound standardised actions. `chunk` is how many candidates of each problem are judged at
    a time, at most; if it is not given, a model on a processor judges what keeps its threads busy. `memory`
    is in bytes: no more candidates at a time than fit, by the cost's own estimate, but at least one; if it is
    not given, it is a share of the machine, or of the GPU that so many `processes` use. `seconds` is checked
    between chunks.
    """

    low: Float[Tensor, " A"] | None = None
    high: Float[Tensor, " A"] | None = None
    chunk: int | None = None
    memory: int | None = None
    seconds: float | None = None
    processes: int = 1

    def __post_init__(self) -> None:
        """Refuse limits that no search can keep."""
        for name in ("chunk", "memory", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected {name} of at least 1, got {value}")
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise ValueError(f"expected finite seconds above 0, got {self.seconds}")
        if self.low is not None and self.high is not None and not bool((self.low <= self.high).all()):
            raise ValueError(f"expected low <= high, got {self.low.tolist()} and {self.high.tolist()}")

    def bound(self, actions: Float[Tensor, "*B L A"]) -> Float[Tensor, "*B L A"]:
        """Bring actions within the bounds."""
        if self.low is None and self.high is None:
            return actions
        low, high = (None if end is None else moved(end, actions.device) for end in (self.low, self.high))
        return actions.clamp(low, high)

    def at_a_time(self, cost: Cost, candidates: Float[Tensor, "B S L A"]) -> int:
        """Return how many candidates of each problem are judged at a time."""
        problems, samples = candidates.shape[:2]
        chunk = samples if self.chunk is None else self.chunk
        if isinstance(cost, SizedCost):
            if self.chunk is None and candidates.device.type == "cpu":
                chunk = min(samples, THREAD_CHUNK * torch.get_num_threads() // problems)
            memory = self.memory or fair_share(candidates.device, self.processes)
            chunk = min(chunk, memory // (problems * cost.bytes_per_candidate()))
        elif self.memory is not None:
            raise ValueError("expected a cost that tells its bytes_per_candidate: a memory limit needs that")
        return max(1, chunk)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a search found for each problem, and what its last complete iteration looked at."""

    actions: Float[Tensor, "B L A"]
    candidates: Float[Tensor, "B S L A"]
    costs: Float[Tensor, "B S"]
    trace: Float[Tensor, "iterations B"]  # the lowest cost of every complete iteration
    samples: int  # candidates judged for each problem, in all iterations


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
    limits, device, began = limits or Limits(), belief.actions.device, time.monotonic()

    def out_of_time() -> bool:
        if limits.seconds is None:
            return False
        wait_for(device)
        return time.monotonic() - began >= limits.seconds

    plan, trace, samples = None, list[Tensor](), 0
    for iteration in range(iterations):
        candidates = limits.bound(sample(belief, iteration))
        costs = score(cost, candidates, limits.at_a_time(cost, candidates), out_of_time)
        samples += costs.shape[1]
        if costs.shape[1] < candidates.shape[1]:
            return usable(best_scored(candidates, costs) if plan is None else replace(plan, samples=samples))
        belief = update(belief, candidates, costs)
        trace.append(costs.gather(1, lowest(costs, 1)).squeeze(1))
        actions = limits.bound(belief.actions)  # the mean of elites on a bound may be rounded beyond it
        lows = torch.stack(trace)
        plan = Plan(actions=actions, candidates=candidates, costs=costs, trace=lows, samples=samples)
        if on_iteration is not None:
            on_iteration(plan)
        if out_of_time():
            break
    if plan is None:
        raise ValueError(f"expected at least one iteration, got {iterations}")
    return usable(plan)


def usable(plan: Plan) -> Plan:
    """Return the plan if there was one to find; looked at once, for a GPU would have to be waited for."""
    if (plan.costs.isnan().all(dim=1) | plan.trace.isnan().any(dim=0) | plan.actions.isnan().any()).any():
        raise ValueError("every candidate of a problem costs NaN: the model or the observation is broken")
    return plan


def score(
    cost: Cost, candidates: Float[Tensor, "B S L A"], chunk: int, out_of_time: Callable[[], bool]
) -> Float[Tensor, "B scored"]:
    """Return the costs of the candidates, chunk by chunk; of fewer than all when the time is over."""
    costs = []
    for part in candidates.split(chunk, dim=1):
        costs.append(cost(part))
        if costs[-1].shape != part.shape[:2]:
            raise ValueError(f"expected costs of shape {[*part.shape[:2]]}, got {[*costs[-1].shape]}")
        if out_of_time():
            break
    return torch.cat(costs, dim=1)


def best_scored(candidates: Float[Tensor, "B S L A"], costs: Float[Tensor, "B scored"]) -> Plan:
    """Return the cheapest of those candidates that were scored; the trace is of complete iterations."""
    scored = candidates[:, : costs.shape[1]]
    best = lowest(costs, 1)
    return Plan(
        actions=taken(scored, best).squeeze(1),
        candidates=scored,
        costs=costs,
        trace=costs.new_empty(0, len(costs)),
        samples=costs.shape[1],
    )


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was asked for: it works on while the program goes on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def normal(
    generators: Sequence[torch.Generator], shape: Sequence[int], like: Tensor
) -> Float[Tensor, "B ..."]:
    """Draw standard normal noise of this shape for each problem from its own generator, and where that is."""
    if len(generators) != len(like):
        raise ValueError(f"expected a generator for each of {len(like)} problems, got {len(generators)}")
    drawn = [torch.randn(tuple(shape), generator=g, device=g.device, dtype=like.dtype) for g in generators]
    return moved(torch.stack(drawn), like.device)


def moved(drawn: Tensor, device: torch.device) -> Tensor:
    """Move what was drawn to a device, without waiting for what CUDA is still doing."""
    if device.type == "cuda" and drawn.device.type == "cpu":
        return drawn.pin_memory().to(device, non_blocking=True)
    return drawn.to(device)  # elsewhere a copy that goes on by itself may read memory that is free again


def lowest(costs: Float[Tensor, "B S"], count: int) -> Int[Tensor, "B count"]:
    """Return which candidates cost least, best first; NaN counts as infinite, ties go to the lower index."""
    return costs.nan_to_num(nan=torch.inf).argsort(dim=1, stable=True)[:, :count]


def lowest_in_turn(costs: Float[Tensor, "B S"], count: int) -> Int[Tensor, "B count"]:
    """Return which candidates cost least and not NaN; where there are not enough, they come in turn."""
    best = lowest(costs, count)
    finite = (~costs.gather(1, best).isnan()).sum(dim=1, keepdim=True)
    turn = torch.arange(best.shape[1], device=best.device) % finite.clamp(min=1)
    return best.gather(1, turn)


def taken(candidates: Float[Tensor, "B S L A"], rows: Int[Tensor, "B E"]) -> Float[Tensor, "B E L A"]:
    """Return the candidates of these rows, each problem its own."""
    return candidates.gather(1, rows[:, :, None, None].expand(-1, -1, *candidates.shape[2:]))
