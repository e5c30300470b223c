"""Frozen encoders: an image to one token for each patch of a square grid.

    tokens = LayerNorm(layers_{1..l}(resize((image / 255 - mean) / std)))        patches only: [B N V]

Any callable of the `Encoder` form serves. `HubEncoder` is whatever patch transformer `transformers` can load,
such as DINOv2: class and register tokens are dropped, layers after the chosen one left out. Offline first:
a directory never touches the network, a hub id does so only when it is not in the local cache.
"""

import hashlib
import importlib
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from torch import Tensor, nn

from scope_wm.files import CONFIG
from scope_wm.types import IMAGE_SIZE, UsageError

DIRECTORY_VARIABLE = "SCOPE_WM_DINOV2"
Colour = tuple[float, float, float]


@runtime_checkable
class Encoder(Protocol):
    """A frozen map from images to visual tokens; it runs where its weights are."""

    name: str
    num_tokens: int
    dim: int

    def __call__(self, images: UInt8[Tensor, "B 224 224 3"]) -> Float[Tensor, "B N V"]:
        """Return the tokens of every image, row by row of the grid."""
        ...

    def digest(self) -> str:
        """Return the hash of the weights, by which a checkpoint knows its encoder again."""
        ...


class Frozen(nn.Module):
    """A network that nothing trains: no gradient, and evaluation mode whatever `train` says."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "Frozen":
        """Stay in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the network."""
        return self.network(*inputs, **options)


def normalise(images: Tensor, mean: Colour, std: Colour) -> Float[Tensor, "B 3 224 224"]:
    """Return uint8 images as (image / 255 - mean) / std, channels first."""
    if images.dtype != torch.uint8 or images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3):
        raise ValueError(
            f"expected uint8 images of shape (B, {IMAGE_SIZE}, {IMAGE_SIZE}, 3), "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )
    # Over whole rows of pixels: over three channels at a time it takes twice as long.
    scale = 255 * torch.tensor(std, device=images.device).repeat(IMAGE_SIZE)
    shift = 255 * torch.tensor(mean, device=images.device).repeat(IMAGE_SIZE)
    rows = (images.flatten(2) - shift) / scale
    return rows.unflatten(2, (IMAGE_SIZE, 3)).permute(0, 3, 1, 2)


def content_hash(module: nn.Module) -> str:
    """Return the SHA-256 of a module's weights, as float32, whatever their names.

    Names are left out because `transformers` renames its layers between versions.
    """
    parts = []
    for tensor in module.state_dict().values():
        values = tensor.detach().to("cpu", torch.float32).contiguous()
        parts.append(hashlib.sha256(repr(tuple(values.shape)).encode() + values.numpy().tobytes()).digest())
    return hashlib.sha256(b"".join(sorted(parts))).hexdigest()


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Which encoder, and for one of the hub also how images enter and tokens leave it.

    `source` is a hub id, the directory of such a model or of a student, or `student`: the one shipped here.
    """

    source: str = field(default_factory=lambda: os.environ.get(DIRECTORY_VARIABLE, "facebook/dinov2-small"))
    layer: int | None = None
    grid: int = 14
    mean: Colour = (0.5, 0.5, 0.5)
    std: Colour = (0.5, 0.5, 0.5)


class HubEncoder(nn.Module):
    """A patch transformer from the hub or a directory; `layer` None means its last."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        backbone = load_backbone(config)
        self.config = config
        self.name = config.source
        self.num_tokens = config.grid**2
        self.dim: int = backbone.config.hidden_size
        self.size: int = config.grid * backbone.config.patch_size
        self.backbone = Frozen(backbone)
        # Some models take a picture of another size than their own only when told to.
        resizable = "interpolate_pos_encoding" in inspect.signature(backbone.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if resizable else {}

    def forward(self, images: Tensor) -> Tensor:
        """Return the patch tokens; class and register tokens come first in the sequence and are dropped."""
        pixels = normalise(images, self.config.mean, self.config.std)
        pixels = F.interpolate(pixels, size=(self.size, self.size), mode="bilinear", antialias=True)
        tokens: Tensor = self.backbone(pixels, **self.options).last_hidden_state
        if tokens.ndim != 3 or tokens.shape[1] < self.num_tokens:
            raise ValueError(
                f"expected at least {self.num_tokens} tokens from {self.name}, got {tuple(tokens.shape)}"
            )
        return tokens[:, -self.num_tokens :]

    def digest(self) -> str:
        """Return the hash of the layers that are used."""
        return content_hash(self.backbone)


def load_backbone(config: EncoderConfig) -> Any:
    """Load the layers that are needed, from a directory, else the local cache, else the hub."""
    source, directory = config.source, Path(config.source).expanduser()
    if directory.is_dir():
        if not (directory / CONFIG).is_file():
            raise UsageError(f"expected a model in {directory}, found no {CONFIG}")
        try:
            return _read(str(directory), config.layer, local_files_only=True)
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"{directory} does not hold a complete model with safetensors weights: {error}"
            ) from error
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise UsageError(
            f"expected an encoder's directory or hub id, such as facebook/dinov2-small, got {source}"
        )
    try:
        return _read(source, config.layer, local_files_only=True)
    except OSError:
        pass  # not in the cache: the network is next
    try:
        return _read(source, config.layer, local_files_only=False)
    except OSError as error:
        raise UsageError(
            f"{source} is not a directory, not in the local cache, and could not be downloaded. Get it where "
            f"there is a network with `hf download {source}` (once `huggingface-cli download`), or name the "
            f"directory of a copy; {DIRECTORY_VARIABLE} sets the directory that is used when none is named"
        ) from error


def _read(source: str, layer: int | None, *, local_files_only: bool) -> Any:
    """Read a model, cut after `layer`, and refuse what is not a patch transformer with all its weights."""
    transformers = import_transformers()
    where = {"local_files_only": local_files_only, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(source, **where)
    depth, patch = getattr(config, "num_hidden_layers", None), getattr(config, "patch_size", None)
    if not isinstance(depth, int) or not isinstance(patch, int):
        raise UsageError(f"expected a patch transformer, got {source} of type {config.model_type!r}")
    if layer is not None and not 1 <= layer <= depth:
        raise UsageError(f"expected a layer between 1 and {depth} of {source}, got {layer}")
    config.num_hidden_layers = layer or depth
    with quiet(transformers.utils.logging):
        model, loaded = transformers.AutoModel.from_pretrained(
            source, config=config, use_safetensors=True, output_loading_info=True, **where
        )
    if hasattr(model, "pooler"):
        model.pooler = None  # it does not touch the tokens, and many files lack it
    if absent := {name for name in loaded["missing_keys"] if not name.startswith("pooler.")}:
        raise UsageError(f"{source} lacks {len(absent)} weights of its layers, such as {min(absent)}")
    return model.float()


def import_transformers() -> ModuleType:
    """Return transformers, or say how to install it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError("an encoder of the hub needs: pip install 'scope-wm[hub]'") from error


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Keep `transformers` from listing the layers that are left out on purpose, and from showing bars."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
