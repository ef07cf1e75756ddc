"""Does the agent call its tools to some purpose? Calls that repeat themselves, calls whose evidence is never used."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from ..errors import ConfigError
from ..judges.grounding import claims, terms
from ..text import normalize
from ..trajectory import ToolCall, Trajectory
from .base import Reward, Score
from .citation import Citation, step_validity
from .turns import call_words, passages


@dataclass(frozen=True)
class ToolUse(Reward):
    """The share of wasted calls; lower is better.

    ```
    repeated:  |{calls that repeat an earlier one}| / |{calls}|
    unused:    |{calls with evidence none of which is taken up later}| / |{calls with evidence}|
    uncited:   |{calls with evidence none of which is cited}| / |{calls with evidence}|
    ```

    Ours. A call repeats an earlier one when it names the same tool and its arguments differ at most in case,
    punctuation and blanks. Evidence is cited when the valid verdict of the next step names it. Whether it is taken up
    is told by words, an approximation: those of its titles and texts that stand neither in the question nor in what the
    agent wrote up to that call. A later thought, call or answer takes it up that holds one of them that is a name
    (capitalised inside a sentence) or a number, or at least `words` others; so does an answer that stands in it whole.
    A trajectory without calls (with evidence) has no value, nor has "uncited" in a dialect without verdicts. `parts`
    holds the numbers of the wasted steps.

    Args:
        what: "repeated", "unused" or "uncited".
        words: how many words that are neither names nor numbers show use.

    How to hack it: paraphrase repeated queries; drop a name from each response into the next thought; cite everything.
    """

    what: Literal["repeated", "unused", "uncited"] = "repeated"
    words: int = 3

    name: ClassVar[str] = "tool_use"

    def __post_init__(self) -> None:
        if self.what not in ("repeated", "unused", "uncited"):
            raise ConfigError(f"ToolUse: {self.what!r} is not 'repeated', 'unused' or 'uncited'")

    def covers(self, dialect: str) -> bool:
        return self.what != "uncited" or Citation().covers(dialect)

    def score(self, trajectory: Trajectory) -> Score:
        steps = trajectory.steps
        if not self.covers(trajectory.dialect):
            return Score(None, f"dialect {trajectory.dialect!r} has no verdicts that cite")
        calls = [
            i
            for i, step in enumerate(steps)
            if step.call and (self.what == "repeated" or step.evidence)
        ]
        if not calls:
            return Score(
                None,
                "no tool was called" if self.what == "repeated" else "no call returned evidence",
            )
        if self.what == "repeated":
            first: dict[str, int] = {}
            useful, why = set(), "this call was made before"
            for i in calls:
                call = cast(ToolCall, steps[i].call)
                alike = _simple(call.arguments) if call.arguments else normalize(call.raw, "pokee")
                useful.add(
                    first.setdefault(json.dumps([call.name, alike], sort_keys=True, default=str), i)
                )
        elif self.what == "uncited":
            useful = {
                i
                for i, valid in enumerate(step_validity(trajectory))
                if valid and steps[i + 1].refs
            }
            why = "nothing later cites what this call returned"
        else:
            useful, why = (
                self._taken_up(trajectory),
                "nothing later takes up what this call returned",
            )
        wasted = [i for i in calls if i not in useful]
        by_step = tuple(float(i in wasted) if i in calls else None for i in range(len(steps)))
        parts = {"calls": len(calls), "steps": [i + 1 for i in wasted]}
        return Score(
            len(wasted) / len(calls),
            f"step {wasted[0] + 1}: {why}" if wasted else "",
            parts,
            by_step,
        )

    def _taken_up(self, trajectory: Trajectory) -> set[int]:
        """The steps whose evidence has words, unknown before, that later steps write."""
        known, used = terms(trajectory.question or ""), set()
        written = [
            terms(
                "\n".join(
                    [
                        step.think or "",
                        step.answer or "",
                        call_words(step.call) if step.call else "",
                    ]
                )
            )
            for step in trajectory.steps
        ]
        later: list[set[str]] = [set()]  # for each step, all that the steps after it write
        for words in reversed(written[1:]):
            later.insert(0, later[0] | words)
        answer = trajectory.answer or ""
        wanted, answered = normalize(answer, "pokee"), terms(answer)
        for number, step in enumerate(trajectory.steps):
            known |= written[
                number
            ]  # what the agent wrote up to a call, the call's own words included
            if step.evidence:
                found = passages(step.evidence)
                new = later[number] & terms(found) - known
                told = len(new) >= self.words or (
                    new and any(claims(found)[word].marked for word in new)
                )
                # or the passages hold the final answer, whole, and it was not known before
                whole = (
                    wanted
                    and not answered <= known
                    and f" {wanted} " in f" {normalize(found, 'pokee')} "
                )
                if told or whole:
                    used.add(number)
        return used


def _simple(value: Any) -> Any:
    """What is alike in a call's arguments and those of one that repeats it."""
    if isinstance(value, dict):
        return {key: _simple(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_simple(item) for item in value]
    # of signs alone nothing would be left: they stay, or all of them would be alike
    return (normalize(value, "pokee") or value) if isinstance(value, str) else value
