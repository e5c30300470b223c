from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from scope_wm.data.split import open_splits, permutation, split, starts
from scope_wm.data.store import Store

MakeStore = Callable[..., Store]


@pytest.mark.parametrize("count", [0, 1, 2, 10, 500, 1920])
def test_the_order_is_that_of_torch(count: int) -> None:
    expected = torch.randperm(count, generator=torch.Generator().manual_seed(42))
    assert permutation(count, 42).tolist() == expected.tolist()


def test_nine_tenths_of_the_episodes_are_for_training(make_store: MakeStore) -> None:
    training, validation = split(make_store([2] * 20))
    assert len(training.episodes) == 18
    assert len(validation.episodes) == 2
    assert sorted([*training.episodes, *validation.episodes]) == list(range(20))
    # DINO-WM: torch.utils.data.random_split of [18, 2] with a generator of seed 42.
    parts = torch.utils.data.random_split(range(20), [18, 2], torch.Generator().manual_seed(42))  # type: ignore[arg-type]
    assert validation.episodes.tolist() == sorted(parts[1].indices)


def test_a_single_episode_is_for_training(make_store: MakeStore) -> None:
    training, validation = split(make_store([3]))
    assert training.episodes.tolist() == [0]
    assert validation.episodes.tolist() == []


def test_folders_decide_when_they_are_there(make_store: MakeStore, tmp_path: Path) -> None:
    make_store([2, 3, 4], name="train")
    make_store([5, 6], name="val")
    training, validation = open_splits(tmp_path)
    assert training.store.lengths[training.episodes].tolist() == [2, 3, 4]
    assert validation.store.lengths[validation.episodes].tolist() == [5, 6]


def test_a_plain_store_is_split(make_store: MakeStore) -> None:
    store = make_store([2] * 10)
    training, validation = open_splits(store.path)
    assert training.store.path == validation.store.path == store.path
    assert (len(training.episodes), len(validation.episodes)) == (9, 1)


def test_starts_leave_room_in_their_own_episode(make_store: MakeStore) -> None:
    store = make_store([4, 2, 3, 6])  # first frames 0, 4, 6, 9
    everything = split(store).training._replace(episodes=np.arange(4))
    assert starts(everything, 2).tolist() == [0, 1, 6, 9, 10, 11, 12]
    assert starts(everything._replace(episodes=np.array([1, 3])), 3).tolist() == [9, 10, 11]
    assert starts(everything, 6).tolist() == []
