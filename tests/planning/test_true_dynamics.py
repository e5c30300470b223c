from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scope_wm.cli import main
from scope_wm.evaluate.run import read_run
from scope_wm.model.architecture import BackgroundConfig, SelectorConfig, build
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning import true_dynamics
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.models import Observations, observe_states
from scope_wm.planning.true_dynamics import TrueDynamics
from scope_wm.report.plan import PlanSettings, load_model
from scope_wm.tasks import TASKS
from scope_wm.types import UsageError


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_candidates_cost_what_the_model_sees_where_they_really_end(
    alpha: float, random_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(true_dynamics, "BATCH", 2)  # so that three candidates are more than a batch
    task = TASKS["wall"]()
    learned = load_latent_model(ModelSettings(model=str(random_model("wall")), alpha=alpha))
    problems = [task.sample_problem(seed) for seed in (1, 2)]
    model = TrueDynamics(task, learned)
    now = model.see(observe_states(task, [problem.start for problem in problems]))
    goal = model.see(observe_states(task, [problem.goal for problem in problems]))
    plans = torch.randn(2, 3, 2, model.action_width, generator=torch.Generator().manual_seed(0))
    costs = model.cost(now, goal)(plans)
    embed = learned.world_model.fuse.proprio
    for row, problem in enumerate(problems):
        for column in range(3):
            task.set_state(problem.start)
            for action in learned.scale.to_task(plans[row, column]):
                task.advance(action)
            end, aim = (learned.see(observe_states(task, [state])) for state in (task.state(), problem.goal))
            visual = (end.visual - aim.visual).square().mean()
            proprio = (embed(end.proprio) - embed(aim.proprio)).square().mean()
            torch.testing.assert_close(costs[row, column], visual + alpha * proprio)


def test_observations_without_states_are_refused(random_model: Callable[[str], Path]) -> None:
    task = TASKS["wall"]()
    model = TrueDynamics(task, load_latent_model(ModelSettings(model=str(random_model("wall")))))
    blind = Observations(images=np.zeros((1, 224, 224, 3), np.uint8), proprio=np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match="expected observations with states"):
        model.see(blind)


def test_an_evaluation_is_named_after_it_and_says_so(
    random_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--task", "wall", "--model", str(random_model("wall")), "--true-dynamics", "--max-steps", "2"]
    small = ["--instances", "2", "--samples", "4", "--elites", "2", "--iterations", "2", "--workers", "1"]
    out = random_model("wall").parent / "evaluate" / f"{random_model('wall').name}-true-dynamics-eb-cem"
    assert main(["evaluate", *words, *small]) == 0
    assert "candidates were played in the simulator" in capsys.readouterr().out
    played = read_run(out)
    settings = played.config["settings"]
    assert (settings["true_dynamics"], settings["chunk"]) == (True, None)
    imagined = [word for word in words if word != "--true-dynamics"]
    assert main(["evaluate", *imagined, *small, "--out", "imagined"]) == 0
    ends = [
        [record.final_distance for record in run.records.values()]
        for run in (played, read_run(Path("imagined")))
    ]
    assert ends[0] != ends[1]
    assert main(["plan", *words, *small[2:-2], "--out", "solved.mp4"]) == 0
    assert Path("solved.mp4").is_file()


def test_a_video_is_planned_with_it_too(random_model: Callable[[str], Path]) -> None:
    chosen = ModelSettings(model=str(random_model("wall")), true_dynamics=True)
    model, decoder = load_model(PlanSettings(task="wall", model=chosen), TASKS["wall"]())
    assert isinstance(model, TrueDynamics)
    assert decoder is None


def test_a_model_of_some_patches_is_refused(random_model: Callable[[str], Path], tmp_path: Path) -> None:
    trained = TrainedModel.from_pretrained(random_model("wall"))
    config = replace(
        trained.config,
        selector=SelectorConfig(kind="random", k=6),
        background=BackgroundConfig(kind="ignored"),
    )
    TrainedModel(config=config, world_model=build(config)).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="compares whole images"):
        load_latent_model(ModelSettings(model=str(tmp_path), true_dynamics=True))
