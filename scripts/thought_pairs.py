"""Draw the pairs of `datasets/thoughts`: thoughts of recorded rollouts, to be read and labelled.

    python scripts/thought_pairs.py DATA --out outputs/thought_pairs.jsonl
    python scripts/thought_pairs.py DATA --out outputs/train_pairs.jsonl --info_think 640 \\
        --think_search 0 --avoid datasets/thoughts/info_think.jsonl datasets/thoughts/think_search.jsonl
    python scripts/thought_pairs.py DATA --out outputs/thought_pool.jsonl --info_think 9999 \\
        --think_search 0 --per_question 99 --answers --avoid …

DATA is a folder that holds `FILES`, rollouts that other projects published. The pairs are those
that `info_think` and `think_search` ask a judge about, whole, in the order of their ids, which are
digests. Each source gives as many pairs as the others, or all it has; the comparison of words does
not uphold half of them, or all such that there are. A question gives at most two pairs, unless
`--per_question` says otherwise. A row's `weight` is how many pairs of its source, alike in that
verdict, it stands for: means with these weights are of the sources, not of the sample. `--avoid`
names files of pairs whose questions are left out: what a judge is trained on shares no question
with what it is measured on. `--answers` adds the right answers, where the rollout has them. Prints
how many pairs each source has and gave.
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
        """Take the first `count` pairs whose questions may give another; returns how many."""
        taken = 0
        for pair in pairs:
            question = question_of(pair)
            if taken < count and self.of_question[question] < self.per_question:
                self.of_question[question] += 1
                self.drawn.append(pair)
                taken += 1
        return taken

    def draw_halves(self, pairs: Sequence[LabelledPair], count: int) -> None:
        """Take `count` pairs, half of them not upheld by the comparison of words, or all such."""
        in_order = sorted(pairs, key=lambda pair: rank(SEED, pair.id))
        upheld = [pair for pair in in_order if pair.label]
        not_upheld = [pair for pair in in_order if not pair.label]
        taken = self.draw(not_upheld, count // 2)
        self.draw(upheld, count - taken)


def shares(available: Mapping[str, int], count: int) -> dict[str, int]:
    """How many pairs each source gives: equally many, or all that it has.

    Example:
        >>> shares({"a": 2, "b": 50, "c": 50}, 20)
        {'a': 2, 'b': 9, 'c': 9}
    """
    of_source: dict[str, int] = {}
    smallest_first = sorted(available, key=lambda source: available[source])
    for place, source in enumerate(smallest_first):
        equal_share = count // (len(smallest_first) - place)
        of_source[source] = min(available[source], equal_share)
        count -= of_source[source]
    return of_source


def pairs_of(files: Sequence[Path], metric: str) -> list[LabelledPair]:
    """All pairs that the metric asks a judge about, with the verdict of the comparison of words."""
    with TemporaryDirectory() as folder:
        label(files, folder, metric=metric)
        lines = (Path(folder) / "pairs.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=LabelledPair) for line in lines]


def questions_of(files: Sequence[Path]) -> set[str]:
    """The questions of files of pairs; where a pair has none, its rollout, as in `question_of`.
    Raises `DataError` for a file without pairs, and a row that has neither.
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
    """The pair's question; where the rollout has none, the rollout."""
    return normalize(pair.question, "pokee") or pair.trajectory


def right_answers(files: Sequence[Path]) -> dict[str, tuple[str, ...]]:
    """The right answers to each question, where the rollouts have them."""
    answers_of = {}
    for file in files:
        for row in read_trajectories(file):
            trajectory = row.trajectory
            if trajectory is not None and trajectory.question and trajectory.answers:
                answers_of[normalize(trajectory.question, "pokee")] = trajectory.answers
    return answers_of


def available(pairs: Sequence[LabelledPair], per_question: int) -> dict[str, int]:
    """How many pairs each source can give."""
    of_question = Counter((pair.source, question_of(pair)) for pair in pairs)
    of_source: Counter[str] = Counter()
    for (source, _), count in of_question.items():
        of_source[source] += min(count, per_question)
    return dict(of_source)


def stratum(pair: LabelledPair) -> tuple[str, str, str]:
    """Its task, its source, and whether the comparison of words upholds it."""
    return pair.task, pair.source, "upheld" if pair.label else "not upheld"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--info_think", type=int, default=300, help="thoughts beside evidence")
    parser.add_argument("--think_search", type=int, default=150, help="calls beside thoughts")
    parser.add_argument("--per_question", type=int, default=2, help="most pairs of a question")
    parser.add_argument("--answers", action="store_true", help="add the right answers")
    parser.add_argument("--avoid", type=Path, nargs="*", default=[], help="files of other pairs")
    options = parser.parse_args()
    files = [options.data / file for file in FILES]
    avoided = questions_of(options.avoid)
    counts = {"info_think": options.info_think, "think_search": options.think_search}
    every: list[LabelledPair] = []
    drawing = Drawing(options.per_question)
    for metric, count in counts.items():
        pairs = [pair for pair in pairs_of(files, metric) if question_of(pair) not in avoided]
        every += pairs
        for source, share in shares(available(pairs, options.per_question), count).items():
            of_source = [pair for pair in pairs if pair.source == source]
            drawing.draw_halves(of_source, share)
    drawn = sorted(drawing.drawn, key=lambda pair: (pair.task, pair.id))
    available_of = Counter(map(stratum, every))
    drawn_of = Counter(map(stratum, drawn))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    answers_of = right_answers(files) if options.answers else {}
    with options.out.open("wb") as out:
        for pair in drawn:
            row = {column: getattr(pair, column) for column in COLUMNS}
            row["weight"] = round(available_of[stratum(pair)] / drawn_of[stratum(pair)], 3)
            if options.answers:
                row["answers"] = answers_of.get(question_of(pair), ())
            out.write(msgspec.json.encode(row) + b"\n")
    table = [[*name, str(available_of[name]), str(drawn_of[name])] for name in sorted(available_of)]
    print(aligned([HEADER, *table]))


if __name__ == "__main__":
    main()
