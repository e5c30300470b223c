import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch

from scope_wm.cli import main
from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.problems import problem_from_store
from scope_wm.data.split import open_splits
from scope_wm.evaluate.instances import problem_source
from scope_wm.evaluate.settings import SearchSettings
from scope_wm.model.architecture import BackgroundConfig, SelectorConfig, build
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.decoder import Decoder, DecoderConfig, to_uint8
from scope_wm.model.rollout import rollout
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.models import observe_states
from scope_wm.planning.mpc import Controller, MPCSettings, Outcome, StepRecord, solve
from scope_wm.report.plan import kept_tokens, scenes, verdict
from scope_wm.report.plan_video import (
    AMBER,
    GAP,
    HEADING,
    MARGIN,
    PANEL,
    Scene,
    Story,
    draw,
    enlarged,
    moments,
    spotlight,
)
from scope_wm.selector import RandomSelector
from scope_wm.tasks import TASKS
from scope_wm.types import Problem


def panel(picture: np.ndarray, column: int) -> np.ndarray:
    """Return what a panel shows, without its edge."""
    left = MARGIN + column * (PANEL + GAP)
    return picture[HEADING + 4 : HEADING + PANEL - 4, left + 4 : left + PANEL - 4].astype(float)


def image_of(state: np.ndarray) -> np.ndarray:
    task = TASKS["wall"]()
    task.set_state(state)
    return enlarged(task.render())[4:-4, 4:-4]


def story(
    *, success: bool = True, actions: int = 25, scenes: int = 2, kept: np.ndarray | None = None
) -> Story:
    scene = Scene(
        frames=np.full((actions + 1, 224, 224, 3), 200, np.uint8),
        distances=[9.0] * (actions + 1),
        trace=np.linspace(4.0, 1.0, 30),
        kept=kept,
    )
    goal = np.full((224, 224, 3), 100, np.uint8)
    return Story(
        task="wall",
        note="cem",
        goal=goal,
        scenes=[scene] * scenes,
        max_steps=5,
        verdict="solved after 2 steps",
        success=success,
    )


def test_the_simulator_solves_a_problem_and_the_video_shows_it(tmp_path: Path) -> None:
    out = tmp_path / "videos" / "plan.mp4"
    words = ["plan", "--task", "wall", "--model", "simulator", "--planner", "cem", "--seed", "7"]
    command = [sys.executable, "-m", "scope_wm", *words, "--max-steps", "1", "--out", str(out)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)  # type checks would be slow
    assert shown.stdout.startswith("solved after 1 step, ")
    assert shown.stdout.endswith(f"s of planning\n{out}\n")
    assert shown.stderr.startswith("step  1/1  best cost ")
    assert "distance" in shown.stderr
    frames = iio.imread(out, plugin="pyav")
    assert len(frames) == 10 + 25 + 15  # iterations, simulator steps, and the end stays
    problem = TASKS["wall"]().sample_problem(7)
    assert np.abs(panel(frames[0], 0) - image_of(problem.start)).mean() < 4
    assert np.abs(panel(frames[0], 1) - image_of(problem.goal)).mean() < 4
    assert np.abs(panel(frames[-1], 0) - image_of(problem.start)).max() > 150


def test_a_plan_can_be_an_animation_for_markdown(tmp_path: Path) -> None:
    out = tmp_path / "plan.gif"
    words = ["plan", "--task", "wall", "--model", "simulator", "--planner", "random-shooting", "--seed", "7"]
    assert main([*words, "--max-steps", "1", "--out", str(out)]) == 0
    assert len(iio.imread(out)) > 10
    assert iio.immeta(out)["loop"] == 0  # for ever


def test_a_sparse_model_shows_the_tokens_that_it_keeps(
    tmp_path: Path, random_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.mp4"
    words = ["plan", "--task", "wall", "--model", str(random_model("wall")), "--planner", "random-shooting"]
    assert main([*words, "--max-steps", "1", "--out", str(out)]) == 0
    assert "after 1 step" in capsys.readouterr().out
    frames = iio.imread(out, plugin="pyav")
    assert frames.shape[2] == 2 * MARGIN + 3 * PANEL + 2 * GAP
    # White paper, dimmed to 40 %, on 10 of 16 patches.
    assert 0.4 < (np.abs(panel(frames[0], 2).mean(-1) - 102) < 12).mean() < 0.625


def test_kept_tokens_are_the_top_of_the_head_for_the_first_action(
    random_model: Callable[[str], Path],
) -> None:
    task, model = TASKS["wall"](), load_latent_model(ModelSettings(model=str(random_model("wall"))))
    now = observe_states(task, [np.array([12.0, 40.0])])
    actions = torch.randn(1, 3, 10, generator=torch.Generator().manual_seed(0))
    fuse, head = model.world_model.fuse, model.world_model.selector.head
    body = (now.proprio - model.statistics.proprio_mean) / model.statistics.proprio_std
    scores = head(
        model.encoder(torch.from_numpy(now.images)),
        fuse.proprio(torch.tensor(body).float()),
        fuse.action(actions[:, 0]),
    )
    expected = np.zeros(16, bool)
    expected[scores[0].argsort(descending=True)[:6].numpy()] = True
    np.testing.assert_array_equal(kept_tokens(model, model.see(now), actions, None), expected.reshape(4, 4))


@pytest.fixture
def run_directory(random_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A run as the chain of commands lays it out: a model with 14 x 14 tokens, and a decoder beside it."""
    config = TrainedModel.from_pretrained(random_model("wall")).config
    eye = replace(config.encoder, config=replace(config.encoder.config, grid=14))
    tokens, selector = replace(config.tokens, num_tokens=196), replace(config.selector, k=50)
    config = replace(config, encoder=eye, tokens=tokens, selector=selector)
    torch.manual_seed(3)
    TrainedModel(config=config, world_model=build(config)).save_pretrained(tmp_path / "sparse-k50")
    decoder = Decoder(DecoderConfig(visual=8, blocks=1, coarse=16, middle=8, fine=8))
    decoder.save_pretrained(tmp_path / "decoder")
    return tmp_path


PLAN = ["plan", "--task", "wall", "--planner", "cem", "--samples", "4", "--elites", "2", "--max-steps", "2"]


def test_the_end_is_what_the_decoder_draws_of_the_last_imagined_frame(run_directory: Path) -> None:
    directory = run_directory / "sparse-k50"
    assert main([*PLAN, "--horizon", "2", "--model", str(directory)]) == 0
    frames = iio.imread(run_directory / "plan" / "sparse-k50-cem-0.mp4", plugin="pyav")
    assert frames.shape[2] == 2 * MARGIN + 4 * PANEL + 3 * GAP
    model, task = load_latent_model(ModelSettings(model=str(directory))), TASKS["wall"]()
    planner = SearchSettings(planner="cem", samples=4, elites=2).step_planner()
    controller = Controller(model, planner, MPCSettings(horizon=2, max_steps=2))
    (outcome,) = solve(task, [task.sample_problem(0)], [0], controller)
    decoder, previous = Decoder.from_pretrained(run_directory / "decoder"), None
    assert len(outcome.steps) == 2
    starts = (outcome.problem.start, outcome.steps[0].state)
    for step, before, frame in zip(outcome.steps, starts, (0, 30), strict=True):  # 10 iterations, 20 frames
        now = model.see(observe_states(task, [before]))
        with torch.no_grad():
            last = rollout(model.world_model, now.visual, now.proprio, step.planned[None], previous)[:, -1]
            image = to_uint8(decoder(last[..., :8]))[0].numpy()
        shown = panel(frames[frame], 2)
        assert np.abs(shown - enlarged(image)[4:-4, 4:-4]).mean() < 4
        previous = now.visual
    assert np.abs(panel(frames[0], 2) - panel(frames[30], 2)).mean() > 0.1


def test_a_model_of_some_patches_has_no_end_to_draw(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = TrainedModel.from_pretrained(run_directory / "sparse-k50").config
    selector, background = SelectorConfig(kind="random", k=50), BackgroundConfig(kind="ignored")
    config = replace(config, selector=selector, background=background)
    directory = run_directory / "subset-k50"
    TrainedModel(config=config, world_model=build(config)).save_pretrained(directory)
    words = [*PLAN, "--horizon", "2", "--model", str(directory)]
    assert main(words) == 0
    frames = iio.imread(run_directory / "plan" / "subset-k50-cem-0.mp4", plugin="pyav")
    assert frames.shape[2] == 2 * MARGIN + 2 * PANEL + GAP
    model, task = load_latent_model(ModelSettings(model=str(directory))), TASKS["wall"]()
    planner = SearchSettings(planner="cem", samples=4, elites=2).step_planner()
    controller = Controller(model, planner, MPCSettings(horizon=2, max_steps=1))
    (outcome,) = solve(task, [task.sample_problem(0)], [0], controller)
    (scene,) = scenes(task, outcome, model, Decoder.from_pretrained(run_directory / "decoder"))
    assert (scene.imagined, scene.kept) == (None, None)
    capsys.readouterr()
    assert main([*words, "--decoder", str(run_directory / "decoder")]) == 2
    assert "imagines no whole images: it takes no --decoder" in capsys.readouterr().err


def test_a_decoder_may_be_named_and_must_fit(
    run_directory: Path, random_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (run_directory / "decoder").rename(run_directory / "elsewhere")
    out, model = run_directory / "plan.mp4", str(run_directory / "sparse-k50")
    out.write_bytes(b"an older video")
    four_by_four = str(random_model("wall"))
    refused = {
        ("--model", model, "--decoder", str(run_directory / "decoder")): "is not a decoder",
        ("--model", model, "--decoder", model): "is not the config of a decoder",
        ("--model", four_by_four, "--decoder", str(run_directory / "elsewhere")): "a decoder of 16 tokens",
    }
    for words, message in refused.items():
        assert main([*PLAN, *words, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
        assert out.read_bytes() == b"an older video"
    named = ["--decoder", str(run_directory / "elsewhere")]
    for words, panels in (([], 3), (named, 4)):
        assert main([*PLAN, "--model", model, "--out", str(out), *words]) == 0
        width = iio.improps(out, plugin="pyav").shape[2]
        assert width == 2 * MARGIN + panels * (PANEL + GAP) - GAP


def test_a_directory_is_not_taken_for_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.mp4").mkdir()
    with pytest.raises(SystemExit, match="2"):
        main([*PLAN, "--model", "simulator", "--out", str(tmp_path / "plan.mp4")])
    assert "to name a file" in " ".join(capsys.readouterr().err.split())


def test_an_instance_is_planned_again_as_it_was_before(random_model: Callable[[str], Path]) -> None:
    model = load_latent_model(ModelSettings(model=str(random_model("wall"))))
    model.world_model.selector = RandomSelector(6, torch.Generator())
    task, planner = TASKS["wall"](), SearchSettings(planner="cem", samples=4, elites=2).step_planner()
    controller = Controller(model, planner, MPCSettings(horizon=2, max_steps=1))
    (first, _, again) = (
        solve(task, [task.sample_problem(seed)], [seed], controller)[0].steps[0] for seed in (100, 1, 100)
    )
    np.testing.assert_array_equal(first.actions, again.actions)
    now = model.see(observe_states(task, [first.state]))
    assert kept_tokens(model, now, first.planned[None], None) is None  # another draw would be shown


def test_a_search_that_completed_nothing_in_its_time_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.mp4"
    words = ["--model", "simulator", "--chunk", "1", "--max-seconds", "1e-9", "--out", str(out)]
    assert main([*PLAN, "--horizon", "1", *words]) == 0
    assert "step  2/2  no complete iteration  distance" in capsys.readouterr().err
    assert len(iio.imread(out, plugin="pyav")) == 2 * (1 + 25) + 15


def test_the_spotlight_dims_what_is_not_kept() -> None:
    kept = np.zeros((14, 14), bool)
    kept[2:4, 5:9] = True
    lit = spotlight(np.full((PANEL, PANEL, 3), 200, np.uint8), kept)
    centres = lit[12::24, 12::24]
    assert (centres[kept] == 200).all()
    assert (centres[~kept] == 80).all()
    assert (lit == AMBER).all(-1).sum() >= 2 * (2 + 4) * 24  # the border, at least one pixel wide


def test_a_search_is_shown_in_ten_pictures_and_a_push_stays() -> None:
    shown = list(moments(story(actions=5)))
    first = [moment for moment in shown if moment.scene == 0]
    assert [moment.iterations for moment in first[:10]] == list(range(3, 31, 3))
    assert [moment.frame for moment in first] == [0] * 10 + [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5 + [5] * 5
    assert [moment.status for moment in shown[-15:]] == ["solved after 2 steps"] * 15
    assert shown[0].status == "step 1 of 5: planning"
    assert shown[-16].status == "step 2 of 5: acting"


@pytest.mark.parametrize("success", [True, False])
def test_only_success_has_a_green_edge(success: bool) -> None:
    told = story(success=success)
    *_, acting, end = [draw(told, moment) for moment in list(moments(told))[-16:-14]]
    at = (HEADING + 1, MARGIN + 50)
    assert acting[at].tolist() == [200, 200, 200]
    assert end[at].tolist() == ([26, 150, 65] if success else [200, 200, 200])


def test_sides_are_even_as_the_video_needs() -> None:
    for kept in (None, np.eye(14, dtype=bool)):
        told = story(kept=kept)
        height, width, _ = draw(told, next(moments(told))).shape
        assert height % 2 == width % 2 == 0


def test_a_problem_may_come_from_a_store(tmp_path: Path) -> None:
    collect(CollectSettings(task="wall", episodes=10, out=tmp_path / "wall", workers=1))
    task = TASKS["wall"]()
    chosen = problem_source(task, tmp_path / "wall")(3)
    expected = problem_from_store(open_splits(tmp_path / "wall").validation, task, 2)  # 1 is the first
    np.testing.assert_array_equal(chosen.start, expected.start)
    np.testing.assert_array_equal(chosen.goal, expected.goal)
    assert not np.array_equal(chosen.start, task.sample_problem(3).start)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "simulator", "--decoder", "decoder"], "it takes no --decoder"),
        (["--model", "simulator", "--samples", "5"], "got 10 elites of 5 samples"),
        (["--model", "simulator", "--horizon", "0"], "expected --horizon of at least 1, got 0"),
        (
            ["--model", "simulator", "--out", "plan.avi"],
            "expected --out to end with .mp4 or .gif, got plan.avi",
        ),
        (["--model", "simulator", "--out", "/dev/null/a/b.mp4"], "--out to name a place in directories"),
        (["--model", "simulator", "--planner", "gradient"], "a simulator has no gradient"),
        (["--model", "simulator", "--encoder", "dinov2"], "simulator takes no --encoder"),
        (["--model", "simulator", "--max-steps", "0"], "expected --max-steps of at least 1, got 0"),
        (["--model", "simulator", "--seed", "-1"], "expected --seed of at least 0, got -1"),
        (["--model", "./no-such-model"], "there is no model directory ./no-such-model"),
        (["--model", "simulator", "--problems-from", "nowhere"], "nowhere"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_written(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:  # as the command does; some errors tyro ends itself
        sys.exit(main(["plan", "--task", "wall", *words]))
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("success", "has_success", "steps", "words"),
    [
        (True, True, 1, "solved after 1 step"),
        (False, True, 15, "not solved after 15 steps"),
        (False, False, 7, "distance 0.123 after 7 steps"),
    ],
)
def test_the_verdict_of_a_task_without_success_is_its_distance(
    success: bool, has_success: bool, steps: int, words: str
) -> None:
    state = np.zeros(2)
    step = StepRecord(
        actions=np.zeros((5, 2)),
        state=state,
        plan_seconds=0.1,
        samples=10,
        planned=torch.zeros(1, 10),
        trace=np.ones(3),
    )
    outcome = Outcome(problem=Problem(start=state, goal=state), success=success, steps=(step,) * steps)
    assert verdict(outcome, 0.12345, has_success=has_success) == words


def test_a_model_of_another_task_is_refused(
    tmp_path: Path, random_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "plan.mp4")
    assert main(["plan", "--task", "push_t", "--model", str(random_model("wall")), "--out", out]) == 2
    assert "expected a model of push_t" in capsys.readouterr().err
