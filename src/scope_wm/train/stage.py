"""A stage of training is a directory: what it was made from and how, its artifact, its metrics.

    config.json              the artifact's config with `made`: stage, settings, inputs, versions, machine
    model.safetensors        the artifact
    metrics.jsonl            what was measured on the way; tensorboard/ holds the same
    unfinished.json          until the artifact is there: `made`, so that only the same command goes on
    checkpoint.safetensors   until the artifact is there: where the training is

A finished directory of the same settings and inputs is left as it is. One that was made otherwise is refused.
Versions, machine and precision are those that began the stage; `resumed` has the others that went on with it,
in order.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from scope_wm.files import CONFIG, UNFINISHED, only_writer, read_object, sweep, write_json
from scope_wm.hardware import machine
from scope_wm.records import installed_versions
from scope_wm.train.recorder import RunSettings
from scope_wm.train.state import CHECKPOINT
from scope_wm.types import MadeOtherwise, UsageError

PACKAGES = ("scope-wm", "torch", "numpy")
ADAMW = {"kind": "adamw"}
RECORDED = {"stage", "settings", "inputs"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides an artifact: which stage, with what settings, from what inputs (by their hashes)."""

    stage: str
    settings: dict[str, Any]
    inputs: dict[str, str]

    def differs(self, made: dict[str, Any]) -> list[str]:
        """Tell in what a record departs from this recipe, as `name: there, here`."""
        wanted, found = (
            _flat({"stage": r["stage"], "inputs": r["inputs"], **of_today(r["settings"])})
            for r in (asdict(self), made)
        )
        return [
            f"{name}: {found.get(name)!r} there, {wanted.get(name)!r} here"
            for name in sorted(wanted | found)
            if wanted.get(name) != found.get(name)
        ]


def of_today(settings: dict[str, Any]) -> dict[str, Any]:
    """Return recorded settings as they would be recorded now.

    The kind of optimiser is younger than some records, and had its default then. The precision, which once
    was a setting, is of the run; there, "no" was float32.
    """
    if (fit := settings.get("fit")) is None:
        return settings
    kept = {name: value for name, value in fit.items() if (name, value) != ("precision", "no")}
    return settings | {"fit": kept | {"optimiser": ADAMW | fit["optimiser"]}}


def is_finished(directory: Path, recipe: Recipe) -> bool:
    """Tell whether a directory holds the artifact of a recipe; one that was made otherwise is refused."""
    made, finished = read_made(directory)
    if made is not None and (differences := recipe.differs(made)):
        raise MadeOtherwise(
            f"{directory} was made otherwise: {'; '.join(differences)}. "
            "Name another --out, or remove that directory"
        )
    return finished


@dataclass(frozen=True, kw_only=True)
class Work:
    """A stage that is being made, by one process or by several of which only the first writes."""

    directory: Path
    first: bool
    made: dict[str, Any]

    def finish(self, figures: Mapping[str, float], save: Callable[[dict[str, Any]], None]) -> None:
        """Write the artifact with how it was made, and remove what only an unfinished stage needs."""
        if self.first:
            save(self.made | {"figures": dict(figures)})
            for name in (CHECKPOINT, UNFINISHED):
                (self.directory / name).unlink(missing_ok=True)
            tell(self.directory)


@contextmanager
def making(directory: Path, recipe: Recipe, run: RunSettings) -> Iterator[Work | None]:
    """Yield the work to be done, or nothing if it is finished; keep others from writing meanwhile."""
    processes = PartialState(cpu=run.device == "cpu")
    first = processes.is_main_process
    if is_finished(directory, recipe):
        if first:
            tell(directory)
        yield None
        return
    with ExitStack() as held:
        if first:
            directory.mkdir(parents=True, exist_ok=True)
            held.enter_context(only_writer(directory))
            if is_finished(directory, recipe):  # by another process, just now
                raise UsageError(f"another process has just finished {directory}: nothing is left to do")
            sweep(directory)
        made = record(directory, recipe, processes.device, run.precision)
        if first:
            write_json(directory / UNFINISHED, made)
        processes.wait_for_everyone()
        yield Work(directory=directory, first=first, made=made)
        processes.wait_for_everyone()


def record(directory: Path, recipe: Recipe, device: torch.device, precision: str) -> dict[str, Any]:
    """Return how a stage is made; one that others began keeps their record, with who goes on."""
    here = {"versions": installed_versions(PACKAGES), "machine": machine(device), "precision": precision}
    begun, _ = read_made(directory)
    if begun is None:
        return asdict(recipe) | here
    earlier = begun.get("resumed", [])
    last = earlier[-1] if earlier else {name: begun.get(name) for name in here}
    return begun if last == here else begun | {"resumed": [*earlier, here]}


def tell(directory: Path) -> None:
    """Print that a stage is finished, and the held-out figures of its artifact."""
    made, _ = read_made(directory)
    figures = (made or {}).get("figures", {})
    print(f"{directory} is finished: {', '.join(f'{name} {value:.3g}' for name, value in figures.items())}")


def read_made(directory: Path) -> tuple[dict[str, Any] | None, bool]:
    """Return how a directory was made, or is being made, and whether it is finished."""
    for name, finished in ((CONFIG, True), (UNFINISHED, False)):
        file = directory / name
        if file.is_file():
            content = read_object(file)
            made = content.get("made") if finished else content
            if made is None:
                raise UsageError(f"{directory} holds something that was not trained here: name another --out")
            if not isinstance(made, dict) or not set(made) >= RECORDED:
                raise UsageError(f"{file} is damaged: expected a record with {sorted(RECORDED)}")
            return made, finished
    return None, False


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level, with names such as fit.optimiser.lr."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
