"""Does the agent call its tools to some purpose? Calls that repeat themselves, calls whose evidence is never used."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..errors import ConfigError
from ..judges.grounding import claims
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
    unused:    |{calls with evidence none of which is used later}| / |{calls with evidence}|
    ```

    Ours, beside the tool ratios and entropy of Proof-of-Use (`evaluation.tool_use`), which describe a corpus.

    A call repeats an earlier one of the episode when it names the same tool and its arguments differ at most in case,
    punctuation and blanks; trying again after an error counts as well.

    In a dialect with verdicts evidence is used when a valid verdict cites it. In others (lexical, an approximation):
    take the words of its titles and texts that stand neither in the question nor in what the agent wrote up to that
    call. It is used when a later thought, call or answer holds one of them that is a name (capitalised inside a
    sentence) or a number, or at least `words` others. Words that two responses share count for both.

    A trajectory without calls (with evidence) has no value. `parts` holds the numbers of the steps that are meant.

    Args:
        what: "repeated" or "unused".
        words: how many words that are neither names nor numbers show use.

    Example:
        >>> from faithful_search.trajectory import Evidence
        >>> call = ToolCall("search", {"query": "tower"})
        >>> search = Step(think="Look.", call=call, evidence=(Evidence("It is in Paris."),))
        >>> episode = Trajectory(steps=(search, search, Step(think="It is Paris.", answer="Paris")), question="Where?")
        >>> ToolUse("repeated").score(episode).value, ToolUse("unused").score(episode).value
        (0.5, 0.0)

    How to hack it: paraphrase the query that is repeated; drop a name from each response into the next thought; call
    no tool.
    """

    what: Literal["repeated", "unused"] = "repeated"
    words: int = 3

    name: ClassVar[str] = "tool_use"

    def __post_init__(self) -> None:
        if self.what not in ("repeated", "unused"):
            raise ConfigError(f"ToolUse: {self.what!r} is neither 'repeated' nor 'unused'")

    def score(self, trajectory: Trajectory) -> Score:
        return _repeated(trajectory) if self.what == "repeated" else self._unused(trajectory)

    def _unused(self, trajectory: Trajectory) -> Score:
        steps = [i for i, step in enumerate(trajectory.steps) if step.call is not None and step.evidence]
        if not steps:
            return NO_EVIDENCE
        used = _cited(trajectory) if has_verdicts(trajectory) else self._taken_up(trajectory)
        return _share(steps, [i for i in steps if i not in used], "nothing later uses what this call returned")

    def _taken_up(self, trajectory: Trajectory) -> set[int]:
        """The steps whose evidence has words, unknown before, that later steps write."""
        known = set(claims(trajectory.question or ""))
        written = [_written(step) for step in trajectory.steps]
        later = _later(written)
        used = set()
        for number, step in enumerate(trajectory.steps):
            known |= written[number]
            if step.evidence:
                found = claims(passages(step.evidence))
                new = later[number] & found.keys() - known
                if len(new) >= self.words or any(found[word].marked for word in new):
                    used.add(number)
        return used


def has_verdicts(trajectory: Trajectory) -> bool:
    """Whether the agent says what it uses: its dialect asks for verdicts, or it names none and a verdict is there."""
    if trajectory.dialect:
        return Citation().covers(trajectory.dialect)
    return any(step.helpful is not None for step in trajectory.steps)


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
    return _share([number for number, _ in calls], repeated, "this call was made before")


def _share(steps: list[int], wasted: list[int], why: str) -> Score:
    parts: dict[str, Any] = {"calls": len(steps), "steps": [number + 1 for number in wasted]}
    return Score(len(wasted) / len(steps), f"step {wasted[0] + 1}: {why}" if wasted else "", parts)


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
    texts: Iterable[str] = (step.think or "", step.answer or "", call_words(step.call) if step.call else "")
    return set(claims("\n".join(texts)))


def _later(written: list[set[str]]) -> list[set[str]]:
    """For each step, all that the steps after it write."""
    found: list[set[str]] = [set()]
    for words in reversed(written[1:]):
        found.append(found[-1] | words)
    return found[::-1]
