"""Candidates imagined in parts side by side, each on cores of its own: a saving on processors.

The products of a rollout are small. Threads that share each of them wait for each other; threads that have
candidates of their own do not. What is imagined is the same to float tolerance, as with any chunks, but for
int8, which rounds by what is imagined at a time.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.hardware import computing_with

Imagine = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # last_imagined of one model
Part = tuple[Tensor, Tensor, Tensor, Tensor | None]

LEAST = 10  # candidates of a part: with fewer, calling torch takes longer than computing


class SideBySide:
    """A rollout that divides its candidates, and torch's threads among them, into as many parts as it can.

    If it `compiles` itself at the first call of a size, that call imagines one part after the other: every
    thread would compile otherwise.
    """

    def __init__(self, imagine: Imagine, *, compiles: bool = False) -> None:
        self.imagine = imagine
        self._compiles = compiles
        self._known = set[tuple[int, int]]()  # candidates and parts of calls before
        self._pool = ThreadPoolExecutor()

    def __call__(
        self,
        visual: Float[Tensor, "B N V"],
        proprio: Float[Tensor, "B P"],
        actions: Float[Tensor, "B L A"],
        previous: Float[Tensor, "B N V"] | None = None,
    ) -> Float[Tensor, "B N D"]:
        """Return the last frames; a gradient, which goes through all of them, is not divided."""
        threads, most = torch.get_num_threads(), len(actions) // LEAST
        each = ceil(threads / max(1, most))  # threads of a part
        count = threads // each
        if count < 2 or actions.requires_grad:
            return self.imagine(visual, proprio, actions, previous)
        before = [None] * count if previous is None else previous.tensor_split(count)
        parts = zip(*(whole.tensor_split(count) for whole in (visual, proprio, actions)), before, strict=True)
        with computing_with(each):
            return torch.cat(self._frames([partial(self._part, each, part) for part in parts], len(actions)))

    def _frames(self, parts: list[Callable[[], Tensor]], candidates: int) -> list[Tensor]:
        """Imagine all parts, and wait for all, also when one of them fails."""
        if self._compiles and (sizes := (candidates, len(parts))) not in self._known:
            self._known.add(sizes)
            return [part() for part in parts]
        imagined = [self._pool.submit(part) for part in parts]
        wait(imagined)
        return [frames.result() for frames in imagined]

    def _part(self, threads: int, part: Part) -> Tensor:
        """Imagine one part, in a thread of the pool, which has settings of its own."""
        torch.set_num_threads(threads)
        with torch.no_grad():
            return self.imagine(*part)
