"""Fit the weights of the judge `counted`, and print how well they do on labels that they were not
fitted to.

```
python scripts/fit_counted.py FAITHFULNESS --thoughts datasets/thoughts/train \\
    --out src/faithful_search/data/counted_judge.json
```

FAITHFULNESS is a folder of labelled files, as `faithful-search agreement` reads it. Its training
split is used, of the `SOURCES` alone, and each source weighs the same.

The weights are those of a logistic regression with an L2 penalty on standardised counts. The
threshold and the figures come from cross-validation: each pair is judged by weights that were
fitted without the pairs of its question. The threshold is the one with the best κ (Cohen).
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
FOLDS = 5
STEPS = 30
"""The number of Newton's steps."""
PENALTY = 0.03
"""The weight of the L2 penalty for each pair."""
THRESHOLDS = [round(0.3 + 0.02 * step, 2) for step in range(26)]
Numbers = NDArray[np.float64]


class Data(NamedTuple):
    """What is fitted to.

    Attributes:
        features: the counts of each pair; of shape (rows, names).
        labels: 0 or 1; of shape (rows,).
        row_weights: how much each row counts; of shape (rows,).
    """

    features: Numbers
    labels: Numbers
    row_weights: Numbers

    def where(self, chosen: NDArray[np.bool_]) -> "Data":
        return Data(self.features[chosen], self.labels[chosen], self.row_weights[chosen])


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
    """The weights that fit the labels, with their threshold; prints how well they do. With
    `by_source` each source weighs the same, else each row.
    """
    names, data = data_of(rows, by_source)
    p = cross_validated(data, rows)

    def kappa_at(threshold: float) -> float:
        return mean_kappa(rows, p, threshold, by_source)

    threshold = max(THRESHOLDS, key=kappa_at)
    # The count "words" is p of the judge that only compares words
    p_of_words = data.features[:, names.index("words")]
    sources = sorted({row.source for row in rows})
    for source in [*sources, None]:
        print(figures(rows, p, p_of_words, threshold, source))
    *weights, bias = regression(data)
    weight_by_name = dict(zip(names, weights, strict=True))
    return TaskWeights(
        threshold=threshold,
        bias=round(float(bias), 4),
        weights={name: round(float(weight), 4) for name, weight in weight_by_name.items()},
    )


def data_of(rows: Sequence[Labelled], by_source: bool) -> tuple[list[str], Data]:
    """The names of the counts, and what is fitted to."""
    counts_of_rows = [counts(row.pair) for row in rows]
    names = list(counts_of_rows[0])
    row_weights = np.ones(len(rows))
    if by_source:
        rows_of_source = Counter(row.source for row in rows)
        smallest = min(rows_of_source.values())
        row_weights = np.array([smallest / rows_of_source[row.source] for row in rows])
    columns = []
    for name in names:
        columns.append([counted[name] for counted in counts_of_rows])
    labels = np.array([float(row.label) for row in rows])
    return names, Data(np.column_stack(columns), labels, row_weights)


def cross_validated(data: Data, rows: Sequence[Labelled]) -> Numbers:
    """p of each row, by weights that were fitted without the rows of its group; shape (rows,)."""
    digests = [hashlib.sha256(row.group.encode()).hexdigest() for row in rows]
    folds = np.array([int(digest, 16) % FOLDS for digest in digests])
    p = np.zeros(len(rows))
    for fold in range(FOLDS):
        left_out = folds == fold
        weights = regression(data.where(~left_out))
        p[left_out] = predicted(weights, data.features[left_out])
    return p


def regression(data: Data) -> Numbers:
    """The weights of the counts and, last, the bias, by Newton's method; shape (names + 1,).

    They are fitted to standardised counts, and returned for counts as they are.
    """
    mean = data.features.mean(0)
    deviation = data.features.std(0) + 1e-6
    ones = np.ones(len(data.labels))
    inputs = np.column_stack([(data.features - mean) / deviation, ones])
    without_bias = [1.0] * len(mean) + [0.0]
    penalty = PENALTY * data.row_weights.sum() * np.diag(without_bias)
    weights = np.zeros(inputs.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-inputs @ weights))
        variance = data.row_weights * p * (1 - p)
        hessian = inputs.T @ (inputs * variance[:, None]) + penalty
        gradient = inputs.T @ (data.row_weights * (p - data.labels)) + penalty @ weights
        weights -= np.linalg.solve(hessian, gradient)
    of_counts = weights[:-1] / deviation
    bias = weights[-1] - of_counts @ mean
    return np.append(of_counts, bias)


def predicted(weights: Numbers, features: Numbers) -> Numbers:
    """p of each row of counts, by the weights that `regression` returns; shape (rows,)."""
    logits = features @ weights[:-1] + weights[-1]
    return 1 / (1 + np.exp(-logits))


def mean_kappa(rows: Sequence[Labelled], p: Numbers, threshold: float, by_source: bool) -> float:
    """κ at this threshold; with `by_source` the mean over sources."""
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        group = row.source if by_source else ""
        groups.setdefault(group, []).append(place)
    kappas = []
    for places in groups.values():
        labels = [rows[place].label for place in places]
        verdicts = [bool(p[place] >= threshold) for place in places]
        kappas.append(cohen_kappa(labels, verdicts, draws=1).value or 0.0)
    return sum(kappas) / len(kappas)


def figures(
    rows: Sequence[Labelled], p: Numbers, p_of_words: Numbers, threshold: float, source: str | None
) -> str:
    """A line with AUROC and κ on the rows of a source; on all rows, where it is `None`."""
    places = [place for place, row in enumerate(rows) if source in (None, row.source)]
    labels = [rows[place].label for place in places]
    counted = [float(p[place]) for place in places]
    by_words = [float(p_of_words[place]) for place in places]
    verdicts = [value >= threshold for value in counted]
    kappa = cohen_kappa(labels, verdicts, draws=1).value or 0.0
    counted_auroc = auroc(labels, counted, draws=2).value
    words_auroc = auroc(labels, by_words, draws=2).value
    return (
        f"{source or 'all'}: {len(places)} pairs, AUROC {counted_auroc:.3f} "
        f"(words {words_auroc:.3f}), κ {kappa:.3f} at {threshold}"
    )


if __name__ == "__main__":
    main()
