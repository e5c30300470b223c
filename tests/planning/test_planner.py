from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.models import Observations
from scope_wm.planning.mpc import Controller, MPCSettings, search_generator
from scope_wm.planning.planner import Planner
from scope_wm.planning.planners import PLANNERS
from scope_wm.planning.search import DEADLINE_CHUNK, SizedCost
from scope_wm.selector import RandomSelector
from scope_wm.tasks import TASKS
from scope_wm.types import UsageError


@pytest.fixture(scope="module")
def directory(random_model: Callable[[str], Path]) -> Path:
    return random_model("wall")


@pytest.fixture(scope="module")
def planner(directory: Path) -> Planner:
    return Planner.from_pretrained(directory, planner="cem", horizon=2)


def view(x: float, y: float) -> tuple[np.ndarray, np.ndarray]:
    task = TASKS["wall"]()
    task.set_state([x, y])
    return task.render(), task.proprio()


PAGE = (Path(__file__).parents[2] / "docs" / "robot.md").read_text()
NOW, LATER, GOAL = view(10, 20), view(15, 25), view(50, 40)


def test_it_acts_as_the_controller_of_the_evaluation_does(directory: Path) -> None:
    planner = Planner.from_pretrained(directory, horizon=2)
    planner.reset(*GOAL, seed=5)
    acted = [planner.act(*seen) for seen in (NOW, LATER)]
    trained = TrainedModel.from_pretrained(directory)
    model = LatentModel(
        trained.world_model, trained.load_encoder(), trained.config.statistics, frameskip=5, alpha=1.0
    )
    controller = Controller(model, PLANNERS["eb-cem"], MPCSettings(horizon=2))
    controller.reset(Observations(images=GOAL[0][None], proprio=GOAL[1][None]), [5])
    for actions, (image, proprio) in zip(acted, (NOW, LATER), strict=True):
        expected, _ = controller.act(Observations(images=image[None], proprio=proprio[None]))
        assert actions.dtype == np.float64
        assert actions.shape == (10, 2)
        np.testing.assert_allclose(actions, expected[0], rtol=1e-4, atol=1e-4)  # chunks change the last bits


def test_the_seed_of_the_goal_decides_and_a_reset_forgets(planner: Planner) -> None:
    def actions(seed: int) -> np.ndarray:
        planner.reset(*GOAL, seed=seed)
        return np.stack([planner.act(*seen) for seen in (NOW, LATER)])

    first = actions(5)
    assert not np.array_equal(first, actions(6))
    np.testing.assert_array_equal(first, actions(5))


def test_the_seed_of_the_goal_also_decides_what_a_selector_draws(directory: Path) -> None:
    planner = Planner.from_pretrained(directory, planner="cem", horizon=2)
    planner.model.world_model.selector = RandomSelector(6, torch.Generator())
    draws: dict[int, list[np.ndarray]] = {5: [], 6: []}
    for seed in (5, 6, 5):
        planner.reset(*GOAL, seed=seed)
        draws[seed].append(planner.act(*NOW))
    np.testing.assert_array_equal(*draws[5])
    planner.reset(*GOAL, seed=5)
    planner.model.reseed([6])
    assert not np.array_equal(planner.act(*NOW), draws[5][0]), "or what is drawn does not matter"


@pytest.mark.parametrize("name", PLANNERS)
def test_no_action_is_beyond_what_the_robot_can_do(name: str, directory: Path) -> None:
    low, high = np.array([-0.3, 0.1]), np.array([0.7, 0.25])
    planner = Planner.from_pretrained(directory, planner=name, horizon=2, low=low, high=high.tolist())
    planner.reset(*GOAL)
    for seen in (NOW, LATER):
        actions = planner.act(*seen)
        assert (actions >= low).all()
        assert (actions <= high).all()
    limits = planner.controller.limits
    scaled = limits.low.double().numpy().reshape(5, 2) * planner.model.scale.std + planner.model.scale.mean
    np.testing.assert_allclose(scaled, np.tile(low, (5, 1)), atol=1e-6)  # the search itself stays within


def test_proprio_may_be_a_plain_list(planner: Planner) -> None:
    planner.reset(GOAL[0], GOAL[1].tolist())
    actions = planner.act(NOW[0], NOW[1].tolist())
    planner.reset(*GOAL)
    np.testing.assert_array_equal(actions, planner.act(*NOW))


def test_a_mirrored_view_of_an_image_is_an_image(planner: Planner) -> None:
    image, proprio = NOW
    plans = []
    for seen in (image[..., ::-1], image[..., ::-1].copy()):
        planner.reset(*GOAL)
        plans.append(planner.act(seen, proprio))
    np.testing.assert_array_equal(*plans)


def test_a_search_is_cut_for_a_deadline_alone(directory: Path) -> None:
    assert Planner.from_pretrained(directory).controller.limits.chunk is None
    assert Planner.from_pretrained(directory, deadline=1.0).controller.limits.chunk == DEADLINE_CHUNK


def test_out_of_time_the_best_candidate_of_the_first_chunk_is_taken(directory: Path) -> None:
    planner = Planner.from_pretrained(directory, planner="cem", horizon=2, deadline=1e-9)
    planner.reset(*GOAL, seed=5)
    actions = planner.act(*NOW)
    # CEM's first candidates are standard normal, the first of them the mean, which is 0.
    candidates = torch.randn(100, 2, 10, generator=search_generator(0, 5, 0))[:DEADLINE_CHUNK]
    candidates[0] = 0.0
    model = load_latent_model(ModelSettings(model=str(directory)))
    now, goal = (Observations(images=o[0][None], proprio=o[1][None]) for o in (NOW, GOAL))
    best = int(model.cost(model.see(now), model.see(goal))(candidates[None]).argmin())
    statistics = model.statistics
    expected = candidates[best].double().numpy().reshape(10, 2) * statistics.action_std
    np.testing.assert_allclose(actions, expected + statistics.action_mean, rtol=1e-6)


@pytest.mark.parametrize(("task", "alpha"), [("point_maze", 0.0), ("wall", 1.0), ("rope", 1.0)])
def test_the_weight_of_proprio_is_that_of_the_task(
    task: str, alpha: float, random_model: Callable[[str], Path]
) -> None:
    assert load_latent_model(ModelSettings(model=str(random_model(task)))).alpha == alpha


@pytest.mark.parametrize(
    ("image", "proprio", "message"),
    [
        (NOW[0][:200], NOW[1], r"shape \(224, 224, 3\), got uint8 of \(200, 224, 3\)"),
        (NOW[0] / 255, NOW[1], r"image of uint8 RGB .* got float64 of \(224, 224, 3\)"),
        (NOW[0], [1.0, 2.0, 3.0], r"proprio of shape \(2,\), got \(3,\)"),
        (NOW[0], [1.0, np.nan], "proprio to be finite"),
    ],
)
def test_what_is_wrong_with_an_observation_is_said(
    image: object, proprio: object, message: str, planner: Planner
) -> None:
    planner.reset(*GOAL)
    with pytest.raises(ValueError, match=message):
        planner.act(image, proprio)
    with pytest.raises(ValueError, match=r"expected (a )?goal (image|proprio)"):
        planner.reset(image, proprio)


def test_acting_before_a_goal_is_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="reset with a goal"):
        Planner.from_pretrained(directory).act(*NOW)


def test_a_seed_below_zero_is_refused_at_once(planner: Planner) -> None:
    with pytest.raises(ValueError, match=r"expected seeds of at least 0, got \[-1\]"):
        planner.reset(*GOAL, seed=-1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"planner": "dreamer"}, "expected a planner of cem, eb-cem, .* got 'dreamer'"),
        ({"deadline": 0.0}, "expected a finite deadline above 0 seconds, got 0.0"),
        ({"deadline": float("inf")}, "expected a finite deadline above 0 seconds, got inf"),
        ({"low": [0.0]}, r"expected low of shape \(2,\), got \(1,\)"),
        ({"low": [1.0, 0.0], "high": [0.0, 1.0]}, r"expected low <= high, got \[1.0, 0.0\] and \[0.0, 1.0\]"),
        ({"horizon": 0}, "expected a horizon of at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, object], message: str, directory: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Planner.from_pretrained(directory, **options)


class Camera:
    """Stands in for `cv2.VideoCapture`: a wide picture of the wall task, as BGR."""

    def __init__(self, number: int) -> None:
        self.picture = cv2.copyMakeBorder(NOW[0][..., ::-1], 0, 0, 40, 40, cv2.BORDER_REPLICATE)

    def set(self, option: int, value: float) -> bool:
        return option == cv2.CAP_PROP_BUFFERSIZE

    def read(self) -> tuple[bool, np.ndarray]:
        return True, self.picture


class Robot:
    """Stands in for the reader's robot, who is done after the second plan."""

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []

    def wait_until_placed(self) -> None:
        pass

    def proprio(self) -> list[float]:
        return [10.0, 20.0]

    def step(self, action: np.ndarray) -> None:
        self.actions.append(action)

    def operator_says_done(self) -> bool:
        return len(self.actions) == 50


def test_the_example_of_the_docs_runs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = PAGE.split("```python\n")[1].split("```")[0]
    monkeypatch.setattr(cv2, "VideoCapture", Camera)
    robot, load = Robot(), Planner.from_pretrained
    monkeypatch.setattr(Planner, "from_pretrained", lambda _, **options: load(directory, **options))
    names = {"robot": robot}
    exec(example, names)
    assert np.array(robot.actions).shape == (50, 2)
    np.testing.assert_array_equal(names["look"](Camera(0)), NOW[0])


def test_the_example_of_optimisers_alone_runs() -> None:
    names: dict[str, Any] = {}
    exec(PAGE.split("```python\n")[2].split("```")[0], names)
    plan = names["plan"]
    torch.testing.assert_close(plan.actions.sum(1), torch.tensor([[0.5, -2.0]]), atol=0.1, rtol=0)
    assert plan.actions.abs().max() <= 1.0
    assert len(plan.trace) == 10
    assert isinstance(names["cost"], SizedCost)
    assert names["limits"].at_a_time(names["cost"], plan.candidates) == 20  # as the page says


def test_a_model_of_another_task_is_refused(directory: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a model of push_t, .* is one of wall"):
        load_latent_model(ModelSettings(model=str(directory)), "push_t")
