"""pass@k without bias, and how far it can be trusted."""

import math
from collections.abc import Sequence

import numpy as np

# Resamples for an interval: its ends then vary by less than a tenth of its width.
_RESAMPLES = 2000


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chance that at least one of k samples is right, from n of which c were.

    1 - C(n - c, k) / C(n, k), without replacement; 1 where n - c < k.

    Raises:
        ValueError: if k is not in 1 .. n.

    Source: Evaluating Large Language Models Trained on Code (arXiv:2107.03374),
    section 2.1, equation 1.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs k from 1 to num_samples={num_samples}")
    wrong = num_samples - num_correct
    return 1.0 - math.comb(wrong, k) / math.comb(num_samples, k)


def mean_with_interval(
    values: Sequence[float], *, seed: int = 0
) -> tuple[float, float, float]:
    """Mean over prompts with a 95 % interval, by bootstrap over the prompts.

    Samples of one prompt are not independent, so prompts are what is resampled.

    Returns:
        (mean, low, high)
    """
    x = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(0, len(x), (_RESAMPLES, len(x)))
    low, high = np.percentile(x[draws].mean(axis=1), [2.5, 97.5])
    return float(x.mean()), float(low), float(high)
