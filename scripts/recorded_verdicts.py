"""Do our metrics of answers give the accuracy that recorded rollouts were judged with?

```
python scripts/recorded_verdicts.py r1_searcher_*.jsonl.gz --verdict gpt4o_output
python scripts/recorded_verdicts.py r1_searcher_*.jsonl.gz --verdict gpt4o_output --list
```

The column of verdicts stands in for the judge of `lm_accuracy`. Prints each file's accuracy by its
own column, by `lm_accuracy`, by exact match and by substring exact match, and the rows in which
`lm_accuracy` differs from the column; with `--list` also those in which exact match does.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faithful_search.errors import DataError
from faithful_search.json_lines import read_rows
from faithful_search.judges import Judge, Pair, Verdict
from faithful_search.measure.report import aligned
from faithful_search.reading.rows import read_trajectories
from faithful_search.rewards import Correctness
from faithful_search.trajectory import Trajectory

TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")
METRICS = ("column", "lm_accuracy", "exact_match", "sub_em")


class RecordedJudge(Judge):
    """Says of an answer to a question what was recorded."""

    name = "recorded"

    def __init__(self, labels: dict[tuple[str, str], bool]) -> None:
        self.labels = labels

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for pair in pairs:
            label = self.labels[pair.question, pair.hypothesis]
            verdicts.append(Verdict(float(label), label, judge=self.name))
        return verdicts


class RecordedAnswer(NamedTuple):
    """One rollout: what was recorded of its answer, and what our metrics say."""

    row: int
    question: str
    golds: tuple[str, ...]
    answer: str
    values: dict[str, float]


def recorded_answers(path: Path, column: str) -> list[RecordedAnswer]:
    """The rollouts of a file whose answers have a verdict in this column.

    Raises `DataError` for a row that cannot be read, or has no verdict of true or false.
    """
    trajectories: list[Trajectory] = []
    verdicts: list[bool] = []
    for raw, row in zip(read_rows(path), read_trajectories(path), strict=True):
        if row.trajectory is None:
            raise DataError(f"{path}, row {row.number}: {row.error}")
        trajectories.append(row.trajectory)
        verdicts.append(_label(raw, column, f"{path}, row {row.number}"))
    labels = {}
    for trajectory, verdict in zip(trajectories, verdicts, strict=True):
        labels[trajectory.question or "", trajectory.answer or ""] = verdict
    metrics = {
        "lm_accuracy": Correctness("judge", judge=RecordedJudge(labels)),
        "exact_match": Correctness("em"),
        "sub_em": Correctness("sub_em"),
    }
    scores = {name: reward.score_batch(trajectories) for name, reward in metrics.items()}
    answers = []
    for number, trajectory in enumerate(trajectories):
        values = {"column": float(verdicts[number])}
        for name in metrics:
            values[name] = scores[name][number].value or 0.0
        answers.append(
            RecordedAnswer(
                row=number + 1,
                question=trajectory.question or "",
                golds=trajectory.answers,
                answer=trajectory.answer or "",
                values=values,
            )
        )
    return answers


def accuracy(answers: Sequence[RecordedAnswer], metric: str) -> float:
    """The share of answers that a metric finds right."""
    return sum(answer.values[metric] for answer in answers) / len(answers)


def disagreements(answers: Sequence[RecordedAnswer], metric: str) -> list[RecordedAnswer]:
    """The answers of which a metric says something else than the column."""
    return [answer for answer in answers if answer.values[metric] != answer.values["column"]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rollouts", nargs="+", type=Path, help="files of recorded rollouts")
    parser.add_argument("--verdict", required=True, help="column with the recorded verdicts")
    parser.add_argument(
        "--list", action="store_true", help="also list where exact match differs from the column"
    )
    options = parser.parse_args()
    rows = [["file", "n", *METRICS, *(f"{metric} differs" for metric in METRICS[1:])]]
    listed = []
    for path in options.rollouts:
        answers = recorded_answers(path, options.verdict)
        accuracies = [f"{accuracy(answers, metric):.3f}" for metric in METRICS]
        differing = [str(len(disagreements(answers, metric))) for metric in METRICS[1:]]
        rows.append([path.name, str(len(answers)), *accuracies, *differing])
        metrics = METRICS[1:3] if options.list else METRICS[1:2]
        for metric in metrics:
            listed += [_line(path, metric, answer) for answer in disagreements(answers, metric)]
    print(aligned(rows))
    print("\n".join(["", *listed]))


def _label(row: dict[str, Any], column: str, where: str) -> bool:
    word = str(row.get(column)).strip().lower()
    if word not in (*TRUE, *FALSE):
        raise DataError(f"{where}: the column {column!r} says {row.get(column)!r}: no verdict")
    return word in TRUE


def _line(path: Path, metric: str, answer: RecordedAnswer) -> str:
    said = "right" if answer.values["column"] else "wrong"
    golds = " / ".join(answer.golds)
    return (
        f"{path.name}, row {answer.row}: the column says {said}, {metric} says "
        f"{answer.values[metric]:g}: {answer.answer!r} for {golds!r}"
    )


if __name__ == "__main__":
    main()
