"""Encode: make the tokens of every frame of a store, once.

Blocks of frames go into place in a file whose room was taken from the disk before, then their number is
ticked off: a killed run goes on with the blocks that are not, and ends with the same bits. Some frames are
encoded again at the end and compared, before the cache counts as finished. While it is not, its directory has

    unfinished.json    what config.json will be, so that only the same command goes on
    done               one byte for each block: 1 when it is in tokens.npy, and on the disk
"""

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from rich.filesize import decimal

from scope_wm.data.progress import progress
from scope_wm.data.split import open_splits
from scope_wm.data.store import Store
from scope_wm.data.token_cache import (
    FORMAT,
    KIND,
    TOKENS,
    Device,
    FrameEncoder,
    TokenCache,
    TokensConfig,
    cached_stores,
    choose_device,
    read_tokens_config,
)
from scope_wm.data.workers import Report, run_in_processes, usable_cores
from scope_wm.files import CONFIG, METRICS, UNFINISHED, is_unused, only_writer, sweep, write_file, write_json
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.encoders import SHIPPED
from scope_wm.model.student import StudentEncoder
from scope_wm.records import installed_versions, to_json
from scope_wm.types import MadeOtherwise, UsageError

DONE = "done"
PACKAGES = ("scope-wm", "torch", "numpy")
BLOCK = 64  # frames
CHECKED = 32  # frames that are encoded again
SPARE = 1.05  # of the room that the tokens take


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    """Encode every frame of a store, once, into tokens that training reads.

    After an interruption the same command goes on. A directory with the stores `train` and `val` gives one
    with the caches `train` and `val`.

    Example: scope-wm encode --data data/push_t --out tokens/push_t
    """

    data: Path
    """the store"""
    out: Path
    """directory of the tokens"""
    encoder: str = SHIPPED
    """directory or hub id of an encoder; student: the one that is shipped"""
    layer: int | None = None
    """layer of a hub's encoder whose tokens are taken; None: its last"""
    device: Device = "auto"
    """auto: the accelerator of this machine, if it has one"""
    workers: int | None = None
    """processes, where no accelerator encodes; None: one for every core"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"expected --workers of at least 1, got {self.workers}")


class Job(NamedTuple):
    """The blocks that one worker makes."""

    directory: Path
    store: Store
    encoder: FrameEncoder
    blocks: list[int]


def encode(settings: EncodeSettings) -> None:
    """Make the tokens that are not there yet."""
    encoder = open_frame_encoder(settings)
    stores = cached_stores(settings.out, open_splits(settings.data))
    configs = {path: TokensConfig.of(store, encoder) for path, store in stores.items()}
    pending = [path for path, config in configs.items() if not is_finished(path, config)]
    expect_room(settings.out, {path: configs[path] for path in pending})
    for path in pending:
        path.mkdir(parents=True, exist_ok=True)
        with only_writer(path):
            if is_finished(path, configs[path]):  # by another process, just now
                continue
            begin(path, configs[path])
            began = time.perf_counter()
            encoded = fill(path, stores[path], encoder, settings.workers)
            seconds = round(time.perf_counter() - began, 3)
            finish(path, {"encoded": encoded, "seconds": seconds}, stores[path], encoder)
    print(f"{settings.out} is finished")


def is_encoded(settings: EncodeSettings) -> bool:
    """Tell whether all tokens are there; refuse a directory of other tokens."""
    encoder, stores = open_frame_encoder(settings), cached_stores(settings.out, open_splits(settings.data))
    return all(is_finished(path, TokensConfig.of(store, encoder)) for path, store in stores.items())


def open_frame_encoder(settings: EncodeSettings) -> FrameEncoder:
    """Load the encoder onto the device that is meant."""
    config = EncoderConfig(source=settings.encoder, layer=settings.layer)
    encoder = FrameEncoder(config, choose_device(settings.device))
    if isinstance(encoder.encoder, StudentEncoder) and settings.layer is not None:
        raise UsageError(f"--layer is for an encoder of the hub: {settings.encoder} is a student")
    return encoder


def is_finished(directory: Path, config: TokensConfig) -> bool:
    """Tell whether a cache is complete; refuse one of other tokens, and a directory of something else."""
    if config.frames == 0:
        raise UsageError(f"there are no episodes to encode for {directory} yet: collect some")
    for name in (CONFIG, UNFINISHED):
        file = directory / name
        if file.is_file():
            if difference := config.difference(read_tokens_config(file)):
                raise MadeOtherwise(
                    f"{directory} is of {difference}: name another --out, or remove that directory"
                )
            return name == CONFIG
    if directory.exists() and not (directory.is_dir() and is_unused(directory)):
        raise UsageError(f"expected --out to be new, empty or of tokens, {directory} holds something else")
    return False


def expect_room(out: Path, configs: dict[Path, TokensConfig]) -> None:
    """State how large the tokens will be, and refuse if the disk has no room for them."""
    # An unfinished one has taken its room.
    new = [config for path, config in configs.items() if not (path / DONE).is_file()]
    if not new:
        return
    place = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    frames, needed = sum(config.frames for config in new), sum(config.bytes for config in new)
    size = f"{frames} frames x {decimal(needed // frames)} = {decimal(needed)} in {out}"
    print(f"{size} ({decimal(free)} free)")
    if free < SPARE * needed:
        raise UsageError(
            f"the disk is too small: {size}, {decimal(free)} are free. Name an --out on another one, "
            "collect fewer episodes, or keep no tokens: --tokens on-the-fly when training, --on-the-fly of "
            "scope-wm run"
        )


def begin(directory: Path, config: TokensConfig) -> None:
    """Take the room on the disk, unless a run before did."""
    sweep(directory)
    if (directory / DONE).is_file():
        return
    versions = installed_versions(PACKAGES)
    header = {"kind": KIND, "format": FORMAT, "tokens": to_json(config), "versions": versions}
    write_json(directory / UNFINISHED, header)
    file = directory / TOKENS
    np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=config.shape)
    with file.open("r+b") as opened:
        # Else a disk that fills up later would kill the process: a memory map cannot tell it otherwise.
        os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
        os.fsync(opened.fileno())
    write_file(directory / DONE, bytes(-(-config.frames // BLOCK)))


def fill(directory: Path, store: Store, encoder: FrameEncoder, workers: int | None) -> int:
    """Make the blocks that are missing, and return how many frames they have."""
    done = np.fromfile(directory / DONE, np.uint8)
    pending = np.flatnonzero(done == 0).tolist()
    allowed = (workers or usable_cores()) if encoder.device.type == "cpu" else 1
    count = min(allowed, len(pending))
    jobs = [Job(directory, store, encoder, pending[first::count]) for first in range(count)]
    with progress(f"blocks of {BLOCK} frames", len(done), len(done) - len(pending)) as advance:
        if count > 1:
            run_in_processes(encode_on_one_thread, jobs, lambda _: advance())
        elif count == 1:
            encode_blocks(jobs[0], lambda _: advance())
    return sum(len(frames_of(block, store)) for block in pending)


def encode_on_one_thread(job: Job, report: Report) -> None:
    """Encode in a process beside others: the other cores have theirs."""
    torch.set_num_threads(1)
    encode_blocks(job, report)


def encode_blocks(job: Job, report: Report) -> None:
    """Encode one block after another; tick each off when it is on the disk, and report it."""
    tokens = np.lib.format.open_memmap(job.directory / TOKENS, mode="r+")
    done = np.memmap(job.directory / DONE, np.uint8, "r+")
    for block in job.blocks:
        numbers = frames_of(block, job.store)
        tokens[numbers] = job.encoder(job.store.frames(numbers))
        tokens.flush()
        done[block] = 1
        report(block)


def frames_of(block: int, store: Store) -> Int64[np.ndarray, " block"]:
    """Return the numbers of the frames of a block."""
    return np.arange(block * BLOCK, min((block + 1) * BLOCK, store.num_frames))


def finish(directory: Path, figures: dict[str, Any], store: Store, encoder: FrameEncoder) -> None:
    """Check the tokens against encoding again, then let them count as finished."""
    config = TokensConfig.of(store, encoder)
    difference = check(TokenCache(directory, config), store, encoder)
    line = {"frames": config.frames, **figures, "bytes": config.bytes, "difference": difference}
    write_file(directory / METRICS, (json.dumps(line) + "\n").encode())
    (directory / UNFINISHED).replace(directory / CONFIG)
    (directory / DONE).unlink()


def check(cache: TokenCache, store: Store, encoder: FrameEncoder) -> float:
    """Return the largest difference to encoding some frames again, if float16 can explain it."""
    numbers = np.unique(np.linspace(0, store.num_frames - 1, CHECKED).astype(np.int64))
    kept, again = cache.read(numbers), encoder(store.frames(numbers))
    if not (np.isfinite(kept).all() and np.isfinite(again).all()):
        raise OSError(
            f"{encoder.reference.config.source} gives tokens that are not finite numbers of float16"
        )
    difference, largest = np.abs(kept - again).max(), np.abs(again).max()
    if difference > np.finfo(np.float16).eps * largest:
        raise OSError(
            f"{cache.path} departs by {difference:.3g} from encoding again, where the largest value is "
            f"{largest:.3g}: the tokens are damaged. Remove that directory and encode again"
        )
    return float(difference)
