import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scope_wm.model.predictor import Predictor
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import Fuse, TokenConfig, dense, prediction_loss
from scope_wm.selector import (
    DistilledSelector,
    LatinHypercubeSelector,
    MotionSelector,
    OracleSelector,
    RandomSelector,
    RelevanceHead,
    Selector,
    distillation_loss,
    recall,
    relevance,
    top_k,
)

TOKENS = TokenConfig(num_tokens=16, visual=6, proprio=2, action=2, embedding=3)


def frame(batch: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, TOKENS.num_tokens, TOKENS.visual, generator=generator),
        torch.randn(batch, TOKENS.embedding, generator=generator),
        torch.randn(batch, TOKENS.embedding, generator=generator),
    )


def selectors(k: int) -> list[Selector]:
    head = RelevanceHead(visual=TOKENS.visual, embedding=TOKENS.embedding, hidden=8)
    generator = torch.Generator().manual_seed(0)
    return [
        DistilledSelector(head, k),
        RandomSelector(k, generator),
        LatinHypercubeSelector(k, generator),
        MotionSelector(k, torch.zeros(TOKENS.num_tokens, TOKENS.visual)),
        OracleSelector(k, torch.randn(4, TOKENS.num_tokens, generator=generator)),
    ]


def test_top_k_is_sorted_and_ties_go_to_the_lower_index() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]])
    assert top_k(scores, 3).tolist() == [[1, 2, 3]]
    assert top_k(scores, 4).tolist() == [[1, 2, 3, 4]]


@given(st.integers(1, 16), st.integers(0, 100))
def test_every_selector_returns_k_different_sorted_indices(k: int, seed: int) -> None:
    for selector in selectors(k):
        chosen = selector(*frame(seed=seed), None)
        assert chosen.shape == (4, k)
        assert (chosen.diff(dim=-1) > 0).all()
        assert chosen.min() >= 0
        assert chosen.max() < TOKENS.num_tokens


def test_the_head_is_the_equation_in_numpy() -> None:
    torch.manual_seed(0)
    head = RelevanceHead(visual=TOKENS.visual, embedding=TOKENS.embedding, hidden=8).double()
    visual, proprio, action = (part.double() for part in frame(batch=1))
    w = {name: p.detach().numpy() for name, p in head.named_parameters()}

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return x * torch.distributions.Normal(0, 1).cdf(torch.tensor(x)).numpy()

    h = linear(visual[0].numpy(), "visual") + linear(proprio[0].numpy(), "proprio")
    h = h + linear(action[0].numpy(), "action")
    h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
    h = gelu(h * w["score.0.weight"] + w["score.0.bias"])
    expected = linear(gelu(linear(h, "score.2")), "score.4")[:, 0]
    np.testing.assert_allclose(head(visual, proprio, action)[0].detach().numpy(), expected, rtol=1e-6)


def test_the_distilled_selection_depends_on_the_action() -> None:
    torch.manual_seed(0)
    selector = selectors(4)[0]
    visual, proprio, action = frame(batch=64)
    assert not torch.equal(
        selector(visual, proprio, action, None), selector(visual, proprio, -3 * action, None)
    )


def test_random_selection_is_uniform() -> None:
    visual, proprio, action = frame(batch=4000)
    chosen = RandomSelector(4, torch.Generator().manual_seed(0))(visual, proprio, action)
    share = torch.bincount(chosen.flatten(), minlength=16) / 4000
    torch.testing.assert_close(share, torch.full((16,), 0.25), atol=0.03, rtol=0)


def test_a_latin_hypercube_spreads_better_than_chance() -> None:
    visual, proprio, action = frame(batch=500)

    def rows_hit(selector: Selector) -> float:
        rows = selector(visual, proprio, action, None) // 4
        return float(torch.nn.functional.one_hot(rows, 4).amax(1).sum(1).float().mean())

    generator = torch.Generator().manual_seed(0)
    assert rows_hit(LatinHypercubeSelector(4, generator)) > rows_hit(RandomSelector(4, generator)) + 0.3


def test_motion_finds_what_moved_since_the_frame_before_or_else_since_the_mean() -> None:
    visual, proprio, action = frame(batch=2)
    before = visual.clone()
    before[:, [3, 9]] += 1.0
    mean = visual[0].clone()
    mean[[0, 5]] -= 2.0
    selector = MotionSelector(2, mean)
    assert selector(visual, proprio, action, before).tolist() == [[3, 9], [3, 9]]
    assert selector(visual[:1], proprio[:1], action[:1], None).tolist() == [[0, 5]]


def test_the_oracle_refuses_frames_that_are_not_its_own() -> None:
    selector = OracleSelector(2, torch.randn(3, 16))
    with pytest.raises(ValueError, match="scores"):
        selector(*frame(batch=4))


def teacher_and_window() -> tuple[torch.nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    transformer = TransformerConfig(depth=2, heads=2, head_width=4, mlp_width=16, dropout=0.1)
    predictor = Predictor(width=TOKENS.width, num_tokens=16, history=2, transformer=transformer)
    teacher = dense(Fuse(TOKENS), predictor).double().eval()
    generator = torch.Generator().manual_seed(1)
    visual = torch.randn(2, 3, 16, TOKENS.visual, generator=generator, dtype=torch.float64)
    proprio = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    actions = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
    return teacher, visual, proprio, actions


def test_relevance_is_gradient_times_input_by_finite_differences() -> None:
    teacher, visual, proprio, actions = teacher_and_window()
    q = relevance(visual, lambda x: prediction_loss(teacher, x, proprio, actions))[:, :-1]
    # Targets are detached: they stay at the original tokens while the inputs move.
    fuse = teacher.fuse
    targets = fuse(visual[:, 1:], fuse.proprio(proprio)[:, 1:], fuse.action(actions))

    @torch.no_grad()
    def loss(x: Tensor) -> float:
        tokens = fuse(x, fuse.proprio(proprio)[:, :-1], fuse.action(actions))
        error = (teacher(tokens, teacher.select_window(tokens)) - targets)[..., : -TOKENS.embedding]
        return float(error.square().mean())

    inputs, step, r = visual[:, :-1], 1e-5, torch.zeros(2, 2, 16, dtype=torch.float64)
    for b, t, i in [(0, 0, 0), (0, 1, 5), (1, 0, 7), (1, 1, 15), (0, 1, 6)]:
        square = 0.0
        for channel in range(TOKENS.visual):
            moved = [inputs.clone(), inputs.clone()]
            moved[0][b, t, i, channel] += step
            moved[1][b, t, i, channel] -= step
            slope = (loss(moved[0]) - loss(moved[1])) / (2 * step)
            square += (slope * float(inputs[b, t, i, channel])) ** 2
        r[b, t, i] = square**0.5
    # Within one frame q is proportional to r.
    torch.testing.assert_close(q[0, 1, 5] / q[0, 1, 6], r[0, 1, 5] / r[0, 1, 6], rtol=1e-5, atol=0)
    x = visual.clone().requires_grad_()
    gradient = torch.autograd.grad(prediction_loss(teacher, x, proprio, actions), x)[0]
    exact = (gradient * visual).norm(dim=-1)[:, :-1]
    for place in [(0, 0, 0), (0, 1, 5), (1, 0, 7), (1, 1, 15)]:
        torch.testing.assert_close(exact[place], r[place], rtol=1e-5, atol=0)


def test_relevance_is_a_distribution_that_is_not_flat() -> None:
    teacher, visual, proprio, actions = (part.float() for part in teacher_and_window())
    # A loss as small as at paper size: the epsilon must not drown it.
    q = relevance(visual, lambda x: 1e-5 * prediction_loss(teacher, x, proprio, actions))[:, :-1]
    torch.testing.assert_close(q.sum(-1), torch.ones(2, 2))
    assert q.max() / q.min() > 2
    assert q.std(-1).min() > 0.1 / 16


def test_distillation_loss_is_the_kl_divergence() -> None:
    q = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]])
    pi = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.4, 0.4]])
    first = 0.7 * np.log(0.7 / 0.6) + 0.2 * np.log(0.2 / 0.3)
    second = 0.5 * np.log(0.5 / 0.2) + 2 * 0.25 * np.log(0.25 / 0.4)
    assert float(distillation_loss(pi.log(), q)) == pytest.approx((first + second) / 2, rel=1e-5)
    assert float(distillation_loss(q.log() + 3, q)) == pytest.approx(0, abs=1e-6)


def test_recall_counts_shared_top_tokens() -> None:
    q = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    assert recall(torch.tensor([[4.0, 1.0, 3.0, 2.0]]), q, 2) == 0.5
    assert recall(q, q, 3) == 1.0


def test_a_head_learns_the_teachers_relevance() -> None:
    torch.manual_seed(0)
    visual, proprio, action = frame(batch=256)
    q = (3 * visual[..., 0] + action[:, :1] * visual[..., 1]).softmax(-1)
    head = RelevanceHead(visual=TOKENS.visual, embedding=TOKENS.embedding, hidden=32)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    before = recall(head(visual, proprio, action), q, 4)
    for _ in range(100):
        optimizer.zero_grad()
        distillation_loss(head(visual, proprio, action), q).backward()
        optimizer.step()
    assert before < 0.5
    assert recall(head(visual, proprio, action), q, 4) > 0.85
