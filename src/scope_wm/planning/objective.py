"""How far an imagined future is from the goal.

    cost = mean over patches and channels of (x_hat - x_goal)^2 + alpha * mean of (p_hat - p_goal)^2

on the last frame. A predicted frame's proprio embedding p_hat is the mean over its patches.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from scope_wm.model.world_model import Fuse


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is to be reached: the goal's visual tokens and proprio embedding, one for each problem."""

    visual: Float[Tensor, "*#B N V"]
    proprio: Float[Tensor, "*#B E"]


def proprio_weight(task: str) -> float:
    """Return the alpha that a task is evaluated with: PointMaze compares images only."""
    return 0.0 if task == "point_maze" else 1.0


def frame_costs(
    fuse: Fuse, frames: Float[Tensor, "*B L N D"], goal: Goal, alpha: float
) -> Float[Tensor, "*B L"]:
    """Return the distance of every frame to the goal."""
    visual, proprio, _ = fuse.split(frames)
    there = Goal(visual=goal.visual.unsqueeze(-3), proprio=goal.proprio.unsqueeze(-2))
    return distances(visual, proprio, there, alpha)


def distances(
    visual: Float[Tensor, "*B N V"], proprio: Float[Tensor, "*B E"], goal: Goal, alpha: float
) -> Float[Tensor, " *B"]:
    """Return how far visual tokens and proprio embeddings are from the goal."""
    visual_error = (visual - goal.visual).square().mean((-1, -2))
    return visual_error + alpha * (proprio - goal.proprio).square().mean(-1)


def last_frame(costs: Float[Tensor, "*B L"]) -> Float[Tensor, " *B"]:
    """Return the cost of where the future ends."""
    return costs[..., -1]
