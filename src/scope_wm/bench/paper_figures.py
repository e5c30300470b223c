"""What the paper measured on a GPU, from its tables, to be shown beside our own figures.

Its dense model is DINO-WM as published, planned with CEM 100 x 10; its sparse ones use EB-CEM 300/100 x 10.
"""

from dataclasses import dataclass

from scope_wm.bench.plan_variants import PUBLISHED


@dataclass(frozen=True, kw_only=True)
class PaperFigure:
    """Plan time and peak memory of 15 steps; one is None where the paper does not tell."""

    seconds: float
    megabytes: int | None = None


DENSE, FAST, FASTER = PUBLISHED.name, "fast K = 98", "fast K = 32"

# The efficiency table of three tasks; of Push-T also the trade-off over K and the table of planners.
PAPER_FIGURES: dict[tuple[str, str, str], PaperFigure] = {
    ("push_t", DENSE, "cem"): PaperFigure(seconds=240.96, megabytes=18436),
    ("push_t", DENSE, "eb-cem"): PaperFigure(seconds=267.36),
    ("push_t", FAST, "eb-cem"): PaperFigure(seconds=93.06, megabytes=7088),
    ("push_t", FASTER, "cem"): PaperFigure(seconds=30.67),
    ("push_t", FASTER, "eb-cem"): PaperFigure(seconds=34.56, megabytes=3334),
    ("point_maze", DENSE, "cem"): PaperFigure(seconds=204.52, megabytes=6309),
    ("point_maze", FASTER, "eb-cem"): PaperFigure(seconds=35.01, megabytes=3334),
    ("wall", DENSE, "cem"): PaperFigure(seconds=59.44, megabytes=1542),
    ("wall", FASTER, "eb-cem"): PaperFigure(seconds=19.60, megabytes=1939),
}


def paper_speedup(task: str, variant: str, planner: str) -> float | None:
    """Return how many times faster than its dense model with CEM the paper's is."""
    dense, own = PAPER_FIGURES.get((task, DENSE, "cem")), PAPER_FIGURES.get((task, variant, planner))
    return None if dense is None or own is None else dense.seconds / own.seconds


def paper_memory_share(task: str, variant: str, planner: str) -> float | None:
    """Return the share of its dense model's memory that the paper's takes."""
    dense, own = PAPER_FIGURES.get((task, DENSE, "cem")), PAPER_FIGURES.get((task, variant, planner))
    if dense is None or own is None or dense.megabytes is None or own.megabytes is None:
        return None
    return own.megabytes / dense.megabytes
