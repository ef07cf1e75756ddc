"""Draw the pairs of `datasets/thoughts` from recorded rollouts, to be read and labelled.

    python scripts/thought_pairs.py DATA --out outputs/thought_pairs.jsonl
    python scripts/thought_pairs.py DATA --out outputs/train_pairs.jsonl --info_think 640 \\
        --think_search 0 --avoid datasets/thoughts/info_think.jsonl datasets/thoughts/think_search.jsonl
    python scripts/thought_pairs.py DATA --out outputs/thought_pool.jsonl --info_think 9999 \\
        --think_search 0 --per_question 99 --answers --avoid …

DATA is a folder that holds `FILES`, rollouts that other projects published. The pairs are those
that the metrics `info_think` and `think_search` ask a judge about. They are drawn so:

- each source gives as many pairs as the others, or all that it has;
- half of what a source gives are pairs that the comparison of words does not uphold (`overlap` in
  the table), or all such pairs if there are fewer;
- a question gives at most two pairs, unless `--per_question` says otherwise;
- questions of the files after `--avoid` give none: what a judge is trained on must share no
  question with what it is measured on.

A row's `weight` is the number of pairs that it stands for: those of its source with the same
verdict of the comparison of words, divided by how many of them were drawn. Means with these weights
are of the sources, not of the sample. `--answers` adds the gold answers, where the rollout has
them. Rows are in the order of their ids, which are digests. Prints how many pairs each source has
and gave.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from faithful_search.errors import DataError
from faithful_search.json_lines import read_rows
from faithful_search.measure.agreement.labelled import rank
from faithful_search.measure.label import LabelledPair, label
from faithful_search.measure.report import aligned
from faithful_search.reading.rows import read_trajectories
from faithful_search.text import normalize

FILES = (
    "trajectories/r1_searcher_2wiki_qwen.jsonl.gz",
    "trajectories/r1_searcher_hotpotqa_llama.jsonl.gz",
    "trajectories/r1_searcher_hotpotqa_qwen.jsonl.gz",
    "trajectories/search_r1_ppo_3b.jsonl.gz",
    "trajectories/search_r1_verl_tool.jsonl.gz",
    "trajectories/webdancer.jsonl.gz",
    "real/react/fireact_alpaca.jsonl",
    "real/nemo_gym/citation_if.jsonl",
)
SEED = 46
COLUMNS = ("id", "task", "question", "premise", "hypothesis", "source", "trajectory", "step")
HEADER = ["task", "source", "overlap", "pairs", "drawn"]


class Drawing:
    """Draws pairs, at most `per_question` of each question."""

    def __init__(self, per_question: int) -> None:
        self.per_question = per_question
        self.of_question: Counter[str] = Counter()
        self.drawn: list[LabelledPair] = []

    def draw(self, pairs: Sequence[LabelledPair], count: int) -> int:
        """Take the first `count` pairs whose questions may give another; returns how many there
        were.
        """
        before = len(self.drawn)
        for pair in pairs:
            if len(self.drawn) - before == count:
                break
            question = question_of(pair)
            if self.of_question[question] < self.per_question:
                self.of_question[question] += 1
                self.drawn.append(pair)
        return len(self.drawn) - before

    def draw_halves(self, pairs: Sequence[LabelledPair], count: int) -> None:
        """Take `count` pairs, half of them of those that the comparison of words does not uphold,
        or all such pairs, if there are fewer.
        """
        in_order = sorted(pairs, key=lambda pair: rank(SEED, pair.id))
        upheld = [pair for pair in in_order if pair.label]
        not_upheld = [pair for pair in in_order if not pair.label]
        drawn = self.draw(not_upheld, count // 2)
        self.draw(upheld, count - drawn)


def shares(available: Mapping[str, int], count: int) -> dict[str, int]:
    """How many of `count` pairs each source gives: equally many, or all that are available.

    Example:
        >>> shares({"a": 2, "b": 50, "c": 50}, 20)
        {'a': 2, 'b': 9, 'c': 9}
    """
    share_of: dict[str, int] = {}
    # What a small source cannot give is shared out among the larger ones
    smallest_first = sorted(available, key=lambda source: available[source])
    for place, source in enumerate(smallest_first):
        equal_share = count // (len(smallest_first) - place)
        share_of[source] = min(available[source], equal_share)
        count -= share_of[source]
    return share_of


def pairs_of(files: Sequence[Path], metric: str) -> list[LabelledPair]:
    """All pairs that the metric asks a judge about, with the verdict of the comparison of words."""
    with TemporaryDirectory() as folder:
        label(files, folder, metric=metric)
        lines = (Path(folder) / "pairs.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=LabelledPair) for line in lines]


def questions_of(files: Sequence[Path]) -> set[str]:
    """The questions of these files of pairs, as `question_of` has them. Raises `DataError` for a
    file without pairs, and for a pair with neither a question nor a rollout.
    """
    questions: set[str] = set()
    for file in files:
        rows = list(read_rows(file))
        if not rows:
            raise DataError(f"{file} has no pair whose question could be avoided")
        for number, row in enumerate(rows, start=1):
            question = row.get("question") or ""
            name = normalize(question, "pokee") or row.get("trajectory")
            if not name:
                raise DataError(f"{file}, pair {number}: it has no question and no trajectory")
            questions.add(name)
    return questions


def question_of(pair: LabelledPair) -> str:
    """The pair's question, normalized; where it has none, the id of its rollout."""
    return normalize(pair.question, "pokee") or pair.trajectory


def right_answers(files: Sequence[Path]) -> dict[str, tuple[str, ...]]:
    """The gold answers by question, where the rollouts have them."""
    answers_of = {}
    for file in files:
        for row in read_trajectories(file):
            trajectory = row.trajectory
            if trajectory is not None and trajectory.question and trajectory.answers:
                answers_of[normalize(trajectory.question, "pokee")] = trajectory.answers
    return answers_of


def available(pairs: Sequence[LabelledPair], per_question: int) -> dict[str, int]:
    """How many pairs each source can give, if a question gives at most `per_question`."""
    pairs_of_question = Counter((pair.source, question_of(pair)) for pair in pairs)
    pairs_of_source: Counter[str] = Counter()
    for (source, _), count in pairs_of_question.items():
        pairs_of_source[source] += min(count, per_question)
    return dict(pairs_of_source)


def stratum(pair: LabelledPair) -> tuple[str, str, str]:
    """The task, the source, and whether the comparison of words upholds the pair."""
    return pair.task, pair.source, "upheld" if pair.label else "not upheld"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--info_think", type=int, default=300, help="thoughts beside evidence")
    parser.add_argument("--think_search", type=int, default=150, help="calls beside thoughts")
    parser.add_argument("--per_question", type=int, default=2, help="most pairs of a question")
    parser.add_argument("--answers", action="store_true", help="add the gold answers")
    parser.add_argument("--avoid", type=Path, nargs="*", default=[], help="files of other pairs")
    options = parser.parse_args()
    files = [options.data / file for file in FILES]
    avoided = questions_of(options.avoid)
    counts = {"info_think": options.info_think, "think_search": options.think_search}
    all_pairs: list[LabelledPair] = []
    drawing = Drawing(options.per_question)
    for metric, count in counts.items():
        pairs = [pair for pair in pairs_of(files, metric) if question_of(pair) not in avoided]
        all_pairs += pairs
        for source, share in shares(available(pairs, options.per_question), count).items():
            pairs_of_source = [pair for pair in pairs if pair.source == source]
            drawing.draw_halves(pairs_of_source, share)
    drawn = sorted(drawing.drawn, key=lambda pair: (pair.task, pair.id))
    count_of = Counter(map(stratum, all_pairs))
    drawn_of = Counter(map(stratum, drawn))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    answers_of = right_answers(files) if options.answers else {}
    with options.out.open("wb") as out:
        for pair in drawn:
            row = {column: getattr(pair, column) for column in COLUMNS}
            row["weight"] = round(count_of[stratum(pair)] / drawn_of[stratum(pair)], 3)
            if options.answers:
                row["answers"] = answers_of.get(question_of(pair), ())
            out.write(msgspec.json.encode(row) + b"\n")
    table = [[*name, str(count_of[name]), str(drawn_of[name])] for name in sorted(count_of)]
    print(aligned([HEADER, *table]))


if __name__ == "__main__":
    main()
