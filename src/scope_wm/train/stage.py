"""A stage of training is a directory: what it was made from and how, its artifact, its metrics.

    config.json              the artifact's config with `made`: stage, settings, hashes of inputs, versions
    model.safetensors        the artifact
    metrics.jsonl            what was measured on the way; tensorboard/ holds the same
    unfinished.json          until the artifact is there: `made`, so that only the same command goes on
    checkpoint.safetensors   until the artifact is there: where the training is

A finished directory of the same settings and inputs is left as it is. One that was made otherwise is refused.
"""

import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState

from scope_wm.files import only_writer, sweep, write_json
from scope_wm.model.directory import CONFIG
from scope_wm.train.recorder import RunSettings
from scope_wm.train.state import CHECKPOINT
from scope_wm.types import MadeOtherwise, UsageError

UNFINISHED = "unfinished.json"
PACKAGES = ("scope-wm", "torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What decides an artifact: which stage, with what settings, from what inputs (by their hashes)."""

    stage: str
    settings: dict[str, Any]
    inputs: dict[str, str]

    def made(self) -> dict[str, Any]:
        """Return the record of it, with the versions that were used."""
        versions = {name: importlib.metadata.version(name) for name in PACKAGES}
        return {"stage": self.stage, "settings": self.settings, "inputs": self.inputs, "versions": versions}

    def differs(self, made: dict[str, Any]) -> list[str]:
        """Tell in what a record departs from this recipe, as `name: there, here`."""
        wanted, found = (
            _flat({"stage": r["stage"], "inputs": r["inputs"], **r["settings"]}) for r in (self.made(), made)
        )
        return [
            f"{name}: {found.get(name)!r} there, {wanted.get(name)!r} here"
            for name in sorted(wanted | found)
            if wanted.get(name) != found.get(name)
        ]


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
    recipe: Recipe
    first: bool

    def finish(self, figures: Mapping[str, float], save: Callable[[dict[str, Any]], None]) -> None:
        """Write the artifact with how it was made, and remove what only an unfinished stage needs."""
        if self.first:
            save(self.recipe.made() | {"figures": dict(figures)})
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
            write_json(directory / UNFINISHED, recipe.made())
        processes.wait_for_everyone()
        yield Work(directory=directory, recipe=recipe, first=first)
        processes.wait_for_everyone()


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
            content = json.loads(file.read_text())
            made = content.get("made") if finished else content
            if made is None:
                raise UsageError(f"{directory} holds something that was not trained here: name another --out")
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
