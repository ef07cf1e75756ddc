"""A policy that makes the calls planned for its question, whatever they return, and then answers."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import lab

from faithful_search.inference.base import Completion

Planned = Callable[[int, int], tuple[str, dict[str, str]]]


class Asking:
    """Of `Question 7?` it makes `planned(7, 0)`, `planned(7, 1)`, …: a tool's name and arguments. So many are `calls`;
    every tenth is JSON with a slip where `slips` is set."""

    def __init__(self, planned: Planned, calls: int, slips: bool = False) -> None:
        self.tokenizer, self.planned, self.calls, self.slips = lab.tokenizer(), planned, calls, slips
        self.turns: Counter[int] = Counter()

    def generate(self, prompts: Any, sampling: Any, max_new_tokens: Any = None) -> list[Completion]:
        return [self._turn(self.tokenizer.decode(prompt)) for prompt in prompts]

    def _turn(self, prompt: str) -> Completion:
        number = int(re.findall(r"Question (\d+)\?", prompt)[0])
        turn = self.turns[number]
        self.turns[number] += 1
        act = "<answer>Rome</answer>"
        if turn < self.calls:
            name, arguments = self.planned(number, turn)
            call = json.dumps({"name": name, "arguments": arguments})
            act = f"<tool_call>{call[:-2] + ',}' if self.slips and (number + turn) % 10 == 0 else call}</tool_call>"
        verdict = "<helpful>no</helpful><ref>null</ref>" if turn else ""
        ids = self.tokenizer(f"<think>{verdict}so</think>{act}", add_special_tokens=False)["input_ids"]
        return Completion(ids, "stop")
