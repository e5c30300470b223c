"""A run directory: config.json says what was asked, instances.jsonl what happened, summary.json the result.

Records are appended as instances finish, in any order; a line that a kill cut short is dropped. The summary
is there only when all instances are.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from scope_wm.evaluate.instances import InstanceRecord, data_digest
from scope_wm.evaluate.models import model_digest, model_header
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings, expect_writable
from scope_wm.files import CONFIG, is_unused, json_bytes, only_writer, read_object, sweep, write_json
from scope_wm.hardware import machine
from scope_wm.planning.load import ModelSettings
from scope_wm.records import from_json, installed_versions
from scope_wm.types import MadeOtherwise, UsageError

KIND, FORMAT = "evaluation", 1
INSTANCES, SUMMARY = "instances.jsonl", "summary.json"
PACKAGES = (
    "scope-wm",
    "torch",
    "numpy",
    "gymnasium",
    "pymunk",
    "mujoco",
    "opencv-python-headless",
    "transformers",
)
FREE = {"out", "workers", "instances", "model", "encoder", "problems_from"}  # these go by hash, or may differ
THEN = ", then "  # between the numbers of workers of a run that another number went on with


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, as it is read back."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    records: dict[int, InstanceRecord]


@contextmanager
def writing(settings: EvaluateSettings) -> Iterator[IO[str]]:
    """Begin a run or go on with one, alone: open its records, without a line that a kill cut short.

    Nothing is written, not even a directory, before everything that can be wrong with the settings is known.
    """
    path, config = settings.path, run_config(settings)
    expect_writable(path)
    json_bytes(config)  # refuses NaN
    path.mkdir(parents=True, exist_ok=True)
    with only_writer(path):
        prepare(path, config)
        with (path / INSTANCES).open("a+") as file:
            file.seek(0)
            file.truncate(file.read().rfind("\n") + 1)
            yield file


def prepare(path: Path, config: dict[str, Any]) -> None:
    """Begin a run, or see that the one that is there has the same settings; let it grow if it is shorter."""
    if is_unused(path):
        write_json(path / CONFIG, config)
        return
    old = expect_same(path, config)
    before, now, done = old["settings"], config["settings"], len(read_records(path))
    after: dict[str, Any] = before | {"instances": max(before["instances"], now["instances"])}
    if done < after["instances"]:
        expect_same_surroundings(path, old, config)
        after["workers"] = workers_text(before["workers"], now["workers"]) if done else now["workers"]
    sweep(path)
    if after["instances"] > before["instances"]:
        (path / SUMMARY).unlink(missing_ok=True)
    if after != before:
        write_json(path / CONFIG, old | {"settings": after})


def workers_text(before: int | str, now: int) -> int | str:
    """Return how many workers made instances so far, and how many make the others, if that is new."""
    return before if str(before).rpartition(THEN)[-1] == str(now) else f"{before}{THEN}{now}"


def is_evaluated(settings: EvaluateSettings) -> bool:
    """Tell whether a run is finished, with as many instances or more; refuse one of other settings."""
    if not (settings.path / CONFIG).is_file():
        return False
    old = expect_same(settings.path, run_config(settings))
    return bool(old["settings"]["instances"] >= settings.count) and is_complete(settings.path)


def is_complete(path: Path) -> bool:
    """Tell whether all instances of a run are there, and its summary is that of all of them."""
    if not (path / SUMMARY).is_file():
        return False
    asked, summed = read_config(path)["settings"]["instances"], read_object(path / SUMMARY).get("instances")
    return bool(asked == summed == len(read_records(path)))


def run_config(settings: EvaluateSettings) -> dict[str, Any]:
    """Return everything that a result depends on, after checking model and data."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "settings": settings.resolved(),
        "model_digest": model_digest(settings.model, settings.task),
        "model": model_header(settings.model),
        "data_digest": data_digest(settings),
        "versions": installed_versions(PACKAGES),
        "machine": machine(settings.model.resolved_device()),
    }


def expect_same(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the run that is there; refuse one of other settings."""
    old = read_config(path)
    for name, value in comparable(config).items():
        if (before := comparable(old).get(name)) != value:
            raise MadeOtherwise(
                f"{path} was evaluated with {name} {before}, not {value}: "
                f"choose another --out, or the same {name}"
            )
    return old


def expect_same_surroundings(path: Path, old: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse to mix instances of other versions or another machine into a run."""
    before, now = (values["versions"] | values["machine"] for values in (old, config))
    for name in now:
        if before.get(name) != now[name]:
            raise MadeOtherwise(
                f"{path} was begun with {name} {before.get(name)}, here it is {now[name]}: its instances are "
                "not mixed with those of another version or machine, choose another --out"
            )


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run; an option that is younger than the run had its default there."""
    options = (option for group in (ModelSettings, SearchSettings) for option in fields(group))
    return {option.name: option.default for option in options} | config["settings"]


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same for two sets of instances to be of one run."""
    same = {name: value for name, value in settings_of(config).items() if name not in FREE}
    return same | {"model": config["model_digest"], "data": config["data_digest"]}


def read_config(path: Path) -> dict[str, Any]:
    """Read the config of a run, or say why the path is none."""
    config = read_object(path / CONFIG) if (path / CONFIG).is_file() else {}
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
    if not is_complete(path):
        raise UsageError(f"{path} is not finished: the evaluate command that began it goes on")
    return Run(path=path, config=config, summary=read_object(path / SUMMARY), records=read_records(path))


def append(file: IO[str], record: InstanceRecord) -> None:
    """Write down that an instance is finished."""
    file.write(json.dumps(asdict(record), allow_nan=False) + "\n")
    file.flush()
