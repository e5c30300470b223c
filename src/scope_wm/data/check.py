"""`scope-wm data check`: find what is wrong with a store, without trusting its index.

Every byte is read: a damaged frame fails its checksum. `--replay` collects some episodes again and compares
every array bit by bit, which also shows whether this machine and these versions reproduce the data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import tyro

from scope_wm.data.collect import collect_episode
from scope_wm.data.store import ARRAYS, DAMAGE, Store, StoreConfig, group_name, open_shard, read_config
from scope_wm.tasks import find_task
from scope_wm.types import IMAGE_SIZE, UsageError

DAMAGED = "delete the damaged shards, and the command that collected them makes them again"
NOT_REPRODUCED = (
    "what is stored can be read, but this machine or these versions do not make the same: delete nothing"
)


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """Find damaged, mis-shaped and missing episodes of a store.

    Prints each and exits with 1 if there is any.

    Example: scope-wm data check data/push_t --replay 3
    """

    store: tyro.conf.Positional[Path]
    """directory of the store"""
    replay: int = 0
    """collect this many episodes again and compare them bit by bit"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        if self.replay < 0:
            raise UsageError(f"expected --replay of at least 0, got {self.replay}")


def check(settings: CheckSettings) -> int:
    """Print what is wrong with a store; return 1 if anything is."""
    config = read_config(settings.store)
    faults, advice = list(find_faults(settings.store, config)), DAMAGED
    if settings.replay and not faults:
        faults, advice = list(replay_faults(Store.open(settings.store), settings.replay)), NOT_REPRODUCED
    for fault in faults:
        print(fault)
    if faults:
        print(f"{settings.store}: {len(faults)} faults; {advice}")
        return 1
    replays = min(settings.replay, config.episodes)
    replayed = f", {replays} of them collected again, bit-equal" if replays else ""
    print(f"{settings.store}: {config.episodes} episodes are sound{replayed}")
    return 0


def find_faults(path: Path, config: StoreConfig) -> Iterator[str]:
    """Yield a line for every fault of every shard."""
    shards = config.shards()
    for stray in sorted({shard.name for shard in path.glob("shard-*.h5")} - set(shards)):
        yield f"{stray}: not a shard of this store"
    for name, numbers in shards.items():
        if not (path / name).is_file():
            yield f"{name}: missing, with {group_name(numbers[0])} to {group_name(numbers[-1])}"
            continue
        try:
            with open_shard(path / name) as file:
                for episode in map(group_name, numbers):
                    for fault in episode_faults(file, episode, config):
                        yield f"{name}: {episode}: {fault}"
        except OSError as error:
            if error.errno is not None:  # the system's trouble, no fault of the shard
                raise
            yield str(error)


def episode_faults(file: h5py.File, name: str, config: StoreConfig) -> Iterator[str]:
    """Yield what is wrong with one episode."""
    try:
        if name in file:
            yield from group_faults(file[name], config)
        else:
            yield "missing"
    except DAMAGE as error:
        yield f"cannot be read ({error})"


def group_faults(group: h5py.Group, config: StoreConfig) -> Iterator[str]:
    """Yield what is wrong with the arrays of one episode."""
    length = int(group.attrs.get("length", -1))
    if not 2 <= length <= config.length:
        yield f"expected a length of 2 to {config.length}, got {length}"
    shapes = {
        "frames": (length, IMAGE_SIZE, IMAGE_SIZE, 3),
        "proprio": (length, config.proprio_width),
        "states": (length, config.state_width),
        "actions": (length - 1, config.action_width),
    }
    for array, shape in shapes.items():
        if array not in group:
            yield f"{array}: missing"
            continue
        found = f"{group[array].dtype} {group[array].shape}"
        expected = f"{np.dtype(ARRAYS[array])} {shape}"
        if found != expected:
            yield f"{array}: expected {expected}, got {found}"
        else:
            yield from content_faults(group[array])


def content_faults(dataset: h5py.Dataset) -> Iterator[str]:
    """Yield what is wrong with the numbers of one array, reading it row by row."""
    array = dataset.name.rsplit("/", 1)[-1]
    for row in range(len(dataset)):
        try:
            values = dataset[row]
        except OSError as error:
            yield f"{array}: row {row} cannot be read ({error})"
            return
        if not np.isfinite(values).all():
            yield f"{array}: row {row} is not finite"
            return


def replay_faults(store: Store, count: int) -> Iterator[str]:
    """Collect some episodes again, spread over the store, and yield those that come out differently."""
    task = find_task(store.config.task)()
    for position in np.unique(np.linspace(0, len(store) - 1, count).round().astype(int)).tolist():
        number = int(store.numbers[position])
        stored, again = store.episode(position), collect_episode(task, store.config, number)
        for array in ARRAYS:
            if not np.array_equal(getattr(stored, array), getattr(again, array)):
                yield f"{group_name(number)}: {array} differ from what collecting it again gives"
