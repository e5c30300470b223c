"""What a run directory holds: its finished stages, its held-out episodes, and what is not there.

`pipeline/stages.py` lists them.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from scope_wm.data.split import Split, open_splits
from scope_wm.data.store import Store
from scope_wm.data.token_cache import ON_THE_FLY, Tokens, open_tokens
from scope_wm.evaluate.run import SUMMARY, Run, read_run
from scope_wm.files import CONFIG, METRICS, read_object
from scope_wm.model.architecture import EncoderReference
from scope_wm.model.directory import WEIGHTS
from scope_wm.train.recorder import read_metrics

# In order.
STAGES = ("data", "tokens", "teacher", "selector", "sparse-*", "refined-*", "decoder", "evaluate/*")
OPTIONAL = ("tokens", "refined-*", "decoder")  # tokens may be made on the fly


@dataclass(frozen=True, kw_only=True)
class TrainedStage:
    """A finished training: the header of its artifact, with how it was made, and its metrics on the way."""

    name: str
    header: dict[str, Any]
    metrics: list[dict[str, Any]]
    parameters: int

    @property
    def made(self) -> dict[str, Any]:
        """Return the settings, inputs and held-out figures."""
        return self.header["made"]

    @property
    def steps(self) -> int:
        """Return how many steps were made, as far as that was kept: a model that ships has no metrics."""
        return max((line["step"] for line in self.metrics), default=0)

    @property
    def samples(self) -> int:
        """Return how many samples were seen, every repetition counted."""
        return self.steps * int(self.made["settings"]["fit"]["batch"])

    @property
    def seconds(self) -> float:
        """Return how long the steps took, validations included."""
        return float(sum(line.get("seconds", 0.0) for line in self.metrics))


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The validation episodes of a run, and the tokens of their frames."""

    split: Split
    tokens: Tokens


def trained_stages(run: Path) -> dict[str, TrainedStage]:
    """Return the finished trainings of a run by name, in the order of the pipeline, large K first."""
    found = [path for pattern in STAGES[2:-1] for path in run.glob(pattern) if is_finished(path)]
    stages = [stage for stage in map(_read, found) if "made" in stage.header]
    order = [pattern.split("-")[0] for pattern in STAGES]
    stages.sort(key=lambda stage: (order.index(stage.name.split("-")[0]), -tokens_kept(stage)))
    return {stage.name: stage for stage in stages}


def world_models(trained: dict[str, TrainedStage]) -> dict[str, TrainedStage]:
    """Return the world models, but for those that others were made from by training them further."""

    def went_on(stage: TrainedStage) -> bool:
        others = (other for other in trained.values() if other is not stage)
        return any(other.made["inputs"].get("model") == stage.header["weights"] for other in others)

    return {name: stage for name, stage in trained.items() if tokens_kept(stage) and not went_on(stage)}


def evaluations(run: Path) -> list[Run]:
    """Return the finished evaluations of a run."""
    return [read_run(path) for path in sorted(run.glob(STAGES[-1])) if is_finished(path)]


def gaps(run: Path) -> list[str]:
    """Tell which stages are not there or not finished."""
    told = []
    for pattern in STAGES:
        found = sorted(run.glob(pattern))
        told += [f"`{path.relative_to(run)}` is not finished." for path in found if not is_finished(path)]
        told += [] if found or pattern in OPTIONAL else [f"`{pattern}` is not there."]
    return told


def is_finished(stage: Path) -> bool:
    """Tell whether a stage has its result; that of two stores has two."""
    result = SUMMARY if stage.parent.name == "evaluate" else CONFIG
    parts = [stage / "train", stage / "val"] if (stage / "train").is_dir() else [stage]
    return all((part / result).is_file() and not is_growing(part) for part in parts)


def is_growing(stage: Path) -> bool:
    """Tell whether it is a store that has not all its episodes yet."""
    if read_object(stage / CONFIG).get("kind") != "store":
        return False
    store = Store.open(stage)
    return len(store) < store.config.episodes


def tokens_kept(stage: TrainedStage) -> int:
    """Return K of a world model; other stages keep none."""
    return int(stage.header["model"].get("selector", {}).get("k", 0))


def open_held_out(run: Path, encoder: EncoderReference) -> HeldOut:
    """Open the validation episodes of a run, as this encoder sees them."""
    where = str(run / "tokens") if (run / "tokens").is_dir() else ON_THE_FLY
    tokens = open_tokens(where, run / "data", encoder.config, "cpu")
    tokens.check_encoder(encoder)
    return HeldOut(split=open_splits(run / "data").validation, tokens=tokens.validation)


def _read(directory: Path) -> TrainedStage:
    header = read_object(directory / CONFIG)
    with safetensors.safe_open(directory / WEIGHTS, "np") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    return TrainedStage(
        name=directory.name,
        header=header,
        metrics=read_metrics(directory) if (directory / METRICS).is_file() else [],
        parameters=sum(math.prod(shape) for shape in shapes),
    )
