"""The judges of two or more audits of the same trajectories, compared pair by pair."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError, DataError
from ...judges import Verdict
from ...tasks import read_rows
from ..stats import DRAWS
from ..writing import results_folder, write_result
from .run import RESULT
from .table import Agreement, Ratings, measured

PathLike = str | os.PathLike[str]
_Key = tuple[str, int, str]


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
    pairs; `settings` says how many pairs that were. Pairs that needed no judge (a search without a thought) are no
    verdicts and left out. Whole rows are resampled.

    Args:
        paths: `scores.jsonl` files.
        out: where `agreement.json` is written; nowhere without it.
        labels: a `scores.jsonl` whose pairs carry a person's labels.
        seed, draws: of the bootstrap.

    Raises:
        DataError: for a file that is not a `scores.jsonl`, and when no pair is in all files.
        ConfigError: with fewer than two files.
    """
    if len(paths) + (labels is not None) < 2:
        raise ConfigError("give two or more scores.jsonl files, or one and a labelled one")
    audits = [_Audit.read(path) for path in paths]
    truth = None if labels is None else _Audit.read(labels)
    every = [*audits, *([truth] if truth else [])]
    places = _shared(every)
    if not places:
        raise DataError(f"no judged pair is in all of: {', '.join(a.path for a in every)}; audit the same file")
    judges = [audit.judge for audit in audits]
    named = all(judges) and len(set(judges)) == len(judges)
    ratings = Ratings(
        [metric for (_, _, metric), _ in places],
        [digest for (digest, _, _), _ in places],
        None if truth is None else [verdict.label for verdict in truth.at(places)],
        {audit.judge if named else audit.path: audit.at(places) for audit in audits},
    )
    left_out = {a.path: sum(map(len, a.pairs.values())) - len(places) for a in every}
    found = measured(ratings, {"files": [a.path for a in every], "left_out": left_out}, draws, seed)
    if out is not None:
        write_result(results_folder(Path(out)) / RESULT, found.to_dict())
    return found


def is_scores(path: PathLike) -> bool:
    """Whether the file's first line is one of an audit's `scores.jsonl`."""
    if Path(path).is_dir():
        return False
    try:
        return any(column in next(read_rows(path), {}) for column in ("scores", "digest"))
    except DataError:
        return False


@dataclass(frozen=True)
class _Audit:
    """The verdicts of a `scores.jsonl` by row digest, how often that digest came before, and metric."""

    path: str
    judge: str
    pairs: Mapping[_Key, Sequence[Verdict]]

    @staticmethod
    def read(path: PathLike) -> _Audit:
        pairs: dict[_Key, Sequence[Verdict]] = {}
        seen: Counter[str] = Counter()
        judges: dict[str, None] = {}
        for number, row in enumerate(read_rows(path), start=1):
            try:
                digest = row["digest"]
                for name, score in row.get("scores", {}).items():
                    part = score.get("parts", {})
                    if name.endswith("_sub_em") or not part.get("pairs"):
                        continue  # no judge is asked for these
                    metric = name.removesuffix("_lexical").removesuffix("_faithfulness")
                    pairs[digest, seen[digest], metric] = [
                        Verdict(pair.get("p"), pair["label"]) for pair in part["pairs"] if not pair.get("settled")
                    ]
                    judges[part["judge"].partition(" ")[0]] = None
            except (KeyError, TypeError, AttributeError) as error:
                raise DataError(f"{path}, row {number}: not a line of an audit's scores.jsonl ({error!r})") from error
            seen[digest] += 1
        return _Audit(str(path), " + ".join(judges), pairs)

    def at(self, places: Sequence[tuple[_Key, int]]) -> list[Verdict]:
        return [self.pairs[key][number] for key, number in places]


def _shared(audits: Sequence[_Audit]) -> list[tuple[_Key, int]]:
    """The pairs of rows and metrics for which all audits have equally many."""
    first, *others = [audit.pairs for audit in audits]
    alike = [key for key, own in first.items() if all(len(other.get(key, ())) == len(own) for other in others)]
    return [(key, number) for key in alike for number in range(len(first[key]))]
