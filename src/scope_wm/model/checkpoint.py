"""A model directory: `config.json` says everything, `model.safetensors` holds every weight. No pickle.

It is self-contained (task, frameskip, statistics, architecture, K), so that loading needs no other flag. Only
a hub encoder is by reference: its name and the hash of its weights. The config is put in place last and holds
the hash of the weights, so a directory is complete and unaltered, or refused.
"""

import hashlib
import importlib
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
import torch
from torch import nn

from scope_wm.files import json_bytes, write_files
from scope_wm.model.architecture import ModelConfig, build
from scope_wm.model.encoder import Encoder, HubEncoder
from scope_wm.model.reduced import PCA, ReducedEncoder
from scope_wm.model.world_model import WorldModel
from scope_wm.records import from_json, to_json
from scope_wm.types import UsageError

KIND, FORMAT = "world-model", 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A world model together with everything that tells how to use it."""

    config: ModelConfig
    world_model: WorldModel
    pca: PCA | None = None

    @staticmethod
    def from_pretrained(
        source: str | Path, *, k: int | None = None, allow_other_k: bool = False
    ) -> "TrainedModel":
        """Load a model from a directory, or from the hub by its id, ready to plan with."""
        directory = model_directory(str(source))
        header, config = read_header(directory)
        if k not in (None, config.selector.k):
            if not allow_other_k:
                raise UsageError(
                    f"{source} was trained with K = {config.selector.k}, and another K breaks it (in the "
                    f"paper, 94 % success become 14 %): train one with K = {k}, or allow another K"
                )
            config = replace(config, selector=replace(config.selector, k=k))
        channels = config.encoder.pca_channels
        pca = None if channels is None else PCA(channels, config.tokens.visual)
        model = TrainedModel(config=config, world_model=build(config), pca=pca)
        load_weights(model.parts(), directory / WEIGHTS, header["weights"])
        model.world_model.eval()
        return model

    def save_pretrained(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the model directory; half precision halves it."""
        write_directory(directory, KIND, self.config, self.parts(), dtype)

    def parts(self) -> nn.ModuleDict:
        """Return everything whose weights are in the file, under the names that they have there."""
        pca = {} if self.pca is None else {"pca": self.pca}
        return nn.ModuleDict({"world_model": self.world_model, **pca})

    def load_encoder(self, source: str | None = None) -> Encoder:
        """Load the frozen encoder, from `source` if it is not where it was, and check that it is the same."""
        reference = self.config.encoder
        hub = reference.hub if source is None else replace(reference.hub, source=source)
        encoder = HubEncoder(hub)
        if encoder.digest() != reference.digest:
            raise UsageError(
                f"{hub.source} has other weights than the encoder this model was trained with "
                f"(hash {encoder.digest()[:12]}, expected {reference.digest[:12]}): name the right one"
            )
        return encoder if self.pca is None else ReducedEncoder(encoder, self.pca)

    def push_to_hub(self, repository: str, *, private: bool = False) -> str:
        """Upload the model to the hub, making the repository if needed, and return its address."""
        hub = import_hub()
        hub.create_repo(repository, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder))
            return str(hub.upload_folder(repo_id=repository, folder_path=folder))


def write_directory(
    directory: Path, kind: str, config: Any, module: nn.Module, dtype: torch.dtype = torch.float32
) -> None:
    """Write a module and its config; whatever fails before both are on the disk leaves the old ones."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.to("cpu", dtype).contiguous() for name, value in module.state_dict().items()}
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    header = {"kind": kind, "format": FORMAT, "weights": _digest(content), "model": to_json(config)}
    write_files({directory / WEIGHTS: content, directory / CONFIG: json_bytes(header)})


def read_header(directory: Path) -> tuple[dict[str, Any], ModelConfig]:
    """Read and check config.json: the header around the model's config, and the config."""
    header = read_kind(directory, KIND)
    return header, from_json(ModelConfig, header["model"], str(directory / CONFIG))


def read_kind(directory: Path, kind: str) -> dict[str, Any]:
    """Read the header of a directory that must hold a module of this kind."""
    file = directory / CONFIG
    if not file.is_file():
        raise UsageError(f"{directory} is not a {kind}: it has no {CONFIG}")
    try:
        header = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON ({error}): it is damaged or half copied") from error
    if not isinstance(header, dict) or header.get("kind") != kind:
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


def import_hub() -> ModuleType:
    """Return huggingface_hub, or say how to install it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UsageError("the hub needs: pip install 'scope-wm[hub]'") from error


def model_directory(source: str) -> Path:
    """Return where a model is on this disk, fetching it from the hub if it is named by a hub id."""
    if Path(source).is_dir():
        return Path(source)
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise UsageError(f"there is no model directory {source}")
    hub = import_hub()
    try:
        return Path(hub.snapshot_download(source, allow_patterns=[CONFIG, WEIGHTS]))
    except (hub.errors.HFValidationError, OSError) as error:
        raise UsageError(
            f"there is no directory {source}, and the hub gave no model of that name: {error}"
        ) from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
