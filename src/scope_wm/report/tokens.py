"""A picture of what an encoder sees: frames of all tasks, and the PCA of their tokens to three colours.

Most of a token is its place and its scene. Two views take that out, each followed by a PCA for each task:

    token - trend         objects: the trend is a cubic of row and column, the same for all tasks
    token - patch mean    what moves: the mean is over the frames of the task

Example: python -m scope_wm.report.tokens --encoder facebook/dinov2-small --out tokens.png
"""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import torch
import tyro
from jaxtyping import Float, UInt8
from PIL import Image as Canvas
from torch import Tensor

from scope_wm.data.play import GAP, LABEL_WIDTH, MARGIN, PAPER, ROW_GAP, place, write
from scope_wm.model.encoder import Encoder, EncoderConfig, HubEncoder
from scope_wm.model.reduced import fit_pca
from scope_wm.tasks import TASKS
from scope_wm.tasks.task import Task, episode_rng
from scope_wm.types import IMAGE_SIZE

VIEWS = ("frame", "tokens - trend", "tokens - patch mean")
HEADING, GROUP_GAP, DEGREE = 32, 24, 3

Frames = UInt8[np.ndarray, "F 224 224 3"]


@dataclass(frozen=True, kw_only=True)
class TokensSettings:
    """Draw frames of all tasks beside the principal components of their tokens."""

    encoder: str
    """directory or hub id of the encoder"""
    out: Path
    """PNG file to write"""
    layer: int = 9
    """layer whose tokens are drawn"""
    frames: int = 32
    """frames of each task that the components are fitted on"""
    columns: int = 3
    """frames of each task that are drawn"""
    seed: int = 0
    """seed of the frames"""


def draw_tokens(settings: TokensSettings) -> None:
    """Draw the picture and write it."""
    encoder = HubEncoder(EncoderConfig(source=settings.encoder, layer=settings.layer))
    frames = {name: sample_frames(task(), settings.frames, settings.seed) for name, task in TASKS.items()}
    tokens = {name: encode(encoder, pictures) for name, pictures in frames.items()}
    trend = smooth_trend(torch.cat(list(tokens.values())).mean(0))
    rows = {
        name: np.stack([frames[name], colours(x - trend), colours(x - x.mean(0))], axis=1)[: settings.columns]
        for name, x in tokens.items()
    }
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    iio.imwrite(settings.out, sheet(rows), optimize=True)
    print(settings.out)


def sample_frames(task: Task, count: int, seed: int) -> Frames:
    """Draw one frame of each of `count` episodes, at a random time in its first half."""
    frames = []
    for episode in range(count):
        rng = episode_rng(seed, episode)
        task.set_state(task.sample_start(rng))
        policy = task.policy(rng)
        for _ in range(rng.integers(task.episode_length // 2)):
            task.advance(policy(task.state()))
        frames.append(task.render())
    return np.stack(frames)


def encode(encoder: Encoder, frames: Frames, batch: int = 8) -> Float[Tensor, "F N V"]:
    """Return the tokens of frames."""
    return torch.cat([encoder(images) for images in torch.from_numpy(frames).split(batch)])


def smooth_trend(mean: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
    """Return the cubic of row and column that fits the mean token of every patch best."""
    side = torch.linspace(-1, 1, isqrt(len(mean)))
    row, column = torch.meshgrid(side, side, indexing="ij")
    powers = [(i, j) for i in range(DEGREE + 1) for j in range(DEGREE + 1 - i)]
    basis = torch.stack([(row**i * column**j).flatten() for i, j in powers], dim=1)
    return basis @ torch.linalg.lstsq(basis, mean).solution


def colours(tokens: Float[Tensor, "F N V"]) -> Frames:
    """Return the first three principal components as red, green and blue, one square for each patch."""
    components = fit_pca([tokens], 3)(tokens)
    low, high = components.flatten(0, 1).quantile(torch.tensor([0.01, 0.99]), dim=0)
    levels = (255 * (components - low) / (high - low)).clamp(0, 255).byte()
    side = isqrt(tokens.shape[1])
    grid = levels.unflatten(1, (side, side)).permute(0, 3, 1, 2)
    enlarged = torch.nn.functional.interpolate(grid, size=(IMAGE_SIZE, IMAGE_SIZE), mode="nearest")
    return enlarged.permute(0, 2, 3, 1).numpy()


def sheet(rows: dict[str, UInt8[np.ndarray, "F 3 224 224 3"]]) -> UInt8[np.ndarray, "height width 3"]:
    """Place the views of every frame side by side, one row for each task."""
    columns = len(next(iter(rows.values())))
    group = len(VIEWS) * (IMAGE_SIZE + GAP) - GAP + GROUP_GAP
    width = 2 * MARGIN + LABEL_WIDTH + columns * group - GROUP_GAP
    height = 2 * MARGIN + HEADING + len(rows) * (IMAGE_SIZE + ROW_GAP) - ROW_GAP
    canvas = Canvas.new("RGB", (width, height), PAPER)
    for column in range(columns):
        for view, title in enumerate(VIEWS):
            left = MARGIN + LABEL_WIDTH + column * group + view * (IMAGE_SIZE + GAP)
            write(canvas, (left + IMAGE_SIZE // 2, MARGIN + HEADING // 2), title, "mm", note=True)
            for row, pictures in enumerate(rows.values()):
                top = MARGIN + HEADING + row * (IMAGE_SIZE + ROW_GAP)
                place(canvas, pictures[column, view], left, top)
    for row, task in enumerate(rows):
        middle = MARGIN + HEADING + row * (IMAGE_SIZE + ROW_GAP) + IMAGE_SIZE // 2
        write(canvas, (MARGIN, middle), task, "lm")
    return np.array(canvas)


if __name__ == "__main__":
    draw_tokens(tyro.cli(TokensSettings))
