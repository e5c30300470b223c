"""A decoder from visual tokens to images, for pictures only: planning never loads it.

    14 x 14 tokens -> residual blocks -> 56 x 56 -> residual block -> 112 x 112 -> 224 x 224 -> sigmoid

A grid grows by turning channels into pixels; the convolution that follows hides the seams.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from scope_wm.files import CONFIG
from scope_wm.model.directory import WEIGHTS, load_weights, read_kind, write_directory
from scope_wm.records import from_json

KIND = "decoder"
GRID = 14
GROUPS = 8  # of the normalisation; they divide every number of channels


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Channels of the tokens; blocks and channels at 14 x 14, channels at 56 x 56 and at 112 x 112."""

    visual: int
    blocks: int = 3
    coarse: int = 192
    middle: int = 32
    fine: int = 16


class Mix(nn.Module):
    """A residual block for many channels: look around with every channel alone, then mix the channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Sequential(
            nn.GroupNorm(GROUPS, width),
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            nn.Conv2d(width, 2 * width, 1),
            nn.GELU(),
            nn.Conv2d(2 * width, width, 1),
        )

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Return the features with their change added."""
        return x + self.change(x)


class Decoder(nn.Module):
    """Draw the images that visual tokens were made from."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        coarse, middle, fine = config.coarse, config.middle, config.fine
        self.config = config
        self.read = nn.Conv2d(config.visual, coarse, 3, padding=1)
        self.positions = nn.Parameter(torch.zeros(coarse, GRID, GRID))  # the scene that does not move
        self.mix = nn.Sequential(*(Mix(coarse) for _ in range(config.blocks)), nn.GroupNorm(GROUPS, coarse))
        self.draw = nn.Sequential(
            nn.Conv2d(coarse, 16 * middle, 1),
            nn.PixelShuffle(4),
            Mix(middle),
            nn.GroupNorm(GROUPS, middle),
            nn.GELU(),
            nn.Conv2d(middle, 4 * fine, 3, padding=1),
            nn.PixelShuffle(2),
            nn.GELU(),
            nn.Conv2d(fine, 4 * 3, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Sigmoid(),
        )

    def forward(self, tokens: Float[Tensor, "B N V"]) -> Float[Tensor, "B 3 224 224"]:
        """Return images with values from 0 to 1, channels first, as losses want them."""
        if tokens.shape[1:] != (GRID**2, self.config.visual):
            raise ValueError(
                f"expected tokens of shape (B, {GRID**2}, {self.config.visual}), got {tuple(tokens.shape)}"
            )
        grid = tokens.transpose(1, 2).unflatten(2, (GRID, GRID))  # [B V 14 14]
        return self.draw(self.mix(self.read(grid) + self.positions))

    def save_pretrained(self, directory: Path, made: dict[str, Any] | None = None) -> None:
        """Write a directory of its own; `made` tells how it was trained."""
        write_directory(directory, KIND, self.config, self, made=made)

    @staticmethod
    def from_pretrained(directory: Path) -> "Decoder":
        """Load a decoder from its directory, ready to draw."""
        header = read_kind(directory, KIND)
        decoder = Decoder(from_json(DecoderConfig, header["model"], str(directory / CONFIG)))
        load_weights(decoder, directory / WEIGHTS, header["weights"])
        return decoder.eval()


def to_uint8(images: Float[Tensor, "B 3 H W"]) -> UInt8[Tensor, "B H W 3"]:
    """Return images with values from 0 to 1 as pixels, channels last."""
    return (255 * images).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
