import pytest
import torch

from scope_wm.bench.flops import counted_gflops
from scope_wm.bench.subject import Subject, random_dinov2, random_model
from scope_wm.model.encoder import DIRECTORY_VARIABLE


@pytest.mark.parametrize(
    ("task", "preset", "channels", "width", "history"),
    [("push_t", "paper", 384, 404, 3), ("wall", "paper", 384, 404, 1), ("push_t", "lite", 64, 84, 1)],
)
def test_models_have_the_sizes_of_task_and_preset(
    task: str, preset: str, channels: int, width: int, history: int
) -> None:
    config = Subject(task=task, preset=preset).config(32, 196, channels)
    assert (config.tokens.width, config.history, config.selector.k) == (width, history, 32)
    assert config.tokens.action == 10
    assert config.background.kind == "foreground-delta"


def test_weights_are_random_but_the_same_and_draw_nothing_from_others() -> None:
    config = Subject(task="wall", preset="tiny").config(None, 196, 64)
    before = torch.random.get_rng_state()
    first, second = random_model(config), random_model(config)
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.std() > 0.01


def test_a_random_dinov2_has_the_shapes_of_vit_s_14(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    encoder = random_dinov2()
    assert (encoder.num_tokens, encoder.dim) == (196, 384)
    assert encoder(torch.zeros(1, 224, 224, 3, dtype=torch.uint8)).shape == (1, 196, 384)
    parameters = sum(p.numel() for p in encoder.parameters())
    assert parameters / 1e6 == pytest.approx(22.06, abs=0.02)  # as its model card says: 22.1 M
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    assert Subject(task="wall", preset="paper").encoder().dim == 384


def test_a_product_of_matrices_has_two_operations_for_each_pair() -> None:
    left, right = torch.empty(30, 20, device="meta"), torch.empty(20, 10, device="meta")
    assert counted_gflops(lambda: left @ right) == pytest.approx(2 * 30 * 20 * 10 / 1e9)
