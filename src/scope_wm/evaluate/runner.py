"""Evaluate: solve the instances that a run does not have yet, in processes of their own, and sum up.

An instance depends on its number, the settings and the model alone: neither the number of workers nor being
killed in between changes anything but times. Every worker plans with one thread, for the order in which
threads add up numbers would show in the last digits.
"""

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from scope_wm.data.progress import progress
from scope_wm.data.workers import Report, run_in_processes
from scope_wm.evaluate.instances import InstanceRecord, instance_seed, problem_source, run_instance
from scope_wm.evaluate.memory import PeakMemory
from scope_wm.evaluate.models import planning_model, simulator_scale
from scope_wm.evaluate.run import SUMMARY, append, is_complete, read_config, read_records, writing
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.evaluate.summary import Summary, lines, summarise
from scope_wm.files import write_json
from scope_wm.planning.load import load_latent_model
from scope_wm.planning.models import ActionScale
from scope_wm.records import to_json
from scope_wm.tasks import find_task


class Job(NamedTuple):
    """The instances that one worker solves; the scale of actions is for the simulator only."""

    settings: EvaluateSettings
    scale: ActionScale | None
    instances: Iterable[int]


class Turns:
    """Instances that processes share: each gets one that no other has taken."""

    def __init__(self, instances: Sequence[int]) -> None:
        self.instances = instances
        self.taken = multiprocessing.get_context("spawn").Value("i", 0)

    def __iter__(self) -> Iterator[int]:
        """Yield one instance after another, until there is none left."""
        while True:
            with self.taken.get_lock():
                turn = self.taken.value
                self.taken.value += 1
            if turn >= len(self.instances):
                return
            yield self.instances[turn]


def evaluate(settings: EvaluateSettings) -> None:
    """Evaluate what is missing, write the summary and print it."""
    summary = run(settings)
    print(f"{settings.path}: {settings.task}, {settings.model.model}, {settings.search.planner}")
    print("\n".join(lines(summary)))


def run(settings: EvaluateSettings) -> Summary:
    """Evaluate the instances that are missing and return what all of them amount to."""
    path = settings.path
    if len(read_records(path)) < settings.count and not settings.model.simulated:
        load_latent_model(settings.model, settings.task)  # what is wrong with it is said before any writing
    with writing(settings) as file:
        done, count = read_records(path), read_config(path)["settings"]["instances"]  # it may be a longer run
        pending = [instance for instance in range(count) if instance not in done]
        if pending:
            with progress("instances", count, len(done)) as advance:

                def report(record: InstanceRecord) -> None:
                    append(file, record)
                    advance()

                run_in_processes(solve_instances, jobs(settings, pending), report)
        summary = summarise(settings, list(read_records(path).values()))
        if not is_complete(path):
            write_json(path / SUMMARY, to_json(summary))
    return summary


def jobs(settings: EvaluateSettings, pending: list[int]) -> list[Job]:
    """Return a job for every worker: whoever is free takes the next instance, for some take far longer."""
    scale = simulator_scale(settings.task, settings.problems_from) if settings.model.simulated else None
    return [Job(settings, scale, Turns(pending))] * min(settings.worker_count, len(pending))


def solve_instances(job: Job, report: Report) -> None:
    """Solve one instance after another and report each."""
    torch.set_num_threads(1)
    settings, task = job.settings, find_task(job.settings.task)()
    problem_of = problem_source(task, settings.problems_from)
    model = planning_model(settings.model, task, job.scale)
    controller = settings.search.controller(model, settings.task, settings.seed, settings.worker_count)
    memory = PeakMemory(model.device)
    for instance in job.instances:
        problem = problem_of(instance_seed(instance))
        report(run_instance(task, problem, instance, controller, memory))
