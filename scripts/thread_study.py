"""How much several research threads on one question add: compares the first thread, a majority vote
of all, and a synthesis that a language model writes.

```
python recipes/evaluate.py --split test --limit 60 --samples 4 --temperature 1 --out outputs/threads
python scripts/thread_study.py outputs/threads/trajectories.jsonl --writer Qwen/Qwen2.5-1.5B-Instruct
python scripts/thread_study.py first_agent.jsonl second_agent.jsonl --writer Qwen/Qwen2.5-1.5B-Instruct --differing
```

The threads of a question are the rollouts on it, in any format that an audit reads. Prints the
exact match of each way to answer, with its paired difference to the first thread. `any` is right
where one of the threads is: no choice among them can do better.

The answers to each question are appended to `--out` as they come, and the same command continues
from there. With another writer or other rollouts a question is asked again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from faithful_search.judges.generator import GeneratorJudge
from faithful_search.measure.ledger import Ledger
from faithful_search.measure.stats import mean_ci, paired_difference
from faithful_search.reading.rows import read_trajectories
from faithful_search.rewards import Correctness
from faithful_search.rollout.threads import synthesise, vote
from faithful_search.trajectory import Trajectory
from faithful_search.wire.cache import key_of

WAYS = ("first", "vote", "synthesis", "any")
EXACT = Correctness()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "rollouts", nargs="+", type=Path, help="files of rollouts, several of each question"
    )
    parser.add_argument("--writer", required=True, help="a language model: a directory or a Hub id")
    parser.add_argument("--dtype", default="float32", help="data type of the writer's weights")
    parser.add_argument(
        "--tokens", type=int, default=160, help="maximum number of tokens of a summary or synthesis"
    )
    parser.add_argument("--limit", type=int, help="maximum number of questions; by default all")
    parser.add_argument(
        "--differing", action="store_true", help="only questions whose threads answer differently"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/thread_study.jsonl"))
    args = parser.parse_args()
    threads_by_question = grouped(args.rollouts, args.differing)
    groups = list(threads_by_question.values())[: args.limit]
    writer = GeneratorJudge.from_pretrained(
        args.writer, dtype=args.dtype, max_new_tokens=args.tokens
    )
    settings = {"writer": args.writer, "dtype": args.dtype, "tokens": args.tokens}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with Ledger(args.out, "study") as ledger:
        earlier_rows = [json.loads(line) for _, line in ledger.read()]
        row_by_key = {row["key"]: row for row in earlier_rows}
        for threads in tqdm(groups, desc="questions"):
            key = key_of(**settings, threads=[thread.to_json() for thread in threads])
            if key not in row_by_key:
                row = {"key": key, **settings, **measured(threads, writer)}
                ledger.append([json.dumps(row, ensure_ascii=False).encode() + b"\n"])
                row_by_key[key] = row
            rows.append(row_by_key[key])
    print_table(rows)


def grouped(paths: list[Path], differing: bool) -> dict[str, list[Trajectory]]:
    """The rollouts of each question that has several; with `differing`, only of questions whose
    rollouts do not all give the same answer.
    """
    groups: dict[str, list[Trajectory]] = {}
    for path in paths:
        for row in read_trajectories(path):
            if row.trajectory is None:
                print(f"{path}: row {row.number} is left out: {row.error}")
            else:
                groups.setdefault(str(row.trajectory.question), []).append(row.trajectory)
    chosen = {}
    for question, threads in groups.items():
        answers = {thread.answer for thread in threads}
        if len(threads) > 1 and (not differing or len(answers) > 1):
            chosen[question] = threads
    return chosen


def measured(threads: list[Trajectory], writer: GeneratorJudge) -> dict[str, Any]:
    """The answer to one question in each way, whether it is right (1 or 0), and how the synthesis
    was made.
    """
    synthesis = synthesise(threads, writer)
    gold = threads[0].answers
    thread_answers = [thread.answer for thread in threads]
    answers = {
        "first": thread_answers[0],
        "vote": vote(threads),
        "synthesis": synthesis.trajectory.answer,
    }
    right = {way: exact_match(answer, gold) for way, answer in answers.items()}
    right["any"] = max(exact_match(answer, gold) for answer in thread_answers)
    return {
        "question": threads[0].question,
        "gold": gold,
        "threads": thread_answers,
        "answers": answers,
        "right": right,
        "by": synthesis.by,
        "replaced": synthesis.replaced,
    }


def exact_match(answer: str | None, gold: tuple[str, ...]) -> float:
    """1 where the answer is one of the gold answers, else 0; also where there are none."""
    return EXACT.score(Trajectory(answer=answer, answers=gold)).value or 0.0


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a line for each way to answer, and how many syntheses could be written."""
    first = {row["question"]: row["right"]["first"] for row in rows}
    for way in WAYS:
        right = {row["question"]: row["right"][way] for row in rows}
        line = f"{way:10s} {mean_ci(list(right.values()))}"
        if way != "first":
            line += f"   to the first thread {paired_difference(first, right)}"
        print(line)
    written = 0
    without_summary = 0
    for row in rows:
        written += row["by"] == "synthesis"
        without_summary += any("summary" in part for part in row["replaced"])
    print(
        f"{len(rows)} questions; {written} syntheses were written, the others voted; "
        f"{without_summary} lacked a summary"
    )


if __name__ == "__main__":
    main()
