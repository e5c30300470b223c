"""Muon: the matrices of transformers step along their orthogonalised momentum, everything else with AdamW.

    M <- beta M + (1 - beta) G
    W <- (1 - rate decay) W - rate sqrt(max(rows, columns)) O(beta M + (1 - beta) G)

O makes all singular values about 1, so that rare directions are learned as fast as frequent ones; with the
root, the root mean square of a step is a little less than the rate, as of the longest steps of AdamW. After
descriptions of the method by K. Jordan, and by J. Liu et al. for the root. PyTorch's own computes O in
bfloat16, which is slow on processors that lack it.
"""

from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scope_wm.model.transformer import Transformer

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # a s + b s^3 + c s^5 drives singular values from 0 to 1 towards 1


class Muon(torch.optim.AdamW):
    """AdamW, but for some matrices."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        matrices: list[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        self.matrices = matrices

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move the matrices, and leave what is left to AdamW."""
        if closure is not None:
            raise ValueError("expected gradients that are there, not a closure that computes them")
        (group,) = self.param_groups
        for matrix in self.matrices:
            if (gradient := matrix.grad) is None:
                continue
            state = self.state[matrix]
            if not state:  # AdamW wants to find a step in every state
                state |= {"step": torch.tensor(0.0), "momentum": torch.zeros_like(matrix)}
            state["step"] += 1
            momentum = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
            direction = orthogonalised(gradient.lerp(momentum, MOMENTUM))
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.sub_(direction, alpha=group["lr"] * max(matrix.shape) ** 0.5)
            matrix.grad = None
        return super().step()


def orthogonalised(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Return U V^T of the matrix U S V^T, about: 0.7 to 1.2 for all singular values but very small ones."""
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if len(matrix) <= matrix.shape[1] else wide.T


def transformer_matrices(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights of all linear layers within transformers that are trained."""
    transformers = (part for part in module.modules() if isinstance(part, Transformer))
    layers = (layer for part in transformers for layer in part.modules() if isinstance(layer, nn.Linear))
    weights = (cast(nn.Parameter, layer.weight) for layer in layers)
    return [weight for weight in weights if weight.requires_grad]
