import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.split import Split, open_splits
from scope_wm.data.statistics import statistics
from scope_wm.data.store import Store
from scope_wm.types import UsageError

MakeStore = Callable[..., Store]


def test_hand_made_numbers(make_store: MakeStore) -> None:
    store = make_store([3, 4, 2])  # actions of 0: (0, 0), (1, -1); of 2: (200, 0)
    values = statistics(Split(store, np.array([0, 2])))
    assert values.action_mean.tolist() == pytest.approx([67, -1 / 3])
    assert values.action_std.tolist() == pytest.approx(
        [np.sqrt((67**2 + 66**2 + 133**2) / 3), np.sqrt(2 / 9)]
    )
    assert values.proprio_mean.tolist() == pytest.approx([0.8, 0.8])  # (0, 0) (0, 1) (0, 2) (2, 0) (2, 1)


def test_only_training_episodes_count(wall_path: Path) -> None:
    training, validation = open_splits(wall_path)
    episodes = [training.store.episode(int(index)) for index in training.episodes]
    actions = np.concatenate([episode.actions for episode in episodes])
    proprio = np.concatenate([episode.proprio for episode in episodes]).astype(np.float64)
    values = statistics(training)
    assert len(validation.episodes) == 2
    np.testing.assert_allclose(values.action_mean, actions.mean(0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(values.action_std, actions.std(0), rtol=1e-12)
    np.testing.assert_allclose(values.proprio_mean, proprio.mean(0), rtol=1e-12)
    np.testing.assert_allclose(values.proprio_std, proprio.std(0), rtol=1e-12)


def test_a_constant_channel_can_be_divided_by(make_store: MakeStore) -> None:
    store = make_store([3, 4])
    values = statistics(Split(store, np.array([1])))
    assert values.proprio_mean[0] == 1
    assert values.proprio_std[0] == 1e-6
    assert values.proprio_std[1] == pytest.approx(np.sqrt(1.25))  # of 0, 1, 2, 3


def test_they_are_kept_until_the_store_changes(tmp_path: Path) -> None:
    path = tmp_path / "wall"
    collect(CollectSettings(task="wall", episodes=5, length=4, out=path, workers=1))
    stored = json.loads((path / "statistics.json").read_text())
    (path / "statistics.json").write_text(json.dumps(stored | {"action_mean": [7.0, 7.0]}))
    assert statistics(open_splits(path).training).action_mean.tolist() == [7, 7]
    collect(CollectSettings(task="wall", episodes=8, length=4, out=path, workers=1))
    training = open_splits(path).training
    grown = np.concatenate([training.store.episode(int(index)).actions for index in training.episodes])
    np.testing.assert_allclose(statistics(training).action_mean, grown.mean(0), rtol=0, atol=1e-12)


def test_other_episodes_have_other_statistics(make_store: MakeStore) -> None:
    store = make_store([3, 4])
    means = [statistics(Split(store, np.array([index]))).proprio_mean[0] for index in (0, 1, 0)]
    assert means == [0, 1, 0]


def test_no_episodes_have_none(make_store: MakeStore) -> None:
    with pytest.raises(UsageError, match="no episodes"):
        statistics(Split(make_store([3]), np.array([], np.int64)))
