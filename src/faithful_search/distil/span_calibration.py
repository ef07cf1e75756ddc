"""What is set of a trained span judge by labelled pairs that it was not trained on: what the
comparison of words weighs, the temperature, and the band in which it cannot tell.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ..judges.distilled import JudgeFile, calibrated
from ..judges.lexical import GroundingJudge
from ..judges.span import SpanJudge, with_words
from ..measure.agreement import Labelled, statistics
from . import heads

WEIGHTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""What the comparison of words may weigh."""
_BANDS = (0.25, 0.2, 0.15, 0.1, 0.05)
_CHANCE = 0.6
"""The share of right labels up to which a band is not worth a verdict."""


def calibrate(judge: SpanJudge, file: JudgeFile, rows: Sequence[Labelled]) -> JudgeFile:
    """The file with the weight of words that has the highest mean AUROC over the sources of the
    rows, the temperature that fits p to their labels, and the widest band around the threshold in
    which at most 60 % of the labels would be right; 0 where there is none.
    """
    pairs = [row.pair for row in rows]
    network = replace(judge, words=0.0, temperature=1.0, unsure=0.0)
    network_p = [verdict.p or 0.0 for verdict in network.judge_batch(pairs)]
    words_p = [verdict.p or 0.0 for verdict in GroundingJudge().judge_batch(pairs)]
    p_by_weight: dict[float, list[float]] = {}
    for weight in WEIGHTS:
        both = zip(network_p, words_p, strict=True)
        p_by_weight[weight] = [with_words(first, second, weight) for first, second in both]
    best = max(WEIGHTS, key=lambda weight: _mean_auroc(rows, p_by_weight[weight]))
    labels = [row.label for row in rows]
    temperature = heads.fit_temperature(p_by_weight[best], labels)
    p = [calibrated(value, temperature) for value in p_by_weight[best]]
    unsure = _band(p, labels, file.threshold)
    return msgspec.structs.replace(file, words=best, temperature=temperature, unsure=unsure)


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
