"""Which model to plan with, and how a learned one is loaded: one way for the robot, `evaluate` and `plan`."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from scope_wm.background import Ignored
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.fast_rollout import compiled, last_imagined
from scope_wm.model.int8 import use_int8
from scope_wm.model.world_model import WorldModel
from scope_wm.planning.latent import LatentModel, chance_of
from scope_wm.planning.objective import proprio_weight
from scope_wm.planning.side_by_side import Imagine, SideBySide
from scope_wm.types import UsageError

SIMULATOR = "simulator"
AUTO = "auto"
OF_IMAGINATION = ("k", "allow_other_k", "precision", "compile")
OF_LEARNED_MODELS = ("encoder", "true_dynamics", "alpha", *OF_IMAGINATION)


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What to plan with."""

    model: str
    """a model's directory, shipped name such as wall/faster, or hub id; simulator: the true dynamics"""
    encoder: str | None = None
    """directory of the frozen encoder, if it is not where the model says"""
    device: str = AUTO
    """where the model runs, such as cpu or cuda:1; auto: the first GPU of CUDA, else cpu"""
    true_dynamics: bool = False
    """play candidates in the simulator instead of imagining them; the cost is the model's: a reference"""
    k: int | None = None
    """tokens to keep; None: as the model was trained"""
    allow_other_k: bool = False
    """plan with another K than in training, which breaks models"""
    alpha: float | None = None
    """weight of proprio in the cost; None: 0 for point_maze, else 1"""
    precision: Literal["float32", "bfloat16", "int8"] = "float32"
    """of products: bfloat16 helps on GPUs and with avx512_bf16; int8 is for processors"""
    compile: bool = False
    """compile the model, which takes a minute or two at the first search, and again for other sizes"""

    def __post_init__(self) -> None:
        """Refuse what cannot be, and what the simulator has no use for."""
        if self.k is not None and self.k < 1:
            raise UsageError(f"expected --k of at least 1, got {self.k}")
        if self.alpha is not None and not 0 <= self.alpha < inf:
            raise UsageError(f"expected a finite --alpha of at least 0, got {self.alpha}")
        if self.simulated:
            self._expect_defaults(OF_LEARNED_MODELS, f"--model {SIMULATOR}", "it is no learned model")
            if self.device not in (AUTO, "cpu"):
                raise UsageError(f"--model {SIMULATOR} runs on the processor, got --device {self.device}")
        if self.true_dynamics:
            self._expect_defaults(OF_IMAGINATION, "--true-dynamics", "nothing is imagined")

    def _expect_defaults(self, names: Sequence[str], what: str, why: str) -> None:
        for name in names:
            if getattr(self, name) != getattr(ModelSettings, name):
                raise UsageError(f"{what} takes no --{name.replace('_', '-')}: {why}")

    @property
    def name(self) -> str:
        """Return what results are named after."""
        return f"{Path(self.model).name}{'-true-dynamics' if self.true_dynamics else ''}"

    @property
    def simulated(self) -> bool:
        """Tell whether the simulator is the model, and judges candidates too."""
        return self.model == SIMULATOR

    @property
    def plays(self) -> bool:
        """Tell whether candidates are played in the simulator, whatever judges them."""
        return self.simulated or self.true_dynamics

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
    if settings.true_dynamics and isinstance(trained.world_model.background, Ignored):
        raise UsageError("--true-dynamics compares whole images: a model of a subset of the patches does not")
    eye = trained.load_encoder(settings.encoder)
    if isinstance(eye, torch.nn.Module):
        eye.to(device)
    model = trained.world_model.to(device).requires_grad_(False)
    return LatentModel(
        model,
        eye,
        config.statistics,
        frameskip=config.frameskip,
        alpha=proprio_weight(config.task) if settings.alpha is None else settings.alpha,
        imagine=chosen_rollout(model, settings, device),
    )


def chosen_rollout(model: WorldModel, settings: ModelSettings, device: torch.device) -> Imagine:
    """Return the model's rollout, compiled and in the precision that was asked for."""
    if isinstance(model.background, Ignored) and (settings.compile or settings.precision == "bfloat16"):
        raise UsageError("a model of a subset of the patches runs in float32 or int8, and not compiled")
    if settings.compile and device.type == "cpu" and shutil.which("c++") is None:
        raise UsageError("--compile needs a C++ compiler on a processor: install g++ or clang")
    if settings.precision == "int8":
        if device.type != "cpu":
            raise UsageError(f"expected --device cpu for --precision int8, got {device}")
        use_int8(model)
    imagine: Imagine = compiled(model) if settings.compile else partial(last_imagined, model)
    if settings.precision == "bfloat16":
        imagine = partial(in_bfloat16, imagine, device)
    if device.type != "cpu" or chance_of(model):  # threads would draw in any order
        return imagine
    return SideBySide(imagine, compiles=settings.compile)


def in_bfloat16(
    imagine: Imagine,
    device: torch.device,
    visual: Tensor,
    proprio: Tensor,
    actions: Tensor,
    previous: Tensor | None,
) -> Tensor:
    """Imagine with autocast; the costs are those of float32 frames."""
    with torch.autocast(device.type, torch.bfloat16):
        return imagine(visual, proprio, actions, previous).float()
