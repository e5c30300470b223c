"""Sparse Imagination: imagine a random subset of the patches, as if there were no others.

    training    a token sees the tokens of its own group only, one of about N / K that are drawn for a window
    planning    K patches, drawn for a search: they alone are imagined, and compared with the goal

A group that sees only itself is a model of these patches alone, and that is what is planned with.
"""

from copy import deepcopy
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from scope_wm.model.world_model import WorldModel, dense
from scope_wm.selector import LatinHypercubeSelector, RandomSelector


def draw_patches(model: WorldModel) -> Int[Tensor, " K"]:
    """Draw the patches to imagine, with the model's selector."""
    selector = model.selector
    if not isinstance(selector, RandomSelector | LatinHypercubeSelector):
        raise ValueError(f"expected a selector that draws at random, got {type(selector).__name__}")
    return selector.draw((), model.fuse.config.num_tokens, model.predictor.positions.device)


@torch.no_grad()
def of_patches(model: WorldModel, patches: Int[Tensor, " K"]) -> WorldModel:
    """Return the dense model of some patches, a copy with these rows of the position table only."""
    fuse, predictor = deepcopy(model.fuse), deepcopy(model.predictor)
    rows = predictor.positions.unflatten(0, (predictor.history, -1))[:, patches].flatten(0, 1)
    predictor.positions = nn.Parameter(rows, requires_grad=False)
    predictor.num_tokens = len(patches)
    fuse.config = replace(fuse.config, num_tokens=len(patches))
    return dense(fuse, predictor)
