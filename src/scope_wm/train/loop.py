"""The training loop that every stage shares: resumable, and the same on any number of processes.

    rows_s = the s-th slice of an endless order of all samples, which depends on the seed alone
    theta <- optimiser(theta, clip(grad loss(batch(rows_s))))        weights <- EMA(theta), if asked

What a step draws depends on the seed and its number, the rest is in the checkpoint: a run that was killed
ends with the weights of one that was not. What is trained is a module whose forward returns the loss of a
batch, so that Accelerate can spread it over devices and processes. The best weights are those with the lowest
figure in validation, not the last.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Int64
from torch import Tensor, nn

from scope_wm.files import write_json
from scope_wm.train.muon import Muon, transformer_matrices
from scope_wm.train.recorder import Recorder, RunSettings
from scope_wm.train.state import CHECKPOINT, State
from scope_wm.types import TrainingError, UsageError


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings:
    """The optimiser, and what is done to its rate, its gradients and its weights."""

    kind: Literal["adamw", "muon"] = "adamw"
    """muon: orthogonalised steps for the matrices of a transformer, adamw for all else"""
    lr: float
    """learning rate"""
    weight_decay: float = 0.01
    """share of the weights that decays, times the rate"""
    schedule: Literal["constant", "cosine"] = "constant"
    """how the rate changes after the warm-up; cosine ends at zero"""
    warmup: int = 0
    """steps in which the rate rises from zero"""
    clip: float | None = None
    """largest norm of the gradient; None: any"""
    ema: float | None = None
    """decay of the moving average of the weights, which is then what is kept; None: no average"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        sensible = {
            "lr": (0 < self.lr < math.inf, "above 0"),
            "weight_decay": (0 <= self.weight_decay < math.inf, "of at least 0"),
            "warmup": (self.warmup >= 0, "of at least 0"),
            "clip": (self.clip is None or self.clip > 0, "above 0"),
            "ema": (self.ema is None or 0 <= self.ema < 1, "from 0 to below 1"),
        }
        for name, (fine, expected) in sensible.items():
            if not fine:
                raise UsageError(
                    f"expected --fit.optimiser.{name.replace('_', '-')} {expected}, got {getattr(self, name)}"
                )


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How long to train, on what batches, and how the optimiser steps."""

    optimiser: OptimiserSettings
    """the optimiser"""
    epochs: int = 100
    """times that every sample is seen"""
    max_samples: int | None = None
    """samples after which to stop, if that is earlier"""
    batch: int = 32
    """samples of a step, over all processes together"""
    validations: int = 10
    """times that the held-out figures are computed, evenly spread"""
    seed: int = 0
    """what the first weights and the order of samples depend on"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name in ("epochs", "batch", "validations"):
            if getattr(self, name) < 1:
                raise UsageError(f"expected --fit.{name} of at least 1, got {getattr(self, name)}")
        if self.max_samples is not None and self.max_samples < self.batch:
            raise UsageError(f"expected at least one batch of {self.batch} samples, got {self.max_samples}")

    def steps(self, samples: int) -> int:
        """Return how many steps the training of so many different samples has."""
        wanted = self.epochs * samples
        return max(1, round(min(wanted, self.max_samples or wanted) / self.batch))


@runtime_checkable
class Samples(Protocol):
    """What is learned from: any object that gives batches by row, samples along the first axis."""

    def __len__(self) -> int:
        """Return how many different samples there are."""
        ...

    def batch(self, rows: Int64[np.ndarray, " n"]) -> tuple[Tensor, ...]:
        """Return the arguments of the loss for some samples."""
        ...


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One training: a module that returns the mean loss of a batch, what it learns from, how it is judged."""

    loss: nn.Module
    samples: Samples
    settings: FitSettings
    validate: Callable[[], Mapping[str, float]]
    best: str  # the figure of validation that chooses the weights; the lowest is the best
    directory: Path
    run: RunSettings = field(default_factory=RunSettings)
    start_counts: bool = False  # the first weights may be the best: they were trained before

    def __call__(self) -> Mapping[str, float]:
        """Train from where it was left, fill the module with the best weights and return their figures."""
        settings, how = self.settings, self.settings.optimiser
        # The precision is the run's, not that of the environment: it is recorded.
        accelerator = Accelerator(cpu=self.run.device == "cpu", mixed_precision="no")
        trainable = [p for p in self.loss.to(accelerator.device).parameters() if p.requires_grad]
        stepper = optimiser_of(how, self.loss)
        state = State(trainable, stepper, ema=how.ema)
        state.load(self.directory)
        steps = settings.steps(len(self.samples))
        checks = np.linspace(0, steps, settings.validations + 1).round()[1:]
        model = torch.compile(self.loss) if self.run.compile else self.loss
        forward, optimiser = accelerator.prepare(model, stepper)
        self.loss.train()
        with Recorder(
            self.directory, self.run, state, steps, silent=not accelerator.is_main_process
        ) as record:
            if self.start_counts and state.step == 0:
                record.figures(self._judge(state))
            for rows, batch in self._batches(accelerator, state.step, steps):
                reseed(self.loss, step_seed(settings.seed, state.step, accelerator.process_index))
                rate = set_rate(stepper, how, state.step, steps)
                loss, norm = self._gradient(accelerator, forward, trainable, batch)
                if trouble := state.watch.trouble(loss, norm):
                    raise self._diverged(trouble, state.step, rows, write=accelerator.is_main_process)
                optimiser.step()
                optimiser.zero_grad()
                state.advance()
                if state.step in checks:
                    record.figures(self._judge(state))
                record.step(loss=state.watch.mean, rate=rate)
        state.restore_best()
        self.loss.eval()
        return state.figures

    def _gradient(
        self,
        accelerator: Accelerator,
        forward: Callable[..., Tensor],
        trainable: list[nn.Parameter],
        batch: tuple[Tensor, ...],
    ) -> tuple[float, float]:
        """Compute the gradient and clip it; return the loss over all processes, and the norm before."""
        device, count = accelerator.device, len(batch[0])
        parts = list(zip(*(whole.tensor_split(min(self.run.parts, count)) for whole in batch), strict=True))
        mean = torch.zeros((), device=device)
        for number, part in enumerate(parts, 1):
            # Processes share their gradients once, with the last part.
            with nullcontext() if number == len(parts) else accelerator.no_sync(forward):
                with torch.autocast(device.type, torch.bfloat16, self.run.precision == "bfloat16"):
                    loss = forward(*(tensor.to(device) for tensor in part)) * (len(part[0]) / count)
                accelerator.backward(loss)
            mean += loss.detach()
        norm = accelerator.clip_grad_norm_(trainable, self.settings.optimiser.clip or math.inf)
        return float(accelerator.reduce(mean, "mean")), float(norm)

    def _judge(self, state: State) -> Mapping[str, float]:
        """Compute the held-out figures, and keep the weights if they are the best so far."""
        self.loss.eval()
        reseed(self.loss, self.settings.seed)
        with state.averaged(), torch.no_grad():
            figures = self.validate()
            state.judge(figures, self.best)
        self.loss.train()
        return figures

    def _batches(
        self, accelerator: Accelerator, first: int, steps: int
    ) -> Iterator[tuple[Int64[np.ndarray, " batch"], tuple[Tensor, ...]]]:
        """Yield the rows of every step left and this process's share of the batch, read one step ahead."""
        size, processes = self.settings.batch, accelerator.num_processes
        if size % processes:
            raise UsageError(f"expected a batch that {processes} processes can share, got {size}")
        share = slice(accelerator.process_index, None, processes)
        order = Order(len(self.samples), self.settings.seed)
        with ThreadPoolExecutor(1) as reader:
            coming = None
            for step in range(first, steps + 1):
                ready, coming = coming, None
                if step < steps:
                    rows = order.rows(step * size, size)
                    coming = rows, reader.submit(self.samples.batch, rows[share])
                if ready is not None:
                    yield ready[0], ready[1].result()

    def _diverged(
        self, trouble: str, step: int, rows: Int64[np.ndarray, " batch"], *, write: bool
    ) -> TrainingError:
        """Return the error of a training that has gone wrong; the rows of its batch are in a file."""
        file = self.directory / "diverged.json"
        if write:
            write_json(file, {"trouble": trouble, "step": step, "rows": rows.tolist()})
        kept = "The last good checkpoint is kept. " if (self.directory / CHECKPOINT).is_file() else ""
        return TrainingError(
            f"{trouble} at step {step}, on the samples {rows[:4].tolist()} and {max(len(rows) - 4, 0)} more: "
            f"{file} lists them. {kept}A lower rate or clipped gradients may help"
        )


def optimiser_of(settings: OptimiserSettings, module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of what is trained of a module."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if settings.kind == "adamw":
        return torch.optim.AdamW(trainable, lr=settings.lr, weight_decay=settings.weight_decay)
    if not (matrices := transformer_matrices(module)):
        raise UsageError("--fit.optimiser.kind muon is for models with a transformer: take adamw here")
    return Muon(trainable, matrices, lr=settings.lr, weight_decay=settings.weight_decay)


class Order:
    """An endless order of all samples, one permutation after the other, each a function of the seed alone."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.seed = seed
        self._last: tuple[int, Int64[np.ndarray, " count"]] | None = None

    def rows(self, first: int, size: int) -> Int64[np.ndarray, " size"]:
        """Return a slice of the order."""
        places = np.arange(first, first + size)
        epochs = places // self.count
        parts = [
            self._epoch(epoch)[places[epochs == epoch] % self.count] for epoch in np.unique(epochs).tolist()
        ]
        return np.concatenate(parts)

    def _epoch(self, epoch: int) -> Int64[np.ndarray, " count"]:
        """Return the permutation of an epoch; the last one is kept, for most steps ask for it again."""
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.count)
        return self._last[1]


def rate_at(settings: OptimiserSettings, step: int, steps: int) -> float:
    """Return the learning rate of a step."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup) / max(1, steps - settings.warmup)
    return settings.lr * 0.5 * (1 + math.cos(math.pi * done))


def set_rate(optimiser: torch.optim.Optimizer, settings: OptimiserSettings, step: int, steps: int) -> float:
    """Set the learning rate of a step and return it."""
    rate = rate_at(settings, step, steps)
    for group in optimiser.param_groups:
        group["lr"] = rate
    return rate


def reseed(module: nn.Module, seed: int) -> None:
    """Restart everything that a module draws at random: dropout, and generators that parts of it own."""
    torch.manual_seed(seed)  # dropout has no other generator
    for part in module.modules():
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(seed)


def step_seed(seed: int, step: int, process: int) -> int:
    """Return a seed for what is drawn at random in one step of one process."""
    return int(np.random.SeedSequence([seed, step, process]).generate_state(1, np.uint64)[0] >> 1)
