"""What one run looks like: learning curves, what selector, background and models see, planned problems."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scope_wm.data.play import Picture, mp4
from scope_wm.model.decoder import Decoder
from scope_wm.report.background_map import draw_background
from scope_wm.report.bank_paths import PLACES, draw_bank
from scope_wm.report.cost_shape import draw_cost_shape
from scope_wm.report.evaluated import DISTILLED, DRAWN, FOREGROUND_DELTA, IGNORED, PAPER_KS, Evaluated
from scope_wm.report.imagined import draw_imagined
from scope_wm.report.learning_curves import learning_curves
from scope_wm.report.ours import model_text
from scope_wm.report.page import Media
from scope_wm.report.plan import scenes, story_of
from scope_wm.report.plan_video import video
from scope_wm.report.replay import Replay, instances_to_show, most_telling, replay
from scope_wm.report.run_directory import TrainedStage, is_finished, tokens_kept, world_models
from scope_wm.report.selector_map import draw_selector
from scope_wm.report.sheet import png

CURVES = "Loss and held-out figures against the step."
SELECTOR = "Relevance for the dense model and for the selector, and the tokens that are kept."
BACKGROUND = (
    "Error of every background token after one action, from black to yellow: of copying it, of the sparse "
    "model's update, of the dense model. Tokens that the sparse model predicts in full are left bare."
)
IMAGINED = "Imagined frames above the real ones, in the held-out window that changes most."
COST = (
    "Cost against true distance, of pairs of held-out frames: all pairs, and in each tenth of them the "
    "median and the band from the tenth to the ninetieth percentile."
)
BANK = (
    "The elite bank over the first steps of control. Amber: its action sequences, played by the simulator "
    "from where the step begins. Blue: what was executed."
)


class Job(NamedTuple):
    """Something to draw, which may take a while."""

    title: str
    draw: Callable[[], Sequence[Media]]


def picture_jobs(
    run: Path, trained: dict[str, TrainedStage], found: list[Evaluated], videos: int
) -> list[Job]:
    """Return what can be drawn of a run; `found` are its evaluations."""
    jobs = []
    models = world_models(trained)
    sparse, dense = sparsest(models), next((name for name in models if is_dense(models[name])), None)
    if metrics := {name: stage.metrics for name, stage in trained.items() if stage.metrics}:
        jobs.append(Job("Learning curves", lambda: [Media(learning_curves(metrics), "image/png", CURVES)]))
    if (run / "data").is_dir():
        if {"teacher", "selector"} <= set(trained):
            jobs.append(Job("What the selector looks at", sheet_job(SELECTOR, partial(draw_selector, run))))
        if dense and sparse:
            draw = partial(draw_background, run, sparse, dense)
            jobs.append(Job("How wrong the background is", sheet_job(BACKGROUND, draw)))
        whole = [name for name, stage in models.items() if imagines_frames(stage)]
        if whole and "decoder" in trained:
            draw = partial(draw_imagined, run, whole)
            jobs.append(Job("What the models imagine", sheet_job(IMAGINED, draw)))
        if name := dense or sparse:
            jobs.append(
                Job(
                    "Is the cost lower nearer to the goal?",
                    lambda: [Media(draw_cost_shape(run, name), "image/png", COST)],
                )
            )
    return [*jobs, *replay_jobs(found, videos, run / "decoder")]


def replay_jobs(found: list[Evaluated], videos: int, decoder: Path | None = None) -> list[Job]:
    """Return what shows problems of each task, planned once more, if a model of it is there."""
    if videos == 0:
        return []
    by_task = {one.task: [other for other in found if other.task == one.task] for one in found}
    shown = [one for evaluations in by_task.values() if (one := most_telling(evaluations))]
    return [
        Job(f"Problems of {one.task}, planned once more", partial(replays, one, videos, decoder))
        for one in shown
    ]


def sparsest(models: dict[str, TrainedStage]) -> str | None:
    """Return the sparse model with the least K, of the paper's selection, background and K if there is one.

    It imagines whole frames, and selects the same tokens every time: others cannot be drawn.
    """

    def unlike_the_papers(stage: TrainedStage) -> tuple[bool, bool, bool, int]:
        model = stage.header["model"]
        other = model["selector"]["kind"] != DISTILLED, model["background"]["kind"] != FOREGROUND_DELTA
        return *other, tokens_kept(stage) not in PAPER_KS, tokens_kept(stage)

    sparse = [
        stage
        for stage in models.values()
        if imagines_frames(stage)
        and not is_dense(stage)
        and stage.header["model"]["selector"]["kind"] not in DRAWN
    ]
    return min(sparse, key=unlike_the_papers).name if sparse else None


def imagines_frames(stage: TrainedStage) -> bool:
    """Tell whether a world model is one of whole frames; Sparse Imagination is one of some patches."""
    return bool(stage.header["model"]["background"]["kind"] != IGNORED)


def is_dense(stage: TrainedStage) -> bool:
    """Tell whether a world model predicts every token."""
    return tokens_kept(stage) == stage.header["model"]["tokens"]["num_tokens"]


def sheet_job(caption: str, draw: Callable[[], Picture]) -> Callable[[], Sequence[Media]]:
    """Return what draws a sheet of pictures for the page."""
    return lambda: [Media(png(draw()), "image/png", caption)]


def replays(one: Evaluated, count: int, decoder: Path | None) -> list[Media]:
    """Plan problems of an evaluation once more, and show the bank of the first and videos of all."""
    shown = [replay(one, instance) for instance in instances_to_show(one, count)]
    media = []
    if shown and shown[0].bank is not None and one.task in PLACES:
        media.append(Media(png(draw_bank(shown[0], shown[0].bank)), "image/png", BANK))
    return media + [film(one, problem, decoder) for problem in shown]


def film(one: Evaluated, shown: Replay, decoder: Path | None) -> Media:
    """Make the video of a problem, with what the model imagines if there is a decoder."""
    drawn_by = None
    if decoder is not None and is_finished(decoder):
        drawn_by = Decoder.from_pretrained(decoder).to(shown.model.device)
    played = scenes(shown.task, shown.outcome, shown.model, drawn_by)
    note = f"{model_text(one)}, {one.settings['planner']}, instance {shown.instance}"
    story = story_of(shown.task, shown.outcome, played, note, shown.max_steps)
    caption = f"{note}: {story.verdict}."
    if shown.outcome.success != one.run.records[shown.instance].success:
        caption += " The evaluation had ended otherwise."
    return Media(mp4(video(story)), "video/mp4", caption)
