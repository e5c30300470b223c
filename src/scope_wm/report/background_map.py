"""A picture of how wrong the background is after one action: copied, updated by a sparse model, and dense.

now | after one action | error of copying | error of the sparse model | error of the dense one

These are errors of tokens, in the held-out windows that change most. The tokens that the sparse model
predicts in full stay bare: what is judged is the background.
"""

from math import isqrt
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from scope_wm.background import background_mask
from scope_wm.data.play import Picture
from scope_wm.data.windows import Window, Windows, spread_rows
from scope_wm.model.architecture import ModelConfig
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import WorldModel
from scope_wm.report.run_directory import HeldOut, open_held_out
from scope_wm.report.selector_map import heat
from scope_wm.report.sheet import Cell, sheet
from scope_wm.train.dynamics import HELD_OUT
from scope_wm.types import Image

ROWS = 3

Frames = UInt8[np.ndarray, "B 2 224 224 3"]
Errors = Float[Tensor, "B N"]


def draw_background(run: Path, sparse: str, dense: str) -> Picture:
    """Draw the errors of a sparse model of a run beside those of a dense one."""
    models = {name: TrainedModel.from_pretrained(run / name) for name in (sparse, dense)}
    config = models[sparse].config
    window, frames = most_changing(config, open_held_out(run, config.encoder), ROWS)
    worlds = {name: model.world_model for name, model in models.items()}
    return background_map(worlds, window, frames)


def most_changing(config: ModelConfig, held_out: HeldOut, count: int) -> tuple[Window, Frames]:
    """Return the held-out windows that change most in one action, one of an episode, and their frames."""
    store, frameskip = held_out.split.store, config.frameskip
    windows = Windows(
        held_out.split, config.statistics, history=1, frameskip=frameskip, read=held_out.tokens.read
    )
    rows = spread_rows(len(windows), HELD_OUT)
    batch = windows.batch(rows)
    change = (batch.visual[:, 1].float() - batch.visual[:, 0].float()).square().mean((1, 2))
    order = change.argsort(descending=True).numpy()
    _, firsts = np.unique(store.episode_of(windows.starts[rows[order]]), return_index=True)
    chosen = order[np.sort(firsts)[:count]]
    numbers = windows.starts[rows[chosen], None] + frameskip * np.arange(2)
    frames = store.frames(numbers.reshape(-1)).reshape(*numbers.shape, 224, 224, 3)
    return Window(*(part[chosen].float() for part in batch)), frames


@torch.no_grad()
def background_map(models: dict[str, WorldModel], window: Window, frames: Frames) -> Picture:
    """Draw the picture; the first model is the sparse one. The maps of a row have the same colours."""
    errors = {"copying": (window.visual[:, 0] - window.visual[:, 1]).square().mean(-1)}
    errors |= {name: one_step_errors(model, window) for name, model in models.items()}
    background = background_of(next(iter(models.values())), window)
    rows = {}
    for row, (now, after) in enumerate(frames):
        mask = background[row]
        most = float(max(error[row][mask].max() for error in errors.values()))
        means = {name: float(error[row][mask].mean()) for name, error in errors.items()}
        cells = [
            Cell(bare(now, error[row] / most, mask), f"{means[name] / means['copying']:.2f} of copying")
            for name, error in errors.items()
        ]
        rows[f"window {row + 1}"] = [Cell(now), Cell(after), *cells]
    return sheet(["now", "after one action", *(f"error: {name}" for name in errors)], rows)


def one_step_errors(model: WorldModel, window: Window) -> Errors:
    """Return the error of every token after the first action."""
    imagined = rollout(model, window.visual[:, 0], window.proprio[:, 0], window.actions[:, :1])[:, 0]
    return (imagined[..., : model.fuse.config.visual] - window.visual[:, 1]).square().mean(-1)


def background_of(model: WorldModel, window: Window) -> Bool[Tensor, "B N"]:
    """Tell which tokens of the first frame the model does not predict in full."""
    fuse, visual = model.fuse, window.visual[:, 0]
    tokens = fuse(visual, fuse.proprio(window.proprio[:, 0]), fuse.action(window.actions[:, 0]))
    return background_mask(model.select(tokens), visual.shape[1]).squeeze(-1)


def bare(frame: Image, values: Float[Tensor, " N"], background: Bool[Tensor, " N"]) -> Image:
    """Lay values over the background of a frame as colours, and leave its foreground bare."""
    grid = background.reshape(isqrt(len(background)), -1).numpy().astype(np.uint8)
    mask = cv2.resize(grid, frame.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    return np.where(mask[..., None] == 1, heat(frame, values.clamp(0, 1)), frame)
