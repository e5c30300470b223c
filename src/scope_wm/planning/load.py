"""Which model to plan with, and how a learned one is loaded: one way for the robot, `evaluate` and `plan`."""

from dataclasses import dataclass
from math import inf

import torch

from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.objective import proprio_weight
from scope_wm.types import UsageError

SIMULATOR = "simulator"
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What to plan with."""

    model: str
    """a model's directory or hub id, or the word simulator: the true dynamics, a reference"""
    encoder: str | None = None
    """directory of the frozen encoder, if it is not where the model says"""
    device: str = AUTO
    """where the model runs, such as cpu or cuda:1; auto: the first GPU of CUDA, else cpu"""
    k: int | None = None
    """tokens to keep; None: as the model was trained"""
    allow_other_k: bool = False
    """plan with another K than in training, which breaks models"""
    alpha: float | None = None
    """weight of proprio in the cost; None: 0 for point_maze, else 1"""

    def __post_init__(self) -> None:
        """Refuse what cannot be, and what the simulator has no use for."""
        if self.k is not None and self.k < 1:
            raise UsageError(f"expected --k of at least 1, got {self.k}")
        if self.alpha is not None and not 0 <= self.alpha < inf:
            raise UsageError(f"expected a finite --alpha of at least 0, got {self.alpha}")
        if self.simulated:
            given = {"encoder": self.encoder, "k": self.k, "alpha": self.alpha}
            for name in (name for name, value in given.items() if value is not None):
                raise UsageError(f"--model {SIMULATOR} takes no --{name}: its cost is the path left")
            if self.device not in (AUTO, "cpu"):
                raise UsageError(f"--model {SIMULATOR} runs on the processor, got --device {self.device}")

    @property
    def simulated(self) -> bool:
        """Tell whether the simulator is the model."""
        return self.model == SIMULATOR

    def resolved_device(self) -> torch.device:
        """Return the device that is meant, or say that it is not here."""
        if self.device == AUTO:
            return torch.device("cuda" if torch.cuda.is_available() and not self.simulated else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            reason = str(error).splitlines()[0]
            raise UsageError(f"expected a device of this machine, got {self.device}: {reason}") from error
        return device


def load_latent_model(settings: ModelSettings, task: str | None = None) -> LatentModel:
    """Load a trained model and its encoder, ready to plan; if `task` is given it must be the model's."""
    device = settings.resolved_device()
    trained = TrainedModel.from_pretrained(settings.model, k=settings.k, allow_other_k=settings.allow_other_k)
    config = trained.config
    if task not in (None, config.task):
        raise UsageError(f"expected a model of {task}, {settings.model} is one of {config.task}")
    eye = trained.load_encoder(settings.encoder)
    if isinstance(eye, torch.nn.Module):
        eye.to(device)
    return LatentModel(
        trained.world_model.to(device).requires_grad_(False),
        eye,
        config.statistics,
        frameskip=config.frameskip,
        alpha=proprio_weight(config.task) if settings.alpha is None else settings.alpha,
    )
