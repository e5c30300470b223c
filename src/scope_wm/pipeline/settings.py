"""What is asked of a run, and where its parts lie."""

from dataclasses import dataclass, field
from pathlib import Path

from scope_wm.data.token_cache import ON_THE_FLY
from scope_wm.presets import PRESETS, Preset, PresetName
from scope_wm.tasks import TaskName
from scope_wm.train.recorder import RunSettings


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """Make a planner for a task from nothing: data, dense and sparse models, evaluation, report.

    After an interruption the same command goes on. What has changed since, and what depends on it, is made
    again.

    Example: scope-wm run --task wall --preset lite
    """

    task: TaskName
    """what to do"""
    preset: PresetName = "lite"
    """paper: the paper's sizes, for GPUs; lite: for a laptop; tiny: minutes, to see that it works"""
    out: Path | None = None
    """directory of the run; None: runs/TASK-PRESET"""
    on_the_fly: bool = False
    """encode frames in the training loop instead of keeping their tokens on the disk"""
    decoder: bool = False
    """train a decoder too, which draws what models imagine"""
    ablations: bool = False
    """train and evaluate what the paper's other tables compare too: selections, backgrounds, planners, K"""
    workers: int | None = None
    """processes that collect, encode and evaluate; None: one for every core"""
    dry_run: bool = False
    """only tell what would be done, and how long it may take"""
    run: RunSettings = field(default_factory=RunSettings)
    """how to train"""

    @property
    def path(self) -> Path:
        """Return the directory of the run."""
        return self.out or Path("runs") / f"{self.task}-{self.preset}"

    @property
    def data(self) -> Path:
        """Return the directory of the episodes."""
        return self.path / "data"

    @property
    def tokens(self) -> str:
        """Return the directory of the episodes' tokens, or that they are made in the training loop."""
        return ON_THE_FLY if self.on_the_fly else str(self.path / "tokens")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the stages that every training learns from."""
        return ("data",) if self.on_the_fly else ("data", "tokens")

    @property
    def sizes(self) -> Preset:
        """Return what the preset says of the task."""
        return PRESETS[self.preset](self.task)
