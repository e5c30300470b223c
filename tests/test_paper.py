"""What the paper claims of the model, as tests: the equations, the counts, and who gets a gradient."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scope_wm.background import Copy, CrossAttention, ForegroundDelta
from scope_wm.model.fast_rollout import last_imagined
from scope_wm.model.predictor import Predictor
from scope_wm.model.rollout import rollout
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import Fuse, TokenConfig, WorldModel, dense, prediction_loss
from scope_wm.selector import DistilledSelector, EveryToken, RelevanceHead

SMALL = TokenConfig(num_tokens=9, visual=12, proprio=4, action=6, embedding=3)
PAPER = TokenConfig(proprio=4, action=10)
SMALL_TRANSFORMER = TransformerConfig(depth=2, heads=2, head_width=8, mlp_width=16, dropout=0.0)


def make_predictor(tokens: TokenConfig, history: int, transformer: TransformerConfig) -> Predictor:
    return Predictor(
        width=tokens.width, num_tokens=tokens.num_tokens, history=history, transformer=transformer
    )


def sparse_model(k: int, history: int = 3, seed: int = 0) -> WorldModel:
    torch.manual_seed(seed)
    selector = DistilledSelector(RelevanceHead(visual=SMALL.visual, embedding=SMALL.embedding, hidden=8), k)
    predictor = make_predictor(SMALL, history, SMALL_TRANSFORMER)
    return WorldModel(Fuse(SMALL), predictor, selector, ForegroundDelta(SMALL.width))


def random_window(frames: int, batch: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, frames, SMALL.num_tokens, SMALL.width, generator=generator)


def test_k_equal_n_is_the_dense_model() -> None:
    sparse = sparse_model(k=SMALL.num_tokens)
    tokens = random_window(3)
    full = dense(sparse.fuse, sparse.predictor)
    torch.testing.assert_close(
        sparse(tokens, sparse.select_window(tokens)),
        full(tokens, full.select_window(tokens)),
        rtol=0,
        atol=0,
    )


def test_the_dense_model_is_the_plain_transformer_on_all_tokens() -> None:
    model = dense(Fuse(SMALL), make_predictor(SMALL, 3, SMALL_TRANSFORMER))
    tokens = random_window(3)
    frame = torch.arange(3).repeat_interleave(SMALL.num_tokens)
    flat = tokens.flatten(1, 2) + model.predictor.positions
    expected = model.predictor.transformer(flat, frame[:, None] >= frame[None]).unflatten(1, (3, -1))
    torch.testing.assert_close(model(tokens, model.select_window(tokens)), expected, rtol=0, atol=0)


def test_the_foreground_does_not_see_the_background() -> None:
    model = sparse_model(k=4)
    tokens = random_window(3)
    indices = model.select_window(tokens)
    shuffled = tokens.clone()
    for b in range(2):
        for t in range(3):
            background = [i for i in range(SMALL.num_tokens) if i not in indices[b, t]]
            shuffled[b, t, background] = tokens[b, t, background[::-1]]
    assert not torch.equal(shuffled, tokens)
    rows = indices.unsqueeze(-1).expand(-1, -1, -1, SMALL.width)
    before, after = (model(z, indices).gather(-2, rows) for z in (tokens, shuffled))
    torch.testing.assert_close(before, after, rtol=0, atol=0)


@pytest.mark.parametrize(
    "background",
    [ForegroundDelta(SMALL.width), Copy(), CrossAttention(SMALL.width, SMALL.num_tokens, rank=8)],
)
def test_a_background_update_leaves_the_foreground_untouched(background: torch.nn.Module) -> None:
    tokens = random_window(3)
    indices = torch.tensor([1, 4, 8]).expand(2, 3, 3)
    rows = indices.unsqueeze(-1).expand(-1, -1, -1, SMALL.width)
    before = tokens.gather(-2, rows)
    after = torch.randn_like(before)
    updated = background(tokens, before, after, indices)
    torch.testing.assert_close(updated.gather(-2, rows), before, rtol=0, atol=0)
    moved = (updated != tokens).any(-1)
    assert moved.any() == (not isinstance(background, Copy))
    assert not moved[..., [1, 4, 8]].any()


def test_every_frame_has_its_own_indices_and_position_rows() -> None:
    model = sparse_model(k=3)
    tokens = random_window(3)
    indices = torch.tensor([[[0, 1, 2], [3, 4, 5], [0, 4, 8]], [[1, 5, 7], [0, 2, 8], [2, 3, 6]]])
    positions = model.predictor.positions
    seen = []
    model.predictor.transformer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(tokens, indices)
    for b in range(2):
        for t in range(3):
            for place, patch in enumerate(indices[b, t].tolist()):
                expected = tokens[b, t, patch] + positions[t * SMALL.num_tokens + patch]
                torch.testing.assert_close(seen[0][b, t * 3 + place], expected, rtol=0, atol=0)


@pytest.mark.parametrize("k", [4, 9])
def test_a_frame_does_not_depend_on_later_frames(k: int) -> None:
    model = sparse_model(k)
    tokens = random_window(3)
    changed = tokens.clone()
    changed[:, 2] = 0.5
    outputs = [model(z, model.select_window(z)) for z in (tokens, changed)]
    torch.testing.assert_close(outputs[0][:, :2], outputs[1][:, :2])
    assert not torch.allclose(outputs[0][:, 2], outputs[1][:, 2])


def test_background_update_equals_the_equations_in_numpy() -> None:
    torch.manual_seed(1)
    module = ForegroundDelta(SMALL.width)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    z = np.random.default_rng(0).normal(size=(SMALL.num_tokens, SMALL.width))
    after = np.random.default_rng(1).normal(size=(3, SMALL.width))
    foreground = [2, 3, 7]
    w = {name: p.detach().double().numpy() for name, p in module.named_parameters()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.vectorize(lambda v: float(torch.erf(torch.tensor(v))))(x / np.sqrt(2)))

    mean, delta = after.mean(0), (after - z[foreground]).mean(0)
    c = gelu(linear(norm(np.concatenate([mean, delta]), "context.0"), "context.1"))
    expected = z.copy()
    for i in set(range(SMALL.num_tokens)) - set(foreground):
        pair = np.concatenate([z[i], c])
        u = linear(gelu(linear(norm(pair, "update.0"), "update.1")), "update.3")
        gate = 1 / (1 + np.exp(-linear(norm(pair, "gate.0"), "gate.1")))
        expected[i] = z[i] + gate * u
    tokens = torch.tensor(z, dtype=torch.float64)
    updated = module.double()(
        tokens, tokens[foreground], torch.tensor(after, dtype=torch.float64), torch.tensor(foreground)
    )
    np.testing.assert_allclose(updated.detach().numpy(), expected, rtol=1e-6, atol=1e-7)


def test_sparse_training_reaches_predictor_and_background_but_not_the_selector() -> None:
    model = sparse_model(k=4)
    generator = torch.Generator().manual_seed(0)
    visual = torch.randn(2, 4, SMALL.num_tokens, SMALL.visual, generator=generator)
    proprio = torch.randn(2, 4, SMALL.proprio, generator=generator)
    actions = torch.randn(2, 3, SMALL.action, generator=generator)
    prediction_loss(model, visual, proprio, actions).backward()
    for part in ("predictor", "background.context", "background.update", "background.gate"):
        for name, parameter in model.get_submodule(part).named_parameters():
            assert parameter.grad is not None, f"{part}.{name}"
            assert parameter.grad.abs().max() > 0, f"{part}.{name}"
    assert all(p.grad is None for p in model.selector.parameters())


def test_action_channels_are_not_supervised() -> None:
    model = sparse_model(k=4)
    visual = torch.randn(1, 4, SMALL.num_tokens, SMALL.visual)
    proprio, actions = torch.randn(1, 4, SMALL.proprio), torch.randn(1, 3, SMALL.action)
    loss = prediction_loss(model, visual, proprio, actions)
    with torch.no_grad():  # the last LayerNorm's bias on the action channels moves them, and only them
        model.predictor.transformer.norm.bias[-SMALL.embedding :] += 100.0
        model.background = Copy()
        moved = prediction_loss(model, visual, proprio, actions)
        model.predictor.transformer.norm.bias[-SMALL.embedding :] -= 100.0
        torch.testing.assert_close(prediction_loss(model, visual, proprio, actions), moved)
    assert loss > 0


def test_the_predictor_has_20_1_million_parameters_at_paper_size() -> None:
    with torch.device("meta"):
        predictor = make_predictor(PAPER, 3, TransformerConfig())
    assert sum(p.numel() for p in predictor.parameters()) / 1e6 == pytest.approx(20.1, abs=0.05)


def paper_model(k: int) -> WorldModel:
    """Return a model of the paper's sizes, on a device that only counts."""
    with torch.device("meta"):
        predictor = make_predictor(PAPER, 3, TransformerConfig())
        if k == 196:
            return dense(Fuse(PAPER), predictor).eval()
        selector = DistilledSelector(RelevanceHead(visual=384, embedding=10), k)
        return WorldModel(Fuse(PAPER), predictor, selector, ForegroundDelta(PAPER.width)).eval()


def gflops(compute: Callable[[], object]) -> float:
    # The counter has no formula for the processor's fused attention; the math backend is plain products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        compute()
    return counter.get_total_flops() / 1e9


@pytest.mark.parametrize(("k", "expected"), [(196, 31.89), (98, 15.04), (32, 5.27)])
def test_flops_of_one_prediction_are_the_papers(k: int, expected: float) -> None:
    model, tokens = paper_model(k), torch.randn(1, 3, 196, PAPER.width, device="meta")
    assert gflops(lambda: model(tokens, model.select_window(tokens))) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("k", "most"), [(196, 90.0), (98, 40.0), (32, 13.0)])
def test_flops_of_a_fast_rollout(k: int, most: float) -> None:
    model = paper_model(k)
    with torch.device("meta"):
        arguments = torch.randn(1, 196, 384), torch.randn(1, 4), torch.randn(1, 5, 10)
    if k == 196:
        assert gflops(lambda: rollout(model, *arguments)) == pytest.approx(123.6, rel=0.01)
    counted = gflops(lambda: last_imagined(model, *arguments))
    print(f"K = {k}: {counted:.1f} GFLOPs")
    assert counted <= most


def test_the_dense_model_selects_every_token() -> None:
    visual = torch.zeros(2, SMALL.num_tokens, SMALL.visual)
    embedding = torch.zeros(2, SMALL.embedding)
    chosen = EveryToken(SMALL.num_tokens)(visual, embedding, embedding)
    assert chosen.tolist() == [list(range(SMALL.num_tokens))] * 2
