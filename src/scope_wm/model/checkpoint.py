"""A model directory: `config.json` says everything, `model.safetensors` holds every weight. No pickle.

It is self-contained (task, frameskip, statistics, architecture, K), so that loading needs no other flag. Only
the frozen encoder, which many models share, is by reference: its name and the hash of its weights.
"""

import importlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from scope_wm.files import CONFIG
from scope_wm.model.architecture import ModelConfig, build
from scope_wm.model.directory import WEIGHTS, load_weights, read_kind, write_directory
from scope_wm.model.encoder import Encoder
from scope_wm.model.encoders import open_encoder
from scope_wm.model.reduced import PCA, ReducedEncoder
from scope_wm.model.shipped import is_shipped_name, shipped_model, shipped_text
from scope_wm.model.world_model import WorldModel
from scope_wm.records import from_json
from scope_wm.types import UsageError

KIND = "world-model"


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
        """Load a model from a directory, or by its shipped name or hub id, ready to plan with."""
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

    def save_pretrained(
        self,
        directory: Path,
        dtype: torch.dtype = torch.float32,
        made: dict[str, Any] | None = None,
    ) -> None:
        """Write the model directory; half precision halves it, `made` tells how the model was trained."""
        write_directory(directory, KIND, self.config, self.parts(), dtype, made)

    def parts(self) -> nn.ModuleDict:
        """Return everything whose weights are in the file, under the names that they have there."""
        pca = {} if self.pca is None else {"pca": self.pca}
        return nn.ModuleDict({"world_model": self.world_model, **pca})

    def load_encoder(self, source: str | None = None) -> Encoder:
        """Load the frozen encoder, from `source` if it is not where it was, and check that it is the same."""
        reference = self.config.encoder
        config = reference.config if source is None else replace(reference.config, source=source)
        encoder = open_encoder(config)
        if encoder.digest() != reference.digest:
            raise UsageError(
                f"{config.source} has other weights than the encoder this model was trained with "
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


def read_header(directory: Path) -> tuple[dict[str, Any], ModelConfig]:
    """Read and check config.json: the header around the model's config, and the config."""
    header = read_kind(directory, KIND)
    return header, from_json(ModelConfig, header["model"], str(directory / CONFIG))


def import_hub() -> ModuleType:
    """Return huggingface_hub, or say how to install it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UsageError("the hub needs: pip install 'scope-wm[hub]'") from error


def model_directory(source: str) -> Path:
    """Return where a model is on this disk: a directory, a shipped model, or what the hub has by that id."""
    path = Path(source).expanduser()
    if is_shipped_name(source) and not (path / CONFIG).is_file():
        return shipped_model(source)
    if path.is_dir():
        return path
    there_are = f"shipped models are: {shipped_text()}"
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise UsageError(f"there is no model directory {source}; {there_are}")
    try:
        hub = import_hub()
    except UsageError as error:
        raise UsageError(f"there is no directory {source}; {there_are}; {error}") from error
    try:
        return Path(hub.snapshot_download(source, allow_patterns=[CONFIG, WEIGHTS]))
    except (hub.errors.HFValidationError, OSError) as error:
        raise UsageError(
            f"there is no directory {source}, and the hub gave no model of that name ({error}); {there_are}"
        ) from error
