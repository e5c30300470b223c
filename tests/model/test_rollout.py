import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scope_wm.background import ForegroundDelta
from scope_wm.model.predictor import Predictor, frame_causal_mask, random_groups
from scope_wm.model.rollout import rollout
from scope_wm.model.transformer import Attention, TransformerConfig
from scope_wm.model.world_model import Fuse, TokenConfig, WorldModel, dense, prediction_loss
from scope_wm.selector import DistilledSelector, MotionSelector, RandomSelector, RelevanceHead

TINY = TransformerConfig(depth=2, heads=2, head_width=4, mlp_width=8, dropout=0.0)


def make(n: int, k: int, history: int, visual: int = 5) -> WorldModel:
    tokens = TokenConfig(num_tokens=n, visual=visual, proprio=2, action=4, embedding=3)
    predictor = Predictor(width=tokens.width, num_tokens=n, history=history, transformer=TINY)
    selector = DistilledSelector(RelevanceHead(visual=visual, embedding=3, hidden=4), k)
    return WorldModel(Fuse(tokens), predictor, selector, ForegroundDelta(tokens.width)).eval()


def inputs(model: WorldModel, batch: int, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    config = model.fuse.config
    return (
        torch.randn(batch, config.num_tokens, config.visual),
        torch.randn(batch, config.proprio),
        torch.randn(batch, horizon, config.action),
    )


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 8),
)
def test_shapes_for_any_sizes(batch: int, horizon: int, n: int, k: int, history: int, visual: int) -> None:
    model = make(n, min(k, n), history, visual)
    frames = rollout(model, *inputs(model, batch, horizon))
    assert frames.shape == (batch, horizon, n, visual + 6)
    assert frames.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 100))
def test_for_any_sizes_k_equal_n_is_dense_and_a_batch_is_its_rows(
    batch: int, horizon: int, n: int, history: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = make(n, n, history)
    arguments = inputs(model, batch, horizon)
    imagined = rollout(model, *arguments)
    torch.testing.assert_close(rollout(dense(model.fuse, model.predictor), *arguments), imagined)
    alone = [rollout(model, *(part[row : row + 1] for part in arguments)) for row in range(batch)]
    torch.testing.assert_close(torch.cat(alone), imagined, rtol=1e-4, atol=1e-5)


def test_the_window_grows_and_then_slides_with_positions_from_zero() -> None:
    torch.manual_seed(0)
    model = make(n=4, k=4, history=2)
    visual, proprio, actions = inputs(model, 1, 3)
    fuse, embedded = model.fuse, model.fuse.action(actions)
    every = torch.arange(4).expand(1, 1, 4)
    first = fuse(visual, fuse.proprio(proprio), embedded[:, 0])
    second = fuse.with_action(model(first[:, None], every)[:, -1], embedded[:, 1])
    both = every.expand(1, 2, 4)
    third = fuse.with_action(model(torch.stack([first, second], 1), both)[:, -1], embedded[:, 2])
    fourth = model(torch.stack([second, third], 1), both)[:, -1]
    torch.testing.assert_close(
        rollout(model, visual, proprio, actions), torch.stack([second, third, fourth], dim=1)
    )


def test_an_action_changes_its_own_and_later_frames_only() -> None:
    torch.manual_seed(0)
    model = make(n=9, k=3, history=3)
    visual, proprio, actions = inputs(model, 2, 5)
    changed = actions.clone()
    changed[:, 3] += 1.0
    config = model.fuse.config
    seen = slice(config.visual + config.embedding)
    a, b = (rollout(model, visual, proprio, x)[..., seen] for x in (actions, changed))
    torch.testing.assert_close(a[:, :3], b[:, :3], rtol=0, atol=0)
    assert not torch.allclose(a[:, 3], b[:, 3])


def test_a_frame_keeps_the_foreground_it_entered_with() -> None:
    torch.manual_seed(0)
    model = make(n=9, k=3, history=3)
    model.selector = RandomSelector(3, torch.Generator().manual_seed(0))
    windows: list[Tensor] = []
    model.predictor.register_forward_pre_hook(lambda _, args: windows.append(args[1]))
    rollout(model, *inputs(model, 1, 4))
    assert [window.shape[1] for window in windows] == [1, 2, 3, 3]
    torch.testing.assert_close(windows[2][:, :2], windows[1])
    torch.testing.assert_close(windows[3][:, :2], windows[2][:, 1:])


def test_motion_is_seen_since_the_frame_before() -> None:
    torch.manual_seed(0)
    model = make(n=9, k=2, history=3)
    model.selector = MotionSelector(2, torch.zeros(9, 5))
    chosen: list[Tensor] = []
    model.predictor.register_forward_pre_hook(lambda _, args: chosen.append(args[1][:, -1]))
    visual, proprio, actions = inputs(model, 1, 2)
    previous = visual.clone()
    previous[:, [4, 7]] += 5.0
    frames = rollout(model, visual, proprio, actions, previous)
    assert chosen[0].tolist() == [[4, 7]]
    moved = (frames[:, 0, :, :5] - visual).norm(dim=-1).topk(2).indices.sort().values
    assert chosen[1].tolist() == moved.tolist()


def test_the_head_sees_the_embeddings_it_was_trained_on() -> None:
    model = make(n=9, k=3, history=3)
    visual, proprio, actions = inputs(model, 2, 1)
    seen: list[tuple[Tensor, ...]] = []
    model.selector.head.register_forward_pre_hook(lambda _, args: seen.append(args))
    rollout(model, visual, proprio, actions)
    torch.testing.assert_close(seen[0][0], visual)
    torch.testing.assert_close(seen[0][1], model.fuse.proprio(proprio))
    torch.testing.assert_close(seen[0][2], model.fuse.action(actions)[:, 0])


def test_more_frames_than_the_history_are_refused() -> None:
    model = make(n=4, k=4, history=2)
    with pytest.raises(ValueError, match="at most 2 frames, got 3"):
        model(torch.zeros(1, 3, 4, 11), torch.arange(4).expand(1, 3, 4))


def test_the_mask_is_causal_by_frame() -> None:
    mask = frame_causal_mask(2, 2, torch.device("cpu"))
    assert mask.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_groups_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    predictor = make(n=6, k=6, history=2).predictor
    tokens, indices = torch.randn(1, 2, 6, 11), torch.arange(6).expand(1, 2, 6)
    groups = torch.tensor([0, 0, 0, 1, 1, 1]).expand(1, 2, 6)
    alone = predictor(tokens[:, :, :3], indices[:, :, :3])
    torch.testing.assert_close(predictor(tokens, indices, groups)[:, :, :3], alone)
    assert not torch.allclose(predictor(tokens, indices)[:, :, :3], alone)


class Fixed:
    """Select the same tokens in every frame: rounding may flip a near tie of a real selection."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, visual: Tensor, proprio: Tensor, action: Tensor, previous: Tensor | None) -> Tensor:
        return torch.arange(self.k).expand(*visual.shape[:-2], -1)


@pytest.mark.parametrize("k", [3, 9])
def test_bfloat16_autocast_agrees_to_three_per_cent(k: int) -> None:
    torch.manual_seed(0)
    parts = make(n=9, k=k, history=2)
    model = WorldModel(parts.fuse, parts.predictor, Fixed(k), parts.background)
    arguments = inputs(model, 2, 3)
    with torch.no_grad():
        exact = rollout(model, *arguments)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = rollout(model, *arguments)
    assert not torch.equal(rounded, exact)
    assert (rounded - exact).norm() / exact.norm() < 0.03


def test_autocast_changes_no_selection() -> None:
    torch.manual_seed(0)
    model = make(n=196, k=32, history=1)
    frames = torch.randn(50, 196, model.fuse.config.width)
    with torch.no_grad():
        exact = model.select(frames)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model.select(frames)
    torch.testing.assert_close(rounded, exact)


@pytest.mark.parametrize(("gradient", "kind"), [(True, torch.float32), (False, torch.bfloat16)])
def test_a_processor_attends_in_float32_under_autocast_where_there_is_a_gradient(
    gradient: bool, kind: torch.dtype
) -> None:
    attention = Attention(8, TINY)
    kinds = []
    attention.to_qkv.register_forward_hook(lambda *call: kinds.append(call[-1].dtype))
    attention.to_out.register_forward_pre_hook(lambda _, arguments: kinds.append(arguments[0].dtype))
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(gradient):
        attention(torch.randn(2, 5, 8), None)
    assert kinds == [torch.bfloat16, kind]


COMPILED = """
import torch
from tests.model.test_rollout import make
model = make(n=9, k=3, history=2)
tokens = torch.randn(2, 2, 9, model.fuse.config.width)
with torch.no_grad():
    indices = model.select_window(tokens)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(tokens, indices), model(tokens, indices), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_model_is_one_graph_and_agrees_to_float_tolerance() -> None:
    # In a process of its own: the shape checks of the tests cannot be traced.
    subprocess.run([sys.executable, "-c", COMPILED], check=True, cwd=Path(__file__).parents[2])


def test_a_baseline_trains_with_random_groups_that_a_patch_keeps() -> None:
    torch.manual_seed(0)
    model = make(n=9, k=9, history=2)
    draw = torch.Generator().manual_seed(0)
    seen: list[Tensor] = []

    def groups(indices: Tensor) -> Tensor:
        seen.append(random_groups(indices, 9, 3, draw))
        return seen[-1]

    visual, proprio, actions = torch.randn(4, 3, 9, 5), torch.randn(4, 3, 2), torch.randn(4, 2, 4)
    grouped = prediction_loss(model, visual, proprio, actions, groups)
    assert torch.equal(seen[0][:, 0], seen[0][:, 1])
    assert set(seen[0].flatten().tolist()) == {0, 1, 2}
    assert grouped != prediction_loss(model, visual, proprio, actions)


def test_shapes_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = make(n=16, k=4, history=3)
        assert rollout(model, *inputs(model, 2, 5)).device.type == "meta"
        full = dense(model.fuse, model.predictor)
        assert rollout(full, *inputs(full, 2, 5)).shape == (2, 5, 16, 11)
