"""Whether the learned cost is lower nearer to the goal: cost against true distance, of held-out frames.

A planner can only be as good as its cost. One frame of a pair is taken for the goal of the other: the pairs
of an episode are near each other, those of two episodes far. Where the cost stays flat, or is low far away,
a search is led astray. Bands are from the tenth to the ninetieth percentile of a tenth of the pairs.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_wm.data.split import Split, starts
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning.objective import Goal, distances, proprio_weight
from scope_wm.report.run_directory import HeldOut, open_held_out
from scope_wm.report.sheet import figure_bytes
from scope_wm.tasks import find_task

PAIRS = 600  # within episodes, and as many of any two frames
BINS = 10
WIDTH, HEIGHT, DPI = 5.0, 3.2, 110
LABELS = {
    "distance": "distance to the goal, as the task measures it",
    "path_left": "way left to the goal, as the simulator knows it",
}

Values = Float64[np.ndarray, " pairs"]
Numbers = Int64[np.ndarray, " pairs"]


@dataclass(frozen=True, kw_only=True)
class CostShape:
    """The cost of pairs of frames beside what it should tell."""

    cost: Values
    distance: Values
    path_left: Values


def draw_cost_shape(run: Path, model: str) -> bytes:
    """Draw the cost of a model of a run, as the content of a PNG file."""
    trained = TrainedModel.from_pretrained(run / model)
    return plot(cost_shape(trained, open_held_out(run, trained.config.encoder)))


def plot(shape: CostShape) -> bytes:
    """Plot the cost against the distance, and against the way that is left if that is another."""
    measures = [name for name in LABELS if name == "distance" or (shape.path_left != shape.distance).any()]
    figure = Figure(figsize=(WIDTH * len(measures), HEIGHT), dpi=DPI, layout="constrained")
    for axes, name in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        draw_against(axes, getattr(shape, name), shape.cost)
        axes.set_xlabel(LABELS[name])
        axes.set_ylabel("cost")
    return figure_bytes(figure, format="png")


def cost_shape(trained: TrainedModel, held_out: HeldOut) -> CostShape:
    """Compare pairs of held-out frames by the cost of a model, and by the task."""
    config, store, task = trained.config, held_out.split.store, find_task(trained.config.task)()
    now, goal = pairs(held_out.split)
    values = config.statistics

    def seen(numbers: Numbers) -> Goal:
        proprio = (store.proprio[numbers] - values.proprio_mean) / values.proprio_std
        embedded = trained.world_model.fuse.proprio(torch.from_numpy(proprio).float())
        return Goal(visual=torch.from_numpy(held_out.tokens.read(numbers)).float(), proprio=embedded)

    with torch.no_grad():
        here = seen(now)
        cost = distances(here.visual, here.proprio, seen(goal), proprio_weight(config.task))
    states = list(zip(store.states[now], store.states[goal], strict=True))
    return CostShape(
        cost=cost.double().numpy(),
        distance=np.array([task.distance(*pair) for pair in states]),
        path_left=np.array([task.path_left(*pair) for pair in states]),
    )


def pairs(split: Split) -> tuple[Numbers, Numbers]:
    """Return the numbers of frames and of those that are their goals: of one episode, then of any two."""
    rng, numbers = np.random.default_rng(0), starts(split, 0)
    first, other = rng.choice(numbers, (2, 2 * PAIRS))
    episodes = split.store.episode_of(first[:PAIRS])
    near = split.store.first[episodes] + (rng.random(PAIRS) * split.store.lengths[episodes]).astype(np.int64)
    return first, np.concatenate([near, other[PAIRS:]])


def draw_against(axes: Axes, measure: Values, cost: Values) -> None:
    """Draw the cost of all pairs against a true distance, the median of each tenth, and their correlation."""
    axes.plot(measure, cost, ".", markersize=2, color="0.75")
    tenths = np.array_split(np.argsort(measure, kind="stable"), BINS)
    middle = [np.median(measure[rows]) for rows in tenths]
    low, median, high = np.array([np.percentile(cost[rows], [10, 50, 90]) for rows in tenths]).T
    axes.fill_between(middle, low, high, alpha=0.25, linewidth=0)
    axes.plot(middle, median, "o-", markersize=3)
    axes.set_title(f"rank correlation {rank_correlation(measure, cost):.2f}", loc="left", fontsize="small")
    axes.set_xlim(0)
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")


def rank_correlation(first: Values, other: Values) -> float:
    """Return Spearman's rank correlation; equal values have the mean of their ranks."""
    ranks = []
    for values in (first, other):
        _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[group])
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
