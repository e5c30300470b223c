"""Candidates imagined in parts side by side, each on cores of its own: a saving on processors.

The products of a rollout are small. Threads that share each of them wait for each other; threads that have
candidates of their own do not. What is imagined is the same to float tolerance, as with any chunks.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.hardware import computing_with

Imagine = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # last_imagined of one model
Part = tuple[Tensor, Tensor, Tensor, Tensor | None]

LEAST = 20  # candidates of a part: with fewer, calling torch takes longer than computing


class SideBySide:
    """A rollout that divides its candidates and torch's threads into as many parts as there can be."""

    def __init__(self, imagine: Imagine) -> None:
        self.imagine = imagine
        self._pool = ThreadPoolExecutor()

    def __call__(
        self,
        visual: Float[Tensor, "B N V"],
        proprio: Float[Tensor, "B P"],
        actions: Float[Tensor, "B L A"],
        previous: Float[Tensor, "B N V"] | None = None,
    ) -> Float[Tensor, "B N D"]:
        """Return the last frames; a gradient, which goes through all of them, is not divided."""
        threads = torch.get_num_threads()
        count = min(threads, len(actions) // LEAST)
        if count < 2 or actions.requires_grad:
            return self.imagine(visual, proprio, actions, previous)
        before = [None] * count if previous is None else previous.tensor_split(count)
        parts = zip(*(whole.tensor_split(count) for whole in (visual, proprio, actions)), before, strict=True)
        with computing_with(threads // count):
            return torch.cat(list(self._pool.map(partial(self._part, threads // count), parts)))

    def _part(self, threads: int, part: Part) -> Tensor:
        """Imagine one part, in a thread of the pool, which has settings of its own."""
        torch.set_num_threads(threads)
        with torch.no_grad():
            return self.imagine(*part)
