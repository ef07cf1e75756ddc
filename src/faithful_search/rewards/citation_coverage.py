"""How much of the answer is cited at all?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..citations import read_answer
from ..trajectory import Trajectory
from .base import Result, Reward, Score
from .citation_returned import why_nothing_is_cited


@dataclass(frozen=True)
class CitationCoverage(Reward):
    """The share of the answer's sentences that cite at least one source.

    ```
    citation_coverage = |{sentences that cite}| / |{sentences}|
    ```

    Ours. It stands beside `CitationReturned` and `CitationSupport`, which say little of an answer
    that cites in few of its sentences. Headings, and the list of sources, are no sentences. An
    answer that cites nothing has no value; one that only lists sources has 0.

    Example:
        >>> from faithful_search.trajectory import Evidence, Step
        >>> search = Step(evidence=(Evidence("Paris is the capital.", "Paris"),))
        >>> answer = "Paris is the capital [1]. It is old."
        >>> CitationCoverage().score(Trajectory((search, Step(answer=answer)), answer=answer)).value
        0.5

    How to hack it: write one long sentence, with a mark behind it.
    """

    name: ClassVar[str] = "citation_coverage"
    results: ClassVar[Mapping[str, Result]] = {
        "citation_coverage": Result(
            asks="which share of the answer's sentences cites anything?",
            clean="every sentence of the answer cites something",
        ),
    }
    titles: ClassVar[Mapping[str, str]] = {
        "citation_coverage": "Sentences that cite",
    }

    def score(self, trajectory: Trajectory) -> Score:
        reading = read_answer(trajectory)
        sentences = reading.sentences
        if not reading.citations or not sentences:
            return Score(None, why_nothing_is_cited(trajectory))
        bare = [sentence.text for sentence in sentences if not sentence.sources]
        why = f"cites nothing: {bare[0]!r}" if bare else ""
        parts = {"sentences": len(sentences), "citing": len(sentences) - len(bare)}
        return Score(1 - len(bare) / len(sentences), why, parts)
