"""Which model an evaluation plans with: a trained one, checked against its task, or the simulator.

The simulator needs the scale of actions only: a search draws standardised ones.
"""

from scope_wm.data.split import open_splits
from scope_wm.data.statistics import statistics
from scope_wm.evaluate.settings import SIMULATOR, EvaluateSettings
from scope_wm.model.checkpoint import TrainedModel, model_directory, read_header
from scope_wm.planning.models import ActionScale, LatentModel, policy_scale
from scope_wm.selector import LatinHypercubeSelector, RandomSelector
from scope_wm.tasks import TASKS
from scope_wm.types import UsageError


def model_digest(settings: EvaluateSettings) -> str:
    """Return the hash of the model's weights, or the word simulator; refuse a model of another task."""
    if settings.simulated:
        return SIMULATOR
    source = settings.model.model
    header, config = read_header(model_directory(source))
    if config.task != settings.task:
        raise UsageError(f"expected a model of {settings.task}, {source} is one of {config.task}")
    return str(header["weights"])


def learned_model(settings: EvaluateSettings) -> LatentModel:
    """Load a trained model with its encoder."""
    chosen = settings.model
    trained = TrainedModel.from_pretrained(chosen.model, k=chosen.k, allow_other_k=chosen.allow_other_k)
    return LatentModel(
        trained.world_model,
        trained.load_encoder(chosen.encoder),
        trained.config.statistics,
        frameskip=trained.config.frameskip,
        alpha=settings.alpha,
    )


def simulator_scale(settings: EvaluateSettings) -> ActionScale:
    """Return how actions are standardised: as in the training episodes of the store, if there is one.

    Else as in five episodes of the task's data policy, always the same, played without drawing.
    """
    task = TASKS[settings.task]()
    if settings.problems_from is not None:
        values = statistics(open_splits(settings.problems_from).training)
        return ActionScale(mean=values.action_mean, std=values.action_std, frameskip=task.frameskip)
    return policy_scale(task)


def reseed(model: LatentModel, seed: int) -> None:
    """Restart the draws of a random selector, so that an instance does not depend on those before it."""
    selector = model.world_model.selector
    if isinstance(selector, RandomSelector | LatinHypercubeSelector):
        selector.generator.manual_seed(seed)
