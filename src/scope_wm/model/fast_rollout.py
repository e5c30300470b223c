"""Imagining the frame L steps ahead of an observed one, with every saving that changes nothing.

    keys and values of earlier frames are kept while the window grows; when it slides, it is seen anew
    only the last frame of a window goes through the last layer, and through the background update
    foreground tokens need no background update, background tokens none of the predictor
    LayerNorm([z, c]) before a linear map: the part of c is computed once for a frame, not for every token

It equals the plain rollout within rounding. Only the last frame is returned, and no other is held.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from scope_wm.background import BackgroundUpdate, ForegroundDelta
from scope_wm.model.window import Window
from scope_wm.model.world_model import WorldModel


def last_imagined(
    model: WorldModel,
    visual: Float[Tensor, "B N V"],
    proprio: Float[Tensor, "B P"],
    actions: Float[Tensor, "B L A"],
    previous: Float[Tensor, "B N V"] | None = None,
) -> Float[Tensor, "B N D"]:
    """Return the last of the L predicted frames; `previous` is the observation before the first, if any."""
    fuse, width = model.fuse, model.fuse.config.embedding
    embedded = fuse.action(actions)
    frame = fuse(visual, fuse.proprio(proprio), embedded[:, 0])
    before = None if previous is None else torch.cat([previous, frame[..., fuse.config.visual :]], dim=-1)
    window, update = Window(model.predictor), Update(model.background)
    for step in range(actions.shape[1]):
        frame[..., -width:] = embedded[:, step, None]
        indices = model.select(frame, before)
        kept = rows(frame, indices)
        frame, before = update(frame, kept, window.predict(kept, indices), indices), frame
    return frame


class FastRollout(nn.Module):
    """The fast rollout of one model, as a module: so a compiler may take the weights for constants."""

    def __init__(self, model: WorldModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, visual: Tensor, proprio: Tensor, actions: Tensor, previous: Tensor | None = None
    ) -> Tensor:
        """Return the last frame."""
        return last_imagined(self.model, visual, proprio, actions, previous)


def compiled(model: WorldModel) -> FastRollout:
    """Return the fast rollout of a model whose weights will not change; the first call compiles it."""
    rollout = FastRollout(model).eval()
    rollout.compile(options={"freezing": True})
    return rollout


def bytes_to_imagine(model: WorldModel) -> int:
    """Estimate the memory that one rollout takes, beside the weights; it holds frames one by one.

    Four frames; of the background tokens 5 widths, and 4 of what their update is widest; of the kept tokens
    4 widths, thrice the widest layer, and the keys and values of earlier frames, in every layer.
    """
    tokens, transformer = model.fuse.config, model.predictor.transformer
    kept, window, layers = model.selector.k, model.history, transformer.layers()
    widest = max(layer.out_features for layer in transformer.modules() if isinstance(layer, nn.Linear))
    inner = layers[0][0].to_out.in_features
    seen = inner * (max(3, 2 * (window - 1)) * len(layers) + 4 * window) if window > 1 else 0
    hidden = model.background.hidden if isinstance(model.background, ForegroundDelta) else 0
    others = (tokens.num_tokens - kept) * (5 * tokens.width + 4 * hidden)
    grid = 4 * tokens.num_tokens * tokens.width + others
    return (grid + kept * (4 * tokens.width + 3 * widest + seen)) * next(model.parameters()).element_size()


class Update:
    """The next frame: its foreground is given, its background is updated."""

    def __init__(self, background: BackgroundUpdate) -> None:
        self.whole = background
        self.split = SplitDelta(background) if isinstance(background, ForegroundDelta) else None

    def __call__(
        self,
        frame: Float[Tensor, "B N D"],
        before: Float[Tensor, "B K D"],
        after: Float[Tensor, "B K D"],
        indices: Int[Tensor, "B K"],
    ) -> Float[Tensor, "B N D"]:
        """Return the next frame, given the foreground before and after the step."""
        if self.split is None:
            following = self.whole(frame, before, after, indices).clone()
        else:
            following, others = torch.empty_like(frame), complement(indices, frame.shape[1])
            place(following, others, self.split(rows(frame, others), before, after))
        place(following, indices, after)
        return following


class SplitDelta:
    """The foreground-delta update of background tokens alone, with the part of the context computed once."""

    def __init__(self, background: ForegroundDelta) -> None:
        self.alpha = background.alpha
        self.context = background.context
        self.update, self.gate = SplitLinear(background.update), SplitLinear(background.gate)
        self.rest = background.update[2:]

    def __call__(
        self,
        tokens: Float[Tensor, "B M D"],
        before: Float[Tensor, "B K D"],
        after: Float[Tensor, "B K D"],
    ) -> Float[Tensor, "B M D"]:
        """Return the updated tokens."""
        context = self.context(torch.cat([after.mean(1), (after - before).mean(1)], dim=-1))
        pair = NormalisedPair(tokens, context, self.update.epsilon)
        change = self.rest(self.update(pair))
        return torch.addcmul(tokens, torch.sigmoid(self.gate(pair)), change, value=self.alpha)


class NormalisedPair:
    """[z, c] - mean over its deviation, for the tokens z of frames and one c for each frame, not joined."""

    def __init__(self, tokens: Float[Tensor, "B M D"], context: Float[Tensor, "B D"], epsilon: float) -> None:
        mean, variance = moments(tokens)  # [B M 1]
        centre, spread = moments(context.unsqueeze(1))  # [B 1 1]
        both = 0.5 * (variance + spread) + 0.25 * (mean - centre).square()
        scale = torch.rsqrt(both + epsilon)
        shift = 0.5 * (mean + centre) * scale
        self.tokens = tokens * scale - shift
        self.context = context
        self.of_frame = torch.cat([scale, shift, torch.ones_like(scale)], dim=-1)  # [B M 3]


class SplitLinear:
    """LayerNorm of a pair [z, c] and a linear map: W_z z for every token, W_c c once for a frame."""

    def __init__(self, branch: nn.Sequential) -> None:
        norm, linear = branch[0], branch[1]
        assert isinstance(norm, nn.LayerNorm)
        assert isinstance(linear, nn.Linear)
        self.epsilon = norm.eps
        weight = linear.weight * norm.weight
        self.of_token, self.of_context = weight.chunk(2, dim=1)
        bias = linear.weight @ norm.bias + linear.bias
        self.same = torch.stack([-self.of_context.sum(1), bias])

    def __call__(self, pair: NormalisedPair) -> Float[Tensor, "B M out"]:
        """Return the map of every token with its frame's context."""
        # (c - mean) / deviation differs from token to token by two numbers only: W_c of it, and the bias, are
        # [scale, shift, 1] times three rows that a frame has once.
        once = F.linear(pair.context, self.of_context).unsqueeze(1)
        frame = torch.cat([once, self.same.expand(len(once), -1, -1)], dim=1)  # [B 3 out]
        mapped = F.linear(pair.tokens, self.of_token)
        return mapped.baddbmm_(pair.of_frame.to(mapped.dtype), frame.to(mapped.dtype))  # autocast may round


def moments(x: Float[Tensor, "*B D"]) -> tuple[Float[Tensor, "*B 1"], Float[Tensor, "*B 1"]]:
    """Return mean and variance over the channels; torch.var_mean is ten times slower on a processor."""
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).square().mean(-1, keepdim=True)


def rows(frame: Float[Tensor, "B N D"], indices: Int[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
    """Return some tokens of every frame; copying whole rows is faster than an elementwise gather."""
    return frame.flatten(0, 1)[in_all(indices, frame.shape[1])]


def place(frame: Float[Tensor, "B N D"], indices: Int[Tensor, "B M"], tokens: Float[Tensor, "B M D"]) -> None:
    """Replace some tokens of every frame."""
    frame.view(-1, frame.shape[-1]).index_copy_(
        0, in_all(indices, frame.shape[1]).flatten(), tokens.flatten(0, 1)
    )


def in_all(indices: Int[Tensor, "B M"], num_tokens: int) -> Int[Tensor, "B M"]:
    """Return the places of tokens among those of all frames."""
    return indices + num_tokens * torch.arange(len(indices), device=indices.device)[:, None]


def complement(indices: Int[Tensor, "B K"], num_tokens: int) -> Int[Tensor, "B M"]:
    """Return the indices that are not given, ascending."""
    given = torch.zeros(len(indices), num_tokens, dtype=torch.uint8, device=indices.device)
    given.scatter_(1, indices, 1)
    return given.argsort(dim=1, stable=True)[:, : num_tokens - indices.shape[1]]
