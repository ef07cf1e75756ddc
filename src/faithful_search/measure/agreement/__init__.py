"""Can the judge be trusted? Judges against people's labels, and against each other.

`run` asks judges about the labelled pairs that `labelled` reads and splits, `from_scores` takes what audits recorded;
both give an `Agreement`, whose figures `statistics` computes, source by source.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...errors import ConfigError, DataError
from ...judges import Judge, Verdict, prompting
from ...trajectory import read_lines
from ..files import PathLike
from ..ledger import Records, ask_in_parts
from ..report import aligned, interval
from ..scores import read_scores
from ..stats import DRAWS, Estimate
from ..workers import progress_bar
from ..writing import results_folder, write_metrics
from . import statistics
from .labelled import Labelled, load, parse_judge, parse_judges, sample
from .statistics import Bin

__all__ = [
    "Agreement",
    "Labelled",
    "from_scores",
    "is_scores",
    "load",
    "parse_judge",
    "parse_judges",
    "run",
    "sample",
]

CHUNK = 64  # pairs: what a killed run loses at most
VERDICTS, RESULT = "verdicts.jsonl", "agreement.json"
ALL = "all"
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


class Rated(NamedTuple):
    """A pair: where it is from, what it is resampled with, its label where there is one, all verdicts."""

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
    against: list[Against]
    between: list[Between]
    among: dict[str, Estimate]
    curves: dict[str, list[Bin]]
    settings: dict[str, Any]

    def table(self) -> str:
        """Text to read: judges against labels, then judges against each other."""
        lines = [_HEADER]
        for row in self.against:
            true = "-" if row.true is None else f"{row.true:.2f}"
            shown = [interval(estimate) for estimate in (row.agreement, row.kappa, row.auroc)]
            brier = interval(
                msgspec.structs.replace(row.brier, low=None)
            )  # alone: the line is long enough
            error = f"{interval(row.calibration)} ({row.bins})"
            lines.append(
                [
                    row.judge,
                    row.source,
                    str(row.pairs),
                    true,
                    *shown,
                    error,
                    brier,
                    str(row.abstained),
                ]
            )
        parts = [aligned(lines)] if self.against else []
        for source, fleiss in self.among.items():
            found = {
                (row.first, row.second): row.kappa for row in self.between if row.source == source
            }
            rows = [
                [
                    one,
                    *(
                        interval(found[one, other]) if (one, other) in found else ""
                        for other in self.judges[1:]
                    ),
                ]
                for one in self.judges[:-1]
            ]
            last = f"Fleiss' κ of {len(self.judges)} judges: {interval(fleiss)} (n={fleiss.n})"
            parts.append(f"{aligned([[f'κ, {source}', *self.judges[1:]], *rows])}\n{last}")
        return "\n\n".join(parts)


def run(
    rows: Sequence[Labelled],
    judges: Mapping[str, Judge],
    out: PathLike,
    *,
    limit: int | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    progress: bool = True,
) -> Agreement:
    """Ask every judge, by its name in the results, about every row; compare them with the labels and with each other.

    Verdicts are appended to `OUT/verdicts.jsonl` as they come; a later run into the same directory asks only about what
    is missing there or was abstained from. `OUT/agreement.json` appears when all is done. `limit` is the most rows of
    each source, chosen by `seed`, `draws` are of the bootstrap. Raises `JudgeError` when a judge cannot be asked at
    all, where what was judged before is kept, `DataError` without rows, or when `out` cannot be written.
    """
    if not judges:
        raise ConfigError("name at least one judge")
    rows = list(rows) if limit is None else sample(rows, limit, seed)
    if not rows:
        raise DataError("no labelled rows to judge")
    with Records(
        results_folder(Path(out)) / VERDICTS,
        "agreement",
        _Line,
        lambda line: (
            (line.judge, line.by, line.pair),
            Verdict(line.p, line.label, line.why, line.by),
        ),
    ) as kept:
        found = {
            name: _judge_all(name, judge, rows, kept, progress) for name, judge in judges.items()
        }
    rated = [
        Rated(
            row.source,
            row.group,
            row.label,
            {name: verdicts[at] for name, verdicts in found.items()},
        )
        for at, row in enumerate(rows)
    ]
    settings = {"judges": {name: judge.name for name, judge in judges.items()}, "limit": limit}
    return _measured(rated, settings, draws, seed, out)


class _Line(msgspec.Struct, frozen=True):
    """A line of `verdicts.jsonl`; `by` is what the judge calls itself, `pair` a digest of what it read."""

    judge: str
    by: str
    pair: str
    id: str
    p: float | None
    label: bool | None
    why: str = ""


def _judge_all(
    name: str, judge: Judge, rows: Sequence[Labelled], kept: Records[_Line], progress: bool
) -> list[Verdict]:
    keys = []
    for row in rows:
        # by the judge's own name and the prompt's version, too: what changed is asked about again
        text = json.dumps(
            [row.premise, row.hypothesis, row.question, prompting.load(row.task).digest]
        )
        keys.append((name, judge.name, hashlib.sha256(text.encode()).hexdigest()[:16]))
    different = dict(zip(keys, rows, strict=True))
    # one that abstained is asked about again
    missing = [
        (key, row)
        for key, row in different.items()
        if key not in kept.kept or kept.kept[key].abstained
    ]
    begun, hidden = len(different) - len(missing), None if progress else True
    with progress_bar(
        total=len(different), initial=begun, desc=name, unit="pair", disable=hidden
    ) as bar:
        for answered in ask_in_parts(judge, missing, lambda item: item[1].pair, CHUNK):
            kept.add(
                [_Line(*key, row.id, own.p, own.label, own.why) for (key, row), own in answered]
            )
            bar.update(len(answered))
    return [kept.kept[key] for key in keys]


def from_scores(
    paths: Sequence[PathLike],
    out: PathLike | None = None,
    labels: PathLike | None = None,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Agreement:
    """Compare the judges of two or more audits of the same trajectories, pair by pair.

    Pairs are matched by the digest of their row, the metric (`info_think_lexical` and `info_think_faithfulness` are the
    same pairs) and their place in it. A row is left out of a metric when a file lacks it or holds another number of
    pairs; `settings` says how many pairs that were. Whole rows are resampled. `labels` is a `scores.jsonl` whose pairs
    carry a person's labels; `agreement.json` is written into `out`, where that is given.

    Raises `DataError` for a file that is not a `scores.jsonl`, and when no pair is in all, `ConfigError` for fewer than
    two files, or the same one twice.
    """
    files = [*paths, *([] if labels is None else [labels])]
    if len(files) < 2:
        raise ConfigError("give two or more scores.jsonl files, or one and a labelled one")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("the same scores.jsonl is given twice")
    names, read = [f"{path}" for path in files], [_recorded(path) for path in files]
    common = [key for key in read[0][1] if all(key in pairs for _, pairs in read)]
    if not common:
        raise DataError(f"no judged pair is in all of: {', '.join(names)}; audit the same file")
    judges = [judge for judge, _ in read[: len(paths)]]
    # audits by the same judge, or by none that has a name, are told apart by their files
    if not all(judges) or len(set(judges)) < len(judges):
        judges = names[: len(paths)]
    rated = []
    for key in common:
        verdicts = [pairs[key] for _, pairs in read]
        truth = None if labels is None else verdicts.pop().label
        metric, digest, *_ = key
        rated.append(Rated(metric, digest, truth, dict(zip(judges, verdicts, strict=True))))
    left_out = {
        name: len(pairs) - len(common) for name, (_, pairs) in zip(names, read, strict=True)
    }
    return _measured(rated, {"files": names, "left_out": left_out}, draws, seed, out)


def is_scores(path: PathLike) -> bool:
    """Whether the file's first line is one of an audit's `scores.jsonl`."""
    with suppress(DataError, msgspec.MsgspecError, UnicodeError):
        for _, line in read_lines(path):
            return "digest" in msgspec.json.decode(line, type=dict[str, Any])
    return False


# Where a pair stands: metric, digest, in the nth row of this digest, as this one of so many asked about there
_Place = tuple[str, str, int, int, int]


def _recorded(path: PathLike) -> tuple[str, dict[_Place, Verdict]]:
    """The judges' names, and the verdicts by where their pairs stand."""
    # while an audit is not finished a later line of a row stands for the earlier ones
    last = {line.row: line for line in read_scores(path)}
    pairs: dict[_Place, Verdict] = {}
    seen: Counter[str] = Counter()
    judges: dict[str, None] = {}
    for line in last.values():
        for name, cell in line.scores.items():
            parts = cell.whole.parts
            if name.endswith("_sub_em") or not parts.get("pairs"):
                continue  # strings are compared there, no judge is asked
            metric = name.removesuffix("_lexical").removesuffix("_faithfulness")
            # a settled pair needed no judge (a search without a thought), so it says nothing about one
            judged = [pair for pair in parts["pairs"] if not pair.get("settled")]
            for number, pair in enumerate(judged):
                place = (metric, line.digest, seen[line.digest], number, len(judged))
                pairs[place] = Verdict(pair.get("p"), pair.get("label"))
            # a prompted judge's name goes on with its prompts, which differ from metric to metric
            judges[parts.get("judge", "").partition(" ")[0]] = None
        seen[line.digest] += 1  # a file may hold the same trajectory several times
    return " + ".join(judges), pairs


def _measured(
    pairs: Sequence[Rated], settings: Mapping[str, Any], draws: int, seed: int, out: PathLike | None
) -> Agreement:
    """Every statistic, for each source and, where there are several, for all pairs together."""
    judges = tuple(pairs[0].verdicts)
    labelled = any(pair.truth is not None for pair in pairs)
    sources = dict(Counter(pair.source for pair in pairs))
    how = {"draws": draws, "seed": seed}
    result = Agreement(
        judges, [], [], {}, {}, {**settings, **how, "bins": statistics.BINS, "pairs": sources}
    )
    for source in [*sources, *([ALL] if len(sources) > 1 else [])]:
        part = [pair for pair in pairs if source in (ALL, pair.source)]
        truth, groups = [pair.truth for pair in part], [pair.group for pair in part]
        said = {judge: [pair.verdicts[judge].label for pair in part] for judge in judges}
        for judge in judges if labelled else ():
            own, p = said[judge], [pair.verdicts[judge].p for pair in part]
            judged = [
                label for label, given in zip(truth, own, strict=True) if None not in (label, given)
            ]
            # the last source is all of them, whose curves are drawn
            result.curves[judge] = statistics.reliability(truth, p)
            row = Against(
                judge=judge,
                source=source,
                pairs=len(judged),
                abstained=own.count(None),
                true=sum(map(bool, judged)) / len(judged) if judged else None,
                agreement=statistics.agreement_rate(truth, own, groups, **how),
                kappa=statistics.cohen_kappa(truth, own, groups, **how),
                auroc=statistics.auroc(truth, p, groups, **how),
                calibration=statistics.calibration_error(truth, p, groups, **how),
                brier=statistics.brier(truth, p, groups, **how),
                bins=len(result.curves[judge]),
            )
            result.against.append(row)
        for one, other in combinations(judges, 2):
            alike = statistics.agreement_rate(said[one], said[other], groups, **how)
            kappa = statistics.cohen_kappa(said[one], said[other], groups, **how)
            result.between.append(Between(one, other, source, alike, kappa))
        if len(judges) > 1:
            result.among[source] = statistics.fleiss_kappa([*said.values()], groups, **how)
    if out is not None:
        write_metrics(Path(out) / RESULT, msgspec.to_builtins(result))
    return result
