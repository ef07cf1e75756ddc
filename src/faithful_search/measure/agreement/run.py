"""Judges asked about labelled pairs: can the judge be trusted?"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import ConfigError, DataError
from ...judges import Judge, Verdict, prompting
from ..ledger import Ledger, ask_in_parts
from ..stats import DRAWS
from ..writing import results_folder, write_result
from .labelled import Labelled, sample
from .table import Agreement, Rated, measured

CHUNK = 64  # pairs: what a killed run loses at most
VERDICTS, RESULT = "verdicts.jsonl", "agreement.json"


def run(
    rows: Sequence[Labelled],
    judges: Mapping[str, Judge],
    out: str | os.PathLike[str],
    *,
    limit: int | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    chunk: int = CHUNK,
    progress: bool = True,
) -> Agreement:
    """Ask every judge about every row and compare the verdicts with the labels and with each other.

    Verdicts are appended to `OUT/verdicts.jsonl` as they come; a later run into the same directory asks only about what
    is missing there or was abstained from. `OUT/agreement.json` appears when all is done.

    Args:
        rows: of `labelled.load`.
        judges: by their names in the results, see `parse_judge`.
        out: a directory.
        limit: the most rows of each source, chosen by `seed`.
        seed, draws: of the sample and the bootstrap.
        chunk: pairs handed to a judge at once, and written at once.
        progress: show a bar (on a terminal).

    Raises:
        JudgeError: when a judge cannot be asked at all; what was judged before is kept.
        DataError: without rows, or when `out` cannot be written.
    """
    if not judges:
        raise ConfigError("name at least one judge")
    rows = list(rows) if limit is None else sample(rows, limit, seed)
    if not rows:
        raise DataError("no labelled rows to judge")
    with _Verdicts(results_folder(Path(out)) / VERDICTS) as kept:
        found = {name: _judge_all(name, judge, rows, kept, chunk, progress) for name, judge in judges.items()}
    said = [dict(zip(found, verdicts, strict=True)) for verdicts in zip(*found.values(), strict=True)]
    rated = [Rated(row.source, row.group, row.label, own) for row, own in zip(rows, said, strict=True)]
    settings = {"judges": {name: judge.name for name, judge in judges.items()}, "limit": limit}
    result = measured(rated, settings, draws, seed)
    write_result(Path(out) / RESULT, result.to_dict())
    return result


class _Line(msgspec.Struct, frozen=True):
    """A line of `verdicts.jsonl`; `by` is what the judge calls itself, `pair` a digest of what it read."""

    judge: str
    by: str
    pair: str
    id: str
    p: float | None
    label: bool | None
    why: str = ""


class _Verdicts(Ledger):
    """The open `verdicts.jsonl`: what judges said, by judge and pair.

    One file may hold the verdicts of many judges: a judge of another name or prompt has other keys.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "agreement")
        self.known: dict[tuple[str, str, str], Verdict] = {}
        for _, data in self.read():
            with suppress(msgspec.MsgspecError, UnicodeError):  # a damaged line's pair is asked about again
                self._note(msgspec.json.decode(data, type=_Line))

    def add(self, lines: Sequence[_Line]) -> None:
        """Append verdicts; errors as those of `Ledger.append`."""
        self.append([msgspec.json.encode(line) + b"\n" for line in lines])
        for line in lines:
            self._note(line)

    def _note(self, line: _Line) -> None:
        if line.label is not None:  # abstentions are asked about again by the next run
            self.known[line.judge, line.by, line.pair] = Verdict(line.p, line.label, line.why, line.by)


def _judge_all(
    name: str, judge: Judge, rows: Sequence[Labelled], kept: _Verdicts, chunk: int, progress: bool
) -> list[Verdict]:
    """The judge's verdict on each row, those that are known and those that it is asked for."""
    from tqdm.auto import tqdm

    # by the judge's own name too: the same NAME may stand for another model or prompt in a later run
    keys = [(name, judge.name, _digest(row)) for row in rows]
    missing = [(key, row) for key, row in dict(zip(keys, rows, strict=True)).items() if key not in kept.known]
    abstained: dict[tuple[str, str, str], Verdict] = {}
    with tqdm(total=len(set(keys)), desc=name, unit="pair", disable=None if progress else True) as bar:
        bar.update(len(set(keys)) - len(missing))
        for answered in ask_in_parts(judge, missing, lambda item: item[1].pair, chunk):
            kept.add([_Line(*key, row.id, own.p, own.label, own.why) for (key, row), own in answered])
            abstained |= {key: own for (key, _), own in answered if own.label is None}
            bar.update(len(answered))
    return [kept.known.get(key) or abstained[key] for key in keys]


def _digest(row: Labelled) -> str:
    """Of what a judge reads, the prompt's version included: what changed is asked about again."""
    text = json.dumps([row.premise, row.hypothesis, row.question, prompting.load(row.task).digest])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
