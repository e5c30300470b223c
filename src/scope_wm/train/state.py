"""Where a training is: weights, optimiser, moving average, best weights so far; and its checkpoint.

The checkpoint is one safetensors file that is complete or not there: a run killed at any moment goes on from
the last one. It holds nothing that a reader would have to execute.
"""

import json
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from scope_wm.files import write_file

CHECKPOINT = "checkpoint.safetensors"
DIVERGED = 10.0  # times the lowest mean loss so far
SMOOTHED = 100  # steps in that mean


class Watch:
    """Notice a loss that is not a number or has left its way for good."""

    def __init__(self, recent: Iterable[float] = (), lowest: float = math.inf) -> None:
        self.recent = deque(recent, maxlen=SMOOTHED)
        self.lowest = lowest

    @property
    def mean(self) -> float:
        """Return the mean of the last losses."""
        return sum(self.recent) / len(self.recent)

    @property
    def sound(self) -> bool:
        """Tell whether the last loss is not far above the lowest mean: such weights are worth keeping."""
        return not self.recent or self.recent[-1] <= DIVERGED * self.lowest

    def trouble(self, loss: float, norm: float) -> str:
        """Take the next loss and norm of the gradient; return what is wrong with them, or nothing."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        self.recent.append(loss)
        if len(self.recent) == SMOOTHED:
            self.lowest = min(self.lowest, self.mean)
        if self.mean > DIVERGED * self.lowest:
            return f"the mean loss {self.mean:.4g} is {DIVERGED:g} times its lowest, {self.lowest:.4g}"
        return ""


class State:
    """The parameters that are trained, and everything that the next step depends on."""

    def __init__(
        self, parameters: list[nn.Parameter], optimiser: torch.optim.Optimizer, *, ema: float | None
    ) -> None:
        self.parameters = parameters
        self.optimiser = optimiser
        self.ema = ema
        self.average = None if ema is None else _copy(self.parameters)
        self.best = _copy(self.parameters)
        self.figures: dict[str, float] = {}  # of the best weights
        self.watch = Watch()
        self.step = 0
        self.log_size = 0  # bytes of metrics that belong to the steps made

    def advance(self) -> None:
        """Count a step that was made, and let the average follow."""
        self.step += 1
        if self.average is not None and self.ema is not None:
            # Early on a slow average would still hold the first, random weights.
            decay = min(self.ema, (1 + self.step) / (10 + self.step))
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the average in the place of the weights for a while, if there is one."""
        if self.average is None:
            yield
            return
        weights = _copy(self.parameters)
        self._fill(self.average)
        try:
            yield
        finally:
            self._fill(weights)

    def judge(self, figures: Mapping[str, float], by: str) -> None:
        """Keep the present weights if they are the best so far; what is not a number is the worst."""
        best = self.figures.get(by, math.nan)
        if math.isnan(best) or figures[by] < best:
            self.figures = dict(figures)
            self.best = _copy(self.parameters)

    def restore_best(self) -> None:
        """Go back to the best weights."""
        self._fill(self.best)

    def save(self, directory: Path) -> None:
        """Replace the checkpoint."""
        tensors: dict[str, Tensor] = {f"weights.{i}": value for i, value in enumerate(self.parameters)}
        tensors |= {f"best.{i}": value for i, value in enumerate(self.best)}
        tensors |= {f"average.{i}": value for i, value in enumerate(self.average or [])}
        for i, parameter in enumerate(self.parameters):
            tensors |= {f"optimiser.{i}.{k}": v for k, v in self.optimiser.state[parameter].items()}
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        watch = {"recent": list(self.watch.recent), "lowest": self.watch.lowest}
        facts = {"step": self.step, "log_size": self.log_size, "figures": self.figures, "watch": watch}
        write_file(directory / CHECKPOINT, safetensors.torch.save(plain, {"facts": json.dumps(facts)}))

    def load(self, directory: Path) -> None:
        """Continue from the checkpoint, if there is one."""
        file = directory / CHECKPOINT
        if not file.is_file():
            return
        with safetensors.safe_open(file, "pt") as content:
            facts = json.loads(content.metadata()["facts"])
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        self.step, self.log_size, self.figures = facts["step"], facts["log_size"], facts["figures"]
        self.watch = Watch(**facts["watch"])
        self._fill([tensors[f"weights.{i}"] for i in range(len(self.parameters))])
        self.best = [tensors[f"best.{i}"].to(p.device) for i, p in enumerate(self.parameters)]
        if self.average is not None:
            self.average = [tensors[f"average.{i}"].to(p.device) for i, p in enumerate(self.parameters)]
        for i, parameter in enumerate(self.parameters):
            moments = {k.split(".", 2)[2]: v for k, v in tensors.items() if k.startswith(f"optimiser.{i}.")}
            self.optimiser.state[parameter] = {
                name: value if name == "step" else value.to(parameter.device)
                for name, value in moments.items()
            }

    def _fill(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.copy_(value)


def _copy(tensors: list[nn.Parameter]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]
