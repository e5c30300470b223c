"""Tokens of the frames of a store: read from a cache that was filled once, or made anew at every reading.

    config.json      which store, which encoder, how many tokens; put in place last, so it means finished
    tokens.npy       float16 [frames N V], memory-mapped, one row for each frame of the store
    metrics.jsonl    one line: frames, seconds, bytes, difference to encoding some frames again

Both ways give the same bits on the same device. The last bit of what an encoder gives depends on the size of
the batch that a frame is in, but not on the frames beside it: so all batches of a device have one size.
"""

import hashlib
import json
import mmap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float16, Int64, UInt8

from scope_wm.data.split import Splits, open_splits
from scope_wm.data.store import Store
from scope_wm.files import CONFIG, read_object
from scope_wm.model.architecture import EncoderReference
from scope_wm.model.encoder import Encoder, EncoderConfig
from scope_wm.model.encoders import open_encoder
from scope_wm.records import from_json, to_json
from scope_wm.types import UsageError

FORMAT = 1
KIND = "tokens"
TOKENS = "tokens.npy"
ON_THE_FLY = "on-the-fly"
CPU_BATCH = 8  # as fast as any on a core
BATCH = 64  # of other devices

Device = Literal["auto", "cpu"]


@runtime_checkable
class Tokens(Protocol):
    """The tokens of every frame of one store; `read` is what `Windows` takes."""

    encoder: EncoderReference
    num_tokens: int
    dim: int
    digest: str  # of what is read: the store's frames as this encoder sees them

    def read(self, numbers: Int64[np.ndarray, " n"]) -> Float16[np.ndarray, "n N V"]:
        """Return the tokens of frames by their numbers in the store."""
        ...


class FrameEncoder:
    """An encoder on its device, and the one way in which frames of a store go through it."""

    def __init__(self, config: EncoderConfig, device: torch.device) -> None:
        encoder = open_encoder(config).to(device)
        self.encoder: Encoder = encoder
        self.device = device
        self.reference = EncoderReference(config=config, digest=encoder.digest())

    def __reduce__(self) -> tuple[object, tuple[EncoderConfig, torch.device]]:
        """Load the encoder afresh in a spawned process."""
        return FrameEncoder, (self.reference.config, self.device)

    def __call__(self, frames: UInt8[np.ndarray, "n 224 224 3"]) -> Float16[np.ndarray, "n N V"]:
        """Return the tokens of frames, rounded."""
        size = CPU_BATCH if self.device.type == "cpu" else BATCH
        tokens = np.empty((len(frames), self.encoder.num_tokens, self.encoder.dim), np.float16)
        for first in range(0, len(frames), size):
            part = frames[first : first + size]
            full = np.resize(part, (size, *part.shape[1:]))  # a last batch that is short repeats its frames
            encoded = self.encoder(torch.from_numpy(full).to(self.device))
            tokens[first : first + size] = encoded[: len(part)].half().cpu().numpy()
        return tokens


@dataclass(frozen=True, kw_only=True)
class TokensConfig:
    """What the tokens of a store are: everything that they depend on, and their sizes."""

    store: str  # digest
    frames: int
    encoder: EncoderReference
    num_tokens: int
    dim: int

    @staticmethod
    def of(store: Store, encoder: FrameEncoder) -> "TokensConfig":
        """Describe the tokens that an encoder makes of a store."""
        return TokensConfig(
            store=store.digest,
            frames=store.num_frames,
            encoder=encoder.reference,
            num_tokens=encoder.encoder.num_tokens,
            dim=encoder.encoder.dim,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of all tokens."""
        return self.frames, self.num_tokens, self.dim

    @property
    def bytes(self) -> int:
        """Return the size of all tokens."""
        return self.frames * self.num_tokens * self.dim * 2

    @property
    def digest(self) -> str:
        """Identify the tokens, wherever the encoder was loaded from."""
        return hashlib.sha256(f"{self.store} {encoder_digest(self.encoder)}".encode()).hexdigest()[:16]

    def difference(self, other: "TokensConfig") -> str:
        """Tell in what the tokens of another config are others, or nothing if they are the same."""
        if self.store != other.store:
            return f"another store (hash {other.store}, expected {self.store})"
        if encoder_digest(self.encoder) != encoder_digest(other.encoder):
            return f"another encoder ({_named(other.encoder)}, expected {_named(self.encoder)})"
        return ""


class TokenCache:
    """Tokens from a finished cache; safe to use in forked and in spawned worker processes."""

    def __init__(self, path: Path, config: TokensConfig) -> None:
        self.path = path
        self.config = config
        self.encoder, self.digest = config.encoder, config.digest
        self.num_tokens, self.dim = config.num_tokens, config.dim
        try:
            mapped = np.load(path / TOKENS, mmap_mode="r")
        except (FileNotFoundError, ValueError) as error:
            raise UsageError(f"{path / TOKENS} is missing or truncated: encode again ({error})") from error
        if (mapped.shape, mapped.dtype) != (config.shape, np.float16):
            found = f"{mapped.dtype} {mapped.shape}"
            raise UsageError(f"{path / TOKENS}: expected float16 {config.shape}, got {found}")
        self._tokens, self._file, self._offset = mapped.view(np.ndarray), mapped.base, mapped.offset

    @staticmethod
    def open(path: Path) -> "TokenCache":
        """Open a finished cache."""
        if not (path / CONFIG).is_file():
            raise UsageError(f"{path} holds no finished tokens: scope-wm encode --out {path} ... makes them")
        return TokenCache(path, read_tokens_config(path / CONFIG))

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        """Map the file afresh in a spawned process."""
        return TokenCache.open, (self.path,)

    def check_store(self, store: Store) -> None:
        """Refuse a store of which these are not the tokens."""
        if self.config.store != store.digest:
            raise UsageError(
                f"{self.path} holds tokens of another store than {store.path}, or that one has grown "
                f"(hash {store.digest}, expected {self.config.store}): encode it into another directory"
            )

    def read(self, numbers: Int64[np.ndarray, " n"]) -> Float16[np.ndarray, "n N V"]:
        """Return the tokens of frames by their numbers in the store."""
        self._fetch(numbers)
        return self._tokens[numbers]

    def _fetch(self, numbers: Int64[np.ndarray, " n"]) -> None:
        """Ask the disk for all rows at once: one by one, as they are touched, takes four times as long."""
        row = self._tokens[0].nbytes
        for first in (self._offset + row * numbers).tolist():
            page = first - first % mmap.PAGESIZE
            self._file.madvise(mmap.MADV_WILLNEED, page, first + row - page)


class LiveTokens:
    """Tokens that are made when they are read: no disk, but the encoder's time at every reading."""

    def __init__(self, store: Store, encoder: FrameEncoder) -> None:
        config = TokensConfig.of(store, encoder)
        self.encoder, self.digest = config.encoder, config.digest
        self.num_tokens, self.dim = config.num_tokens, config.dim
        self._store, self._encode = store, encoder

    def read(self, numbers: Int64[np.ndarray, " n"]) -> Float16[np.ndarray, "n N V"]:
        """Return the tokens of frames by their numbers in the store."""
        return self._encode(self._store.frames(numbers))


class SplitTokens(NamedTuple):
    """Tokens of what is learned from, and of what is judged with."""

    training: Tokens
    validation: Tokens

    @property
    def digest(self) -> str:
        """Identify both."""
        return "-".join(dict.fromkeys((self.training.digest, self.validation.digest)))

    def check_encoder(self, expected: EncoderReference) -> None:
        """Refuse tokens of another encoder than a model sees with."""
        if encoder_digest(self.training.encoder) != encoder_digest(expected):
            found, wanted = _named(self.training.encoder), _named(expected)
            raise UsageError(f"the tokens are of another encoder than the model: {found}, expected {wanted}")


def open_tokens(where: str, data: Path, encoder: EncoderConfig, device: Device) -> SplitTokens:
    """Open the tokens of a store: those in a directory, or `on-the-fly` those that an encoder makes."""
    splits = open_splits(data)
    if where == ON_THE_FLY:
        live = FrameEncoder(encoder, choose_device(device))
        return SplitTokens(LiveTokens(splits.training.store, live), LiveTokens(splits.validation.store, live))
    caches = []
    for path, store in cached_stores(Path(where), splits).items():
        caches.append(TokenCache.open(path))
        caches[-1].check_store(store)
    return SplitTokens(caches[0], caches[-1])


def cached_stores(directory: Path, splits: Splits) -> dict[Path, Store]:
    """Return each store of the splits with where its cache is; two stores have the folders train and val."""
    training, validation = splits.training.store, splits.validation.store
    if training is validation:
        return {directory: training}
    return {directory / "train": training, directory / "val": validation}


def choose_device(device: Device) -> torch.device:
    """Return the accelerator of this machine, if it has one and may be used, else the processor."""
    if device == "cpu" or not torch.accelerator.is_available():
        return torch.device("cpu")
    # With its number, for the current device is another one in another thread.
    kind = torch.accelerator.current_accelerator(check_available=True)
    return torch.device(f"{kind}:{torch.accelerator.current_device_index()}")


def read_tokens_config(file: Path) -> TokensConfig:
    """Read what a cache holds, or is to hold."""
    header = read_object(file)
    if header.get("kind") != KIND:
        raise UsageError(f"{file} is not the config of {KIND}")
    if header.get("format") != FORMAT:
        raise UsageError(
            f"{file} has format {header.get('format')}, this version reads format {FORMAT}: encode again"
        )
    return from_json(TokensConfig, header.get("tokens"), str(file))


def encoder_digest(reference: EncoderReference) -> str:
    """Identify what an encoder does: its weights and how images enter it, not where it lies."""
    config = replace(reference.config, source="")
    return json.dumps(to_json(replace(reference, config=config)))


def _named(reference: EncoderReference) -> str:
    return f"{reference.config.source} with layer {reference.config.layer} and hash {reference.digest[:12]}"
