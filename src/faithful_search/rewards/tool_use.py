"""Does the agent call its tools to some purpose? Calls that repeat themselves, calls whose evidence
is never used.
"""

import json
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
from .turns import answer_of, holds_answer, passages, written


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
    or a number, or at least `words` others; so does an answer that stands in it whole. A trajectory
    without calls (with evidence) has no value, nor has "uncited" in a dialect without verdicts.
    `parts` holds the numbers of the wasted steps.

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
        calls = [
            place
            for place, step in enumerate(steps)
            if step.call and (self.what == "repeated" or step.evidence)
        ]
        if not calls:
            repeated = self.what == "repeated"
            return Score(None, "no tool was called" if repeated else "no call returned evidence")
        if self.what == "repeated":
            why = "this call was made before"
            useful = _first_calls(steps, calls)
        elif self.what == "uncited":
            why = "nothing later cites what this call returned"
            useful = set()
            for place, is_valid in enumerate(step_validity(trajectory)):
                if is_valid and steps[place + 1].refs:
                    useful.add(place)
        else:
            why = "nothing later takes up what this call returned"
            useful = self._taken_up(trajectory)
        wasted = [place for place in calls if place not in useful]
        by_step = tuple(
            float(place in wasted) if place in calls else None for place in range(len(steps))
        )
        parts = {"calls": len(calls), "steps": [place + 1 for place in wasted]}
        reason = f"step {wasted[0] + 1}: {why}" if wasted else ""
        return Score(len(wasted) / len(calls), reason, parts, by_step)

    def _taken_up(self, trajectory: Trajectory) -> set[int]:
        """The places of the steps whose evidence has words, unknown before, that later steps
        write.
        """
        words_of_steps = [terms("\n".join(written(step))) for step in trajectory.steps]
        later: list[set[str]] = [set()]  # for each step, all that the steps after it write
        for words in reversed(words_of_steps[1:]):
            later.insert(0, later[0] | words)
        known_words = terms(trajectory.question or "")
        answer = answer_of(trajectory)
        answer_words = terms(answer)
        taken_up = set()
        for place, step in enumerate(trajectory.steps):
            known_words |= words_of_steps[place]  # the call's own words included
            if not step.evidence:
                continue
            text = passages(supporting(step))
            new = later[place] & terms(text) - known_words
            has_new_words = len(new) >= self.words
            if new and not has_new_words:
                claimed = claims(text)
                has_new_words = any(claimed[word].marked for word in new)
            # or the passages hold the final answer, whole, and it was not known before
            answer_is_new = not answer_words <= known_words
            if has_new_words or (answer_is_new and holds_answer(text, answer)):
                taken_up.add(place)
        return taken_up


def _first_calls(steps: Sequence[Step], calls: Sequence[int]) -> set[int]:
    """The places among `calls` of those that repeat no earlier one."""
    first: dict[str, int] = {}
    for place in calls:
        call = cast(ToolCall, steps[place].call)
        arguments = _simple(call.arguments) if call.arguments else normalize(call.raw, "pokee")
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
        return normalize(value, "pokee") or value
    return value
