"""Problems of an evaluation, planned once more to be looked at: the evaluation keeps results, no plans.

Instance, seeds and settings are the evaluation's, and so is the single thread, for the order in which threads
add up numbers shows in the last digits: on the same machine, what is seen is what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from scope_wm.elite_bank import EliteBank
from scope_wm.evaluate.instances import instance_seed, problem_source
from scope_wm.evaluate.settings import SearchSettings
from scope_wm.hardware import computing_with
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.mpc import Outcome, solve
from scope_wm.report.evaluated import DISTILLED, EB_CEM, FOREGROUND_DELTA, PAPER_KS, Evaluated
from scope_wm.tasks import find_task
from scope_wm.tasks.task import Task
from scope_wm.types import UsageError

Sequences = Float[Tensor, "M L A"]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How one problem went, what it was planned with, and the bank that its first step filled, if any."""

    instance: int
    task: Task
    model: LatentModel
    outcome: Outcome
    bank: Sequences | None
    max_steps: int


def most_telling(found: Sequence[Evaluated]) -> Evaluated | None:
    """Return the evaluation to look at: one whose model is there, near the paper's, refined if it can be."""

    def unlike_the_papers(one: Evaluated) -> tuple[bool, bool, bool, bool, bool, int, bool]:
        setup = one.setup
        assert setup is not None
        other = setup.planner != EB_CEM, setup.selector != DISTILLED, setup.background != FOREGROUND_DELTA
        kept = setup.k != setup.trained_k, setup.k not in PAPER_KS, setup.k
        return *other, *kept, not one.is_refined

    able = [one for one in found if one.setup is not None and is_here(one)]
    return min(able, key=unlike_the_papers) if able else None


def is_here(one: Evaluated) -> bool:
    """Tell whether the model and the problems of an evaluation are still there."""
    source = one.settings["problems_from"]
    return one.directory is not None and (source is None or Path(source).is_dir())


def instances_to_show(one: Evaluated, count: int) -> list[int]:
    """Return the first instances that were solved and the first that were not, so many of each."""
    solved = [record.instance for record in one.run.records.values() if record.success]
    failed = [instance for instance in one.run.records if instance not in solved]
    return [*solved[:count], *failed[:count]]


def replay(one: Evaluated, instance: int) -> Replay:
    """Plan an instance of an evaluation once more."""
    asked, task = one.settings, find_task(one.task)()
    search: SearchSettings = _part(SearchSettings, asked)
    here = {"model": str(one.directory), "device": device_here(asked["device"])}
    model = load_latent_model(_part(ModelSettings, asked | here), one.task)
    source = asked["problems_from"]
    problem = problem_source(task, source and Path(source))(instance_seed(instance))
    controller = search.controller(model, asked["task"], asked["seed"])
    banks: list[EliteBank | None] = []
    with computing_with(1):
        (outcome,) = solve(
            task, [problem], [instance_seed(instance)], controller, lambda _: banks.append(controller.bank)
        )
    filled = banks[0]
    bank = None if filled is None or filled.local_share == 0 else filled.sequences[0]
    return Replay(
        instance=instance,
        task=task,
        model=model,
        outcome=outcome,
        bank=bank,
        max_steps=controller.settings.max_steps,
    )


def device_here(recorded: str) -> str:
    """Return the device of an evaluation, or the processor if this machine has no such device."""
    try:
        return str(ModelSettings(model="", device=recorded).resolved_device())
    except UsageError:
        return "cpu"


def _part(kind: type[Any], asked: dict[str, Any]) -> Any:
    """Return one group of the settings."""
    return kind(**{option.name: asked[option.name] for option in fields(kind)})
