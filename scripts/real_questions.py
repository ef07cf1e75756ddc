"""Real questions that can be guessed, prepared for training: passages cut short, validation
questions set aside, and how each question could be answered without reading.
"""

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from faithful_search.errors import DataError
from faithful_search.json_lines import read_rows
from faithful_search.suites.drawing import drawn
from faithful_search.tasks import Task
from faithful_search.text import normalize, sentences
from faithful_search.wire.files import replacing

TRAINED = "2wikimultihopqa"
"""The set that policies are trained on."""
SETS = {TRAINED: "2wiki", "hotpotqa": "hotpotqa", "musique": "musique"}
"""The folders of the question sets, with the kind of their annotations (`sft.py --source_kind`)."""
VALIDATION = 100
"""Training questions of each set that are set aside, drawn with seed 0: every choice is made on
them.
"""
MOST_WORDS = 80
"""Words of a passage that are kept, whole sentences at a time."""
YES_NO, CHOICE, OPEN = KINDS = ("yes_no", "choice", "open")
GUESSABLE = (YES_NO, CHOICE)
"""The kinds of questions that a guess answers rightly about every other time."""


def kind_of(task: Task) -> str:
    """How the question could be guessed: `yes_no` where a gold answer is yes or no, `choice` where
    the question names a gold answer in whole words, else `open`.

    The sets' own types are not read, since MuSiQue has none. On 2WikiMultihopQA the first two are
    its comparisons (`comparison`, `bridge_comparison`), the third everything else.

    Example:
        >>> kind_of(Task("q1", "Who is older, Ada or Bob?", ("Bob",)))
        'choice'
        >>> kind_of(Task("q2", "Are Ada and Bob from one country?", ("no",)))
        'yes_no'
        >>> kind_of(Task("q3", "Where was the mother of Bob born?", ("Lima",)))
        'open'
    """
    answers = {normalize(answer, "pokee") for answer in task.answers}
    if answers & {"yes", "no"}:
        return YES_NO
    question = f" {normalize(task.question, 'pokee')} "
    is_named = any(answer and f" {answer} " in question for answer in answers)
    return CHOICE if is_named else OPEN


def shortened(text: str, most_words: int = MOST_WORDS) -> str:
    """The first sentences of a passage, as long as they have no more words together; the first one
    always.

    Example:
        >>> shortened("Ada was born in Lima. She wrote two books. She died in Cusco.", 9)
        'Ada was born in Lima. She wrote two books.'
    """
    kept: list[str] = []
    words = 0
    for sentence in sentences(text):
        words += len(sentence.split())
        if kept and words > most_words:
            break
        kept.append(sentence)
    return " ".join(kept)


def sets_in(data: Path) -> list[str]:
    """The question sets that a folder holds. Raises `DataError` without the trained one."""
    there = [name for name in SETS if (data / name / "corpus.jsonl.gz").exists()]
    if TRAINED not in there:
        raise DataError(
            f"--data {data} has no {TRAINED}/corpus.jsonl.gz; it has to hold folders "
            f"{', '.join(SETS)} with train.jsonl.gz, test.jsonl.gz and corpus.jsonl.gz each"
        )
    return there


def prepare(data: Path, out: Path) -> list[str]:
    """Write the files of each set that `data` has to `out`, those that are there already left as
    they are, and return the names of the sets. Test questions are not opened.
    """
    out.mkdir(parents=True, exist_ok=True)
    names = sets_in(data)
    for name in names:
        corpus = corpus_of(out, name)
        if not corpus.exists():
            _write(corpus, _short_passages(data / name / "corpus.jsonl.gz"))
        train, validation = (questions_of(out, name, split) for split in ("train", "validation"))
        if train.exists() and validation.exists():
            continue
        rows = list(read_rows(data / name / "train.jsonl.gz"))
        set_aside = drawn(range(len(rows)), VALIDATION, seed=0)
        places = set(set_aside)
        _write(validation, (rows[place] for place in set_aside))
        _write(train, (row for place, row in enumerate(rows) if place not in places))
    return names


def corpus_of(folder: Path, name: str) -> Path:
    """The file of a set's passages in the folder that `prepare` wrote."""
    return folder / f"{name}_corpus.jsonl.gz"


def questions_of(folder: Path, name: str, split: str) -> Path:
    """The file of a set's training or validation questions, likewise."""
    return folder / f"{name}_{split}.jsonl.gz"


def _short_passages(corpus: Path) -> Iterable[Mapping[str, Any]]:
    for row in read_rows(corpus):
        yield {**row, "text": shortened(row["text"])}


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as partial, gzip.open(partial, "wt", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
