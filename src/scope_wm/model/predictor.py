"""The predictor f: tokens of up to H frames to the tokens of the frames one step later.

    Z_{2:H+1} = f(Z_{1:H})

Attention is frame-causal: a token sees every token of its own and earlier frames. Any K of a frame's N tokens
may be given; each brings its own row, frame * N + patch, of the learned position table. What the transformer
gives is the prediction itself, as in the paper, or, in small models, a change of the token.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from scope_wm.model.transformer import Transformer, TransformerConfig


class Absolute(nn.Module):
    """Take the transformer's output as the prediction."""

    def forward(self, before: Float[Tensor, "*B D"], output: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return the output."""
        return output


class Residual(nn.Module):
    """Add a linear map of the transformer's output to the token: at first, nothing changes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Linear(width, width)
        nn.init.zeros_(self.change.weight)
        nn.init.zeros_(self.change.bias)

    def forward(self, before: Float[Tensor, "*B D"], output: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return the changed token."""
        return before + self.change(output)


class Predictor(nn.Module):
    """Position table and transformer over the given tokens of a window."""

    def __init__(
        self,
        *,
        width: int,
        num_tokens: int,
        history: int,
        transformer: TransformerConfig,
        output: Absolute | Residual | None = None,
    ) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.history = history
        self.positions = nn.Parameter(torch.randn(history * num_tokens, width))
        self.transformer = Transformer(width, transformer)
        self.output = output or Absolute()

    def forward(
        self,
        tokens: Float[Tensor, "B T K D"],
        indices: Int[Tensor, "B T K"],
        groups: Int[Tensor, "B T K"] | None = None,
    ) -> Float[Tensor, "B T K D"]:
        """Predict what each token becomes one frame later; `groups` do not see each other."""
        frames, count = indices.shape[1:]
        if frames > self.history:
            raise ValueError(f"expected at most {self.history} frames, got {frames}")
        first_row = self.num_tokens * torch.arange(frames, device=indices.device)
        placed = tokens + self.positions[indices + first_row[:, None]]
        # A single frame sees all of itself: without a mask attention is faster.
        mask = frame_causal_mask(frames, count, indices.device) if frames > 1 else None
        if groups is not None:
            group = groups.flatten(1)
            same = group[:, :, None] == group[:, None, :]
            mask = same if mask is None else mask & same
        output = self.transformer(placed.flatten(1, 2), mask).unflatten(1, (frames, count))
        return self.output(tokens, output)


def random_groups(
    indices: Int[Tensor, "B T K"], num_tokens: int, count: int, generator: torch.Generator
) -> Int[Tensor, "B T K"]:
    """Put every patch of a window into one of `count` groups at random, the same in all its frames.

    Sparse Imagination trains with such groups, so that any random subset of tokens can be predicted alone.
    """
    shape = (len(indices), 1, num_tokens)
    drawn = torch.randint(count, shape, generator=generator, device=generator.device).to(indices.device)
    return drawn.expand(-1, indices.shape[1], -1).gather(-1, indices)


def frame_causal_mask(frames: int, count: int, device: torch.device) -> Bool[Tensor, "M M"]:
    """Return which of `frames` x `count` tokens (rows) sees which (columns)."""
    frame = torch.arange(frames, device=device).repeat_interleave(count)
    return frame[:, None] >= frame[None, :]
