"""A run directory: config.json says what was asked, instances.jsonl what happened, summary.json the result.

Records are appended as instances finish, in any order; a line that a kill cut short is dropped. The summary
is there only when all instances are.
"""

import fcntl
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch

from scope_wm.evaluate.instances import InstanceRecord, data_digest
from scope_wm.evaluate.models import model_digest
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.files import PARTIAL, sweep, write_json
from scope_wm.records import from_json
from scope_wm.types import MadeOtherwise, UsageError

KIND, FORMAT = "evaluation", 1
CONFIG, INSTANCES, SUMMARY = "config.json", "instances.jsonl", "summary.json"
PACKAGES = ("scope-wm", "torch", "numpy", "gymnasium", "pymunk", "mujoco", "opencv-python-headless")
FREE = {"out", "workers", "instances", "model", "encoder", "problems_from"}  # these go by hash, or may differ


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, as it is read back."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    records: dict[int, InstanceRecord]


def prepare(settings: EvaluateSettings) -> None:
    """Begin a run, or see that the one that is there has the same settings; let it grow if it is shorter."""
    path, config = settings.path, run_config(settings)
    if path.exists() and not path.is_dir():
        raise UsageError(f"expected --out to name a directory, {path} is a file")
    path.mkdir(parents=True, exist_ok=True)
    if all(entry.name.endswith(PARTIAL) for entry in path.iterdir()):  # empty, or killed before the rename
        write_json(path / CONFIG, config)
        return
    old = expect_same(path, config)
    sweep(path)
    wanted = config["settings"]["instances"]
    if wanted > old["settings"]["instances"]:
        (path / SUMMARY).unlink(missing_ok=True)
        write_json(path / CONFIG, old | {"settings": old["settings"] | {"instances": wanted}})


def is_evaluated(settings: EvaluateSettings) -> bool:
    """Tell whether a run is finished; refuse one of other settings."""
    if not (settings.path / CONFIG).is_file():
        return False
    old = expect_same(settings.path, run_config(settings))
    enough = bool(old["settings"]["instances"] >= settings.count)
    return enough and (settings.path / SUMMARY).is_file()


def run_config(settings: EvaluateSettings) -> dict[str, Any]:
    """Return everything that a result depends on, after checking model and data."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "settings": settings.resolved(),
        "model_digest": model_digest(settings.model, settings.task),
        "data_digest": data_digest(settings),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "machine": machine(settings.model.resolved_device()),
    }


def expect_same(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the run that is there; refuse one of other settings or with more instances."""
    old = read_config(path)
    for name, value in comparable(config).items():
        if (before := comparable(old).get(name)) != value:
            raise MadeOtherwise(
                f"{path} was evaluated with {name} {before}, not {value}: "
                f"choose another --out, or the same {name}"
            )
    had, wanted = old["settings"]["instances"], config["settings"]["instances"]
    if wanted < had:
        raise MadeOtherwise(f"{path} has {had} instances: expected as many or more, got {wanted}")
    return old


def machine(device: torch.device) -> dict[str, Any]:
    """Return what times depend on."""
    described = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    processor = re.search(r"^model name\s*: (.+)$", described, re.MULTILINE)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor[1] if processor else platform.processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same for two sets of instances to be of one run."""
    same = {name: value for name, value in config["settings"].items() if name not in FREE}
    return same | {"model": config["model_digest"], "data": config["data_digest"]}


def read_config(path: Path) -> dict[str, Any]:
    """Read the config of a run, or say why the path is none."""
    config = _read_object(path / CONFIG) if (path / CONFIG).is_file() else {}
    if config.get("kind") != KIND:
        raise UsageError(f"{path} is not a run of scope-wm evaluate: it has no {CONFIG} of one")
    if config.get("format") != FORMAT:
        raise UsageError(f"{path} has run format {config.get('format')}, this version reads format {FORMAT}")
    return config


def read_records(path: Path) -> dict[int, InstanceRecord]:
    """Return the records of the instances that are finished, by instance."""
    file = path / INSTANCES
    complete = file.read_text().rpartition("\n")[0] if file.is_file() else ""
    records = {}
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            values = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{file}, line {number} is not JSON ({error}): delete it and go on") from error
        record = from_json(InstanceRecord, values, f"{file}, line {number}")
        records[record.instance] = record
    return dict(sorted(records.items()))


def read_run(path: Path) -> Run:
    """Read a finished run."""
    config = read_config(path)
    if not (path / SUMMARY).is_file():
        raise UsageError(f"{path} is not finished: the evaluate command that began it goes on")
    return Run(path=path, config=config, summary=_read_object(path / SUMMARY), records=read_records(path))


@contextmanager
def appending(path: Path) -> Iterator[IO[str]]:
    """Open the records for this process alone, without a line that a kill cut short."""
    with (path / INSTANCES).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process is evaluating into {path}") from error
        file.seek(0)
        file.truncate(file.read().rfind("\n") + 1)
        yield file


def append(file: IO[str], record: InstanceRecord) -> None:
    """Write down that an instance is finished."""
    file.write(json.dumps(asdict(record), allow_nan=False) + "\n")
    file.flush()


def _read_object(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON ({error}): it is damaged or half copied") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file}: expected an object, got {values!r}")
    return values
