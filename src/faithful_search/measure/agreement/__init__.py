"""Can the judge be trusted? Compares judges with labels, and with each other.

```
labelled pairs ─ run (asks judges) ──────────┐
                                             ├─> RatedPair, … ─> Agreement
scores.jsonl of audits ─ from_scores ────────┘
```

`labelled` reads and splits the labelled pairs; `statistics` has the formulas.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from ...errors import ConfigError, DataError
from ...json_lines import read_lines
from ...judges import WORDS, Judge, Verdict, prompting
from ...reading.files import PathLike
from ..ledger import Records, ask_in_parts
from ..report import aligned, interval
from ..scores import SCORES, read_scores
from ..stats import DRAWS, Estimate
from ..workers import progress_bar
from ..writing import make_folder, write_metrics
from . import statistics
from .labelled import Labelled, load, parse_judge, parse_judges, sample
from .revised import LabelChange, Revision, changes, load as load_revisions
from .statistics import Bin

__all__ = [
    "Agreement",
    "Labelled",
    "from_scores",
    "is_scores",
    "load",
    "load_revisions",
    "parse_judge",
    "parse_judges",
    "run",
    "sample",
    "scores_in",
]

CHUNK = 64
"""The number of pairs that a judge is asked about at once. A run that is killed loses at most so
many verdicts.
"""
VERDICTS, RESULT = "verdicts.jsonl", "agreement.json"
ALL = "all"  # the name of all sources together
_HEADER = [
    "judge",
    "labels",
    "pairs",
    "true",
    "agreement [95% CI]",
    "κ",
    "AUROC",
    "ECE (bins)",
    "Brier",
    "abstained",
]


class RatedPair(NamedTuple):
    """A pair with the verdict of each judge, by the judge's name.

    Pairs of the same `group`, such as those of one question, are resampled together. `truth` is the
    label, `None` where there is none.
    """

    source: str
    group: str
    truth: bool | None
    verdicts: Mapping[str, Verdict]


class Against(msgspec.Struct, frozen=True):
    """One judge against the labels of one source.

    `pairs` is the number of labelled pairs that it judged, and `true` the share of them whose label
    is true. `bins` is the number of bins of the calibration error.
    """

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


class BetweenJudges(msgspec.Struct, frozen=True):
    """Two judges on the pairs of one source that both judged.

    `auroc` is the AUROC of the second judge minus that of the first. It has no value without
    labels.
    """

    first: str
    second: str
    source: str
    agreement: Estimate
    kappa: Estimate
    auroc: Estimate


class Revised(msgspec.Struct, frozen=True):
    """The judges against revised labels.

    Attributes:
        looked_at: number of rows whose label was looked at again.
        rows: number of all rows.
        changes: the rows whose label changed.
        against: each judge against the revised labels, by source.
    """

    looked_at: int
    rows: int
    changes: list[LabelChange]
    against: list[Against]


class Agreement(msgspec.Struct, frozen=True):
    """How far judges agree.

    Attributes:
        judges: their names.
        against: each judge against the labels, by source.
        between: each two judges against each other, by source.
        among: Fleiss' κ of all judges, by source.
        curves: the bins of a calibration plot, by judge.
        settings: the settings of the comparison, and the number of pairs by source.
        unmeasured: why a judge could not be opened, by its specification.
        revised: the same judges against revised labels, if there are any.
    """

    judges: tuple[str, ...]
    against: list[Against]
    between: list[BetweenJudges]
    among: dict[str, Estimate]
    curves: dict[str, list[Bin]]
    settings: dict[str, Any]
    unmeasured: dict[str, str] = {}
    revised: Revised | None = None

    def table(self) -> str:
        """The tables as text: one of judges against labels, then for each source one of judges
        against each other.
        """
        parts = []
        if self.against:
            lines = [_HEADER, *map(_cells, self.against)]
            if self.revised is not None:
                lines += [_cells(row, " (revised)") for row in self.revised.against]
            parts.append(aligned(lines))
        if self.revised is not None:
            parts.append(_changes(self.revised))
        for spec, why in self.unmeasured.items():
            parts.append(f"{spec} was not measured: {why}")
        for source, fleiss in self.among.items():
            last = f"Fleiss' κ of {len(self.judges)} judges: {interval(fleiss)} (n={fleiss.n})"
            parts.append("\n".join([aligned(self._kappas(source)), last, *self._gains(source)]))
        return "\n\n".join(parts)

    def _kappas(self, source: str) -> list[list[str]]:
        """The cells of a triangle with Cohen's κ of each two judges, header first."""
        kappas = {
            (row.first, row.second): row.kappa for row in self.between if row.source == source
        }
        lines = [[f"κ, {source}", *self.judges[1:]]]
        for first in self.judges[:-1]:
            cells = [first]
            for second in self.judges[1:]:
                kappa = kappas.get((first, second))
                cells.append("" if kappa is None else interval(kappa))
            lines.append(cells)
        return lines

    def _gains(self, source: str) -> list[str]:
        """For each judge a line with its AUROC minus that of the first judge."""
        lines = []
        for row in self.between:
            is_with_first = row.source == source and row.first == self.judges[0]
            if is_with_first and row.auroc.value is not None:
                lines.append(
                    f"AUROC of {row.second} less that of {row.first}: {interval(row.auroc)}"
                )
        return lines


def _changes(revised: Revised) -> str:
    """A sentence about the revised labels."""
    changed = len(revised.changes)
    to_true = sum(change.revised for change in revised.changes)
    return (
        f"labels looked at again: {revised.looked_at:,} of {revised.rows:,}; changed: "
        f"{changed:,} ({to_true:,} to true, {changed - to_true:,} to false)"
    )


def _cells(row: Against, suffix: str = "") -> list[str]:
    """One line of the table of judges against labels."""
    without_interval = msgspec.structs.replace(row.brier, low=None)  # the line is long enough
    return [
        row.judge,
        f"{row.source}{suffix}",
        str(row.pairs),
        "-" if row.true is None else f"{row.true:.2f}",
        interval(row.agreement),
        interval(row.kappa),
        interval(row.auroc),
        f"{interval(row.calibration)} ({row.bins})",
        interval(without_interval),
        str(row.abstained),
    ]


def run(
    rows: Sequence[Labelled],
    judges: Mapping[str, Judge],
    out: PathLike,
    *,
    limit: int | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    progress: bool = True,
    revisions: Mapping[str, Revision] = MappingProxyType({}),
    unmeasured: Mapping[str, str] = MappingProxyType({}),
) -> Agreement:
    """Ask every judge about every row, and compare the judges with the labels and each other.

    Verdicts are appended to `OUT/verdicts.jsonl` as they come. A later run into the same directory
    asks only about pairs that are missing there, or that the judge abstained from.
    `OUT/agreement.json` is written at the end.

    Args:
        rows: the labelled pairs.
        judges: by the names that they have in the results.
        out: the directory.
        limit: the largest number of rows of each source; they are drawn by `seed`.
        seed: of the sample and the bootstrap.
        draws: of the bootstrap.
        progress: show a bar.
        revisions: labels that were looked at again, by the ids of rows: the judges are also
            compared with the labels as these change them. See `revised.load`.
        unmeasured: why other judges could not be opened; the result repeats it.

    Raises `JudgeError` when a judge cannot be asked at all (the verdicts until then are kept),
    `DataError` without rows or when `out` cannot be written, `ConfigError` without judges.
    """
    if not judges:
        raise ConfigError("name at least one judge")
    rows = list(rows) if limit is None else sample(rows, limit, seed)
    if not rows:
        raise DataError("no labelled rows to judge")
    file = make_folder(Path(out)) / VERDICTS
    with Records(file, "agreement", VerdictLine, _key_and_verdict) as log:
        verdicts = {
            name: _judge_all(name, judge, rows, log, progress) for name, judge in judges.items()
        }
    rated = []
    for number, row in enumerate(rows):
        verdicts_of_row = {name: column[number] for name, column in verdicts.items()}
        rated.append(RatedPair(row.source, row.group, row.label, verdicts_of_row))
    settings = {
        "judges": {name: judge.name for name, judge in judges.items()},
        "weights": {name: judge.weights.record() for name, judge in judges.items()},
        "limit": limit,
    }
    result = _measured(rated, settings, draws, seed)
    result = msgspec.structs.replace(result, unmeasured=dict(unmeasured))
    if revisions:
        compared = _revised(rows, rated, revisions, {"draws": draws, "seed": seed})
        result = msgspec.structs.replace(result, revised=compared)
    write_metrics(Path(out) / RESULT, msgspec.to_builtins(result))
    return result


def _revised(
    rows: Sequence[Labelled],
    rated: Sequence[RatedPair],
    revisions: Mapping[str, Revision],
    resampling: Mapping[str, int],
) -> Revised:
    """The judges against the labels as the revisions change them."""
    pairs = []
    for row, pair in zip(rows, rated, strict=True):
        revision = revisions.get(row.id)
        pairs.append(pair if revision is None else pair._replace(truth=revision.label))
    against = []
    for source, part in _by_source(pairs).items():
        for judge in pairs[0].verdicts:
            compared, _ = _against(judge, source, part, resampling)
            against.append(compared)
    return Revised(
        looked_at=sum(row.id in revisions for row in rows),
        rows=len(rows),
        changes=changes(rows, revisions),
        against=against,
    )


class VerdictLine(msgspec.Struct, frozen=True):
    """A line of `verdicts.jsonl`. `judge` is the judge's name in the results, `by` what it calls
    itself, and `pair` a digest of what it read.
    """

    judge: str
    by: str
    pair: str
    id: str
    p: float | None
    label: bool | None
    why: str = ""


def _key_and_verdict(line: VerdictLine) -> tuple[tuple[str, str, str], Verdict]:
    verdict = Verdict(line.p, line.label, line.why, line.by)
    return (line.judge, line.by, line.pair), verdict


def _pair_digest(row: Labelled) -> str:
    """A digest of what a judge reads of a row: the texts, and the version of its prompt."""
    texts = [row.premise, row.hypothesis, row.question, prompting.load(row.task).digest]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _judge_all(
    name: str, judge: Judge, rows: Sequence[Labelled], log: Records[VerdictLine], progress: bool
) -> list[Verdict]:
    """The judge's verdict on each row, from the log where it has one."""
    # With the name that the judge calls itself: when it changes, the judge is asked again
    keys = [(name, judge.name, _pair_digest(row)) for row in rows]
    row_by_key = dict(zip(keys, rows, strict=True))
    missing = []
    for key, row in row_by_key.items():
        if key not in log.kept or log.kept[key].abstained:
            missing.append((key, row))
    with progress_bar(
        total=len(row_by_key),
        initial=len(row_by_key) - len(missing),
        desc=name,
        unit="pair",
        disable=None if progress else True,
    ) as bar:
        for answered in ask_in_parts(
            judge, missing, lambda key_and_row: key_and_row[1].pair, CHUNK
        ):
            lines = []
            for (key, row), verdict in answered:
                _, by, digest = key
                line = VerdictLine(
                    judge=name,
                    by=by,
                    pair=digest,
                    id=row.id,
                    p=verdict.p,
                    label=verdict.label,
                    why=verdict.why,
                )
                lines.append(line)
            log.add(lines)
            bar.update(len(answered))
    return [log.kept[key] for key in keys]


def from_scores(
    paths: Sequence[PathLike],
    out: PathLike | None = None,
    labels: PathLike | None = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Agreement:
    """Compare the judges of two or more audits of the same trajectories, pair by pair.

    Pairs are matched by the digest of their row, the metric and their place in the row. Metrics
    that differ only in who judges (`info_think_lexical`, `info_think_faithfulness`) count as one. A
    row is left out of a metric if it is not in all files with the same number of pairs; `settings`
    has the number of pairs that were left out, by file. The bootstrap resamples whole rows.

    Args:
        paths: the `scores.jsonl` of each audit.
        out: a folder for `agreement.json`; by default nothing is written.
        labels: a `scores.jsonl` whose verdicts are labels by a person.
        seed, draws: of the bootstrap.

    Raises `DataError` for a file that is not a `scores.jsonl`, and when no pair is in all files;
    `ConfigError` for fewer than two files, or the same one twice.
    """
    files = [*paths, *([] if labels is None else [labels])]
    if len(files) < 2:
        raise ConfigError(
            "give the scores.jsonl of two or more audits, or of one and a labelled one (--labels)"
        )
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("the same scores.jsonl is given twice")
    names = [str(path) for path in files]
    judge_of_file: list[str] = []
    verdicts_of_file: list[dict[_Place, Verdict]] = []
    for path in files:
        judge, verdicts_by_place = _recorded(path)
        judge_of_file.append(judge)
        verdicts_of_file.append(verdicts_by_place)
    common = list(verdicts_of_file[0])
    for verdicts_by_place in verdicts_of_file[1:]:
        common = [place for place in common if place in verdicts_by_place]
    if not common:
        raise DataError(f"no judged pair is in all of: {', '.join(names)}; audit the same file")
    judges = judge_of_file[: len(paths)]
    # Audits by the same judge, or by a judge without a name, are called by their files
    if not all(judges) or len(set(judges)) < len(judges):
        judges = names[: len(paths)]
    rated = []
    for place in common:
        verdicts = [verdicts_by_place[place] for verdicts_by_place in verdicts_of_file]
        truth = None if labels is None else verdicts.pop().label  # the last file has the labels
        pair = RatedPair(
            source=place.metric,
            group=place.digest,
            truth=truth,
            verdicts=dict(zip(judges, verdicts, strict=True)),
        )
        rated.append(pair)
    left_out = {}
    for name, verdicts_by_place in zip(names, verdicts_of_file, strict=True):
        left_out[name] = len(verdicts_by_place) - len(common)
    result = _measured(rated, {"files": names, "left_out": left_out}, draws, seed)
    if out is not None:
        write_metrics(Path(out) / RESULT, msgspec.to_builtins(result))
    return result


def scores_in(path: Path) -> Path:
    """The `scores.jsonl` of an audit's folder; any other path as it is."""
    scores = path / SCORES
    return scores if scores.is_file() else path


def is_scores(path: PathLike) -> bool:
    """Whether the file's first line is one of an audit's `scores.jsonl`."""
    with suppress(DataError, msgspec.MsgspecError, UnicodeError):
        for _, line in read_lines(path):
            return "digest" in msgspec.json.decode(line, type=dict[str, Any])
    return False


class _Place(NamedTuple):
    """Where a pair stands in an audit: in row number `copy` of those with this digest (a trajectory
    may occur several times), as pair `number` of the `judged` pairs of the metric in this row. Both
    numbers count from 0.
    """

    metric: str
    digest: str
    copy: int
    number: int
    judged: int


def _recorded(path: PathLike) -> tuple[str, dict[_Place, Verdict]]:
    """The names of the judges of an audit, and the verdicts by the places of their pairs."""
    # Until an audit is finished, a later line of a row replaces the earlier ones
    last = {line.row: line for line in read_scores(path)}
    pairs: dict[_Place, Verdict] = {}
    seen: Counter[str] = Counter()
    judges: dict[str, None] = {}
    for line in last.values():
        for name, cell in line.scores.items():
            parts = cell.score.parts
            if name.endswith("_sub_em") or not parts.get("pairs"):
                continue  # no judge is asked: strings are compared
            metric = name
            for ending in (*WORDS, "faithfulness"):
                metric = metric.removesuffix(f"_{ending}")
            # No judge was asked about a settled pair, such as a search without a thought
            judged = [pair for pair in parts["pairs"] if not pair.get("settled")]
            for number, pair in enumerate(judged):
                place = _Place(
                    metric=metric,
                    digest=line.digest,
                    copy=seen[line.digest],
                    number=number,
                    judged=len(judged),
                )
                pairs[place] = Verdict(pair.get("p"), pair.get("label"))
            # The names of the prompts, which differ between metrics, follow the judge's own name
            judges[parts.get("judge", "").partition(" ")[0]] = None
        seen[line.digest] += 1  # a file may hold the same trajectory several times
    return " + ".join(judges), pairs


def _measured(
    pairs: Sequence[RatedPair],
    settings: Mapping[str, Any],
    draws: int,
    seed: int,
) -> Agreement:
    """All statistics for each source and, where there are several, for all pairs together."""
    judges = tuple(pairs[0].verdicts)
    has_labels = any(pair.truth is not None for pair in pairs)
    counts = dict(Counter(pair.source for pair in pairs))
    resampling = {"draws": draws, "seed": seed}
    result = Agreement(
        judges=judges,
        against=[],
        between=[],
        among={},
        curves={},
        settings={**settings, **resampling, "bins": statistics.BINS, "pairs": counts},
    )
    for source, part in _by_source(pairs).items():
        if has_labels:
            for judge in judges:
                row, curve = _against(judge, source, part, resampling)
                result.against.append(row)
                # The curve of the last source stays, which is all of them where there are several
                result.curves[judge] = curve
        for first, second in combinations(judges, 2):
            result.between.append(_between(first, second, source, part, resampling))
        if len(judges) > 1:
            groups = [pair.group for pair in part]
            labels = []
            for judge in judges:
                labels.append([pair.verdicts[judge].label for pair in part])
            result.among[source] = statistics.fleiss_kappa(labels, groups, **resampling)
    return result


def _by_source(pairs: Sequence[RatedPair]) -> dict[str, list[RatedPair]]:
    """The pairs of each source and, where there are several, all together."""
    parts: dict[str, list[RatedPair]] = {}
    for pair in pairs:
        parts.setdefault(pair.source, []).append(pair)
    if len(parts) > 1:
        parts[ALL] = list(pairs)
    return parts


def _between(
    first: str,
    second: str,
    source: str,
    pairs: Sequence[RatedPair],
    resampling: Mapping[str, int],
) -> BetweenJudges:
    """Two judges against each other on these pairs."""
    truth = [pair.truth for pair in pairs]
    groups = [pair.group for pair in pairs]
    first_labels = [pair.verdicts[first].label for pair in pairs]
    second_labels = [pair.verdicts[second].label for pair in pairs]
    first_p = [pair.verdicts[first].p for pair in pairs]
    second_p = [pair.verdicts[second].p for pair in pairs]
    return BetweenJudges(
        first=first,
        second=second,
        source=source,
        agreement=statistics.agreement_rate(first_labels, second_labels, groups, **resampling),
        kappa=statistics.cohen_kappa(first_labels, second_labels, groups, **resampling),
        auroc=statistics.auroc_difference(truth, first_p, second_p, groups, **resampling),
    )


def _against(
    judge: str, source: str, pairs: Sequence[RatedPair], resampling: Mapping[str, int]
) -> tuple[Against, list[Bin]]:
    """One judge against the labels of these pairs, and its calibration curve."""
    truth = [pair.truth for pair in pairs]
    groups = [pair.group for pair in pairs]
    labels = [pair.verdicts[judge].label for pair in pairs]
    probabilities = [pair.verdicts[judge].p for pair in pairs]
    curve = statistics.reliability(truth, probabilities)
    judged: list[bool] = []  # the labels of the pairs that the judge did not abstain from
    for true_label, label in zip(truth, labels, strict=True):
        if true_label is not None and label is not None:
            judged.append(true_label)
    row = Against(
        judge=judge,
        source=source,
        pairs=len(judged),
        abstained=labels.count(None),
        true=sum(judged) / len(judged) if judged else None,
        agreement=statistics.agreement_rate(truth, labels, groups, **resampling),
        kappa=statistics.cohen_kappa(truth, labels, groups, **resampling),
        auroc=statistics.auroc(truth, probabilities, groups, **resampling),
        calibration=statistics.calibration_error(truth, probabilities, groups, **resampling),
        brier=statistics.brier(truth, probabilities, groups, **resampling),
        bins=len(curve),
    )
    return row, curve
