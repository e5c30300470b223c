from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scope_wm.evaluate.runner import evaluate
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings
from scope_wm.model import shipped
from scope_wm.model.transformer import TransformerConfig
from scope_wm.pipeline.settings import PipelineSettings
from scope_wm.pipeline.stages import stages
from scope_wm.planning.load import ModelSettings
from scope_wm.presets import PRESETS, Preset, RefinePreset, small_fit, tiny
from scope_wm.shipping.add import AddSettings, add
from scope_wm.train.recorder import RunSettings


def least(task: str) -> Preset:
    """Return settings with which a whole run takes seconds."""
    assert task == "wall"
    usual = tiny("wall")
    predictor = TransformerConfig(depth=1, heads=1, head_width=16, mlp_width=32, dropout=0.0)
    fit = replace(small_fit(samples=320, batch=16), validations=1)
    return replace(
        usual,
        episodes=5,
        model=replace(usual.model, transformer=predictor),
        teacher=fit,
        selector=replace(usual.selector, windows=50, fit=replace(usual.selector.fit, epochs=2)),
        sparse=fit,
        ks=(98, 32),
        refine=RefinePreset(fit=fit),
    )


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Wall on the shipped encoder, hardly trained, with one evaluation; for reading only."""
    out, threads = tmp_path_factory.mktemp("runs") / "wall", torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", least)
        settings = PipelineSettings(
            task="wall", preset="tiny", out=out, workers=1, run=RunSettings(device="cpu", log_every=2)
        )
        for stage in stages(settings):
            if not stage.name.startswith("evaluate"):
                stage.make()
    evaluate(
        EvaluateSettings(
            task="wall",
            model=ModelSettings(model=str(out / "refined-k32"), device="cpu"),
            search=SearchSettings(planner="cem", samples=4, elites=2, horizon=2, max_steps=1),
            instances=2,
            workers=1,
        )
    )
    torch.set_num_threads(threads)
    return out


@pytest.fixture(scope="session")
def added(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of that run, as they would ship; for reading only."""
    folder = tmp_path_factory.mktemp("shipped")
    add(AddSettings(run=run, out=folder))
    return folder


@pytest.fixture
def ships(added: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the package ship those models, and none else."""
    monkeypatch.setattr(shipped, "FOLDER", added)
    return added
