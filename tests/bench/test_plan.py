import json
from pathlib import Path

import imageio.v3 as iio
import pytest
from torch import Tensor

from scope_wm.bench.page import INTRODUCTION, page_of
from scope_wm.bench.paper_figures import FASTER
from scope_wm.bench.plan import BenchPlanSettings, PlanBench
from scope_wm.bench.plan_rounds import Budget, best_chunk, free_cost, full_step, random_candidates, turn
from scope_wm.bench.plan_variants import PLAIN_A, PLAIN_B, PUBLISHED, VARIANTS, VariantCost
from scope_wm.cli import main
from scope_wm.types import UsageError


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the processes, which take seconds each; one is tested by itself."""
    monkeypatch.setattr("scope_wm.bench.plan.peak_memory", lambda *_: 3 * 2**20)


@pytest.fixture(autouse=True)
def no_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the large products, which take seconds too, and make turns short."""
    monkeypatch.setattr("scope_wm.bench.plan_rounds.gemm_rate", lambda device: 150.0)
    monkeypatch.setattr("scope_wm.bench.plan_rounds.TURN_SECONDS", 0.0)


@pytest.mark.usefixtures("no_children")
def test_the_command_writes_page_json_and_plot(tmp_path: Path) -> None:
    page, directory = tmp_path / "benchmarks.md", tmp_path / "benchmarks"
    options = "--task wall --preset tiny --candidates 2 --rounds 2 --threads 1 --budget-seconds 1e-3"
    assert main(["bench", "plan", *options.split(), "--out", str(page)]) == 0
    assert sorted(path.name for path in directory.iterdir()) == ["plan-wall-tiny.json", "plan-wall-tiny.png"]
    text = page.read_text()
    assert "## Planning: wall, tiny sizes" in text
    assert "3.03x (19.6 s)" in text  # the paper's
    assert "3 MiB | 100.0%" in text
    assert "with 1 thread." in text
    assert "take turns: 1. Chunks tried: 10, 25, 50, 100." in text
    assert iio.imread(directory / "plan-wall-tiny.png").std() > 10
    content = json.loads((directory / "plan-wall-tiny.json").read_text())
    assert len(content["rounds"]) == 1  # one is made whatever the budget
    assert [row["variant"] for row in content["rows"]] == [variant.name for variant in VARIANTS] * 2
    for row in content["rows"]:
        assert row["full_step"] is None
        assert f"~{row['seconds']:,.1f} s" in text
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"], rel=1e-6)
    content["about"]["task"] = "push_t"
    (directory / "plan-push_t-tiny.json").write_text(json.dumps(content))
    both = page_of(directory)
    assert "## Planning: push_t, tiny sizes" in both
    assert text.removeprefix(INTRODUCTION) in both


def test_a_budget_buys_rounds_and_full_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PlanBench(BenchPlanSettings(task="wall", preset="tiny", rounds=2))
    bench.costs = {name: cost for name, cost in bench.costs.items() if name in (PLAIN_A.name, FASTER)}
    chunks = {PLAIN_A.name: 2, FASTER: 1}
    rounds = bench.rounds(chunks, Budget(1000.0))
    assert len(rounds) == 2
    assert len(bench.rounds(chunks, Budget(0.0))) == 1
    assert bench.full_steps(chunks, rounds, Budget(0.0)) == {PLAIN_A.name: {}, FASTER: {}}
    monkeypatch.setattr("scope_wm.bench.plan.full_step", lambda *_: 1.5)
    steps = {"cem": 1.5, "eb-cem": 1.5}
    assert bench.full_steps(chunks, rounds, Budget(1e9)) == {PLAIN_A.name: steps, FASTER: steps}


def test_a_full_step_imagines_100_candidates_10_times(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = PlanBench(BenchPlanSettings(task="wall", preset="tiny"))
    judged = []

    def judge(cost: VariantCost, candidates: Tensor) -> Tensor:
        judged.append(candidates.shape[1])
        return free_cost(candidates)

    monkeypatch.setattr(VariantCost, "__call__", judge)
    for planner in ("cem", "eb-cem"):
        assert full_step(planner, bench.costs[FASTER], 30, bench.action) > 0
        assert judged == [30, 30, 30, 10] * 10
        judged.clear()


def test_flops_of_a_published_candidate_include_its_image() -> None:
    bench = PlanBench(BenchPlanSettings(task="wall", preset="tiny"))
    published, dense, sparse = (bench.gflops(variant) for variant in (PUBLISHED, PLAIN_A, VARIANTS[-1]))
    assert published == dense + bench.gflops_of_image() > dense > sparse > 0


def test_the_chunk_with_the_fastest_candidates_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {10: 20.0, 25: 25.0, 50: 100.0}
    monkeypatch.setattr("scope_wm.bench.plan_rounds.chunk_seconds", lambda cost, size, action: seconds[size])
    judge = lambda candidates: candidates.sum((-1, -2))  # noqa: E731
    assert best_chunk(judge, [50, 10, 25], (2, 3), Budget(1000.0)) == 25
    assert best_chunk(judge, [50, 10, 25], (2, 3), Budget(0.0)) == 10


def test_a_turn_is_the_median_of_chunks_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, left = iter([1.0, 7.0, 2.0, 100.0]), iter([5.0, 1.0, -1.0])
    monkeypatch.setattr("scope_wm.bench.plan_rounds.chunk_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(Budget, "left", lambda self: next(left))
    assert turn(lambda candidates: candidates.sum((-1, -2)), 5, (2, 3)) == (150.0, 2.0)


def test_a_takes_its_batch_and_others_choose_within_it() -> None:
    settings = BenchPlanSettings(candidates=30)
    assert settings.sizes(PLAIN_A) == [30]
    assert settings.sizes(PLAIN_B) == [10, 25, 30]


def test_candidates_are_always_the_same() -> None:
    assert random_candidates(2, (3, 4)).equal(random_candidates(2, (3, 4)))


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"candidates": 1}, {"threads": 0}, {"budget_seconds": 0.0}, {"chunks": (0,)}]
)
def test_senseless_numbers_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="expected --"):
        BenchPlanSettings(**wrong)
