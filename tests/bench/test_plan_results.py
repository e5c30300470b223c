from dataclasses import astuple, replace

import pytest

from scope_wm.bench.paper_figures import FAST as FAST_NAME
from scope_wm.bench.paper_figures import FASTER, paper_memory_share, paper_speedup
from scope_wm.bench.plan_results import Once, Ratio, Round, ratio, rows, total_seconds, workload
from scope_wm.bench.plan_variants import COMPILED, FAST, INT8, PLAIN_A, PLAIN_B, PUBLISHED, Variant

FASTEST = FAST[-1]


def measured(a: float, b: float, fastest: float) -> Round:
    chunk = {PLAIN_A.name: a, PLAIN_B.name: b, FASTEST.name: fastest}
    return Round(
        gemm_rate=dict.fromkeys(chunk, 100.0),
        image=0.5,
        images=20.0,
        optimiser={"cem": 3.0, "eb-cem": 4.0},
        chunk=chunk,
    )


def once(variant: Variant, chunk: int, gflops: float = 10.0) -> Once:
    return Once(
        variant=variant,
        chunk=chunk,
        gflops=gflops,
        shares={"encode": 0.0, "select": 0.1, "predict": 0.5, "background": 0.2, "cost": 0.1},
        peak_memory=7,
        full_steps={"cem": 1.25},
    )


def test_a_planner_imagines_as_many_candidates_as_the_paper_says() -> None:
    assert workload("cem", 15).candidates == 15_000
    assert workload("eb-cem", 15).candidates == 3_000 + 14 * 1_000


def test_all_steps_are_chunks_images_and_the_optimiser() -> None:
    each = measured(a=200.0, b=10.0, fastest=2.0)
    assert total_seconds(each, once(PLAIN_A, 100), workload("cem", 15)) == 150 * 200.0 + 16 * 0.5 + 3.0
    assert total_seconds(each, once(FASTEST, 25), workload("eb-cem", 15)) == 680 * 2.0 + 16 * 0.5 + 4.0


def test_as_published_every_batch_is_encoded_and_the_goal_alone_apart() -> None:
    each = measured(a=200.0, b=10.0, fastest=2.0)
    assert total_seconds(each, once(PUBLISHED, 100), workload("cem", 15)) == 150 * 220.0 + 0.5 + 3.0


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    rounds = [measured(100.0, 1.0, 3.0), measured(200.0, 1.0, 1.0), measured(300.0, 1.0, 2.0)]
    work = workload("cem", 15)
    found = ratio(rounds, (once(PLAIN_A, 100), work), (once(FASTEST, 100), work))
    # About 150 in the last round; the ratio of the medians, 200 and 2, would be about 100.
    assert found.median == (150 * 300.0 + 11.0) / (150 * 2.0 + 11.0)
    assert found.low == (150 * 100.0 + 11.0) / (150 * 3.0 + 11.0)
    assert found.high == (150 * 200.0 + 11.0) / (150 * 1.0 + 11.0)


def test_a_row_compares_with_dense_models_that_use_cem() -> None:
    rounds = [measured(a=200.0, b=10.0, fastest=2.0)]
    variants = {v.name: once(v, c) for v, c in ((PLAIN_A, 100), (PLAIN_B, 10), (FASTEST, 25))}
    table = {(row.variant, row.planner): row for row in rows(rounds, variants, ("cem", "eb-cem"), 15)}
    row = table[FASTEST.name, "eb-cem"]
    assert row.seconds == 680 * 2.0 + 12.0
    assert row.faster_than_a.median == (150 * 200.0 + 11.0) / row.seconds
    assert row.faster_than_b.median == (1500 * 10.0 + 11.0) / row.seconds
    assert row.gemm_share == pytest.approx(10.0 * 25 / 2.0 / 100.0)
    assert row.full_step_expected == 40 * 2.0
    assert row.full_step is None
    assert table[FASTEST.name, "cem"].full_step == 1.25
    assert table[PLAIN_A.name, "cem"].faster_than_a == Ratio(median=1.0, low=1.0, high=1.0)


def test_the_parts_add_up_to_the_whole() -> None:
    rounds = [measured(a=200.0, b=10.0, fastest=2.0)]
    variants = {v.name: once(v, 50) for v in (PLAIN_A, PLAIN_B, FASTEST)}
    for row in rows(rounds, variants, ("cem", "eb-cem"), 15):
        assert row.parts is not None
        assert sum(astuple(row.parts)) == pytest.approx(row.seconds)
        assert row.parts.encode == 16 * 0.5
        assert row.parts.rest == pytest.approx(0.1 * (row.seconds - 8.0 - row.parts.optimiser))


def test_as_published_the_images_of_every_batch_are_encoding() -> None:
    each = measured(a=200.0, b=10.0, fastest=2.0)
    variants = {v.name: once(v, 100) for v in (PUBLISHED, PLAIN_A, PLAIN_B)}
    row = rows([each], variants, ("cem",), 15)[0]
    assert row.parts is not None
    assert row.parts.encode == 150 * 20.0 + 0.5
    assert row.parts.predict == pytest.approx(0.5 * 150 * 200.0)
    assert sum(astuple(row.parts)) == pytest.approx(row.seconds)


def test_what_cannot_be_told_is_left_out() -> None:
    each = measured(a=200.0, b=10.0, fastest=2.0)
    for name in (INT8.name, COMPILED[-1].name):
        each.chunk[name] = each.gemm_rate[name] = 1.0
    variants = {v.name: once(v, 100) for v in (PLAIN_A, PLAIN_B, INT8)}
    variants[COMPILED[-1].name] = replace(once(COMPILED[-1], 100), shares=None)
    *_, rounded, whole = rows([each], variants, ("cem",), 15)
    assert rounded.gemm_share is None  # its products are not float32
    assert whole.parts is None


def test_the_papers_ratios_are_those_that_it_prints() -> None:
    assert paper_speedup("push_t", FASTER, "eb-cem") == pytest.approx(6.97, abs=0.005)
    assert paper_speedup("push_t", FAST_NAME, "eb-cem") == pytest.approx(2.59, abs=0.005)
    assert paper_speedup("wall", FASTER, "eb-cem") == pytest.approx(3.03, abs=0.005)
    assert paper_memory_share("push_t", FASTER, "eb-cem") == pytest.approx(0.181, abs=5e-4)
    assert paper_memory_share("wall", FASTER, "eb-cem") == pytest.approx(1.258, abs=1e-3)
    assert paper_speedup("rope", FASTER, "eb-cem") is None
