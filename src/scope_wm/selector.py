"""Distilled relevance selection (DRS): which K tokens of a frame need full dynamics.

The teacher's relevance, for its loss L_T on a window with visual tokens x:

    r_i = || x_i * dL_T/dx_i ||_2        q_i = (r_i + eps) / sum_j (r_j + eps)

The head that is distilled from it, with the proprio and action embeddings of the frame, and the selection:

    s_i = g(phi_x(x_i) + phi_p(p) + phi_a(e(a)))        pi = softmax(s)
    L_DRS = KL(q || pi)                                 F = TopK(s)

A selector is any callable of the `Selector` form: a new one is one class, passed to the world model.
"""

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

# Relevance is tiny (1e-6 is usual: the loss is a mean): a larger epsilon would flatten it.
EPSILON = 1e-12


@runtime_checkable
class Selector(Protocol):
    """Choose K tokens of a frame, given its proprio and action embeddings and the frame before it."""

    k: int

    def __call__(
        self,
        visual: Float[Tensor, "*B N V"],
        proprio: Float[Tensor, "*B E"],
        action: Float[Tensor, "*B E"],
        previous: Float[Tensor, "*B N V"] | None,
    ) -> Int[Tensor, "*B K"]:
        """Return sorted indices."""
        ...


def top_k(scores: Float[Tensor, "*B N"], k: int) -> Int[Tensor, "*B K"]:
    """Return the indices of the k highest scores, ascending; ties go to the lower index."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return order[..., :k].sort(dim=-1).values


class RelevanceHead(nn.Module):
    """The token-wise head g with its three projections; returns logits."""

    def __init__(self, *, visual: int, embedding: int, hidden: int = 128) -> None:
        super().__init__()
        self.visual = nn.Linear(visual, hidden)
        self.proprio = nn.Linear(embedding, hidden)
        self.action = nn.Linear(embedding, hidden)
        self.score = nn.Sequential(
            nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(
        self,
        visual: Float[Tensor, "*B N V"],
        proprio: Float[Tensor, "*B E"],
        action: Float[Tensor, "*B E"],
    ) -> Float[Tensor, "*B N"]:
        """Score every token of a frame."""
        context = self.proprio(proprio) + self.action(action)
        return self.score(self.visual(visual) + context.unsqueeze(-2)).squeeze(-1)


class DistilledSelector(nn.Module):
    """Select by the distilled head, which is frozen."""

    def __init__(self, head: RelevanceHead, k: int) -> None:
        super().__init__()
        self.head = head.requires_grad_(False)
        self.k = k

    @torch.no_grad()
    def forward(
        self, visual: Tensor, proprio: Tensor, action: Tensor, previous: Tensor | None = None
    ) -> Tensor:
        """Return the k most relevant tokens."""
        return top_k(self.head(visual, proprio, action), self.k)


class EveryToken(nn.Module):
    """Select all N tokens: the dense model."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.k = num_tokens

    def forward(self, visual: Tensor, *_: object) -> Tensor:
        """Return every index."""
        return torch.arange(self.k, device=visual.device).expand(visual.shape[:-1])


class RandomSelector(nn.Module):
    """Select k tokens uniformly at random."""

    def __init__(self, k: int, generator: torch.Generator) -> None:
        super().__init__()
        self.k = k
        self.generator = generator

    def forward(self, visual: Tensor, *_: object) -> Tensor:
        """Return a fresh draw for every frame."""
        return self.draw(visual.shape[:-2], visual.shape[-2], visual.device)

    def draw(self, batch: Sequence[int], n: int, device: torch.device) -> Int[Tensor, "*B K"]:
        """Choose of n tokens, for every frame of a batch."""
        return top_k(uniform((*batch, n), self.generator, device), self.k)


class LatinHypercubeSelector(nn.Module):
    """Select k tokens spread over the grid: a Latin hypercube of k points, clashes replaced at random."""

    def __init__(self, k: int, generator: torch.Generator) -> None:
        super().__init__()
        self.k = k
        self.generator = generator

    def forward(self, visual: Tensor, *_: object) -> Tensor:
        """Return a fresh draw for every frame."""
        return self.draw(visual.shape[:-2], visual.shape[-2], visual.device)

    def draw(self, batch: Sequence[int], n: int, device: torch.device) -> Int[Tensor, "*B K"]:
        """Choose of n tokens, for every frame of a batch."""
        side = isqrt(n)
        if side * side != n:
            raise ValueError(f"expected a square grid of tokens, got {n}")
        strata, within = uniform((2, 2, *batch, self.k), self.generator, device)
        points = (strata.argsort(-1) + within) / self.k
        row, column = (points * side).long().clamp(max=side - 1)
        hit = torch.zeros(*batch, n, device=device).scatter(-1, row * side + column, 1.0)
        return top_k(hit + uniform((*batch, n), self.generator, device), self.k)


class MotionSelector(nn.Module):
    """Select the k tokens that changed most since the frame before, or else from their mean in the data."""

    def __init__(self, k: int, mean: Float[Tensor, "N V"]) -> None:
        super().__init__()
        self.k = k
        self.mean: Tensor
        self.register_buffer("mean", mean)

    def forward(
        self, visual: Tensor, proprio: Tensor, action: Tensor, previous: Tensor | None = None
    ) -> Tensor:
        """Return the k tokens of largest change."""
        change = visual - (self.mean if previous is None else previous)
        return top_k(change.norm(dim=-1), self.k)


class OracleSelector(nn.Module):
    """Select by given scores, such as the teacher's target: for one-step evaluation, never for planning."""

    def __init__(self, k: int, scores: Float[Tensor, "*B N"]) -> None:
        super().__init__()
        self.k = k
        self.scores = scores

    def forward(self, visual: Tensor, *_: object) -> Tensor:
        """Return the top k of the scores, which must be those of these very frames."""
        if self.scores.shape != visual.shape[:-1]:
            raise ValueError(
                f"the oracle has scores of {tuple(self.scores.shape)}, not {tuple(visual.shape[:-1])}"
            )
        return top_k(self.scores, self.k)


def uniform(shape: Sequence[int], generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw where the generator is, so that every device sees the same numbers."""
    return torch.rand(tuple(shape), generator=generator, device=generator.device).to(device)


def relevance(
    visual: Float[Tensor, "*B N V"], loss: Callable[[Tensor], Float[Tensor, ""]]
) -> Float[Tensor, "*B N"]:
    """Return the target q: how much each visual token matters to the teacher's loss, per frame."""
    x = visual.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x), x)
    r = (x.detach() * gradient).norm(dim=-1) + EPSILON
    return r / r.sum(dim=-1, keepdim=True)


def distillation_loss(logits: Float[Tensor, "*B N"], q: Float[Tensor, "*B N"]) -> Float[Tensor, ""]:
    """Return KL(q || softmax(logits)), summed over tokens and averaged over frames."""
    return F.kl_div(logits.float().log_softmax(-1), q, reduction="none").sum(-1).mean()


def recall(logits: Float[Tensor, "*B N"], q: Float[Tensor, "*B N"], k: int) -> float:
    """Return the share of the teacher's top k that the head's top k contains."""
    chosen = torch.zeros_like(q).scatter(-1, top_k(logits, k), 1.0)
    return float(chosen.gather(-1, top_k(q, k)).mean())
