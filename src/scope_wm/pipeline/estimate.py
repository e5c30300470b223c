"""What a run would do, and how long it may take on this machine: `scope-wm run --dry-run`.

Nothing is made. The time of a stage is that of a small piece of its work, done now, times how many there are:
an episode, some frames, a step on random tokens, some imagined candidates. All pieces are done on the
processor in float32. An evaluation ends when its problems are solved, so its time is between that of one step
of control and that of all.
"""

import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Column, Table

from scope_wm.data.collect import CollectSettings, record
from scope_wm.data.encode import EncodeSettings
from scope_wm.data.token_cache import choose_device
from scope_wm.data.workers import usable_cores
from scope_wm.elite_bank import LATER_STEPS
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.hardware import computing_with
from scope_wm.model.architecture import ModelConfig, build
from scope_wm.model.decoder import Decoder, DecoderConfig
from scope_wm.model.encoders import open_encoder
from scope_wm.model.fast_rollout import last_imagined
from scope_wm.pipeline.settings import PipelineSettings
from scope_wm.pipeline.stages import Stage
from scope_wm.selector import RelevanceHead
from scope_wm.tasks import find_task
from scope_wm.tasks.task import episode_rng
from scope_wm.train.decoder import TrainDecoderSettings
from scope_wm.train.distill import TrainSelectorSettings
from scope_wm.train.dynamics import PredictionLoss
from scope_wm.train.loop import FitSettings
from scope_wm.train.refine import TrainRefineSettings
from scope_wm.train.sparse import TrainSparseSettings
from scope_wm.train.teacher import TrainTeacherSettings
from scope_wm.types import IMAGE_SIZE, MadeOtherwise

FINISHED = "finished"
PIECE = 8  # frames, windows or candidates that are timed


def show_plan(asked: PipelineSettings, plan: list[Stage]) -> None:
    """Print every stage with its state and how long it may take."""
    table = Table(Column("stage", no_wrap=True), "state", "may take")
    estimate, total, pending = Estimate(asked), 0.0, set[str]()
    for stage in plan:
        waits = [name for name in stage.after if name in pending]
        state = f"after {waits[-1]}" if waits else state_of(stage)
        if state == FINISHED:
            table.add_row(stage.name, state, "")
            continue
        pending.add(stage.name)
        least, most = estimate.seconds(stage)
        total += most
        table.add_row(stage.name, state, between(least, most))
    console = Console()
    console.print(table)
    where = "on this machine" if choose_device(asked.run.device).type == "cpu" else "on its processor alone"
    console.print(f"In all about {between(total, total)} at most, {where}, into {asked.path}")


def state_of(stage: Stage) -> str:
    """Tell what would happen to a stage whose inputs are finished."""
    try:
        if stage.is_finished():
            return FINISHED
    except MadeOtherwise:
        return "to be made again, for its settings or inputs have changed"
    return "to be made, or gone on with"


def between(least: float, most: float) -> str:
    """Return a span of seconds as text."""
    ends = dict.fromkeys(str(timedelta(seconds=round(end))) for end in (least, most))
    return " to ".join(ends)


def timed(piece: Callable[[], object]) -> float:
    """Return the seconds of a piece of work, done once before to be warm."""
    piece()
    began = time.perf_counter()
    piece()
    return time.perf_counter() - began


class Estimate:
    """How long the stages of one run may take."""

    def __init__(self, asked: PipelineSettings) -> None:
        self.asked = asked
        self.preset = asked.sizes
        self.task = find_task(asked.task)
        self.encoder = open_encoder(self.preset.encoder)
        self.workers = asked.workers or usable_cores()
        self.frames = self.preset.episodes * self.task.episode_length

    def seconds(self, stage: Stage) -> tuple[float, float]:
        """Return the least and the most seconds of a stage from its beginning."""
        settings = stage.settings
        match settings:
            case CollectSettings():
                most = settings.episodes * timed(self.episode) / self.workers
            case EncodeSettings():
                most = self.frames * self.frame() / self.workers
            case TrainTeacherSettings():
                most = self.samples(settings.fit) * self.window(None)
            case TrainSparseSettings():
                most = self.samples(settings.fit) * self.window(settings.k)
            case TrainRefineSettings():
                most = self.samples(settings.fit) * settings.frames * self.window(kept_by(settings.model))
            case TrainSelectorSettings():
                most = settings.windows * self.window(None) + self.head(settings)
            case TrainDecoderSettings():
                most = self.samples(settings.fit) * self.drawing()
            case EvaluateSettings():
                return self.evaluation(settings)
        return most, most

    def samples(self, fit: FitSettings) -> int:
        """Return how many samples a training sees."""
        return fit.steps(self.frames) * fit.batch

    def episode(self) -> object:
        """Collect one episode."""
        task = self.task()
        return record(task, episode_rng(0, 0), task.episode_length)

    def frame(self) -> float:
        """Return the seconds of encoding one frame in a worker, which has one thread."""
        frames = torch.zeros(PIECE, IMAGE_SIZE, IMAGE_SIZE, 3, dtype=torch.uint8)
        with computing_with(1):
            return timed(lambda: self.encoder(frames)) / PIECE

    @cache  # noqa: B019 (an estimate is made once in a process)
    def window(self, k: int | None) -> float:
        """Return the seconds of one window in a training step, with its frames if they are encoded there."""
        config = self.model(k)
        loss, tokens, frames = PredictionLoss(build(config)), config.tokens, config.history + 1
        visual = torch.randn(PIECE, frames, tokens.num_tokens, tokens.visual)
        proprio = torch.randn(PIECE, frames, tokens.proprio)
        actions = torch.randn(PIECE, frames - 1, tokens.action)
        step = timed(lambda: loss(visual, proprio, actions).backward()) / PIECE
        return step + (frames * self.frame() if self.asked.on_the_fly else 0.0)

    def head(self, settings: TrainSelectorSettings) -> float:
        """Return the seconds of distilling the head."""
        tokens, frames = self.model().tokens, self.model().history
        head = RelevanceHead(visual=tokens.visual, embedding=tokens.embedding, hidden=settings.hidden)
        visual = torch.randn(PIECE, frames, tokens.num_tokens, tokens.visual)
        embedding = torch.randn(PIECE, frames, tokens.embedding)
        once = timed(lambda: head(visual, embedding, embedding).sum().backward()) / PIECE
        return settings.fit.steps(settings.windows) * settings.fit.batch * once

    def drawing(self) -> float:
        """Return the seconds of one frame in the training of the decoder."""
        decoder = Decoder(DecoderConfig(visual=self.encoder.dim))
        tokens = torch.randn(PIECE, self.encoder.num_tokens, self.encoder.dim)
        return timed(lambda: decoder(tokens).sum().backward()) / PIECE

    def model(self, k: int | None = None) -> ModelConfig:
        """Return a model of the right sizes that keeps K tokens, or all."""
        encoder = self.encoder
        return self.preset.untrained(self.asked.task, num_tokens=encoder.num_tokens, visual=encoder.dim, k=k)

    @cache  # noqa: B019 (an estimate is made once in a process)
    @torch.no_grad()
    def candidate(self, k: int | None, horizon: int) -> float:
        """Return the seconds of imagining one candidate in a worker, with K tokens or all."""
        config = self.model(k)
        model, tokens = build(config).eval(), config.tokens
        visual = torch.randn(PIECE, tokens.num_tokens, tokens.visual)
        proprio = torch.randn(PIECE, tokens.proprio)
        actions = torch.randn(PIECE, horizon, tokens.action)
        with computing_with(1):
            return timed(lambda: last_imagined(model, visual, proprio, actions)) / PIECE

    def evaluation(self, settings: EvaluateSettings) -> tuple[float, float]:
        """Return the seconds of an evaluation whose problems need one step of control, or all."""
        kept = settings.model.k or kept_by(Path(settings.model.model))
        candidate = self.candidate(kept, settings.mpc.horizon)
        times = settings.search.iterations or LATER_STEPS.iterations
        once, each = (times * samples for samples in settings.search.sample_counts)
        share = settings.count * candidate / self.workers
        return share * once, share * (once + (settings.mpc.max_steps - 1) * each)


def kept_by(stage: Path) -> int | None:
    """Return K of the model of a stage, by its name; None: all tokens."""
    trained = re.match(r"(?:sparse|refined)-k(\d+)", stage.name)
    return int(trained[1]) if trained else None
