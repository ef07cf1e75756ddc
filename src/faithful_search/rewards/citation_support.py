"""Do the sources that a sentence of the answer cites support it?"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import msgspec

from ..citations import Sentence, read_answer
from ..evidence import supported_by
from ..judges import Pair, Verdict
from ..tasks import world_context
from ..trajectory import Trajectory
from .base import JudgedReward, Result, Score, StepPair
from .citation_returned import (
    REPORT_UNREAD,
    RESULTS_UNKNOWN,
    is_unread_report,
    results_unknown,
    unknown_sources,
    why_nothing_is_cited,
)

MADE_UP = Verdict(0.0, False, "cites only what was never returned", "rule")
SAYS_NOTHING = Verdict(0.0, False, "cites only an error, or another note of a tool", "rule")


@dataclass(frozen=True)
class CitationSupport(JudgedReward):
    """The share of the answer's citing sentences that the sources they cite support.

    ```
    citation_support = |{citing sentences supported by what they cite}| / |{citing sentences}|
    ```

    Ours. The premise is the texts of all passages that a sentence cites (for what a citation refers
    to see `CitationReturned`), the hypothesis the sentence without marks. A sentence that cites
    only what was never returned is not supported. One whose sources were returned without their
    text, or by a search of an API's own whose results are not there, cannot be judged and is not
    counted: `parts["unread"]` says how many. Without a sentence that cites there is no value.

    Args:
        judge: is asked about the pairs; by default words are compared.
        soft: average the judge's p instead of its labels.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step
        >>> search = Step(evidence=(Evidence("Paris is the capital."), Evidence("Rome is old.")))
        >>> answer = "Paris is the capital [2]."
        >>> CitationSupport().score(Trajectory((search, Step(answer=answer)), answer=answer)).why
        "not carried by what it cites: 'Paris is the capital.'"

    How to hack it: cite everything behind each sentence.
    """

    name: ClassVar[str] = "citation_support"
    results: ClassVar[Mapping[str, Result]] = {
        "citation_support": Result(
            asks="which share of the sentences that cite is carried by what they cite?",
            good="what a sentence cites carries it",
            clean="every sentence that cites is carried by what it cites",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "citation_support": "Citations that carry their sentence, by a judge",
        "citation_support_lexical": "Words of citing sentences that occur in what they cite",
        "citation_support_containment": "Citing sentences that occur in what they cite",
    }

    def pairs(self, trajectory: Trajectory) -> list[StepPair]:
        step = len(trajectory.steps)
        context = world_context(trajectory.meta)
        pairs: list[StepPair] = []
        if results_unknown(trajectory) or is_unread_report(trajectory):
            return pairs
        reading = read_answer(trajectory)
        unknown = unknown_sources(trajectory, reading)
        for sentence in reading.sentences:
            premise = _premise(sentence, trajectory)
            pair = Pair(premise, sentence.text, trajectory.question or "", context=context)
            if premise:
                pairs.append(StepPair(step, pair))
            elif _has_text(sentence):
                pairs.append(StepPair(step, pair, SAYS_NOTHING))
            elif sentence.sources and not _was_returned(sentence, unknown):
                pairs.append(StepPair(step, pair, MADE_UP))
        return pairs

    def empty(self, trajectory: Trajectory) -> Score:
        reading = read_answer(trajectory)
        unread = _unread(trajectory)
        if not reading.citations:
            why = why_nothing_is_cited(trajectory)
        elif is_unread_report(trajectory):
            why = REPORT_UNREAD
        elif results_unknown(trajectory):
            why = RESULTS_UNKNOWN
        elif unread:
            why = "the texts of what is cited are not in the trajectory"
        else:
            why = "no sentence cites: sources are only listed"
        return Score(None, why, {"unread": unread} if unread else {})

    def judged(
        self, trajectory: Trajectory, pairs: Sequence[StepPair], verdicts: Sequence[Verdict]
    ) -> Score:
        score = super().judged(trajectory, pairs, verdicts)
        texts = [item.pair.hypothesis for item in pairs]
        unread = _unread(trajectory)
        parts = {**score.parts, "texts": texts, "unread": unread}
        if score.value is None:
            return Score(None, score.why, parts)
        why = ""
        for text, verdict in zip(texts, verdicts, strict=True):
            if not verdict.label:
                why = f"not carried by what it cites: {text!r}"
                break
        # without steps: what the whole answer earned is not the last step's alone
        return Score(score.value, why, parts)


def _premise(sentence: Sentence, trajectory: Trajectory) -> str:
    """Titles and texts of what a sentence cites, as far as they can support something; a blank line
    between two passages.
    """
    texts: dict[str, None] = {}  # in order, each once
    for source in sentence.sources:
        for passage in source.passages:
            if not passage.text.strip():
                continue
            evidence = msgspec.structs.replace(passage.evidence, text=passage.text)
            call = trajectory.steps[passage.step - 1].call
            for supporting in supported_by([evidence], call):
                texts[f"{supporting.title}\n{supporting.text}".strip()] = None
    return "\n\n".join(texts)


def _has_text(sentence: Sentence) -> bool:
    """Whether what a sentence cites was returned with a text."""
    cited = chain.from_iterable(source.passages for source in sentence.sources)
    return any(passage.text.strip() for passage in cited)


def _was_returned(sentence: Sentence, unknown: Set[str]) -> bool:
    """Whether anything that a sentence cites was returned, or may have been: it is `unknown`."""
    return any(source.passages or source.key in unknown for source in sentence.sources)


def _unread(trajectory: Trajectory) -> int:
    """How many sentences cite what was, or may have been, returned without its text."""
    reading = read_answer(trajectory)
    unknown = unknown_sources(trajectory, reading)
    return sum(
        _was_returned(sentence, unknown) and not _has_text(sentence)
        for sentence in reading.sentences
    )
