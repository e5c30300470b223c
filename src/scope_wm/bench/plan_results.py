"""From what was measured in rounds to what planning takes: extrapolation, ratios, shares.

    seconds of all steps = chunks * seconds of a chunk + images * seconds of one + seconds of the optimiser

A ratio is that of two variants in the same round, minutes apart at most; the median over rounds counts, and
the lowest and highest tell how far to trust it. As in the paper, everything is compared with a dense model
planned with CEM.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from scope_wm.bench.machine import Machine
from scope_wm.bench.plan_variants import PLAIN_A, PLAIN_B, Variant
from scope_wm.elite_bank import FIRST_STEP, LATER_STEPS

BASELINE = "cem"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one planner does in all steps of control."""

    planner: str
    steps: int
    candidates: int


def workload(planner: str, steps: int) -> Workload:
    """Return how many candidates `cem` or `eb-cem` imagines in so many steps."""
    first = FIRST_STEP if planner == "eb-cem" else LATER_STEPS
    later = (steps - 1) * LATER_STEPS.samples * LATER_STEPS.iterations
    return Workload(planner=planner, steps=steps, candidates=first.samples * first.iterations + later)


@dataclass(frozen=True, kw_only=True)
class Round:
    """Seconds measured one after the other; `optimiser` is that of all steps, without imagining."""

    gemm_rate: dict[str, float]  # GFLOP/s around the turn of each variant
    image: float
    images: float  # as many as the candidates of a batch of A
    optimiser: dict[str, float]
    chunk: dict[str, float]

    def chunk_seconds(self, variant: Variant) -> float:
        """Return the time of a chunk; A as published is A and the encoding of its batch."""
        return self.chunk[PLAIN_A.name] + self.images if variant.encodes_each else self.chunk[variant.name]

    def gemm_share(self, variant: Variant, flops: float) -> float:
        """Return the rate of a chunk of so many GFLOPs, as a share of the GEMM rate around it."""
        rate = self.gemm_rate[PLAIN_A.name if variant.encodes_each else variant.name]
        return flops / self.chunk_seconds(variant) / rate


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Where the seconds of all steps go; `rest` is gathering, placing and copying tokens."""

    encode: float
    select: float
    predict: float
    background: float
    cost: float
    optimiser: float
    rest: float


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times faster, in the median round, the lowest and the highest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one variant takes with one planner."""

    variant: str
    planner: str
    chunk: int
    gflops: float  # of one candidate
    seconds: float  # of all steps, extrapolated from chunks
    faster_than_a: Ratio
    faster_than_b: Ratio
    gemm_share: float | None  # None: its products are not float32
    peak_memory: int | None  # bytes
    full_step: float | None  # seconds of one measured step of 100 x 10
    full_step_expected: float  # the imagining in it, extrapolated
    parts: Parts | None  # None: what is compiled is one piece


@dataclass(frozen=True, kw_only=True)
class About:
    """What was measured, and on what."""

    task: str
    preset: str
    history: int
    horizon: int
    steps: int
    rounds: int
    gemm_rate: float
    cost_error: float  # of int8, in deviations of the costs of candidates
    machine: Machine
    chunks: list[int] = field(default_factory=list)  # candidates at a time that were tried, if recorded


@dataclass(frozen=True, kw_only=True)
class Once:
    """What is measured once of a variant: the chunk that it uses, and what does not vary with the round."""

    variant: Variant
    chunk: int
    gflops: float
    shares: dict[str, float] | None  # of a chunk's time without its images, by part
    peak_memory: int | None
    full_steps: dict[str, float]  # seconds by planner, of those that were affordable


def total_seconds(measured: Round, once: Once, work: Workload) -> float:
    """Extrapolate one round to all steps of control."""
    imagining = work.candidates / once.chunk * measured.chunk_seconds(once.variant)
    return imagining + images_alone(once.variant, work) * measured.image + measured.optimiser[work.planner]


def images_alone(variant: Variant, work: Workload) -> int:
    """Return how many images are encoded outside of chunks: the goal, and the observation of every step."""
    return 1 if variant.encodes_each else work.steps + 1


def ratio(rounds: Sequence[Round], slow: tuple[Once, Workload], fast: tuple[Once, Workload]) -> Ratio:
    """Return how many times faster one is than the other, round by round."""
    found = [total_seconds(each, *slow) / total_seconds(each, *fast) for each in rounds]
    return Ratio(median=median(found), low=min(found), high=max(found))


def rows(
    rounds: Sequence[Round], variants: dict[str, Once], planners: Sequence[str], steps: int
) -> list[Row]:
    """Return the table: every variant with every planner."""
    return [
        row(rounds, variants, once, workload(planner, steps))
        for planner in planners
        for once in variants.values()
    ]


def row(rounds: Sequence[Round], variants: dict[str, Once], once: Once, work: Workload) -> Row:
    """Return the figures of one variant with one planner."""
    own, dense_work = (once, work), workload(BASELINE, work.steps)
    variant, flops = once.variant, once.gflops * once.chunk
    chunk = median(each.chunk_seconds(variant) for each in rounds)
    candidates_of_step = LATER_STEPS.samples * LATER_STEPS.iterations
    return Row(
        variant=variant.name,
        planner=work.planner,
        chunk=once.chunk,
        gflops=once.gflops,
        seconds=median(total_seconds(each, *own) for each in rounds),
        faster_than_a=ratio(rounds, (variants[PLAIN_A.name], dense_work), own),
        faster_than_b=ratio(rounds, (variants[PLAIN_B.name], dense_work), own),
        gemm_share=None if variant.int8 else median(each.gemm_share(variant, flops) for each in rounds),
        peak_memory=once.peak_memory,
        full_step=once.full_steps.get(work.planner),
        full_step_expected=candidates_of_step / once.chunk * chunk,
        parts=parts(rounds, once, work),
    )


def parts(rounds: Sequence[Round], once: Once, work: Workload) -> Parts | None:
    """Divide the seconds of all steps."""
    if once.shares is None:
        return None
    chunks, image, images = (
        work.candidates / once.chunk,
        median(each.image for each in rounds),
        median(each.images for each in rounds) if once.variant.encodes_each else 0.0,
    )
    imagining = chunks * (median(each.chunk_seconds(once.variant) for each in rounds) - images)
    seconds = {part: share * imagining for part, share in once.shares.items()}
    seconds["rest"] = imagining - sum(seconds.values())
    seconds["encode"] += images_alone(once.variant, work) * image + chunks * images
    return Parts(**seconds, optimiser=median(each.optimiser[work.planner] for each in rounds))
