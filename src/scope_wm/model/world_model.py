"""The world model: fuse, then select -> predict -> update -> scatter.

    z_i = [x_i | p | e(a)]                                      fuse, tiled on every patch
    F_t = TopK(s_t)                                             select, each frame its own set
    z_hat^F_{2:H+1} = f(z^F_{1:H})                              predict the foreground
    z_tilde_{t+1,i} = z_hat_{t+1,i}            for i in F_t     scatter
                    = background(z_{t,i}, ...) otherwise        update

With a selector that takes every token this is the dense model, DINO-WM's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from scope_wm.background import BackgroundUpdate, Copy
from scope_wm.hardware import without_autocast
from scope_wm.model.predictor import Predictor
from scope_wm.selector import EveryToken, Selector


@dataclass(frozen=True, kw_only=True)
class TokenConfig:
    """What a token is made of: the visual part, and the embeddings of standardised proprio and action."""

    num_tokens: int = 196
    visual: int = 384
    proprio: int
    action: int
    embedding: int = 10

    @property
    def width(self) -> int:
        """Return D, the width of a fused token."""
        return self.visual + 2 * self.embedding


class Fuse(nn.Module):
    """Make world-model tokens [visual | proprio embedding | action embedding], and take them apart."""

    def __init__(self, config: TokenConfig) -> None:
        super().__init__()
        self.config = config
        self.proprio = nn.Linear(config.proprio, config.embedding)
        self.action = nn.Linear(config.action, config.embedding)

    def forward(
        self,
        visual: Float[Tensor, "*B N V"],
        proprio: Float[Tensor, "*B E"],
        action: Float[Tensor, "*B E"],
    ) -> Float[Tensor, "*B N D"]:
        """Tile the two embeddings on every patch."""
        context = torch.cat([proprio, action], dim=-1).unsqueeze(-2)
        return torch.cat([visual, context.expand(*visual.shape[:-1], -1)], dim=-1)

    def split(
        self, tokens: Float[Tensor, "*B N D"]
    ) -> tuple[Float[Tensor, "*B N V"], Float[Tensor, "*B E"], Float[Tensor, "*B E"]]:
        """Return the visual tokens, and the proprio and action embeddings as means over the patches."""
        widths = [self.config.visual, self.config.embedding, self.config.embedding]
        visual, proprio, action = tokens.split(widths, dim=-1)
        return visual, proprio.mean(-2), action.mean(-2)

    def with_action(
        self, tokens: Float[Tensor, "*B N D"], action: Float[Tensor, "*B E"]
    ) -> Float[Tensor, "*B N D"]:
        """Overwrite the action channels."""
        tiled = action.unsqueeze(-2).expand(*tokens.shape[:-1], -1)
        return torch.cat([tokens[..., : -self.config.embedding], tiled], dim=-1)


class WorldModel(nn.Module):
    """A predictor for the selected tokens and a background update for the others."""

    def __init__(
        self, fuse: Fuse, predictor: Predictor, selector: Selector, background: BackgroundUpdate
    ) -> None:
        super().__init__()
        self.fuse = fuse
        self.predictor = predictor
        self.selector = selector
        self.background = background

    @property
    def history(self) -> int:
        """Return H, the number of frames seen at most."""
        return self.predictor.history

    def select(
        self, tokens: Float[Tensor, "*B N D"], previous: Float[Tensor, "*B N D"] | None = None
    ) -> Int[Tensor, "*B K"]:
        """Choose the foreground of a frame; `previous` is the frame before it."""
        visual, proprio, action = self.fuse.split(tokens)
        before = None if previous is None else self.fuse.split(previous)[0]
        with without_autocast(tokens.device):  # rounded scores would tie
            return self.selector(visual, proprio, action, before)

    def select_window(self, tokens: Float[Tensor, "B T N D"]) -> Int[Tensor, "B T K"]:
        """Choose the foreground of every frame of a window, each from its own tokens."""
        frames = tokens.unbind(1)
        return torch.stack([self.select(z, p) for z, p in zip(frames, [None, *frames], strict=False)], dim=1)

    def forward(
        self,
        tokens: Float[Tensor, "B T N D"],
        indices: Int[Tensor, "B T K"],
        groups: Int[Tensor, "B T K"] | None = None,
    ) -> Float[Tensor, "B T N D"]:
        """Predict, from each frame of a window and those before it, the frame that follows it."""
        rows = indices.unsqueeze(-1).expand(*indices.shape, tokens.shape[-1])
        before = tokens.gather(-2, rows)  # [B T K D]
        after = self.predictor(before, indices, groups)
        return self.background(tokens, before, after, indices).scatter(-2, rows, after)


def dense(fuse: Fuse, predictor: Predictor) -> WorldModel:
    """Return the dense model: every token is predicted."""
    return WorldModel(fuse, predictor, EveryToken(fuse.config.num_tokens), Copy())


def prediction_loss(
    model: WorldModel,
    visual: Float[Tensor, "B T N V"],
    proprio: Float[Tensor, "B T P"],
    actions: Float[Tensor, "B T-1 A"],
    groups: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, ""]:
    """Return the error of predicting frames 2..T from 1..T-1: visual and proprio channels of all N tokens."""
    fuse = model.fuse
    proprio_embedding, action_embedding = fuse.proprio(proprio), fuse.action(actions)
    tokens = fuse(visual[:, :-1], proprio_embedding[:, :-1], action_embedding)
    targets = fuse(visual[:, 1:], proprio_embedding[:, 1:], action_embedding).detach()
    indices = model.select_window(tokens)
    predicted = model(tokens, indices, None if groups is None else groups(indices))
    compared = slice(fuse.config.visual + fuse.config.embedding)  # all but the action channels
    return F.mse_loss(predicted[..., compared], targets[..., compared])
