"""Collect: let a task's data policy act, and write what it did into a store.

Episode i depends on the seed and i alone: neither the number of workers nor being killed in between changes
anything. An episode ends before the frame in which its scene is spoilt; one that is then too short for a
single window of the paper's model is drawn again from the same random stream.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scope_wm.data.progress import progress
from scope_wm.data.split import split
from scope_wm.data.statistics import statistics
from scope_wm.data.store import Store, StoreConfig, read_config, read_index, write_shard
from scope_wm.data.workers import Report, run_in_processes, usable_cores
from scope_wm.files import CONFIG, METRICS, is_unused, only_writer, sweep, write_json
from scope_wm.records import installed_versions
from scope_wm.tasks import TaskName, find_task
from scope_wm.tasks.task import Task, episode_rng
from scope_wm.types import Episode, MadeOtherwise, UsageError

# What an episode holds depends on these.
PACKAGES = ("scope-wm", "numpy", "pymunk", "mujoco", "opencv-python-headless", "h5py")
MAX_DRAWS = 1000  # of one episode
ACTIONS_COMPARED = 3  # later ones may differ between machines, by rounding in contacts


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """Collect episodes of a task into a store.

    After an interruption the same command goes on. With more episodes it makes a finished store grow.

    Example: scope-wm collect --task push_t --episodes 2000 --out data/push_t
    """

    task: TaskName
    """what to do"""
    episodes: int
    """how many episodes the finished store has"""
    out: Path
    """directory of the store"""
    seed: int = 0
    """episode i depends on this and i alone"""
    length: int | None = None
    """frames in an episode; None: the task's own number"""
    workers: int | None = None
    """processes; None: one for every core; the data does not depend on it"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name, least in {"episodes": 1, "seed": 0, "length": 2, "workers": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"expected --{name} of at least {least}, got {value}")


class ShardReport(NamedTuple):
    """One line of metrics.jsonl."""

    shard: str
    episodes: int
    frames: int
    seconds: float
    bytes: int


class Job(NamedTuple):
    """The shards that one worker makes: names and episode numbers."""

    path: Path
    config: StoreConfig
    shards: dict[str, list[int]]


def collect(settings: CollectSettings) -> None:
    """Collect the episodes that the store does not have yet."""
    path = settings.out
    if path.exists() and not path.is_dir():
        raise UsageError(f"expected --out to be a directory or nothing yet, {path} is a file")
    path.mkdir(parents=True, exist_ok=True)
    with only_writer(path):
        store = fill(path, prepare(settings), settings.workers)
    statistics(split(store).training)  # leave a store that can be used where it cannot be written to
    print(f"{path}: {len(store)} episodes of {settings.task}, {store.num_frames} frames")


def fill(path: Path, config: StoreConfig, workers: int | None) -> Store:
    """Make the shards that are missing, and return the complete store."""
    pending = pending_shards(path, config)
    workers = min(workers or usable_cores(), len(pending))
    jobs = [Job(path, config, dict(list(pending.items())[first::workers])) for first in range(workers)]
    done = config.episodes - sum(len(numbers) for numbers in pending.values())
    try:
        with progress("episodes", config.episodes, done) as advance:

            def report(message: int | ShardReport) -> None:
                if isinstance(message, ShardReport):
                    append_metrics(path, message)
                else:
                    advance()

            if workers > 1:
                run_in_processes(make_shards, jobs, report)
            elif workers == 1:
                make_shards(jobs[0], report)
    except OSError as error:
        raise OSError(
            f"{error}. {path} keeps the {len(Store.open(path))} episodes that are finished; "
            "the same command goes on with the others"
        ) from error
    finally:
        sweep(path)
    return Store.open(path)


def planned(settings: CollectSettings) -> StoreConfig:
    """Return what a new store would be."""
    task = find_task(settings.task)
    return StoreConfig(
        task=settings.task,
        seed=settings.seed,
        length=settings.length or task.episode_length,
        episodes=settings.episodes,
        action_width=task.action_width,
        proprio_width=task.proprio_width,
        state_width=task.state_width,
        versions=installed_versions(PACKAGES),
    )


def prepare(settings: CollectSettings) -> StoreConfig:
    """Begin a store, or see that the one that is there has the same settings."""
    path, config = settings.out, planned(settings)
    if not is_unused(path):
        old, config = read_config(path), continued(settings, config)
        if config == old:
            return old
    write_json(path / CONFIG, asdict(config))
    return config


def continued(settings: CollectSettings, config: StoreConfig) -> StoreConfig:
    """Return what the store that is there becomes; refuse one that was collected otherwise."""
    path = settings.out
    old = read_config(path)
    for name in ("task", "seed", "length"):
        if getattr(old, name) != getattr(config, name):
            raise MadeOtherwise(
                f"{path} was collected with {name} {getattr(old, name)}, not {getattr(config, name)}: "
                f"choose another --out, or the same --{name}"
            )
    if config.episodes < old.episodes:
        raise MadeOtherwise(
            f"{path} has {old.episodes} episodes: expected as many or more, got {config.episodes}"
        )
    expect_same_policy(path)
    grown = replace(old, episodes=config.episodes)
    if pending_shards(path, grown):
        expect_versions(path, old)
    return grown


def expect_same_policy(path: Path) -> None:
    """Refuse a store whose first episode begins otherwise than the task's data policy does by now."""
    store = Store.open(path)
    if len(store) == 0:
        return
    again = collect_episode(find_task(store.config.task)(), store.config, int(store.numbers[0]))
    stored, now = (episode.actions[:ACTIONS_COMPARED] for episode in (store.episode(0), again))
    if stored.shape != now.shape or not np.allclose(stored, now, atol=1e-6):
        raise MadeOtherwise(
            f"{path} was collected with another data policy than {store.config.task} has now: "
            "choose another --out"
        )


def is_collected(settings: CollectSettings) -> bool:
    """Tell whether a store has all its episodes; refuse one that was collected otherwise."""
    if not (settings.out / CONFIG).is_file():
        return False
    config = continued(settings, planned(settings))
    return not pending_shards(settings.out, config)


def expect_versions(path: Path, config: StoreConfig) -> None:
    """Refuse to go on with other packages than began the store: its episodes would not be of one kind."""
    for package, version in installed_versions(PACKAGES).items():
        if (began := config.versions.get(package)) != version:
            raise UsageError(
                f"{path} was begun with {package} {began}, installed is {version}: "
                f"install that version to go on, or choose another --out"
            )


def pending_shards(path: Path, config: StoreConfig) -> dict[str, list[int]]:
    """Return the shards that are missing or, because the store has grown, hold too few episodes."""
    index = read_index(path)
    return {
        name: numbers
        for name, numbers in config.shards().items()
        if name not in index or index[name].numbers != numbers
    }


def make_shards(job: Job, report: Report) -> None:
    """Make one shard after another; report each episode by its number, then the shard."""
    task = find_task(job.config.task)()

    def episodes(numbers: list[int]) -> Iterator[tuple[int, Episode]]:
        for number in numbers:
            yield number, collect_episode(task, job.config, number)
            report(number)

    for name, numbers in job.shards.items():
        began = time.perf_counter()
        shard = write_shard(job.path / name, job.config.seed, episodes(numbers))
        seconds = round(time.perf_counter() - began, 3)
        report(ShardReport(name, len(numbers), sum(shard.lengths), seconds, shard.bytes))


def append_metrics(path: Path, line: ShardReport) -> None:
    """Write down that a shard is finished."""
    with (path / METRICS).open("a") as file:
        file.write(json.dumps(line._asdict()) + "\n")


def collect_episode(task: Task, config: StoreConfig, number: int) -> Episode:
    """Make one episode of a store, drawing again if the scene is spoilt at once."""
    rng = episode_rng(config.seed, number)
    least = min(config.length, task.history * task.frameskip + 1)
    for _ in range(MAX_DRAWS):
        episode = record(task, rng, config.length)
        if len(episode) >= least:
            return episode
    raise RuntimeError(
        f"{config.task}: the scene was spoilt within {least} frames in all of {MAX_DRAWS} draws"
    )


def record(task: Task, rng: np.random.Generator, length: int) -> Episode:
    """Let the data policy act from a random start until there are enough frames or the scene is spoilt."""
    task.set_state(task.sample_start(rng))
    act = task.policy(rng)
    frames, proprio, states, actions = [task.render()], [task.proprio()], [task.state()], []
    while len(frames) < length:
        action = act(states[-1])
        task.advance(action)
        if task.spoilt():
            break
        actions.append(action)
        frames.append(task.render())
        proprio.append(task.proprio())
        states.append(task.state())
    return Episode(
        frames=np.stack(frames),
        proprio=np.stack(proprio),
        states=np.stack(states),
        actions=np.array(actions, np.float64).reshape(-1, task.action_width),
    )
