"""Gives the citations that an API sent beside its messages to the steps whose words they are of."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..citations import page_of
from ..trajectory import Citation, Evidence, Span, Step, Trajectory


class Sent(NamedTuple):
    """One message's citations. Their spans, and the message's own, are in the chat's text."""

    message: Span
    citations: list[Citation]


def with_citations(trajectory: Trajectory, sent: Sequence[Sent]) -> Trajectory:
    """The trajectory with these citations in its steps.

    Where an API keeps the text of a page to itself, what it quotes of the page becomes its text: no
    more can be known of it.
    """
    if not sent:
        return trajectory
    starts = [message_start for (message_start, _), _ in sent]
    quotes: defaultdict[str, dict[str, None]] = defaultdict(dict)  # by page, each once
    for _, message_citations in sent:
        for citation in message_citations:
            if citation.quote:
                quotes[page_of(citation.target)].setdefault(citation.quote)
    steps = []
    for step in trajectory.steps:
        step_start, _ = step.spans.get("step", (0, 0))
        number = bisect_right(starts, step_start) - 1
        citations: tuple[Citation, ...] = ()
        if number >= 0 and step_start <= sent[number].message[1]:
            citations = _of_step(step, trajectory.text, sent[number].citations)
        evidence = tuple(_with_quotes(passage, quotes) for passage in step.evidence)
        steps.append(msgspec.structs.replace(step, citations=citations, evidence=evidence))
    return msgspec.structs.replace(trajectory, steps=tuple(steps))


def _of_step(step: Step, text: str, citations: Sequence[Citation]) -> tuple[Citation, ...]:
    """The citations in the step's answer, or in its thought where it has no answer."""
    name, words = ("think", step.think) if step.answer is None else ("answer", step.answer)
    if not words or name not in step.spans:
        return ()
    start, end = step.spans[name]
    start = text.find(words, start, end)
    end = start + len(words)
    result = []
    for citation in citations:
        first, last = citation.span
        if not any(citation.span):  # it has no place
            result.append(citation)
        elif start >= 0 and first <= end and last >= start:
            span = (max(first, start) - start, min(last, end) - start)
            result.append(msgspec.structs.replace(citation, span=span))
    return tuple(result)


def _with_quotes(passage: Evidence, quotes: dict[str, dict[str, None]]) -> Evidence:
    """A passage without text gets what was quoted of its page."""
    if passage.text.strip() or not passage.url or page_of(passage.url) not in quotes:
        return passage
    return msgspec.structs.replace(passage, text="\n".join(quotes[page_of(passage.url)]))
