"""A pre-norm transformer whose attention a mask may restrict.

    x <- x + Attention(LayerNorm(x))
    x <- x + MLP(LayerNorm(x))          and a final LayerNorm, no output head

Queries, keys and values have no bias; the inner width heads x head_width need not be the token width.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from scope_wm.hardware import without_autocast

CACHED_SCORES = 2**20  # at a time in attention in parts, 2 MiB: half as many are about as fast


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Depth and widths of the transformer; the defaults are the paper's."""

    depth: int = 6
    heads: int = 16
    head_width: int = 64
    mlp_width: int = 2048
    dropout: float = 0.1


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(head_width)) V, over the pairs that the mask allows."""

    def __init__(self, width: int, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_width
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * inner, bias=False)
        self.to_out = nn.Linear(inner, width)

    def forward(
        self, x: Float[Tensor, "B M D"], mask: Bool[Tensor, "*#B M M"] | None
    ) -> Float[Tensor, "B M D"]:
        """Mix the tokens of every row of the batch."""
        q, k, v = self.project(x)
        return self.mix(q, k, v, mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask)

    def project(self, x: Float[Tensor, "B M D"]) -> Float[Tensor, "3 B heads M head_width"]:
        """Return the queries, keys and values of tokens."""
        qkv = self.to_qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        return qkv.permute(2, 0, 3, 1, 4)

    def keys_and_values(self, x: Float[Tensor, "B M D"]) -> Float[Tensor, "2 B heads M head_width"]:
        """Return the keys and values of tokens that ask nothing."""
        weight = self.to_qkv.weight[self.to_qkv.out_features // 3 :]
        return F.linear(self.norm(x), weight).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def mix(
        self,
        q: Float[Tensor, "B heads M head_width"],
        k: Float[Tensor, "B heads P head_width"],
        v: Float[Tensor, "B heads P head_width"],
        mask: Bool[Tensor, "*#B M P"] | None = None,
    ) -> Float[Tensor, "B M D"]:
        """Return what the queries find."""
        dropout = self.dropout if self.training else 0.0
        with without_autocast(q.device):
            if mask is None and not dropout and can_attend_in_parts(q):
                mixed = rounded_attention(q, k, v)
            else:
                if q.device.type == "cpu":  # whose fused attention is slower in rounded numbers
                    exact = self.norm.weight.dtype
                    q, k, v = q.to(exact), k.to(exact), v.to(exact)
                mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return F.dropout(self.to_out(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)


def can_attend_in_parts(q: Tensor) -> bool:
    """Tell whether `rounded_attention` is the faster way; a compiler would unroll its loop."""
    planning = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return planning and q.device.type == "cpu" and q.dtype == torch.bfloat16


def rounded_attention(
    q: Float[Tensor, "B heads M head_width"],
    k: Float[Tensor, "B heads P head_width"],
    v: Float[Tensor, "B heads P head_width"],
) -> Float[Tensor, "B heads M head_width"]:
    """Attend to bfloat16 numbers on a processor, a few rows of the batch at a time, which cache memory holds.

    Scores are rounded too. With avx512_bf16 that is faster than the fused attention, in whatever precision.
    """
    rows = max(1, CACHED_SCORES // (q.shape[1] * q.shape[2] * k.shape[2]))
    q, k = q * q.shape[-1] ** -0.5, k.transpose(-1, -2)
    parts = zip(q.split(rows), k.split(rows), v.split(rows), strict=True)
    return torch.cat([(queries @ keys).softmax(-1) @ values for queries, keys, values in parts])


class MLP(nn.Sequential):
    """Linear, GELU, Linear on the normalised token."""

    def __init__(self, width: int, config: TransformerConfig) -> None:
        super().__init__(
            nn.LayerNorm(width),
            nn.Linear(width, config.mlp_width),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.mlp_width, width),
            nn.Dropout(config.dropout),
        )


class Transformer(nn.Module):
    """A stack of attention and MLP, each with a residual, and a final LayerNorm."""

    def __init__(self, width: int, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = nn.ModuleList(Attention(width, config) for _ in range(config.depth))
        self.mlp = nn.ModuleList(MLP(width, config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width)

    def forward(
        self, x: Float[Tensor, "B M D"], mask: Bool[Tensor, "*#B M M"] | None = None
    ) -> Float[Tensor, "B M D"]:
        """Return the transformed tokens."""
        for attention, mlp in self.layers():
            x = x + attention(x, mask)
            x = x + mlp(x)
        return self.norm(x)

    def layers(self) -> list[tuple[Attention, MLP]]:
        """Return the attention and the MLP of every layer."""
        return cast(list[tuple[Attention, MLP]], list(zip(self.attention, self.mlp, strict=True)))
