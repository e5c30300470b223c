"""The stages of a run: which directory each makes, from what, and whether that is done.

    runs/<task>-<preset>/data, tokens
                         teacher, selector, sparse-k98, sparse-k32     as the paper trains them
                         refined-dense, refined-k98, refined-k32       trained further, if the preset says so
                         decoder
                         evaluate/<model>-<planner>

Every stage is the command of that name with the settings of a preset.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from scope_wm.data.collect import CollectSettings, collect, is_collected
from scope_wm.data.encode import EncodeSettings, encode, is_encoded
from scope_wm.evaluate.run import is_evaluated
from scope_wm.evaluate.runner import evaluate
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.model.architecture import BackgroundConfig
from scope_wm.pipeline.settings import PipelineSettings
from scope_wm.pipeline.variants import DENSE, refined, sparse_models, trials
from scope_wm.planning.load import ModelSettings
from scope_wm.train.decoder import TrainDecoderSettings, decoder_recipe, train_decoder
from scope_wm.train.distill import TrainSelectorSettings, selector_recipe, train_selector
from scope_wm.train.refine import TrainRefineSettings, refine_recipe, train_refine
from scope_wm.train.sparse import WITHOUT_HEAD, TrainSparseSettings, sparse_recipe, train_sparse
from scope_wm.train.stage import Recipe, is_finished
from scope_wm.train.teacher import TrainTeacherSettings, teacher_recipe, train_teacher

Training = (
    TrainTeacherSettings
    | TrainSelectorSettings
    | TrainSparseSettings
    | TrainRefineSettings
    | TrainDecoderSettings
)
T = TypeVar("T", bound=Training)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One directory of a run, and the stages that it is made from; what was made otherwise is refused."""

    name: str
    after: tuple[str, ...]
    settings: CollectSettings | EncodeSettings | Training | EvaluateSettings
    make: Callable[[], object]
    is_finished: Callable[[], bool]


def stages(asked: PipelineSettings) -> list[Stage]:
    """Return the stages of a run in order."""
    return [
        *data_stages(asked),
        *model_stages(asked),
        *evaluations(asked),
    ]


def data_stages(asked: PipelineSettings) -> list[Stage]:
    """Return the stages before training."""
    preset = asked.sizes
    collected = CollectSettings(
        task=asked.task, episodes=preset.episodes, out=asked.data, workers=asked.workers
    )
    encoded = EncodeSettings(
        data=asked.data,
        out=asked.path / "tokens",
        encoder=preset.encoder.source,
        device=asked.run.device,
        workers=asked.workers,
    )
    made = [
        Stage(
            name="data",
            after=(),
            settings=collected,
            make=partial(collect, collected),
            is_finished=partial(is_collected, collected),
        ),
        Stage(
            name="tokens",
            after=("data",),
            settings=encoded,
            make=partial(encode, encoded),
            is_finished=partial(is_encoded, encoded),
        ),
    ]
    return made[:1] if asked.on_the_fly else made


def model_stages(asked: PipelineSettings) -> list[Stage]:
    """Return the stages that train."""
    return [*paper_stages(asked), *refine_stages(asked), *decoder_stages(asked)]


def paper_stages(asked: PipelineSettings) -> list[Stage]:
    """Return the trainings of the paper: the dense model, its selector, and the sparse models with it."""
    preset, run, data, tokens = asked.sizes, asked.path, asked.data, asked.tokens
    dense = TrainTeacherSettings(
        data=data,
        tokens=tokens,
        out=run / DENSE,
        encoder=preset.encoder.source,
        model=preset.model,
        fit=preset.teacher,
        run=asked.run,
    )
    distilled = TrainSelectorSettings(
        teacher=dense.out,
        data=data,
        tokens=tokens,
        out=run / "selector",
        windows=preset.selector.windows,
        hidden=preset.selector.hidden,
        fit=preset.selector.fit,
        run=asked.run,
    )
    sparse = [
        TrainSparseSettings(
            teacher=dense.out,
            data=data,
            tokens=tokens,
            out=run / one.name,
            k=one.k,
            selector=str(distilled.out) if one.selector == "distilled" else one.selector,
            background=BackgroundConfig(kind=one.background),
            fit=preset.sparse,
            run=asked.run,
        )
        for one in sparse_models(preset, ablations=asked.ablations)
    ]
    return [
        training(dense, train_teacher, teacher_recipe, asked.inputs),
        training(distilled, train_selector, selector_recipe, (*asked.inputs, DENSE)),
        *(training(one, train_sparse, sparse_recipe, (*asked.inputs, *origins(one))) for one in sparse),
    ]


def refine_stages(asked: PipelineSettings) -> list[Stage]:
    """Return the trainings of finished models on what they imagine, if the preset has any."""
    preset, run = asked.sizes, asked.path
    if preset.refine is None:
        return []
    sparse = sparse_models(preset, ablations=asked.ablations)
    further = [
        TrainRefineSettings(
            model=run / name,
            data=asked.data,
            tokens=asked.tokens,
            out=run / refined(name),
            frames=preset.refine.frames,
            fit=preset.refine.fit,
            run=asked.run,
        )
        for name in (DENSE, *(one.name for one in sparse if one.imagines_frames))
    ]
    return [training(one, train_refine, refine_recipe, (*asked.inputs, one.model.name)) for one in further]


def decoder_stages(asked: PipelineSettings) -> list[Stage]:
    """Return the training of the decoder, if one is asked for."""
    if not asked.decoder:
        return []
    drawn = TrainDecoderSettings(
        data=asked.data,
        tokens=asked.tokens,
        out=asked.path / "decoder",
        encoder=asked.sizes.encoder.source,
        run=asked.run,
    )
    return [training(drawn, train_decoder, decoder_recipe, asked.inputs)]


def origins(settings: TrainSparseSettings) -> tuple[str, ...]:
    """Return the trained stages that a sparse model is made from."""
    chosen = Path(settings.selector).name
    return (DENSE,) if chosen in WITHOUT_HEAD else (DENSE, chosen)


def training(
    settings: T, train: Callable[[T], None], recipe: Callable[[T], Recipe], after: tuple[str, ...]
) -> Stage:
    """Return the stage of one training."""
    return Stage(
        name=settings.out.name,
        after=after,
        settings=settings,
        make=partial(train, settings),
        is_finished=lambda: is_finished(settings.out, recipe(settings)),
    )


def evaluations(asked: PipelineSettings) -> list[Stage]:
    """Return the evaluation of every model."""
    preset, run = asked.sizes, asked.path
    made = []
    for trial in trials(preset, ablations=asked.ablations):
        model = ModelSettings(
            model=str(run / trial.model),
            device=asked.run.device,
            k=trial.k,
            allow_other_k=trial.k is not None,
        )
        settings = EvaluateSettings(
            task=asked.task,
            model=model,
            search=trial.search,
            out=run / "evaluate" / trial.name,
            instances=preset.instances,
            workers=asked.workers,
        )
        made.append(
            Stage(
                name=f"evaluate/{trial.name}",
                after=(trial.model,),
                settings=settings,
                make=partial(evaluate, settings),
                is_finished=partial(is_evaluated, settings),
            )
        )
    return made
