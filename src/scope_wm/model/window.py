"""A predictor that sees one frame after another, and keeps of the earlier ones what the later need.

A token attends to its own and to earlier frames, so the keys and values of a frame never change while its
window grows: a new frame is predicted from them alone, and no mask is needed. When the window is full it
slides: its last H - 1 frames take the positions from 0 on and are seen anew. They leave their keys and
values only: no query, MLP or output in the last layer.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_wm.model.predictor import Predictor


class Window:
    """The frames that a predictor sees: the keys and values of every layer."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.layers = predictor.transformer.layers()
        self.frames = 0
        self._recent: list[tuple[Tensor, Tensor]] = []  # tokens and indices of the frames
        self._seen: list[tuple[Tensor, Tensor]] = []  # keys and values [B heads frames*K width]

    def predict(self, tokens: Float[Tensor, "B K D"], indices: Int[Tensor, "B K"]) -> Float[Tensor, "B K D"]:
        """See a frame and return what follows it."""
        if self.frames == self.predictor.history:
            self._slide()
        x = self._pass(len(self.layers) - 1, self._before_last(tokens, indices))
        self.frames += 1
        self._recent.append((tokens, indices))
        return self.predictor.output(tokens, self.predictor.transformer.norm(x))

    def _slide(self) -> None:
        """Forget the first frame, and see the others at their new positions."""
        del self._recent[0]
        self.frames = 0
        for tokens, indices in self._recent:
            x, last = self._before_last(tokens, indices), len(self.layers) - 1
            attention, _ = self.layers[last]
            self._keep(last, *attention.keys_and_values(x))
            self.frames += 1

    def _before_last(self, tokens: Tensor, indices: Tensor) -> Tensor:
        """Pass a frame through all layers but the last."""
        x = tokens + self.predictor.positions[indices + self.frames * self.predictor.num_tokens]
        for layer in range(len(self.layers) - 1):
            x = self._pass(layer, x)
        return x

    def _pass(self, layer: int, x: Tensor) -> Tensor:
        """Pass a frame through one layer."""
        attention, mlp = self.layers[layer]
        q, k, v = attention.project(x)
        x = x + attention.mix(q, *self._keep(layer, k, v))
        return x + mlp(x)

    def _keep(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all frames; keep them if another frame can follow."""
        if self.frames:
            before = self._seen[layer]
            keys, values = torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)
        if self.frames + 1 < self.predictor.history:
            self._seen[layer : layer + 1] = [(keys, values)]
        return keys, values
