"""How long planning takes and how much memory, side by side with DINO-WM's algorithm and with the paper."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from scope_wm.bench.child_memory import peak_memory
from scope_wm.bench.flops import counted_gflops
from scope_wm.bench.machine import this_machine
from scope_wm.bench.page import write_plan
from scope_wm.bench.plan_results import About, Once, Round, rows
from scope_wm.bench.plan_rounds import (
    STEP_CANDIDATES,
    Action,
    Budget,
    best_chunk,
    full_step,
    measured_round,
    random_candidates,
    shares,
)
from scope_wm.bench.plan_variants import (
    COMPILED,
    FAST,
    INT8,
    PLAIN_A,
    PUBLISHED,
    VARIANTS,
    Variant,
    VariantCost,
)
from scope_wm.bench.subject import Subject, random_model
from scope_wm.data.progress import progress
from scope_wm.evaluate.settings import expect_at_least, protocol_of
from scope_wm.hardware import computing_with
from scope_wm.model.architecture import build
from scope_wm.planning.mpc import MPCSettings
from scope_wm.planning.side_by_side import LEAST
from scope_wm.presets import PresetName
from scope_wm.tasks import TaskName
from scope_wm.types import IMAGE_SIZE, UsageError

HORIZON = MPCSettings().horizon
PLANNERS = ("cem", "eb-cem")
TUNING_SHARE = 0.4  # of the budget
SHARES_CHUNK = LEAST  # candidates: enough to see what the time goes to, and too few for parts side by side


@dataclass(frozen=True, kw_only=True)
class BenchPlanSettings:
    """Measure planning on the processor, dense and sparse models with random weights side by side.

    Times and peak memory, beside the paper's, which are of a GPU.
    Writes the page, and beside it, in a directory of its name, JSON and a plot for each task and preset.

    Example: scope-wm bench plan --task push_t --preset paper --out docs/benchmarks.md
    """

    task: TaskName = "push_t"
    """whose sizes: history, action and proprio"""
    preset: PresetName = "paper"
    """whose sizes: tokens, transformer"""
    out: Path = Path("docs/benchmarks.md")
    """the page; it shows all that was measured before into the directory beside it"""
    budget_seconds: float = 3600.0
    """about how long all may take; one round is always measured"""
    rounds: int = 5
    """rounds at most"""
    candidates: int = 100
    """in a batch of DINO-WM's algorithm; no chunk is larger"""
    chunks: tuple[int, ...] = (10, 25, 50, 100)
    """candidates at a time that the others try"""
    threads: int = 2
    """cores that torch uses"""
    compile: bool = False
    """measure the fast rollout compiled too; compiling takes minutes"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        expect_at_least(self, {"rounds": 1, "candidates": 2, "threads": 1})
        if not self.budget_seconds > 0:
            raise UsageError(f"expected --budget-seconds above 0, got {self.budget_seconds:g}")
        if not self.chunks or min(self.chunks) < 1:
            raise UsageError(f"expected --chunks of at least 1, got {list(self.chunks)}")

    def sizes(self, variant: Variant) -> list[int]:
        """Return the chunks that a variant may use."""
        tried = self.chunks if variant.tuned else (self.candidates,)
        return sorted({min(size, self.candidates) for size in tried})


def bench_plan(settings: BenchPlanSettings) -> None:
    """Measure, and write page, JSON and plot."""
    budget = Budget(settings.budget_seconds)
    with computing_with(settings.threads), torch.no_grad():
        bench = PlanBench(settings)
        chunks = bench.choose_chunks()
        shares_of, memory = bench.shares(chunks), bench.memory(chunks)
        rounds = bench.rounds(chunks, budget)
        full_steps = bench.full_steps(chunks, rounds, budget)
        about = bench.about(rounds)
    once = {
        name: Once(
            variant=cost.variant,
            chunk=chunks[name],
            gflops=bench.gflops(cost.variant),
            shares=shares_of[name],
            peak_memory=memory[name],
            full_steps=full_steps[name],
        )
        for name, cost in bench.costs.items()
    }
    table = rows(rounds, once, PLANNERS, about.steps)
    write_plan(settings.out, about, table, rounds)
    print(f"wrote {settings.out}")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What a process of its own imagines, to see how much memory that takes."""

    subject: Subject
    variant: Variant
    size: int


def to_weigh(chunk: Chunk) -> Callable[[], object]:
    """Return the encoding of the problem and the imagining of a chunk; the weights are there before.

    A as published encodes all images before it does what A does, so that its encoding is enough.
    """
    encoder, problem = chunk.subject.encoder(), chunk.subject.problem()
    config = chunk.subject.config(chunk.variant.k, encoder.num_tokens, encoder.dim)
    candidates = random_candidates(chunk.size, (HORIZON, config.tokens.action))
    cost = VariantCost(chunk.variant, random_model(config), encoder, problem)  # it has encoded an image
    if chunk.variant.encodes_each:
        return lambda: cost.encode(chunk.size)
    return lambda: (cost.encode(1), cost(candidates))


class PlanBench:
    """The variants of one task and preset, ready to be measured."""

    def __init__(self, settings: BenchPlanSettings) -> None:
        self.settings = settings
        self.subject = Subject(task=settings.task, preset=settings.preset)
        self.encoder, self.problem = self.subject.encoder(), self.subject.problem()
        self.configs = {
            variant.k: self.subject.config(variant.k, self.encoder.num_tokens, self.encoder.dim)
            for variant in VARIANTS
        }
        self.models = {k: random_model(config) for k, config in self.configs.items()}
        self.variants = (*VARIANTS, *COMPILED) if settings.compile else VARIANTS
        self.costs = {variant.name: self.cost(variant) for variant in self.variants}
        self.action: Action = (HORIZON, self.configs[None].tokens.action)
        self.steps = protocol_of(settings.task).max_steps

    def cost(self, variant: Variant) -> VariantCost:
        """Return the cost of candidates as a variant imagines them."""
        return VariantCost(variant, self.models[variant.k], self.encoder, self.problem)

    def choose_chunks(self) -> dict[str, int]:
        """Find the chunk of every variant that is free to choose; a compiled one takes the eager one's."""
        seconds = TUNING_SHARE * self.settings.budget_seconds / len(VARIANTS)
        chunks = dict[str, int]()
        with progress("variants tuned", len(self.variants)) as advance:
            for variant in self.variants:
                sizes = self.settings.sizes(variant)
                if variant.eager:
                    chunks[variant.name] = chunks[variant.eager.name]
                elif len(sizes) > 1:
                    chunks[variant.name] = best_chunk(
                        self.costs[variant.name], sizes, self.action, Budget(seconds)
                    )
                else:
                    chunks[variant.name] = sizes[0]
                advance()
        return chunks

    def shares(self, chunks: dict[str, int]) -> dict[str, dict[str, float] | None]:
        """Find what the time of each variant goes to; A as published differs from A by its images alone."""
        found: dict[str, dict[str, float] | None] = {}
        with progress("variants divided", len(self.variants)) as advance:
            for variant in self.variants:
                chunk = min(chunks[variant.name], SHARES_CHUNK)
                divided = not (variant.eager or variant.encodes_each)
                found[variant.name] = (
                    shares(self.costs[variant.name], chunk, self.action) if divided else None
                )
                advance()
        return found | {PUBLISHED.name: found[PLAIN_A.name]}

    def memory(self, chunks: dict[str, int]) -> dict[str, int | None]:
        """Measure the peak memory of each variant, but of compiled ones: that would be the compiler's."""
        found: dict[str, int | None] = {}
        with progress("variants weighed", len(self.variants)) as advance:
            for variant in self.variants:
                job = Chunk(subject=self.subject, variant=variant, size=chunks[variant.name])
                found[variant.name] = (
                    None if variant.eager else peak_memory(to_weigh, job, self.settings.threads)
                )
                advance()
        if found[PUBLISHED.name] is not None:
            found[PUBLISHED.name] = max(found[PUBLISHED.name] or 0, found[PLAIN_A.name] or 0)
        return found

    def rounds(self, chunks: dict[str, int], budget: Budget) -> list[Round]:
        """Measure round after round while another fits into the budget; the first is made in any case."""
        for cost in self.costs.values():  # the first call is slow, and the first of this size compiles
            cost(random_candidates(chunks[cost.variant.name] if cost.variant.tuned else 1, self.action))
        measured = list[Round]()
        with progress("rounds", self.settings.rounds) as advance:
            longest = 0.0
            while len(measured) < self.settings.rounds and (not measured or longest < budget.left()):
                before = budget.left()
                measured.append(measured_round(self.costs, chunks, self.action, self.steps))
                longest = max(longest, before - budget.left())
                advance()
        return measured

    def full_steps(
        self, chunks: dict[str, int], rounds: Sequence[Round], budget: Budget
    ) -> dict[str, dict[str, float]]:
        """Measure a full step of each variant and planner that the budget allows, the fastest first."""
        found: dict[str, dict[str, float]] = {name: {} for name in self.costs}
        with progress("full steps measured or left out", len(self.costs) * len(PLANNERS)) as advance:
            for name, cost in reversed(self.costs.items()):
                chunk = median(each.chunk_seconds(cost.variant) for each in rounds)
                for planner in PLANNERS:
                    if STEP_CANDIDATES / chunks[name] * chunk < budget.left():
                        found[name][planner] = full_step(planner, cost, chunks[name], self.action)
                    advance()
        return found

    def gflops(self, variant: Variant) -> float:
        """Count one candidate; its image too, if that is encoded for it."""
        config = self.configs[variant.k]
        with torch.device("meta"):
            model = build(config).eval()
            visual = torch.empty(1, config.tokens.num_tokens, config.tokens.visual)
            proprio, actions = torch.empty(1, config.tokens.proprio), torch.empty(1, *self.action)
        counted = counted_gflops(lambda: variant.last(model, visual, proprio, actions))
        return counted + self.gflops_of_image() if variant.encodes_each else counted

    def gflops_of_image(self) -> float:
        """Count the encoding of one image."""
        assert isinstance(self.encoder, torch.nn.Module)
        encoder = copy.deepcopy(self.encoder).to("meta")
        image = torch.empty(1, IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8, device="meta")
        return counted_gflops(lambda: encoder(image))

    def about(self, rounds: Sequence[Round]) -> About:
        """Tell what was measured, and on what."""
        return About(
            task=self.settings.task,
            preset=self.settings.preset,
            history=self.configs[None].history,
            horizon=HORIZON,
            steps=self.steps,
            rounds=len(rounds),
            gemm_rate=max(max(each.gemm_rate.values()) for each in rounds),
            cost_error=self.cost_error(),
            machine=this_machine(),
            chunks=list(self.settings.chunks),
        )

    def cost_error(self) -> float:
        """Return how far int8 moves the costs of candidates, as a share of how much these differ."""
        exact, rounded = (
            self.costs[variant.name](random_candidates(self.settings.candidates, self.action))
            for variant in (FAST[-1], INT8)
        )
        return float((rounded - exact).abs().mean() / exact.std())
