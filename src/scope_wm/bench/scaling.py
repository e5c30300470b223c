"""How time and memory of the fast rollout grow with K, S, L, H and N."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from scope_wm.bench.child_memory import peak_memory
from scope_wm.bench.machine import this_machine
from scope_wm.bench.page import write_scaling
from scope_wm.bench.plan_rounds import seconds_of
from scope_wm.bench.scaling_results import Measurement, ScalingAbout, Sizes
from scope_wm.bench.subject import Subject, random_model
from scope_wm.data.progress import progress
from scope_wm.evaluate.settings import expect_at_least
from scope_wm.hardware import computing_with
from scope_wm.model.fast_rollout import last_imagined
from scope_wm.planning.mpc import MPCSettings
from scope_wm.planning.search import score
from scope_wm.presets import PresetName
from scope_wm.tasks import TaskName

FIELDS = {"K": "k", "S": "s", "L": "horizon", "H": "history", "N": "n"}
GRIDS = {
    "K": (16, 32, 64, 98, 147),
    "S": (10, 20, 40, 80),
    "L": (2, 4, 8, 16),
    "H": (1, 2, 3, 4),
    "N": (49, 100, 196, 400),
}
KEPT, TOKENS = 32, 196


@dataclass(frozen=True, kw_only=True)
class BenchScalingSettings:
    """Measure how time and memory of the fast rollout grow with K, S, L, H and N, and fit exponents.

    Writes the page, and beside it, in a directory of its name, JSON and a plot.

    Example: scope-wm bench scaling --preset lite --out docs/benchmarks.md
    """

    task: TaskName = "push_t"
    """whose sizes: history, action and proprio"""
    preset: PresetName = "lite"
    """whose sizes: channels, transformer"""
    out: Path = Path("docs/benchmarks.md")
    """the page; it shows all that was measured before into the directory beside it"""
    repeats: int = 3
    """how often each time is measured; the median counts"""
    chunk: int = 10
    """candidates imagined at a time, and in all while another size varies"""
    points: int | None = None
    """values of each size, the smallest first; None: all"""
    threads: int = 2
    """cores that torch uses"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        expect_at_least(self, {"repeats": 1, "chunk": 1, "points": 2, "threads": 1})


@dataclass(frozen=True, kw_only=True)
class ScalingJob:
    """What is imagined at one point."""

    subject: Subject
    sizes: Sizes
    channels: int
    chunk: int


def bench_scaling(settings: BenchScalingSettings) -> None:
    """Measure, and write page, JSON and plot."""
    subject = Subject(task=settings.task, preset=settings.preset)
    channels = subject.encoder().dim
    base = Sizes(
        k=KEPT,
        s=settings.chunk,
        horizon=MPCSettings().horizon,
        history=subject.config(KEPT, TOKENS, channels).history,
        n=TOKENS,
    )
    points = [(axis, value) for axis, grid in GRIDS.items() for value in grid[: settings.points]]
    measured = []
    with computing_with(settings.threads), progress("points", len(points)) as advance:
        for axis, value in points:
            sizes = replace(base, **{FIELDS[axis]: value})
            job = ScalingJob(subject=subject, sizes=sizes, channels=channels, chunk=settings.chunk)
            seconds = median_seconds(imagining(job), sizes.s, settings.repeats)
            memory = peak_memory(to_weigh, job, settings.threads)
            measured.append(Measurement(axis=axis, value=value, seconds=seconds, memory=memory))
            advance()
        about = ScalingAbout(
            task=settings.task,
            preset=settings.preset,
            base=base,
            chunk=settings.chunk,
            repeats=settings.repeats,
            machine=this_machine(),
        )
    write_scaling(settings.out, about, measured)
    print(f"wrote {settings.out}")


def imagining(job: ScalingJob) -> Callable[[int], object]:
    """Return what imagines a number of candidates, chunk by chunk."""
    sizes = job.sizes
    config = replace(job.subject.config(sizes.k, sizes.n, job.channels), history=sizes.history)
    model, tokens = random_model(config), config.tokens
    visual, proprio = torch.randn(1, tokens.num_tokens, tokens.visual), torch.randn(1, tokens.proprio)

    @torch.no_grad()
    def cost(candidates: Float[Tensor, "1 S L A"]) -> Float[Tensor, "1 S"]:
        count = candidates.shape[1]
        last = last_imagined(model, visual.repeat(count, 1, 1), proprio.repeat(count, 1), candidates[0])
        return last.square().mean((-1, -2))[None]

    def imagine(count: int) -> object:
        return score(cost, torch.randn(1, count, sizes.horizon, tokens.action), job.chunk, lambda: False)

    return imagine


def median_seconds(imagine: Callable[[int], object], count: int, repeats: int) -> float:
    """Return the median time of imagining so many candidates, after a first one."""
    imagine(1)
    return median(seconds_of(lambda: imagine(count)) for _ in range(repeats))


def to_weigh(job: ScalingJob) -> Callable[[], object]:
    """Return the imagining of all candidates; a first one brings what libraries keep for themselves."""
    imagine = imagining(job)
    imagine(1)
    return lambda: imagine(job.sizes.s)
