"""Speed of the five simulators on one core: physics alone, and physics with drawing."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from scope_wm.tasks import TASKS
from scope_wm.tasks.task import Task, episode_rng
from scope_wm.types import UsageError

ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class BenchTasksSettings:
    """Measure the speed of the five simulators on one core, under the policies that collect data.

    Example: scope-wm bench tasks --seconds 2
    """

    seconds: float = 1.0
    """how long each of the five rounds of a measurement lasts; the best round counts"""
    seed: int = 0
    """of the starts and policies"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        if self.seconds <= 0:
            raise UsageError(f"expected --seconds above 0, got {self.seconds:g}")
        if self.seed < 0:
            raise UsageError(f"expected --seed of at least 0, got {self.seed}")


def bench_tasks(settings: BenchTasksSettings) -> None:
    """Print the speeds of all tasks."""
    cv2.setNumThreads(1)  # drawing would take every core
    table = Table("task", "steps/s", "frames/s", "ms a step", "ms a step with its frame")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in track(TASKS, description="measuring", transient=True):
        task, rng = TASKS[name](), episode_rng(settings.seed, 0)
        steps = best_rate(partial(play, task, rng, draw=False), settings.seconds)
        frames = best_rate(partial(draw, task), settings.seconds)
        both = best_rate(partial(play, task, rng, draw=True), settings.seconds)
        table.add_row(name, f"{steps:,.0f}", f"{frames:,.0f}", f"{1000 / steps:.2f}", f"{1000 / both:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"One core, best of {ROUNDS} rounds of {settings.seconds:g} s. A step of rope and granular is a push."
    )


def play(task: Task, rng: np.random.Generator, *, draw: bool) -> int:
    """Play one episode of the data policy and return its number of steps."""
    task.set_state(task.sample_start(rng))
    policy = task.policy(rng)
    steps = 0
    while steps < task.episode_length and not task.spoilt():
        task.advance(policy(task.state()))
        if draw:
            task.render()
        steps += 1
    return steps


def draw(task: Task) -> int:
    """Draw the current state many times and return how many."""
    for _ in range(task.episode_length):
        task.render()
    return task.episode_length


def best_rate(work: Callable[[], int], seconds: float) -> float:
    """Return the best rate, over a few rounds, at which `work` does what it counts."""
    rates = []
    for _ in range(ROUNDS):
        done, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds or done == 0:
            done += work()
        rates.append(done / elapsed)
    return max(rates)
