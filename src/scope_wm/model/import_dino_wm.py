"""`scope-wm import dino-wm`: a released DINO-WM checkpoint as a dense model of ours, to be a teacher."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from scope_wm.records import from_json
from scope_wm.types import Statistics, UsageError

ENVIRONMENTS = {"point_maze": "point_maze", "pusht": "push_t", "wall": "wall"}

# DINO-WM's Push-T loader standardises with these numbers; for its other tasks it computes them from the data.
PUSH_T_STATISTICS = Statistics(
    action_mean=np.array([-0.0087, 0.0068]),
    action_std=np.array([0.2019, 0.2002]),
    proprio_mean=np.array([236.6155, 264.5674, -2.93032027, 2.54307914]),
    proprio_std=np.array([101.1202, 87.0112, 74.84556075, 74.14009094]),
)


@dataclass(frozen=True, kw_only=True)
class ImportDinoWMSettings:
    """Import a released DINO-WM checkpoint as a dense model.

    Nothing of the checkpoint's pickle is run. Its image decoder is not imported.

    Example: scope-wm import dino-wm outputs/pusht --out models/push_t-dense
    """

    folder: tyro.conf.Positional[Path]
    """directory with hydra.yaml and checkpoints/model_latest.pth"""
    out: Path
    """directory of the model to write"""
    task: Literal["point_maze", "wall", "push_t", "rope", "granular"] | None = None
    """task of the model, if hydra.yaml names none of ours"""
    statistics: Path | None = None
    """statistics.json of the data it was trained on; only for Push-T they are known"""
    encoder: str | None = None
    """hub id or directory of DINOv2 ViT-S/14; else that of SCOPE_WM_DINOV2, else facebook/dinov2-small"""


def import_dino_wm(settings: ImportDinoWMSettings) -> None:
    """Read the checkpoint, check it against its encoder, and write the model directory."""
    # Here, so that --help does not wait for torch.
    from scope_wm.model.checkpoint import TrainedModel
    from scope_wm.model.dino_wm import describe, find_checkpoint, read_recipe, read_weights, rebuild
    from scope_wm.model.encoder import EncoderConfig, HubEncoder

    recipe = read_recipe(settings.folder)
    task = settings.task or ENVIRONMENTS.get(recipe.environment)
    if task is None:
        raise UsageError(f"no task is known as {recipe.environment!r}, as hydra.yaml calls it: give --task")
    statistics = read_statistics(settings.statistics, task)
    file = find_checkpoint(settings.folder)
    weights = read_weights(file)
    hub = EncoderConfig() if settings.encoder is None else EncoderConfig(source=settings.encoder)
    config = describe(weights, recipe, task, statistics, HubEncoder(hub))
    model = TrainedModel(config=config, world_model=rebuild(config, weights))
    model.save_pretrained(settings.out)
    size = sum(value.numel() for value in weights.values()) / 1e6
    print(f"{file} -> {settings.out}")
    print(f"  dense model of {task}, {size:.2f} M parameters, {recipe.history} frames")
    print(f"  encoder {hub.source}, by reference; the checkpoint's image decoder is not imported")


def read_statistics(file: Path | None, task: str) -> Statistics:
    """Read the statistics of a store, or return those that DINO-WM has built in."""
    if file is None and task == "push_t":
        return PUSH_T_STATISTICS
    if file is None:
        raise UsageError(
            f"a checkpoint of {task} does not hold the mean and std of the actions and proprio that it was "
            "trained with: give --statistics FILE, the statistics.json of a store of that data"
        )
    try:
        values = json.loads(file.read_text())
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}") from error
    if isinstance(values, dict):
        values.pop("digest", None)  # it tells the store that they are still its own
    return from_json(Statistics, values, str(file))
