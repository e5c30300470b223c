"""What the small encoder learns from: frames of several tasks, and a large encoder's tokens of them.

    y = PCA(teacher(frame)),    frame of a store, every second one slightly altered

The alterations (a shift, brightness, contrast, colour) keep the student from being a lookup table of the
tasks' few scenes; the teacher sees the same altered frame, so no target is wrong. Blocks of frames and
targets are files, complete or not there, so that a killed run goes on where it was.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import safetensors.torch
import torch
from jaxtyping import Bool, Float16, Int64, UInt8
from torch import Tensor, nn

from scope_wm.data.split import Split, open_splits
from scope_wm.files import write_file
from scope_wm.model.encoder import Encoder
from scope_wm.model.reduced import PCA, fit_change_pca
from scope_wm.types import Image, UsageError

BLOCK = 250
BATCH = 25
PCA_FRAMES = 300
LARGEST_SHIFT = 12

Advance = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some frames of one store: what is learned from, or held out."""

    name: str
    split: Split
    numbers: Int64[np.ndarray, " n"]
    altered: bool
    seed: int

    def blocks(self) -> Iterator[tuple[str, Int64[np.ndarray, " block"]]]:
        """Yield the name of every block and the rows of the part that it holds."""
        for first in range(0, len(self.numbers), BLOCK):
            rows = np.arange(first, min(first + BLOCK, len(self.numbers)))
            yield f"{self.name}-{first // BLOCK:04d}", rows

    def is_altered(self, rows: Int64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Tell which frames are altered: every second one, or none."""
        return (rows % 2 == 1) & self.altered

    def frames(self, rows: Int64[np.ndarray, " n"]) -> UInt8[np.ndarray, "n 224 224 3"]:
        """Read frames, some altered, each in its own way that depends on the seed alone."""
        images = self.split.store.frames(self.numbers[rows])
        for place in np.flatnonzero(self.is_altered(rows)):
            images[place] = alter(images[place], np.random.default_rng([self.seed, int(rows[place])]))
        return images


class Targets:
    """Frames and targets of all blocks, memory-mapped; which part a row belongs to, whether it is altered."""

    def __init__(self, directory: Path, parts: list[Part]) -> None:
        names = [name for part in parts for name, _ in part.blocks()]
        self._frames = [np.load(directory / f"{name}-frames.npy", mmap_mode="r") for name in names]
        self._tokens = [np.load(directory / f"{name}-tokens.npy", mmap_mode="r") for name in names]
        self._first = np.cumsum([0] + [len(tokens) for tokens in self._tokens])
        self.part = np.repeat(np.arange(len(parts)), [len(part.numbers) for part in parts])
        self.altered = np.concatenate([part.is_altered(np.arange(len(part.numbers))) for part in parts])

    def __len__(self) -> int:
        """Return how many frames there are."""
        return int(self._first[-1])

    def batch(self, rows: Int64[np.ndarray, " n"]) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames, targets, and the parts that they are from."""
        blocks = np.searchsorted(self._first, rows, side="right") - 1
        places = list(zip(blocks, rows - self._first[blocks], strict=True))
        frames = np.stack([self._frames[block][row] for block, row in places])
        tokens = np.stack([self._tokens[block][row] for block, row in places])
        return (
            torch.from_numpy(frames),
            torch.from_numpy(tokens).float(),
            torch.from_numpy(self.part[rows]),
        )


def choose_parts(stores: list[Path], frames: int, held_out: int, seed: int) -> tuple[list[Part], list[Part]]:
    """Choose frames of every store's training episodes, and clean ones of its validation episodes."""
    training: list[Part] = []
    validation: list[Part] = []
    for path in stores:
        splits = open_splits(path)
        name = splits.training.store.config.task
        if any(part.name.startswith(f"{name}-") for part in training):
            raise UsageError(
                f"expected one store of each task, got two of {name}: collect one that is larger"
            )
        for split, count, altered, kind, into in (
            (splits.training, frames, True, "training", training),
            (splits.validation, held_out, False, "validation", validation),
        ):
            numbers = spread(split, count, np.random.default_rng([seed, len(into)]))
            into.append(Part(name=f"{name}-{kind}", split=split, numbers=numbers, altered=altered, seed=seed))
    return training, validation


def spread(split: Split, count: int, rng: np.random.Generator) -> Int64[np.ndarray, " n"]:
    """Choose frame numbers of some episodes at random, each at most once."""
    store = split.store
    numbers = np.concatenate(
        [store.first[episode] + np.arange(store.lengths[episode]) for episode in split.episodes]
    )
    return rng.permutation(numbers)[:count]


def alter(image: Image, rng: np.random.Generator) -> Image:
    """Shift a frame by some pixels and change its light a little."""
    shift = rng.integers(-LARGEST_SHIFT, LARGEST_SHIFT, size=2, endpoint=True)
    matrix = np.array([[1.0, 0.0, shift[0]], [0.0, 1.0, shift[1]]])
    moved = cv2.warpAffine(image, matrix, image.shape[1::-1], borderMode=cv2.BORDER_REPLICATE)
    gain = rng.uniform(0.8, 1.2) * rng.uniform(0.92, 1.08, size=3)
    offset = rng.uniform(-20.0, 20.0)
    return np.clip(np.rint(moved * gain + offset), 0, 255).astype(np.uint8)


def fit_targets_pca(teacher: Encoder, parts: list[Part], dim: int, file: Path, advance: Advance) -> PCA:
    """Return the PCA of changes in the teacher's tokens of clean frames; keep it in a file."""
    pca = PCA(teacher.dim, dim)
    if not file.is_file():
        scenes = []
        for part in parts:
            frames = part.split.store.frames(part.numbers[:PCA_FRAMES])
            scenes.append(torch.from_numpy(_encode(teacher, frames)))
            advance()
        write_file(file, safetensors.torch.save(fit_change_pca(scenes, dim).state_dict()))
    pca.load_state_dict(safetensors.torch.load_file(file))
    return pca.to(device_of(teacher))


def make_targets(encoder: Encoder, parts: list[Part], directory: Path, advance: Advance) -> None:
    """Write the blocks of frames and targets that are not there yet."""
    for part in parts:
        for name, rows in part.blocks():
            file = directory / f"{name}-tokens.npy"
            if not file.is_file():
                frames = part.frames(rows)
                write_file(directory / f"{name}-frames.npy", _npy(frames))
                write_file(file, _npy(_encode(encoder, frames)))
            advance()


def _encode(encoder: Encoder, frames: UInt8[np.ndarray, "n 224 224 3"]) -> Float16[np.ndarray, "n N V"]:
    batches = [torch.from_numpy(frames[i : i + BATCH]) for i in range(0, len(frames), BATCH)]
    return torch.cat([encoder(batch.to(device_of(encoder))).half() for batch in batches]).cpu().numpy()


def device_of(encoder: Encoder) -> torch.device:
    """Return where an encoder is; one without weights is on the processor."""
    weights = encoder.parameters() if isinstance(encoder, nn.Module) else iter(())
    return next((weight.device for weight in weights), torch.device("cpu"))


def _npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()
