from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from scope_wm.elite_bank import BANK_SIZE, FIRST_STEP, LATER_STEPS, EliteBank
from scope_wm.evaluate.settings import PlannerName, SearchSettings
from scope_wm.planning.cem import CEMSettings, cem
from scope_wm.planning.search import Plan, standard_start

B, L, A = 2, 3, 2


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def two_valleys(candidates: Tensor) -> Tensor:
    right = (candidates - 1.5).square().sum((-1, -2))
    left = (candidates + 1.5).square().sum((-1, -2)) + 0.5
    return torch.minimum(right, left)


def first_plan() -> Plan:
    return cem(two_valleys, standard_start(B, L, A), generators(0, 1), FIRST_STEP)


def test_the_budgets_are_the_papers() -> None:
    assert (FIRST_STEP.samples, FIRST_STEP.elites, FIRST_STEP.iterations) == (300, 30, 10)
    assert (LATER_STEPS.samples, LATER_STEPS.elites, LATER_STEPS.iterations) == (100, 10, 10)
    assert BANK_SIZE == 30


def test_the_bank_is_the_cheapest_of_the_last_iteration() -> None:
    plan = first_plan()
    bank = EliteBank.fill(plan)
    assert bank.sequences.shape == (B, 30, L, A)
    for problem in range(B):
        order = np.argsort(plan.costs[problem].numpy(), kind="stable")[:30]
        np.testing.assert_array_equal(bank.sequences[problem], plan.candidates[problem][order])


def test_the_bank_never_holds_what_costs_nan() -> None:
    plan = first_plan()
    costs = torch.full((B, 300), torch.nan)
    costs[:, [7, 5, 200]] = torch.tensor([3.0, 1.0, 2.0])
    bank = EliteBank.fill(replace(plan, costs=costs))
    for problem in range(B):
        in_turn = plan.candidates[problem, [5, 200, 7] * 10]
        assert torch.equal(bank.sequences[problem], in_turn)


def test_a_later_step_follows_a_trace_calculated_in_numpy() -> None:
    bank = EliteBank.fill(first_plan())
    plans: list[Plan] = []
    start = standard_start(B, L, A)
    cem(two_valleys, start, generators(2, 3), LATER_STEPS, proposal=bank, on_iteration=plans.append)
    for problem, seed in enumerate((2, 3)):
        source, kept = torch.Generator().manual_seed(seed), bank.sequences[problem].numpy()
        mean, std = np.zeros((L, A), np.float32), np.ones((L, A), np.float32)
        for plan in plans:
            rows = torch.randint(30, (70,), generator=source).numpy()
            near = kept[rows] + 0.5 * std * torch.randn(70, L, A, generator=source).numpy()
            candidates = np.concatenate([near, mean + std * torch.randn(30, L, A, generator=source).numpy()])
            candidates[0] = mean
            right = ((candidates - 1.5) ** 2).sum((1, 2))
            left = ((candidates + 1.5) ** 2).sum((1, 2)) + 0.5
            costs = np.minimum(right, left)
            elites = candidates[np.argsort(costs, kind="stable")[:10]]
            mean, std = elites.mean(0), elites.std(0, ddof=1)
            np.testing.assert_allclose(plan.costs[problem].numpy(), costs, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(plan.actions[problem].numpy(), mean, rtol=1e-4, atol=1e-5)


def test_seventy_local_then_thirty_global_in_the_drawing_order() -> None:
    bank = EliteBank(sequences=torch.randn(B, 5, L, A, generator=torch.Generator().manual_seed(9)))
    mean, std = torch.full((B, L, A), 4.0), torch.full((B, L, A), 0.2)
    drawn = bank(mean, std, 100, generators(7, 8))
    for problem, seed in enumerate((7, 8)):
        source = torch.Generator().manual_seed(seed)
        indices = torch.randint(5, (70,), generator=source)
        local = torch.randn(70, L, A, generator=source)
        far = torch.randn(30, L, A, generator=source)
        expected = np.concatenate(
            [
                bank.sequences[problem][indices].numpy() + 0.5 * 0.2 * local.numpy(),
                4.0 + 0.2 * far.numpy(),
            ]
        )
        np.testing.assert_allclose(drawn[problem].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_candidate_zero_is_the_mean_and_the_bank_never_changes() -> None:
    bank = EliteBank.fill(first_plan())
    before = bank.sequences.clone()
    seen: list[Plan] = []
    cem(
        two_valleys,
        standard_start(B, L, A),
        generators(2, 3),
        LATER_STEPS,
        proposal=bank,
        on_iteration=seen.append,
    )
    assert torch.equal(bank.sequences, before)
    assert len(seen) == 10
    assert torch.equal(seen[0].candidates[:, 0], torch.zeros(B, L, A))
    for earlier, later in pairwise(seen):
        assert torch.equal(later.candidates[:, 0], earlier.actions)


def test_the_bank_follows_its_problem() -> None:
    bank = EliteBank.fill(first_plan())
    alone = bank.of(torch.tensor([1]))
    start = standard_start(B, L, A)
    both = cem(two_valleys, start, generators(2, 3), LATER_STEPS, proposal=bank)
    one = cem(two_valleys, standard_start(1, L, A), generators(3), LATER_STEPS, proposal=alone)
    assert torch.equal(both.actions[1], one.actions[0])


@pytest.mark.parametrize(("planner", "first"), [("cem", LATER_STEPS), ("eb-cem", FIRST_STEP)])
def test_a_search_may_draw_less_often(planner: PlannerName, first: CEMSettings) -> None:
    short = SearchSettings(planner=planner, iterations=3).step_planner()
    start = standard_start(B, L, A)
    found, bank = short(two_valleys, start, generators(0, 1), None)
    plain = cem(two_valleys, start, generators(0, 1), replace(first, iterations=3))
    assert torch.equal(found.actions, plain.actions)
    seen: list[Plan] = []
    short(two_valleys, start, generators(2, 3), bank, on_iteration=seen.append)
    assert len(seen) == 3
    usual = cem(two_valleys, start, generators(0, 1), first)
    assert not torch.equal(found.actions, usual.actions)


def test_with_no_share_for_the_bank_it_is_cem_with_another_first_step() -> None:
    planner = SearchSettings(planner="cem", first_samples=300).step_planner()
    start = standard_start(B, L, A)
    first, bank = planner(two_valleys, start, generators(0, 1), None)
    later, after = planner(two_valleys, start, generators(2, 3), bank)
    assert after is bank
    for plan, seeds, settings in ((first, (0, 1), FIRST_STEP), (later, (2, 3), LATER_STEPS)):
        plain = cem(two_valleys, start, generators(*seeds), settings)
        assert torch.equal(plan.actions, plain.actions)
        assert torch.equal(plan.costs, plain.costs)


@pytest.mark.parametrize(("count", "local"), [(100, 70), (90, 63), (99, 69), (1, 0)])
def test_the_local_share_is_rounded_down_from_its_exact_value(count: int, local: int) -> None:
    bank = EliteBank(sequences=torch.zeros(1, 3, 2, 2))
    mean, std = torch.ones(1, 2, 2), torch.zeros(1, 2, 2)
    drawn = bank(mean, std, count, [torch.Generator().manual_seed(0)])
    assert int((drawn == 0).all(dim=(2, 3)).sum()) == local
    assert int((drawn == 1).all(dim=(2, 3)).sum()) == count - local
