from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scope_wm.bench.parts import PARTS, part_timers
from scope_wm.bench.plan_rounds import chunk_seconds, random_candidates
from scope_wm.bench.plan_variants import (
    FAST,
    INT8,
    PLAIN_A,
    PLAIN_B,
    PUBLISHED,
    Variant,
    VariantCost,
    compiled_variant,
    plain,
)
from scope_wm.bench.subject import Subject, random_model
from scope_wm.model.fast_rollout import FastRollout
from scope_wm.planning.latent import LatentCost, Seen
from scope_wm.planning.side_by_side import SideBySide

SUBJECT = Subject(task="push_t", preset="tiny")
ENCODER, PROBLEM = SUBJECT.encoder(), SUBJECT.problem()
CONFIG = replace(SUBJECT.config(None, ENCODER.num_tokens, ENCODER.dim), history=3)
ACTION = (4, CONFIG.tokens.action)
FAST_DENSE, FAST_98, FAST_32 = FAST


def cost_of(variant: Variant) -> VariantCost:
    config = replace(SUBJECT.config(variant.k, ENCODER.num_tokens, ENCODER.dim), history=CONFIG.history)
    return VariantCost(variant, random_model(config), ENCODER, PROBLEM)


def assert_same_costs(first: Variant, second: Variant) -> None:
    candidates = random_candidates(3, ACTION)
    expected = cost_of(first)(candidates)
    assert expected.shape == (1, 3)
    assert expected.std() > 1e-3 * expected.mean(), "the actions must matter"
    torch.testing.assert_close(cost_of(second)(candidates), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("other", [PUBLISHED, PLAIN_B, FAST_DENSE], ids=lambda variant: variant.name)
def test_all_dense_variants_give_the_costs_of_a(other: Variant) -> None:
    assert_same_costs(PLAIN_A, other)


@pytest.mark.parametrize("sparse", [FAST_98, FAST_32], ids=lambda variant: variant.name)
def test_the_sparse_variants_give_the_costs_of_the_plain_sparse_model(sparse: Variant) -> None:
    assert_same_costs(replace(sparse, last=plain), sparse)


def test_the_cost_is_that_of_planning() -> None:
    cost, candidates = cost_of(FAST_32), random_candidates(3, ACTION)
    planned = LatentCost(
        model=cost.model,
        imagine=cost.imagine,
        now=Seen(visual=ENCODER(PROBLEM.now), proprio=PROBLEM.proprio),
        goal=Seen(visual=ENCODER(PROBLEM.goal), proprio=PROBLEM.goal_proprio),
        previous=None,
        alpha=1.0,
    )
    torch.testing.assert_close(cost(candidates), planned(candidates))


def test_a_holds_the_scores_of_attention_and_b_does_not() -> None:
    counted = []
    for variant in (PLAIN_A, PLAIN_B):
        cost = cost_of(variant)
        with FlopCounterMode(display=False) as counter:
            cost(random_candidates(1, ACTION))
        counted.append(counter.get_flop_counts()["Global"])
    assert torch.ops.aten.bmm in counted[0]  # Q K^T, and its product with V
    assert torch.ops.aten.bmm not in counted[1]


def test_published_encodes_the_image_of_every_candidate() -> None:
    for variant, images in ((PUBLISHED, 3), (PLAIN_A, 0)):
        cost, encoded = cost_of(variant), []
        assert isinstance(ENCODER, torch.nn.Module)
        hook = ENCODER.register_forward_pre_hook(lambda _, given, to=encoded: to.append(len(given[0])))
        cost(random_candidates(3, ACTION))
        hook.remove()
        assert sum(encoded) == images


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own
def test_a_compiled_variant_imagines_with_the_compiled_rollout() -> None:
    eager, other = cost_of(FAST_32), cost_of(compiled_variant(FAST_32))
    assert isinstance(eager.imagine, SideBySide)
    assert isinstance(other.imagine, SideBySide)
    assert not isinstance(eager.imagine.imagine, FastRollout)
    assert isinstance(other.imagine.imagine, FastRollout)


def test_int8_moves_the_costs_a_little_and_leaves_the_model_as_it_is() -> None:
    exact, rounded = cost_of(FAST_32), cost_of(INT8)
    candidates = random_candidates(4, ACTION)
    costs = exact(candidates), rounded(candidates)
    assert 0 < ((costs[1] - costs[0]) / costs[0]).abs().max() < 0.1
    torch.testing.assert_close(exact(candidates), costs[0])


@pytest.mark.parametrize("variant", [PUBLISHED, FAST_32, replace(FAST_32, last=plain)], ids=lambda v: v.name)
def test_the_timers_see_every_part_once_and_leave_no_trace(variant: Variant) -> None:
    cost, before = cost_of(variant), methods()
    with part_timers() as spent:
        whole = chunk_seconds(cost, 2, ACTION)
    assert methods() == before
    assert sum(spent.values()) <= whole
    unused = {part for part, seconds in spent.items() if seconds == 0}
    assert unused == ({"background"} if variant is PUBLISHED else {"encode"})


def methods() -> list[object]:
    return [getattr(owner, name) for calls in PARTS.values() for owner, name in calls]
