"""The ways of imagining candidates that are compared, and the cost that each gives a planner.

plain dense A              DINO-WM's algorithm: the scores of attention in memory, 100 candidates a batch
plain dense A, published   the same, and the image is encoded once for every candidate
plain dense B              the same with fused attention and the best chunk
fast dense, K = 98, 32     the fast rollout, with the best chunk, parts of which are imagined side by side; if
                           asked for, compiled as well
fast K = 32, int8          the same with rounded products
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from scope_wm.bench.subject import FixedProblem
from scope_wm.model.encoder import Encoder
from scope_wm.model.fast_rollout import compiled, last_imagined
from scope_wm.model.int8 import use_int8
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import WorldModel
from scope_wm.planning.objective import Goal, frame_costs, last_frame
from scope_wm.planning.side_by_side import SideBySide

LastFrame = Callable[[WorldModel, Tensor, Tensor, Tensor], Tensor]


def plain(
    model: WorldModel,
    visual: Float[Tensor, "B N V"],
    proprio: Float[Tensor, "B P"],
    actions: Float[Tensor, "B L A"],
) -> Float[Tensor, "B N D"]:
    """Return the last frame of the plain rollout."""
    return rollout(model, visual, proprio, actions)[:, -1]


def explicit(
    model: WorldModel,
    visual: Float[Tensor, "B N V"],
    proprio: Float[Tensor, "B P"],
    actions: Float[Tensor, "B L A"],
) -> Float[Tensor, "B N D"]:
    """Return the same with softmax(Q K^T) V in three steps: torch's math backend holds all scores."""
    with sdpa_kernel(SDPBackend.MATH):
        return plain(model, visual, proprio, actions)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way of imagining: how, with how many tokens, and how many candidates at a time."""

    name: str
    k: int | None  # None: every token
    last: LastFrame
    tuned: bool  # whether the best chunk is looked for; else the largest is taken, as DINO-WM does
    encodes_each: bool = False  # whether every candidate's image is encoded, though all are the same
    int8: bool = False  # whether products are rounded
    eager: "Variant | None" = None  # of a compiled variant: the same without compilation


def compiled_variant(eager: Variant) -> Variant:
    """Return a variant of the fast rollout, compiled."""
    return replace(eager, name=f"{eager.name}, compiled", eager=eager)


PLAIN_A = Variant(name="plain dense A", k=None, last=explicit, tuned=False)
PUBLISHED = Variant(name="plain dense A, published", k=None, last=explicit, tuned=False, encodes_each=True)
PLAIN_B = Variant(name="plain dense B", k=None, last=plain, tuned=True)
FAST = (
    Variant(name="fast dense", k=None, last=last_imagined, tuned=True),
    Variant(name="fast K = 98", k=98, last=last_imagined, tuned=True),
    Variant(name="fast K = 32", k=32, last=last_imagined, tuned=True),
)
INT8 = replace(FAST[-1], name="fast K = 32, int8", int8=True)
VARIANTS = (PUBLISHED, PLAIN_A, PLAIN_B, *FAST, INT8)
COMPILED = tuple(compiled_variant(eager) for eager in FAST)


class VariantCost:
    """How far from the goal a variant imagines that candidates of the fixed problem end."""

    def __init__(self, variant: Variant, model: WorldModel, encoder: Encoder, problem: FixedProblem) -> None:
        if variant.int8:
            model = copy.deepcopy(model)
            use_int8(model)
        self.variant = variant
        self.model = model
        imagine = compiled(model) if variant.eager else partial(variant.last, model)
        divided = variant.last is last_imagined
        self.imagine = SideBySide(imagine, compiles=variant.eager is not None) if divided else imagine
        self.encoder = encoder
        self.problem = problem
        self.visual = self.encode(1)
        self.goal = Goal(
            visual=encoder(problem.goal).unsqueeze(1),
            proprio=model.fuse.proprio(problem.goal_proprio).unsqueeze(1),
        )

    def encode(self, images: int) -> Float[Tensor, "images N V"]:
        """Encode the observation so many times."""
        return self.encoder(self.problem.now.expand(images, -1, -1, -1))

    @torch.no_grad()
    def __call__(self, candidates: Float[Tensor, "1 S L A"]) -> Float[Tensor, "1 S"]:
        """Imagine every candidate, and compare its last frame with the goal."""
        samples = candidates.shape[1]
        visual = self.encode(samples) if self.variant.encodes_each else self.visual.repeat(samples, 1, 1)
        proprio = self.problem.proprio.repeat(samples, 1)
        return self.compare(self.imagine(visual, proprio, candidates[0]))

    def compare(self, frames: Float[Tensor, "S N D"]) -> Float[Tensor, "1 S"]:
        """Return how far frames are from the goal."""
        return last_frame(frame_costs(self.model.fuse, frames[None, :, None], self.goal, alpha=1.0))
