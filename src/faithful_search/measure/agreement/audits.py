"""The judges of two or more audits of the same trajectories, compared pair by pair."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...errors import ConfigError, DataError
from ...judges import Verdict
from ...tasks import read_rows
from ..stats import DRAWS
from ..writing import results_folder, write_result
from .run import RESULT
from .table import Agreement, Rated, measured

PathLike = str | os.PathLike[str]
_Key = tuple[str, int, str]
"""A row's digest, how often that digest came before, and the metric."""


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
    pairs; `settings` says how many pairs that were. Whole rows are resampled.

    Args:
        paths: `scores.jsonl` files.
        out: where `agreement.json` is written; nowhere without it.
        labels: a `scores.jsonl` whose pairs carry a person's labels.

    Raises:
        DataError: for a file that is not a `scores.jsonl`, and when no pair is in all files.
        ConfigError: for fewer than two files, or the same one twice.
    """
    files = [*paths, *([] if labels is None else [labels])]
    if len(files) < 2:
        raise ConfigError("give two or more scores.jsonl files, or one and a labelled one")
    if len({Path(path).resolve() for path in paths}) < len(paths):
        raise ConfigError("the same scores.jsonl is given twice")
    read = [_read(path) for path in files]
    names, found = [f"{path}" for path in files], [pairs for _, pairs in read]
    places = [
        (key, number)
        for key, own in found[0].items()
        if all(len(other.get(key, ())) == len(own) for other in found)
        for number in range(len(own))
    ]
    if not places:
        raise DataError(f"no judged pair is in all of: {', '.join(names)}; audit the same file")
    judges = [judge for judge, _ in read[: len(paths)]]
    # audits by the same judge, or by none that has a name, are told apart by their files
    if not all(judges) or len(set(judges)) < len(judges):
        judges = names[: len(paths)]
    rated = []
    for key, number in places:
        verdicts = [pairs[key][number] for pairs in found]
        truth = None if labels is None else verdicts.pop().label
        digest, _, metric = key
        rated.append(Rated(metric, digest, truth, dict(zip(judges, verdicts, strict=True))))
    left_out = {name: sum(map(len, pairs.values())) - len(places) for name, pairs in zip(names, found, strict=True)}
    result = measured(rated, {"files": names, "left_out": left_out}, draws, seed)
    if out is not None:
        write_result(results_folder(Path(out)) / RESULT, result.to_dict())
    return result


def is_scores(path: PathLike) -> bool:
    """Whether the file's first line is one of an audit's `scores.jsonl`."""
    if Path(path).is_dir():
        return False
    try:
        return any(column in next(read_rows(path), {}) for column in ("scores", "digest"))
    except DataError:
        return False


def _read(path: PathLike) -> tuple[str, dict[_Key, list[Verdict]]]:
    """The judges' names, and their verdicts on the pairs of each row and metric.

    In the file of an audit that is not finished, a later line of a row stands for the earlier ones.
    """
    last = {row.get("row", number): number for number, row in enumerate(read_rows(path), start=1)}
    counted = set(last.values())
    pairs: dict[_Key, list[Verdict]] = {}
    seen: Counter[str] = Counter()
    judges: dict[str, None] = {}
    for number, row in enumerate(read_rows(path), start=1):
        if number not in counted:
            continue
        try:
            digest = row["digest"]
            for name, score in row.get("scores", {}).items():
                part = score.get("parts", {})
                if name.endswith("_sub_em") or not part.get("pairs"):
                    continue  # strings are compared there, no judge is asked
                metric = name.removesuffix("_lexical").removesuffix("_faithfulness")
                # a settled pair needed no judge (a search without a thought), so it says nothing about one
                pairs[digest, seen[digest], metric] = [
                    Verdict(pair.get("p"), pair["label"]) for pair in part["pairs"] if not pair.get("settled")
                ]
                # a prompted judge's name goes on with its prompts, which differ from metric to metric
                judges[part["judge"].partition(" ")[0]] = None
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}, row {number}: not a line of an audit's scores.jsonl ({error!r})") from error
        seen[digest] += 1  # a file may hold the same trajectory several times
    return " + ".join(judges), pairs
