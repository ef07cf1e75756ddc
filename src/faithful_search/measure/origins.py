"""Rewards about the origin of an agent's words: does anything depend on the result of a call
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
"""So many new words that are neither names nor numbers show that a result was used, as in
`ToolUse`.
"""


@dataclass(frozen=True)
class Decorated(Reward):
    """The share of calls whose result nothing after depends on; lower is better.

    ```
    calls:        |{calls that decorate}| / |{calls that can be told}|
    answer_first: 1 where the agent stated its final answer before any evidence that holds it, else 0
    ```

    Strictly, a call decorates if the episode would be the same without it, which only a second
    rollout could show. This reward judges by words. Something depends on the result of a call if a
    later turn states what stands in its evidence, but neither in the question nor in what the agent
    wrote up to the call: a name or number, three other words, or the whole final answer. Names are
    words that are capitalised inside a sentence anywhere in the trajectory.

    Some calls without such a turn look the same as honest ones and are left out: those after which
    the agent calls again without saying `yes` to them (the search may have failed), and those of
    episodes whose answer cannot be traced.

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
    """The keys of `judges.lexical.claims` that are names or numbers somewhere in the
    trajectory.
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
        following = turns[place + 1] if place + 1 < len(turns) else ()
        calls_again = any(step.call is not None for step in following)
        may_have_failed = calls_again and not any(step.helpful for step in following)
        for step in turn:
            number += 1
            if step.call is None:
                continue
            text = passages(supporting(step))
            new_words = terms(text) - known_words
            stated_later = {word for word in new_words if last_turn_with.get(word, 0) > place}
            has_answer = not terms(answer) <= known_words and holds_answer(text, answer)
            if stated_later & names or len(stated_later) >= _WORDS or has_answer:
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
    return [text for step in turn for text in written(step)]


def _can_be_traced(trajectory: Trajectory) -> bool:
    """Whether the answer could be recognised in evidence."""
    answer = short_answer(trajectory)
    closed = normalize(answer) in ("yes", "no")
    in_question = holds_answer(trajectory.question or "", answer)
    return not (names_nothing(trajectory) or closed or in_question)


def _answer_first(trajectory: Trajectory) -> Score:
    """The score of `Decorated("answer_first")`."""
    if not _can_be_traced(trajectory):
        return Score(None, "no answer, one that declines, is yes or no, or stands in the question")
    answer = short_answer(trajectory)
    calls = [
        place for place, turn in enumerate(trajectory.turns) if any(step.call for step in turn)
    ]
    if not calls:
        return Score(1.0, "answered without a call")
    for place, turn in enumerate(trajectory.turns[: calls[-1] + 1]):
        if any(holds_answer(text, answer) for text in _texts_of(turn)):
            return Score(1.0, f"turn {place + 1} states the answer; no evidence held it yet")
        if any(holds_answer(passages(supporting(step)), answer) for step in turn):
            break
    return Score(0.0)


@dataclass(frozen=True)
class QueryProvenance(Reward):
    """The share of the names in queries that stood first in the question, in evidence, or in the
    agent's own words (`source`).

    ```
    share(s) = mean over the calls that name something of |{names of the call first seen in s}| / |{its names}|
    ```

    The three shares of a trajectory sum to 1. The measure follows LiveBrowseComp (arXiv
    2605.28721), where more than half of the queries of strong agents rest on their own hypotheses:
    such an agent confirms what it remembers.

    The names of a call are its names and numbers: words that are capitalised inside a sentence
    anywhere in the trajectory, so that `capital of france` names France. A call without any has all
    its content words as names. Words are compared whole, without case, accents and a final s. The
    source of a word is the place where it stood first: a name that a thought brings up remains the
    agent's own, even if evidence confirms it later. Parallel calls do not know each other's
    results.

    There is no value without the question, or without a call that names something. `parts` holds
    the words by source. Words are compared, not their meaning: a synonym of a word of the question
    is the agent's own if the query has no name.

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
        for call in calls:
            for word, source in call.items():
                words[source].add(word)
            shares.append(list(call.values()).count(self.source) / len(call))
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
    """For each call that names something, its names with their sources."""
    named = names_in(trajectory)
    source = dict.fromkeys(terms(trajectory.question or ""), "question")
    calls = []
    for turn in trajectory.turns:
        queries = [terms(call_words(step.call)) for step in turn if step.call is not None]
        thoughts = [terms(step.think or "") for step in turn]
        for words in (*queries, *thoughts):
            for word in words:
                source.setdefault(word, "thought")
        for words in queries:
            if words:
                names = words & named or words
                calls.append({word: source[word] for word in names})
        # After all calls of the turn, since parallel ones do not know each other's results
        responses = [passages(supporting(step)) or step.note for step in turn]
        for word in terms("\n".join(responses)):
            source.setdefault(word, "evidence")
    return calls
