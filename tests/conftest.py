from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from scope_wm.model.architecture import (
    BackgroundConfig,
    EncoderReference,
    ModelConfig,
    SelectorConfig,
    build,
)
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.encoder import EncoderConfig, HubEncoder
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import TokenConfig
from scope_wm.tasks import TASKS
from scope_wm.types import Statistics


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Save a sparse model of a task with random weights: 6 of 4 x 4 tokens, which a random DINOv2 makes."""
    transformers = pytest.importorskip("transformers")
    eye = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=56, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(eye)
    hub = EncoderConfig(source=str(eye), grid=4)

    @cache
    def save(task: str) -> Path:
        kind, rng = TASKS[task], np.random.default_rng(1)
        action, proprio = kind.action_width, kind.proprio_width
        model = ModelConfig(
            task=task,
            frameskip=kind.frameskip,
            statistics=Statistics(
                action_mean=rng.normal(size=action),
                action_std=rng.uniform(0.5, 1.5, action),
                proprio_mean=rng.uniform(10.0, 50.0, proprio),
                proprio_std=rng.uniform(10.0, 20.0, proprio),
            ),
            encoder=EncoderReference(config=hub, digest=HubEncoder(hub).digest()),
            tokens=TokenConfig(
                num_tokens=16, visual=8, proprio=proprio, action=kind.frameskip * action, embedding=3
            ),
            history=2,
            transformer=TransformerConfig(depth=1, heads=2, head_width=4, mlp_width=16),
            selector=SelectorConfig(kind="distilled", k=6, hidden=8),
            background=BackgroundConfig(kind="foreground-delta"),
        )
        torch.manual_seed(1)
        folder = tmp_path_factory.mktemp("model")
        TrainedModel(config=model, world_model=build(model)).save_pretrained(folder)
        return folder

    return save
