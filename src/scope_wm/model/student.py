"""A small encoder, to be distilled from a large one: 14 x 14 tokens in a few milliseconds on one core.

    x = stem(image) + positions                             convolutions, 16 pixels to one token
    x <- x + neighbours(x),  x <- x + MLP(x)                twice: depthwise 7 x 7, local detail
    x <- x + attention(x),   x <- x + MLP(x)                once: global context, as in a large transformer
    tokens = linear(LayerNorm(x))                           after all stages

Why both: in a short trial at equal cost, attention in every layer learned less than neighbours did; the
little attention is for what the tokens of a large transformer know of the whole image.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scope_wm.files import CONFIG
from scope_wm.model.directory import WEIGHTS, load_weights, read_kind, write_directory
from scope_wm.model.encoder import Frozen, content_hash, normalise
from scope_wm.model.transformer import MLP, Attention, TransformerConfig
from scope_wm.records import from_json

KIND = "student-encoder"
GRID = 14


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """Sizes of the student; the defaults are those of the shipped one."""

    dim: int = 64
    width: int = 128
    stages: int = 2
    heads: int = 4


class Neighbours(nn.Module):
    """Mix each channel over the 7 x 7 tokens around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Return the mixed tokens of the grid."""
        grid = x.transpose(1, 2).unflatten(2, (GRID, GRID))
        return self.mix(grid).flatten(2).transpose(1, 2)


class Stage(nn.Module):
    """Neighbours twice and attention once, each with its MLP."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        width = config.width
        sizes = TransformerConfig(
            depth=1, heads=config.heads, head_width=width // config.heads, mlp_width=2 * width, dropout=0.0
        )
        self.near = nn.ModuleList(Neighbours(width) for _ in range(2))
        self.near_mlp = nn.ModuleList(MLP(width, sizes) for _ in range(2))
        self.far = Attention(width, sizes)
        self.far_mlp = MLP(width, sizes)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Return the tokens, each knowing more of the others."""
        for near, mlp in zip(self.near, self.near_mlp, strict=True):
            x = x + near(x)
            x = x + mlp(x)
        x = x + self.far(x, None)
        return x + self.far_mlp(x)


class Student(nn.Module):
    """The network, trainable: uint8 images to tokens."""

    def __init__(self, config: StudentConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = nn.Sequential(
            nn.Conv2d(3, 24, 4, stride=4),
            nn.GELU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(48, 96, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(96, config.width, 1),
        )
        self.positions = nn.Parameter(0.02 * torch.randn(GRID * GRID, config.width))
        self.stages = nn.Sequential(*(Stage(config) for _ in range(config.stages)))
        self.head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, config.dim))

    def forward(self, images: Tensor) -> Float[Tensor, "B N V"]:
        """Return the tokens of every image."""
        patches = self.stem(normalise(images, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)))
        return self.head(self.stages(patches.flatten(2).transpose(1, 2) + self.positions))

    def save_pretrained(
        self, directory: Path, dtype: torch.dtype = torch.float32, made: dict[str, Any] | None = None
    ) -> None:
        """Write a directory of its own; `made` tells how it was trained."""
        write_directory(directory, KIND, self.config, self, dtype, made)


class StudentEncoder(nn.Module):
    """A trained student, frozen."""

    name = "student"
    num_tokens = GRID * GRID

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.dim = student.config.dim
        self.student = Frozen(student)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens of every image."""
        return self.student(images)

    def digest(self) -> str:
        """Return the hash of the weights."""
        return content_hash(self.student)

    @staticmethod
    def from_pretrained(directory: Path) -> "StudentEncoder":
        """Load a student from its directory, ready to encode."""
        header = read_kind(directory, KIND)
        student = Student(from_json(StudentConfig, header["model"], str(directory / CONFIG)))
        load_weights(student, directory / WEIGHTS, header["weights"])
        return StudentEncoder(student)
