"""DINO-WM's released checkpoints, read as dense models.

A checkpoint is a pickle of whole modules: predictor, action encoder and proprio encoder, and a decoder and
optimizers that are left where they are. `hydra.yaml` beside it tells what the shapes of the weights do not.
DINO-WM's Conv1d embeddings have kernel 1: they are our linear layers.
"""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from scope_wm.model.architecture import (
    BackgroundConfig,
    EncoderReference,
    ModelConfig,
    SelectorConfig,
    build,
)
from scope_wm.model.encoder import HubEncoder
from scope_wm.model.foreign import read_inert, tensors
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import TokenConfig, WorldModel
from scope_wm.records import from_json
from scope_wm.types import IMAGE_SIZE, Statistics, UsageError

NUM_TOKENS = 14 * 14
PARTS = ("predictor", "action_encoder", "proprio_encoder")

# Where the classes of a checkpoint's modules and optimizers come from.
PACKAGES = {"accelerate", "collections", "models", "torch"}

# What hydra.yaml must say if it says anything about it: our model is not built otherwise.
EXPECTED = {
    "concat_dim": 1,
    "num_pred": 1,
    "num_action_repeat": 1,
    "num_proprio_repeat": 1,
    "normalize_action": True,
    "img_size": IMAGE_SIZE,
    "encoder.name": "dinov2_vits14",
    "encoder.feature_key": "x_norm_patchtokens",
}

RENAMES = {
    r"^predictor\.pos_embedding$": "predictor.positions",
    r"\.layers\.(\d+)\.0\.to_out\.0\.": r".attention.\1.to_out.",
    r"\.layers\.(\d+)\.0\.": r".attention.\1.",
    r"\.layers\.(\d+)\.1\.net\.": r".mlp.\1.",
    r"^(action|proprio)_encoder\.patch_embed\.": r"fuse.\1.",
}
UNIT_AXIS = {"predictor.positions": 0, "fuse.action.weight": 2, "fuse.proprio.weight": 2}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What hydra.yaml tells of a model and its weights do not."""

    environment: str
    frameskip: int
    history: int
    heads: int
    dropout: float


def read_recipe(folder: Path) -> Recipe:
    """Read hydra.yaml, and refuse a model that is built otherwise than the released ones."""
    file = folder / "hydra.yaml"
    if not file.is_file():
        raise UsageError(f"{folder} is not an output of DINO-WM: expected hydra.yaml and checkpoints/ in it")
    values = _read_yaml(file)
    for key, expected in EXPECTED.items():
        if (value := _lookup(values, key)) not in (None, expected):
            raise UsageError(f"{file}: expected {key} = {expected!r}, got {value!r}")
    keys = {
        "environment": "env.name",
        "frameskip": "frameskip",
        "history": "num_hist",
        "heads": "predictor.heads",
        "dropout": "predictor.dropout",
    }
    recipe = from_json(Recipe, {name: _lookup(values, key) for name, key in keys.items()}, str(file))
    if min(recipe.frameskip, recipe.history, recipe.heads) < 1:
        raise UsageError(f"{file}: expected frameskip, num_hist and heads of at least 1, got {recipe}")
    return recipe


def find_checkpoint(folder: Path) -> Path:
    """Return the newest checkpoint of an output folder: model_latest.pth, or else that of the last epoch."""
    latest = folder / "checkpoints" / "model_latest.pth"
    if latest.is_file():
        return latest
    epochs = {}
    for file in latest.parent.glob("model_*.pth"):
        if number := re.fullmatch(r"model_(\d+)\.pth", file.name):
            epochs[int(number[1])] = file
    if not epochs:
        raise UsageError(f"{latest.parent} holds no checkpoint: expected model_latest.pth or model_EPOCH.pth")
    return epochs[max(epochs)]


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the parameters of a checkpoint under our names, without running any code of the file."""
    payload = read_inert(file, PACKAGES)
    if not isinstance(payload, dict) or not set(PARTS) <= set(payload):
        raise UsageError(f"{file} is not a checkpoint of DINO-WM: expected a dict with {', '.join(PARTS)}")
    weights = {}
    for part in PARTS:
        for name, value in tensors(payload[part], part):
            for pattern, replacement in RENAMES.items():
                name = re.sub(pattern, replacement, name)
            weights[name] = value
    for name, axis in UNIT_AXIS.items():
        shape = tuple(weights[name].shape) if name in weights else None
        if shape is None or len(shape) != 3 or shape[axis] != 1:
            raise UsageError(
                f"{file}: expected {name} with three axes and size 1 on axis {axis}, got {shape}"
            )
        weights[name] = weights[name].squeeze(axis)
    return weights


def describe(
    weights: dict[str, Tensor], recipe: Recipe, task: str, statistics: Statistics, encoder: HubEncoder
) -> ModelConfig:
    """Return the config of the dense model that has these weights: sizes are read from their shapes."""
    rows, width = _matrix(weights, "predictor.positions")
    embedding, action = _matrix(weights, "fuse.action.weight")
    _, proprio = _matrix(weights, "fuse.proprio.weight")
    qkv, _ = _matrix(weights, "predictor.transformer.attention.0.to_qkv.weight")
    mlp, _ = _matrix(weights, "predictor.transformer.mlp.0.1.weight")
    head_width = qkv // (3 * recipe.heads)
    _expect("rows of the position table (num_hist x 14 x 14)", rows, recipe.history * NUM_TOKENS)
    _expect("rows of to_qkv (3 x heads x head width)", qkv, 3 * recipe.heads * head_width)
    _expect("token width (the encoder's and two embeddings)", width, encoder.dim + 2 * embedding)
    for values in (statistics.action_mean, statistics.action_std):
        _expect("action width (frameskip steps)", action, recipe.frameskip * len(values))
    for values in (statistics.proprio_mean, statistics.proprio_std):
        _expect("proprio width", proprio, len(values))
    return ModelConfig(
        task=task,
        frameskip=recipe.frameskip,
        statistics=statistics,
        encoder=EncoderReference(config=encoder.config, digest=encoder.digest()),
        tokens=TokenConfig(
            num_tokens=NUM_TOKENS, visual=encoder.dim, proprio=proprio, action=action, embedding=embedding
        ),
        history=recipe.history,
        transformer=TransformerConfig(
            depth=sum(name.endswith(".to_qkv.weight") for name in weights),
            heads=recipe.heads,
            head_width=head_width,
            mlp_width=mlp,
            dropout=recipe.dropout,
        ),
        selector=SelectorConfig(kind="every-token", k=NUM_TOKENS),
        background=BackgroundConfig(kind="copy"),
    )


def rebuild(config: ModelConfig, weights: dict[str, Tensor]) -> WorldModel:
    """Return the model of this config with these weights, if they are exactly its own."""
    model = build(config).eval()
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    if missing := sorted(set(expected) - set(found)):
        raise UsageError(f"the checkpoint lacks {', '.join(missing)}")
    if unexpected := sorted(set(found) - set(expected)):
        raise UsageError(f"the checkpoint has weights that DINO-WM's model has not: {', '.join(unexpected)}")
    for name, shape in expected.items():
        _expect(f"shape of {name}", found[name], shape)
    model.load_state_dict(weights)
    return model


def _read_yaml(file: Path) -> object:
    """Parse a YAML file that holds nothing but plain values."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError as error:
        raise UsageError(f"{file} needs PyYAML: pip install 'scope-wm[hub]'") from error
    try:
        return yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not plain YAML: {error}") from error


def _lookup(values: Any, key: str) -> Any:
    """Return the value under a dotted key, None where there is none."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _matrix(weights: dict[str, Tensor], name: str) -> tuple[int, int]:
    """Return the shape of a weight that must be a matrix."""
    if name not in weights or weights[name].ndim != 2:
        raise UsageError(f"the checkpoint has no matrix {name}: it is not of DINO-WM's predictor")
    rows, columns = weights[name].shape
    return rows, columns


def _expect(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise UsageError(f"{what}: expected {expected}, got {got}")
