"""Training and validation episodes: 90 % and 10 % of the trajectories, or the folders `train` and `val`.

The 90/10 split is DINO-WM's: the first 90 % of `torch.randperm` with seed 42 are for training. That order
is made here from the same Mersenne Twister, so that nothing but training has to load torch, and the split of
a store does not depend on torch's version.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from scope_wm.data.store import Store

SEED = 42


class Split(NamedTuple):
    """Some episodes of a store, by position, in order."""

    store: Store
    episodes: Int64[np.ndarray, " episodes"]


class Splits(NamedTuple):
    """What to learn from, and what to judge with."""

    training: Split
    validation: Split


def open_splits(path: Path) -> Splits:
    """Open a store and split it, or a directory whose folders `train` and `val` are two stores."""
    if (path / "train").is_dir() and (path / "val").is_dir():
        stores = Store.open(path / "train"), Store.open(path / "val")
        training, validation = (Split(store, np.arange(len(store))) for store in stores)
        return Splits(training, validation)
    return split(Store.open(path))


def split(store: Store) -> Splits:
    """Split the episodes of one store; a single episode is for training."""
    order = permutation(len(store), SEED)
    training = max(1, len(store) * 9 // 10)
    return Splits(
        Split(store, np.sort(order[:training])),
        Split(store, np.sort(order[training:])),
    )


def starts(episodes: Split, steps: int) -> Int64[np.ndarray, " starts"]:
    """Return the numbers of all frames after which their episode goes on for at least this many steps."""
    store, positions = episodes
    rooms = np.maximum(store.lengths[positions] - steps, 0)
    before = np.cumsum(rooms) - rooms
    return np.arange(rooms.sum()) + np.repeat(store.first[positions] - before, rooms)


def permutation(count: int, seed: int) -> Int64[np.ndarray, " count"]:
    """Return `torch.randperm(count)` of a generator with this seed: a Fisher-Yates shuffle from the front."""
    draws = np.random.RandomState(seed).randint(0, 2**32, max(count - 1, 0), dtype=np.uint32)
    order = np.arange(count)
    for place, draw in enumerate(draws):
        other = place + int(draw) % (count - place)
        order[[place, other]] = order[[other, place]]
    return order
