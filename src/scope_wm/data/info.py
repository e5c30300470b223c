"""`scope-wm data info`: a store on one screen."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from jaxtyping import Float64

from scope_wm.data.split import split
from scope_wm.data.statistics import statistics
from scope_wm.data.store import Store
from scope_wm.tasks import find_task

SPEED_BATCHES = {"without frames": 300, "with frames": 20}


@dataclass(frozen=True, kw_only=True)
class InfoSettings:
    """Describe a store on one screen.

    Example: scope-wm data info data/push_t --speed
    """

    store: tyro.conf.Positional[Path]
    """directory of the store"""
    speed: bool = False
    """also measure how many random windows a second it feeds to training"""


def info(settings: InfoSettings) -> None:
    """Print what a store holds."""
    store = Store.open(settings.store)
    lines = description(store)
    if len(store):
        lines |= learning(store)
    if settings.speed:
        lines |= speed(store)
    print(store.path)
    for name, text in lines.items():
        print(f"  {name:<11} {text}")


def description(store: Store) -> dict[str, str]:
    """Say what was collected, how much of it there is, and what made it."""
    config = store.config
    missing = config.episodes - len(store)
    size = sum(shard.bytes for shard in store.index.values())
    frame_size = size / max(store.num_frames, 1)
    lengths = f"{store.lengths.min(initial=config.length)} to {store.lengths.max(initial=0)}"
    rest = f" of {config.episodes}: the collect command that began it goes on" if missing else ""
    return {
        "task": config.task,
        "seed": str(config.seed),
        "episodes": f"{len(store)}{rest}",
        "frames": f"{store.num_frames}, {lengths} in an episode",
        "size": f"{size / 1e6:.1f} MB in {len(store.index)} shards, {frame_size / 1e3:.1f} KB a frame",
        "widths": f"state {config.state_width}, proprio {config.proprio_width}, action {config.action_width}",
        "made with": ", ".join(f"{package} {version}" for package, version in config.versions.items()),
        "digest": store.digest,
    }


def learning(store: Store) -> dict[str, str]:
    """Say how training sees the store: its split and statistics."""
    training, validation = split(store)
    values = statistics(training)
    return {
        "split": f"{len(training.episodes)} episodes for training, {len(validation.episodes)} for validation",
        "actions": f"mean {_row(values.action_mean)}, std {_row(values.action_std)}",
        "proprio": f"mean {_row(values.proprio_mean)}, std {_row(values.proprio_std)}",
    }


def speed(store: Store) -> dict[str, str]:
    """Measure how fast the store feeds training."""
    from scope_wm.data.speed import windows_per_second

    frameskip = find_task(store.config.task).frameskip
    rates = {
        what: windows_per_second(split(store), frameskip, frames=what == "with frames", batches=batches)
        for what, batches in SPEED_BATCHES.items()
    }
    return {"windows/s": ", ".join(f"{rate:.0f} {what}" for what, rate in rates.items())}


def _row(values: Float64[np.ndarray, " width"]) -> str:
    return f"[{' '.join(f'{value:.4g}' for value in values)}]"
