import math

import numpy as np
import pytest

from scope_wm.evaluate.statistics import bootstrap, mcnemar, sign_flips, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe (1998), Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wilson_of_all_and_of_none_is_the_closed_form() -> None:
    z2 = 1.959963984540054**2
    assert wilson(50, 50) == (pytest.approx(50 / (50 + z2)), 1.0)
    assert wilson(0, 50) == (0.0, pytest.approx(z2 / (50 + z2)))


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_counts_that_cannot_be(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match=f"got {successes} of {trials}"):
        wilson(successes, trials)


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (1, 5, 2 * (1 + 6) / 64),
        (0, 6, 2 / 64),
        (12, 5, 2 * (1 + 17 + 136 + 680 + 2380 + 6188) / 2**17),
    ],
)
def test_mcnemar_counts_coin_tosses(only_first: int, only_second: int, p: float) -> None:
    assert mcnemar(only_first, only_second) == p == mcnemar(only_second, only_first)


def test_mcnemar_refuses_negative_counts() -> None:
    with pytest.raises(ValueError, match="got -1 and 2"):
        mcnemar(-1, 2)


def test_bootstrap_of_two_values_reaches_from_one_to_the_other() -> None:
    # Means are 0, 0.5 and 1 with probability 1/4, 1/2 and 1/4: 2.5 % and 97.5 % lie in the outer ones.
    assert bootstrap(np.array([0.0, 1.0])) == (0.0, 1.0)


def test_bootstrap_of_many_values_is_the_normal_interval() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    half = 1.96 * values.std() / math.sqrt(400)
    low, high = bootstrap(values)
    assert low == pytest.approx(values.mean() - half, abs=0.05 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.05 * half)


def test_bootstrap_repeats_with_its_seed_and_refuses_nothing_to_resample() -> None:
    values = np.random.default_rng(1).normal(size=30)
    assert bootstrap(values, seed=4) == bootstrap(values, seed=4) != bootstrap(values, seed=5)
    with pytest.raises(ValueError, match="got none"):
        bootstrap(values[:0])


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([2.0], 1.0),  # one pair tells nothing
        ([1.0, 1.0], 0.5),
        ([1.0, 2.0, 3.0], 0.25),
        ([1.0, 2.0, -3.0], 1.0),
        ([0.1, 0.2, 0.4, 0.8, 1.6, -0.1], 6 / 64),  # all alike, or one of the two 0.1
        ([0.0] * 5, 1.0),
        ([0.1, 0.7, -0.3, -0.5], 1.0),  # their sum is 0 but for rounding
        ([0.1] * 13, 2 / 2**13),
    ],
)
def test_flipping_all_signs_is_exact(differences: list[float], p: float) -> None:
    assert sign_flips(np.array(differences)) == p
    assert sign_flips(-np.array(differences)) == p


def test_drawn_signs_are_close_to_all_signs() -> None:
    values = np.random.default_rng(3).normal(0.4, 1.0, 14)
    signs = 1 - 2 * (np.arange(2**14)[:, None] >> np.arange(14) & 1)
    exact = np.mean(abs(signs @ values) >= abs(values.sum()) - 1e-9)
    assert 0.02 < exact < 0.9
    assert sign_flips(values) == pytest.approx(exact, abs=0.015)
    assert sign_flips(np.full(50, 1.0)) == 1 / 10_001  # never 0, however clear


def test_chance_differences_are_rarely_significant() -> None:
    rng = np.random.default_rng(0)
    found = [sign_flips(rng.normal(size=10)) < 0.05 for _ in range(400)]
    assert 0.02 < np.mean(found) < 0.08


def test_flipping_signs_needs_pairs() -> None:
    with pytest.raises(ValueError, match="got none"):
        sign_flips(np.array([]))
