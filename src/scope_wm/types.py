"""The records that flow between stages, and the letters that name their axes.

Axes, used in every shape of the project:

    B problems      S candidates      T frames      N patches      K kept tokens      D token width
    H history       L horizon         A action width (after frameskip)                M bank size

Widths of one simulator step, before frameskip: `action`, `proprio`, `state`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64, UInt8

IMAGE_SIZE = 224

Image = UInt8[np.ndarray, "224 224 3"]
Action = Float64[np.ndarray, " action"]
Proprio = Float32[np.ndarray, " proprio"]
State = Float64[np.ndarray, " state"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A start and a goal, both complete states of one task."""

    start: State
    goal: State


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What one behaviour did: T frames and the T - 1 actions between them."""

    frames: UInt8[np.ndarray, "T 224 224 3"]
    proprio: Float32[np.ndarray, "T proprio"]
    states: Float64[np.ndarray, "T state"]
    actions: Float64[np.ndarray, "T-1 action"]

    def __len__(self) -> int:
        """Return how many frames the episode has."""
        return len(self.frames)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What actions and proprio are standardised with: (value - mean) / std."""

    action_mean: Float64[np.ndarray, " action"]
    action_std: Float64[np.ndarray, " action"]
    proprio_mean: Float64[np.ndarray, " proprio"]
    proprio_std: Float64[np.ndarray, " proprio"]


class UsageError(ValueError):
    """The user asked for something that cannot be done; the message says what was expected and what to do."""


class MadeOtherwise(UsageError):
    """A directory holds the work of other settings or inputs than those asked for."""


class TrainingError(RuntimeError):
    """A training went wrong; the message says where and what may help."""
