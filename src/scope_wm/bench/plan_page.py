"""A run of `bench plan` as a section of Markdown and as a plot, beside the paper's figures."""

from collections.abc import Sequence
from dataclasses import fields

from matplotlib.figure import Figure

from scope_wm.bench.machine import Machine
from scope_wm.bench.paper_figures import PAPER_FIGURES, paper_memory_share, paper_speedup
from scope_wm.bench.plan_results import About, Parts, Ratio, Row
from scope_wm.bench.plan_variants import PLAIN_A
from scope_wm.planning.side_by_side import LEAST
from scope_wm.report.results import table
from scope_wm.report.sheet import figure_bytes

COLUMNS = (
    "",
    "planner",
    "chunk",
    "GFLOPs a candidate",
    "time of all steps",
    "faster than A",
    "than B",
    "in the paper",
    "of the GEMM rate",
    "peak memory",
    "of A's",
    "in the paper",
    "a full step, measured",
    "imagining in it, expected",
)
PARTS = tuple(field.name for field in fields(Parts))
MIB, GIB = 2**20, 2**30
DPI = 110


def plan_section(about: About, rows: Sequence[Row], picture: str) -> str:
    """Return the section."""
    tried = f" Chunks tried: {', '.join(map(str, about.chunks))}." if about.chunks else ""
    return f"""## Planning: {about.task}, {about.preset} sizes

{machine_line(about.machine)} H = {about.history}, L = {about.horizon}, {about.steps} steps of control of one
fixed problem without an early stop. Rounds in which all variants take turns: {about.rounds}.{tried}
GEMM rate, the best that was seen: {about.gemm_rate:.0f} GFLOP/s (float32, 2048 x 2048 products).

{table(COLUMNS, [cells(about, row, rows) for row in rows])}

- Times of all steps, marked ~, are **extrapolated**: measured is a chunk of candidates, the encoding of an
  image, and the optimiser with candidates that cost nothing. A full step (encoding, and a search of 100 x 10)
  is measured where the budget allowed it.
- "Faster" is the ratio to dense A and B, both with CEM, in the same round: the median over rounds, then the
  lowest and the highest if there are several. As in the paper, EB-CEM's wider first step (300 x 10) is
  included.
- A is DINO-WM's algorithm: in every step all frames of the window anew, float32, eager, attention as
  softmax(QK^T)V with all scores in memory (torch's math backend), one batch of candidates after another. As
  published, it also encodes the image once for every candidate; its time is that of A and of encoding a batch
  of images, measured apart. B is the same with fused attention and its best chunk.
- With several threads, fast variants cut a chunk of {2 * LEAST} candidates or more into parts that are
  imagined side by side, each on cores of its own. In A and B, cores share every product.
- Peak memory: of a process of its own that encodes the image and imagines one chunk, above its size before,
  with the weights in it. A holds its batch of candidates at once, the others the chunk in their row, however
  many candidates there are: that is a part of what they save. "As published" is the larger of A's and of what
  encoding the batch of images takes. Not of compiled variants, where it would be the compiler's; their parts
  cannot be timed apart either.
- The share of the GEMM rate is that of the rate around the turn (before and after it, the best of ten
  products), the median over rounds. In its turn a variant imagines chunks for ten seconds or more; their
  median counts.
- int8 rounds the products of the predictor. It moves the cost of a random candidate by
  {about.cost_error:.2f} of the deviation of all their costs, in the mean (random weights).
- The paper's figures are of its own sizes on a GPU; its dense model is DINO-WM as published.

![seconds by part]({picture})

Seconds of all steps by part (measured in one more chunk, so small that cores share every product; rest:
gathering, placing, copying):

{table(("", "planner", *PARTS), [part_cells(row) for row in rows if row.parts])}
"""


def machine_line(machine: Machine) -> str:
    """Describe the machine in a sentence."""
    return (
        f"Processor {machine.processor}, {machine.cores} cores, {machine.memory / GIB:.0f} GiB, torch "
        f"{machine.torch} with {machine.threads} thread{'s' if machine.threads > 1 else ''}."
    )


def cells(about: About, row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the cells of one row."""
    key = (about.task, row.variant, row.planner)
    paper, faster = PAPER_FIGURES.get(key), paper_speedup(*key)
    share = paper_memory_share(*key)
    dense = next(other.peak_memory for other in rows if other.variant == PLAIN_A.name)
    return (
        row.variant,
        row.planner,
        str(row.chunk),
        f"{row.gflops:.3g}",
        f"~{row.seconds:,.1f} s",
        ratio_text(row.faster_than_a),
        ratio_text(row.faster_than_b),
        "-" if paper is None else f"{faster:.2f}x ({paper.seconds:.1f} s)",
        "-" if row.gemm_share is None else f"{row.gemm_share:.0%}",
        "-" if row.peak_memory is None else f"{row.peak_memory / MIB:,.0f} MiB",
        "-" if row.peak_memory is None or not dense else f"{row.peak_memory / dense:.1%}",
        "-" if share is None else f"{share:.1%}",
        "-" if row.full_step is None else f"{row.full_step:.2f} s",
        f"~{row.full_step_expected:.2f} s",
    )


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio and, if there were several rounds, between what it lay."""
    spread = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low < ratio.high else ""
    return f"{ratio.median:.2f}x{spread}"


def part_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of one row of the division of time."""
    return row.variant, row.planner, *(f"{getattr(row.parts, part):,.2f}" for part in PARTS)


def plan_plot(rows: Sequence[Row]) -> bytes:
    """Draw the seconds of each part, and beside them the peak memory, as the content of a PNG file."""
    figure = Figure(figsize=(11, 0.9 + 0.33 * len(rows)), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    names = [f"{row.variant}, {row.planner}" for row in rows]
    if not all(row.parts for row in rows):
        whole = [0.0 if row.parts else row.seconds for row in rows]
        left.barh(names, whole, color="0.6", label="not divided")
    begin = [0.0] * len(rows)
    for part in PARTS:
        seconds = [getattr(row.parts, part) if row.parts else 0.0 for row in rows]
        left.barh(names, seconds, left=begin, label=part)
        begin = [a + b for a, b in zip(begin, seconds, strict=True)]
    for name, row in zip(names, rows, strict=True):
        text = f" {row.faster_than_a.median:.2f}x"
        left.annotate(text, (row.seconds, name), va="center", fontsize="small")
    left.set_xlabel("seconds of all steps, extrapolated; times faster than A with CEM")
    left.margins(x=0.12)
    left.legend(frameon=False, fontsize="small", loc="lower right")
    right.barh(names, [(row.peak_memory or 0) / MIB for row in rows], color="0.6")
    right.set_xlabel("peak memory (MiB)")
    left.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure_bytes(figure, format="png")
