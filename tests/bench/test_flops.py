import pytest
import torch

from scope_wm.bench.flops import counted_gflops, prediction_gflops
from scope_wm.bench.subject import Subject


def test_a_product_has_a_multiplication_and_an_addition_for_each_term() -> None:
    assert counted_gflops(lambda: torch.zeros(100, 200) @ torch.zeros(200, 300)) == 2 * 100 * 200 * 300 / 1e9


@pytest.mark.parametrize(("k", "gflops"), [(None, 31.89), (98, 15.04), (32, 5.27)])
def test_a_prediction_has_the_flops_that_the_paper_tells(k: int | None, gflops: float) -> None:
    config = Subject(task="push_t", preset="paper").config(k, 196, 384)
    assert prediction_gflops(config) == pytest.approx(gflops, rel=0.01)
