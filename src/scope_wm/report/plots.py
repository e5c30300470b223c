"""Plots of evaluations that were made alike: success against plan time, memory, tokens and planner.

They are SVG with dark lines on white, readable at the width of a phone. Bars are 95 % intervals.
"""

from collections.abc import Callable
from dataclasses import replace

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_wm.evaluate.settings import WIDER
from scope_wm.report.evaluated import CEM, DENSE, EB_CEM, NUM_TOKENS, SAMPLES, Evaluated, Setup, scope
from scope_wm.report.ours import MIB, Ours, model_text, plan_seconds, planner_text
from scope_wm.report.page import Media
from scope_wm.report.paper_tables import PAPER, PUSH_T
from scope_wm.report.sheet import figure_bytes

SIZE = (5.2, 3.6)  # inches
FONT_SIZE = 10.5
SALT = "scope-wm"  # of the names inside a file: the same plot is the same file
PLANNER_STYLES = {CEM: ("o", "C0"), EB_CEM: ("s", "C1")}
GREY = "0.55"
HIDDEN = "_"  # a label that the legend leaves out

Shown = list[tuple[Setup, Evaluated]]
Draw = Callable[[Axes, Shown], None]


def plots(ours: Ours) -> list[Media]:
    """Draw every plot that has something to compare."""
    drawn = []
    for title, shown in groups(ours).items():
        usual = [(setup, one) for setup, one in shown if is_usual(setup)]
        measured = [(setup, one) for setup, one in usual if one.run.summary["peak_memory"] is not None]
        drawn += plot(f"{title}: result against plan time", usual, draw_time)
        drawn += plot(f"{title}: result against peak memory", measured, draw_memory)
        drawn += plot(f"{title}: result against the tokens kept", usual, draw_budget)
        for model in dict.fromkeys(model_text(one) for _, one in shown):
            same = [(setup, one) for setup, one in shown if model_text(one) == model]
            drawn += plot(f"{title}, {model}: result against plan time, by planner", same, draw_planners)
    return drawn


def groups(ours: Ours) -> dict[str, Shown]:
    """Return the evaluations of dense models and of the paper's method, those together that were made alike.

    Alike are task, sizes, training, machine, workers, and every setting that is not the protocol's.
    """
    found: dict[str, Shown] = {}
    for one in ours.found:
        if one.setup is not None and is_method(one.setup):
            machine = [ours.machine_text(one)] if len(ours.machines) > 1 else []
            sizes = ours.preset_text(one).removesuffix(" sizes")
            refined = ["refined"] if one.is_refined else []
            alike = one.task, sizes, *refined, *machine, *one.deviations()
            found.setdefault(", ".join(alike), []).append((one.setup, one))
    return found


def is_method(setup: Setup) -> bool:
    """Tell whether the model is the dense one, or the paper's with the K that it was trained with."""
    method = scope(setup.task, setup.trained_k, planner=setup.planner, samples=setup.samples)
    return setup.selector == DENSE or setup == method


def is_usual(setup: Setup) -> bool:
    """Tell whether the planner is CEM or EB-CEM with the paper's samples."""
    usual = {CEM: (SAMPLES, SAMPLES), EB_CEM: (WIDER * SAMPLES, SAMPLES)}
    return setup.samples is not None and setup.samples == usual.get(setup.planner)


def plot(caption: str, shown: Shown, draw: Draw) -> list[Media]:
    """Draw one plot, if there is more than one point, on the instances that all of them have."""
    if len(shown) < 2:
        return []
    shown = on_common_instances(shown)
    first = shown[0][1]
    with matplotlib.rc_context({"svg.hashsalt": SALT, "font.size": FONT_SIZE}):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        draw(axes, shown)
        count = len(first.run.records)
        axes.set_ylabel(f"solved of {count} (%)" if first.has_success else f"final distance, mean of {count}")
        if first.has_success:
            axes.set_ylim(-4, 104)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.92")
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
        content = figure_bytes(figure, format="svg", metadata={"Date": None})
    return [Media(content, "image/svg+xml", caption)]


def on_common_instances(shown: Shown) -> Shown:
    """Leave out instances that were not evaluated everywhere: some problems are harder than others."""
    common = set.intersection(*(set(one.run.records) for _, one in shown))
    return [
        (setup, replace(one, run=replace(one.run, records={i: one.run.records[i] for i in sorted(common)})))
        for setup, one in shown
    ]


def draw_time(axes: Axes, shown: Shown) -> None:
    """Draw results against the plan time of an instance."""
    draw_points(axes, shown, plan_seconds)
    axes.set_xlabel("plan time of an instance (s)")


def draw_memory(axes: Axes, shown: Shown) -> None:
    """Draw results against the peak memory of planning."""
    draw_points(axes, shown, peak_mib)
    axes.set_xlabel("peak memory of planning (MiB)")


def peak_mib(one: Evaluated) -> float:
    """Return the most memory that planning took, where it was measured."""
    return max(record.peak_memory or 0 for record in one.run.records.values()) / MIB


def draw_points(axes: Axes, shown: Shown, place: Callable[[Evaluated], float]) -> None:
    """Draw a point for every evaluation; the mark tells the planner."""
    for setup, one in sorted(shown, key=lambda entry: place(entry[1])):
        marker, _ = PLANNER_STYLES[setup.planner]
        draw_result(axes, place(one), one, marker, None, f"{model_text(one)}, {planner_text(one)}")
    axes.margins(x=0.2)
    axes.set_xlim(left=0)


def draw_budget(axes: Axes, shown: Shown) -> None:
    """Draw results against K, a curve for each planner; of Push-T, the paper's three too."""
    for planner, (marker, colour) in PLANNER_STYLES.items():
        points = [(setup.k, one) for setup, one in shown if setup.planner == planner]
        points.sort(key=lambda point: point[0])
        axes.plot([k for k, _ in points], [height(one)[0] for _, one in points], color=colour, linewidth=1)
        for number, (k, one) in enumerate(points):
            draw_result(axes, float(k), one, marker, colour, HIDDEN if number else planner)
    if shown[0][0].task == PUSH_T:
        lines = PAPER["push_t_tradeoff"]
        ks, solved = [line["k"] for line in lines], [line["success"] for line in lines]
        axes.plot(ks, solved, "D:", color=GREY, markerfacecolor="none", label="paper, its own models")
    axes.set_xlim(0, NUM_TOKENS + 10)
    axes.set_xlabel("tokens kept, K")


def draw_planners(axes: Axes, shown: Shown) -> None:
    """Draw the results of planners with one model against their plan time, as one curve."""
    points = sorted(shown, key=lambda pair: plan_seconds(pair[1]))
    times = [plan_seconds(one) for _, one in points]
    axes.plot(times, [height(one)[0] for _, one in points], color=GREY, linewidth=1)
    for (_, one), seconds in zip(points, times, strict=True):
        draw_result(axes, seconds, one, "o", None, planner_text(one))
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("plan time of an instance (s)")


def draw_result(axes: Axes, x: float, one: Evaluated, marker: str, colour: str | None, label: str) -> None:
    """Draw one result with its interval; without a colour in the next one that is free."""
    level, low, high = height(one)
    reach = [[level - low], [high - level]]
    axes.errorbar([x], [level], reach, fmt=marker, color=colour, label=label, capsize=3, linewidth=1)


def height(one: Evaluated) -> tuple[float, float, float]:
    """Return a result and its interval as they are drawn: successes in percent."""
    level, low, high = one.score()
    return (100 * level, 100 * low, 100 * high) if one.has_success else (level, low, high)
