"""A small run of Wall with the simulator as the model, and a store of it, that tests may read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.evaluate.runner import run
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings
from scope_wm.planning.load import ModelSettings

INSTANCES = 6
SEARCH = SearchSettings(samples=20, elites=4, horizon=2, max_steps=2)


def settings(out: Path, **changes: Any) -> EvaluateSettings:
    made = EvaluateSettings(
        task="wall",
        model=ModelSettings(model="simulator"),
        out=out,
        search=SEARCH,
        instances=INSTANCES,
        workers=1,
    )
    return replace(made, **changes)


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else {}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that one worker made without interruption, for reading only."""
    out = tmp_path_factory.mktemp("runs") / "wall"
    run(settings(out))
    return out


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of five episodes, one of them for validation."""
    path = tmp_path_factory.mktemp("stores") / "wall"
    collect(CollectSettings(task="wall", episodes=5, out=path, workers=1))
    return path


@pytest.fixture
def threads() -> Iterator[None]:
    """Give this process its threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
