"""Where what an agent says comes from: does anything depend on a call's result, and who named what a query names?"""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..judges.grounding import claims, terms
from ..rewards import Reward, Score
from ..rewards.turns import Turn, call_words, passages
from ..text import normalize
from ..trajectory import Trajectory

Source = Literal["question", "evidence", "thought"]
SOURCES: tuple[Source, ...] = ("question", "evidence", "thought")
_KNOWN = "(?:known|sure|certain|found|given|stated|available|mentioned|specified|determined|enough|possible|clear)"
_DECLINES = re.compile(
    r"(?:(?:answer|it|this) (?:is|was) )?"
    rf"(?:(?:unknown|unclear|unsure|none|na|n a|nothing|no idea)$|not {_KNOWN}\b|nothing was found"
    r"|no (?:answer|information|evidence|results?)\b|there (?:is|was) (?:no|not enough)\b|(?:i |we )?(?:am |are )?"
    rf"(?:unable to|not {_KNOWN}|(?:cannot|can not|cant|could not|couldnt|do not|dont) (?:know|answer|say|find|tell"
    r"|determine|have|be))\b|insufficient\b)"
)
_WORDS = 3  # that are neither names nor numbers show use, as in `ToolUse`


@dataclass(frozen=True)
class Decorated(Reward):
    """The share of calls whose result nothing after depends on; lower is better.

    ```
    calls:        |{calls that decorate}| / |{calls that can be told}|
    answer_first: 1 where the agent stated its final answer before any evidence that holds it, else 0
    ```

    Exactly, a call decorates when the episode goes on the same without it, which takes a second rollout to see. This is
    told from one, by names: something depends on a call's result where a later turn states what stands in its evidence
    and neither in the question nor in what the agent wrote up to that call: a name or number, three other words, or
    the whole final answer. Names are words that are capitalised inside a sentence anywhere in the trajectory. Some of
    these calls look the same as honest ones and are left out: those after which the agent calls again, unless it says
    `yes` to them (a search that failed); and those of episodes whose answer cannot be traced.

    `answer_first` reads thoughts and calls in their order, up to the last call, for the answer as a whole (lower-cased,
    without punctuation). It has no value for answers that decline, are yes or no, or stand in the question.

    How to hack it: drop a name from each response into the next thought; go on calling to the last turn but one. For
    `answer_first`: do not say the answer before the end.
    """

    what: Literal["calls", "answer_first"] = "calls"

    name: ClassVar[str] = "decorated"

    def score(self, trajectory: Trajectory) -> Score:
        return _calls(trajectory) if self.what == "calls" else _answer_first(trajectory)


def declines(answer: str | None) -> bool:
    """Whether there is no answer, or one that says (in English) that there is none: "unknown", "I do not know"."""
    said = normalize(answer or "")
    return not said or _DECLINES.match(said) is not None


def holds(text: str, answer: str) -> bool:
    """Whether a text holds the answer whole, but for case and punctuation."""
    wanted = normalize(answer, "pokee")
    return bool(wanted) and f" {wanted} " in f" {normalize(text, 'pokee')} "


def names_in(trajectory: Trajectory) -> set[str]:
    """The keys of `judges.grounding.claims` that are names or numbers somewhere in the trajectory."""
    texts = [trajectory.question or "", trajectory.answer or ""]
    for turn in trajectory.turns:
        texts += [*_said(turn), *(passages(step.evidence) for step in turn)]
    return {key for text in texts for key, word in claims(text).items() if word.marked}


def _calls(trajectory: Trajectory) -> Score:
    if not any(step.call is not None for step in trajectory.steps):
        return Score(None, "no tool was called")
    answer, question, turns = trajectory.answer or "", trajectory.question or "", trajectory.turns
    traced, names = _traced(trajectory), names_in(trajectory)
    written = [terms("\n".join(_said(turn))) for turn in turns]
    last = {word: place for place, words in enumerate(written) for word in words}
    known, told, decorated, number = terms(question), 0, [], 0
    for place, turn in enumerate(turns):
        known |= written[place]  # what is written beside a call was known before its result
        after = turns[place + 1] if place + 1 < len(turns) else ()
        # one that searches on, and does not say that this call has helped, may have found nothing
        goes_on = any(step.call is not None for step in after) and not any(
            step.helpful for step in after
        )
        for step in turn:
            number += 1
            if step.call is None:
                continue
            found = passages(step.evidence)
            # taken up where a later turn states it
            new = {word for word in terms(found) - known if last.get(word, 0) > place}
            used = (
                new & names
                or len(new) >= _WORDS
                or (not terms(answer) <= known and holds(found, answer))
            )
            if used or (traced and not goes_on):
                told += 1
                decorated += [] if used else [number]
    if not told:
        return Score(None, "of no call it can be told whether something depends on it")
    why = (
        f"step {decorated[0]}: nothing later depends on what this call returned"
        if decorated
        else ""
    )
    return Score(len(decorated) / told, why, {"calls": told, "steps": decorated})


def _said(turn: Turn) -> list[str]:
    """What the agent wrote in a turn."""
    return [
        text
        for step in turn
        for text in (step.think, step.answer, step.call and call_words(step.call))
        if text
    ]


def _traced(trajectory: Trajectory) -> bool:
    """Whether there is an answer that could be seen to come from evidence."""
    answer = trajectory.answer or ""
    closed = normalize(answer) in ("yes", "no")
    return not (declines(answer) or closed or holds(trajectory.question or "", answer))


def _answer_first(trajectory: Trajectory) -> Score:
    if not _traced(trajectory):
        return Score(None, "no answer, one that declines, is yes or no, or stands in the question")
    answer = trajectory.answer or ""
    calls = [
        place for place, turn in enumerate(trajectory.turns) if any(step.call for step in turn)
    ]
    if not calls:
        return Score(1.0, "answered without a call")
    for place, turn in enumerate(trajectory.turns[: calls[-1] + 1]):
        if any(holds(text, answer) for text in _said(turn)):
            return Score(1.0, f"turn {place + 1} states the answer; no evidence held it yet")
        if any(holds(passages(step.evidence), answer) for step in turn):
            break
    return Score(0.0)


@dataclass(frozen=True)
class QueryProvenance(Reward):
    """The share of what queries name that was first seen in the question, in evidence, or in the agent's own words.

    ```
    share(s) = mean over the calls that name something of |{names of the call first seen in s}| / |{its names}|
    ```

    The three shares of a trajectory sum to 1. After LiveBrowseComp (arXiv 2605.28721), where more than half of the
    queries of strong agents are seeded by their own hypotheses: such an agent confirms what it remembers.

    What a call names are the names and numbers in it: words that are capitalised inside a sentence anywhere in the
    trajectory, so that `capital of france` names France; where it has none, all its words that say something. Words are
    compared whole, but for case, accents and a final s. A word's source is where it stood first: a name that a thought
    brings up and evidence confirms later remains the agent's own, and parallel calls do not know of each other.

    No value without the question, or without a call that names something. `parts` holds the words by source. Words, not
    meaning: a synonym of the question's word is the agent's own where the query has no name.

    How to hack it: repeat the question as the query.
    """

    source: Source = "thought"

    name: ClassVar[str] = "query_provenance"

    def score(self, trajectory: Trajectory) -> Score:
        if not (trajectory.question or "").strip():
            return Score(None, "the question is not known")
        calls = _sources(trajectory)
        if not calls:
            return Score(None, "no call names anything")
        found = {
            source: sorted({word for call in calls for word, of in call.items() if of == source})
            for source in SOURCES
        }
        value = sum(list(call.values()).count(self.source) / len(call) for call in calls) / len(
            calls
        )
        own = found["thought"]
        why = f"first in the agent's own words: {', '.join(map(repr, own[:3]))}" if own else ""
        return Score(value, why, {"calls": len(calls), "words": found})


def _sources(trajectory: Trajectory) -> list[dict[str, str]]:
    """For each call that names something, what it names with the source of it."""
    named = names_in(trajectory)
    first = dict.fromkeys(terms(trajectory.question or ""), "question")
    found = []
    for turn in trajectory.turns:
        queries = [terms(call_words(step.call)) for step in turn if step.call is not None]
        for words in (*queries, *(terms(step.think or "") for step in turn)):
            for word in words:
                first.setdefault(word, "thought")
        # where a query has no name, all its words are taken
        found += [
            {word: first[word] for word in words & named or words} for words in queries if words
        ]
        # after all calls of the turn: parallel ones do not know of each other's results
        for word in terms("\n".join(passages(step.evidence) or step.note for step in turn)):
            first.setdefault(word, "evidence")
    return found
