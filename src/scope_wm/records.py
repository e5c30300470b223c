"""Settings and results as JSON: plain dataclasses out, checked dataclasses in.

Reading is strict, so that a misspelt or foreign file is an error here and not a puzzle later: a key that the
record does not have, one that it lacks, and a value of another type are refused, naming the place.
"""

import importlib.metadata
import types
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from scope_wm.types import UsageError

Record = TypeVar("Record")


def to_json(record: Any) -> dict[str, Any]:
    """Return a dataclass as what JSON can hold; arrays become lists."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def from_json(kind: type[Record], values: object, where: str) -> Record:
    """Make a dataclass of this kind from parsed JSON; `where` names the file in errors."""
    if not is_dataclass(kind) or not isinstance(values, dict):
        raise UsageError(f"{where}: expected an object with the fields of {kind.__name__}, got {values!r}")
    known = {field.name: field for field in fields(kind)}
    required = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    if unknown := set(values) - set(known):
        raise UsageError(f"{where}: unknown {sorted(unknown)}, expected only {sorted(known)}")
    if missing := required - set(values):
        raise UsageError(f"{where}: missing {sorted(missing)}")
    hints = get_type_hints(kind)
    made = {name: _read(hints[name], value, f"{where}: {name}") for name, value in values.items()}
    return kind(**made)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that a result depends on, of those that are installed."""
    found = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _read(hint: Any, value: Any, where: str) -> Any:
    """Return a value as its type hint wants it."""
    if is_dataclass(hint):
        return from_json(hint, value, where)  # type: ignore[arg-type]
    if getattr(hint, "array_type", None) is np.ndarray:
        fine = isinstance(value, list) and all(_fits(float, item) and isfinite(item) for item in value)
        return np.array(_expect(fine, value, "a list of numbers", where), dtype=np.float64)
    if get_origin(hint) is Literal:
        return _expect(value in get_args(hint), value, f"one of {list(get_args(hint))}", where)
    if get_origin(hint) in (Union, types.UnionType):
        allowed = get_args(hint)
        plain = [kind for kind in allowed if isinstance(kind, type) and not is_dataclass(kind)]
        if value is not None and allowed[0] not in plain:  # a record or a tuple, or None
            return _read(allowed[0], value, where)
        return _expect(any(_fits(kind, value) for kind in plain), value, str(hint), where)
    if get_origin(hint) is tuple:
        _expect(isinstance(value, list) and len(value) == len(get_args(hint)), value, str(hint), where)
        return tuple(_read(kind, item, where) for kind, item in zip(get_args(hint), value, strict=True))
    if get_origin(hint) is list:
        _expect(isinstance(value, list), value, "a list", where)
        return [_read(get_args(hint)[0], item, where) for item in value]
    _expect(_fits(hint, value), value, hint.__name__, where)
    return float(value) if hint is float else value


def _fits(kind: type, value: Any) -> bool:
    """Tell whether a value is of a plain type; an int may stand for a float, a bool for nothing else."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _expect(fine: bool, value: Any, expected: str, where: str) -> Any:
    if not fine:
        raise UsageError(f"{where}: expected {expected}, got {value!r}")
    return value
