"""Foreground-delta background update (FDBU): how the tokens that are not predicted evolve.

With the foreground's mean prediction and mean change, per frame:

    c = psi_c([mean_F(z_hat), mean_F(z_hat - z)])
    u_i = psi_u([z_i, c])        gate_i = sigmoid(psi_g([z_i, c]))
    z_i <- z_i + alpha * gate_i * u_i        for the background only

An update leaves foreground tokens as they are; the world model writes the predictions there. It is any
callable of the `BackgroundUpdate` form: a new one is one class, passed to the world model.
"""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from scope_wm.types import UsageError


@runtime_checkable
class BackgroundUpdate(Protocol):
    """Update a frame's background tokens, given the foreground before and after the step."""

    def __call__(
        self,
        tokens: Float[Tensor, "*B N D"],
        before: Float[Tensor, "*B K D"],
        after: Float[Tensor, "*B K D"],
        indices: Int[Tensor, "*B K"],
    ) -> Float[Tensor, "*B N D"]:
        """Return the tokens of the frame with its background updated."""
        ...


def background_mask(indices: Int[Tensor, "*B K"], num_tokens: int) -> Bool[Tensor, "*B N 1"]:
    """Return which tokens are not among the foreground indices."""
    mask = torch.ones(*indices.shape[:-1], num_tokens, dtype=torch.bool, device=indices.device)
    return mask.scatter(-1, indices, False).unsqueeze(-1)


class ForegroundDelta(nn.Module):
    """The gated token-wise residual, fed with the mean foreground state and its change."""

    def __init__(self, width: int, *, hidden_multiplier: float = 2.0, alpha: float = 1.0) -> None:
        super().__init__()
        self.hidden = hidden = round(hidden_multiplier * width)
        self.alpha = alpha
        self.context = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.GELU())
        self.update = nn.Sequential(
            nn.LayerNorm(2 * width), nn.Linear(2 * width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )
        self.gate = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, 1), nn.Sigmoid())

    def forward(self, tokens: Tensor, before: Tensor, after: Tensor, indices: Tensor) -> Tensor:
        """Add the gated update to every background token."""
        summary = torch.cat([after.mean(-2), (after - before).mean(-2)], dim=-1)
        context = self.context(summary).unsqueeze(-2).expand_as(tokens)
        pair = torch.cat([tokens, context], dim=-1)  # [*B N 2D]
        change = self.alpha * self.gate(pair) * self.update(pair)
        return tokens + background_mask(indices, tokens.shape[-2]) * change


class Copy(nn.Module):
    """Leave the background as it was."""

    def forward(self, tokens: Tensor, before: Tensor, after: Tensor, indices: Tensor) -> Tensor:
        """Return the tokens."""
        return tokens


class Ignored(nn.Module):
    """Have no background: tokens that are not selected are neither imagined nor compared with the goal.

    That is Sparse Imagination, see model/subset.py.
    """

    def forward(self, tokens: Tensor, before: Tensor, after: Tensor, indices: Tensor) -> Tensor:
        """Refuse to imagine a whole frame."""
        raise UsageError(
            "this model ignores the background: it imagines a random subset of the patches, no whole frames"
        )


class CrossAttention(nn.Module):
    """DDP-WM's low-rank correction: background tokens query the predicted foreground.

    z_i <- LayerNorm(z_i + attention(z_i + position_i, z_hat + position_F))
    """

    def __init__(self, width: int, num_tokens: int, *, heads: int = 4, rank: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.positions = nn.Parameter(0.02 * torch.randn(num_tokens, width))
        self.to_query = nn.Linear(width, rank)
        self.to_key_value = nn.Linear(width, 2 * rank)
        self.to_out = nn.Linear(rank, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, before: Tensor, after: Tensor, indices: Tensor) -> Tensor:
        """Correct every background token by what it finds in the foreground."""
        query = self._split(self.to_query(tokens + self.positions))
        keys = self.to_key_value(after + self.positions[indices])
        key, value = (self._split(part) for part in keys.chunk(2, dim=-1))
        found = F.scaled_dot_product_attention(query, key, value).transpose(-2, -3).flatten(-2)
        corrected = self.norm(tokens + self.to_out(found))
        return torch.where(background_mask(indices, tokens.shape[-2]), corrected, tokens)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)  # [*B heads M head_width]
