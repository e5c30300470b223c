"""What an evaluation is asked for, and the protocol of each task: the defaults are the paper's.

The groups are joined to one flat command line; a default that depends on the task is None until it is asked.
"""

import os
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from scope_wm.data.workers import usable_cores
from scope_wm.elite_bank import FIRST_STEP, LATER_STEPS
from scope_wm.planning.cem import CEMSettings, cem
from scope_wm.planning.load import ModelSettings
from scope_wm.planning.memory import parse_bytes
from scope_wm.planning.models import PlanningModel
from scope_wm.planning.mpc import Controller, MPCSettings
from scope_wm.planning.objective import proprio_weight
from scope_wm.planning.planners import PLANNERS, EliteBankCEM, Memoryless, StepPlanner
from scope_wm.planning.search import DEADLINE_CHUNK, THREAD_CHUNK, Limits
from scope_wm.tasks import TaskName
from scope_wm.types import UsageError

WIDER = FIRST_STEP.samples // LATER_STEPS.samples  # the first search of eb-cem, in units of the later ones

PlannerName = Literal["cem", "eb-cem", "icem", "mppi", "gradient", "random-shooting"]


@dataclass(frozen=True, kw_only=True)
class TaskProtocol:
    """How a task is evaluated."""

    instances: int = 50
    max_steps: int = 15
    has_success: bool = True


PROTOCOLS: dict[str, TaskProtocol] = {
    "point_maze": TaskProtocol(),
    "wall": TaskProtocol(),
    "push_t": TaskProtocol(),
    "rope": TaskProtocol(instances=10, max_steps=7, has_success=False),
    "granular": TaskProtocol(instances=10, max_steps=7, has_success=False),
}


def protocol_of(task: str) -> TaskProtocol:
    """Return how a task is evaluated; one that is not of the paper, as most of the paper's are."""
    return PROTOCOLS.get(task, TaskProtocol())


def expect_at_least(settings: object, least: dict[str, int]) -> None:
    """Refuse numbers that are too small; None stands for a default and passes."""
    for name, limit in least.items():
        value = getattr(settings, name)
        if value is not None and value < limit:
            raise UsageError(f"expected --{name.replace('_', '-')} of at least {limit}, got {value}")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How to search for actions."""

    planner: PlannerName = "eb-cem"
    """how actions are searched for"""
    samples: int | None = None
    """candidates of an iteration of cem and eb-cem, whose first step has three times as many; None: 100"""
    elites: int | None = None
    """how many of them are elites, likewise; None: 10"""
    first_samples: int | None = None
    """candidates at the first step, with elites in proportion; None: --samples, of eb-cem three times that"""
    iterations: int | None = None
    """times that cem and eb-cem draw candidates in a search; None: 10"""
    horizon: int = 5
    """world-model actions in a plan"""
    max_steps: int | None = None
    """plans at most; None: 15, or 7 for rope and granular"""
    max_seconds: float | None = None
    """seconds for each search; with a deadline, results depend on the machine"""
    chunk: int | None = None
    """candidates at a time; None: what fits in memory, on a processor 50 a thread, 50 with --max-seconds"""
    max_memory: str | None = None
    """memory for candidates, such as 2GB; None: half of a GPU's, or half of the machine's over its cores"""

    def __post_init__(self) -> None:
        """Refuse a search that cannot work."""
        counts = ("samples", "elites", "iterations", "horizon", "max_steps", "chunk")
        expect_at_least(self, dict.fromkeys(counts, 1) | {"first_samples": 2})
        if self.max_seconds is not None and not 0 < self.max_seconds < inf:
            raise UsageError(f"expected finite --max-seconds above 0, got {self.max_seconds}")
        if self.max_memory is not None and self.planner == "gradient":
            raise UsageError("what a gradient takes of memory is not estimated: give --chunk")
        self.step_planner()
        self.limits()

    @property
    def sample_counts(self) -> tuple[int, int]:
        """Return the candidates of an iteration of cem and eb-cem at the first step and at later ones."""
        later = self.samples or LATER_STEPS.samples
        return self.first_samples or later * (WIDER if self.planner == "eb-cem" else 1), later

    def step_planner(self) -> StepPlanner:
        """Return the planner, with other numbers of candidates if they were given."""
        if {self.samples, self.elites, self.first_samples, self.iterations} == {None}:
            return PLANNERS[self.planner]
        if self.planner not in ("cem", "eb-cem"):
            raise UsageError(
                "--samples, --elites, --first-samples and --iterations are for cem and eb-cem, "
                f"got {self.planner}"
            )
        (wide, samples), elites = self.sample_counts, self.elites or LATER_STEPS.elites
        iterations = self.iterations or LATER_STEPS.iterations
        try:
            later = CEMSettings(samples=samples, elites=elites, iterations=iterations)
            first = replace(later, samples=wide, elites=max(2, round(elites * wide / samples)))
        except ValueError as error:
            raise UsageError(str(error)) from error
        if self.planner == "eb-cem":
            return EliteBankCEM(first=first, later=later, bank_size=first.elites)
        if first == later:
            return Memoryless(optimiser=partial(cem, settings=later))
        return EliteBankCEM(first=first, later=later, bank_size=first.elites, local_share=0.0)

    def limits(self) -> Limits:
        """Return what a search may take."""
        chunk = DEADLINE_CHUNK if self.chunk is None and self.max_seconds is not None else self.chunk
        try:
            memory = None if self.max_memory is None else parse_bytes(self.max_memory)
            return Limits(chunk=chunk, memory=memory, seconds=self.max_seconds)
        except ValueError as error:
            raise UsageError(f"--max-memory: {error}") from error

    def mpc(self, task: TaskName, seed: int) -> MPCSettings:
        """Return the settings of the control loop; `seed` is that of the searches."""
        max_steps = self.max_steps or protocol_of(task).max_steps
        return MPCSettings(horizon=self.horizon, max_steps=max_steps, seed=seed)

    def controller(
        self, model: PlanningModel[Any], task: TaskName, seed: int, processes: int = 1
    ) -> Controller:
        """Return the control loop that searches like this, beside so many `processes` on the same GPU."""
        limits = replace(self.limits(), processes=processes)
        return Controller(model, self.step_planner(), self.mpc(task, seed), limits=limits)


def home(task: TaskName, model: ModelSettings) -> Path:
    """Return where things made with a model go by default: beside it, if it is a directory."""
    source = Path(model.model)
    return source.parent if source.is_dir() else Path("runs") / task


def expect_writable(directory: Path) -> None:
    """Refuse a directory that is not there and cannot be made, or that nothing can be written to."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        raise UsageError(f"expected --out to name a place in directories, {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise UsageError(f"expected --out to name a place that can be written to, {existing} cannot")


def expect_plannable(model: ModelSettings, search: SearchSettings) -> None:
    """Refuse a model that cannot be searched like that."""
    if search.planner == "gradient" and model.precision == "int8":
        raise UsageError("the gradient planner needs float32 or bfloat16: products in int8 have no gradient")
    if model.plays and search.planner == "gradient":
        raise UsageError("the gradient planner needs a learned model: a simulator has no gradient")
    if model.plays and search.max_memory is not None:
        raise UsageError("a simulator plays one candidate after another: it takes no --max-memory")


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """Solve problems of a task with a model and a planner, and say how well that went.

    Instance i has seed 99 i + 1. After an interruption the same command goes on; with more instances it
    makes a finished run grow, with fewer it leaves it as it is. Results do not depend on the number of
    workers (on a GPU, which they share, but for rounding); times may.

    Example: scope-wm evaluate --task push_t --model push_t/faster --instances 20 --out runs/push_t-faster
    """

    task: TaskName
    """what to do"""
    model: Annotated[ModelSettings, tyro.conf.arg(name="")]
    search: Annotated[SearchSettings, tyro.conf.arg(name="")] = field(default_factory=SearchSettings)
    out: Path | None = None
    """directory of the run; None: evaluate/MODEL-PLANNER beside the model, or in runs/TASK"""
    instances: int | None = None
    """how many problems; None: 50, or 10 for rope and granular"""
    problems_from: Path | None = None
    """store whose validation episodes the problems come from; None: the task makes them"""
    seed: int = 0
    """seed of the searches"""
    workers: int | None = None
    """processes, each with one thread; None: one for every core, a single one on a GPU"""

    def __post_init__(self) -> None:
        """Refuse what cannot be evaluated."""
        expect_at_least(self, {"instances": 1, "seed": 0, "workers": 1})
        expect_plannable(self.model, self.search)

    @property
    def path(self) -> Path:
        """Return the directory of the run."""
        name = f"{self.model.name}-{self.search.planner}"
        return self.out or home(self.task, self.model) / "evaluate" / name

    @property
    def protocol(self) -> TaskProtocol:
        """Return how this task is evaluated."""
        return protocol_of(self.task)

    @property
    def count(self) -> int:
        """Return how many instances there are."""
        return self.instances or self.protocol.instances

    @property
    def worker_count(self) -> int:
        """Return how many processes there are."""
        default = usable_cores() if self.model.resolved_device().type == "cpu" else 1
        return self.workers or default

    @property
    def alpha(self) -> float:
        """Return the weight of proprio."""
        return proprio_weight(self.task) if self.model.alpha is None else self.model.alpha

    @property
    def mpc(self) -> MPCSettings:
        """Return the settings of the control loop."""
        return self.search.mpc(self.task, self.seed)

    @property
    def chunk(self) -> int | None:
        """Return how many candidates are imagined at a time, where that is known: workers have one thread."""
        on_processor = not self.model.plays and self.model.resolved_device().type == "cpu"
        return self.search.limits().chunk or (THREAD_CHUNK if on_processor else None)

    def resolved(self) -> dict[str, Any]:
        """Return every setting as JSON can hold it, with the defaults of the task filled in."""
        values = asdict(self)
        groups = values.pop("model") | values.pop("search")
        source = None if self.problems_from is None else str(self.problems_from)
        filled: dict[str, Any] = {
            "instances": self.count,
            "device": str(self.model.resolved_device()),
            "max_steps": self.mpc.max_steps,
            "chunk": self.chunk,
            "workers": self.worker_count,
            "problems_from": source,
        }
        if not self.model.simulated:
            filled["alpha"] = self.alpha
        return values | groups | filled | {"out": str(self.path)}
