"""A run of `bench scaling` as a section of Markdown and as a plot."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from scope_wm.bench.plan_page import DPI, MIB, machine_line
from scope_wm.bench.scaling_results import Growth, Measurement, ScalingAbout, growth
from scope_wm.report.results import table
from scope_wm.report.sheet import figure_bytes


def scaling_section(about: ScalingAbout, measured: Sequence[Measurement], picture: str) -> str:
    """Return the section."""
    base = about.base
    return f"""## Growth of the fast rollout: {about.task}, {about.preset} sizes

{machine_line(about.machine)} One size varies, the others stay at K = {base.k}, S = {base.s},
L = {base.horizon}, H = {base.history}, N = {base.n}; {about.chunk} candidates at a time, as under a limit of
memory. Seconds are the median of {about.repeats}; memory is the peak of a process of its own above its size
after one candidate.

{table(("size", "values", "seconds", "MiB", "time grows as", "memory as"), cells(measured))}

![time and memory against each size]({picture})
"""


def cells(measured: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Return a row for each size."""
    return [row(fit, [point for point in measured if point.axis == fit.axis]) for fit in growth(measured)]


def row(fit: Growth, points: Sequence[Measurement]) -> tuple[str, ...]:
    """Return the cells of one size."""
    memory = ["-" if point.memory is None else f"{point.memory / MIB:.0f}" for point in points]
    return (
        fit.axis,
        ", ".join(str(point.value) for point in points),
        ", ".join(f"{point.seconds:.3g}" for point in points),
        ", ".join(memory),
        f"{fit.axis}^{fit.seconds:.2f}",
        "-" if fit.memory is None else f"{fit.axis}^{fit.memory:.2f}",
    )


def scaling_plot(measured: Sequence[Measurement]) -> bytes:
    """Draw time above and memory below against each size, as the content of a PNG file."""
    fits = growth(measured)
    figure = Figure(figsize=(2.5 * len(fits), 4.6), dpi=DPI, layout="constrained")
    above, below = figure.subplots(2, len(fits), sharey="row", squeeze=False)
    for top, bottom, fit in zip(above, below, fits, strict=True):
        points = [point for point in measured if point.axis == fit.axis]
        values = [point.value for point in points]
        top.plot(values, [point.seconds for point in points], "o-")
        top.set_title(f"time ~ {fit.axis}^{fit.seconds:.2f}", fontsize="medium")
        if fit.memory is not None:
            bottom.plot(values, [(point.memory or 0) / MIB for point in points], "o-", color="C1")
            bottom.set_title(f"memory ~ {fit.axis}^{fit.memory:.2f}", fontsize="medium")
        bottom.set_xlabel(fit.axis)
        for axes in (top, bottom):
            axes.set(xscale="log", yscale="log")
            axes.set_xticks(values, [str(value) for value in values])
            axes.minorticks_off()
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="0.92")
    above[0].set_ylabel("seconds")
    below[0].set_ylabel("MiB")
    return figure_bytes(figure, format="png")
