import pytest
import torch
import torch.nn.functional as F

from scope_wm.model import transformer
from scope_wm.model.transformer import Attention, TransformerConfig, rounded_attention


@pytest.mark.parametrize("cached_scores", [1, 2 * 4 * 30 * 50, 2**20])  # one row at a time, two, all
def test_rounded_attention_is_the_fused_one_within_rounding(
    cached_scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "CACHED_SCORES", cached_scores)
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, 4, tokens, 32, generator=drawn).bfloat16() for tokens in (30, 50, 50))
    exact = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    torch.testing.assert_close(rounded_attention(q, k, v).float(), exact, rtol=0.02, atol=0.01)


def test_attention_in_bfloat16_mixes_alike_with_and_without_a_gradient() -> None:
    torch.manual_seed(0)
    attention = Attention(24, TransformerConfig(heads=2, head_width=16, dropout=0.0))
    tokens = torch.randn(3, 40, 24)
    exact = attention(tokens, None)
    with torch.autocast("cpu", torch.bfloat16):
        fused = attention(tokens, None)
        with torch.no_grad():
            in_parts = attention(tokens, None)
    assert fused.dtype == in_parts.dtype == torch.bfloat16
    for rounded in (fused, in_parts):
        torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.01)
