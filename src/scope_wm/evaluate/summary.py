"""What the records of a run amount to, each figure with how certain it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scope_wm.evaluate.instances import InstanceRecord
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.evaluate.statistics import Interval, bootstrap, wilson

SIMULATOR_NOTE = (
    "The model is the simulator: a reference. Its cost is the true path left to the goal, not a "
    "distance of images."
)
TRUE_DYNAMICS_NOTE = (
    "True dynamics: candidates were played in the simulator, and what is seen at their end compared with "
    "the goal as the model does. A reference: of the model only its encoder and its cost are tested."
)
TABLE_NOTE = (
    "Rope and Granular are rebuilt on pymunk: the same kind of task as the paper's, not its benchmark. "
    "The distance is Chamfer's; there is no rule of success."
)


@dataclass(frozen=True, kw_only=True)
class Success:
    """How many instances were solved, the share of them, and its 95 % interval after Wilson."""

    solved: int
    instances: int
    rate: float
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a run; peak memory is in bytes, plan time in seconds of all searches of an instance."""

    instances: int
    success: Success | None
    success_block_must_move: Success | None
    success_block_may_stay: Success | None
    mean_steps_to_success: float | None
    median_steps_to_success: float | None
    mean_final_distance: float
    final_distance_interval: Interval
    way_made: float | None  # of tasks without a rule of success
    mean_plan_seconds: float
    total_plan_seconds: float
    mean_samples: float
    total_samples: int
    peak_memory: int | None
    notes: tuple[str, ...] = ()


def success_of(records: Sequence[InstanceRecord]) -> Success | None:
    """Return the success on some instances, or None if there are none."""
    if not records:
        return None
    solved, count = sum(record.success for record in records), len(records)
    return Success(solved=solved, instances=count, rate=solved / count, interval=wilson(solved, count))


def way_made(records: Sequence[InstanceRecord]) -> float | None:
    """Return which share of the way to their goals instances have gone, as a ratio of mean distances."""
    nearest = [record.least_distance for record in records if record.least_distance is not None]
    if len(nearest) < len(records):
        return None
    start, final = (
        float(np.mean([getattr(record, name) for record in records]))
        for name in ("start_distance", "final_distance")
    )
    least = float(np.mean(nearest))
    return (start - final) / (start - least) if start > least else None


def summarise(settings: EvaluateSettings, records: Sequence[InstanceRecord]) -> Summary:
    """Return what all instances of a run amount to."""
    judged = records if settings.protocol.has_success else []
    steps = [record.steps for record in judged if record.success]
    distances = np.array([record.final_distance for record in records])
    seconds = [record.plan_seconds for record in records]
    samples = [record.samples for record in records]
    peaks = [record.peak_memory for record in records if record.peak_memory is not None]
    return Summary(
        instances=len(records),
        success=success_of(judged),
        success_block_must_move=success_of([r for r in judged if r.block_must_move is True]),
        success_block_may_stay=success_of([r for r in judged if r.block_must_move is False]),
        mean_steps_to_success=float(np.mean(steps)) if steps else None,
        median_steps_to_success=float(np.median(steps)) if steps else None,
        mean_final_distance=float(distances.mean()),
        final_distance_interval=bootstrap(distances),
        way_made=None if settings.protocol.has_success else way_made(records),
        mean_plan_seconds=float(np.mean(seconds)),
        total_plan_seconds=sum(seconds),
        mean_samples=float(np.mean(samples)),
        total_samples=sum(samples),
        peak_memory=max(peaks, default=None),
        notes=notes(settings),
    )


def notes(settings: EvaluateSettings) -> tuple[str, ...]:
    """Return what a reader of the figures must know."""
    chosen = {
        SIMULATOR_NOTE: settings.model.simulated,
        TRUE_DYNAMICS_NOTE: settings.model.true_dynamics,
        TABLE_NOTE: not settings.protocol.has_success,
        "Searches had a deadline: results depend on the machine.": settings.search.max_seconds is not None,
    }
    return tuple(note for note, applies in chosen.items() if applies)


def lines(summary: Summary) -> list[str]:
    """Return the summary as lines to print."""
    low, high = summary.final_distance_interval
    steps, memory = summary.mean_steps_to_success, summary.peak_memory
    rows = {
        "success": success_text(summary.success),
        "  block must move": success_text(summary.success_block_must_move),
        "  block may stay": success_text(summary.success_block_may_stay),
        "steps to success": steps and f"{steps:.2f} in the mean, {summary.median_steps_to_success:g} median",
        "final distance": f"{summary.mean_final_distance:.4g} in the mean ({low:.4g} to {high:.4g})",
        "way made": way_text(summary.way_made),
        "plan time": f"{summary.mean_plan_seconds:.2f} s an instance",
        "samples": f"{summary.mean_samples:.0f} an instance",
        "peak memory": memory and f"{memory / 2**20:.1f} MiB for planning",
    }
    return [f"  {name:<18} {text}" for name, text in rows.items() if text] + [*summary.notes]


def way_text(share: float | None) -> str:
    """Return a share of the way as text."""
    return "" if share is None else f"{100 * share:.0f} % of the way"


def success_text(success: Success | None) -> str:
    """Return a share of successes as text."""
    if success is None:
        return ""
    low, high = (100 * end for end in success.interval)
    count = f"{success.solved} of {success.instances}"
    return f"{100 * success.rate:.1f} % ({low:.1f} to {high:.1f} %), {count}"
