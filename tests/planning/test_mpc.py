from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.store import Store
from scope_wm.elite_bank import EliteBank
from scope_wm.model.rollout import rollout
from scope_wm.planning.cem import CEMSettings, cem
from scope_wm.planning.latent import LatentModel
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.models import (
    ActionScale,
    Observations,
    SimulatorModel,
    States,
    observe_states,
    policy_scale,
)
from scope_wm.planning.mpc import Controller, MPCSettings, solve
from scope_wm.planning.planners import PLANNERS, EliteBankCEM
from scope_wm.planning.search import Cost, Gaussian, Limits, Plan, standard_start
from scope_wm.selector import MotionSelector
from scope_wm.tasks import TASKS
from scope_wm.tasks.task import Task
from scope_wm.types import Problem

SMALL = EliteBankCEM(
    first=CEMSettings(samples=20, elites=5, iterations=2),
    later=CEMSettings(samples=8, elites=3, iterations=2),
    bank_size=6,
)
UNITS = ActionScale(mean=np.zeros(2), std=np.ones(2), frameskip=5)


@dataclass
class Spy:
    """A planner that notes the bank it was given, the plan and the bank it gave back."""

    planner: EliteBankCEM
    seen: list[tuple[EliteBank | None, Plan, EliteBank]] = field(default_factory=list)

    def __call__(
        self,
        cost: Cost,
        start: Gaussian,
        generators: Sequence[torch.Generator],
        bank: EliteBank | None,
        **options: object,
    ) -> tuple[Plan, EliteBank]:
        plan, after = self.planner(cost, start, generators, bank, **options)
        self.seen.append((bank, plan, after))
        return plan, after


@dataclass
class Script:
    """A planner that gives every problem the next of some actions, and notes how many there are."""

    actions: list[Tensor]
    problems: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)

    def __call__(
        self,
        cost: Cost,
        start: Gaussian,
        generators: Sequence[torch.Generator],
        bank: EliteBank | None,
        **_: object,
    ) -> tuple[Plan, None]:
        actions = self.actions[len(self.problems)].expand(len(generators), -1, -1)
        self.problems.append(len(generators))
        self.streams += [generator.initial_seed() for generator in generators]
        costs = torch.zeros(len(actions), 1)
        plan = Plan(actions=actions, candidates=actions.unsqueeze(1), costs=costs, trace=costs.T, samples=1)
        return plan, None


def straight(*velocities: tuple[float, float]) -> list[Tensor]:
    """Five equal simulator steps for each of these actions."""
    return [torch.tensor(velocity).repeat(5)[None] for velocity in velocities]


def simulator() -> SimulatorModel:
    task = TASKS["wall"]()
    return SimulatorModel(task, policy_scale(task))


@pytest.fixture(scope="module")
def learned(random_model: Callable[[str], Path]) -> LatentModel:
    return load_latent_model(ModelSettings(model=str(random_model("wall"))))


def seen(seeds: Sequence[int]) -> tuple[Observations, Observations]:
    task = TASKS["wall"]()
    problems = [task.sample_problem(seed) for seed in seeds]
    starts, goals = ([getattr(p, end) for p in problems] for end in ("start", "goal"))
    return observe_states(task, starts), observe_states(task, goals)


def test_the_bank_is_filled_at_the_first_step_only() -> None:
    task, spy = TASKS["wall"](), Spy(SMALL)
    settings, watched = MPCSettings(horizon=1, max_steps=3), list[Plan]()
    controller = Controller(simulator(), spy, settings, on_iteration=watched.append)
    solve(task, [task.sample_problem(1)], [1], controller)
    assert [plan.costs.shape[1] for plan in watched] == [20] * 2 + [8] * 4
    (none, plan, filled), *later = spy.seen
    assert none is None
    assert len(later) == 2
    cheapest = plan.costs[0].argsort(stable=True)[:6]
    assert torch.equal(filled.sequences[0], plan.candidates[0, cheapest])
    for given, other, back in later:
        assert torch.equal(given.sequences, filled.sequences)
        assert torch.equal(back.sequences, filled.sequences)
        assert other.costs.shape == (1, 8)


def test_a_search_that_completed_nothing_in_its_time_fills_no_bank() -> None:
    spy = Spy(SMALL)
    out_of_time, enough = Limits(chunk=4, seconds=1e-9), Limits(chunk=4)
    controller = Controller(simulator(), spy, MPCSettings(horizon=1))
    now, goal = seen([1])
    controller.reset(goal, [1])
    for limits in (out_of_time, enough, out_of_time):
        controller.limits = limits
        controller.act(now)
    (_, cut, none), (given, plan, filled), (_, later, same) = spy.seen
    assert (none, given) == (None, None)
    assert cut.samples == 4
    assert plan.costs.shape == (1, 20)  # as widely as a first search
    assert torch.equal(filled.sequences[0], plan.candidates[0, plan.costs[0].argsort(stable=True)[:6]])
    assert later.samples == 4
    assert same is filled


def test_three_problems_at_once_go_as_each_alone() -> None:
    task, seeds = TASKS["wall"](), [1, 100, 199]
    problems = [task.sample_problem(seed) for seed in seeds]
    spy, settings = Spy(SMALL), MPCSettings(horizon=2, max_steps=8)
    together = solve(task, problems, seeds, Controller(simulator(), spy, settings))
    batches = [len(plan.actions) for _, plan, _ in spy.seen]
    assert batches[0] == 3
    assert batches[-1] < 3, "one must be solved before another, or nothing follows anything"
    assert len({len(outcome.steps) for outcome in together}) > 1
    for outcome, problem, seed in zip(together, problems, seeds, strict=True):
        (alone,) = solve(task, [problem], [seed], Controller(simulator(), SMALL, settings))
        assert alone.success == outcome.success
        assert len(alone.steps) == len(outcome.steps)
        for one, other in zip(alone.steps, outcome.steps, strict=True):
            np.testing.assert_array_equal(one.actions, other.actions)
            np.testing.assert_array_equal(one.state, other.state)


def test_success_counts_after_the_last_action_and_ends_a_problem() -> None:
    # Steps move by twice the action: the dot passes the goal at x = 20, stops at 25, and comes back.
    script = Script(straight((1.5, 0.0), (-0.5, 0.0), (0.0, 0.0), (0.0, 0.0)))
    passing = Problem(start=np.array([10.0, 30.0]), goal=np.array([20.0, 30.0]))
    hopeless = Problem(start=np.array([10.0, 50.0]), goal=np.array([50.0, 10.0]))
    task = TASKS["wall"]()
    controller = Controller(SimulatorModel(task, UNITS), script, MPCSettings(horizon=1, max_steps=4))
    solved, unsolved = solve(task, [passing, hopeless], [0, 1], controller)
    assert [step.state.tolist() for step in solved.steps] == [[25.0, 30.0], [20.0, 30.0]]
    assert solved.success
    assert not unsolved.success
    assert len(unsolved.steps) == 4
    assert script.problems == [2, 2, 1, 1]


class Recorder(SimulatorModel):
    """The simulator, noting which states it was told of: now, the goal, and before."""

    def __init__(self, task: Task, device: str = "cpu") -> None:
        super().__init__(task, UNITS)
        self.device = torch.device(device)
        self.told: list[list[list[float] | None]] = []

    def cost(self, now: States, goal: States, previous: States | None = None) -> Cost:
        self.told.append(
            [None if seen is None else seen.states[:, 0].tolist() for seen in (now, goal, previous)]
        )
        return super().cost(now, goal, previous)


def test_what_was_seen_last_and_the_goal_follow_their_problem() -> None:
    # The first problem is solved by the first step to the right; the others go on without it.
    script, task = Script(straight((1.0, 0.0), (0.5, 0.0), (0.1, 0.0))), TASKS["wall"]()
    problems = [
        Problem(start=np.array([x, 30.0]), goal=np.array([goal, y]))
        for x, goal, y in ((10.0, 20.0, 30.0), (11.0, 50.0, 10.0), (12.0, 51.0, 10.0))
    ]
    model = Recorder(task)
    controller = Controller(model, script, MPCSettings(horizon=1, max_steps=3))
    solve(task, problems, [0, 1, 2], controller)
    assert model.told == [
        [[10.0, 11.0, 12.0], [20.0, 50.0, 51.0], None],
        [[21.0, 22.0], [50.0, 51.0], [11.0, 12.0]],
        [[26.0, 27.0], [50.0, 51.0], [21.0, 22.0]],
    ]
    controller.reset(observe_states(task, [problems[1].goal]), [1])
    script.problems.clear()
    controller.act(observe_states(task, [problems[1].start]))
    assert model.told[-1] == [[11.0], [50.0], None], "a new goal begins without a last observation"


def test_a_search_starts_on_the_models_device_with_noise_of_the_processor() -> None:
    task, places = TASKS["wall"](), list[str]()

    def planner(
        cost: Cost, start: Gaussian, generators: Sequence[torch.Generator], bank: None, **_: object
    ) -> tuple[Plan, None]:
        places.extend([start.mean.device.type, start.std.device.type, generators[0].device.type])
        return Script(straight((0.0, 0.0)))(cost, start, generators, bank)

    controller = Controller(Recorder(task, device="meta"), planner, MPCSettings(horizon=1))
    now, goal = seen([0])
    controller.reset(goal, [0])
    controller.act(now)
    assert places == ["meta", "meta", "cpu"]


def test_another_number_of_problems_than_goals_is_refused() -> None:
    controller = Controller(simulator(), SMALL, MPCSettings())
    controller.reset(seen([0, 1])[1], [0, 1])
    with pytest.raises(ValueError, match="expected to see 2 problems, got 1"):
        controller.act(seen([0])[0])


def test_every_search_of_a_run_has_a_random_stream_of_its_own() -> None:
    def streams(run_seed: int) -> list[int]:
        script = Script(straight((0.0, 0.0), (0.0, 0.0)))
        settings = MPCSettings(horizon=1, max_steps=2, seed=run_seed)
        task = TASKS["wall"]()
        problems = [task.sample_problem(seed) for seed in (1, 100)]
        solve(task, problems, [1, 100], Controller(SimulatorModel(task, UNITS), script, settings))
        return script.streams

    assert len(set(streams(0) + streams(1))) == 8  # two runs, two steps, two problems
    assert streams(0) == streams(0)


def test_on_step_sees_every_step_as_it_is_done() -> None:
    script, counts = Script(straight((0.1, 0.0), (0.1, 0.0))), list[int]()
    task = TASKS["wall"]()
    controller = Controller(SimulatorModel(task, UNITS), script, MPCSettings(horizon=1, max_steps=2))
    problem = Problem(start=np.array([10.0, 50.0]), goal=np.array([50.0, 10.0]))
    solve(task, [problem], [0], controller, lambda outcomes: counts.append(len(outcomes[0].steps)))
    assert counts == [1, 2]


def test_actions_are_destandardised_one_for_each_simulator_step() -> None:
    plan = torch.arange(12.0).reshape(1, 2, 6)  # two world-model actions of three steps with two numbers
    scale = ActionScale(mean=np.array([1.0, 2.0]), std=np.array([10.0, 100.0]), frameskip=3)
    expected = [[1, 102], [21, 302], [41, 502], [61, 702], [81, 902], [101, 1102]]
    now, goal = seen([0])
    controller = Controller(SimulatorModel(TASKS["wall"](), scale), Script([plan[0]]), MPCSettings(horizon=2))
    controller.reset(goal, [0])
    actions, _ = controller.act(now)
    assert actions.dtype == np.float64
    assert actions.tolist() == [expected]


def test_the_policys_scale_is_that_of_a_store_with_the_same_episodes(tmp_path: Path) -> None:
    collect(CollectSettings(task="wall", episodes=5, out=tmp_path / "wall", workers=1))
    actions, scale = Store.open(tmp_path / "wall").actions, policy_scale(TASKS["wall"]())
    assert len(actions) == 5 * 49
    assert scale.frameskip == 5
    np.testing.assert_allclose(scale.mean, actions.mean(0), rtol=1e-12)
    np.testing.assert_allclose(scale.std, actions.std(0), rtol=1e-12)


def test_the_simulators_cost_is_the_path_left_after_a_plan() -> None:
    # Three steps of 2 to the right, from (10, 30) towards (20, 30), leave a path of 4.
    task = TASKS["wall"]()
    model = SimulatorModel(task, ActionScale(mean=np.zeros(2), std=np.array([0.5, 1.0]), frameskip=3))
    now, goal = (observe_states(task, [np.array([x, 30.0])]) for x in (10.0, 20.0))
    stay, go = torch.zeros(1, 6), torch.tensor([[2.0, 0.0] * 3])
    costs = model.cost(model.see(now), model.see(goal))(torch.stack([stay, go])[None])
    np.testing.assert_allclose(costs, [[10.0, 4.0]], rtol=1e-6)
    with pytest.raises(ValueError, match="observations with states"):
        model.see(replace(now, states=None))


def test_a_learned_cost_is_the_formula_on_a_rollout_of_each_candidate(learned: LatentModel) -> None:
    now, goal = seen([3, 4])
    candidates = torch.randn(2, 3, 4, 10, generator=torch.Generator().manual_seed(0))
    costs = learned.cost(learned.see(now), learned.see(goal))(candidates)
    model, statistics = learned.world_model, learned.statistics

    def standard(values: np.ndarray) -> Tensor:
        return torch.tensor((values - statistics.proprio_mean) / statistics.proprio_std).float()

    for b in range(2):
        image, aim = (learned.encoder(torch.from_numpy(o.images[b : b + 1])) for o in (now, goal))
        body, wish = standard(now.proprio[b : b + 1]), model.fuse.proprio(standard(goal.proprio[b]))
        for s in range(3):
            end = rollout(model, image, body, candidates[b, s : s + 1])[0, -1].detach().numpy()
            visual = np.mean((end[:, :8] - aim[0].numpy()) ** 2)
            proprio = np.mean((end[:, 8:11].mean(0) - wish.detach().numpy()) ** 2)
            np.testing.assert_allclose(float(costs[b, s]), visual + 1.0 * proprio, rtol=1e-5)
    assert costs.std() > 1e-3


def test_motion_is_measured_from_the_last_observation(random_model: Callable[[str], Path]) -> None:
    learned = load_latent_model(ModelSettings(model=str(random_model("wall"))))
    model = learned.world_model
    model.selector = MotionSelector(3, torch.zeros(16, 8))
    now, goal = (learned.see(observed) for observed in seen([3, 4]))
    last, _ = (learned.see(observed) for observed in seen([5, 6]))
    candidates = torch.randn(2, 3, 4, 10, generator=torch.Generator().manual_seed(0))
    costs = learned.cost(now, goal, last)(candidates)
    assert not torch.equal(costs, learned.cost(now, goal)(candidates))
    aim = model.fuse.proprio(goal.proprio)
    for b in range(2):
        parts = (part[b : b + 1].expand(3, *part.shape[1:]) for part in (now.visual, now.proprio))
        previous = last.visual[b : b + 1].expand(3, -1, -1)
        end = rollout(model, *parts, candidates[b], previous)[:, -1]
        visual = (end[..., :8] - goal.visual[b]).square().mean((1, 2))
        proprio = (end[..., 8:11].mean(1) - aim[b]).square().mean(1)
        torch.testing.assert_close(costs[b], visual + proprio, rtol=1e-5, atol=0)


def test_a_memory_limit_changes_learned_costs_by_rounding_only(learned: LatentModel) -> None:
    now, goal = (learned.see(observed) for observed in seen([3, 4]))
    cost, start = learned.cost(now, goal), standard_start(2, 4, 10)
    sizes, plans = [], []
    for limits in (Limits(chunk=100), Limits(memory=2 * 7 * cost.bytes_per_candidate())):
        streams = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
        sizes.append(limits.at_a_time(cost, torch.empty(2, 100, 4, 10)))
        plans.append(cem(cost, start, streams, CEMSettings(iterations=1), limits=limits))
    assert sizes == [100, 7]
    torch.testing.assert_close(plans[0].costs, plans[1].costs, rtol=1e-5, atol=0)


def test_learned_costs_do_not_depend_on_the_batch(learned: LatentModel) -> None:
    now, goal = seen([3, 4, 5])
    candidates = torch.randn(3, 4, 2, 10, generator=torch.Generator().manual_seed(0))
    together = learned.cost(learned.see(now), learned.see(goal))(candidates)
    for row in range(3):
        alone_now, alone_goal = (
            Observations(images=o.images[[row]], proprio=o.proprio[[row]]) for o in (now, goal)
        )
        alone = learned.cost(learned.see(alone_now), learned.see(alone_goal))
        for sample in range(4):
            one = alone(candidates[[row], sample : sample + 1])
            np.testing.assert_allclose(float(one), float(together[row, sample]), rtol=1e-5)


def test_a_learned_model_plans_without_states(learned: LatentModel) -> None:
    now, goal = seen([3])

    def actions(now: Observations, goal: Observations) -> np.ndarray:
        controller = Controller(learned, SMALL, MPCSettings(horizon=2))
        controller.reset(goal, [3])
        return controller.act(now)[0]

    blind = actions(replace(now, states=None), replace(goal, states=None))
    wrong = actions(replace(now, states=goal.states), replace(goal, states=now.states))
    np.testing.assert_array_equal(blind, wrong)
    other_image = replace(now, images=goal.images, states=None)
    assert not np.array_equal(blind, actions(other_image, replace(goal, states=None)))


@pytest.mark.parametrize("name", ["cem", "icem", "mppi", "gradient", "random-shooting"])
def test_every_planner_lowers_the_cost_of_a_learned_model(name: str, learned: LatentModel) -> None:
    now, goal = seen([3])
    controller = Controller(learned, PLANNERS[name], MPCSettings(horizon=2))
    controller.reset(goal, [3])
    _, plan = controller.act(now)
    cost = learned.cost(learned.see(now), learned.see(goal))
    found, nothing = cost(plan.actions[:, None]), cost(torch.zeros(1, 1, 2, 10))
    assert float(found) < float(nothing)


def test_acting_before_a_goal_is_refused() -> None:
    now, _ = seen([0])
    with pytest.raises(ValueError, match="reset with a goal"):
        Controller(simulator(), SMALL, MPCSettings()).act(now)
