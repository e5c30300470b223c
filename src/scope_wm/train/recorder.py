"""What a training tells and keeps while it runs: progress, metrics.jsonl, TensorBoard, checkpoints.

A line of metrics.jsonl is one JSON object with `step`; `loss` is the mean of the last 100 steps. A resumed
run takes back the lines that were written after its checkpoint, so that the file of a killed run reads like
that of one that was not. Weights & Biases are written to when asked.
"""

import importlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch.utils.tensorboard import SummaryWriter

from scope_wm.data.progress import progress
from scope_wm.files import METRICS, write_file
from scope_wm.train.state import State
from scope_wm.types import UsageError


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a training is run; the result does not depend on it but for rounding, coarse in bfloat16.

    And but for what is drawn at random, as by dropout: it differs with the parts of a batch.
    """

    device: Literal["auto", "cpu"] = "auto"
    """auto: the accelerator of this machine, if it has one"""
    compile: bool = False
    """compile the model first"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """of products; bfloat16 is faster on GPUs, and on processors that have it (avx512_bf16)"""
    parts: int = 1
    """parts of a batch that are computed one after the other, if a whole one does not fit in memory"""
    checkpoint_seconds: float = 60.0
    """time between checkpoints"""
    log_every: int = 20
    """steps between lines of metrics"""
    wandb: str | None = None
    """project of Weights & Biases to write to as well"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name in ("parts", "log_every"):
            if getattr(self, name) < 1:
                option = name.replace("_", "-")
                raise UsageError(f"expected --run.{option} of at least 1, got {getattr(self, name)}")


class Recorder:
    """Record a training in its directory; a silent one, of a process that is not the first, does nothing."""

    def __init__(self, directory: Path, run: RunSettings, state: State, steps: int, *, silent: bool) -> None:
        self.directory = directory
        self.run = run
        self.state = state
        self.steps = steps
        self.silent = silent
        self._open = ExitStack()

    def __enter__(self) -> "Recorder":
        """Open what is written to, and go back to where the checkpoint was."""
        if not self.silent:
            self._wandb = _start_wandb(self.run.wandb, self.directory) if self.run.wandb else None
            if self._wandb is not None:
                self._open.callback(self._wandb.finish)
            self._file = self._open.enter_context((self.directory / METRICS).open("ab", buffering=0))
            self._file.truncate(self.state.log_size)
            self._file.seek(0, os.SEEK_END)
            board: Any = SummaryWriter(str(self.directory / "tensorboard"), purge_step=self.state.step)
            self._board = self._open.enter_context(board)
            self._advance = self._open.enter_context(progress("steps", self.steps, self.state.step))
            self._saved = self._told = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Keep where the training is, unless it was torn out of a step, and close everything."""
        if not self.silent and kind is None:
            self._save()
        self._open.close()

    def step(self, *, loss: float, rate: float) -> None:
        """Tell that a step was made, and keep it now and then."""
        if self.silent:
            return
        self._advance(note=f"loss {loss:.4g}")
        now = time.monotonic()
        if self.state.step % self.run.log_every == 0 or self.state.step == self.steps:
            self.figures({"loss": loss, "rate": rate, "seconds": round(now - self._told, 3)})
            self._told = now
        if now - self._saved >= self.run.checkpoint_seconds and self.state.watch.sound:
            self._save()

    def figures(self, values: Mapping[str, float]) -> None:
        """Write figures of the present step."""
        if self.silent:
            return
        step = self.state.step
        self._file.write((json.dumps({"step": step, **values}) + "\n").encode())
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(values), step=step)

    def _save(self) -> None:
        self.state.log_size = self._file.tell()
        self.state.save(self.directory)
        self._saved = time.monotonic()


def read_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of a stage's metrics."""
    return [json.loads(line) for line in (directory / METRICS).read_text().splitlines()]


def _start_wandb(project: str, directory: Path) -> Any:
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        raise UsageError("--wandb needs: pip install wandb") from error
    known = directory / "wandb-id"
    if not known.is_file():
        write_file(known, uuid.uuid4().hex.encode())
    name = f"{directory.resolve().parent.name}-{directory.name}"
    return wandb.init(project=project, name=name, id=known.read_text(), resume="allow", dir=str(directory))
