"""Correctness that cannot be earned from memory: a right answer counts only where evidence holds
it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import punctuation
from typing import Any, ClassVar
from urllib.parse import unquote

import msgspec

from ..answer_tokens import one_typography
from ..errors import ConfigError
from ..judges.lexical import terms
from ..text import content_words, exact_match, holds, normalize, sub_exact_match
from ..trajectory import Evidence, ToolCall, Trajectory
from .answer_support import AnswerSupport, claimed_sentences
from .base import BatchReward, Column, Score
from .correctness import Correctness
from .turns import QUERIES, passages, short_answer

ABSTENTION = "unknown"  # the answer that claims nothing
_CLOSED = frozenset(("yes", "no", "true", "false"))  # no passage holds them as an answer
_ARTICLES = frozenset(("a", "an", "the"))
NEVER_LOOKED_UP = _CLOSED | {ABSTENTION}
"""Answers that are never looked up: calls hold them by chance, as in "no country for old men"."""
_NO_CLAIM = "the right words stand in no claim of the answer"
_UNASKED = Score(None, "the answer is not right")  # of the support, where it cannot change anything


@dataclass(frozen=True)
class SourceGated(BatchReward):
    """The outcome where the cited evidence supports the answer, else 0, in [0, 1].

    ```
    R = outcome · [R_ans = 1]
    outcome: `Correctness`       R_ans: `AnswerSupport`, the share of the answer's claims that the evidence supports
    ```

    Ours; reward environments call it source gating. Of an answer in a box or another form, what is
    compared with the gold answers is what must be supported. A sentence that declines ("I could not
    find Lima") and a line "Confidence:" are no claims, so that nothing supports them: an answer
    earns no more than its claims by themselves.

    With the default support the normalised answer must occur, as whole words, in a passage that a
    valid yes-step cites; in dialects without citations, in one that a tool returned. No passage can
    hold a yes or no: where words are compared, they count where any evidence is cited (or
    returned), also in a sentence that says nothing else ("Yes, they are."). "unknown" claims
    nothing, so it counts once a tool was asked.

    A call looks the answer up when it holds the whole answer, in whatever order, and neither the
    question nor any evidence before it does: the agent knew or guessed it, and what comes back only
    agrees with it. Words of the question need not be in the evidence: who is asked for a city, and
    reads of New York, has read of New York City. Where `looked_up` is false, as in the mixes of
    this package, such an answer counts for nothing. Forms around the answer (a box, JSON), accents,
    plurals and differences in typography are no matter; names of arguments, and numbers beside a
    text (`top_k`), are not read. Of an answer that says more than a gold answer ("It is Lima."),
    the gold answers in it are looked up, too. A yes or no, "unknown", and an answer of function
    words alone ("It") are never looked up: calls hold these by chance.

    The support is asked for only where the outcome is above 0. `parts["outcome"]` is the value
    without the gate, `parts["supported"]` whether the gate is open (`None` where nobody was asked),
    `parts["supported_by"]` the judge.

    Raises `ConfigError` for a support that averages probabilities: the gate would stay closed.

    Args:
        outcome: says whether the answer is right.
        support: says whether evidence holds it; its `evidence` and `judge` are the knobs.
        looked_up: whether an answer counts that a call looked up and evidence then holds.

    How to hack it: answer from memory and cite everything; some passage is likely to hold the word.
    Search for the answer itself and cite what comes back; without `looked_up`, for a part of it.
    """

    outcome: Correctness = field(default_factory=Correctness)
    support: AnswerSupport = field(default_factory=AnswerSupport)
    looked_up: bool = True

    name: ClassVar[str] = "source_gated"
    columns: ClassVar[Mapping[str, Column]] = {
        "source_gated": Column("gated", "right answers that the cited evidence holds"),
    }
    label: ClassVar[str] = "correct and in the evidence, R_anc"

    def __post_init__(self) -> None:
        if self.support.soft:
            raise ConfigError(
                "SourceGated: the gate opens where all claims are supported, and a mean of "
                "probabilities is hardly ever 1: use a support with soft=False"
            )

    def score_batch(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """As `Reward.score_batch`.

        The support of a row is settled without the judge, or it is 0 since the answer's claims by
        themselves are not right, or it is judged. A row is paid what its answer earns or what its
        claims earn, whichever is less.
        """
        outcomes = self.outcome.score_batch(trajectories)
        supports: dict[int, Score] = {}  # by row
        to_judge: dict[int, Trajectory] = {}  # by row, those whose support is open
        for row, (trajectory, outcome) in enumerate(zip(trajectories, outcomes, strict=True)):
            support = self._without_support(trajectory, outcome)
            if support is not None:
                supports[row] = support
            else:
                # Words beside the answer are not compared with the gold answers either
                answer = short_answer(trajectory)
                to_judge[row] = msgspec.structs.replace(trajectory, answer=answer)
        outcomes_of_claims = self._outcomes_of_claims(to_judge)
        for row, outcome_of_claims in outcomes_of_claims.items():
            if outcome_of_claims.value:
                continue
            del to_judge[row]
            if outcome_of_claims.value is None:
                supports[row] = Score(None, outcome_of_claims.why)
            else:
                supports[row] = Score(0.0, _NO_CLAIM)
        judged = self.support.score_batch(list(to_judge.values()))
        supports.update(zip(to_judge, judged, strict=True))
        scores = []
        for row, outcome in enumerate(outcomes):
            # What the claims earn by themselves, where the answer holds more than claims
            outcome_of_claims = outcomes_of_claims.get(row, outcome)
            earned = min(outcome, outcome_of_claims, key=lambda score: score.value or 0.0)
            scores.append(_gated(outcome, earned, supports[row]))
        return scores

    def _outcomes_of_claims(self, compared: Mapping[int, Trajectory]) -> dict[int, Score]:
        """By row, what the claims earn by themselves where the answer holds more than claims."""
        with_claims_alone: dict[int, Trajectory] = {}
        for row, trajectory in compared.items():
            claims = "\n".join(claimed_sentences(trajectory))
            if _unspaced(claims) != _unspaced(trajectory.answer or ""):
                with_claims_alone[row] = msgspec.structs.replace(trajectory, answer=claims)
        scores = self.outcome.score_batch(list(with_claims_alone.values()))
        return dict(zip(with_claims_alone, scores, strict=True))

    def _without_support(self, trajectory: Trajectory, outcome: Score) -> Score | None:
        """What stands in for the support where nobody need judge it; `None` where it is judged."""
        if not outcome.value:
            return _UNASKED
        if not self.looked_up:  # such answers count for nothing
            number, name = _first_look_up(trajectory)
            if number:
                return Score(0.0, f"step {number} asks for {name!r} before any evidence holds it")
        answer = normalize(short_answer(trajectory))
        if answer == ABSTENTION:
            has_called = any(step.call for step in trajectory.steps)
            why = "" if has_called else "no tool was asked"
            return Score(float(has_called), why)
        # any passage holds such words, or none does, whatever the answer rests on
        if _is_closed(answer, trajectory.answers) and self.support.judge.lexical:
            has_evidence = bool(self.support.evidence_for(trajectory))
            why = "" if has_evidence else f"{answer!r} rests on no evidence"
            return Score(float(has_evidence), why)
        return None


def _gated(outcome: Score, earned: Score, support: Score) -> Score:
    """What a rollout is paid: what its answer `earned`, where the support is full."""
    parts = {**outcome.parts, "outcome": outcome.value, "supported": None}
    if "judge" in support.parts:
        parts["supported_by"] = support.parts["judge"]
    if support is _UNASKED:
        return Score(outcome.value, outcome.why, parts)
    if support.value is None:
        return Score(None, support.why, {**parts, "abstained": True})
    if support.value < 1.0:
        why = f"counts for nothing: {support.why}"
        return Score(0.0, why, {**parts, "supported": False})
    return Score(earned.value, earned.why, {**parts, "supported": True})


def _unspaced(text: str) -> str:
    return "".join(text.split())


def _is_closed(answer: str, golds: Sequence[str]) -> bool:
    """Whether a normalised answer is a yes or no, or says one and nothing that could be read."""
    if answer in _CLOSED:
        return True
    says_one = answer.partition(" ")[0] in _CLOSED and not terms(answer)
    return says_one and any(normalize(gold) in _CLOSED for gold in golds)


def step_that_looks_up(trajectory: Trajectory) -> int:
    """The first step (from 1) whose call holds the whole answer, or a gold answer that stands in
    it, where neither the question nor the evidence before it does; 0: there is none.

    Example:
        >>> from faithful_search.trajectory import Step, ToolCall
        >>> search = Step("I look.", ToolCall("local_search", {"query": "Lima"}))
        >>> steps = (search, Step("So it is.", answer="Lima"))
        >>> step_that_looks_up(Trajectory(steps, "What is the capital of Peru?", "Lima"))
        1
    """
    return _first_look_up(trajectory)[0]


def _first_look_up(trajectory: Trajectory) -> tuple[int, str]:
    """The step of `step_that_looks_up`, and the name that its call holds, or (0, "")."""
    answer = short_answer(trajectory)
    golds = trajectory.answers
    names = [answer]
    is_gold = exact_match(answer, golds, "squad") or exact_match(answer, golds, "unicode")
    if not is_gold:  # it may say more than a gold answer: "It is Lima."
        names += [gold for gold in golds if sub_exact_match(answer, [gold], "unicode")]
    look_ups = []
    for name in dict.fromkeys(names):
        number = _step_that_asks_for(name, trajectory)
        if number:
            look_ups.append((number, name))
    return min(look_ups, default=(0, ""))


def _step_that_asks_for(name: str, trajectory: Trajectory) -> int:
    """The first step (from 1) whose call holds this name before the agent has read it; 0: there is
    none.
    """
    name = one_typography(name)
    plain_name = _plain(name)
    if plain_name in NEVER_LOOKED_UP or not content_words(plain_name):
        return 0
    question = one_typography(trajectory.question or "")
    if _stands_in(name, question):
        return 0
    shorter_names = _names_without_question(name, question)
    words = _content(name)
    # One word finds a name only if nothing but an article stands beside it: "Beatles" finds "The
    # Beatles". Whoever asks for a "man" need not have "It Is a Man" in mind.
    words_suffice = len(words) > 1 or len(set(plain_name.split()) - _ARTICLES) == 1
    words_read = _content(question)
    for number, step in enumerate(trajectory.steps, start=1):
        if step.call is not None:
            request = one_typography(_request_of(step.call))
            if _stands_in(name, request):
                return number
            # In another order, or with other words between, they find the same
            has_unread_word = not words <= words_read
            if has_unread_word and words_suffice and words <= _content(request):
                return number
        returned = one_typography(_returned(step.evidence))
        if _stands_in(name, returned):
            return 0
        returned_in_a_line = " ".join(returned.split())
        if any(holds(returned_in_a_line, shorter_name) for shorter_name in shorter_names):
            return 0
        words_read |= _content(returned)
    return 0


def _stands_in(name: str, text: str) -> bool:
    """Whether a text holds a name, or the same in another way to write numbers or dates."""
    if holds(_plain(text), _plain(name)):
        return True
    words = normalize(name, "unicode")
    return bool(words) and f" {words} " in f" {normalize(text, 'unicode')} "


def _names_without_question(name: str, question: str) -> set[str]:
    """The name without the words of the question at its ends, in the ways to write a name: who is
    asked for a city, and reads of New York, has read of New York City.
    """
    words_of_question = set(_plain(question).split())
    words = name.split()
    start, end = 0, len(words)
    while start < end and _plain(words[start]) in words_of_question:
        start += 1
    while start < end and _plain(words[end - 1]) in words_of_question:
        end -= 1
    shorter_name = " ".join(words[start:end]).strip(punctuation)
    # Numbers, and words that are no name ("games" of "War Games"), stand in too many texts
    if all(word.isdecimal() for word in content_words(shorter_name)):
        return set()
    spellings = (shorter_name, shorter_name.title(), shorter_name.upper())
    return {spelling for spelling in spellings if not spelling.islower()}


def _content(text: str) -> set[str]:
    """What a text's words are compared by, also of those that are as good as none in a claim
    ("search", "states"): an answer may be made of them.
    """
    without_term = {word for word in content_words(_plain(text)) if not terms(word)}
    return terms(text) | without_term


def _request_of(call: ToolCall) -> str:
    """What a call asks for: the texts in its arguments, one a line. Numbers and switches beside a
    text are settings, also where they are quoted, unless they are a query themselves. Without
    arguments the call is as written.
    """
    values = list(_values(call.arguments))
    if not values:
        return call.raw
    queries: list[Any] = []
    for name in QUERIES:
        queries += _values(call.arguments.get(name))
    texts = []
    for value in values:
        if isinstance(value, str) and (value in queries or not value.strip().isdecimal()):
            texts.append(unquote(value))
    return "\n".join(texts or map(str, values))


def _values(value: Any) -> Iterator[Any]:
    """The texts, numbers and switches within lists and dictionaries."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _values(inner)
    else:
        yield value


def _returned(evidence: Iterable[Evidence]) -> str:
    """What the agent can have read: passages, and addresses, which it may open next."""
    evidence = list(evidence)
    addresses = [unquote(f"{passage.url} {passage.source}") for passage in evidence]
    return "\n".join([passages(evidence), *addresses])


def _plain(text: str) -> str:
    """A text of one typography, as it is searched in."""
    # with a blank for each mark, so that a tag beside a word is no part of it
    return normalize(text, "pokee")
