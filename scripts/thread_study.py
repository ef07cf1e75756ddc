"""What threads of research add: the first of each question, their vote, and a synthesis written by
a language model.

```
python recipes/evaluate.py --split test --limit 60 --samples 4 --temperature 1 --out outputs/threads
python scripts/thread_study.py outputs/threads/trajectories.jsonl --writer Qwen/Qwen2.5-1.5B-Instruct
python scripts/thread_study.py first_agent.jsonl second_agent.jsonl --writer Qwen/Qwen2.5-1.5B-Instruct --differing
```

Rollouts on the same question are its threads, in any format that is read. Prints exact match with
the paired difference to the first thread, and writes each question's answers as they come to
`--out`, from which the same command goes on; another writer, or other rollouts, are measured anew.
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
    parser.add_argument("--dtype", default="float32", help="of its weights")
    parser.add_argument(
        "--tokens", type=int, default=160, help="of the longest summary and synthesis"
    )
    parser.add_argument("--limit", type=int, help="questions; all without it")
    parser.add_argument(
        "--differing", action="store_true", help="only questions whose threads answer differently"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/thread_study.jsonl"))
    args = parser.parse_args()
    groups = list(grouped(args.rollouts, args.differing).values())[: args.limit]
    writer = GeneratorJudge.from_pretrained(
        args.writer, dtype=args.dtype, max_new_tokens=args.tokens
    )
    how = {name: getattr(args, name) for name in ("writer", "dtype", "tokens")}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with Ledger(args.out, "study") as ledger:
        done = {row["key"]: row for row in (json.loads(line) for _, line in ledger.read())}
        keys = [key_of(**how, threads=[one.to_json() for one in threads]) for threads in groups]
        for key, threads in zip(tqdm(keys, desc="questions"), groups, strict=True):
            if key not in done:
                done[key] = {"key": key, **how, **measured(threads, writer)}
                ledger.append([json.dumps(done[key], ensure_ascii=False).encode() + b"\n"])
    tell([done[key] for key in keys])


def grouped(paths: list[Path], differing: bool) -> dict[str, list[Trajectory]]:
    """Rollouts by their question, of the questions that have several."""
    groups: dict[str, list[Trajectory]] = {}
    for path in paths:
        for row in read_trajectories(path):
            if row.trajectory is None:
                print(f"{path}: row {row.number} is left out: {row.error}")
            else:
                groups.setdefault(str(row.trajectory.question), []).append(row.trajectory)
    several = {question: own for question, own in groups.items() if len(own) > 1}
    return {
        q: own
        for q, own in several.items()
        if not differing or len({one.answer for one in own}) > 1
    }


def measured(threads: list[Trajectory], writer: GeneratorJudge) -> dict[str, Any]:
    """The answers of one question and which of them are right, 1 or 0."""
    found = synthesise(threads, writer)
    gold = threads[0].answers
    answers = {
        "first": threads[0].answer,
        "vote": vote(threads),
        "synthesis": found.trajectory.answer,
    }
    right = {way: exact(answer, gold) for way, answer in answers.items()}
    right["any"] = max(exact(one.answer, gold) for one in threads)
    said = {
        "question": threads[0].question,
        "gold": gold,
        "threads": [one.answer for one in threads],
    }
    return said | {"answers": answers, "right": right, "by": found.by, "replaced": found.replaced}


def exact(answer: str | None, gold: tuple[str, ...]) -> float:
    return EXACT.score(Trajectory(answer=answer, answers=gold)).value or 0.0


def tell(rows: list[dict[str, Any]]) -> None:
    """The table."""
    right = {way: {row["question"]: row["right"][way] for row in rows} for way in WAYS}
    for way in WAYS:
        change = (
            ""
            if way == "first"
            else f"   to the first thread {paired_difference(right['first'], right[way])}"
        )
        print(f"{way:10s} {mean_ci(list(right[way].values()))}{change}")
    written = sum(row["by"] == "synthesis" for row in rows)
    own = sum(any("summary" in item for item in row["replaced"]) for row in rows)
    print(
        f"{len(rows)} questions; {written} syntheses were written, the others voted; {own} lacked a summary"
    )


if __name__ == "__main__":
    main()
