"""Windows: what the world model learns from, H + 1 frames spaced by the frameskip and the H actions between.

One action of the world model is the `frameskip` simulator actions between two of its frames, concatenated.
Actions and proprio are held in memory, standardised; frames are read only if a `read` function asks for them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64, Shaped
from torch.utils.data import Dataset

from scope_wm.data.split import Split, starts
from scope_wm.types import Statistics, UsageError

Read = Callable[[Int64[np.ndarray, " n"]], Shaped[np.ndarray, "n ..."]]


class Window(NamedTuple):
    """One window, or a batch of windows with one more axis in front."""

    visual: Shaped[torch.Tensor, "..."]  # [*B H+1] and whatever was read of a frame
    proprio: Float32[torch.Tensor, "*B H+1 proprio"]
    actions: Float32[torch.Tensor, "*B H A"]


def frame_numbers(numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Read no frames: leave it to a later stage to look them up by number."""
    return numbers


class Windows(Dataset[Window]):
    """Every window of some episodes; `read` turns frame numbers into what `visual` holds of each frame."""

    def __init__(
        self,
        split: Split,
        statistics: Statistics,
        *,
        history: int,
        frameskip: int,
        read: Read = frame_numbers,
    ) -> None:
        store = split.store
        self.starts = starts(split, history * frameskip)
        if len(self.starts) == 0:
            raise UsageError(
                f"{store.path} has no windows of {history * frameskip + 1} frames: expected longer episodes, "
                f"got {len(split.episodes)} of {store.lengths[split.episodes].max(initial=0)} frames at most"
            )
        # An episode has one action fewer than frames: the actions of the i-th begin i rows before its frames.
        self._steps = self.starts - store.episode_of(self.starts)
        self._proprio = _standard(store.proprio, statistics.proprio_mean, statistics.proprio_std)
        self._actions = _standard(store.actions, statistics.action_mean, statistics.action_std)
        self._frame_offsets = np.arange(history + 1) * frameskip
        self._step_offsets = np.arange(history * frameskip).reshape(history, frameskip)
        self._read = read

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self.starts)

    def __getitem__(self, index: int) -> Window:
        """Return one window."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Window]:
        """Return several windows, as PyTorch's DataLoader asks for them."""
        return [Window(*parts) for parts in zip(*self.batch(indices), strict=True)]

    def batch(self, rows: Sequence[int] | Int64[np.ndarray, " n"]) -> Window:
        """Return several windows as one batch."""
        rows = np.asarray(rows)
        frames = self.starts[rows, None] + self._frame_offsets  # [B H+1]
        steps = self._steps[rows, None, None] + self._step_offsets  # [B H frameskip]
        visual = self._read(frames.reshape(-1))
        return Window(
            visual=torch.from_numpy(visual.reshape(*frames.shape, *visual.shape[1:])),
            proprio=torch.from_numpy(self._proprio[frames]),
            actions=torch.from_numpy(self._actions[steps].reshape(*steps.shape[:2], -1)),
        )


def spread_rows(count: int, most: int) -> Int64[np.ndarray, " rows"]:
    """Return `most` of so many rows, or all if they are fewer, evenly spread from the first to the last."""
    return np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)


def _standard(
    values: Float[np.ndarray, "rows width"],
    mean: Float64[np.ndarray, " width"],
    std: Float64[np.ndarray, " width"],
) -> Float32[np.ndarray, "rows width"]:
    return ((values - mean) / std).astype(np.float32)
