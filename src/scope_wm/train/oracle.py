"""How well a sparse model predicts one step with the tokens that its teacher would have it keep.

    indices = top-K of the teacher's relevance in this very step, which depends on the frame to be predicted

So it can be known of held-out windows only, never in planning. It is no bound: a model was trained with its
own selector, and may predict better with that.
"""

import torch
from torch import Tensor

from scope_wm.data.windows import Window
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import WorldModel
from scope_wm.selector import OracleSelector
from scope_wm.train.relevance import targets


def oracle_figures(model: WorldModel, teacher: WorldModel, batches: list[Window]) -> dict[str, float]:
    """Return the one-step error of held-out windows with the oracle's selection, relative to copying."""
    teacher.eval().requires_grad_(False)
    errors = torch.stack([torch.stack(oracle_errors(model, teacher, batch)) for batch in batches]).mean(0)
    return {"oracle_of_copy": float(errors[0] / errors[1])} if errors[1] > 0 else {}


def oracle_errors(model: WorldModel, teacher: WorldModel, batch: Window) -> tuple[Tensor, Tensor]:
    """Return the mean squared error of one step from the first frames, and that of copying them."""
    device = next(model.parameters()).device
    visual, proprio, actions = (part.to(device).float() for part in batch)
    now, following = visual[:, 0], visual[:, 1]
    scores = targets(teacher.to(device), Window(visual[:, :2], proprio[:, :2], actions[:, :1]))
    knowing = WorldModel(
        model.fuse, model.predictor, OracleSelector(model.selector.k, scores[:, 0]), model.background
    )
    with torch.no_grad():
        imagined = rollout(knowing, now, proprio[:, 0], actions[:, :1])[:, 0, :, : now.shape[-1]]
    return (imagined - following).square().mean(), (now - following).square().mean()
