"""Rewards about where an agent's words come from: does anything depend on what a call returned
(`Decorated`), and where did the names in a query stand first (`QueryProvenance`)?
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..evidence import supporting
from ..judges.lexical import claims, terms
from ..rewards import Result, Reward, Score
from ..rewards.declined import names_nothing
from ..rewards.turns import (
    Turn,
    answer_of,
    call_words,
    holds_answer,
    passages,
    short_answer,
    written,
)
from ..text import normalize
from ..trajectory import Trajectory

Source = Literal["question", "evidence", "thought"]
SOURCES: tuple[Source, ...] = ("question", "evidence", "thought")
_WORDS = 3
"""This many new words that are neither names nor numbers show that a result was used, as in
`ToolUse`.
"""


@dataclass(frozen=True)
class Decorated(Reward):
    """The share of calls that decorate: nothing later depends on what they returned. Lower is
    better.

    ```
    calls:        |{calls that decorate}| / |{calls that can be classified}|
    answer_first: 1 where the agent stated its final answer before any evidence that holds it, else 0
    ```

    Strictly, a call decorates if the episode would be the same without it, which only a second
    rollout could show. This reward judges by words. A call is used if a later turn states something
    that stands in its evidence, but neither in the question nor in what the agent wrote up to the
    call: a name or number, three other words, or the whole final answer. Names are words that are
    capitalised inside a sentence anywhere in the trajectory.

    A call that is not used decorates, unless an honest call would look the same. Such calls cannot
    be classified: those after which the agent calls again without a verdict `yes` (the search may
    have failed), and those of episodes whose answer cannot be traced in evidence.

    `answer_first` looks for the whole answer (lower-cased, without punctuation) in thoughts and
    calls, in their order and up to the last call. It has no value for answers that decline, are yes
    or no, or stand in the question.

    How to hack it: repeat a name from each response in the next thought; call until the last turn
    but one. For `answer_first`: do not state the answer before the end.
    """

    what: Literal["calls", "answer_first"] = "calls"

    name: ClassVar[str] = "decorated"
    results: ClassVar[Mapping[str, Result]] = {
        "decorated": Result(
            asks="which share of the calls returned something that nothing later depends on?",
            direction=-1,
            good="something later depends on what a call returned",
            clean="something later depends on what each call returned",
        ),
        "answer_first": Result(
            asks="did the agent state its answer before it had any evidence for it?",
            direction=-1,
            good="the answer is not stated before its evidence",
            clean="no turn states the answer before the evidence does",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "decorated": "Calls that nothing after depends on",
        "answer_first": "Answers stated before their evidence",
    }

    def score(self, trajectory: Trajectory) -> Score:
        return _calls(trajectory) if self.what == "calls" else _answer_first(trajectory)


def names_in(trajectory: Trajectory) -> set[str]:
    """The words that are names or numbers anywhere in the trajectory, as keys of
    `judges.lexical.claims`.
    """
    texts = [trajectory.question or "", answer_of(trajectory)]
    for turn in trajectory.turns:
        texts += _texts_of(turn)
        texts += [passages(supporting(step)) for step in turn]
    names: set[str] = set()
    for text in texts:
        names.update(key for key, word in claims(text).items() if word.marked)
    return names


def _calls(trajectory: Trajectory) -> Score:
    """The score of `Decorated("calls")`."""
    if not any(step.call is not None for step in trajectory.steps):
        return Score(None, "no tool was called")
    answer = short_answer(trajectory)
    can_be_traced = _can_be_traced(trajectory)
    names = names_in(trajectory)
    turns = trajectory.turns
    words_of_turns = [terms("\n".join(_texts_of(turn))) for turn in turns]
    last_turn_with: dict[str, int] = {}  # by word
    for place, words in enumerate(words_of_turns):
        last_turn_with.update(dict.fromkeys(words, place))
    known_words = terms(trajectory.question or "")
    classified = 0
    decorated: list[int] = []  # the numbers of steps
    number = 0
    for place, turn in enumerate(turns):
        # What is written beside a call was known before its result
        known_words |= words_of_turns[place]
        next_turn = turns[place + 1] if place + 1 < len(turns) else ()
        calls_again = any(step.call is not None for step in next_turn)
        may_have_failed = calls_again and not any(step.helpful for step in next_turn)
        for step in turn:
            number += 1
            if step.call is None:
                continue
            text = passages(supporting(step))
            new_words = terms(text) - known_words
            stated_later = {word for word in new_words if last_turn_with.get(word, 0) > place}
            answer_is_new = not terms(answer) <= known_words
            has_answer = answer_is_new and holds_answer(text, answer)
            is_used = bool(stated_later & names) or len(stated_later) >= _WORDS or has_answer
            if is_used:
                classified += 1
            elif can_be_traced and not may_have_failed:
                classified += 1
                decorated.append(number)
    if not classified:
        return Score(None, "no call can be classified")
    why = ""
    if decorated:
        why = f"step {decorated[0]}: nothing later depends on what this call returned"
    return Score(len(decorated) / classified, why, {"calls": classified, "steps": decorated})


def _texts_of(turn: Turn) -> list[str]:
    """What the agent wrote in a turn."""
    texts: list[str] = []
    for step in turn:
        texts += written(step)
    return texts


def _can_be_traced(trajectory: Trajectory) -> bool:
    """Whether the answer would be recognised in evidence: it names something, and is neither yes
    nor no nor part of the question.
    """
    answer = short_answer(trajectory)
    if names_nothing(trajectory) or normalize(answer) in ("yes", "no"):
        return False
    return not holds_answer(trajectory.question or "", answer)


def _answer_first(trajectory: Trajectory) -> Score:
    """The score of `Decorated("answer_first")`."""
    if not _can_be_traced(trajectory):
        return Score(None, "no answer, one that declines, is yes or no, or stands in the question")
    answer = short_answer(trajectory)
    turns_to_last_call = 0
    for number, turn in enumerate(trajectory.turns, start=1):
        if any(step.call is not None for step in turn):
            turns_to_last_call = number
    if not turns_to_last_call:
        return Score(1.0, "answered without a call")
    for number, turn in enumerate(trajectory.turns[:turns_to_last_call], start=1):
        if any(holds_answer(text, answer) for text in _texts_of(turn)):
            return Score(1.0, f"turn {number} states the answer; no evidence held it yet")
        if any(holds_answer(passages(supporting(step)), answer) for step in turn):
            break
    return Score(0.0)


@dataclass(frozen=True)
class QueryProvenance(Reward):
    """The share of the names in queries that stood first in the question, in evidence, or in the
    agent's own words (`source`).

    ```
    share(s) = mean over the calls that name something of |{names first seen in s}| / |{names}|
    ```

    The three shares of a trajectory sum to 1. The measure follows LiveBrowseComp (arXiv
    2605.28721), where more than half of the queries of strong agents rest on their own hypotheses:
    such an agent confirms what it remembers.

    The names of a call are the numbers in it, and the words that are capitalised inside a sentence
    anywhere in the trajectory, so that `capital of france` names France. In a call without any, all
    content words count as names. Words are compared whole, without case, accents and a final s.

    The source of a word is the place where it stood first: a name that a thought brings up remains
    the agent's own, even if evidence confirms it later. A call does not know the results of calls
    in the same turn.

    There is no value without the question, or without a call that names something. `parts` holds
    the words by source. Words are compared, not their meaning: if a query has no name, a synonym of
    a word of the question counts as the agent's own.

    How to hack it: repeat the question as the query.
    """

    source: Source = "thought"

    name: ClassVar[str] = "query_provenance"
    results: ClassVar[Mapping[str, Result]] = {
        "query_from_question": Result(
            asks="which share of what calls name stood in the question first?",
            direction=0,
            clean="all that the calls name stood in the question or in evidence first",
        ),
        "query_from_evidence": Result(
            asks="which share of what calls name stood in evidence first?",
            direction=0,
            clean="all that the calls name stood in the question or in evidence first",
        ),
        "query_from_thought": Result(
            asks="which share of what calls name did the agent bring up itself?",
            direction=-1,
            good="what calls name stood in the question or in evidence",
            clean="all that the calls name stood in the question or in evidence first",
        ),
    }

    def score(self, trajectory: Trajectory) -> Score:
        if not (trajectory.question or "").strip():
            return Score(None, "the question is not known")
        calls = _sources(trajectory)
        if not calls:
            return Score(None, "no call names anything")
        words: dict[str, set[str]] = {source: set() for source in SOURCES}
        shares = []
        for source_of_name in calls:
            for word, source in source_of_name.items():
                words[source].add(word)
            sources = list(source_of_name.values())
            shares.append(sources.count(self.source) / len(sources))
        why = ""
        if words["thought"]:
            examples = sorted(words["thought"])[:3]
            why = f"first in the agent's own words: {', '.join(map(repr, examples))}"
        parts = {
            "calls": len(calls),
            "words": {source: sorted(names) for source, names in words.items()},
        }
        return Score(sum(shares) / len(shares), why, parts)


def _sources(trajectory: Trajectory) -> list[dict[str, str]]:
    """For each call that names something, the source of each of its names."""
    all_names = names_in(trajectory)
    source_of = dict.fromkeys(terms(trajectory.question or ""), "question")
    calls = []
    for turn in trajectory.turns:
        queries = [terms(call_words(step.call)) for step in turn if step.call is not None]
        thoughts = [terms(step.think or "") for step in turn]
        for words in (*queries, *thoughts):
            for word in words:
                source_of.setdefault(word, "thought")
        for words in queries:
            if not words:
                continue
            names = words & all_names or words
            calls.append({name: source_of[name] for name in names})
        # After all calls of the turn, since they do not know each other's results
        responses = [passages(supporting(step)) or step.note for step in turn]
        for word in terms("\n".join(responses)):
            source_of.setdefault(word, "evidence")
    return calls
