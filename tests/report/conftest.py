from pathlib import Path

import pytest
import torch

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.encode import EncodeSettings, encode
from scope_wm.evaluate.runner import evaluate
from scope_wm.evaluate.settings import EvaluateSettings, SearchSettings
from scope_wm.model.student import Student, StudentConfig
from scope_wm.model.transformer import TransformerConfig
from scope_wm.planning.load import ModelSettings
from scope_wm.train.decoder import TrainDecoderSettings, train_decoder
from scope_wm.train.distill import TrainSelectorSettings, train_selector
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.train.sparse import TrainSparseSettings, train_sparse
from scope_wm.train.teacher import DynamicsConfig, TrainTeacherSettings, train_teacher

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
    evaluate(
        EvaluateSettings(
            task="wall",
            model=ModelSettings(model=str(run / "sparse-k32"), device="cpu"),
            search=SearchSettings(planner="cem", samples=4, elites=2, horizon=2, max_steps=1),
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
