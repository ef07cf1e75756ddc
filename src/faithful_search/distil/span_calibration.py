"""What is set of a trained span judge by labelled pairs that it was not trained on: what the
comparison of words weighs, the temperature, and the band in which it cannot tell.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ..judges.distilled import JudgeFile, calibrated
from ..judges.span import SpanJudge, counted_p, with_words
from ..measure.agreement import Labelled, statistics
from . import heads

WEIGHTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""What the comparison of words may weigh."""
_BANDS = (0.25, 0.2, 0.15, 0.1, 0.05)
_CHANCE = 0.6
"""The share of right labels up to which a band is not worth a verdict."""


def calibrate(judge: SpanJudge, file: JudgeFile, rows: Sequence[Labelled]) -> JudgeFile:
    """The file with three settings that are chosen one after the other by labelled pairs.

    1. `words`: the weight of the comparison of words with the highest AUROC, in the mean over the
       sources of the rows.
    2. `temperature`: the one that fits p, with these words, to the labels.
    3. `unsure`: how far from the threshold, on both sides, the widest band reaches in which at
       most 60 % of the labels would be right; 0 where there is none.

    Rows with a blank hypothesis say nothing about the network, which is not asked about them.
    """
    rows = [row for row in rows if row.pair.hypothesis.strip()]
    network_p = _network_p(judge, rows)
    words_p = [counted_p(row.pair) for row in rows]
    p_by_weight: dict[float, list[float]] = {}
    auroc_by_weight: dict[float, float] = {}
    for weight in WEIGHTS:
        pairs = zip(network_p, words_p, strict=True)
        p_of_both = [with_words(network, words, weight) for network, words in pairs]
        p_by_weight[weight] = p_of_both
        auroc_by_weight[weight] = _mean_auroc(rows, p_of_both)
    words = max(WEIGHTS, key=auroc_by_weight.__getitem__)
    labels = [row.label for row in rows]
    temperature = heads.fit_temperature(p_by_weight[words], labels)
    p = [calibrated(value, temperature) for value in p_by_weight[words]]
    unsure = _band(p, labels, file.threshold)
    return msgspec.structs.replace(file, words=words, temperature=temperature, unsure=unsure)


def _network_p(judge: SpanJudge, rows: Sequence[Labelled]) -> list[float]:
    """The network's own p of each row."""
    uncalibrated = replace(judge, words=0.0, temperature=1.0, unsure=0.0)
    values = []
    for verdict in uncalibrated.judge_batch([row.pair for row in rows]):
        assert verdict.p is not None  # it abstains in the band of `unsure` alone, which is empty
        values.append(verdict.p)
    return values


def _mean_auroc(rows: Sequence[Labelled], p: Sequence[float]) -> float:
    """Over the sources with both labels; 0 where there is none."""
    by_source: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_source[row.source].append(place)
    values = []
    for places in by_source.values():
        truth = [rows[place].label for place in places]
        estimate = statistics.auroc(truth, [p[place] for place in places], draws=2)
        if estimate.value is not None:
            values.append(estimate.value)
    return sum(values) / len(values) if values else 0.0


def _band(p: Sequence[float], labels: Sequence[bool], threshold: float) -> float:
    """The widest band around the threshold in which labels are hardly better than chance."""
    for width in _BANDS:
        are_right = []
        for value, label in zip(p, labels, strict=True):
            if abs(value - threshold) < width:
                are_right.append((value >= threshold) == label)
        if are_right and sum(are_right) / len(are_right) <= _CHANCE:
            return width
    return 0.0
