from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.store import ARRAYS, Store, StoreConfig, write_shard
from scope_wm.files import write_json
from scope_wm.model.student import Student, StudentConfig
from scope_wm.types import Episode


@pytest.fixture(scope="session")
def wall_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store of 12 episodes in three shards, collected in this process, for reading only."""
    path = tmp_path_factory.mktemp("stores") / "wall"
    collect(CollectSettings(task="wall", episodes=12, out=path, workers=1))
    return path


@pytest.fixture(scope="session")
def short_wall_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished store of 90 frames in three episodes, for reading only."""
    path = tmp_path_factory.mktemp("stores") / "short-wall"
    collect(CollectSettings(task="wall", episodes=3, length=30, out=path, workers=1))
    return path


@pytest.fixture(scope="session")
def save_student(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Save a tiny student with random weights of a seed: 196 tokens of 4 channels."""

    def save(seed: int) -> Path:
        torch.manual_seed(seed)
        path = tmp_path_factory.mktemp("student")
        Student(StudentConfig(dim=4, width=8, stages=1, heads=2)).save_pretrained(path)
        return path

    return save


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Store]:
    """Write a store in which every number tells where it is: episode e, frame t."""

    def make(lengths: Sequence[int], name: str = "store", task: str = "wall") -> Store:
        path = tmp_path / name
        path.mkdir()
        config = StoreConfig(
            task=task,
            seed=0,
            length=max(lengths),
            episodes=len(lengths),
            action_width=2,
            proprio_width=2,
            state_width=2,
            versions={},
        )
        write_json(path / "config.json", asdict(config))
        for shard, numbers in config.shards().items():
            write_shard(path / shard, 0, ((number, numbered(number, lengths[number])) for number in numbers))
        return Store.open(path)

    return make


def numbered(number: int, length: int) -> Episode:
    """Frame t is all t, proprio and state are (episode, t), action t is (100 episode + t, -t)."""
    time = np.arange(length)
    position = np.stack([np.full(length, number), time], axis=1)
    return Episode(
        frames=np.broadcast_to(time.astype(np.uint8)[:, None, None, None], (length, 224, 224, 3)).copy(),
        proprio=position.astype(np.float32),
        states=position.astype(np.float64),
        actions=np.stack([100.0 * number + time[:-1], -1.0 * time[:-1]], axis=1),
    )


@pytest.fixture(scope="session")
def assert_same_content() -> Callable[[Path, Path], None]:
    """Compare two stores episode by episode, every array bit by bit."""

    def compare(one: Path, other: Path) -> None:
        first, second = Store.open(one), Store.open(other)
        assert first.numbers.tolist() == second.numbers.tolist()
        for position in range(len(first)):
            episodes = first.episode(position), second.episode(position)
            for array in ARRAYS:
                a, b = (getattr(episode, array) for episode in episodes)
                assert a.dtype == b.dtype
                assert np.array_equal(a, b), f"episode {position}: {array}"

    return compare
