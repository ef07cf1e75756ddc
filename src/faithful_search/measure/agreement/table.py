"""Judges beside labels and beside each other, source by source: the numbers, and the table to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec

from ...judges import Verdict
from ..report import aligned, interval
from ..stats import Estimate
from . import statistics
from .statistics import Bin

ALL = "all"
_HEADER = ["judge", "labels", "pairs", "true", "agreement [95% CI]", "κ", "AUROC", "ECE (bins)", "Brier", "abstained"]


@dataclass(frozen=True)
class Ratings:
    """Columns of equal length: where each pair is from, its group, its label where there is one, and all verdicts."""

    sources: Sequence[str]
    groups: Sequence[str]
    truth: Sequence[bool | None] | None
    verdicts: Mapping[str, Sequence[Verdict]]

    def only(self, source: str) -> Ratings:
        """The pairs of one source."""
        if source == ALL:
            return self
        kept = [place for place, own in enumerate(self.sources) if own == source]
        return Ratings(
            [source] * len(kept),
            [self.groups[place] for place in kept],
            None if self.truth is None else [self.truth[place] for place in kept],
            {name: [found[place] for place in kept] for name, found in self.verdicts.items()},
        )

    def labels(self, name: str) -> list[bool | None]:
        """A judge's labels."""
        return [verdict.label for verdict in self.verdicts[name]]

    def p(self, name: str) -> list[float | None]:
        """A judge's probabilities."""
        return [verdict.p for verdict in self.verdicts[name]]


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


def measured(ratings: Ratings, settings: Mapping[str, Any], draws: int, seed: int) -> Agreement:
    """Every statistic, for each source and, where there are several, for all pairs together."""
    judges, truth = tuple(ratings.verdicts), ratings.truth
    sources = list(dict.fromkeys(ratings.sources))
    how = {"draws": draws, "seed": seed}
    against, between, among = [], [], {}
    for source in [*sources, *([ALL] if len(sources) > 1 else [])]:
        part = ratings.only(source)
        groups, said = part.groups, {judge: part.labels(judge) for judge in judges}
        if part.truth is not None:
            against += [_against(part, part.truth, judge, source, **how) for judge in judges]
        for one, other in combinations(judges, 2):
            alike = statistics.agreement_rate(said[one], said[other], groups, **how)
            kappa = statistics.cohen_kappa(said[one], said[other], groups, **how)
            between.append(Between(one, other, source, alike, kappa))
        if len(judges) > 1:
            among[source] = statistics.fleiss_kappa([*said.values()], groups, **how)
    curves = {} if truth is None else {name: tuple(statistics.reliability(truth, ratings.p(name))) for name in judges}
    told = {**settings, **how, "bins": statistics.BINS, "pairs": dict(Counter(ratings.sources))}
    return Agreement(judges, tuple(against), tuple(between), among, curves, told)


def _against(part: Ratings, truth: Sequence[bool | None], judge: str, source: str, draws: int, seed: int) -> Against:
    said, p, groups = part.labels(judge), part.p(judge), part.groups
    judged = [label for label, own in zip(truth, said, strict=True) if own is not None and label is not None]
    return Against(
        judge=judge,
        source=source,
        pairs=len(judged),
        abstained=said.count(None),
        true=sum(judged) / len(judged) if judged else None,
        agreement=statistics.agreement_rate(truth, said, groups, draws, seed),
        kappa=statistics.cohen_kappa(truth, said, groups, draws, seed),
        auroc=statistics.auroc(truth, p, groups, draws, seed),
        calibration=statistics.calibration_error(truth, p, groups, draws=draws, seed=seed),
        brier=statistics.brier(truth, p, groups, draws, seed),
        bins=len(statistics.reliability(truth, p)),
    )


def _cells(row: Against) -> list[str]:
    true = "-" if row.true is None else f"{row.true:.2f}"
    shown = [interval(estimate) for estimate in (row.agreement, row.kappa, row.auroc)]
    error = f"{interval(row.calibration)} ({row.bins})"
    brier = interval(msgspec.structs.replace(row.brier, low=None))
    return [row.judge, row.source, str(row.pairs), true, *shown, error, brier, str(row.abstained)]
