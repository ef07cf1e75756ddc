"""Temperature scaling of a judge's p, fitted on labelled pairs that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

COLDEST, HOTTEST = 0.05, 20.0
_EDGE = 1e-12


def fit_temperature(p: Sequence[float], labels: Sequence[bool]) -> float:
    """The T in [0.05, 20] at which sigmoid(logit(p) / T) has the least negative log-likelihood of the labels.

    The loss is convex in 1/T, so its slope is bisected (Guo et al. 2017, temperature scaling). Judges that are right
    about every pair, or no better than chance, get the interval's ends; 1 without pairs.

    Example:
        >>> fit_temperature([0.99] * 4, [True, True, True, False]) > 3
        True
    """
    if not len(p):
        return 1.0
    sure = np.clip(np.asarray(p, dtype=np.float64), _EDGE, 1 - _EDGE)
    logits, truth = np.log(sure / (1 - sure)), np.asarray(labels, dtype=np.float64)
    low, high = 1 / HOTTEST, 1 / COLDEST  # in 1/T the loss is convex, in T it is not
    for _ in range(60):
        middle = (low + high) / 2
        said = 1 / (1 + np.exp(-np.clip(logits * middle, -700, 700)))
        slope = ((said - truth) * logits).sum()  # of the loss in 1/T
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(1 / middle)


def negative_log_likelihood(p: Sequence[float], labels: Sequence[bool]) -> float:
    """The mean of -log p(label), in nats."""
    sure = np.clip(np.asarray(p, dtype=np.float64), _EDGE, 1 - _EDGE)
    return float(-np.log(np.where(np.asarray(labels, dtype=bool), sure, 1 - sure)).mean())
