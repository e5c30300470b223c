"""What is known of a shipped model beside its config: where it comes from, and what it has achieved.

It is in a file of its own, so that a new evaluation changes neither the model nor the hash that evaluations
know it by. The card and the list of models say nothing that is not in the config or here.
"""

from dataclasses import dataclass
from pathlib import Path

from scope_wm.files import read_object
from scope_wm.records import from_json
from scope_wm.types import UsageError

FILE = "record.json"


@dataclass(frozen=True, kw_only=True)
class Data:
    """The store that a model was trained on."""

    seed: int
    training_episodes: int
    validation_episodes: int
    frames: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """One stage of training; `windows` are the different ones, `samples` counts every repetition."""

    stage: str
    windows: int
    samples: int
    steps: int
    seconds: float
    machine: str | None  # None: not recorded
    precision: str = "float32"  # of products


@dataclass(frozen=True, kw_only=True)
class Result:
    """One evaluation, or its first instances; means over instances, distances in units of the task."""

    planner: str
    other: str  # settings that are not those of the protocol
    instances: int
    all_of: int  # the evaluation has so many; if these are fewer, its first ones
    solved: int | None  # some tasks have a distance only
    start_distance: float
    final_distance: float
    plan_seconds: float
    weights: str  # float16: those that ship; float32: before they were rounded
    machine: str
    way_made: float | None = None  # the share of the way to the goal, of tasks with a distance only
    distance_interval: tuple[float, float] | None = None  # of the final one, of tasks with a distance only


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything that a card tells beside the config."""

    parameters: int
    preset: str
    data: Data
    trainings: list[Training]  # that led to the model, in order
    recall: float | None  # of the teacher's top K by the selector, in training episodes, if there is one
    recall_by_chance: float | None
    results: list[Result]


def read_record(directory: Path) -> Record:
    """Read the record of a shipped model."""
    file = directory / FILE
    if not file.is_file():
        raise UsageError(f"{directory} is not a shipped model: it has no {FILE}")
    return from_json(Record, read_object(file), str(file))
