"""A picture of what the selector looks at, on held-out frames.

frame | the teacher's relevance q | the head's softmax(s) | TopK(s), for every K
"""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path

import cv2
import matplotlib
import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from scope_wm.data.play import Picture
from scope_wm.data.windows import Windows
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.report.plan_video import spotlight
from scope_wm.report.run_directory import HeldOut, open_held_out
from scope_wm.report.sheet import Cell, sheet
from scope_wm.selector import RelevanceHead, top_k
from scope_wm.train.distill import KS, load_head
from scope_wm.train.relevance import export_targets
from scope_wm.types import Image, UsageError

FRAMES = 4
COLOURS = matplotlib.colormaps["inferno"]
OPACITY = 0.7  # of the colours over the frame


@dataclass(frozen=True, kw_only=True)
class JudgedFrames:
    """Frames, how much each of their tokens matters to the teacher, and the head's scores."""

    numbers: Int64[np.ndarray, " F"]  # in the store
    frames: UInt8[np.ndarray, "F 224 224 3"]
    q: Float[Tensor, "F N"]
    logits: Float[Tensor, "F N"]


def draw_selector(run: Path) -> Picture:
    """Draw what the selector of a run looks at."""
    header, config = read_header(run / "teacher")
    head, sizes = load_head(run / "selector")
    if sizes.teacher != header["weights"]:
        raise UsageError(f"{run / 'selector'} was distilled from another dense model than {run / 'teacher'}")
    teacher = TrainedModel.from_pretrained(run / "teacher")
    return selector_map(judge_frames(teacher, head, open_held_out(run, config.encoder), FRAMES))


def judge_frames(teacher: TrainedModel, head: RelevanceHead, held_out: HeldOut, count: int) -> JudgedFrames:
    """Let the teacher and the head judge frames that are evenly spread over the held-out windows."""
    config, (split, tokens) = teacher.config, (held_out.split, held_out.tokens)
    windows = Windows(
        split, config.statistics, history=config.history, frameskip=config.frameskip, read=tokens.read
    )
    count = min(count, len(windows))
    rows = ((np.arange(count) + 0.5) * len(windows) / count).astype(np.int64)
    (targets,) = export_targets(teacher.world_model, windows, rows, batch=count)
    visual, proprio, action, q = targets.batch(np.arange(count))
    with torch.no_grad():
        logits = head(visual, proprio, action)
    numbers = windows.starts[rows] + (config.history - 1) * config.frameskip  # the last frame that is seen
    return JudgedFrames(numbers=numbers, frames=split.store.frames(numbers), q=q[:, -1], logits=logits[:, -1])


def selector_map(judged: JudgedFrames) -> Picture:
    """Draw the picture; the two maps of a frame have the same colours."""
    ks = [k for k in KS if k < judged.q.shape[-1]]
    rows = {}
    for number, frame, q, logits in zip(
        judged.numbers.tolist(), judged.frames, judged.q, judged.logits, strict=True
    ):
        share = logits.softmax(-1)
        most = float(torch.maximum(q, share).max())
        maps = [
            Cell(heat(frame, values / most), f"at most {float(values.max()):.1%}") for values in (q, share)
        ]
        rows[f"frame {number}"] = [Cell(frame), *maps, *(kept(frame, q, logits, k) for k in ks)]
    return sheet(
        ["held-out frame", "the teacher's relevance", "the selector's", *(f"K = {k}" for k in ks)], rows
    )


def heat(frame: Image, values: Float[Tensor, " N"]) -> Image:
    """Lay values from 0 to 1 over a frame as colours, a square for each token, from black to yellow."""
    colours = 255 * COLOURS(_grid(values))[..., :3]
    squares = cv2.resize(colours, frame.shape[:2], interpolation=cv2.INTER_NEAREST)
    grey = frame.mean(axis=-1, keepdims=True)
    return (OPACITY * squares + (1 - OPACITY) * grey).astype(np.uint8)


def kept(frame: Image, q: Float[Tensor, " N"], logits: Float[Tensor, " N"], k: int) -> Cell:
    """Show the k tokens that are kept, and say how many of them the teacher would keep."""
    mask = torch.zeros(len(q), dtype=torch.bool).scatter(0, top_k(logits, k), True)
    agreed = int(mask[top_k(q, k)].sum())
    return Cell(spotlight(frame, _grid(mask)), f"{agreed} of the teacher's {k}")


def _grid(values: Tensor) -> np.ndarray:
    return values.reshape(isqrt(len(values)), -1).numpy()
