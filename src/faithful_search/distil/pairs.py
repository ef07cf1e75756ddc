"""Labelled pairs made ready for a judge's training: which side each is on, balanced, and as
tokens.
"""

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from ..judges.generator import GeneratorJudge
from ..judges.nli import NLIJudge
from ..judges.windowed import Input
from ..measure.agreement.labelled import SPLITS, Labelled, load, sample
from ..reading.files import local_file
from ..text import content_words
from .world_pairs import world_pairs

IGNORED = -100


class Parts(NamedTuple):
    """Pairs to train on, pairs for early stopping and calibration, and pairs for one measurement at
    the end. No group (question, or premise without one) is in two of them.
    """

    train: tuple[Labelled, ...]
    validation: tuple[Labelled, ...]
    heldout: tuple[Labelled, ...]


def load_pairs(sources: Sequence[str], limit: int | None = None, seed: int = 0) -> list[Labelled]:
    """The labelled pairs of `world` (made from the bundled world), files, directories and Hub
    datasets, in order. `limit` is the most of each source and split, chosen by `seed`, which is
    also that of the world's pairs.
    """
    rows: list[Labelled] = []
    for source in sources:
        if source == "world":
            rows += world_pairs(seed=seed)
        elif Path(source).exists():
            rows += load(source)
        else:
            rows += load(local_file(f"hf://datasets/{source}"))
    if limit is None:
        return rows
    limited: list[Labelled] = []
    for split in SPLITS:
        limited += sample([row for row in rows if row.split == split], limit, seed)
    return limited


def divided(rows: Sequence[Labelled], validation: float = 0.1) -> Parts:
    """The rows by their fixed split; of the groups to train on, the share `validation` is set aside
    by their hash. Rows whose split is `overlap` are in no part. An empty part, or one label alone
    to train on, is a `DataError`.
    """
    training = [row for row in rows if row.split == "train"]
    groups = {row.group for row in training}
    aside = {group for group in groups if _place(group) < validation}
    parts = Parts(
        train=tuple(row for row in training if row.group not in aside),
        validation=tuple(row for row in training if row.group in aside),
        heldout=tuple(row for row in rows if row.split == "heldout"),
    )
    empty = [name for name, part in parts._asdict().items() if not part]
    if empty:
        raise DataError(
            f"of {len(rows)} labelled pairs none is left for: {', '.join(empty)}; give more pairs"
        )
    if len({row.label for row in parts.train}) < 2:
        raise DataError(
            f"all {len(parts.train)} pairs to train on have the label {parts.train[0].label}"
        )
    return parts


def _place(group: str) -> float:
    """A group's place in [0, 1): by hash and not by position, so that adding pairs moves no group
    from one part to another.
    """
    digest = hashlib.sha256(f"validation {group}".encode()).hexdigest()
    return int(digest[:8], 16) / 2**32


def class_weights(rows: Sequence[Labelled]) -> tuple[float, float]:
    """The weights of false and true under which both labels weigh the same; over the rows they are
    1 on average.
    """
    true = sum(row.label for row in rows)
    false = len(rows) - true
    return len(rows) / (2 * false), len(rows) / (2 * true)


def resampled(rows: Sequence[Labelled], seed: int = 0) -> list[Labelled]:
    """Every row, with rows of the rarer label repeated until both labels are equally frequent."""
    true = [row for row in rows if row.label]
    false = [row for row in rows if not row.label]
    rare = min(true, false, key=len)
    missing = abs(len(true) - len(false))
    times, remainder = divmod(missing, len(rare))
    rng = random.Random(f"{seed} balance")
    repeated = rare * times + rng.sample(rare, remainder)
    return [*rows, *repeated]


def classifier_rows(
    judge: NLIJudge, rows: Sequence[Labelled], entails: int
) -> list[dict[str, Any]]:
    """The tokens that the classifier reads of each row, and its label's number (`entails`: that of
    a true label).

    Of a premise with several windows, the one that shares the most words with the hypothesis is
    trained on: the judge takes the largest p of all windows, so this one should carry a true label,
    and is the likeliest to wrongly carry a false one. Rows with an empty hypothesis are left out.
    """
    nearest: list[Input] = []
    labels: list[int] = []
    for row, inputs in zip(rows, judge.inputs([row.pair for row in rows]), strict=True):
        if not inputs:
            continue
        nearest.append(_nearest(inputs))
        labels.append(entails if row.label else 1 - entails)
    result = []
    for tokens, label in zip(judge.encode(nearest), labels, strict=True):
        result.append({**tokens, "labels": label, "length": len(tokens["input_ids"])})
    return result


def _nearest(windows: Sequence[Input]) -> Input:
    """Of the windows of one pair, the first whose premise shares most words with the hypothesis."""
    hypothesis_words = set(content_words(windows[0].hypothesis))

    def shared_words(window: Input) -> int:
        return len(hypothesis_words.intersection(content_words(window.premise)))

    return max(windows, key=shared_words)


def generator_rows(judge: GeneratorJudge, rows: Sequence[Labelled]) -> list[dict[str, Any]]:
    """The judge's prompt for each row and the label's token, which alone is trained on; long
    prompts are left out.
    """
    result = []
    for row in rows:
        question = judge.asked(row.pair)
        if not question.ids:
            continue
        true_label, false_label = question.choices
        ids = question.ids + (true_label if row.label else false_label)
        labels = [IGNORED] * len(question.ids) + ids[-1:]
        result.append({"input_ids": ids, "labels": labels, "length": len(ids)})
    return result
