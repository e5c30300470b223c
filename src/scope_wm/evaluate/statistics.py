"""How certain a result on few instances is.

Wilson      (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)           share of successes
McNemar     P(as uneven as b : c | b + c fair coins), two-sided                 paired successes
bootstrap   2.5 and 97.5 % of the means of resampled values                     distances
sign flips  P(a mean as far from 0 | each difference has either sign)           paired distances
"""

import math

import numpy as np
from jaxtyping import Float64

Interval = tuple[float, float]

Z = 1.959963984540054  # 97.5 % of a standard normal lie below
RESAMPLES = 10_000
ALL_SIGNS = 13  # differences of which every way to set the signs is tried: 2^13 < RESAMPLES
LEVEL = 0.05


def wilson(successes: int, trials: int) -> Interval:
    """Return Wilson's 95 % interval of a share."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"expected 0 <= successes <= trials and a trial, got {successes} of {trials}")
    share, z2 = successes / trials, Z * Z
    centre = share + z2 / (2 * trials)
    margin = Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    scale = 1 + z2 / trials
    # Both ends are exact where they can be: rounding would put 0 at -1e-17.
    low = 0.0 if successes == 0 else (centre - margin) / scale
    high = 1.0 if successes == trials else (centre + margin) / scale
    return low, high


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p-value of equal success, from the instances that two runs differ on."""
    if min(only_first, only_second) < 0:
        raise ValueError(f"expected counts of at least 0, got {only_first} and {only_second}")
    trials, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(trials, count) for count in range(fewer + 1))
    return min(1.0, 2 * tail / 2**trials)


def bootstrap(values: Float64[np.ndarray, " values"], seed: int = 0) -> Interval:
    """Return the 95 % percentile interval of the mean; for a paired comparison, pass differences."""
    if len(values) == 0:
        raise ValueError("expected values to resample, got none")
    drawn = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def sign_flips(differences: Float64[np.ndarray, " pairs"]) -> float:
    """Return the two-sided p-value of no difference: then each one is as likely with the other sign.

    It is exact for few pairs. For more, signs are drawn, and those that were found count as one more draw.
    """
    count = len(differences)
    if count == 0:
        raise ValueError("expected differences of pairs, got none")
    if exact := count <= ALL_SIGNS:
        signs = 1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
    else:
        signs = np.random.default_rng(0).choice([-1, 1], size=(RESAMPLES, count))
    least = abs(differences.sum()) - 1e-9 * abs(differences).sum()  # what was found, but for rounding
    as_far = int((abs(signs @ differences) >= least).sum())
    return as_far / len(signs) if exact else (as_far + 1) / (len(signs) + 1)
