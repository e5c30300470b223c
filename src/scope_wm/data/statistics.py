"""Mean and standard deviation of actions and proprio over the training episodes, kept beside the data.

Everything that the world model sees of them is standardised with these. A constant channel has a standard
deviation of 0, so 1e-6 is added to it.
"""

import contextlib
import hashlib
import json
from dataclasses import asdict

import numpy as np
from jaxtyping import Float64

from scope_wm.data.split import Split
from scope_wm.files import write_json
from scope_wm.types import Statistics, UsageError

CONSTANT_STD = 1e-6


def statistics(training: Split) -> Statistics:
    """Return the statistics of these episodes: those stored, if they are of the same data, else new ones."""
    file = training.store.path / "statistics.json"
    content = training.store.digest.encode() + training.episodes.tobytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):  # not there, or damaged
        values = json.loads(file.read_text())
        if values.pop("digest") == digest:
            return Statistics(**{name: np.array(value) for name, value in values.items()})
    result = compute(training)
    with contextlib.suppress(OSError):  # on a full or read-only disk the cache is done without
        arrays = {name: value.tolist() for name, value in asdict(result).items()}
        write_json(file, {"digest": digest, **arrays})
    return result


def compute(training: Split) -> Statistics:
    """Compute the statistics over all steps of these episodes, in float64."""
    store, episodes = training
    if len(episodes) == 0:
        raise UsageError(f"{store.path} has no episodes to learn from yet: collect some")
    chosen = np.isin(np.arange(len(store)), episodes)
    of_frame, of_step = np.repeat(chosen, store.lengths), np.repeat(chosen, store.lengths - 1)
    action_mean, action_std = _moments(store.actions[of_step])
    proprio_mean, proprio_std = _moments(store.proprio[of_frame].astype(np.float64))
    return Statistics(
        action_mean=action_mean, action_std=action_std, proprio_mean=proprio_mean, proprio_std=proprio_std
    )


def _moments(
    values: Float64[np.ndarray, "steps width"],
) -> tuple[Float64[np.ndarray, " width"], Float64[np.ndarray, " width"]]:
    """Return mean and population standard deviation of every channel."""
    std = values.std(axis=0)
    constant = values.min(axis=0) == values.max(axis=0)
    return values.mean(axis=0), np.where(constant, std + CONSTANT_STD, std)
