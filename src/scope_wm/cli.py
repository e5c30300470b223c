"""The command line: one subcommand per stage, each imported only when it is used.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scope_wm import __version__
from scope_wm.types import TrainingError, UsageError


class Command(NamedTuple):
    """A subcommand: the function that does it and the settings that its options are made from."""

    purpose: str
    module: str
    settings: str
    function: str


COMMANDS = {
    "doctor": Command(
        "Show versions, devices and speed: what a bug report needs", "doctor", "DoctorSettings", "doctor"
    ),
    "run": Command(
        "Make a planner for a task from nothing, in one go", "pipeline.run", "PipelineSettings", "run"
    ),
    "collect": Command(
        "Collect episodes of a task into a store", "data.collect", "CollectSettings", "collect"
    ),
    "data info": Command("Describe a store on one screen", "data.info", "InfoSettings", "info"),
    "data check": Command("Find damaged episodes of a store", "data.check", "CheckSettings", "check"),
    "data play": Command("Draw stores as a contact sheet or a video", "data.play", "PlaySettings", "play"),
    "encode": Command("Encode the frames of a store into tokens", "data.encode", "EncodeSettings", "encode"),
    "train encoder": Command(
        "Distil a small encoder from a large one", "train.encoder", "TrainEncoderSettings", "train_encoder"
    ),
    "train teacher": Command(
        "Train the dense world model", "train.teacher", "TrainTeacherSettings", "train_teacher"
    ),
    "train selector": Command(
        "Distil the dense model's relevance into a selector",
        "train.distill",
        "TrainSelectorSettings",
        "train_selector",
    ),
    "train sparse": Command(
        "Train a sparse world model", "train.sparse", "TrainSparseSettings", "train_sparse"
    ),
    "train refine": Command(
        "Train a world model further on what it imagines",
        "train.refine",
        "TrainRefineSettings",
        "train_refine",
    ),
    "train decoder": Command(
        "Train a decoder that draws what models imagine",
        "train.decoder",
        "TrainDecoderSettings",
        "train_decoder",
    ),
    "import dino-wm": Command(
        "Import a released DINO-WM checkpoint as a dense model",
        "model.import_dino_wm",
        "ImportDinoWMSettings",
        "import_dino_wm",
    ),
    "evaluate": Command(
        "Solve problems with a model and a planner, and sum up",
        "evaluate.runner",
        "EvaluateSettings",
        "evaluate",
    ),
    "compare": Command(
        "Compare runs of evaluate on the same problems", "evaluate.compare", "CompareSettings", "compare"
    ),
    "plan": Command("Solve one problem and write a video of it", "report.plan", "PlanSettings", "plan"),
    "demo": Command(
        "Plan three problems with shipped models, dense beside sparse", "report.demo", "DemoSettings", "demo"
    ),
    "report": Command(
        "Write runs as one page, beside the paper's tables",
        "report.run_report",
        "ReportSettings",
        "report",
    ),
    "models": Command(
        "List the models that ship with the package", "shipping.listing", "ModelsSettings", "models"
    ),
    "models add": Command(
        "Make shipped models and their cards from a run", "shipping.add", "AddSettings", "add"
    ),
    "bench tasks": Command(
        "Measure the speed of the five simulators", "bench.tasks", "BenchTasksSettings", "bench_tasks"
    ),
    "bench plan": Command(
        "Measure planning beside DINO-WM's algorithm", "bench.plan", "BenchPlanSettings", "bench_plan"
    ),
    "bench scaling": Command(
        "Measure how time and memory of imagining grow",
        "bench.scaling",
        "BenchScalingSettings",
        "bench_scaling",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words == ["--version"]:
            print(f"scope-wm {__version__}")
            return 0
        if wants_overview(words):
            print(overview(words[0] if words[0] in groups() else ""))
            return 0
        name = command_name(words)
        function, settings = parsed(name, words[len(name.split()) :])
        return int(function(settings) or 0)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, TrainingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "interrupted; collect, encode, train, run and evaluate go on where they stopped when run again",
            file=sys.stderr,
        )
        return 130


def parsed(name: str, options: list[str]) -> tuple[Callable[[Any], int | None], Any]:
    """Import a command, and return its function and the settings that the options make."""
    import tyro

    command = COMMANDS[name]
    module = importlib.import_module(f"scope_wm.{command.module}")
    settings = tyro.cli(
        getattr(module, command.settings),
        prog=f"scope-wm {name}",
        args=options,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    return getattr(module, command.function), settings


def groups() -> set[str]:
    """Return the first words of the commands that have two, unless they are commands in themselves."""
    return {name.split()[0] for name in COMMANDS if " " in name} - set(COMMANDS)


def wants_overview(words: list[str]) -> bool:
    """Tell whether help was asked for above the level of a single command."""
    return words in (["-h"], ["--help"]) or (
        len(words) == 2 and words[0] in groups() and words[1] in ("-h", "--help")
    )


def overview(group: str = "") -> str:
    """Return the list of commands, or of those in one group."""
    rows = [(name, command.purpose) for name, command in COMMANDS.items() if name.startswith(group)]
    width = max(len(name) for name, _ in rows)
    listing = "\n".join(f"  {name:<{width}}  {purpose}" for name, purpose in rows)
    return (
        f"usage: scope-wm {group or 'COMMAND'} ...\n\n"
        "Visual world models that plan fast.\n\n"
        f"commands:\n{listing}\n\n"
        "examples:\n"
        "  scope-wm models\n"
        "  scope-wm plan --task push_t --model push_t/faster --seed 1 --out push_t.mp4\n"
        "  scope-wm run --task wall --preset tiny\n\n"
        "scope-wm COMMAND --help tells the options of a command; scope-wm --version the version."
    )


def command_name(words: list[str]) -> str:
    """Return the command that the words begin with."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name
    if not words:
        raise UsageError(f"expected a command\n\n{overview()}")
    if words[0] in groups():
        raise UsageError(f"expected a command of '{words[0]}'\n\n{overview(words[0])}")
    near = difflib.get_close_matches(words[0], [*COMMANDS, *groups()], n=1)
    hint = f": did you mean '{near[0]}'?" if near else "; scope-wm --help lists the commands"
    raise UsageError(f"unknown command '{words[0]}'{hint}")
