"""A folder to follow the guide in, where everything is small, with what its pages take as given."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from scope_wm.cli import main
from scope_wm.data.workers import Report
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.encoders import SHIPPED
from scope_wm.model.transformer import TransformerConfig
from scope_wm.planning.cem import CEMSettings, cem
from scope_wm.planning.planners import PLANNERS, EliteBankCEM, Memoryless
from scope_wm.presets import PRESETS, Preset, RefinePreset, SelectorPreset
from scope_wm.report.run_report import write_report
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.teacher import DynamicsConfig

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SEARCH = CEMSettings(samples=8, elites=2, iterations=2)
FIT = FitSettings(optimiser=OptimiserSettings(lr=2e-3), max_samples=16, batch=8, validations=1)
RUN = ["run", "--task", "wall", "--preset", "lite", "--workers", "1"]


def micro(task: str) -> Preset:
    """Return a preset that goes through every stage in seconds, and learns nothing."""
    return Preset(
        episodes=3,
        encoder=EncoderConfig(source=SHIPPED),
        model=DynamicsConfig(
            history=1,
            transformer=TransformerConfig(depth=1, heads=1, head_width=8, mlp_width=16, dropout=0.0),
            output="residual",
        ),
        teacher=FIT,
        selector=SelectorPreset(windows=24, hidden=16, fit=FIT),
        sparse=FIT,
        refine=RefinePreset(fit=FIT),
        ks=(32,),
        instances=1,
        max_steps=1,
    )


def run_in_this_process(
    work: Callable[[object, Report], None], jobs: Sequence[object], report: Report
) -> None:
    """Do the jobs one by one, here, where the small presets and searches are known."""
    for job in jobs:
        work(job, report)


@contextmanager
def everything_small() -> Iterator[None]:
    """Make presets and searches small, keep evaluations in this process, and leave out videos of runs."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name in PRESETS:
            patch.setitem(PRESETS, name, micro)
        patch.setitem(PLANNERS, "cem", Memoryless(optimiser=partial(cem, settings=SEARCH)))
        patch.setitem(PLANNERS, "eb-cem", EliteBankCEM(first=SEARCH, later=SEARCH, bank_size=2))
        patch.setattr("scope_wm.evaluate.runner.run_in_processes", run_in_this_process)
        patch.setattr("scope_wm.pipeline.run.write_report", partial(write_report, videos=0))
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def small() -> Iterator[None]:
    """Make everything small for one test: others of this process need the real sizes."""
    with everything_small():
        yield


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Follow the page on training once: `scope-wm run --task wall --preset lite`, from nothing."""
    folder = tmp_path_factory.mktemp("guide")
    with everything_small(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(RUN) == 0
    return folder / "runs" / "wall-lite"


@pytest.fixture(scope="session")
def dinov2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small DINOv2 with random weights, in place of the one that a page takes from the hub."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("dinov2")
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=64, num_hidden_layers=9, num_attention_heads=2, mlp_ratio=1, image_size=56, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(folder)
    return folder


@pytest.fixture
def workspace(small: None, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a new folder with what pages take as given: puck.py and runs/wall-lite."""
    shutil.copy(EXAMPLES / "puck.py", tmp_path)
    shutil.copytree(finished_run, tmp_path / "runs" / "wall-lite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path
