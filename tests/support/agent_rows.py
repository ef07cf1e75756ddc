"""Rows of an agent that looks up lighthouses, and a judge that counts what it is asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from faithful_search.errors import JudgeError
from faithful_search.judges import Verdict

PLACES = ("Orvik", "Tarn", "Selby", "Quell")


def rollout(number: int, question: int | None = None) -> dict:
    place = PLACES[number % 4]
    text = (
        f"<think>I look up lighthouse {number}.</think>\n<search>where is lighthouse {number}</search>\n"
        f"<information>Doc 1(Title: Lighthouse {number}) Lighthouse {number} stands in {place}.</information>\n"
        f"<think>Lighthouse {number} stands in {place}.</think>\n<answer>{place}</answer>"
    )
    asked = number if question is None else question
    return {"id": str(number), "question": f"Where is lighthouse {asked}?", "output": text, "answers": ["Orvik"]}


def file_of(path: Path, rows: list) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


class CountingJudge:
    """Says yes to every pair but those it abstains from, and remembers what it was asked."""

    def __init__(self, abstains: str = "\0", refuses: bool = False) -> None:
        self.asked: list = []
        self.calls = 0
        self.abstains, self.refuses = abstains, refuses

    name = "counting@1"

    def judge_batch(self, pairs):
        if self.refuses:
            raise JudgeError("401: the key is wrong")
        self.calls += 1
        self.asked += pairs
        return [
            Verdict(None, None, "timed out", self.name) if self.abstains in pair.hypothesis else Verdict(1.0, True)
            for pair in pairs
        ]


JUDGED = ("info_think_faithfulness", "think_search_faithfulness", "answer_correctness")
