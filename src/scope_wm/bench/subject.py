"""What is measured: world models of a preset's sizes with random weights, their encoder, one fixed problem.

Time and memory depend on sizes alone, so nothing has to be trained or downloaded first.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from scope_wm.model.architecture import ModelConfig, build
from scope_wm.model.encoder import (
    DIRECTORY_VARIABLE,
    Encoder,
    EncoderConfig,
    HubEncoder,
    import_transformers,
    quiet,
)
from scope_wm.model.encoders import SHIPPED, open_encoder
from scope_wm.model.world_model import WorldModel
from scope_wm.planning.models import observe_states
from scope_wm.presets import PRESETS, PresetName
from scope_wm.tasks import TaskName, find_task

PROBLEM_SEED = 1  # of instance 0
NOISE = 0.02  # added to fresh weights: where these are zero, actions would not matter
VIT_S = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "image_size": 518}


@dataclass(frozen=True, kw_only=True)
class FixedProblem:
    """What is seen of one problem: images, and standardised proprio, which is random."""

    now: UInt8[Tensor, "1 224 224 3"]
    goal: UInt8[Tensor, "1 224 224 3"]
    proprio: Float[Tensor, "1 P"]
    goal_proprio: Float[Tensor, "1 P"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A task at the sizes of a preset."""

    task: TaskName
    preset: PresetName

    def encoder(self) -> Encoder:
        """Return the preset's encoder; DINOv2 that is not on disk has random weights of the same shapes."""
        config = PRESETS[self.preset](self.task).encoder
        on_disk = config.source == SHIPPED or DIRECTORY_VARIABLE in os.environ
        return open_encoder(config) if on_disk else random_dinov2()

    def problem(self) -> FixedProblem:
        """Return the problem of instance 0."""
        task = find_task(self.task)()
        drawn = task.sample_problem(PROBLEM_SEED)
        images = torch.from_numpy(observe_states(task, [drawn.start, drawn.goal]).images)
        generator = torch.Generator().manual_seed(PROBLEM_SEED)
        now, goal = torch.randn(2, 1, task.proprio_width, generator=generator)
        return FixedProblem(now=images[:1], goal=images[1:], proprio=now, goal_proprio=goal)

    def config(self, k: int | None, tokens: int, channels: int) -> ModelConfig:
        """Return a model that keeps K of an encoder's tokens, or all; dense models have no selector."""
        preset = PRESETS[self.preset](self.task)
        return preset.untrained(self.task, num_tokens=tokens, visual=channels, k=k)


def random_model(config: ModelConfig) -> WorldModel:
    """Return a model to plan with whose weights are random, the same for the same sizes."""
    with fixed_seed():
        model = build(config).eval().requires_grad_(False)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=NOISE)
    return model


def random_dinov2() -> HubEncoder:
    """Return an encoder of the shapes of DINOv2 ViT-S/14."""
    transformers = import_transformers()
    with fixed_seed(), quiet(transformers.utils.logging), TemporaryDirectory() as folder:
        transformers.Dinov2Model(transformers.Dinov2Config(patch_size=14, **VIT_S)).save_pretrained(folder)
        return HubEncoder(EncoderConfig(source=folder))


@contextmanager
def fixed_seed() -> Iterator[None]:
    """Draw fresh weights from seed 0, and leave torch's own randomness as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
