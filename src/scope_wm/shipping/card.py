"""The card of a shipped model, in Markdown: a function of its config and its record, and of nothing else."""

from datetime import timedelta
from typing import Any

from scope_wm.evaluate.settings import protocol_of
from scope_wm.evaluate.statistics import wilson
from scope_wm.evaluate.summary import TABLE_NOTE, way_text
from scope_wm.presets import PRESETS
from scope_wm.report.results import table
from scope_wm.shipping.record import Record, Result, Training
from scope_wm.train.refine import STAGE as REFINE

FILE = "README.md"
ERRORS = {
    "one_step_of_copy": "one step",
    "rollout_of_copy": "five steps, the mean",
    "last_of_copy": "five steps, the last",
    "background_of_copy": "one step, tokens not kept",
}
CHOSEN = {
    "rollout": (
        "Of the weights at several times in training, those with the least mean of five steps in these very "
        "windows were kept, which flatters the table a little."
    ),
    "planning": "Of the weights at several times in training, those that planned best were kept.",
}
SEEN_EPISODES = (
    "That was counted in windows that it was not distilled from, but of the training episodes, which the "
    "dense model has seen."
)
REFINED = (
    "In the last stage it was trained further on frames that it imagines itself (`scope-wm train refine`), "
    "which the paper does not do."
)
NOT_REFINED = (
    "It was not trained further on frames that it imagines itself (`scope-wm train refine`), as the preset "
    "does by now."
)
PART_NOTE = (
    "A row of first problems is no evaluation of its own, but a part of the row above: as many as the "
    "paper's protocol has."
)
NOT_THE_PAPER = (
    "It is a small model on a small encoder of our own, with data of our own. Its figures are not those of "
    "the paper's benchmark, and cannot be compared with the paper's."
)
ONE_SCENE = (
    "It knows this task as this package draws it. Another camera, other colours or other sizes are new to it."
)


def card(name: str, header: dict[str, Any], record: Record) -> str:
    """Return the card of a model from the header of its config.json and its record."""
    sections = [
        f"# {name}",
        purpose(name, header, record),
        data_section(header, record),
        training_section(header, record),
        results_section(record),
        limits_section(header),
    ]
    return "\n\n".join(sections) + "\n"


def purpose(name: str, header: dict[str, Any], record: Record) -> str:
    """Say what the model is and how it is used."""
    model = header["model"]
    task, kept, tokens = model["task"], model["selector"]["k"], model["tokens"]["num_tokens"]
    does = f"predicts all {tokens} tokens of an image"
    if kept < tokens:
        does = f"predicts {kept} of the {tokens} tokens of an image, and updates the others cheaply"
    return (
        f"A world model of the task `{task}` that {does}. {record.parameters:,} parameters, in half "
        f"precision; they are loaded as float32.\n\n```\nscope-wm plan --task {task} --model {name}\n```"
    )


def data_section(header: dict[str, Any], record: Record) -> str:
    """Say what was learned from."""
    data, task = record.data, header["model"]["task"]
    return (
        f"## Data\n\n{data.training_episodes:,} episodes of `{task}` for training and "
        f"{data.validation_episodes:,} to judge with, {data.frames:,} frames in all: "
        f"`scope-wm collect --task {task} --episodes {data.training_episodes + data.validation_episodes} "
        f"--seed {data.seed} --out data/{task}`."
    )


def training_section(header: dict[str, Any], record: Record) -> str:
    """Say how it was trained, and how well it predicts what it has not seen."""
    made = header["made"]
    machines = "; ".join(dict.fromkeys(each.machine for each in record.trainings if each.machine))
    versions = ", ".join(f"{package} {version}" for package, version in made["versions"].items())
    columns = ("stage", "windows", "times each", "steps", "precision", "time")
    chosen = CHOSEN[made["settings"].get("select_by", "rollout")]  # as it was before that was an option
    parts = [
        "## Training",
        f"Preset: {record.preset}. Made with {versions}. `config.json` has all settings.",
        table(columns, [training_row(each) for each in record.trainings]),
        f"Times count steps and validations. Machine: {machines or 'not recorded'}.",
        "Squared error in windows of the episodes to judge with, relative to that of copying the frame "
        f"(below 1 is knowledge). It is that of the weights in float32, before rounding. {chosen}",
        errors_table(made, record),
    ]
    if made["stage"] == REFINE:
        parts.append(REFINED)
    elif record.preset in PRESETS and PRESETS[record.preset](header["model"]["task"]).refine is not None:
        parts.append(NOT_REFINED)
    if record.recall is not None:
        kept = header["model"]["selector"]["k"]
        parts.append(
            f"The selector finds {record.recall:.3f} of the {kept} tokens that matter most to the dense "
            f"model; chance would find {record.recall_by_chance:.3f}. {SEEN_EPISODES}"
        )
    return "\n\n".join(parts)


def errors_table(made: dict[str, Any], record: Record) -> str:
    """Return the held-out errors, of a refined model also those that it had before."""
    known = [key for key in ERRORS if key in made["figures"]]
    told = [made["before"], made] if made["stage"] == REFINE else [made]
    stages = [training.stage for training in record.trainings[-len(told) :]]
    rows = [
        (stage, *(f"{part['figures'][key]:.3f}" for key in known))
        for stage, part in zip(stages, told, strict=True)
    ]
    return table(("after", *(ERRORS[key] for key in known)), rows)


def training_row(training: Training) -> tuple[str, ...]:
    """Return the cells of one stage."""
    each, time = training.samples / training.windows, timedelta(seconds=round(training.seconds))
    counts = f"{training.windows:,}", f"{each:.1f}", f"{training.steps:,}"
    return training.stage, *counts, training.precision, str(time)


def results_section(record: Record) -> str:
    """Return every evaluation with its interval, its times and the machine they were measured on."""
    if not record.results:
        return "## Results\n\nIt has not been evaluated."
    columns = (
        "planner",
        "weights",
        "problems",
        "result",
        "95 % interval",
        "distance at start",
        "at the end",
        "plan time",
        "machine",
    )
    machines = list(dict.fromkeys(result.machine for result in record.results))
    rows = [result_row(each, machines.index(each.machine) + 1) for each in record.results]
    notes = [
        "Distances are in units of the task and means over problems, as are plan times, which are those of "
        "all searches for one problem.",
        *(f"Machine {number}: {machine}." for number, machine in enumerate(machines, 1)),
    ]
    if any(result.solved is not None for result in record.results):
        notes.append("Intervals are Wilson's.")
    if any(result.distance_interval is not None for result in record.results):
        notes.append("Intervals are those of the mean distance at the end, by bootstrap.")
    if any(result.instances < result.all_of for result in record.results):
        notes.append(PART_NOTE)
    if any(result.weights == "float32" for result in record.results):
        notes.append(
            "Rows with weights in float32 were measured before rounding to the float16 of this directory."
        )
    return f"## Results\n\n{table(columns, rows)}\n\n{' '.join(notes)}"


def result_row(result: Result, machine: int) -> tuple[str, ...]:
    """Return the cells of one evaluation."""
    told, interval = way_text(result.way_made) or "-", "-"
    if result.solved is not None:
        low, high = (100 * end for end in wilson(result.solved, result.instances))
        told, interval = f"{result.solved} of {result.instances} solved", f"{low:.1f} to {high:.1f} %"
    elif result.distance_interval is not None:
        interval = "distance {:.3g} to {:.3g}".format(*result.distance_interval)
    part = f"the first {result.instances} of {result.all_of}"
    return (
        planner_text(result),
        result.weights,
        part if result.instances < result.all_of else str(result.instances),
        told,
        interval,
        f"{result.start_distance:.3g}",
        f"{result.final_distance:.3g}",
        f"{result.plan_seconds:.2f} s",
        str(machine),
    )


def planner_text(result: Result) -> str:
    """Return the planner, with what was not as usual."""
    return f"{result.planner} ({result.other})" if result.other else result.planner


def limits_section(header: dict[str, Any]) -> str:
    """Say what the model is not."""
    model = header["model"]
    kept, tokens = model["selector"]["k"], model["tokens"]["num_tokens"]
    limits = [NOT_THE_PAPER, ONE_SCENE]
    if kept < tokens:
        limits.append(f"It was trained to keep {kept} tokens. Planning with another number breaks it.")
    if not protocol_of(model["task"]).has_success:
        limits.append(TABLE_NOTE)
    return "## Limits\n\n" + "\n".join(f"- {limit}" for limit in limits)
