"""The evaluations of a model in a run, as its card tells them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from scope_wm.report.evaluated import Evaluated, read_evaluations
from scope_wm.report.ours import machine_of
from scope_wm.shipping.record import Result


def results_of(run: Path, weights: Mapping[str, str]) -> list[Result]:
    """Return the evaluations of a model, which is known by its hash, whatever directory they name.

    `weights` tells for every hash whether it is of the rounded weights. An evaluation that is longer than the
    protocol asks for is told twice: all of it, and the instances of the protocol.
    """
    results = []
    for one in read_evaluations([run]):
        if kind := weights.get(one.run.config["model_digest"]):
            told = {len(part.run.records): part for part in (one, one.protocol)}
            results += [result_of(part, kind) for part in told.values()]
    return sorted(results, key=lambda each: (each.weights, each.planner, each.other, -each.instances))


def result_of(one: Evaluated, weights: str) -> Result:
    """Return what the instances of an evaluation amount to."""
    records = one.run.records.values()
    return Result(
        planner=one.settings["planner"],
        other=", ".join([*changes(one), *one.deviations()]),
        instances=len(records),
        solved=None if one.success is None else one.success.solved,
        start_distance=float(np.mean([record.start_distance for record in records])),
        final_distance=float(np.mean([record.final_distance for record in records])),
        plan_seconds=float(np.mean([record.plan_seconds for record in records])),
        weights=weights,
        machine=machine_of(one),
    )


def changes(one: Evaluated) -> list[str]:
    """Return the candidates and the tokens, where other numbers than the usual ones were asked for."""
    asked = {"samples": one.settings["samples"], "K =": one.settings["k"]}
    return [f"{name} {value}" for name, value in asked.items() if value is not None]
