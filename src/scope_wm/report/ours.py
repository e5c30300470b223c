"""Our own evaluations: looked up by what was evaluated, compared with the dense model, and all in a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scope_wm.elite_bank import LATER_STEPS
from scope_wm.evaluate.compare import compare_records, pair, times_compare
from scope_wm.evaluate.summary import success_of, success_text
from scope_wm.report.evaluated import (
    DENSE,
    DISTILLED,
    FOREGROUND_DELTA,
    OWN_SIZES,
    Evaluated,
    Setup,
    dense,
)
from scope_wm.report.page import Notes, Section, Table
from scope_wm.tasks import TASKS

COLUMNS = (
    "evaluation",
    "task",
    "model",
    "planner",
    "result",
    "first 50 or 10",
    "block must move",
    "against dense",
    "plan time",
    "of a step",
    "steps to success",
    "peak memory",
    "made",
)
MIB = 2**20
UNKNOWN = "-"
TERMS = ("max_steps", "horizon", "max_seconds")  # of a comparison
LIMITS = ("chunk", "max_memory")  # of memory
NOTES = [
    "Result: the share of solved problems with Wilson's 95 % interval. Of Rope and Granular, which have no "
    "rule of success: the mean final Chamfer distance with its bootstrap interval, lower is better, and "
    "the share that was made of the way to about the nearest that can be reached, a ratio of means.",
    "First 50 or 10: the result on as many problems as the paper has (10 of Rope and Granular, else 50), if "
    "more were evaluated.",
    "Block must move: Push-T's problems that are not solved by moving the agent alone.",
    "Against dense: p of McNemar's exact test of success on the same problems, or the difference of mean "
    "final distances with its bootstrap interval and the p of flipping signs. The dense model is one with "
    "CEM of the same sizes, refined if the other is, with as many steps and iterations, as long plans and as "
    "much time.",
    "Plan time: of all searches of a problem until it is solved or the steps are over, in the mean.",
    "Faster: the ratio of plan times on the problems that both were evaluated on, so not always that of the "
    "times shown.",
    "Refined: trained further on what it imagines itself, which the paper does not do.",
    "Planner: with the candidates of an iteration at the first and at later steps of control.",
    "Made: by which preset, on which machine, and in what else it differs from the paper's protocol.",
]


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Evaluations to be shown, in the order of the tasks."""

    found: list[Evaluated]

    def of(self, setup: Setup | None) -> list[Evaluated]:
        """Return the evaluations of a setup."""
        return [one for one in self.found if setup is not None and one.setup == setup]

    @cached_property
    def machines(self) -> list[str]:
        """Return the machines in words, each once."""
        return list(dict.fromkeys(map(machine_of, self.found)))

    def made_with(self, one: Evaluated) -> str:
        """Return preset and machine, and in what the evaluation differs from the paper's."""
        trained = ["refined"] if one.is_refined else []
        if any(kind != "float32" for kind in one.precisions):
            trained.append(f"trained in {' and '.join(one.precisions)}")
        return ", ".join([self.preset_text(one), *trained, self.machine_text(one), *one.deviations()])

    def made(self, one: Evaluated) -> str:
        """Return the number of what it was made with."""
        return str(self.makings.index(self.made_with(one)) + 1)

    @cached_property
    def makings(self) -> list[str]:
        """Return what evaluations were made with, each once."""
        return list(dict.fromkeys(map(self.made_with, self.found)))

    def preset_text(self, one: Evaluated) -> str:
        """Return the preset; sizes that are no preset's are numbered, if there are several."""
        preset = one.preset
        several = preset == OWN_SIZES and len(self.own_sizes) > 1
        return f"{OWN_SIZES} {self.own_sizes.index(one.sizes) + 1}" if several else preset

    @cached_property
    def own_sizes(self) -> list[tuple[Any, ...] | None]:
        """Return the sizes that are no preset's, each once."""
        return list(dict.fromkeys(one.sizes for one in self.found if one.preset == OWN_SIZES))

    def machine_text(self, one: Evaluated) -> str:
        """Return the machine by its number."""
        return f"machine {self.machines.index(machine_of(one)) + 1}"

    def dense_of(self, one: Evaluated) -> Evaluated | None:
        """Return the dense model with CEM on the same problems and of the same sizes, if it was evaluated.

        Both or neither were refined, both had as many steps, as long plans and as much time, and what else
        was unusual of the dense one was so of both. Of several it is one whose times compare, if there is
        such a one.
        """
        able = [other for other in self.of(dense(one.task)) if is_yardstick(other, one)]

        def unlike(other: Evaluated) -> tuple[bool, bool]:
            return not times_compare(other.run, one.run), other.deviations() != one.deviations()

        return min(able, key=unlike, default=None)

    def faster(self, one: Evaluated) -> str:
        """Return how many times less time planning takes than with the dense model, made alike."""
        yardstick = self.dense_of(one)
        if yardstick is None or not times_compare(yardstick.run, one.run):
            return UNKNOWN
        return f"{1 / compare_records(*pair([yardstick.run, one.run])).time_ratio:.2f}x"

    def memory_share(self, one: Evaluated) -> str:
        """Return the peak memory relative to the dense model's, made alike and with the same limits."""
        yardstick = self.dense_of(one)
        if yardstick is None or not alike(yardstick, one, LIMITS):
            return UNKNOWN
        own, whole = (each.run.summary["peak_memory"] for each in (one, yardstick))
        known = own and whole and times_compare(yardstick.run, one.run)
        return f"{100 * own / whole:.0f} %" if known else UNKNOWN

    def against_dense(self, one: Evaluated) -> str:
        """Return the p-value of equal success or the difference of distances, by problems that both have."""
        yardstick = self.dense_of(one)
        if yardstick is None or yardstick is one or one.plays:
            return ""
        found = compare_records(*pair([yardstick.run, one.run]), has_success=one.has_success)
        if found.p_success is not None:
            return f"p = {found.p_success:.2g}"
        low, high = found.distance_interval
        difference = f"{found.distance_difference:+.2g} ({low:+.2g} to {high:+.2g})"
        return f"{difference}, p = {found.p_distance:.2g}"


def is_yardstick(yardstick: Evaluated, one: Evaluated) -> bool:
    """Tell whether an evaluation of a dense model was on the same terms as another."""
    return (
        yardstick.run.config["data_digest"] == one.run.config["data_digest"]
        and (yardstick.sizes, yardstick.is_refined) == (one.sizes, one.is_refined)
        and alike(yardstick, one, TERMS)
        and iterations(yardstick) == iterations(one)
        and set(yardstick.deviations()) <= set(one.deviations())
    )


def iterations(one: Evaluated) -> int:
    """Return how often a search draws candidates."""
    return one.settings["iterations"] or LATER_STEPS.iterations


def alike(first: Evaluated, other: Evaluated, names: Sequence[str]) -> bool:
    """Tell whether some settings of two evaluations are the same."""
    return all(first.settings[name] == other.settings[name] for name in names)


def ours_of(found: list[Evaluated]) -> Ours:
    """Put evaluations into the order of the tasks."""
    order = {name: number for number, name in enumerate(TASKS)}
    return Ours(found=sorted(found, key=lambda one: order.get(one.task, len(order))))


def evaluations_section(ours: Ours) -> Section:
    """Return the table of all evaluations."""
    rows = [evaluation_row(ours, one) for one in ours.found]
    made = [f"Made {number}: {text}." for number, text in enumerate(ours.makings, 1)]
    machines = [f"Machine {number}: {text}." for number, text in enumerate(ours.machines, 1)]
    remarks = list(dict.fromkeys(note for one in ours.found for note in one.run.summary["notes"]))
    return Section("What we evaluated", [Table(COLUMNS, rows), Notes([*made, *machines, *NOTES, *remarks])])


def evaluation_row(ours: Ours, one: Evaluated) -> tuple[str, ...]:
    """Return the cells of one evaluation."""
    steps = one.run.summary["mean_steps_to_success"]
    moved = success_of([record for record in one.run.records.values() if record.block_must_move])
    return (
        one.run.path.resolve().name,
        one.task,
        model_text(one),
        planner_text(one),
        one.result_text(),
        one.protocol.result_text() if one.is_longer else "",
        success_text(moved),
        ours.against_dense(one),
        plan_time(one),
        step_time(one),
        UNKNOWN if steps is None else f"{steps:.2f}",
        peak_memory(one),
        ours.made(one),
    )


def model_text(one: Evaluated) -> str:
    """Return which model was evaluated, and in what it differs from the paper's."""
    setup = one.setup
    if one.plays and one.header is not None:
        return "true dynamics, learned cost"
    if setup is None:
        return one.preset
    if setup.selector == DENSE:
        return "dense"
    differs = {
        f"trained with {setup.trained_k}": setup.k != setup.trained_k,
        f"selection {setup.selector}": setup.selector != DISTILLED,
        f"background {setup.background}": setup.background != FOREGROUND_DELTA,
    }
    return ", ".join([f"K = {setup.k}", *(text for text, is_told in differs.items() if is_told)])


def planner_text(one: Evaluated) -> str:
    """Return the planner, with the candidates of first and later steps."""
    samples = () if one.samples is None else ("/".join(map(str, one.samples)),)
    return " ".join([one.settings["planner"], *samples])


def plan_seconds(one: Evaluated) -> float:
    """Return the mean plan time of an instance."""
    return float(np.mean([record.plan_seconds for record in one.run.records.values()]))


def step_seconds(one: Evaluated) -> float:
    """Return the mean plan time of a step of control."""
    records = one.run.records.values()
    return float(np.sum([r.plan_seconds for r in records]) / np.sum([r.steps for r in records]))


def plan_time(one: Evaluated) -> str:
    """Return the mean plan time of an instance as text; that of a simulator tells nothing of a model."""
    return UNKNOWN if one.plays else f"{plan_seconds(one):.1f} s"


def step_time(one: Evaluated) -> str:
    """Return the mean plan time of a step of control as text, where that of an instance is told."""
    return UNKNOWN if one.plays else f"{step_seconds(one):.2f} s"


def peak_memory(one: Evaluated) -> str:
    """Return the peak memory of planning as text, where it was measured."""
    peak = one.run.summary["peak_memory"]
    return UNKNOWN if peak is None else f"{peak / MIB:.0f} MiB"


def machine_of(one: Evaluated) -> str:
    """Return the machine of an evaluation and how it was shared."""
    workers = one.settings["workers"]
    return f"{described(one.run.config['machine'])}, {workers} worker{'' if workers == 1 else 's'}"


def described(machine: dict[str, Any]) -> str:
    """Return a machine in words."""
    return f"{machine['processor']}, {machine['cores']} cores, {machine['device']}, {machine['system']}"
