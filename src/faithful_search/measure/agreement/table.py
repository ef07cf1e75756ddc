"""Judges beside labels and beside each other, source by source: the numbers, and the table to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from ...judges import Verdict
from ..report import aligned, interval
from ..stats import Estimate
from . import statistics
from .statistics import Bin

ALL = "all"
_HEADER = ["judge", "labels", "pairs", "true", "agreement [95% CI]", "κ", "AUROC", "ECE (bins)", "Brier", "abstained"]


class Rated(NamedTuple):
    """A pair: where it is from, the group that it is resampled with, its label where there is one, all verdicts."""

    source: str
    group: str
    truth: bool | None
    verdicts: Mapping[str, Verdict]


class Against(msgspec.Struct, frozen=True):
    """One judge beside the labels of one source; `true` is the share of labels that are, over the pairs it judged."""

    judge: str
    source: str
    pairs: int
    abstained: int
    true: float | None
    agreement: Estimate
    kappa: Estimate
    auroc: Estimate
    calibration: Estimate
    brier: Estimate
    bins: int


class Between(msgspec.Struct, frozen=True):
    """Two judges on the pairs of one source that both judged."""

    first: str
    second: str
    source: str
    agreement: Estimate
    kappa: Estimate


class Agreement(msgspec.Struct, frozen=True):
    """What was measured. `among` is Fleiss' κ of all judges by source; `curves` what a calibration plot draws."""

    judges: tuple[str, ...]
    against: tuple[Against, ...]
    between: tuple[Between, ...]
    among: dict[str, Estimate]
    curves: dict[str, tuple[Bin, ...]]
    settings: dict[str, Any]

    def table(self) -> str:
        """Text to read: judges against labels, then judges against each other."""
        parts = [aligned([_HEADER, *map(_cells, self.against)])] if self.against else []
        for source, fleiss in self.among.items():
            found = {(row.first, row.second): row.kappa for row in self.between if row.source == source}
            rows = [
                [one, *(interval(found[one, other]) if (one, other) in found else "" for other in self.judges[1:])]
                for one in self.judges[:-1]
            ]
            last = f"Fleiss' κ of {len(self.judges)} judges: {interval(fleiss)} (n={fleiss.n})"
            parts.append(f"{aligned([[f'κ, {source}', *self.judges[1:]], *rows])}\n{last}")
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """What `agreement.json` holds."""
        return msgspec.to_builtins(self)


def measured(pairs: Sequence[Rated], settings: Mapping[str, Any], draws: int, seed: int) -> Agreement:
    """Every statistic, for each source and, where there are several, for all pairs together."""
    judges = tuple(pairs[0].verdicts)
    labelled = any(pair.truth is not None for pair in pairs)
    sources = dict(Counter(pair.source for pair in pairs))
    how = {"draws": draws, "seed": seed}
    against, between, among, curves = [], [], {}, {}
    for source in [*sources, *([ALL] if len(sources) > 1 else [])]:
        part = [pair for pair in pairs if source in (ALL, pair.source)]
        truth, groups = [pair.truth for pair in part], [pair.group for pair in part]
        said = {judge: [pair.verdicts[judge].label for pair in part] for judge in judges}
        for judge in judges if labelled else ():
            p = [pair.verdicts[judge].p for pair in part]
            judged = [
                label for label, own in zip(truth, said[judge], strict=True) if own is not None and label is not None
            ]
            # the last source is all of them, whose curves are drawn
            curves[judge] = tuple(statistics.reliability(truth, p))
            against.append(
                Against(
                    judge=judge,
                    source=source,
                    pairs=len(judged),
                    abstained=said[judge].count(None),
                    true=sum(judged) / len(judged) if judged else None,
                    agreement=statistics.agreement_rate(truth, said[judge], groups, **how),
                    kappa=statistics.cohen_kappa(truth, said[judge], groups, **how),
                    auroc=statistics.auroc(truth, p, groups, **how),
                    calibration=statistics.calibration_error(truth, p, groups, **how),
                    brier=statistics.brier(truth, p, groups, **how),
                    bins=len(curves[judge]),
                )
            )
        for one, other in combinations(judges, 2):
            alike = statistics.agreement_rate(said[one], said[other], groups, **how)
            kappa = statistics.cohen_kappa(said[one], said[other], groups, **how)
            between.append(Between(one, other, source, alike, kappa))
        if len(judges) > 1:
            among[source] = statistics.fleiss_kappa([*said.values()], groups, **how)
    told = {**settings, **how, "bins": statistics.BINS, "pairs": sources}
    return Agreement(judges, tuple(against), tuple(between), among, curves, told)


def _cells(row: Against) -> list[str]:
    true = "-" if row.true is None else f"{row.true:.2f}"
    shown = [interval(estimate) for estimate in (row.agreement, row.kappa, row.auroc)]
    error = f"{interval(row.calibration)} ({row.bins})"
    brier = interval(msgspec.structs.replace(row.brier, low=None))  # without its interval: the line is long enough
    return [row.judge, row.source, str(row.pairs), true, *shown, error, brier, str(row.abstained)]
