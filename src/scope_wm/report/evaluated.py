"""Finished evaluations with what was evaluated: model, K, selection, background, planner, samples, preset.

All of it is read from config.json files. An evaluation records the config of its model; one that does not,
because an earlier version made it, is matched by its hash with the models in the runs and those that ship.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from scope_wm.elite_bank import LATER_STEPS
from scope_wm.evaluate.run import KIND, Run, read_run, settings_of
from scope_wm.evaluate.settings import WIDER, SearchSettings, protocol_of
from scope_wm.evaluate.statistics import bootstrap
from scope_wm.evaluate.summary import Success, success_of, success_text, way_made, way_text
from scope_wm.files import CONFIG, read_object
from scope_wm.model.checkpoint import KIND as WORLD_MODEL
from scope_wm.model.encoders import SHIPPED
from scope_wm.model.shipped import shipped_models
from scope_wm.model.world_model import TokenConfig
from scope_wm.planning.load import SIMULATOR, ModelSettings
from scope_wm.planning.objective import proprio_weight
from scope_wm.planning.search import DEADLINE_CHUNK, THREAD_CHUNK
from scope_wm.presets import PRESETS, Preset
from scope_wm.records import to_json
from scope_wm.report.run_directory import evaluations
from scope_wm.tasks import TASKS
from scope_wm.train.refine import STAGE as REFINE
from scope_wm.train.stage import of_today

DENSE, DISTILLED, FOREGROUND_DELTA, COPY = "every-token", "distilled", "foreground-delta", "copy"
IGNORED = "ignored"  # the background, in Sparse Imagination
DRAWN = ("random", "latin-hypercube")  # selectors that draw anew every time
PAPER_KS = (98, 32)  # of its sparse models
NUM_TOKENS = 196  # of the paper's models, and of ours
CEM, EB_CEM = "cem", "eb-cem"
SAMPLES = LATER_STEPS.samples
OWN_SIZES = "own sizes"
# Settings that a setup tells, or where the model was.
TOLD = {
    "model",
    "encoder",
    "device",
    "true_dynamics",
    "k",
    "allow_other_k",
    "planner",
    "samples",
    "first_samples",
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is evaluated: a model by how it was trained, the tokens it plans with, and a planner."""

    task: str
    selector: str = DISTILLED
    background: str = FOREGROUND_DELTA
    trained_k: int
    k: int
    planner: str = EB_CEM
    samples: tuple[int, int] | None = (WIDER * SAMPLES, SAMPLES)  # first and later steps; None: not CEM


def scope(task: str, k: int, **other: Any) -> Setup:
    """Return the setup of the paper's method, planned with as many tokens as it was trained with."""
    return replace(Setup(task=task, trained_k=k, k=k), **other)


def dense(task: str, planner: str = CEM, samples: tuple[int, int] = (SAMPLES, SAMPLES)) -> Setup:
    """Return the setup of the dense model, by default with CEM as in the paper."""
    return scope(task, NUM_TOKENS, selector=DENSE, background=COPY, planner=planner, samples=samples)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A finished evaluation, the config of its model if it has one, and its directory if it is there."""

    run: Run
    header: dict[str, Any] | None
    directory: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return what the evaluation was asked for; an option that is younger than it had its default."""
        return settings_of(self.run.config)

    @property
    def task(self) -> str:
        """Return the task."""
        return str(self.settings["task"])

    @property
    def has_success(self) -> bool:
        """Tell whether the task has a rule of success; others have a distance only."""
        return self.run.summary["success"] is not None

    @property
    def samples(self) -> tuple[int, int] | None:
        """Return the candidates of an iteration at the first step and at later ones; None: not CEM."""
        asked = self.settings
        if asked["planner"] not in (CEM, EB_CEM):
            return None
        return SearchSettings(
            planner=asked["planner"],
            samples=asked["samples"],
            elites=asked["elites"],
            first_samples=asked["first_samples"],
        ).sample_counts

    @property
    def setup(self) -> Setup | None:
        """Return what was evaluated; None if candidates were simulated, or the model is not known."""
        if self.header is None or self.plays:
            return None
        selector, asked = self.header["model"]["selector"], self.settings
        return Setup(
            task=self.task,
            selector=selector["kind"],
            background=self.header["model"]["background"]["kind"],
            trained_k=selector["k"],
            k=asked["k"] or selector["k"],
            planner=asked["planner"],
            samples=self.samples,
        )

    @property
    def plays(self) -> bool:
        """Tell whether candidates were played in the simulator: then times tell nothing of a model."""
        return self.settings["true_dynamics"] or self.run.config["model_digest"] == SIMULATOR

    @property
    def is_refined(self) -> bool:
        """Tell whether the model was trained further on what it imagines, which the paper does not do."""
        return self.header is not None and stage_of(self.header) == REFINE

    @property
    def precisions(self) -> list[str]:
        """Return what the model was trained in, as far as that is known."""
        if self.header is None:
            return []
        made = self.header.get("made", {})
        kinds = [*precisions(made.get("before") or made), *precisions(made)]
        return list(dict.fromkeys(kinds))

    @property
    def preset(self) -> str:
        """Return the preset that the model has its sizes from, and say if it was trained otherwise."""
        if self.header is not None:
            return preset_text(self.header)
        return SIMULATOR if self.run.config["model_digest"] == SIMULATOR else "model not recorded"

    @property
    def sizes(self) -> tuple[Any, ...] | None:
        """Return the sizes of the model, by which different ones are told apart."""
        return None if self.header is None else sizes_of(self.header["model"])

    @property
    def protocol(self) -> "Evaluated":
        """Return the instances of the paper's protocol: the first ones, if there are more."""
        count = protocol_of(self.task).instances
        records = {i: record for i, record in self.run.records.items() if i < count}
        return replace(self, run=replace(self.run, records=records))

    @property
    def is_longer(self) -> bool:
        """Tell whether there are more instances than in the paper's protocol."""
        return len(self.run.records) > protocol_of(self.task).instances

    @property
    def success(self) -> Success | None:
        """Return how many instances were solved; None if the task has no rule of success."""
        return success_of(list(self.run.records.values())) if self.has_success else None

    def score(self) -> tuple[float, float, float]:
        """Return the share of successes with its interval, or else the mean final distance with its own."""
        if (success := self.success) is not None:
            return success.rate, *success.interval
        distances = np.array([record.final_distance for record in self.run.records.values()])
        return float(distances.mean()), *bootstrap(distances)

    def result(self) -> str:
        """Return the result by the paper's protocol as text, and that of all instances if they are more."""
        shown = [self.protocol, self] if self.is_longer else [self]
        return "; ".join(one.result_text() for one in shown)

    def result_text(self) -> str:
        """Return the result of all instances as text."""
        if self.success is not None:
            return success_text(self.success)
        mean, low, high = self.score()
        records = list(self.run.records.values())
        told = [
            f"{mean:.3g} ({low:.3g} to {high:.3g})",
            way_text(way_made(records)),
            f"{len(records)} instances",
        ]
        return ", ".join(filter(None, told))

    def _usual_chunk(self) -> int | None:
        if self.settings["max_seconds"] is not None:
            return DEADLINE_CHUNK
        return THREAD_CHUNK if self.settings["device"] == "cpu" else None

    def deviations(self) -> list[str]:
        """Tell which other settings are not those of the paper's protocol."""
        usual = {
            option.name: option.default
            for group in (ModelSettings, SearchSettings)
            for option in fields(group)
            if option.name not in TOLD
        }
        usual |= {
            "elites": (self.settings["samples"] or SAMPLES) * LATER_STEPS.elites // SAMPLES,
            "iterations": LATER_STEPS.iterations,
            "chunk": self._usual_chunk(),
            "max_steps": protocol_of(self.task).max_steps,
            "alpha": proprio_weight(self.task),
            "seed": 0,
        }
        asked = {name: self.settings[name] for name in usual}
        asked["elites"] = asked["elites"] or LATER_STEPS.elites
        told = [
            f"{name.replace('_', ' ')} {value}"
            for name, value in asked.items()
            if value not in (None, usual[name])
        ]
        return told if self.settings["problems_from"] is None else [*told, "problems from a store"]


def read_evaluations(runs: Sequence[Path]) -> list[Evaluated]:
    """Read all finished evaluations of runs; a run may be a single evaluation itself."""
    configs = [model / CONFIG for model in shipped_models().values()]
    configs += [file for run in runs for file in sorted(run.glob(f"*/{CONFIG}"))]
    models = {
        hashlib.sha256(file.read_bytes()).hexdigest(): file.parent
        for file in configs
        if read_object(file).get("kind") == WORLD_MODEL
    }
    found = []
    for one in [one for run in runs for one in ([read_run(run)] if is_evaluation(run) else evaluations(run))]:
        directory = models.get(one.config["model_digest"])
        header = one.config.get("model")
        if header is None and directory is not None:
            header = read_object(directory / CONFIG)
        found.append(Evaluated(run=one, header=header, directory=directory))
    return found


def is_evaluation(run: Path) -> bool:
    """Tell whether a directory is a single evaluation, finished or not."""
    return (run / CONFIG).is_file() and read_object(run / CONFIG).get("kind") == KIND


def preset_text(header: dict[str, Any]) -> str:
    """Return the preset of a model; of one that was trained otherwise, the preset that has its sizes."""
    name = sized_as(header)
    return preset_of(header) or (f"{name} sizes" if name else OWN_SIZES)


def preset_of(header: dict[str, Any]) -> str | None:
    """Return the preset that has the sizes of a model and trains it like that, if there is one."""
    name = sized_as(header)
    if name is None:
        return None
    preset, made = PRESETS[name](header["model"]["task"]), header.get("made", {})
    if stage_of(header) == REFINE:
        wanted = None if preset.refine is None else to_json(preset.refine) | {"select_by": "rollout"}
        if of_today(made["settings"]) != wanted:
            return None
        made = made["before"] or {}
    fit = preset.teacher if header["model"]["selector"]["kind"] == DENSE else preset.sparse
    trained = {"select_by": "rollout"} | of_today(made.get("settings", {}))
    return name if (trained.get("fit"), trained["select_by"]) == (to_json(fit), "rollout") else None


def precisions(made: dict[str, Any]) -> list[str]:
    """Return what products were computed in while a stage was trained; old records tell none: float32."""
    parts = [made, *made.get("resumed", [])]
    return list(dict.fromkeys(part.get("precision", "float32") for part in parts))


def stage_of(header: dict[str, Any]) -> str | None:
    """Return the stage that made a model, if it was trained here."""
    return header.get("made", {}).get("stage")


def sized_as(header: dict[str, Any]) -> str | None:
    """Return the preset that has the sizes of a model, if there is one."""
    model = header["model"]
    for name, preset in PRESETS.items():
        if sizes_of(model) == _preset_sizes(model["task"], preset(model["task"])):
            return name
    return None


def sizes_of(model: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sizes that a preset fixes of a model, from its config."""
    source, tokens = model["encoder"]["config"]["source"], model["tokens"]
    return (
        _encoder_size(source, tokens["visual"]),
        tokens["embedding"],
        model["history"],
        tuple(sorted(model["transformer"].items())),
        model["output"],
    )


def _preset_sizes(task: str, preset: Preset) -> tuple[Any, ...]:
    model = preset.model
    history = model.history or (TASKS[task].history if task in TASKS else None)
    encoder = _encoder_size(preset.encoder.source, TokenConfig.visual)
    transformer = tuple(sorted(to_json(model.transformer).items()))
    return encoder, model.embedding, history, transformer, model.output


def _encoder_size(source: str, visual: int) -> str | int:
    """Tell encoders apart by what they are, not by the directory that their weights lie in."""
    return SHIPPED if source == SHIPPED else visual
