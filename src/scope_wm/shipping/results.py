"""The evaluations of a model, as its card tells them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scope_wm.evaluate.settings import WIDER
from scope_wm.evaluate.summary import way_made
from scope_wm.report.evaluated import EB_CEM, SAMPLES, Evaluated, read_evaluations
from scope_wm.report.ours import machine_of
from scope_wm.shipping.record import Result


def results_of(runs: Sequence[Path], weights: Mapping[str, str]) -> list[Result]:
    """Return the evaluations of a model, which is known by its hash, whatever directory they name.

    `weights` tells for every hash whether it is of the rounded weights. An evaluation that is longer than the
    protocol asks for is told twice: all of it, and the instances of the protocol.
    """
    results = []
    for one in read_evaluations(runs):
        kind = weights.get(one.run.config["model_digest"])
        if kind and not one.plays:  # what the simulator plays is not the model's doing
            told = {len(part.run.records): part for part in (one, one.protocol)}
            results += [result_of(part, kind, all_of=len(one.run.records)) for part in told.values()]
    return sorted(results, key=order)


def order(result: Result) -> tuple[Any, ...]:
    """Put a part of an evaluation right behind the whole."""
    return result.weights, result.planner, result.other, result.machine, -result.all_of, -result.instances


def result_of(one: Evaluated, weights: str, all_of: int) -> Result:
    """Return what the instances amount to, which may be the first of so many of an evaluation."""
    records = one.run.records.values()
    return Result(
        planner=one.settings["planner"],
        other=", ".join([*changes(one), *one.deviations()]),
        instances=len(records),
        all_of=all_of,
        solved=None if one.success is None else one.success.solved,
        start_distance=float(np.mean([record.start_distance for record in records])),
        final_distance=float(np.mean([record.final_distance for record in records])),
        plan_seconds=float(np.mean([record.plan_seconds for record in records])),
        weights=weights,
        machine=machine_of(one),
        way_made=None if one.has_success else way_made(list(records)),
        distance_interval=None if one.has_success else one.score()[1:],
    )


def changes(one: Evaluated) -> list[str]:
    """Return the candidates and the tokens, where other numbers than the usual ones were asked for."""
    samples = one.settings["samples"]
    first = (samples or SAMPLES) * (WIDER if one.settings["planner"] == EB_CEM else 1)
    asked = {
        "samples": samples,
        "first samples": one.settings["first_samples"],
        "K =": one.settings["k"],
    }
    usual = {
        "samples": SAMPLES,
        "first samples": first,
        "K =": None if one.setup is None else one.setup.trained_k,
    }
    return [f"{name} {value}" for name, value in asked.items() if value not in (None, usual[name])]
