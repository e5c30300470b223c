import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scope_wm.background import BackgroundUpdate, Copy, CrossAttention, ForegroundDelta
from scope_wm.model.fast_rollout import complement, last_imagined
from scope_wm.model.predictor import Absolute, Predictor, Residual
from scope_wm.model.rollout import rollout
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import Fuse, TokenConfig, WorldModel
from scope_wm.selector import (
    DistilledSelector,
    EveryToken,
    MotionSelector,
    RandomSelector,
    RelevanceHead,
    Selector,
)

TINY = TransformerConfig(depth=3, heads=2, head_width=4, mlp_width=8, dropout=0.1)
BACKGROUNDS = ["foreground-delta", "copy", "cross-attention"]
SELECTORS = ["distilled", "every-token", "random", "motion"]


def make(
    n: int, k: int, history: int, selector: str = "distilled", background: str = "foreground-delta"
) -> WorldModel:
    tokens = TokenConfig(num_tokens=n, visual=5, proprio=2, action=4, embedding=3)
    width = tokens.width
    output = Residual(width) if background == "copy" else Absolute()
    predictor = Predictor(width=width, num_tokens=n, history=history, transformer=TINY, output=output)
    selectors: dict[str, Selector] = {
        "distilled": DistilledSelector(RelevanceHead(visual=5, embedding=3, hidden=4), k),
        "every-token": EveryToken(n),
        "random": RandomSelector(k, torch.Generator().manual_seed(7)),
        "motion": MotionSelector(k, torch.randn(n, 5)),
    }
    backgrounds: dict[str, BackgroundUpdate] = {
        "foreground-delta": ForegroundDelta(width, alpha=0.7),
        "copy": Copy(),
        "cross-attention": CrossAttention(width, n, rank=8),
    }
    model = WorldModel(Fuse(tokens), predictor, selectors[selector], backgrounds[background])
    for parameter in model.parameters():  # LayerNorms that do something, a residual that is not zero
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


def inputs(model: WorldModel, batch: int, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    config = model.fuse.config
    return (
        torch.randn(batch, config.num_tokens, config.visual),
        torch.randn(batch, config.proprio),
        torch.randn(batch, horizon, config.action),
    )


def fast(
    model: WorldModel, visual: Tensor, proprio: Tensor, actions: Tensor, previous: Tensor | None = None
) -> Tensor:
    return last_imagined(model, visual, proprio, actions, previous)


def assert_same(model: WorldModel, *arguments: Tensor | None) -> None:
    if isinstance(model.selector, RandomSelector):
        model.selector.generator.manual_seed(7)
    expected = rollout(model, *arguments)[:, -1]
    if isinstance(model.selector, RandomSelector):
        model.selector.generator.manual_seed(7)
    torch.testing.assert_close(fast(model, *arguments), expected, rtol=1e-4, atol=1e-5)


def test_the_epsilon_of_layer_norms_is_the_models() -> None:
    torch.manual_seed(0)
    model = make(n=6, k=2, history=2)
    before = fast(model, *(given := inputs(model, 2, 3)))
    for branch in (model.background.update, model.background.gate):
        branch[0].eps = 0.5
    assert_same(model, *given)
    assert not torch.allclose(fast(model, *given), before, rtol=1e-2)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 99),
)
@torch.no_grad()
def test_any_sizes_give_the_last_frame_of_the_plain_rollout(
    batch: int, horizon: int, n: int, k: int, history: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = make(n, min(k, n), history)
    assert_same(model, *inputs(model, batch, horizon))


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("selector", SELECTORS)
@torch.no_grad()
def test_any_parts_give_the_last_frame_of_the_plain_rollout(selector: str, background: str) -> None:
    torch.manual_seed(0)
    model = make(9, 4, 3, selector, background)
    arguments = inputs(model, 2, 6)
    assert_same(model, *arguments)
    assert_same(model, *arguments, torch.randn_like(arguments[0]))


@torch.no_grad()
def test_what_was_seen_stays_as_it_was() -> None:
    torch.manual_seed(0)
    model = make(9, 4, 2, background="copy")
    arguments = inputs(model, 2, 4)
    before = [each.clone() for each in arguments]
    fast(model, *arguments)
    assert all(torch.equal(now, then) for now, then in zip(arguments, before, strict=True))


def test_the_gradient_of_actions_is_that_of_the_plain_rollout() -> None:
    torch.manual_seed(0)
    model = make(6, 3, 2)
    visual, proprio, actions = inputs(model, 2, 3)
    leaves = [actions.clone().requires_grad_() for _ in range(2)]
    rollout(model, visual, proprio, leaves[0])[:, -1].square().sum().backward()
    fast(model, visual, proprio, leaves[1]).square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=1e-3, atol=1e-5)


def test_the_complement_is_ascending() -> None:
    assert complement(torch.tensor([[1, 3], [0, 4]]), 5).tolist() == [[0, 2, 4], [1, 2, 3]]
