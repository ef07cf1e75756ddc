"""Make the pairs that a small judge is trained on, from questions and passages of HotpotQA,
2WikiMultihopQA and MuSiQue: statements, answers and thoughts, right and with one error of a known
kind (`faithful_search.distil.passage_pairs` and `thought_pairs` have the kinds).

```
python scripts/judge_data.py QA --labels FAITHFULNESS --avoid ROLLOUTS --out outputs/judge_data
```

- QA has a folder for each set, with `train.jsonl.gz` and `corpus.jsonl.gz`.
- `--labels` is a folder of labelled files, as `faithful-search agreement` reads it. Of its training
  split, `--labelled` adds so many rows of each source, repeated where there are fewer. Questions of
  its other rows are not used, nor passages that share a sentence with them.
- `--avoid` are files of rows whose questions are not used either, such as the rollouts that judges
  are measured on.
- `--pool` is a file of real thoughts with the gold `answers`, labelled or not, as
  `scripts/thought_pairs.py --answers` writes it. `--thoughts` are files with the labels of some of
  them (`wrong` has the words that are wrong), which are taken `--thought_times`. Pairs are made of
  both as in `faithful_search.distil.real_thoughts`; `--avoid` does not concern them.

Writes `pairs.jsonl.gz`, and README.md with counts and the digests of what was read and written.
"""

import argparse
import gzip
import hashlib
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from faithful_search.columns import first
from faithful_search.distil.edits import Span
from faithful_search.distil.passage_pairs import (
    CorpusPassage,
    PairRow,
    answer_pairs,
    statement_pairs,
)
from faithful_search.distil.real_thoughts import (
    RealThought,
    answered_pairs,
    edited_thoughts,
    places_of,
    presumed_label,
)
from faithful_search.distil.thought_pairs import hops_of, thought_pairs
from faithful_search.errors import DataError
from faithful_search.json_lines import read_rows
from faithful_search.measure.agreement.labelled import Labelled, label_of, load, rank
from faithful_search.text import normalize, sentences

SETS = ("hotpotqa", "2wikimultihopqa", "musique")
LICENSES = "HotpotQA CC BY-SA 4.0, 2WikiMultihopQA Apache-2.0, MuSiQue CC BY 4.0"
_LEAST_SHARED = 40
"""Passages that share a sentence of at least so many letters count as the same text."""


class Avoided:
    """Questions and sentences that must not be trained on."""

    def __init__(self) -> None:
        self.questions: set[str] = set()
        self.sentences: set[str] = set()

    def add_labels(self, labelled: Iterable[Labelled]) -> None:
        """Avoid the questions and passages of all rows outside of the training split."""
        for row in labelled:
            if row.split == "train":
                continue
            self.questions.add(normalize(row.question))
            self.sentences.update(_long_sentences(row.premise))

    def add_rows(self, path: Path) -> None:
        """Avoid the questions of a file of rows, or of all files in a folder. Raises `DataError` if
        there is none: nothing would be avoided.
        """
        files = [path]
        if path.is_dir():
            files = sorted([*path.rglob("*.jsonl"), *path.rglob("*.jsonl.gz")])
        questions: set[str] = set()
        for file in files:
            for row in read_rows(file):
                question = first(row, ("question", "query", "prompt"))
                if question is not None and isinstance(question.value, str):
                    questions.add(normalize(question.value))
        questions.discard("")
        if not questions:
            raise DataError(
                f"{path} has no question to avoid: give .jsonl or .jsonl.gz with a text in "
                "`question`, `query` or `prompt`"
            )
        self.questions |= questions

    def has_question(self, question: str) -> bool:
        """Whether the question must not be used."""
        return normalize(question) in self.questions

    def has_passage(self, text: str) -> bool:
        """Whether the passage must not be used, since it shares a sentence."""
        return not self.sentences.isdisjoint(_long_sentences(text))


def main(argv: Sequence[str] | None = None) -> None:
    options = _options(argv)
    avoided = Avoided()
    labelled = load(options.labels)
    avoided.add_labels(labelled)
    for path in options.avoid:
        avoided.add_rows(path)
    rows: list[dict[str, Any]] = []
    read: list[Path] = []
    left_out: Counter[str] = Counter()
    for name in SETS:
        questions = options.qa / name / "train.jsonl.gz"
        corpus = options.qa / name / "corpus.jsonl.gz"
        read += [questions, corpus]
        rows += _of_set(name, questions, corpus, avoided, left_out, options)
    rows = _sample(rows, options.made, options.seed)
    for source, count in options.labelled:
        rows += _repeated(_to_train_on(labelled, source), count, options.seed)
    if options.pool:
        read += [*options.thoughts, options.pool]
        rows += _of_thoughts(options.thoughts, options.pool, options.thought_times, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    pairs = options.out / "pairs.jsonl.gz"
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    pairs.write_bytes(gzip.compress(lines, mtime=0))
    card = _card(rows, read, pairs, left_out, list(sys.argv[1:] if argv is None else argv))
    (options.out / "README.md").write_text(card, encoding="utf-8")
    print(f"{len(rows):,} pairs in {pairs}")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("qa", type=Path, help="folder of the sets of questions")
    parser.add_argument("--labels", type=Path, required=True, help="folder of labelled files")
    parser.add_argument(
        "--avoid", type=Path, nargs="*", default=[], help="rows whose questions are left out"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--passages", type=int, default=2000, help="passages of each set to make statements of"
    )
    parser.add_argument(
        "--made", type=int, default=5600, help="maximum number of pairs made by rules"
    )
    parser.add_argument(
        "--labelled",
        nargs="*",
        type=_source_and_count,
        default=[("begin", 3200), ("halueval", 1300)],
        metavar="SOURCE=COUNT",
        help="labelled rows to add",
    )
    parser.add_argument("--thoughts", type=Path, nargs="*", default=[], help="labelled thoughts")
    parser.add_argument(
        "--thought_times", type=int, default=3, help="number of copies of each labelled thought"
    )
    parser.add_argument("--pool", type=Path, help="thoughts with the gold answers")
    parser.add_argument("--seed", type=int, default=0, help="seed of all choices")
    options = parser.parse_args(argv)
    if options.thoughts and not options.pool:
        parser.error("--thoughts needs the --pool that they were drawn from, with their answers")
    return options


def _source_and_count(spec: str) -> tuple[str, int]:
    source, _, count = spec.partition("=")
    if not source or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{spec!r} is not SOURCE=COUNT, such as begin=3200")
    return source, int(count)


def _to_train_on(labelled: Sequence[Labelled], source: str) -> list[Labelled]:
    """The rows of a source in the training split. Raises `DataError` if there is none."""
    training_rows = [row for row in labelled if row.split == "train"]
    rows_of_source = [row for row in training_rows if row.source == source]
    if not rows_of_source:
        sources = ", ".join(sorted({row.source for row in training_rows})) or "none"
        raise DataError(f"no row of {source!r} is to train on; there are sources: {sources}")
    return rows_of_source


def _of_set(
    name: str,
    questions: Path,
    corpus_file: Path,
    avoided: Avoided,
    left_out: Counter[str],
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """The pairs of one set of questions and its corpus: statements of passages, and for each
    question answers and thoughts. `left_out` counts what is avoided.
    """
    corpus: list[CorpusPassage] = []
    for row in read_rows(corpus_file):
        if avoided.has_passage(row["text"]):
            left_out["passages"] += 1
            continue
        corpus.append(CorpusPassage(row["title"], row["text"], len(corpus)))
    by_title = {normalize(passage.title): passage for passage in corpus}
    rng = random.Random(f"{options.seed} {name}")
    result: list[dict[str, Any]] = []
    for passage in rng.sample(corpus, min(options.passages, len(corpus))):
        pairs = statement_pairs(passage, corpus, rng)
        result += _rows(pairs, name, f"passage-{passage.place}")
    for question in read_rows(questions):
        if avoided.has_question(question["question"]):
            left_out["questions"] += 1
            continue
        gold = [by_title.get(normalize(title)) for title in question["supporting_titles"]]
        present = [passage for passage in gold if passage is not None]
        if len(present) == len(gold):
            pairs = answer_pairs(question, present, corpus, rng)
            result += _rows(pairs, name, f"{question['id']}-answer")
        if hops_of(question):
            pairs = thought_pairs(question, by_title, corpus, rng)
            result += _rows(pairs, name, f"{question['id']}-thought")
    return result


def _of_thoughts(
    labelled: Sequence[Path], pool: Path, times: int, seed: int
) -> list[dict[str, Any]]:
    """The pairs of real thoughts: as they are, with the label that was given or is presumed;
    edited, with an error; and of their answers.
    """
    labels = _by_id(labelled, ("label", "wrong"))
    thoughts = _by_id([pool], ("premise", "hypothesis", "question", "answers", "source"))
    missing = labels.keys() - thoughts.keys()
    if missing:
        print(f"{len(missing)} labelled thoughts are not in {pool}, and were left out")
    passages_of: dict[str, set[str]] = defaultdict(set)  # by question
    for row in thoughts.values():
        passages_of[row["question"]].update(row["premise"].split("\n\n"))
    rng = random.Random(f"{seed} thoughts")
    result: list[dict[str, Any]] = []
    for thought_id, row in thoughts.items():
        thought = RealThought(row["premise"], row["hypothesis"], row["question"], row["answers"])
        pairs: list[PairRow] = []
        if thought_id in labels:
            is_right = label_of(labels[thought_id]["label"])
            wrong = labels[thought_id]["wrong"]
            spans = places_of(thought.hypothesis, wrong)
            if len(spans) < len(wrong):
                raise DataError(
                    f"thought {thought_id!r}: not all words in `wrong` stand in it: {wrong}"
                )
            pairs += [_unedited(thought, is_right, "labelled", spans)] * times
        else:
            presumed = presumed_label(thought)
            is_right = presumed is True
            if presumed is not None:
                # Which words of a wrong thought are wrong is not known
                pairs.append(_unedited(thought, is_right, "presumed", () if is_right else None))
        if is_right:
            pairs += edited_thoughts(thought, rng)
        pairs += answered_pairs(thought, sorted(passages_of[row["question"]]), rng)
        result += _rows(pairs, row["source"], thought_id)
    return result


def _by_id(files: Sequence[Path], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The rows of files of thoughts, by id. Raises `DataError` for an id that occurs twice, and for
    a row without one of these columns.
    """
    by_id: dict[str, dict[str, Any]] = {}
    for file in files:
        for number, row in enumerate(read_rows(file), start=1):
            missing = [column for column in ("id", *columns) if column not in row]
            if missing:
                raise DataError(f"{file}, thought {number}: it has no {' and no '.join(missing)}")
            if row["id"] in by_id:
                raise DataError(
                    f"{file}: a thought {row['id']!r} was read before; keep one of them"
                )
            by_id[row["id"]] = row
    return by_id


def _unedited(
    thought: RealThought, label: bool, kind: str, spans: tuple[Span, ...] | None
) -> PairRow:
    """The pair of a thought as it is; `spans` are its wrong words."""
    premise, hypothesis, question, _ = thought
    return PairRow(premise, hypothesis, label, kind, spans, question, "info_think")


def _rows(pairs: Iterable[PairRow], source: str, name: str) -> list[dict[str, Any]]:
    """The rows of pairs; their ids are `name` and a number."""
    return [
        {"id": f"{name}-{number}", "source": source, **pair._asdict()}
        for number, pair in enumerate(pairs)
    ]


def _sample(rows: list[dict[str, Any]], most: int, seed: int) -> list[dict[str, Any]]:
    """At most so many rows, in their order."""
    order = sorted(rows, key=lambda row: rank(seed, f"{row['source']} {row['id']}"))
    chosen = {id(row) for row in order[:most]}
    return [row for row in rows if id(row) in chosen]


def _repeated(rows: Sequence[Labelled], count: int, seed: int) -> list[dict[str, Any]]:
    """The columns of `count` rows, drawn by `seed`. Where there are fewer rows, all are repeated as
    often, some once more.
    """
    order = sorted(rows, key=lambda row: rank(seed, row.id))
    result = []
    for number in range(count if order else 0):
        row = order[number % len(order)]
        columns = {
            "id": f"{row.id}-{number // len(order)}",
            "source": row.source,
            "premise": row.premise,
            "hypothesis": row.hypothesis,
            "question": row.question,
            "label": row.label,
            "kind": "labelled",
            "task": row.task,
        }
        result.append(columns)
    return result


def _long_sentences(text: str) -> set[str]:
    """The normalized sentences of at least `_LEAST_SHARED` letters."""
    normalised = {normalize(sentence) for sentence in sentences(text)}
    return {sentence for sentence in normalised if len(sentence) >= _LEAST_SHARED}


def _card(
    rows: Sequence[dict[str, Any]],
    read: Sequence[Path],
    pairs: Path,
    left_out: Counter[str],
    argv: Sequence[str],
) -> str:
    counts = Counter((row["kind"], row["label"], row["task"]) for row in rows)
    table = [
        f"| `{kind}` | {str(label).lower()} | {task} | {count:,} |"
        for (kind, label, task), count in sorted(counts.items())
    ]
    digests = []
    for path in [*read, pairs]:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        digests.append(f"- `{path.parent.name}/{path.name}`: sha256 {digest}")
    parts = [
        "# Pairs for a small judge",
        f"{len(rows):,} pairs of evidence and a statement, an answer or a thought, made by rules "
        f"from real questions and passages ({LICENSES}). Labels and places of errors are known by "
        "construction; rules err, and a sentence that says the same elsewhere is not noticed.",
        "| kind | label | task | pairs |\n|---|---|---|---|\n" + "\n".join(table),
        f"Left out because judges are measured on them: {left_out['questions']:,} questions and "
        f"{left_out['passages']:,} passages.",
        "Read and written:\n\n" + "\n".join(digests),
        f"```bash\npython scripts/judge_data.py {' '.join(argv)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
