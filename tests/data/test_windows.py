from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from scope_wm.data.speed import windows_per_second
from scope_wm.data.split import Split, open_splits
from scope_wm.data.statistics import statistics
from scope_wm.data.store import Store
from scope_wm.data.windows import Window, Windows, spread_rows
from scope_wm.types import Statistics, UsageError

MakeStore = Callable[..., Store]
PLAIN = Statistics(
    action_mean=np.zeros(2), action_std=np.ones(2), proprio_mean=np.zeros(2), proprio_std=np.ones(2)
)


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store([9, 3, 8])  # first frames 0, 9, 12


def everything(store: Store) -> Split:
    return Split(store, np.arange(len(store)))


def test_a_window_has_spaced_frames_and_the_actions_between_them(store: Store) -> None:
    windows = Windows(everything(store), PLAIN, history=2, frameskip=3)
    assert windows.starts.tolist() == [0, 1, 2, 12, 13]  # 7 frames are needed; the episode of 3 has none
    window = windows[4]
    assert window.visual.tolist() == [13, 16, 19]
    assert window.proprio.tolist() == [[2, 1], [2, 4], [2, 7]]
    assert window.actions.tolist() == [[201, -1, 202, -2, 203, -3], [204, -4, 205, -5, 206, -6]]
    assert (window.visual.dtype, window.actions.dtype) == (torch.int64, torch.float32)


def test_frameskip_one_keeps_every_step(store: Store) -> None:
    windows = Windows(everything(store), PLAIN, history=1, frameskip=1)
    assert len(windows) == 8 + 2 + 7
    assert windows[9].visual.tolist() == [10, 11]
    assert windows[9].actions.tolist() == [[101, -1]]


def test_only_the_episodes_of_the_split_give_windows(store: Store) -> None:
    windows = Windows(Split(store, np.array([1])), PLAIN, history=1, frameskip=2)
    assert [window.visual.tolist() for window in windows.__getitems__([0])] == [[9, 11]]
    assert len(windows) == 1


def test_actions_and_proprio_are_standardised(store: Store) -> None:
    scale = Statistics(
        action_mean=np.array([200.0, 0.0]),
        action_std=np.array([2.0, 4.0]),
        proprio_mean=np.array([0.0, 1.0]),
        proprio_std=np.array([0.5, 3.0]),
    )
    window = Windows(Split(store, np.array([2])), scale, history=1, frameskip=2)[3]  # frames 3 and 5
    assert window.actions.tolist() == [[1.5, -0.75, 2.0, -1.0]]
    assert window.proprio.tolist() == pytest.approx(np.array([[4, 2 / 3], [4, 4 / 3]]))


def test_standardised_training_steps_have_mean_0_and_std_1(wall_path: Path) -> None:
    training = open_splits(wall_path).training
    windows = Windows(training, statistics(training), history=1, frameskip=1)
    actions = windows.batch(range(len(windows))).actions.double()
    assert actions.mean(dim=(0, 1)).abs().max() < 1e-6
    assert (actions.std(dim=(0, 1), correction=0) - 1).abs().max() < 1e-6


def test_a_read_function_brings_the_frames(store: Store) -> None:
    window = Windows(everything(store), PLAIN, history=2, frameskip=3, read=store.frames)[4]
    assert window.visual.shape == (3, 224, 224, 3)
    assert window.visual[:, 0, 0, 0].tolist() == [1, 4, 7]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_give_the_same_batches(store: Store, start: str) -> None:
    windows = Windows(everything(store), PLAIN, history=2, frameskip=3, read=store.frames)
    expected = windows.batch([0, 1])  # opens shards, whose handles the workers must not use
    loader = DataLoader(windows, batch_size=2, num_workers=1, multiprocessing_context=start)
    batches = list(loader)
    assert isinstance(batches[0], Window)
    assert len(batches) == 3
    for part, other in zip(batches[0], expected, strict=True):
        assert torch.equal(part, other)


def test_the_speed_is_measured_through_worker_processes(wall_path: Path) -> None:
    assert windows_per_second(open_splits(wall_path), 5, frames=False, batches=20) > 0
    assert windows_per_second(open_splits(wall_path), 5, frames=True, batches=2) > 0


def test_episodes_that_are_too_short_are_an_error(store: Store) -> None:
    with pytest.raises(UsageError, match=r"no windows of 16 frames: .* got 3 of 9 frames at most"):
        Windows(everything(store), PLAIN, history=3, frameskip=5)


@pytest.mark.parametrize(
    ("count", "most", "rows"), [(9, 3, [0, 4, 8]), (10, 4, [0, 3, 6, 9]), (3, 8, [0, 1, 2]), (1, 5, [0])]
)
def test_rows_are_spread_from_the_first_to_the_last(count: int, most: int, rows: list[int]) -> None:
    assert spread_rows(count, most).tolist() == rows
