"""Labelled pairs made of thoughts that agents really had, beside what their searches returned.

| kind | label | what was done |
|---|---|---|
| `presumed` | by `presumed_label` | nothing: the right answer and dates suggest the label |
| the keys of `edits.ERRORS` | false | one fact of a faithful thought edited |
| `evidence_only` | false | a name, number or date exchanged in the evidence alone |
| `both_sides` | true | the same exchange in evidence and thought |
| `answered` | false | a passage with the answer added, which the thought goes on looking for |
| `unanswered` | true | the passages with the answer removed |
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..judges.counts import dates_of, goes_on, searches
from ..text import normalize, sentences
from .edits import ERRORS, Edited, Span, exchange
from .passage_pairs import PairRow

_SHORTEST_ANSWER = 3
_EXCHANGED = ("name", "number", "date")


class RealThought(NamedTuple):
    """A thought (`hypothesis`) and the evidence that it follows (`premise`). `answers` are the
    right ones to the question.
    """

    premise: str
    hypothesis: str
    question: str
    answers: Sequence[str] = ()


def presumed_label(thought: RealThought) -> bool | None:
    """What the right answer and the dates say of a thought, where they say anything.

    One date at least must stand in the evidence; others may come from an earlier step. Of two dates
    or more this decides. Else a thought that goes on searching, and does not state the answer, is
    right if the evidence lacks the answer, too; one that concludes with the right answer is right
    if the evidence has it.

    Example:
        >>> evidence = "Ada Lind (born 3 May 1902) was a painter. She studied in Bergen."
        >>> question = "Where did the painter study?"
        >>> searching = "Now I will search for her school."
        >>> presumed_label(RealThought(evidence, searching, question, ["Bergen"]))
        False
        >>> presumed_label(RealThought(evidence, "She was born on May 3, 1902.", question))
        True
    """
    dates = dates_of(thought.hypothesis)
    in_evidence = dates & dates_of(thought.premise)
    if len(dates) > 1 or (dates and not in_evidence):
        return bool(in_evidence)
    answers = _telling_answers(thought)
    if not answers:
        return True if in_evidence else None
    returned = _holds(thought.premise, answers)
    stated = _holds(thought.hypothesis, answers)
    if goes_on(thought.hypothesis):
        return None if stated else not returned
    return returned if stated else None


def edited_thoughts(thought: RealThought, rng: random.Random) -> Iterator[PairRow]:
    """A false pair of a faithful thought, by an error in it or in its evidence; in the second case
    also a true one, with the same exchange everywhere.
    """

    def comes_late(kind: str) -> bool:
        return kind not in _EXCHANGED or rng.random() < 0.3

    kinds = list(ERRORS)
    rng.shuffle(kinds)
    kinds.sort(key=comes_late)
    places = _sentence_places(thought)
    rng.shuffle(places)
    for kind in kinds:
        for start, end in places:
            sentence = thought.hypothesis[start:end]
            edited = ERRORS[kind](sentence, [thought.premise], rng)
            if edited is None or not _is_fit(edited, thought):
                continue
            if kind in _EXCHANGED and rng.random() < 0.45:
                yield from _exchanged_evidence(thought, edited)
            else:
                yield _with_error(thought, edited, start, end, rng)
            return


def answered_pairs(
    thought: RealThought, passages: Sequence[str], rng: random.Random
) -> Iterator[PairRow]:
    """At most one pair of a thought that goes on searching: where its evidence lacks the answer,
    the thought with a passage added that has it; else the thought with those passages removed.
    `passages` are what other searches for the same question returned.
    """
    answers = _telling_answers(thought)
    if not answers or not goes_on(thought.hypothesis) or _holds(thought.hypothesis, answers):
        return
    returned = thought.premise.split("\n\n")
    telling = [passage for passage in returned if _holds(passage, answers)]
    if not telling:
        elsewhere = [passage for passage in passages if _holds(passage, answers)]
        if elsewhere:
            place = rng.randint(0, len(returned))
            longer = [*returned[:place], rng.choice(elsewhere), *returned[place:]]
            yield _pair(thought, "answered", False, premise="\n\n".join(longer), spans=None)
        return
    remaining = "\n\n".join(passage for passage in returned if passage not in telling)
    if remaining and _is_grounded(thought.hypothesis, remaining, thought.premise):
        yield _pair(thought, "unanswered", True, premise=remaining)


def places_of(text: str, parts: Sequence[str]) -> tuple[Span, ...]:
    """Where each part first stands in a text."""
    spans = []
    for part in parts:
        start = text.find(part)
        if start >= 0 and part:
            spans.append((start, start + len(part)))
    return tuple(spans)


def _telling_answers(thought: RealThought) -> list[str]:
    """The answers by which one sees whether a text answers the question."""
    answers = [normalize(answer) for answer in thought.answers]
    fit = [answer for answer in answers if len(answer) >= _SHORTEST_ANSWER and answer != "yes"]
    return [] if _holds(thought.question, fit) else fit


def _holds(text: str, answers: Sequence[str]) -> bool:
    padded = f" {normalize(text)} "
    return any(f" {answer} " in padded for answer in answers)


def _sentence_places(thought: RealThought) -> list[Span]:
    places = []
    end = 0
    for sentence in sentences(thought.hypothesis):
        start = thought.hypothesis.index(sentence, end)
        end = start + len(sentence)
        if not searches(sentence):
            places.append((start, end))
    return places


def _is_fit(edited: Edited, thought: RealThought) -> bool:
    """Whether the edit is of something that the evidence says."""
    if edited.kind in _EXCHANGED:
        return bool(_all(thought.premise, edited.old))
    return edited.kind in ("roles", "relation", "negation")


def _with_error(
    thought: RealThought, edited: Edited, start: int, end: int, rng: random.Random
) -> PairRow:
    """The thought with the error in the sentence that was edited, which stands from `start` to
    `end`; or, of a name, number or date, sometimes wherever it stands.
    """
    before = thought.hypothesis
    if edited.kind in _EXCHANGED and rng.random() < 0.6:
        text = exchange(before, edited)
        spans = _all(text, edited.new)
    else:
        text = before[:start] + edited.text + before[end:]
        spans = tuple((start + first, start + last) for first, last in edited.spans)
    return _pair(thought, edited.kind, False, hypothesis=text, spans=spans)


def _exchanged_evidence(thought: RealThought, edited: Edited) -> Iterator[PairRow]:
    premise = exchange(thought.premise, edited)
    text = exchange(thought.hypothesis, edited)
    spans = _all(thought.hypothesis, edited.old)
    yield _pair(thought, "evidence_only", False, premise=premise, spans=spans)
    if edited.old not in thought.question:
        yield _pair(thought, "both_sides", True, premise=premise, hypothesis=text)


def _is_grounded(thought: str, evidence: str, before: str) -> bool:
    """Whether what the thought shares with the evidence before is still there."""
    words = {word for word in re.findall(r"[A-Z0-9][\w'-]+", thought) if word in before}
    return all(word in evidence for word in words)


def _all(text: str, part: str) -> tuple[Span, ...]:
    return tuple(match.span() for match in re.finditer(rf"(?<!\w){re.escape(part)}(?!\w)", text))


def _pair(
    thought: RealThought,
    kind: str,
    label: bool,
    *,
    premise: str | None = None,
    hypothesis: str | None = None,
    spans: tuple[Span, ...] | None = (),
) -> PairRow:
    if premise is None:
        premise = thought.premise
    if hypothesis is None:
        hypothesis = thought.hypothesis
    return PairRow(premise, hypothesis, label, kind, spans, thought.question, "info_think")
