"""A store: a directory of episodes, a few in each HDF5 shard.

    config.json       what was collected, completely
    shard-00000.h5    groups episode-000000/{frames,proprio,states,actions}, attributes number, length, seed
    index.json        which episodes each shard holds; a cache, rebuilt from the shards when it is not theirs
    statistics.json   mean and std of actions and proprio over the training split
    metrics.jsonl     one line for every shard that was finished: episodes, frames, seconds, bytes

Frames are deflated one by one, so that a random frame costs one chunk; every array has a checksum. A shard is
built in memory and written by plain file I/O, so it is complete under its name or not there, and a full disk
is an ordinary OSError. Frames are numbered through the whole store, in episode order.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt8

from scope_wm.files import CONFIG, write_file, write_json
from scope_wm.types import IMAGE_SIZE, Episode, UsageError

FORMAT = 1
ARRAYS = {"frames": np.uint8, "proprio": np.float32, "states": np.float64, "actions": np.float64}
DAMAGE = (OSError, KeyError, RuntimeError)  # what h5py raises where a checksum fails, by what was damaged
OPEN_SHARDS = 128  # handles a process keeps; systems allow from 256


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """What a store holds: everything that its content depends on, and the widths of its arrays."""

    task: str
    seed: int
    length: int  # frames of an episode that is not cut short
    episodes: int
    action_width: int
    proprio_width: int
    state_width: int
    versions: dict[str, str]  # packages that began the store
    shard_episodes: int = 5  # small, for a killed process loses the shards that it was making
    kind: str = "store"
    format: int = FORMAT

    def shards(self) -> dict[str, list[int]]:
        """Return the episode numbers that each shard of the finished store holds."""
        starts = range(0, self.episodes, self.shard_episodes)
        return {
            f"shard-{index:05d}.h5": list(range(start, min(start + self.shard_episodes, self.episodes)))
            for index, start in enumerate(starts)
        }


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What the index knows of one shard."""

    bytes: int
    numbers: list[int]
    lengths: list[int]


class Store:
    """Read the episodes of a store; safe to use in forked and in spawned worker processes."""

    def __init__(self, path: Path, config: StoreConfig, index: dict[str, Shard]) -> None:
        self.path = path
        self.config = config
        self.index = index
        self.numbers = _joined(index, lambda shard: shard.numbers)  # position -> collected as episode number
        self.lengths = _joined(index, lambda shard: shard.lengths)
        self.first = np.cumsum(self.lengths) - self.lengths  # position -> number of its first frame
        self._places = [(name, group_name(number)) for name in index for number in index[name].numbers]
        self._process = 0

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Open a store, finished or not."""
        return cls(path, read_config(path), read_index(path))

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        """Open the store afresh in a spawned process: handles of HDF5 files cannot be sent."""
        return Store.open, (self.path,)

    def __len__(self) -> int:
        """Return how many episodes there are now."""
        return len(self.numbers)

    @property
    def num_frames(self) -> int:
        """Return how many frames all episodes have."""
        return int(self.lengths.sum())

    @functools.cached_property
    def digest(self) -> str:
        """Identify what the store holds at present: its settings and the episodes and size of every shard."""
        content = json.dumps([asdict(self.config), [asdict(shard) for shard in self.index.values()]])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @functools.cached_property
    def actions(self) -> Float64[np.ndarray, "steps action"]:
        """All actions, episode after episode: frame n of the i-th episode is followed by row n - i."""
        return self._column("actions")

    @functools.cached_property
    def proprio(self) -> Float32[np.ndarray, "frames proprio"]:
        """The proprio of every frame."""
        return self._column("proprio")

    @functools.cached_property
    def states(self) -> Float64[np.ndarray, "frames state"]:
        """The state of every frame."""
        return self._column("states")

    def episode(self, index: int) -> Episode:
        """Read one episode."""
        group = self._group(index)
        return Episode(**{name: group[name][()] for name in ARRAYS})

    def episode_of(self, numbers: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Return the positions of the episodes that frames belong to."""
        return np.searchsorted(self.first, numbers, side="right") - 1

    def frames(self, numbers: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n 224 224 3"]:
        """Read frames by their numbers in the store."""
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self.num_frames):
            raise ValueError(f"expected frame numbers in 0..{self.num_frames - 1}, got {numbers}")
        images = np.empty((len(numbers), IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        episodes = self.episode_of(numbers)
        for episode in np.unique(episodes).tolist():
            dataset = self._group(episode)["frames"]
            for row in np.flatnonzero(episodes == episode):
                images[row] = dataset[numbers[row] - self.first[episode]]
        return images

    def _column(self, array: str) -> np.ndarray:
        return np.concatenate([self._group(index)[array][()] for index in range(len(self))])

    def _group(self, index: int) -> h5py.Group:
        if self._process != os.getpid():  # a handle must not cross a fork
            self._process = os.getpid()
            self._open = functools.lru_cache(OPEN_SHARDS)(open_shard)
        shard, group = self._places[index]
        return self._open(self.path / shard)[group]


def group_name(number: int) -> str:
    """Return the name of an episode in its shard."""
    return f"episode-{number:06d}"


def open_shard(path: Path) -> h5py.File:
    """Open a shard to read; it never changes, so it needs no lock (and some file systems have none)."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if error.errno is not None:  # the system's trouble, as too many open files: no fault of the shard
            raise
        raise _unreadable(path, error) from error


def write_shard(path: Path, seed: int, episodes: Iterable[tuple[int, Episode]]) -> Shard:
    """Write numbered episodes as one shard, packing each as it comes."""
    lengths = {}
    # In memory, for HDF5 cannot take back what it wrote to a disk that fails; v110 has checksummed metadata.
    # HDF5's own files in memory will not do: before HDF5 2 their image has a wrong checksum.
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=("v110", "v110")) as file:
        for number, episode in episodes:
            group = file.create_group(group_name(number))
            group.attrs.update(number=number, length=len(episode), seed=seed)
            # Level 1 writes 4 x as fast as PNG, at about its size; level 4 saves 20 % at 3 x the time.
            frame = {"chunks": (1, IMAGE_SIZE, IMAGE_SIZE, 3), "compression": "gzip", "compression_opts": 1}
            group.create_dataset("frames", data=episode.frames, **frame)
            group.create_dataset("proprio", data=episode.proprio, fletcher32=True)
            group.create_dataset("states", data=episode.states, fletcher32=True)
            group.create_dataset("actions", data=episode.actions, fletcher32=True)
            lengths[number] = len(episode)
    image = memory.getvalue()
    write_file(path, image)
    return Shard(bytes=len(image), numbers=list(lengths), lengths=list(lengths.values()))


def read_config(path: Path) -> StoreConfig:
    """Read the settings of a store, or say why the path is none."""
    file = path / CONFIG
    if not path.is_dir():
        raise UsageError(f"there is no store at {path}: scope-wm collect --out {path} ... makes one")
    if not file.is_file():
        raise UsageError(f"{path} is not a store: it has no {CONFIG}")
    try:
        values = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not a store: its {CONFIG} is damaged ({error})") from error
    if not isinstance(values, dict) or values.get("kind") != "store":
        kind = values.get("kind") if isinstance(values, dict) else values
        raise UsageError(f"{path} is not a store: its {CONFIG} is that of a {kind}")
    if values.get("format") != FORMAT:
        raise UsageError(
            f"{path} has store format {values.get('format')}, this version reads format {FORMAT}: "
            "read it with the scope-wm that wrote it, or collect it again"
        )
    if wrong := {field.name for field in fields(StoreConfig)} ^ set(values):
        raise UsageError(f"{path} is not a store: its {CONFIG} lacks or should not have {sorted(wrong)}")
    return StoreConfig(**values)


def read_index(path: Path) -> dict[str, Shard]:
    """Return what every shard holds, scanning those that index.json does not know at their present size."""
    file = path / "index.json"
    known: dict[str, Shard] = {}
    # Missing, no JSON, not the fields of a shard, or not an object: then every shard is scanned.
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, AttributeError):
        known = {name: Shard(**values) for name, values in json.loads(file.read_text()).items()}
    index = {}
    for shard in sorted(path.glob("shard-*.h5")):
        entry = known.get(shard.name)
        if entry is None or entry.bytes != shard.stat().st_size:
            entry = scan_shard(shard)
        index[shard.name] = entry
    if index != known:
        with contextlib.suppress(OSError):  # on a full or read-only disk the cache is done without
            write_json(file, {name: asdict(shard) for name, shard in index.items()})
    return index


def scan_shard(path: Path) -> Shard:
    """Find out which episodes a shard holds."""
    with open_shard(path) as file:
        try:
            attributes = [dict(file[name].attrs) for name in file]
        except DAMAGE as error:
            raise _unreadable(path, error) from error
    return Shard(
        bytes=path.stat().st_size,
        numbers=[int(values["number"]) for values in attributes],
        lengths=[int(values["length"]) for values in attributes],
    )


def _unreadable(path: Path, error: Exception) -> OSError:
    return OSError(f"{path} cannot be read ({error}): delete it and collect again")


def _joined(index: dict[str, Shard], values: Callable[[Shard], list[int]]) -> Int64[np.ndarray, " episodes"]:
    return np.array([value for shard in index.values() for value in values(shard)], np.int64)
