"""Does the agent call its tools to some purpose? Calls that repeat themselves, calls whose evidence is never used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..errors import ConfigError
from ..judges.grounding import claims, terms
from ..text import normalize
from ..trajectory import Step, ToolCall, Trajectory
from .base import Reward, Score
from .citation import Citation, step_validity
from .turns import call_words, passages

NO_CALLS = Score(None, "no tool was called")
NO_EVIDENCE = Score(None, "no call returned evidence")


@dataclass(frozen=True)
class ToolUse(Reward):
    """The share of wasted calls; lower is better.

    ```
    repeated:  |{calls that repeat an earlier one}| / |{calls}|
    unused:    |{calls with evidence none of which is taken up later}| / |{calls with evidence}|
    uncited:   |{calls with evidence none of which is cited}| / |{calls with evidence}|
    ```

    Ours, beside the tool ratios and entropy of Proof-of-Use (`measure.tool_use`), which describe a corpus.

    A call repeats an earlier one of the episode when it names the same tool and its arguments differ at most in case,
    punctuation and blanks; trying again after an error counts as well.

    Whether evidence is taken up is told by words, an approximation: of its titles and texts those count that stand
    neither in the question nor in what the agent wrote up to that call. A later thought, call or answer takes it up
    that holds one of them that is a name (capitalised inside a sentence) or a number, or at least `words` others; so
    does an answer that stands in it whole. Words that two responses share count for both. Evidence is cited when the
    valid verdict of the next step names it.

    A trajectory without calls (with evidence) has no value, nor has "uncited" in a dialect without verdicts. `parts`
    holds the numbers of the steps that are meant.

    Args:
        what: "repeated", "unused" or "uncited".
        words: how many words that are neither names nor numbers show use.

    Example:
        >>> from faithful_search.trajectory import Evidence
        >>> call = ToolCall("search", {"query": "tower"})
        >>> search = Step(think="Look.", call=call, evidence=(Evidence("It is in Paris."),))
        >>> episode = Trajectory(steps=(search, search, Step(think="It is Paris.", answer="Paris")), question="Where?")
        >>> ToolUse("repeated").score(episode).value, ToolUse("unused").score(episode).value
        (0.5, 0.0)

    How to hack it: paraphrase the query that is repeated; drop a name from each response into the next thought; cite
    everything; call no tool.
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
        if self.what == "repeated":
            return _repeated(trajectory)
        if not self.covers(trajectory.dialect):
            return Score(None, f"dialect {trajectory.dialect!r} has no verdicts that cite")
        steps = [i for i, step in enumerate(trajectory.steps) if step.call is not None and step.evidence]
        if not steps:
            return NO_EVIDENCE
        used = _cited(trajectory) if self.what == "uncited" else self._taken_up(trajectory)
        why = f"nothing later {'cites' if self.what == 'uncited' else 'takes up'} what this call returned"
        return _share(trajectory, steps, [i for i in steps if i not in used], why)

    def _taken_up(self, trajectory: Trajectory) -> set[int]:
        """The steps whose evidence has words, unknown before, that later steps write."""
        known = terms(trajectory.question or "")
        written = [_written(step) for step in trajectory.steps]
        later = _later(written)
        used = set()
        for number, step in enumerate(trajectory.steps):
            known |= written[number]
            if step.evidence:
                found = passages(step.evidence)
                new = later[number] & terms(found) - known
                told = len(new) >= self.words or (new and any(claims(found)[word].marked for word in new))
                if told or _answers(trajectory.answer, found, known):
                    used.add(number)
        return used


def _answers(answer: str | None, found: str, known: set[str]) -> bool:
    """Whether the passages hold the final answer, whole, and it was not known before."""
    wanted = normalize(answer or "", "pokee")
    return bool(wanted) and not terms(answer or "") <= known and f" {wanted} " in f" {normalize(found, 'pokee')} "


def _repeated(trajectory: Trajectory) -> Score:
    calls = [(i, step.call) for i, step in enumerate(trajectory.steps) if step.call is not None]
    if not calls:
        return NO_CALLS
    seen: set[str] = set()
    repeated = []
    for number, call in calls:
        key = _key(call)
        if key in seen:
            repeated.append(number)
        seen.add(key)
    return _share(trajectory, [number for number, _ in calls], repeated, "this call was made before")


def _share(trajectory: Trajectory, calls: list[int], wasted: list[int], why: str) -> Score:
    parts: dict[str, Any] = {"calls": len(calls), "steps": [number + 1 for number in wasted]}
    steps = tuple(float(i in wasted) if i in calls else None for i in range(len(trajectory.steps)))
    return Score(len(wasted) / len(calls), f"step {wasted[0] + 1}: {why}" if wasted else "", parts, steps)


def _key(call: ToolCall) -> str:
    simple = _simple(call.arguments) if call.arguments else normalize(call.raw, "pokee")
    return json.dumps([call.name, simple], sort_keys=True, default=str)


def _simple(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _simple(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_simple(item) for item in value]
    return (normalize(value, "pokee") or value) if isinstance(value, str) else value


def _cited(trajectory: Trajectory) -> set[int]:
    """The steps whose evidence the next step's valid verdict cites."""
    valid = step_validity(trajectory)
    return {i for i, ok in enumerate(valid) if ok and trajectory.steps[i + 1].refs}


def _written(step: Step) -> set[str]:
    return terms("\n".join([step.think or "", step.answer or "", call_words(step.call) if step.call else ""]))


def _later(written: list[set[str]]) -> list[set[str]]:
    """For each step, all that the steps after it write."""
    found: list[set[str]] = [set()]
    for words in reversed(written[1:]):
        found.append(found[-1] | words)
    return found[::-1]
