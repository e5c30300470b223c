"""Imagining L frames from one observed frame and L actions: the plain form, without any saving.

It is the yardstick: whatever is faster must give the same frames.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.model.world_model import WorldModel


def rollout(
    model: WorldModel,
    visual: Float[Tensor, "B N V"],
    proprio: Float[Tensor, "B P"],
    actions: Float[Tensor, "B L A"],
    previous: Float[Tensor, "B N V"] | None = None,
) -> Float[Tensor, "B L N D"]:
    """Return the L predicted frames; `previous` is the observation before the first frame, if there was one.

    The window grows to H frames and then slides; positions restart with it. A frame's foreground is chosen
    once, when it enters the window. The last frame has no action: its action channels mean nothing.
    """
    fuse = model.fuse
    embedded = fuse.action(actions)
    frames = [fuse(visual, fuse.proprio(proprio), embedded[:, 0])]
    before = None if previous is None else torch.cat([previous, frames[0][..., fuse.config.visual :]], dim=-1)
    chosen = []
    for step in range(actions.shape[1]):
        chosen.append(model.select(frames[-1], before))
        window = torch.stack(frames[-model.history :], dim=1)
        predicted = model(window, torch.stack(chosen[-model.history :], dim=1))[:, -1]
        if step + 1 < actions.shape[1]:
            predicted = fuse.with_action(predicted, embedded[:, step + 1])
        before = frames[-1]
        frames.append(predicted)
    return torch.stack(frames[1:], dim=1)
