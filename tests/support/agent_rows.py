"""Rows of an agent that looks up lighthouses, and a judge that counts what it is asked."""

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from faithful_search.errors import JudgeError
from faithful_search.judges import Judge, Pair, Verdict

PLACES = ("Orvik", "Tarn", "Selby", "Quell")
JUDGED = ("info_think_faithfulness", "think_search_faithfulness", "answer_correctness")


def rollout(number: int, question: int | None = None) -> dict[str, Any]:
    place = PLACES[number % 4]
    text = (
        f"<think>I look up lighthouse {number}.</think>\n<search>where is lighthouse "
        f"{number}</search>\n"
        f"<information>Doc 1(Title: Lighthouse {number}) Lighthouse {number} stands in "
        f"{place}.</information>\n"
        f"<think>Lighthouse {number} stands in {place}.</think>\n<answer>{place}</answer>"
    )
    asked = number if question is None else question
    return {
        "id": str(number),
        "question": f"Where is lighthouse {asked}?",
        "output": text,
        "answers": ["Orvik"],
    }


def file_of(path: Path, rows: Iterable[Any]) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def rollouts(folder: Path, *numbers: int) -> Path:
    """A file of these rollouts."""
    return file_of(folder / "a.jsonl", map(rollout, numbers))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class CountingJudge(Judge):
    """Says of a pair what `say` does (nothing: it abstains), and keeps what it was asked; `refuses`
    says why not.
    """

    def __init__(
        self,
        say: Callable[[Pair], bool | None] = lambda pair: True,
        name: str = "counting@1",
        refuses: str = "",
    ) -> None:
        self.say, self.name, self.refuses = say, name, refuses
        self.asked: list[Pair] = []
        self.calls = 0

    def judge_batch(self, pairs: list[Pair]) -> list[Verdict]:
        if self.refuses:
            raise JudgeError(self.refuses)
        self.calls += 1
        self.asked += pairs
        return [self._verdict(self.say(pair)) for pair in pairs]

    def _verdict(self, label: bool | None) -> Verdict:
        if label is None:
            return Verdict(None, None, "timed out", self.name)
        return Verdict(0.75 if label else 0.25, label, "", self.name)


def silent_on(*words: str) -> Callable[[Pair], bool | None]:
    """Yes to every pair but those whose hypothesis holds one of the words."""
    return lambda pair: None if any(word in pair.hypothesis for word in words) else True
