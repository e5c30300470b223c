import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from scope_wm.hardware import computing_with
from scope_wm.planning.cem import CEMSettings, cem, refit
from scope_wm.planning.gradient import GradientSettings, gradient
from scope_wm.planning.icem import ICEMSettings, coloured, icem
from scope_wm.planning.memory import fair_share
from scope_wm.planning.mppi import MPPISettings, mppi, weights
from scope_wm.planning.random_shooting import random_shooting
from scope_wm.planning.search import (
    Gaussian,
    Limits,
    Plan,
    lowest,
    normal,
    standard_start,
    wait_for,
    warm_start,
)

TARGET = torch.linspace(-1.0, 1.0, 2 * 3 * 2).reshape(2, 1, 3, 2)
Optimiser = Callable[..., Plan]
OPTIMISERS: dict[str, tuple[Optimiser, object]] = {
    "cem": (cem, CEMSettings(samples=200, elites=20, iterations=20)),
    "icem": (icem, ICEMSettings(samples=200, elites=20, iterations=20)),
    "mppi": (mppi, MPPISettings(samples=300, iterations=20)),
    "gradient": (gradient, GradientSettings(iterations=150, noise=0.0)),
}


def bowl(candidates: Tensor) -> Tensor:
    return (candidates - TARGET[: len(candidates)]).square().sum((-1, -2))


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.fixture(params=OPTIMISERS)
def optimiser(request: pytest.FixtureRequest) -> Callable[..., Plan]:
    function, settings = OPTIMISERS[request.param]

    def run(
        cost: Callable[[Tensor], Tensor],
        seeds: Sequence[int],
        start: Gaussian | None = None,
        **options: object,
    ) -> Plan:
        start = start or standard_start(len(seeds), 3, 2)
        return function(cost, start, generators(*seeds), settings, **options)

    return run


def test_a_bowl_is_solved(optimiser: Callable[..., Plan]) -> None:
    plan = optimiser(bowl, [0, 1])
    assert (plan.actions - TARGET[:, 0]).abs().max() < 0.2
    assert (plan.trace[-1] < plan.trace[0]).all()


def test_chunks_and_batches_change_no_bit(optimiser: Callable[..., Plan]) -> None:
    together = optimiser(bowl, [0, 1])
    chunked = optimiser(bowl, [0, 1], limits=Limits(chunk=7))
    alone = optimiser(lambda c: (c - TARGET[1:]).square().sum((-1, -2)), [1])
    assert torch.equal(together.actions, chunked.actions)
    assert torch.equal(together.actions[1], alone.actions[0])


class SizedBowl:
    """The bowl, at a thousand bytes for every action of a candidate; it notes how many come at a time."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, candidates: Tensor) -> Tensor:
        self.seen.append(candidates.shape[1])
        return bowl(candidates)

    def bytes_per_candidate(self) -> int:
        return 3000


@pytest.mark.parametrize(
    ("memory", "chunk", "expected"),
    [
        (60_000, None, [10] * 10),  # two problems of three actions: 6,000 bytes for a candidate of each
        (65_999, None, [10] * 10),
        (60_000, 40, [10] * 10),
        (60_000, 4, [4] * 25),
        (5_999, None, [1] * 100),  # one at a time is the least
    ],
)
def test_a_memory_limit_cuts_the_candidates_and_changes_no_bit(
    memory: int, chunk: int | None, expected: list[int]
) -> None:
    def run(limits: Limits | None) -> tuple[Plan, list[int]]:
        cost = SizedBowl()
        settings = CEMSettings(iterations=1)
        return cem(cost, standard_start(2, 3, 2), generators(0, 1), settings, limits=limits), cost.seen

    unlimited, at_once = run(Limits(chunk=100))
    limited, seen = run(Limits(memory=memory, chunk=chunk))
    assert at_once == [100]
    assert seen == expected
    assert torch.equal(limited.actions, unlimited.actions)
    assert torch.equal(limited.costs, unlimited.costs)


def test_without_a_limit_a_search_takes_a_share_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scope_wm.planning.search.fair_share", lambda device, processes: 60_000 * processes)
    cost = SizedBowl()
    cem(cost, standard_start(2, 3, 2), generators(0, 1), CEMSettings(iterations=1))
    assert cost.seen == [10] * 10
    assert Limits(processes=2).at_a_time(cost, torch.empty(2, 100, 3, 2)) == 20
    total, cores = psutil.virtual_memory().total, os.cpu_count()
    assert fair_share(torch.device("cpu")) == total // (2 * cores)


@pytest.mark.parametrize(("threads", "expected"), [(1, [25] * 4), (2, [50] * 2), (8, [100])])
def test_a_model_on_a_processor_is_given_what_keeps_its_threads_busy(
    threads: int, expected: list[int]
) -> None:
    cost = SizedBowl()
    with computing_with(threads):
        cem(cost, standard_start(2, 3, 2), generators(0, 1), CEMSettings(iterations=1))
    assert cost.seen == expected


def test_a_memory_limit_needs_a_cost_that_knows_its_size() -> None:
    with pytest.raises(ValueError, match="bytes_per_candidate"):
        cem(bowl, standard_start(2, 3, 2), generators(0, 1), CEMSettings(), limits=Limits(memory=1000))


def test_a_search_starts_where_it_is_told(optimiser: Callable[..., Plan]) -> None:
    first: list[Plan] = []
    optimiser(bowl, [0, 1])
    near = Gaussian(mean=TARGET[:, 0].clone(), std=torch.full((2, 3, 2), 1e-3))
    optimiser(bowl, [0, 1], start=near, on_iteration=first.append)
    assert (first[0].candidates - TARGET).abs().max() < 0.05
    assert (first[-1].actions - TARGET[:, 0]).abs().max() < 0.05


def test_the_rest_of_a_plan_is_a_warm_start() -> None:
    plan = torch.arange(12.0).reshape(2, 3, 2)
    start = warm_start(plan, executed=1)
    assert start.mean.tolist() == [[[2, 3], [4, 5], [0, 0]], [[8, 9], [10, 11], [0, 0]]]
    assert start.std.tolist() == torch.ones(2, 3, 2).tolist()
    assert torch.equal(warm_start(plan, executed=0).mean, plan)
    assert not warm_start(plan, executed=3).mean.any()
    with pytest.raises(ValueError, match="expected 0 to 3 executed actions, got 4"):
        warm_start(plan, executed=4)


def test_every_candidate_that_was_judged_is_counted(optimiser: Callable[..., Plan]) -> None:
    judged: list[int] = []

    def counted(candidates: Tensor) -> Tensor:
        judged.append(candidates.shape[1])
        return bowl(candidates)

    assert optimiser(counted, [0, 1]).samples == sum(judged)


def test_a_problem_without_a_generator_is_refused() -> None:
    with pytest.raises(ValueError, match="a generator for each of 2 problems, got 1"):
        cem(bowl, standard_start(2, 3, 2), generators(0), CEMSettings())


def test_noise_is_drawn_by_the_processor_and_moved() -> None:
    like = torch.empty(2, 3, 2, device="meta")
    assert normal(generators(0, 1), (5, 3, 2), like).device.type == "meta"


def test_limits_hold(optimiser: Callable[..., Plan]) -> None:
    low, high = torch.tensor([-0.3, -0.2]), torch.tensor([0.3, 0.2])
    plan = optimiser(bowl, [0, 1], limits=Limits(low=low, high=high))
    assert (plan.actions >= low).all()
    assert (plan.actions <= high).all()
    assert (plan.candidates >= low).all()
    assert (plan.actions[0, 0] - low).abs().max() < 0.1


def test_nan_is_never_chosen_and_all_nan_is_an_error(optimiser: Callable[..., Plan]) -> None:
    def holed(candidates: Tensor) -> Tensor:
        return torch.where(candidates[..., 0, 0] > 0.0, torch.nan, bowl(candidates))

    # The unconstrained optimum of the second problem has a positive first action.
    plan = optimiser(holed, [0, 1])
    assert plan.actions.isfinite().all()
    assert (plan.actions[:, 0, 0] < 0.05).all()
    with pytest.raises(ValueError, match="NaN"):
        optimiser(lambda c: torch.full(c.shape[:2], torch.nan) + c.sum() * 0, [0, 1])


class Clock:
    """Time that passes with every call of a cost, a second each."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def monotonic(self) -> float:
        return float(len(self.calls))

    def __call__(self, candidates: Tensor) -> Tensor:
        self.calls.append(candidates.shape[1])
        return bowl(candidates)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("scope_wm.planning.search.time", made)
    return made


def test_out_of_time_the_last_complete_iteration_counts(optimiser: Callable[..., Plan], clock: Clock) -> None:
    seen: list[Plan] = []
    plan = optimiser(clock, [0, 1], limits=Limits(seconds=4.0), on_iteration=seen.append)
    assert len(clock.calls) == 4
    assert len(plan.trace) == len(seen) == 4
    assert torch.equal(plan.actions, seen[-1].actions)


def test_out_of_time_within_an_iteration_the_one_before_counts(clock: Clock) -> None:
    seen: list[Plan] = []
    limits = Limits(chunk=10, seconds=25.0)  # the fifth of ten chunks in the third iteration
    start, settings = standard_start(2, 3, 2), CEMSettings(iterations=4)
    plan = cem(clock, start, generators(0, 1), settings, limits=limits, on_iteration=seen.append)
    assert clock.calls == [10] * 25
    assert len(seen) == 2
    assert torch.equal(plan.actions, seen[-1].actions)
    assert torch.equal(plan.trace, seen[-1].trace)
    assert plan.samples == 250


def test_out_of_time_in_the_first_iteration_the_best_scored_counts(clock: Clock) -> None:
    limits = Limits(chunk=10, seconds=1.5)
    plan = cem(clock, standard_start(2, 3, 2), generators(0, 1), CEMSettings(), limits=limits)
    assert plan.costs.shape == (2, 20)
    assert plan.samples == 20
    best = plan.costs.argmin(1)
    assert torch.equal(plan.actions, plan.candidates[[0, 1], best])
    assert plan.trace.shape == (0, 2)  # no iteration is complete


def test_a_clock_is_read_when_the_device_has_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr("scope_wm.planning.search.wait_for", lambda device: waited.append(device.type))
    settings = CEMSettings(iterations=1)
    cem(bowl, standard_start(2, 3, 2), generators(0, 1), settings)
    assert waited == []
    cem(bowl, standard_start(2, 3, 2), generators(0, 1), settings, limits=Limits(chunk=50, seconds=60.0))
    assert waited == ["cpu"] * 3  # after two chunks and at the end


def test_only_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(str(device)))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    for name in ("cpu", "cuda:1", "mps"):
        wait_for(torch.device(name))
    assert waited == ["cuda:1", "mps"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"chunk": 0}, "expected chunk of at least 1, got 0"),
        ({"memory": 0}, "expected memory of at least 1, got 0"),
        ({"seconds": 0.0}, "expected finite seconds above 0, got 0.0"),
        ({"seconds": float("inf")}, "expected finite seconds above 0, got inf"),
        ({"low": torch.tensor([0.0, 2.0]), "high": torch.ones(2)}, r"low <= high, got \[0.0, 2.0\] and"),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**limits)


def test_a_cost_of_another_shape_is_refused(optimiser: Callable[..., Plan]) -> None:
    with pytest.raises(ValueError, match=r"expected costs of shape \[2, \d+\], got \[2, \d+, 3\]"):
        optimiser(lambda c: (c - TARGET).square().sum(-1), [0, 1])


def test_icem_keeps_no_elite_that_costs_nan() -> None:
    seen: list[Tensor] = []

    def one_is_left(candidates: Tensor) -> Tensor:
        costs = torch.full(candidates.shape[:2], torch.nan)
        costs[:, 4] = 1.0
        seen.append(candidates)
        return costs

    settings = ICEMSettings(samples=20, elites=5, iterations=2, kept=3)
    icem(one_is_left, standard_start(2, 3, 2), generators(0, 1), settings)
    first, second = seen
    assert torch.equal(second[:, :3], first[:, [4, 4, 4]])


def test_cem_follows_a_trace_calculated_in_numpy() -> None:
    settings = CEMSettings(samples=20, elites=5, iterations=4)
    plans: list[Plan] = []
    cem(bowl, standard_start(2, 3, 2), generators(3, 4), settings, on_iteration=plans.append)
    for problem, seed in enumerate((3, 4)):
        source = torch.Generator().manual_seed(seed)
        mean, std = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
        for plan in plans:
            noise = torch.randn(20, 3, 2, generator=source).numpy()
            candidates = mean + std * noise
            candidates[0] = mean
            costs = ((candidates - TARGET[problem, 0].numpy()) ** 2).sum((1, 2))
            elites = candidates[np.argsort(costs, kind="stable")[:5]]
            mean, std = elites.mean(0), elites.std(0, ddof=1)
            np.testing.assert_allclose(plan.actions[problem].numpy(), mean, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(plan.costs[problem].numpy(), costs, rtol=1e-4, atol=1e-6)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="11 elites of 10 samples"):
        CEMSettings(samples=10, elites=11)
    with pytest.raises(ValueError, match="horizon of at least 1, got 0"):
        standard_start(1, 0, 2)
    with pytest.raises(ValueError, match="iteration"):
        CEMSettings(iterations=0)
    with pytest.raises(ValueError, match="temperature above 0"):
        MPPISettings(temperature=0.0)


def test_ties_and_nan_are_ordered() -> None:
    costs = torch.tensor([[2.0, torch.nan, 1.0, 1.0, torch.inf]])
    assert lowest(costs, 3).tolist() == [[2, 3, 0]]


def test_refit_leaves_out_nan() -> None:
    elites = torch.tensor([1.0, 3.0, 100.0]).reshape(1, 3, 1, 1)
    fitted = refit(elites, torch.tensor([[0.0, 1.0, torch.nan]]))
    assert float(fitted.mean) == 2.0
    assert float(fitted.std) == pytest.approx(2**0.5)


def test_coloured_noise_has_unit_variance_and_its_colour() -> None:
    white = torch.randn(20000, 8, 1, generator=torch.Generator().manual_seed(0))
    noise = coloured(white, 2.0).squeeze(-1)
    torch.testing.assert_close(noise.std(0), torch.ones(8), atol=0.03, rtol=0)
    power = torch.fft.rfft(noise).abs().square().mean(0)
    assert float(power[1] / power[2]) == pytest.approx(4.0, rel=0.05)
    torch.testing.assert_close(coloured(white, 0.0), white, atol=1e-5, rtol=0)


def test_mppi_weights_by_hand() -> None:
    share = weights(torch.tensor([[1.0, 2.0, torch.nan, 3.0]]), temperature=0.5)
    spread = np.sqrt((0 + 1 + 4) / 3)
    raw = np.exp(-np.array([0.0, 1.0, 2.0]) / (0.5 * spread))
    np.testing.assert_allclose(share[0, [0, 1, 3]].numpy(), raw / raw.sum(), rtol=1e-5)
    assert float(share[0, 2]) == 0.0
    assert weights(torch.tensor([[torch.nan, torch.inf]]), temperature=0.5).isnan().all()


def test_random_shooting_takes_the_cheapest_draw() -> None:
    plan = random_shooting(bowl, standard_start(2, 3, 2), generators(0, 1), 50)
    assert torch.equal(plan.actions, plan.candidates[[0, 1], plan.costs.argmin(1)])
    assert plan.candidates.shape == (2, 50, 3, 2)
