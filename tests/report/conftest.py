from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.encode import EncodeSettings, encode
from scope_wm.evaluate.instances import InstanceRecord
from scope_wm.evaluate.run import Run
from scope_wm.evaluate.runner import evaluate
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings
from scope_wm.evaluate.summary import summarise
from scope_wm.hardware import machine
from scope_wm.model.architecture import BackgroundConfig, EncoderReference, ModelConfig, SelectorConfig
from scope_wm.model.student import Student, StudentConfig
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import TokenConfig
from scope_wm.planning.load import ModelSettings
from scope_wm.presets import lite
from scope_wm.records import to_json
from scope_wm.report.evaluated import Evaluated
from scope_wm.tasks import TASKS
from scope_wm.train.decoder import TrainDecoderSettings, train_decoder
from scope_wm.train.distill import TrainSelectorSettings, train_selector
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.sparse import TrainSparseSettings, train_sparse
from scope_wm.train.teacher import DynamicsConfig, TrainTeacherSettings, train_teacher
from scope_wm.types import Statistics

RUN = RunSettings(device="cpu", log_every=2)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Wall in which every stage was made by its command, barely trained; for reading only."""
    folder = tmp_path_factory.mktemp("runs")
    run, student, threads = folder / "wall-mine", folder / "student", torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    Student(StudentConfig(dim=8, width=16, stages=1, heads=2)).save_pretrained(student)
    collect(CollectSettings(task="wall", episodes=10, length=30, out=run / "data", workers=1))
    encode(EncodeSettings(data=run / "data", out=run / "tokens", encoder=str(student), workers=1))
    data, tokens, teacher, selector = run / "data", str(run / "tokens"), run / "teacher", run / "selector"
    model = DynamicsConfig(
        history=2,
        embedding=3,
        transformer=TransformerConfig(depth=1, heads=2, head_width=4, mlp_width=16, dropout=0.0),
        output="residual",
    )
    train_teacher(
        TrainTeacherSettings(data=data, tokens=tokens, out=teacher, model=model, fit=fit(12, 8), run=RUN)
    )
    train_selector(
        TrainSelectorSettings(
            teacher=teacher,
            data=data,
            tokens=tokens,
            out=selector,
            windows=40,
            hidden=16,
            fit=fit(20, 16),
            run=RUN,
        )
    )
    for k in (98, 32):
        train_sparse(
            TrainSparseSettings(
                teacher=teacher,
                data=data,
                tokens=tokens,
                out=run / f"sparse-k{k}",
                k=k,
                selector=str(selector),
                fit=fit(6, 8),
                run=RUN,
            )
        )
    train_decoder(TrainDecoderSettings(data=data, tokens=tokens, out=run / "decoder", fit=fit(4, 2), run=RUN))
    for planner in ("cem", "eb-cem"):
        evaluate(
            EvaluateSettings(
                task="wall",
                model=ModelSettings(model=str(run / "sparse-k32"), device="cpu"),
                search=SearchSettings(planner=planner, samples=4, elites=2, horizon=2, max_steps=2),
                instances=2,
                workers=1,
            )
        )
    torch.set_num_threads(threads)
    return run


def fit(steps: int, batch: int) -> FitSettings:
    optimiser = OptimiserSettings(lr=5e-3, schedule="cosine", clip=1.0)
    return FitSettings(
        optimiser=optimiser, epochs=1000, max_samples=steps * batch, batch=batch, validations=2
    )


@pytest.fixture(scope="session")
def evaluated() -> Callable[..., Evaluated]:
    """Make an evaluation of a lite model out of what is to be tested; the rest is as usual."""

    def make(
        task: str = "push_t",
        *,
        k: int = 32,
        solved: int = 44,
        count: int = 50,
        seconds: float = 2.0,
        memory: int | None = 64 * 2**20,
        cores: int = 2,
        model: dict[str, Any] | None = None,
        **search: Any,
    ) -> Evaluated:
        settings = EvaluateSettings(
            task=task,
            model=ModelSettings(model="somewhere", device="cpu"),
            search=SearchSettings(**search),
            instances=count,
            workers=1,
        )
        records = [record(i, success=i < solved, seconds=seconds, memory=memory) for i in range(count)]
        config = {
            "settings": settings.resolved(),
            "model_digest": f"digest of K = {k}",
            "data_digest": None,
            "machine": machine(torch.device("cpu")) | {"cores": cores},
        }
        run = Run(
            path=Path(f"k{k}-{settings.search.planner}"),
            config=config,
            summary=to_json(summarise(settings, records)),
            records={one.instance: one for one in records},
        )
        return Evaluated(run=run, header=header(task, k) if model is None else model)

    return make


def record(instance: int, *, success: bool, seconds: float, memory: int | None) -> InstanceRecord:
    return InstanceRecord(
        instance=instance,
        seed=99 * instance + 1,
        success=success,
        steps=2,
        start_distance=100.0 + instance,
        final_distance=1.0 if success else 50.0,
        path_left=0.0,
        plan_seconds=seconds,
        samples=1000,
        peak_memory=memory,
        least_distance=0.0,
    )


@pytest.fixture(scope="session")
def refined() -> Callable[[Evaluated], Evaluated]:
    """Make of an evaluation one of the model after refining it as lite does."""

    def make(one: Evaluated) -> Evaluated:
        assert one.header is not None
        how = to_json(lite(one.task).refine) | {"select_by": "rollout"}
        made = {"stage": "refine", "settings": how, "figures": {}, "before": one.header["made"]}
        return replace(one, header=one.header | {"made": made})

    return make


def header(task: str, k: int) -> dict[str, Any]:
    """Return the config of a lite model as its directory has it; K = 196 is the dense one."""
    preset, kind = lite(task), TASKS[task]
    config = ModelConfig(
        task=task,
        frameskip=kind.frameskip,
        statistics=Statistics(
            action_mean=np.zeros(2), action_std=np.ones(2), proprio_mean=np.zeros(4), proprio_std=np.ones(4)
        ),
        encoder=EncoderReference(config=preset.encoder, digest="digest"),
        tokens=TokenConfig(num_tokens=196, visual=64, proprio=4, action=10),
        history=1,
        transformer=preset.model.transformer,
        selector=SelectorConfig(kind="every-token" if k == 196 else "distilled", k=k),
        background=BackgroundConfig(kind="copy" if k == 196 else "foreground-delta"),
        output=preset.model.output,
    )
    fit = preset.teacher if k == 196 else preset.sparse
    figures = {"one_step_of_copy": 0.4321, "oracle_of_copy": 0.3210, "background_of_copy": 0.8762}
    return {
        "kind": "world-model",
        "model": to_json(config),
        "made": {"settings": {"fit": to_json(fit)}, "figures": figures},
    }
