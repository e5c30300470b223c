"""What a planner can plan with: a learned world model, or the simulator itself.

Both turn observations and goals into a `Cost` of standardised candidates, and plans into actions of the task.
The learned model sees images and proprio only. The simulator sees states: it is the upper bound that tells
errors of the planner from errors of the model.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, UInt8
from torch import Tensor

from scope_wm.model.encoder import Encoder
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import WorldModel
from scope_wm.planning.objective import Goal, frame_costs, last_frame
from scope_wm.planning.search import Cost
from scope_wm.tasks.task import Task, episode_rng
from scope_wm.types import Statistics

SCALE_EPISODES = 5


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What is seen of each of B problems; states are for the simulator only."""

    images: UInt8[np.ndarray, "B 224 224 3"]
    proprio: Float32[np.ndarray, "B proprio"]
    states: Float64[np.ndarray, "B state"] | None = None


@runtime_checkable
class PlanningModel(Protocol):
    """A model that can tell which plans are good."""

    action_width: int  # A: that of the task times frameskip

    def cost(self, now: Observations, goal: Observations) -> Cost:
        """Return the cost of plans that begin now and should end at the goal."""
        ...

    def task_actions(self, plan: Float[Tensor, "B L A"]) -> Float64[np.ndarray, "B steps action"]:
        """Return a plan in the units of the task, one action for each simulator step."""
        ...


@dataclass(frozen=True, kw_only=True)
class ActionScale:
    """Standardised world-model actions to actions of the task and back."""

    mean: Float64[np.ndarray, " action"]
    std: Float64[np.ndarray, " action"]
    frameskip: int

    @property
    def width(self) -> int:
        """Return A, the width of a world-model action."""
        return self.frameskip * len(self.mean)

    def to_task(self, plan: Float[Tensor, "*B L A"]) -> Float64[np.ndarray, "*B steps action"]:
        """Return one action of the task for each simulator step of the plan."""
        standard = plan.detach().cpu().double().numpy()
        return standard.reshape(*plan.shape[:-2], -1, len(self.mean)) * self.std + self.mean


def policy_scale(task: Task) -> ActionScale:
    """Return the scale of the data policy's actions in a few fixed episodes, for want of a data set."""
    actions = []
    for episode in range(SCALE_EPISODES):
        rng = episode_rng(0, episode)
        task.set_state(task.sample_start(rng))
        policy = task.policy(rng)
        for _ in range(task.episode_length - 1):
            if task.spoilt():
                break
            actions.append(policy(task.state()))
            task.advance(actions[-1])
    return ActionScale(mean=np.mean(actions, axis=0), std=np.std(actions, axis=0), frameskip=task.frameskip)


class LatentModel:
    """A learned world model with its frozen encoder; `alpha` weighs the proprio part of the cost."""

    def __init__(
        self,
        world_model: WorldModel,
        encoder: Encoder,
        statistics: Statistics,
        *,
        frameskip: int,
        alpha: float,
    ) -> None:
        self.world_model = world_model
        self.encoder = encoder
        self.statistics = statistics
        self.alpha = alpha
        self.scale = ActionScale(mean=statistics.action_mean, std=statistics.action_std, frameskip=frameskip)
        self.action_width = self.scale.width
        self.task_actions = self.scale.to_task

    def cost(self, now: Observations, goal: Observations) -> Cost:
        """Encode both once; a cost imagines every candidate from there."""
        model, (visual, proprio) = self.world_model, self.seen(now)
        goal_visual, goal_proprio = self.seen(goal)
        target = Goal(visual=goal_visual.unsqueeze(1), proprio=model.fuse.proprio(goal_proprio).unsqueeze(1))

        def cost(candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
            problems, samples = candidates.shape[:2]
            images, bodies = (part.repeat_interleave(samples, dim=0) for part in (visual, proprio))
            actions = candidates.flatten(0, 1).to(visual.device)
            frames = rollout(model, images, bodies, actions).unflatten(0, (problems, samples))
            return last_frame(frame_costs(model.fuse, frames, target, self.alpha)).to(candidates.device)

        return cost

    def seen(self, observations: Observations) -> tuple[Tensor, Tensor]:
        """Return visual tokens and standardised proprio on the model's device."""
        device = next(self.world_model.parameters()).device
        standard = (observations.proprio - self.statistics.proprio_mean) / self.statistics.proprio_std
        with torch.no_grad():
            visual = self.encoder(torch.from_numpy(observations.images).to(device))
        return visual, torch.from_numpy(standard).to(device, visual.dtype)


class SimulatorModel:
    """The true dynamics: every candidate is played in the simulator and judged by the path left to go."""

    def __init__(self, task: Task, scale: ActionScale) -> None:
        self.task = task
        self.scale = scale
        self.action_width = scale.width
        self.task_actions = scale.to_task

    def cost(self, now: Observations, goal: Observations) -> Cost:
        """Return the cost of plans by where they really end."""
        if now.states is None or goal.states is None:
            raise ValueError("expected observations with states: the simulator plans with nothing else")
        starts, goals = now.states, goal.states

        def cost(candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
            actions = self.scale.to_task(candidates)
            costs = [
                [self._end_cost(start, plan, aim) for plan in plans]
                for start, plans, aim in zip(starts, actions, goals, strict=True)
            ]
            return torch.tensor(costs, dtype=candidates.dtype, device=candidates.device)

        return cost

    def _end_cost(
        self,
        start: Float64[np.ndarray, " state"],
        actions: Float64[np.ndarray, "steps action"],
        goal: Float64[np.ndarray, " state"],
    ) -> float:
        self.task.set_state(start)
        for action in actions:
            self.task.advance(action)
        return self.task.path_left(self.task.state(), goal)
