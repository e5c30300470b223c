"""Judge a model in training by planning with it, as the paper chooses its checkpoints.

The instances are none of any test: numbers far beyond those that `evaluate` begins to count with.
"""

from collections.abc import Callable

import torch

from scope_wm.evaluate.instances import instance_seed
from scope_wm.evaluate.settings import protocol_of
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.mpc import Controller, MPCSettings, Outcome, solve
from scope_wm.planning.objective import proprio_weight
from scope_wm.planning.planners import PLANNERS
from scope_wm.tasks import find_task
from scope_wm.tasks.task import Task

FIRST = 1_000_000
INSTANCES = 10
TIE = 0.01  # weight of the distance left, which decides between models that solve as many


def planning_figures(
    trained: TrainedModel, planner: str, settings: MPCSettings | None = None
) -> Callable[[], dict[str, float]]:
    """Return what plans for the instances with the present weights: the share unsolved, the distance left."""
    config = trained.config
    task, protocol = find_task(config.task)(), protocol_of(config.task)
    encoder = trained.load_encoder()
    seeds = [instance_seed(FIRST + number) for number in range(INSTANCES)]
    problems = [task.sample_problem(seed) for seed in seeds]

    def figures() -> dict[str, float]:
        model = LatentModel(
            trained.world_model,
            encoder,
            config.statistics,
            frameskip=config.frameskip,
            alpha=proprio_weight(config.task),
        )
        if isinstance(encoder, torch.nn.Module):
            encoder.to(model.device)
        loop = settings or MPCSettings(max_steps=protocol.max_steps)
        outcomes = solve(task, problems, seeds, Controller(model, PLANNERS[planner], loop))
        unsolved = sum(not outcome.success for outcome in outcomes) / INSTANCES
        distance = sum(distance_left(task, outcome) for outcome in outcomes) / INSTANCES
        return {"unsolved": unsolved, "distance_left": distance, "planning": unsolved + TIE * distance}

    return figures


def distance_left(task: Task, outcome: Outcome) -> float:
    """Return the share of the distance that is left; all of it, also where the problem ended farther away.

    A start close to its goal could otherwise outweigh problems that were solved.
    """
    goal = outcome.problem.goal
    return min(1.0, task.distance(outcome.state, goal) / task.distance(outcome.problem.start, goal))
