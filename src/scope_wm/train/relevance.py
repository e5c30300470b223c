"""Relevance targets: how much each visual token matters to a trained dense model's loss.

    r = || x * dL_T/dx ||_2 over channels        q = (r + eps) / sum_j (r_j + eps) per frame

The teacher is in evaluation mode, and frozen but for the input. What the head sees beside the tokens is what
it will see in the sparse model: the teacher's embeddings of proprio and action, which stay as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float16, Int64
from torch import Tensor

from scope_wm.data.windows import Window, Windows
from scope_wm.model.world_model import WorldModel, prediction_loss
from scope_wm.selector import relevance


@dataclass(frozen=True, kw_only=True)
class RelevanceTargets:
    """Windows of tokens with the teacher's relevance; `batch` is what the distillation learns from."""

    visual: Float16[Tensor, "W H N V"]
    proprio: Float[Tensor, "W H E"]
    action: Float[Tensor, "W H E"]
    q: Float[Tensor, "W H N"]

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self.q)

    def batch(self, rows: Int64[np.ndarray, " n"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the arguments of the distillation loss."""
        return self.visual[rows].float(), self.proprio[rows], self.action[rows], self.q[rows]

    def part(self, rows: slice) -> "RelevanceTargets":
        """Return some of the windows."""
        return RelevanceTargets(
            visual=self.visual[rows], proprio=self.proprio[rows], action=self.action[rows], q=self.q[rows]
        )


def export_targets(
    teacher: WorldModel, windows: Windows, rows: Int64[np.ndarray, " W"], batch: int
) -> Iterator[RelevanceTargets]:
    """Yield the targets of some windows, batch by batch."""
    device = next(teacher.parameters()).device
    teacher.eval().requires_grad_(False)
    for first in range(0, len(rows), batch):
        visual, proprio, actions = (
            part.to(device).float() for part in windows.batch(rows[first : first + batch].tolist())
        )
        q = targets(teacher, Window(visual, proprio, actions))
        yield RelevanceTargets(
            visual=visual[:, :-1].half().cpu(),
            proprio=teacher.fuse.proprio(proprio[:, :-1]).cpu(),
            action=teacher.fuse.action(actions).cpu(),
            q=q.cpu(),
        )


def targets(teacher: WorldModel, window: Window) -> Float[Tensor, "B H N"]:
    """Return how much each token of the input frames of windows matters to the teacher's loss."""
    return relevance(window.visual[:, :-1], partial(_loss, teacher, window))


def joined(parts: list[RelevanceTargets]) -> RelevanceTargets:
    """Return batches of targets as one."""
    return RelevanceTargets(
        visual=torch.cat([part.visual for part in parts]),
        proprio=torch.cat([part.proprio for part in parts]),
        action=torch.cat([part.action for part in parts]),
        q=torch.cat([part.q for part in parts]),
    )


def _loss(teacher: WorldModel, window: Window, x: Float[Tensor, "B H N V"]) -> Float[Tensor, ""]:
    """Return the teacher's loss with the tokens of its input frames in the place of the observed ones.

    A frame that is both an input and a target gets a gradient as an input only: targets are detached.
    """
    visual = torch.cat([x, window.visual[:, -1:]], dim=1)
    return prediction_loss(teacher, visual, window.proprio, window.actions)
