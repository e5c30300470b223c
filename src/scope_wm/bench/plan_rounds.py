"""Measuring how long planning takes: the best chunks first, then rounds in which every variant has its turn.

A chunk of candidates is the unit, for a full step of the slow variants would take hours. In its turn a
variant imagines chunks for some seconds, between two measurements of the machine's GEMM rate: both vary from
minute to minute. The encoding of an image and the optimiser's own time are measured in every round as well. A
full step is measured too where the time that is left allows it, to show what the extrapolation is worth.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.bench.gemm import gemm_rate
from scope_wm.bench.parts import part_timers
from scope_wm.bench.plan_results import Round
from scope_wm.bench.plan_variants import PLAIN_A, VariantCost
from scope_wm.bench.subject import PROBLEM_SEED
from scope_wm.elite_bank import LATER_STEPS, EliteBank
from scope_wm.planning.mpc import search_generator
from scope_wm.planning.planners import PLANNERS
from scope_wm.planning.search import Cost, Limits, standard_start

Action = tuple[int, int]  # the horizon and the width of world-model actions
TURN_SECONDS = 10.0  # that a variant takes at least, by imagining chunk after chunk
CPU = torch.device("cpu")
STEP_CANDIDATES = LATER_STEPS.samples * LATER_STEPS.iterations


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Budget:
    """Seconds that may be spent from now on."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left; after the end, less than 0."""
        return self.end - time.monotonic()


def random_candidates(count: int, action: Action) -> Float[Tensor, "1 S L A"]:
    """Return candidates of a standard normal, always the same."""
    return torch.randn(1, count, *action, generator=torch.Generator().manual_seed(0))


def chunk_seconds(cost: Cost, size: int, action: Action) -> float:
    """Return how long it takes to judge a chunk."""
    candidates = random_candidates(size, action)
    return seconds_of(lambda: cost(candidates))


def best_chunk(cost: Cost, sizes: Sequence[int], action: Action, budget: Budget) -> int:
    """Return the size whose candidates take least time, of those that the budget allows to try."""
    cost(random_candidates(1, action))
    each = dict[int, float]()
    for size in sorted(sizes):
        if each and budget.left() < size * max(each.values()):
            break
        each[size] = chunk_seconds(cost, size, action) / size
    return min(each, key=lambda size: each[size])


def measured_round(
    costs: dict[str, VariantCost], chunks: dict[str, int], action: Action, steps: int
) -> Round:
    """Give everything one turn; A as published needs none of its own."""
    dense, images = costs[PLAIN_A.name], chunks[PLAIN_A.name]
    turns = {
        name: turn(cost, chunks[name], action)
        for name, cost in costs.items()
        if not cost.variant.encodes_each
    }
    return Round(
        gemm_rate={name: rate for name, (rate, _) in turns.items()},
        image=seconds_of(lambda: dense.encode(1)),
        images=seconds_of(lambda: dense.encode(images)),
        optimiser={planner: optimiser_seconds(planner, action, steps) for planner in ("cem", "eb-cem")},
        chunk={name: seconds for name, (_, seconds) in turns.items()},
    )


def turn(cost: Cost, size: int, action: Action) -> tuple[float, float]:
    """Return the GEMM rate, the mean of before and after, and the median time of a chunk."""
    before, budget, times = gemm_rate(CPU), Budget(TURN_SECONDS), list[float]()
    while not times or budget.left() > 0:
        times.append(chunk_seconds(cost, size, action))
    return (before + gemm_rate(CPU)) / 2, median(times)


def optimiser_seconds(planner: str, action: Action, steps: int) -> float:
    """Return how long all steps of a search take when its candidates cost nothing to judge."""
    return seconds_of(lambda: search_steps(planner, free_cost, action, steps))


def free_cost(candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
    """Judge candidates by nothing but themselves."""
    return candidates.square().mean((-1, -2))


def search_steps(planner: str, cost: Cost, action: Action, steps: int) -> EliteBank | None:
    """Plan so many steps of the fixed problem, and return the bank."""
    bank = None
    for step in range(steps):
        bank = search_step(planner, cost, action, bank, step=step)
    return bank


def search_step(
    planner: str, cost: Cost, action: Action, bank: EliteBank | None, *, step: int, chunk: int | None = None
) -> EliteBank | None:
    """Plan one step, and return the bank for the next."""
    start, generators = standard_start(1, *action), [search_generator(0, PROBLEM_SEED, step)]
    return PLANNERS[planner](cost, start, generators, bank, limits=Limits(chunk=chunk))[1]


def full_step(planner: str, cost: VariantCost, chunk: int, action: Action) -> float:
    """Return the seconds of one step after the first: encode, and search with 100 candidates 10 times."""
    bank = search_steps(planner, free_cost, action, 1)

    def step() -> None:
        if not cost.variant.encodes_each:
            cost.encode(1)
        search_step(planner, cost, action, bank, step=1, chunk=chunk)

    return seconds_of(step)


def shares(cost: VariantCost, chunk: int, action: Action) -> dict[str, float]:
    """Return which share of a chunk's time each part takes."""
    with part_timers() as spent:
        whole = chunk_seconds(cost, chunk, action)
    return {part: seconds / whole for part, seconds in spent.items()}
