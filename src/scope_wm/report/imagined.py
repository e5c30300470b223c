"""A picture of what the models of a run imagine: their rollouts, drawn by the decoder, above what happened.

Of the held-out windows it is the one that changes most. Below every imagined frame stands the error of its
tokens, relative to that of copying the first frame.
"""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from scope_wm.data.play import Picture
from scope_wm.data.windows import Window, Windows, spread_rows
from scope_wm.model.architecture import ModelConfig
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.decoder import Decoder, to_uint8
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import WorldModel
from scope_wm.report.run_directory import HeldOut, open_held_out
from scope_wm.report.sheet import Cell, sheet
from scope_wm.train.dynamics import HELD_OUT, HORIZON

Frames = UInt8[np.ndarray, "T 224 224 3"]


def draw_imagined(run: Path, models: list[str]) -> Picture:
    """Draw what some models of a run imagine."""
    trained = {name: TrainedModel.from_pretrained(run / name) for name in models}
    config = trained[models[0]].config
    window, frames = liveliest(config, open_held_out(run, config.encoder))
    decoder = Decoder.from_pretrained(run / "decoder")
    worlds = {name: model.world_model for name, model in trained.items()}
    return imagined(worlds, decoder, window, frames)


def liveliest(config: ModelConfig, held_out: HeldOut) -> tuple[Window, Frames]:
    """Return the held-out window whose last frame differs most from its first, and its frames."""
    frameskip, read = config.frameskip, held_out.tokens.read
    windows = Windows(held_out.split, config.statistics, history=HORIZON, frameskip=frameskip, read=read)
    rows = spread_rows(len(windows), HELD_OUT)
    batch = windows.batch(rows)
    change = (batch.visual[:, -1].float() - batch.visual[:, 0].float()).square().mean((1, 2))
    most = int(change.argmax())
    numbers = windows.starts[rows[most]] + frameskip * np.arange(HORIZON + 1)
    return Window(*(part[most] for part in batch)), held_out.split.store.frames(numbers)


@torch.no_grad()
def imagined(models: dict[str, WorldModel], decoder: Decoder, window: Window, frames: Frames) -> Picture:
    """Draw the models' rollouts over one window, then its decoded tokens, then its frames."""
    visual = window.visual.float()
    rows = {}
    for name, model in models.items():
        start = (visual[:1], window.proprio[:1], window.actions[None])
        tokens, *_ = model.fuse.split(rollout(model, *start)[0])
        notes = [f"{share:.2f} of copying" for share in errors_of_copy(tokens, visual)]
        rows[name] = _cells(drawn(decoder, torch.cat([visual[:1], tokens])), ["observed", *notes])
    rows["decoded"] = _cells(drawn(decoder, visual), [""] * len(frames))
    rows["real"] = _cells(frames, [""] * len(frames))
    titles = ["now", *(f"after {step} action{'s' * (step > 1)}" for step in range(1, len(frames)))]
    return sheet(titles, rows)


def errors_of_copy(imagined: Float[Tensor, "L N V"], visual: Float[Tensor, "T N V"]) -> list[float]:
    """Return the error of every imagined frame, relative to that of copying the first one."""
    errors = (imagined - visual[1:]).square().mean((1, 2))
    return (errors / (visual[:1] - visual[1:]).square().mean((1, 2))).tolist()


def drawn(decoder: Decoder, visual: Float[Tensor, "T N V"]) -> Frames:
    """Draw frames from their tokens."""
    return to_uint8(decoder(visual)).numpy()


def _cells(pictures: Frames, notes: list[str]) -> list[Cell]:
    return [Cell(picture, note) for picture, note in zip(pictures, notes, strict=True)]
