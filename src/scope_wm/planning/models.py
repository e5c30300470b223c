"""What a planner can plan with: the seam, and the simulator itself.

A model turns observations and goals into a `Cost` of standardised candidates, and plans into actions of the
task. A learned model (`planning/latent.py`) sees images and proprio only. The simulator sees states: it is
a reference that tells errors of the planner from errors of the model. `planning/true_dynamics.py` is between
them: the true dynamics with a learned cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, UInt8
from torch import Tensor

from scope_wm.planning.search import Cost
from scope_wm.tasks.task import Task, episode_rng
from scope_wm.types import State

SCALE_EPISODES = 5


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What is seen of each of B problems; states are for the simulator only."""

    images: UInt8[np.ndarray, "B 224 224 3"]
    proprio: Float32[np.ndarray, "B proprio"]
    states: Float64[np.ndarray, "B state"] | None = None


def execute(task: Task, state: State, actions: Float64[np.ndarray, "steps action"]) -> State:
    """Return the state after all actions."""
    task.set_state(state)
    for action in actions:
        task.advance(action)
    return task.state()


def observe_states(task: Task, states: Sequence[State]) -> Observations:
    """Return what is seen in each state."""
    images, proprio = [], []
    for state in states:
        task.set_state(state)
        images.append(task.render())
        proprio.append(task.proprio())
    return Observations(images=np.stack(images), proprio=np.stack(proprio), states=np.stack(states))


V = TypeVar("V")


@runtime_checkable
class PlanningModel(Protocol[V]):
    """A model that can tell which plans are good, from its own view V of observations.

    A view is a dataclass of arrays with one row for each problem.
    """

    action_width: int  # A: that of the task times frameskip

    @property
    def device(self) -> torch.device:
        """Return where searches are to run."""
        ...

    def reseed(self, seeds: Sequence[int]) -> None:
        """Begin again with all that is drawn at random, for problems of these seeds."""
        ...

    def see(self, observations: Observations) -> V:
        """Take in what is observed, once for all candidates and all steps that need it."""
        ...

    def cost(self, now: V, goal: V, previous: V | None = None) -> Cost:
        """Return the cost of plans that begin now and should end at the goal; `previous` was seen before."""
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

    def to_standard(self, action: Float64[np.ndarray, " action"]) -> Float[Tensor, " A"]:
        """Return the world-model action that is this action of the task at every simulator step."""
        return torch.from_numpy(np.tile((action - self.mean) / self.std, self.frameskip)).float()


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


@dataclass(frozen=True, kw_only=True)
class States:
    """What the simulator sees of each of B problems."""

    states: Float64[np.ndarray, "B state"]


class SimulatorModel:
    """The true dynamics: every candidate is played in the simulator and judged by the path left to go."""

    def __init__(self, task: Task, scale: ActionScale) -> None:
        self.task = task
        self.scale = scale
        self.action_width = scale.width
        self.task_actions = scale.to_task
        self.device = torch.device("cpu")

    def reseed(self, seeds: Sequence[int]) -> None:
        """Do nothing: the simulator draws nothing."""

    def see(self, observations: Observations) -> States:
        """Take the states: the simulator plans with nothing else."""
        if observations.states is None:
            raise ValueError("expected observations with states: the simulator plans with nothing else")
        return States(states=observations.states)

    def cost(self, now: States, goal: States, previous: States | None = None) -> Cost:
        """Return the cost of plans by where they really end."""
        starts, goals = now.states, goal.states

        def cost(candidates: Float[Tensor, "B S L A"]) -> Float[Tensor, "B S"]:
            actions = self.scale.to_task(candidates)
            costs = [
                [self.task.path_left(execute(self.task, start, plan), aim) for plan in plans]
                for start, plans, aim in zip(starts, actions, goals, strict=True)
            ]
            return torch.tensor(costs, dtype=candidates.dtype, device=candidates.device)

        return cost
