"""Judge a model in training by planning with it, as the paper chooses its checkpoints.

The instances are none of any test: numbers far beyond those that `evaluate` begins to count with.
"""

from collections.abc import Callable

import torch

from scope_wm.evaluate.instances import instance_seed
from scope_wm.evaluate.settings import PROTOCOLS
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.mpc import Controller, MPCSettings, solve
from scope_wm.planning.objective import proprio_weight
from scope_wm.planning.planners import PLANNERS
from scope_wm.tasks import TASKS

FIRST = 1_000_000
INSTANCES = 10
TIE = 0.01  # weight of the distance left, which decides between models that solve as many


def planning_figures(
    trained: TrainedModel, planner: str, settings: MPCSettings | None = None
) -> Callable[[], dict[str, float]]:
    """Return what plans for the instances with the present weights: the share unsolved, the distance left."""
    config = trained.config
    task, protocol = TASKS[config.task](), PROTOCOLS[config.task]
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
        left = [
            task.distance(outcome.state, outcome.problem.goal)
            / task.distance(outcome.problem.start, outcome.problem.goal)
            for outcome in outcomes
        ]
        distance = sum(left) / INSTANCES
        return {"unsolved": unsolved, "distance_left": distance, "planning": unsolved + TIE * distance}

    return figures
