"""Does the agent call its tools to some purpose? Calls that repeat themselves, calls whose evidence
is never used.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from ..errors import ConfigError
from ..evidence import supporting
from ..judges.lexical import claims, terms
from ..text import normalize
from ..trajectory import Step, ToolCall, Trajectory
from .base import Result, Reward, Score
from .citation import Citation, step_validity
from .citation_returned import is_report
from .turns import holds_answer, passages, short_answer, written


@dataclass(frozen=True)
class ToolUse(Reward):
    """The share of wasted calls; lower is better.

    ```
    repeated:  |{calls that repeat an earlier one}| / |{calls}|
    unused:    |{calls with evidence none of which is taken up later}| / |{calls with evidence}|
    uncited:   |{calls with evidence none of which is cited}| / |{calls with evidence}|
    ```

    Ours. A call repeats an earlier one when it names the same tool and its arguments differ at most
    in case, punctuation and blanks. Evidence is cited when the valid verdict of the next step names
    it. Whether it is taken up is told by words, an approximation: those of its titles and texts
    that stand neither in the question nor in what the agent wrote up to that call. A later thought,
    call or answer takes it up that holds one of them that is a name (capitalised inside a sentence)
    or a number, or at least `words` others; so does an answer that stands in it whole, without the
    form around it (a box, JSON). A trajectory without calls (with evidence) has no value, nor has
    "uncited" in a dialect without verdicts. `parts` holds the numbers of the wasted steps.

    Args:
        what: "repeated", "unused" or "uncited".
        words: how many words that are neither names nor numbers show use.

    How to hack it: paraphrase repeated queries; drop a name from each response into the next
    thought; cite everything.
    """

    what: Literal["repeated", "unused", "uncited"] = "repeated"
    words: int = 3

    name: ClassVar[str] = "tool_use"
    results: ClassVar[Mapping[str, Result]] = {
        "repeated_calls": Result(
            asks="which share of the calls was made before?",
            direction=-1,
            good="a call was not made before",
            clean="no call was made before",
        ),
        "unused_evidence": Result(
            asks="which share of the calls returned evidence that nothing later takes up?",
            direction=-1,
            good="what a call returns is taken up later",
            clean="what each call returned is taken up later",
        ),
        "uncited_evidence": Result(
            asks="which share of the calls returned evidence that nothing later cites?",
            direction=-1,
            good="what a call returns is cited later",
            clean="what each call returned is cited later",
        ),
    }

    def __post_init__(self) -> None:
        if self.what not in ("repeated", "unused", "uncited"):
            raise ConfigError(f"ToolUse: {self.what!r} is not 'repeated', 'unused' or 'uncited'")

    def covers(self, dialect: str) -> bool:
        return self.what != "uncited" or Citation().covers(dialect)

    def score(self, trajectory: Trajectory) -> Score:
        steps = trajectory.steps
        if not self.covers(trajectory.dialect):
            return Score(None, f"dialect {trajectory.dialect!r} has no verdicts that cite")
        if is_report(trajectory):
            return Score(None, "a report without a trace: its writer's calls are not known")
        calls = [place for place, step in enumerate(steps) if step.call]
        if self.what != "repeated":
            calls = [place for place in calls if steps[place].evidence]
        if not calls and self.what == "repeated":
            return Score(None, "no tool was called")
        if not calls:
            return Score(None, "no call returned evidence")
        if self.what == "repeated":
            objection = "this call was made before"
            useful = _first_calls(steps, calls)
        elif self.what == "uncited":
            objection = "nothing later cites what this call returned"
            useful = _cited(trajectory)
        else:
            objection = "nothing later takes up what this call returned"
            useful = self._taken_up(trajectory)
        by_step: list[float | None] = [None] * len(steps)
        wasted: list[int] = []  # the numbers of the steps, from 1
        for place in calls:
            is_wasted = place not in useful
            by_step[place] = float(is_wasted)
            if is_wasted:
                wasted.append(place + 1)
        why = f"step {wasted[0]}: {objection}" if wasted else ""
        parts = {"calls": len(calls), "steps": wasted}
        return Score(len(wasted) / len(calls), why, parts, tuple(by_step))

    def _taken_up(self, trajectory: Trajectory) -> set[int]:
        """The places of the steps whose evidence has words, unknown before, that later steps
        write.
        """
        words_of_steps = [terms("\n".join(written(step))) for step in trajectory.steps]
        # For each step, all that the steps after it write.
        later: list[set[str]] = [set()]
        for words in reversed(words_of_steps[1:]):
            later.insert(0, later[0] | words)
        known_words = terms(trajectory.question or "")
        answer = short_answer(trajectory)
        answer_words = terms(answer)
        taken_up = set()
        for place, step in enumerate(trajectory.steps):
            known_words |= words_of_steps[place]  # the call's own words included
            if not step.evidence:
                continue
            text = passages(supporting(step))
            new_words = terms(text) - known_words
            used_later = later[place] & new_words
            is_used = len(used_later) >= self.words
            if used_later and not is_used:  # of names and numbers one is enough
                claimed = claims(text)
                is_used = any(claimed[word].marked for word in used_later)
            # or the passages hold the final answer, whole, and it was not known before
            answer_is_new = not answer_words <= known_words
            if is_used or (answer_is_new and holds_answer(text, answer)):
                taken_up.add(place)
        return taken_up


def _cited(trajectory: Trajectory) -> set[int]:
    """The places of the steps whose evidence the next step cites in a valid verdict."""
    cited = set()
    for place, is_valid in enumerate(step_validity(trajectory)):
        if is_valid and trajectory.steps[place + 1].refs:
            cited.add(place)
    return cited


def _first_calls(steps: Sequence[Step], calls: Sequence[int]) -> set[int]:
    """The places among `calls` of those that repeat no earlier one."""
    first: dict[str, int] = {}  # by what calls are compared by
    for place in calls:
        call = cast(ToolCall, steps[place].call)
        arguments = _simple(call.arguments) if call.arguments else _plain(call.raw)
        key = json.dumps([call.name, arguments], sort_keys=True, default=str)
        first.setdefault(key, place)
    return set(first.values())


def _simple(value: Any) -> Any:
    """The arguments of a call as they are compared: calls that repeat it have the same."""
    if isinstance(value, dict):
        return {key: _simple(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_simple(entry) for entry in value]
    if isinstance(value, str):
        # of signs alone nothing would be left: they stay, or all of them would be alike
        return _plain(value) or value
    return value


def _plain(text: str) -> str:
    """The text in small letters, with a blank for the punctuation of any script."""
    if not text.isascii():
        marks = {ord(mark): " " for mark in set(text) if unicodedata.category(mark)[0] == "P"}
        text = text.translate(marks)
    return normalize(text, "pokee")
