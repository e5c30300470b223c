import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import psutil
import pytest
import torch
from tests.evaluate.conftest import INSTANCES, content, settings

from scope_wm.cli import main
from scope_wm.data.problems import problems
from scope_wm.data.split import open_splits
from scope_wm.data.store import Store
from scope_wm.data.workers import usable_cores
from scope_wm.evaluate.instances import InstanceRecord, problem_source
from scope_wm.evaluate.models import simulator_scale
from scope_wm.evaluate.run import is_evaluated, read_records, read_run, workers_text
from scope_wm.evaluate.runner import Job, Turns, jobs, run, solve_instances
from scope_wm.evaluate.settings import EvaluateSettings, PlannerName, SearchSettings
from scope_wm.evaluate.statistics import wilson
from scope_wm.planning.load import ModelSettings
from scope_wm.planning.models import ActionScale
from scope_wm.planning.mpc import Controller
from scope_wm.planning.planners import PLANNERS, EliteBankCEM
from scope_wm.tasks import TASKS
from scope_wm.types import UsageError

SMALL = ["--samples", "20", "--elites", "4", "--horizon", "2", "--max-steps", "2"]


def timeless(records: Sequence[InstanceRecord]) -> list[InstanceRecord]:
    """Leave out what is measured and sort."""
    plain = [replace(record, plan_seconds=0.0, peak_memory=None) for record in records]
    return sorted(plain, key=lambda record: record.instance)


def solved_here(job: Job) -> list[InstanceRecord]:
    records: list[InstanceRecord] = []
    solve_instances(job, records.append)
    return records


def test_a_record_says_what_happened(finished: Path) -> None:
    records = read_records(finished)
    task = TASKS["wall"]()
    assert list(records) == list(range(INSTANCES))
    for instance, record in records.items():
        problem = task.sample_problem(99 * instance + 1)
        assert record.seed == 99 * instance + 1
        assert record.start_distance == task.distance(problem.start, problem.goal)
        assert record.success == (record.final_distance < 4.5)
        assert record.final_distance <= record.path_left + 1e-9
        # Plans of eb-cem: ten iterations of 3 x 20 candidates at first, then of 20.
        assert record.samples == 600 + 200 * (record.steps - 1)
        assert record.steps == 2 or record.success
        assert record.plan_seconds > 0
        assert record.peak_memory is not None
        assert record.block_must_move is None


def test_granular_tells_how_near_its_goal_can_be_reached(tmp_path: Path) -> None:
    words = ["evaluate", "--task", "granular", "--model", "simulator", "--planner", "cem"]
    sizes = [
        "--samples",
        "10",
        "--elites",
        "2",
        "--instances",
        "1",
        "--horizon",
        "1",
        "--max-steps",
        "1",
        "--workers",
        "1",
    ]
    assert main([*words, *sizes, "--out", str(tmp_path / "run")]) == 0
    done = read_run(tmp_path / "run")
    (record,), task = done.records.values(), TASKS["granular"]()
    goal = task.sample_problem(1).goal
    assert record.least_distance == task.distance(task.packed(goal), goal)
    made, whole = record.start_distance - record.final_distance, record.start_distance - record.least_distance
    assert done.summary["way_made"] == pytest.approx(made / whole)


def test_the_summary_sums_up_the_records(finished: Path) -> None:
    records = list(read_records(finished).values())
    summary = json.loads((finished / "summary.json").read_text())
    solved = [record for record in records if record.success]
    assert solved  # or the settings make a poor test
    assert summary["success"] == {
        "solved": len(solved),
        "instances": INSTANCES,
        "rate": len(solved) / INSTANCES,
        "interval": list(wilson(len(solved), INSTANCES)),
    }
    assert summary["mean_steps_to_success"] == pytest.approx(sum(r.steps for r in solved) / len(solved))
    assert summary["mean_final_distance"] == pytest.approx(sum(r.final_distance for r in records) / INSTANCES)
    assert summary["total_plan_seconds"] == pytest.approx(sum(r.plan_seconds for r in records))
    assert summary["total_samples"] == sum(r.samples for r in records)
    assert summary["peak_memory"] == max(r.peak_memory or 0 for r in records)
    assert summary["success_block_must_move"] is None
    assert "a reference" in summary["notes"][0]
    assert "path left" in summary["notes"][0]


def test_the_config_says_everything(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    expected = {"task": "wall", "planner": "eb-cem", "horizon": 2, "max_steps": 2, "instances": INSTANCES}
    assert config["settings"].items() >= expected.items()
    assert (config["model_digest"], config["data_digest"]) == ("simulator", None)
    assert config["versions"]["numpy"] == np.__version__
    assert config["versions"]["transformers"] == pytest.importorskip("transformers").__version__
    assert config["settings"]["workers"] == 1
    assert config["machine"]["cores"] >= 1


def test_two_workers_give_the_records_of_one_and_a_run_grows(tmp_path: Path, finished: Path) -> None:
    out = tmp_path / "run"
    run(settings(out, instances=2))
    assert json.loads((out / "summary.json").read_text())["instances"] == 2
    run(settings(out, workers=2))
    assert timeless([*read_records(out).values()]) == timeless([*read_records(finished).values()])
    assert json.loads((out / "summary.json").read_text())["instances"] == INSTANCES
    asked = json.loads((out / "config.json").read_text())["settings"]
    assert (asked["instances"], asked["workers"]) == (INSTANCES, "1, then 2")


def test_every_number_of_workers_is_told_in_turn() -> None:
    assert workers_text(1, 1) == 1
    assert workers_text(1, 2) == "1, then 2"
    assert workers_text("1, then 2", 2) == "1, then 2"
    assert workers_text("1, then 12", 2) == "1, then 12, then 2"


def test_an_unfinished_run_goes_on_to_all_that_it_was_begun_for(tmp_path: Path, finished: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "summary.json").unlink()
    lines = (out / "instances.jsonl").read_text().splitlines(keepends=True)
    (out / "instances.jsonl").write_text("".join(lines[:-1]))
    assert not is_evaluated(settings(out, instances=1))
    run(settings(out, instances=1))
    assert timeless([*read_run(out).records.values()]) == timeless([*read_records(finished).values()])


def test_a_killed_run_goes_on_to_the_same_records(tmp_path: Path, finished: Path) -> None:
    out = tmp_path / "run"
    words = ["evaluate", "--task", "wall", "--model", "simulator", "--instances", str(INSTANCES), *SMALL]
    parent = subprocess.Popen(
        [sys.executable, "-m", "scope_wm", *words, "--workers", "1", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 120
    while len(read_records(out)) < 2:
        assert parent.poll() is None, parent.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.communicate()
    assert psutil.wait_procs(children, timeout=30)[1] == []
    assert not (out / "summary.json").exists()
    kept = read_records(out)
    assert 2 <= len(kept) < INSTANCES
    with (out / "instances.jsonl").open("a") as file:
        file.write('{"instance": 5, "seed": 4')  # as if the kill had come in the middle of a line
    run(settings(out))
    again = read_records(out)
    assert {instance: again[instance] for instance in kept} == kept
    assert timeless([*again.values()]) == timeless([*read_records(finished).values()])


@pytest.mark.parametrize("which", ["instances of the config", "a record", "the summary"])
def test_a_run_is_finished_when_config_records_and_summary_agree(
    tmp_path: Path, finished: Path, which: str
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    assert is_evaluated(settings(out))
    if which == "a record":
        lines = (out / "instances.jsonl").read_text().splitlines(keepends=True)
        (out / "instances.jsonl").write_text("".join(lines[:-1]))
    else:
        file = out / ("summary.json" if which == "the summary" else "config.json")
        values = json.loads(file.read_text())
        (values if which == "the summary" else values["settings"])["instances"] = INSTANCES - 1
        file.write_text(json.dumps(values))
    assert not is_evaluated(settings(out))
    with pytest.raises(UsageError, match="is not finished"):
        read_run(out)
    run(settings(out))
    assert is_evaluated(settings(out))
    assert timeless([*read_run(out).records.values()]) == timeless([*read_records(finished).values()])


def test_the_names_on_the_command_line_are_those_of_planners() -> None:
    assert get_args(PlannerName) == tuple(PLANNERS)


def test_a_run_goes_beside_its_model_unless_it_is_told_where(tmp_path: Path) -> None:
    model = tmp_path / "push_t-lite" / "sparse-k98"
    model.mkdir(parents=True)
    expected = {
        str(model): tmp_path / "push_t-lite" / "evaluate" / "sparse-k98-eb-cem",
        "simulator": Path("runs/push_t/evaluate/simulator-eb-cem"),
        "someone/fast": Path("runs/push_t/evaluate/fast-eb-cem"),
    }
    for source, path in expected.items():
        asked = EvaluateSettings(task="push_t", model=ModelSettings(model=source))
        assert asked.path == path
        assert asked.resolved()["out"] == str(path)
        assert replace(asked, out=tmp_path).path == tmp_path


def test_a_finished_run_is_left_alone(finished: Path) -> None:
    before = content(finished)
    for asked in (settings(finished), settings(finished, instances=INSTANCES - 1, workers=2)):
        assert is_evaluated(asked)
        assert run(asked).instances == INSTANCES
        assert content(finished) == before


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("task", TASKS)
def test_the_simulator_plans_on_every_task(task: str, tmp_path: Path) -> None:
    tiny = SearchSettings(planner="cem", samples=4, elites=2, horizon=1, max_steps=1)
    width = TASKS[task].action_width
    scale = ActionScale(mean=np.zeros(width), std=np.full(width, 0.5), frameskip=TASKS[task].frameskip)
    job = Job(settings(tmp_path, task=task, search=tiny), scale, [0])
    (record,) = solved_here(job)
    assert (record.steps, record.samples) == (1, 40)
    assert record.start_distance > 0
    assert (record.block_must_move is None) == (task != "push_t")


@pytest.mark.usefixtures("threads")
def test_push_t_tells_apart_what_is_left(tmp_path: Path) -> None:
    tiny = SearchSettings(planner="cem", samples=4, elites=2, horizon=1, max_steps=1)
    (job,) = jobs(settings(tmp_path, task="push_t", search=tiny), [7])
    (record,) = solved_here(job)
    task = TASKS["push_t"]()
    problem = task.sample_problem(694)
    moved = np.linalg.norm(problem.start[2:4] - problem.goal[2:4])
    assert record.block_must_move is True
    assert moved > 20
    parts = record.agent_distance, record.block_distance
    assert record.final_distance == pytest.approx(np.hypot(*parts))
    assert record.path_left > 5 * record.block_distance / 20


def test_workers_that_share_instances_take_each_once() -> None:
    first, second = iter(turns := Turns([5, 6, 7])), iter(turns)
    assert [next(first), next(second), *first, *second] == [5, 6, 7]


def test_the_scale_of_the_simulator_is_that_of_five_episodes_of_the_data_policy(store: Path) -> None:
    scale, actions = simulator_scale("wall", None), Store.open(store).actions
    np.testing.assert_allclose(scale.mean, actions.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(scale.std, actions.std(axis=0), rtol=1e-12)
    from_store = simulator_scale("wall", store)
    values = json.loads((store / "statistics.json").read_text())
    assert from_store.mean.tolist() == values["action_mean"]
    assert from_store.std.tolist() == values["action_std"]


@pytest.mark.usefixtures("threads")
def test_problems_come_from_the_validation_episodes_of_a_store(tmp_path: Path, store: Path) -> None:
    asked = settings(tmp_path / "run", problems_from=store, instances=2)
    run(asked)
    records = read_records(asked.out)
    opened = Store.open(store)
    states = opened.episode(validation_episode(opened)).states
    distances = np.linalg.norm(states[25:] - states[:-25], axis=1)
    for record in records.values():
        assert record.start_distance in distances
    config = json.loads((asked.out / "config.json").read_text())
    assert config["data_digest"] == opened.digest
    with pytest.raises(UsageError, match=r"with data .* not None"):
        run(replace(asked, problems_from=None))


def validation_episode(opened: Store) -> int:
    """Return the last of torch's permutation with seed 42, which DINO-WM's split leaves for validation."""
    return int(torch.randperm(len(opened), generator=torch.Generator().manual_seed(42))[-1])


def test_every_instance_has_another_problem_of_the_store(store: Path) -> None:
    task = TASKS["wall"]()
    problem_of, every = problem_source(task, store), problems(open_splits(store).validation, task)
    for instance, problem in enumerate(every):
        assert np.array_equal(problem_of(99 * instance + 1).start, problem.start)
    assert instance > 5
    first, third = (problem_of(99 * i + 1) for i in (0, 2))
    assert np.array_equal(problem_of(0).start, first.start)
    assert np.array_equal(problem_of(3).start, third.start)  # what is no instance's seed counts on
    assert not np.array_equal(first.start, third.start)


@pytest.mark.parametrize(
    ("asked", "first", "later"),
    [
        ({"planner": "cem", "first_samples": 300}, (300, 30), (100, 10)),
        ({"planner": "cem", "first_samples": 100, "samples": 300, "elites": 30}, (100, 10), (300, 30)),
        ({"planner": "eb-cem", "samples": 50, "elites": 5}, (150, 15), (50, 5)),
        ({"planner": "eb-cem", "first_samples": 200}, (200, 20), (100, 10)),
        ({"planner": "eb-cem", "first_samples": 14}, (14, 2), (100, 10)),
    ],
)
def test_the_first_step_has_elites_in_proportion(
    asked: dict[str, Any], first: tuple[int, int], later: tuple[int, int]
) -> None:
    planner = SearchSettings(**asked).step_planner()
    assert isinstance(planner, EliteBankCEM)
    assert (planner.first.samples, planner.first.elites) == first
    assert (planner.later.samples, planner.later.elites) == later
    assert planner.local_share == (0.0 if asked["planner"] == "cem" else 0.7)


def test_a_deadline_is_checked_as_often_as_for_a_robot() -> None:
    assert SearchSettings(max_seconds=0.5).limits().chunk == 50
    assert SearchSettings(max_seconds=0.5, chunk=7).limits().chunk == 7
    assert SearchSettings().limits().chunk is None


def test_it_is_recorded_how_many_candidates_are_imagined_at_a_time() -> None:
    def recorded(model: str, **search: Any) -> object:
        asked = ModelSettings(model=model, device="cpu")
        return EvaluateSettings(task="wall", model=asked, search=SearchSettings(**search)).resolved()["chunk"]

    assert recorded("wall/faster") == 50
    assert recorded("wall/faster", chunk=7) == 7
    assert recorded("simulator") is None


@pytest.mark.usefixtures("threads")
def test_workers_share_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controllers: list[Controller] = []
    monkeypatch.setattr("scope_wm.evaluate.runner.run_instance", lambda *given: controllers.append(given[3]))
    solve_instances(Job(settings(tmp_path, workers=3), simulator_scale("wall", None), [0]), print)
    assert [one.limits.processes for one in controllers if one.limits is not None] == [3]
    monkeypatch.setattr(ModelSettings, "resolved_device", lambda _: torch.device("cuda"))
    learned = settings(tmp_path, model=ModelSettings(model="runs/model"), workers=None)
    assert learned.worker_count == learned.resolved()["workers"] == 1
    assert replace(learned, workers=3).worker_count == 3
    monkeypatch.undo()
    assert settings(tmp_path, workers=None).resolved()["workers"] == usable_cores()
