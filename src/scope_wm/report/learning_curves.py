"""Learning curves: for every stage the loss, and beside it the held-out figures, against the step."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_wm.report.sheet import figure_bytes

HELD_OUT_LOSSES = ("loss_held_out", "KL", "error")  # comparable with the loss that is trained
OF_COPY, RECALL, CHANCE = "_of_copy", "recall_", "chance_"
WIDTH, HEIGHT, DPI = 10.0, 2.6, 110
GREY = "0.6"

Metrics = list[dict[str, Any]]


def learning_curves(stages: dict[str, Metrics]) -> bytes:
    """Draw the curves of all stages, a row for each, as the content of a PNG file."""
    figure = Figure(figsize=(WIDTH, HEIGHT * len(stages)), dpi=DPI, layout="constrained")
    rows = figure.subplots(len(stages), 2, squeeze=False)
    for (left, right), (name, metrics) in zip(rows, stages.items(), strict=True):
        draw_losses(left, metrics)
        draw_figures(right, metrics)
        left.set_title(name, loc="left", fontweight="bold")
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="0.92")
            axes.set_xlim(0, max(line["step"] for line in metrics))
            axes.legend(frameon=False, fontsize="small")
    for axes in rows[-1]:
        axes.set_xlabel("step")
    return figure_bytes(figure, format="png")


def draw_losses(axes: Axes, metrics: Metrics) -> None:
    """Draw the loss in training, and that of the held-out samples."""
    axes.plot(*curve(metrics, "loss"), label="loss")
    for name in HELD_OUT_LOSSES:
        steps, values = curve(metrics, name)
        if steps:
            axes.plot(steps, values, "o-", markersize=3, label="held out")
    axes.set_yscale("log")


def draw_figures(axes: Axes, metrics: Metrics) -> None:
    """Draw the other held-out figures, with what no knowledge would give."""
    names = list(dict.fromkeys(name for line in metrics for name in line if label_of(name)))
    for name in names:
        (line,) = axes.plot(*curve(metrics, name), "o-", markersize=3, label=label_of(name))
        if name.startswith(RECALL):
            chance = curve(metrics, name.replace(RECALL, CHANCE))
            axes.plot(*chance, ":", color=line.get_color(), label="chance")
    if any(name.endswith(OF_COPY) for name in names):
        axes.axhline(1.0, color=GREY, linestyle=":", label="copying")
        axes.set_ylabel("error / copying's")


def label_of(name: str) -> str:
    """Return what a held-out figure is called in the legend; nothing if it is not drawn."""
    if name.endswith(OF_COPY) and not name.startswith("last"):
        return name.removesuffix(OF_COPY).replace("_", " ")
    if name.startswith(RECALL):
        return f"recall of the top {name.removeprefix(RECALL)}"
    return "PSNR (dB)" if name == "PSNR" else ""


def curve(metrics: Metrics, name: str) -> tuple[list[int], list[float]]:
    """Return the steps at which something was measured, and the values."""
    measured = [line for line in metrics if name in line]
    return [line["step"] for line in measured], [line[name] for line in measured]
