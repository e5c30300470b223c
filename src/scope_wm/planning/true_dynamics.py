"""The true dynamics with a learned cost: candidates are played in the simulator, and their ends compared.

A reference that tells errors of the cost from errors of the model: it plans as a perfect model would.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from scope_wm.planning.latent import LatentModel
from scope_wm.planning.models import Observations, execute, observe_states
from scope_wm.planning.objective import Goal, distances
from scope_wm.planning.search import Cost
from scope_wm.tasks.task import Task

BATCH = 64  # images encoded at a time


@dataclass(frozen=True, kw_only=True)
class SeenState:
    """What the model sees of each of B problems, and the states that the simulator goes on from."""

    visual: Float[Tensor, "B N V"]
    proprio: Float[Tensor, "B P"]
    states: Float64[np.ndarray, "B state"]


class TrueDynamics:
    """A learned model's encoder and cost, with the simulator in the place of what it imagines."""

    def __init__(self, task: Task, model: LatentModel) -> None:
        self.task = task
        self.model = model
        self.action_width = model.action_width
        self.task_actions = model.task_actions
        self.device = model.device

    def reseed(self, seeds: Sequence[int]) -> None:
        """Do nothing: the simulator draws nothing, and no tokens are selected."""

    def see(self, observations: Observations) -> SeenState:
        """Encode the images as the model does, and keep the states."""
        if observations.states is None:
            raise ValueError("expected observations with states: the simulator goes on from them")
        seen = self.model.see(observations)
        return SeenState(visual=seen.visual, proprio=seen.proprio, states=observations.states)

    def cost(self, now: SeenState, goal: SeenState, previous: SeenState | None = None) -> Cost:
        """Return the model's cost of where plans really end."""
        goals = zip(goal.visual, self._embedded(goal.proprio), strict=True)
        aims = [Goal(visual=visual, proprio=proprio) for visual, proprio in goals]

        def cost(candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
            problems = zip(now.states, self.task_actions(candidates), aims, strict=True)
            return torch.stack([self._end_costs(*problem) for problem in problems])

        return cost

    def _embedded(self, proprio: Float[Tensor, "B P"]) -> Float[Tensor, "B E"]:
        return self.model.world_model.fuse.proprio(proprio)

    def _end_costs(
        self,
        start: Float64[np.ndarray, " state"],
        plans: Float64[np.ndarray, "S steps action"],
        goal: Goal,
    ) -> Float[Tensor, " S"]:
        """Return how far from its goal the plans of one problem end."""
        costs = []
        for first in range(0, len(plans), BATCH):
            ends = [execute(self.task, start, plan) for plan in plans[first : first + BATCH]]
            seen = self.model.see(observe_states(self.task, ends))
            costs.append(distances(seen.visual, self._embedded(seen.proprio), goal, self.model.alpha))
        return torch.cat(costs)
