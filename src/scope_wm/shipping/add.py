"""`scope-wm models add`: make shipped models from a finished run, in half precision, each with its card.

refined-dense, or teacher  -> <task>/dense
refined-k98, or sparse-k98 -> <task>/fast
refined-k32, or sparse-k32 -> <task>/faster

config.json, model.safetensors     the model; what was recorded when it was made goes along
record.json                        data, training and evaluations, from the records of the run
README.md                          the card, from config and record
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from scope_wm.data.split import Splits, open_splits, starts
from scope_wm.evaluate.models import model_digest
from scope_wm.evaluate.settings import expect_writable
from scope_wm.files import write_file, write_json
from scope_wm.model import shipped
from scope_wm.model.architecture import ModelConfig
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.model.encoders import SHIPPED
from scope_wm.planning.load import ModelSettings
from scope_wm.records import to_json
from scope_wm.report.evaluated import (
    COPY,
    DENSE,
    DISTILLED,
    FOREGROUND_DELTA,
    is_evaluation,
    precisions,
    preset_text,
)
from scope_wm.report.ours import described
from scope_wm.report.run_directory import TrainedStage, trained_stages
from scope_wm.shipping import card, record
from scope_wm.shipping.record import Data, Record, Training, read_record
from scope_wm.shipping.results import results_of
from scope_wm.tasks import TASKS
from scope_wm.train.distill import HELD_OUT
from scope_wm.types import UsageError

# For every name the stages that may make it, the last training first.
STAGES = {
    "dense": ("refined-dense", "teacher"),
    "fast": ("refined-k98", "sparse-k98"),
    "faster": ("refined-k32", "sparse-k32"),
}
SPARSE = {"teacher": "teacher", "selector": "selector"}
# What a stage was made from: the stage of each of its inputs.
ORIGINS: dict[str, dict[str, str]] = {
    "teacher": {},
    "selector": {},
    "sparse-k98": SPARSE,
    "sparse-k32": SPARSE,
    "refined-dense": {"model": "teacher"},
    "refined-k98": {"model": "sparse-k98"},
    "refined-k32": {"model": "sparse-k32"},
}
KEPT = {"fast": 98, "faster": 32}


@dataclass(frozen=True, kw_only=True)
class AddSettings:
    """Add the models of a finished run to those that ship with the package, each with its card.

    Evaluations are recognised by the hash of their model: those of the run's models, and those of
    the added ones. After a new evaluation the same command brings the cards up to date.

    Example: scope-wm models add runs/wall-lite
    """

    run: tyro.conf.Positional[Path]
    """directory of the run"""
    out: Path | None = None
    """directory for TASK/NAME; None: that of the package itself"""
    evaluations: Path | None = None
    """directory of the task's evaluations; None: those in the run"""

    def __post_init__(self) -> None:
        """Refuse evaluations that are not there."""
        if self.evaluations is not None and not self.evaluations.is_dir():
            raise UsageError(f"expected --evaluations to be a directory, got {self.evaluations}")
        if self.evaluations is not None and not any(map(is_evaluation, self.evaluated)):
            raise UsageError(f"expected directories of evaluations in {self.evaluations}, there are none")

    @property
    def evaluated(self) -> list[Path]:
        """Return the run that has the evaluations, or every evaluation by itself."""
        return [self.run] if self.evaluations is None else sorted(self.evaluations.iterdir())


def add(settings: AddSettings) -> None:
    """Make a shipped model of every world model of the run."""
    run, folder, trained = settings.run, settings.out or shipped.FOLDER, trained_stages(settings.run)
    made_by = {name: [stage for stage in able if stage in trained] for name, able in STAGES.items()}
    found = {name: able[0] for name, able in made_by.items() if able}
    if not found:
        able = ", ".join(stage for _, stage in STAGES.values())
        raise UsageError(f"expected a run with one of {able} finished, got {run}")
    last = {name: able[0] for name, able in STAGES.items()}
    behind = [stage for name, stage in found.items() if stage != last[name]]
    if 0 < len(behind) < len(found):
        raise UsageError(f"expected all models of {run} to be refined or none, {behind[0]} is not")
    for name, stage in found.items():
        expect_shippable(run, trained, name, stage)
    expect_writable(folder)
    for name, stage in found.items():
        _, config = read_header(run / stage)
        made = folder / config.task / name
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as temporary:
            ready = Path(temporary) / name
            write(settings, trained, stage, f"{config.task}/{name}", ready)
            if made.is_dir():
                shutil.rmtree(made)
            ready.rename(made)
        print(f"{config.task}/{name}: {made}")


def expect_shippable(run: Path, trained: dict[str, TrainedStage], name: str, stage: str) -> None:
    """Refuse a model that is not what its name says, lacks its parts, or needs what does not ship."""
    _, config = read_header(run / stage)
    if config.task not in TASKS:
        raise UsageError(f"expected a model of {', '.join(TASKS)}, {run / stage} is one of {config.task}")
    selector, tokens, eye = config.selector, config.tokens.num_tokens, config.encoder.config.source
    wanted = (DISTILLED, KEPT[name], FOREGROUND_DELTA) if name in KEPT else (DENSE, tokens, COPY)
    if (found := (selector.kind, selector.k, config.background.kind)) != wanted:
        raise UsageError(f"{run / stage}: expected selector, K and background {wanted}, got {found}")
    for after in (stage, *reversed(origins(stage))):
        for given, part in ORIGINS[after].items():
            taken = trained[after].made["inputs"].get(given)
            if part not in trained or trained[part].header["weights"] != taken:
                raise UsageError(f"expected {run} to hold the {part} that its {after} was made from")
    if eye != SHIPPED:
        raise UsageError(f"expected a model on the encoder that ships, {run / stage} is on {eye}")


def origins(stage: str) -> list[str]:
    """Return the trained stages that a model was made from, in order."""
    return [name for part in ORIGINS[stage].values() for name in (*origins(part), part)]


def write(settings: AddSettings, trained: dict[str, TrainedStage], stage: str, name: str, out: Path) -> None:
    """Write the directory of a shipped model."""
    model, made = TrainedModel.from_pretrained(settings.run / stage), trained[stage].made
    model.save_pretrained(out, torch.float16, made=made)
    known = gather(settings, trained, stage, out)
    header, _ = read_header(out)
    write_json(out / record.FILE, to_json(known))
    write_file(out / card.FILE, card.card(name, header, known).encode())


def gather(settings: AddSettings, trained: dict[str, TrainedStage], stage: str, rounded: Path) -> Record:
    """Return what the run has recorded of a model, which is `rounded` to half precision elsewhere."""
    run = settings.run
    _, config = read_header(run / stage)
    splits, kept = open_splits(run / "data"), config.selector.k
    chain = [trained[part] for part in (*origins(stage), stage)]
    figures = {name: value for part in chain for name, value in part.made["figures"].items()}
    weights = {
        model_digest(ModelSettings(model=str(directory)), config.task): kind
        for directory, kind in ((run / stage, "float32"), (rounded, "float16"))
    }
    return Record(
        parameters=trained[stage].parameters,
        preset=preset_text(trained[stage].header),
        data=data_of(splits),
        trainings=[training_of(run, part, splits, config) for part in chain],
        recall=figures.get(f"recall_{kept}"),
        recall_by_chance=figures.get(f"chance_{kept}"),
        results=results_of(settings.evaluated, weights),
    )


def data_of(splits: Splits) -> Data:
    """Return how much there was to learn from."""
    stores = {splits.training.store, splits.validation.store}
    return Data(
        seed=splits.training.store.config.seed,
        training_episodes=len(splits.training.episodes),
        validation_episodes=len(splits.validation.episodes),
        frames=sum(store.num_frames for store in stores),
    )


def training_of(run: Path, stage: TrainedStage, splits: Splits, config: ModelConfig) -> Training:
    """Return how long a stage was trained; the selector takes some windows and holds out some of those.

    A stage may be a model that ships, copied into the run to go on from: then its own record tells.
    """
    if (run / stage.name / record.FILE).is_file():
        last = read_record(run / stage.name).trainings[-1]
        if last.stage != stage.name:
            raise UsageError(f"expected {run / stage.name} to be a {stage.name}, it is a {last.stage}")
        return last
    actions = int(stage.made["settings"].get("frames", config.history))
    windows = len(starts(splits.training, actions * config.frameskip))
    if stage.name == "selector":
        chosen = min(windows, int(stage.made["settings"]["windows"]))
        windows = chosen - max(1, chosen // HELD_OUT)
    machine = stage.made.get("machine")  # earlier versions did not record it
    return Training(
        stage=stage.name,
        windows=windows,
        samples=stage.samples,
        steps=stage.steps,
        seconds=stage.seconds,
        machine=None if machine is None else described(machine),
        precision=" then ".join(precisions(stage.made)),
    )
