"""A directory with one trained module: `config.json` says everything, `model.safetensors` holds the weights.

The config is put in place last and holds the hash of the weights, so a directory is complete and unaltered,
or refused. No pickle is written or read. `made` in the config tells how the module was made, if it was
trained here: the stage with its settings, the hashes of its inputs, the versions.
"""

import hashlib
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from scope_wm.files import CONFIG, json_bytes, read_object, write_files
from scope_wm.records import to_json
from scope_wm.types import UsageError

FORMAT = 1
WEIGHTS = "model.safetensors"


def write_directory(
    directory: Path,
    kind: str,
    config: Any,
    module: nn.Module,
    dtype: torch.dtype = torch.float32,
    made: dict[str, Any] | None = None,
) -> None:
    """Write a module and its config; whatever fails before both are on the disk leaves the old ones."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.to("cpu", dtype).contiguous() for name, value in module.state_dict().items()}
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    header = {"kind": kind, "format": FORMAT, "weights": _digest(content), "model": to_json(config)}
    header |= {"made": made} if made else {}
    write_files({directory / WEIGHTS: content, directory / CONFIG: json_bytes(header)})


def read_kind(directory: Path, kind: str) -> dict[str, Any]:
    """Read the header of a directory that must hold a module of this kind."""
    file = directory / CONFIG
    if not file.is_file():
        raise UsageError(f"{directory} is not a {kind}: it has no {CONFIG}")
    header = read_object(file)
    if header.get("kind") != kind:
        raise UsageError(f"{file} is not the config of a {kind}")
    if header.get("format") != FORMAT:
        raise UsageError(
            f"{file} has model format {header.get('format')}, this version reads format {FORMAT}: "
            "update scope-wm, or save the model again with this version"
        )
    if missing := {"weights", "model"} - set(header):
        raise UsageError(f"{file}: missing {sorted(missing)}")
    return header


def load_weights(module: nn.Module, file: Path, digest: str) -> None:
    """Fill a module from a file whose content has this hash."""
    if not file.is_file():
        raise UsageError(f"{file} is missing: the model directory is not complete")
    content = file.read_bytes()
    if _digest(content) != digest:
        raise UsageError(
            f"{file} is not the one that its {CONFIG} was written with: truncated, altered or replaced"
        )
    try:
        module.load_state_dict(safetensors.torch.load(content))
    except RuntimeError as error:
        raise UsageError(f"{file} does not fit its {CONFIG}, which was altered: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
