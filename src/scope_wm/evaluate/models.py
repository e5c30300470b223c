"""Which model an evaluation plans with: a trained one, checked against its task, or the simulator.

Or both: the cost of the one with the dynamics of the other. The simulator alone needs the scale of actions,
for a search draws standardised ones.
"""

import hashlib
from pathlib import Path
from typing import Any

from scope_wm.data.split import open_splits
from scope_wm.data.statistics import statistics
from scope_wm.files import CONFIG
from scope_wm.model.checkpoint import model_directory, read_header
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.load import SIMULATOR, ModelSettings, load_latent_model
from scope_wm.planning.models import ActionScale, SimulatorModel, policy_scale
from scope_wm.planning.true_dynamics import TrueDynamics
from scope_wm.tasks import find_task
from scope_wm.tasks.task import Task
from scope_wm.types import UsageError


def model_digest(settings: ModelSettings, task: str) -> str:
    """Return the hash of the model's config, or the word simulator; refuse a model of another task.

    The config holds the hashes of the weights and of the encoder, so its own stands for all of the model.
    """
    if settings.simulated:
        return SIMULATOR
    directory = model_directory(settings.model)
    _, config = read_header(directory)
    if config.task != task:
        raise UsageError(f"expected a model of {task}, {settings.model} is one of {config.task}")
    return hashlib.sha256((directory / CONFIG).read_bytes()).hexdigest()


def model_header(settings: ModelSettings) -> dict[str, Any] | None:
    """Return what a model's own config tells of it, its sizes and how it was made; None for the simulator."""
    return None if settings.simulated else read_header(model_directory(settings.model))[0]


def simulator_scale(task: str, problems_from: Path | None) -> ActionScale:
    """Return how actions are standardised: as in the training episodes of the store, if there is one.

    Else as in five episodes of the task's data policy, always the same, played without drawing.
    """
    simulator = find_task(task)()
    if problems_from is not None:
        values = statistics(open_splits(problems_from).training)
        return ActionScale(mean=values.action_mean, std=values.action_std, frameskip=simulator.frameskip)
    return policy_scale(simulator)


def planning_model(
    settings: ModelSettings, task: Task, scale: ActionScale | None
) -> LatentModel | SimulatorModel | TrueDynamics:
    """Return what is planned with; the simulator is given its scale, others bring their own."""
    if scale is not None:
        return SimulatorModel(task, scale)
    learned = load_latent_model(settings, task.name)
    return TrueDynamics(task, learned) if settings.true_dynamics else learned
