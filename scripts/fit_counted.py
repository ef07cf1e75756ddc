"""Fit the weights of the judge `counted`, and say how well it does on labels it was not fitted to.

```
python scripts/fit_counted.py FAITHFULNESS --thoughts datasets/thoughts/train \\
    --out src/faithful_search/data/counted_judge.json
```

FAITHFULNESS is a folder of labelled files, as `faithful-search agreement` reads it: the training
side of `SOURCES` is used, each source with the same weight. Logistic regression with a penalty on
the squares of standardised weights. The figures and the thresholds, those with the best κ, are of
folds by question: each pair is judged by weights that were fitted without its question.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from faithful_search.judges.base import Task
from faithful_search.judges.counted import TaskWeights
from faithful_search.judges.counts import counts
from faithful_search.measure.agreement.labelled import Labelled, load
from faithful_search.measure.agreement.statistics import auroc, cohen_kappa

SOURCES = ("attributionbench", "begin", "halueval")
FOLDS, STEPS = 5, 30
PENALTY = 0.03
"""Of the squared weights, for each pair."""
THRESHOLDS = [round(0.3 + 0.02 * step, 2) for step in range(26)]
Numbers = NDArray[np.float64]


class Data(NamedTuple):
    """Counts (rows, names), labels and what each row weighs."""

    counted: Numbers
    labels: Numbers
    weights: Numbers

    def where(self, chosen: NDArray[np.bool_]) -> "Data":
        return Data(self.counted[chosen], self.labels[chosen], self.weights[chosen])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("labels", type=Path, help="folder of labelled claims")
    parser.add_argument("--thoughts", type=Path, required=True, help="labelled thoughts")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    claims = [row for row in load(options.labels, "train") if row.source in SOURCES]
    fitted: dict[Task, TaskWeights] = {
        "support": fitted_to(claims, by_source=True),
        "info_think": fitted_to(load(options.thoughts), by_source=False),
    }
    text = msgspec.json.format(msgspec.json.encode(fitted), indent=2)
    options.out.write_bytes(text + b"\n")


def fitted_to(rows: Sequence[Labelled], by_source: bool) -> TaskWeights:
    """The weights that fit the labels; with `by_source` each source weighs the same."""
    counted = [counts(row.pair) for row in rows]
    names = list(counted[0])
    of_source = Counter(row.source for row in rows)
    least = min(of_source.values())
    data = Data(
        np.array([[row[name] for name in names] for row in counted]),
        np.array([float(row.label) for row in rows]),
        np.array([least / of_source[row.source] if by_source else 1.0 for row in rows]),
    )
    folds = np.array(
        [int(hashlib.sha256(row.group.encode()).hexdigest(), 16) % FOLDS for row in rows]
    )
    p = np.zeros(len(rows))
    for fold in range(FOLDS):
        others = folds != fold
        p[~others] = predicted(regression(data.where(others)), data.counted[~others])
    threshold = max(THRESHOLDS, key=lambda least_p: mean_kappa(rows, p, least_p, by_source))
    for source in [*sorted(of_source), None]:
        print(measured(rows, p, data.counted[:, names.index("words")], threshold, source))
    *weights, bias = regression(data)
    return TaskWeights(
        threshold=threshold,
        bias=round(float(bias), 4),
        weights={
            name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)
        },
    )


def regression(data: Data) -> Numbers:
    """The weights of the counts as they are, and the bias, by Newton's method."""
    mean, spread = data.counted.mean(0), data.counted.std(0) + 1e-6
    inputs = np.column_stack([(data.counted - mean) / spread, np.ones(len(data.labels))])
    penalty = np.diag([PENALTY * data.weights.sum()] * len(mean) + [0.0])
    weights = np.zeros(inputs.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-inputs @ weights))
        curvature = inputs.T @ (inputs * (data.weights * p * (1 - p))[:, None]) + penalty
        slope = inputs.T @ (data.weights * (p - data.labels)) + penalty @ weights
        weights -= np.linalg.solve(curvature, slope)
    plain = weights[:-1] / spread
    return np.append(plain, weights[-1] - plain @ mean)


def predicted(weights: Numbers, counted: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-(counted @ weights[:-1] + weights[-1])))


def mean_kappa(rows: Sequence[Labelled], p: Numbers, threshold: float, by_source: bool) -> float:
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.source if by_source else "", []).append(place)
    values = []
    for places in groups.values():
        truth = [rows[place].label for place in places]
        verdicts = [bool(p[place] >= threshold) for place in places]
        values.append(cohen_kappa(truth, verdicts, draws=1).value or 0.0)
    return sum(values) / len(values)


def measured(
    rows: Sequence[Labelled], p: Numbers, words: Numbers, threshold: float, source: str | None
) -> str:
    places = [place for place, row in enumerate(rows) if source in (None, row.source)]
    truth = [rows[place].label for place in places]
    here, by_words = ([float(values[place]) for place in places] for values in (p, words))
    kappa = cohen_kappa(truth, [value >= threshold for value in here], draws=1).value or 0.0
    return (
        f"{source or 'all'}: {len(places)} pairs, AUROC {auroc(truth, here, draws=2).value:.3f} "
        f"(words {auroc(truth, by_words, draws=2).value:.3f}), κ {kappa:.3f} at {threshold}"
    )


if __name__ == "__main__":
    main()
