"""Train the decoder: draw frames from their tokens, so that people see what a model imagines.

    loss = MSE of pixels from 0 to 1
    held out: that error, PSNR = -10 log10(error) in decibels, error / that of always drawing the mean frame

Most of a frame never moves, so a decoder that draws the mean frame has a fair PSNR: the last figure tells.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from scope_wm.data.split import Split, open_splits, starts
from scope_wm.data.token_cache import SplitTokens, Tokens, open_tokens
from scope_wm.data.windows import spread_rows
from scope_wm.model.decoder import Decoder, DecoderConfig
from scope_wm.model.encoder import EncoderConfig
from scope_wm.records import to_json
from scope_wm.train.loop import Fit, FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.stage import Recipe, making
from scope_wm.types import UsageError

HELD_OUT = 100  # frames
BATCH = 25  # of them


@dataclass(frozen=True, kw_only=True)
class TrainDecoderSettings:
    """Train a decoder that draws the frames of a store from their tokens.

    Example: scope-wm train decoder --data data/wall --tokens tokens/wall --out decoder
    """

    data: Path
    """the store"""
    tokens: str
    """directory of its tokens, or on-the-fly: encode in the training loop"""
    out: Path
    """directory of the decoder"""
    encoder: str = "student"
    """the encoder when tokens are made on the fly"""
    fit: FitSettings = field(
        default_factory=lambda: FitSettings(
            optimiser=OptimiserSettings(lr=2e-3, schedule="cosine", warmup=50, clip=1.0),
            max_samples=16_000,
        )
    )
    """how to train"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to run"""


class DrawingLoss(nn.Module):
    """The error of what a decoder draws."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, tokens: Float[Tensor, "B N V"], frames: UInt8[Tensor, "B 224 224 3"]
    ) -> Float[Tensor, ""]:
        """Return the mean squared error of pixels; tokens may come in half precision."""
        return F.mse_loss(self.decoder(tokens.float()), as_images(frames))


@dataclass(frozen=True, kw_only=True)
class DrawnFrames:
    """Single frames of a split with their tokens, by row."""

    split: Split
    tokens: Tokens
    numbers: Int64[np.ndarray, " frames"]

    @staticmethod
    def of(split: Split, tokens: Tokens) -> "DrawnFrames":
        """Take every frame of the episodes."""
        numbers = starts(split, 0)
        if len(numbers) == 0:
            raise UsageError(f"{split.store.path} has too few episodes: expected some to train and to judge")
        return DrawnFrames(split=split, tokens=tokens, numbers=numbers)

    def __len__(self) -> int:
        """Return how many frames there are."""
        return len(self.numbers)

    def batch(self, rows: Int64[np.ndarray, " n"]) -> tuple[Tensor, Tensor]:
        """Return the arguments of the loss."""
        numbers = self.numbers[rows]
        frames = self.split.store.frames(numbers)
        return torch.from_numpy(self.tokens.read(numbers)), torch.from_numpy(frames)


def open_tokens_of(settings: TrainDecoderSettings) -> SplitTokens:
    """Open what the decoder draws from."""
    encoder = EncoderConfig(source=settings.encoder)
    return open_tokens(settings.tokens, settings.data, encoder, settings.run.device)


def decoder_recipe(settings: TrainDecoderSettings) -> Recipe:
    """Return what decides the decoder."""
    inputs = {"tokens": open_tokens_of(settings).digest}
    return Recipe(stage="decoder", settings={"fit": to_json(settings.fit)}, inputs=inputs)


def train_decoder(settings: TrainDecoderSettings) -> None:
    """Train the decoder, unless it is finished, and write it."""
    with making(settings.out, decoder_recipe(settings), settings.run) as work:
        if work is None:
            return
        tokens = open_tokens_of(settings)
        splits = open_splits(settings.data)
        held_out = held_out_batches(DrawnFrames.of(splits.validation, tokens.validation))
        torch.manual_seed(settings.fit.seed)
        decoder = Decoder(DecoderConfig(visual=tokens.training.dim))
        loss = DrawingLoss(decoder)
        fit = Fit(
            loss=loss,
            samples=DrawnFrames.of(splits.training, tokens.training),
            settings=settings.fit,
            validate=lambda: drawing_figures(loss, held_out),
            best="error",
            directory=settings.out,
            run=settings.run,
        )
        work.finish(fit(), lambda made: decoder.save_pretrained(settings.out, made))


def held_out_batches(frames: DrawnFrames) -> list[tuple[Tensor, Tensor]]:
    """Return frames to judge with, evenly spread and always the same."""
    rows = spread_rows(len(frames), HELD_OUT)
    return [frames.batch(rows[first : first + BATCH]) for first in range(0, len(rows), BATCH)]


@torch.no_grad()
def drawing_figures(loss: DrawingLoss, batches: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return the error, the PSNR that it amounts to, and the error relative to drawing the mean frame."""
    device = next(loss.parameters()).device
    frames = torch.cat([frames for _, frames in batches])
    errors = [float(loss(tokens.to(device), drawn.to(device))) * len(drawn) for tokens, drawn in batches]
    error = sum(errors) / len(frames)
    images = as_images(frames)
    of_mean_frame = (images - images.mean(0)).square().mean()
    return {
        "error": error,
        "PSNR": -10 * math.log10(error),
        "error_of_mean_frame": error / float(of_mean_frame),
    }


def as_images(frames: UInt8[Tensor, "B 224 224 3"]) -> Float[Tensor, "B 3 224 224"]:
    """Return frames as a decoder draws them: from 0 to 1, channels first."""
    return frames.permute(0, 3, 1, 2).float() / 255
