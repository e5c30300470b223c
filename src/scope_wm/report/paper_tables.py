"""The paper's tables, each with our figures beside its own, where an evaluation has the setup of a row.

paper_tables.json holds the paper's figures as its tables print them. Rows that have none of them are of what
the paper did not try.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from scope_wm.bench.flops import prediction_gflops
from scope_wm.evaluate.settings import PlannerName
from scope_wm.model.architecture import ModelConfig
from scope_wm.records import from_json
from scope_wm.report.evaluated import (
    CEM,
    COPY,
    EB_CEM,
    FOREGROUND_DELTA,
    IGNORED,
    NUM_TOKENS,
    Evaluated,
    Setup,
)
from scope_wm.report.evaluated import dense as dense_setup
from scope_wm.report.evaluated import scope as scope_setup
from scope_wm.report.ours import UNKNOWN, Ours, model_text, peak_memory, plan_time, planner_text
from scope_wm.report.page import Block, Section, Table

PAPER: dict[str, Any] = json.loads(files("scope_wm.report").joinpath("paper_tables.json").read_text())
NOT_RUN = "not run"
PUSH_T, SMALL_K, BUDGETS = "push_t", 32, (16, 32, 64, 98, 147)
TASK_OF = {
    "PointMaze": "point_maze",
    "Push-T": PUSH_T,
    "Wall": "wall",
    "Rope": "rope",
    "Granular": "granular",
}
PLANNER_OF = {"CEM": CEM, "EB-CEM": EB_CEM}
SCOPE_KS = {"Scope-WM (Fast)": 98, "Scope-WM (Faster)": 32}
SELECTIONS = {"random": "random", "DRS": "distilled", "motion": "motion"}
BACKGROUNDS = {"copy": COPY, "FDBU": FOREGROUND_DELTA, "cross-attention": "cross-attention"}
OTHER_PLANNERS: tuple[PlannerName, ...] = ("icem", "mppi", "gradient", "random-shooting")
INTRODUCTION = (
    "The paper measured on one GPU with its own models, on 50 problems (10 of Rope and Granular), and gives "
    "no intervals. Its times are of 15 steps of control on one problem, ours of problems until they are "
    "solved; `scope-wm bench plan` measures as the paper does. FLOPs are those of one prediction, on all "
    'frames that the model sees, for one candidate. What "made" counts is told above.'
)
HELD_OUT_ERRORS = (
    "Errors are those of held-out windows, relative to copying the frame; of refined models, before that. "
    "The oracle selects what mattered most to the dense model in that very step, which no planner can know."
)
REBUILT = "Our Rope and Granular are rebuilt on pymunk: they do not compare with the paper's."

Show = Callable[[Ours, Evaluated], str]


class Row(NamedTuple):
    """The cells of a row of the paper, and the setup that we would have to evaluate for it."""

    cells: tuple[str, ...]
    setup: Setup | None


RESULT: dict[str, Show] = {
    "ours": lambda _, one: one.result(),
    "made": lambda ours, one: ours.made(one),
}
COSTS: dict[str, Show] = {
    "ours": RESULT["ours"],
    "plan time": lambda _, one: plan_time(one),
    "faster": lambda ours, one: ours.faster(one),
    "FLOPs": lambda _, one: flops(one),
    "peak memory": lambda _, one: peak_memory(one),
    "of dense's": lambda ours, one: ours.memory_share(one),
    "made": RESULT["made"],
}
ERRORS: dict[str, Show] = {
    "ours": RESULT["ours"],
    "one-step error": lambda _, one: held_out(one, "one_step_of_copy"),
    "with the oracle's selection": lambda _, one: held_out(one, "oracle_of_copy"),
    "background error": lambda _, one: held_out(one, "background_of_copy"),
    "made": RESULT["made"],
}


def paper_sections(ours: Ours) -> list[Section]:
    """Return the tables of the paper that are about a task that was evaluated; most are about Push-T."""
    tasks = {one.task for one in ours.found}
    made: dict[str, Sequence[Block]] = {}
    if tasks & set(TASK_OF.values()):
        made["All tasks"] = [REBUILT, cross_task(ours)]
    if tasks & {TASK_OF[line["task"]] for line in PAPER["efficiency_rigid"]}:
        made["Time and memory on three tasks"] = [efficiency(ours)]
    if PUSH_T in tasks:
        made |= {
            "Success against cost, Push-T": [tradeoff(ours)],
            "Without one of the three parts, Push-T, K = 32": [components(ours)],
            "Selection and background, Push-T, K = 32": [HELD_OUT_ERRORS, interaction(ours)],
            "Model and planner, Push-T": [model_and_planner(ours)],
            "Samples at the first and at later steps, Push-T, K = 32": [allocation(ours)],
            "Another K than in training, Push-T": [mismatch(ours)],
            "Token budget, Push-T": [budget(ours)],
        }
    parts = [Section(title, blocks, 3) for title, blocks in made.items()]
    return [Section("The paper's tables", [INTRODUCTION]), *parts] if parts else []


def beside(columns: tuple[str, ...], rows: list[Row], ours: Ours, shown: dict[str, Show]) -> Table:
    """Return a table of the paper with our columns at its right; a row for each evaluation that fits."""
    made = []
    for cells, setup in rows:
        found = [tuple(show(ours, one) for show in shown.values()) for one in ours.of(setup)]
        made += [(*cells, *own) for own in found or [(NOT_RUN, *[""] * (len(shown) - 1))]]
    return Table((*columns, *shown), made)


def tradeoff(ours: Ours) -> Table:
    """Return success, time and memory by K."""
    rows = []
    for line in PAPER["push_t_tradeoff"]:
        setup = dense_setup(PUSH_T) if line["k"] == NUM_TOKENS else scope_setup(PUSH_T, line["k"])
        times = f"{line['gflops']} G", f"{line['plan_s']} s", f"{line['speedup']}x"
        memory = f"{line['peak_mb']} MB", percent(line["memory_ratio"])
        rows.append(Row((line["method"], str(line["k"]), percent(line["success"]), *times, *memory), setup))
    paper = ("success", "FLOPs", "plan time", "speed-up", "peak memory", "of dense's")
    return beside(("method", "K", *(f"paper: {name}" for name in paper)), rows, ours, COSTS)


def cross_task(ours: Ours) -> Table:
    """Return the results of all methods on all tasks, ours below the paper's."""
    figures = PAPER["cross_task"]
    tasks = [name.split()[0] for name in figures["columns"]]
    rows = []
    for method, values in figures.items():
        if method == "columns":
            continue
        pairs = list(zip(tasks, values, strict=True))
        rows.append((method, "paper", *(cross_task_text(task, value) for task, value in pairs)))
        own = [cross_task_found(ours, method, TASK_OF[task]) for task in tasks]
        rows.append((method, "ours", *(told_in_full(ours, found) for found in own)))
    return Table(("method", "", *figures["columns"]), rows)


def cross_task_found(ours: Ours, method: str, task: str) -> list[Evaluated]:
    """Return our evaluations of a method on a task; some methods are not ours to train."""
    if method == "DINO-WM":
        return ours.of(dense_setup(task))
    if method == "Sparse Imagination":  # whatever its K and planner
        return [
            one for one in ours.found if one.setup and (one.task, one.setup.background) == (task, IGNORED)
        ]
    return ours.of(scope_setup(task, SCOPE_KS[method])) if method in SCOPE_KS else []


def told_in_full(ours: Ours, found: list[Evaluated]) -> str:
    """Return results with everything about them in one cell."""
    told = [(one.result(), model_text(one), planner_text(one), f"made {ours.made(one)}") for one in found]
    return "; ".join(", ".join(parts) for parts in told) or NOT_RUN


def cross_task_text(task: str, value: int | float | None) -> str:
    """Return a figure of the paper: a share of successes, or a Chamfer distance."""
    if value is None:
        return UNKNOWN
    return str(value) if task in ("Rope", "Granular") else percent(value)


def components(ours: Ours) -> Table:
    """Return what is lost without each part."""
    other: dict[str, dict[str, Any]] = {
        "w/o DRS (random)": {"selector": "random"},
        "w/o FDBU (copy)": {"background": COPY},
        "w/o EB-CEM (CEM)": {"planner": CEM, "samples": (100, 100)},
        "full": {},
    }
    rows = [
        Row((name, percent(value)), scope_setup(PUSH_T, SMALL_K, **other[name]))
        for name, value in PAPER["component_ablation_push_t_k32"].items()
    ]
    return beside(("variant", "paper"), rows, ours, RESULT)


def interaction(ours: Ours) -> Table:
    """Return every selection with every background update."""
    figures = PAPER["selection_x_background_push_t_k32"]
    rows = [
        Row(
            (selection, background, percent(figures.get(f"{selection}/{background}".lower()))),
            scope_setup(PUSH_T, SMALL_K, selector=selector, background=update),
        )
        for selection, selector in SELECTIONS.items()
        for background, update in BACKGROUNDS.items()
    ]
    return beside(("selection", "background", "paper"), rows, ours, ERRORS)


def model_and_planner(ours: Ours) -> Table:
    """Return models with planners, and the planners that the paper did not try."""
    rows = []
    for line in PAPER["model_x_planner_push_t"]:
        setup = planned(line, NUM_TOKENS if line["model"] == "dense" else SMALL_K)
        cells = (
            line["model"],
            line["planner"],
            samples(line),
            percent(line["success"]),
            f"{line['plan_s']} s",
        )
        rows.append(Row(cells, setup))
    for planner in OTHER_PLANNERS:
        setup = scope_setup(PUSH_T, SMALL_K, planner=planner, samples=None)
        rows.append(Row(("k32", planner, "", UNKNOWN, UNKNOWN), setup))
    columns = ("model", "planner", "samples", "paper: success", "paper: plan time")
    return beside(columns, rows, ours, COSTS)


def allocation(ours: Ours) -> Table:
    """Return how samples are spread over the first and later steps."""
    rows = [
        Row((line["planner"], samples(line), percent(line["success"])), planned(line, SMALL_K))
        for line in PAPER["sample_allocation_push_t_k32"]
    ]
    return beside(("planner", "samples", "paper"), rows, ours, RESULT)


def efficiency(ours: Ours) -> Table:
    """Return time and memory of dense and small models on the rigid tasks."""
    rows = []
    for line in PAPER["efficiency_rigid"]:
        task, k = TASK_OF[line["task"]], line["k"]
        faster = f"{line['speedup']}x" if "speedup" in line else UNKNOWN
        costs = f"{line['plan_s']} s", faster, f"{line['peak_mb']} MB"
        setup = dense_setup(task) if k == NUM_TOKENS else scope_setup(task, k)
        rows.append(Row((line["task"], line["method"], percent(line["success"]), *costs), setup))
    paper = ("success", "plan time", "speed-up", "peak memory")
    return beside(("task", "method", *(f"paper: {name}" for name in paper)), rows, ours, COSTS)


def mismatch(ours: Ours) -> Table:
    """Return what another K at planning than in training does."""
    rows = [
        Row(
            (str(line["train_k"]), str(line["plan_k"]), percent(line["success"])),
            Setup(task=PUSH_T, trained_k=line["train_k"], k=line["plan_k"]),
        )
        for line in PAPER["k_mismatch_push_t"]
    ]
    return beside(("trained with K", "planned with K", "paper"), rows, ours, RESULT)


def budget(ours: Ours) -> Table:
    """Return the results by K; the paper tells those of three in figures, of the others in a plot."""
    paper = {line["k"]: line["success"] for line in PAPER["push_t_tradeoff"]}
    rows = [Row((str(k), percent(paper.get(k))), scope_setup(PUSH_T, k)) for k in BUDGETS]
    rows.append(Row((f"{NUM_TOKENS} (dense, CEM)", percent(paper[NUM_TOKENS])), dense_setup(PUSH_T)))
    return beside(("K", "paper"), rows, ours, COSTS)


def planned(line: dict[str, Any], k: int) -> Setup:
    """Return the setup of a row that names a planner and its samples."""
    planner, (first, later) = PLANNER_OF[line["planner"]], line["samples"]
    if k == NUM_TOKENS:
        return dense_setup(PUSH_T, planner, (first, later))
    return scope_setup(PUSH_T, k, planner=planner, samples=(first, later))


def samples(line: dict[str, Any]) -> str:
    """Return the samples of a row as text."""
    return "/".join(map(str, line["samples"]))


def percent(value: int | float | None) -> str:
    """Return a share as text, if the paper tells it."""
    return UNKNOWN if value is None else f"{value} %"


def flops(one: Evaluated) -> str:
    """Return the FLOPs of one prediction of a model; one of a subset of the patches has others every time."""
    if one.setup is None or one.header is None or one.setup.background == IGNORED:
        return UNKNOWN
    model = one.header["model"]
    return f"{gflops_of(json.dumps(model | {'selector': model['selector'] | {'k': one.setup.k}})):.3g} G"


@cache
def gflops_of(model: str) -> float:
    """Return the GFLOPs of a prediction by the config of a model, as text."""
    return prediction_gflops(from_json(ModelConfig, json.loads(model), "the model of an evaluation"))


def held_out(one: Evaluated, name: str) -> str:
    """Return a held-out figure that the model was recorded with, before refining if it was refined."""
    made = (one.header or {}).get("made", {})
    figures = (made.get("before") or made).get("figures", {})
    return f"{figures[name]:.3f}" if name in figures else UNKNOWN
