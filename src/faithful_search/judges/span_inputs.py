"""What the span judge reads of a pair: the hypothesis, the question and the evidence that fits, as
tokens, each with a mark that says whether its word stands on the other side, too.

```
[CLS] hypothesis [SEP] question [SEP] evidence [SEP]
```

A small encoder learns slowly to compare words, so it is told which are shared, and learns what that
means. Of evidence that is too long those parts are read that share most with the hypothesis; a long
hypothesis is read in parts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConfigError
from ..text import well_formed
from . import lexical
from .base import Pair
from .windows import windows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MARKS = (
    "other",  # what separates texts, and words of the evidence that the hypothesis lacks
    "shared",  # a word of the evidence that the hypothesis has
    "function",  # a word of the hypothesis that says nothing
    "read",  # one that stands in the evidence that is read
    "beyond",  # one that stands only in the rest of the evidence
    "asked",  # one that stands only in the question
    "missing",  # one that stands nowhere
    "missing_name",  # a name or number that stands nowhere
    "question",
    "claim",  # the first token, where the hypothesis is a claim or an answer
    "thought",  # the first token, where it is a thought
)
"""What a mark says of its token; its place here is its number."""
_NUMBER_OF = {name: number for number, name in enumerate(MARKS)}
_CHUNK = 48
"""Tokens of the parts of the evidence that are chosen from."""
_QUESTION_SHARE, _NEIGHBOUR_SHARE = 0.3, 0.3
"""What a word of the question counts beside one of the hypothesis, and the score of a neighbour
beside a part's own, when parts are chosen.
"""


class SpanInput(NamedTuple):
    """One input of the model.

    Attributes:
        ids, marks: a number for each token; a mark's is its place in `MARKS`.
        claim: the first token of the hypothesis and the one behind its last.
        places: for each of its tokens the characters (start, end) in the whole hypothesis, without
            the one at `end`.
    """

    ids: list[int]
    marks: list[int]
    claim: tuple[int, int]
    places: list[tuple[int, int]]


class _Tokens(NamedTuple):
    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True)
class SpanReader:
    """Makes the model's inputs of pairs.

    Args:
        tokenizer: of the model, with the tokens [CLS] and [SEP]; `ConfigError` without them.
        evidence, hypothesis, question: the most tokens of each text that are read at once.
    """

    tokenizer: "Tokenizer" = field(repr=False, compare=False)
    evidence: int = 192
    hypothesis: int = 96
    question: int = 40

    def __post_init__(self) -> None:
        # text that spells a control token is read as the characters it is
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        # Looked up now, so that a tokenizer without them is refused at once
        self._control  # noqa: B018

    def readings(self, pair: Pair) -> list[SpanInput]:
        """The inputs for a pair, one for each part of the hypothesis in order; none for a
        hypothesis that is blank.
        """
        hypothesis = well_formed(pair.hypothesis)
        premise = well_formed(pair.premise)
        question = well_formed(pair.question)
        if not hypothesis.strip():
            return []
        chunks = windows(premise, _CHUNK, 0, self._count) if premise.strip() else []
        stems_of_chunks = [_stems(chunk) for chunk in chunks]
        named = {key for key, word in lexical.claims(hypothesis).items() if word.marked}
        readings = []
        end = 0
        for part in windows(hypothesis, self.hypothesis, 0, self._count):
            start = hypothesis.index(part, end)
            end = start + len(part)
            readings.append(
                self._reading(part, start, question, chunks, stems_of_chunks, named, pair.task)
            )
        return readings

    def _reading(
        self,
        part: str,
        start: int,
        question: str,
        chunks: Sequence[str],
        stems_of_chunks: Sequence[frozenset[str]],
        named: Collection[str],
        task: str,
    ) -> SpanInput:
        claimed, question_stems = _stems(part), _stems(question)
        chosen = self._chosen(chunks, stems_of_chunks, claimed, question_stems)
        evidence = " ".join(chunks[place] for place in chosen)
        in_reading = frozenset().union(*(stems_of_chunks[place] for place in chosen))
        anywhere = frozenset().union(*stems_of_chunks)

        def mark_of_claim(stem: str) -> str:
            if not stem:
                return "function"
            if stem in in_reading:
                return "read"
            if stem in anywhere:
                return "beyond"
            if stem in question_stems:
                return "asked"
            return "missing_name" if stem in stems_named else "missing"

        stems_named = {stem for name in named for _, _, stem in lexical.stems(name)}
        marks_of_claim = {stem: _NUMBER_OF[mark_of_claim(stem)] for stem in {*claimed, ""}}
        marks_of_evidence = {stem: _NUMBER_OF["shared"] for stem in claimed}
        first, separator = self._control
        of_claim = self._encode(part)
        of_question = self._encode(question).ids[: self.question]
        of_evidence = self._encode(evidence)
        ids = [first, *of_claim.ids, separator, *of_question, separator]
        marks = [
            _NUMBER_OF["thought" if task == "info_think" else "claim"],
            *_marks(part, of_claim, marks_of_claim, _NUMBER_OF["function"]),
            0,
            *[_NUMBER_OF["question"]] * len(of_question),
            0,
        ]
        ids += [*of_evidence.ids[: self.evidence], separator]
        marks += _marks(evidence, of_evidence, marks_of_evidence, 0)[: self.evidence]
        marks.append(0)
        places = [(start + begin, start + end) for begin, end in of_claim.offsets]
        return SpanInput(ids, marks, (1, 1 + len(of_claim.ids)), places)

    def _chosen(
        self,
        chunks: Sequence[str],
        stems_of_chunks: Sequence[frozenset[str]],
        claimed: frozenset[str],
        questioned: frozenset[str],
    ) -> list[int]:
        """The places of the parts that are read, in order: all that fit, or those that share
        most.
        """
        sizes = self._count(chunks) if chunks else []
        if sum(sizes) <= self.evidence:
            return list(range(len(chunks)))
        scores = [
            len(claimed & stems) + _QUESTION_SHARE * len((questioned - claimed) & stems)
            for stems in stems_of_chunks
        ]
        padded = [0.0, *scores, 0.0]
        with_neighbours = [
            score + _NEIGHBOUR_SHARE * max(padded[place], padded[place + 2])
            for place, score in enumerate(scores)
        ]
        chosen: list[int] = []
        room = self.evidence
        for place in sorted(range(len(chunks)), key=lambda place: -with_neighbours[place]):
            if sizes[place] <= room:
                chosen.append(place)
                room -= sizes[place]
        return sorted(chosen)

    def _encode(self, text: str) -> _Tokens:
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return _Tokens(encoding.ids, encoding.offsets)

    def _count(self, texts: Sequence[str]) -> list[int]:
        # one by one: a batch is shared among threads, which costs more than it saves on short texts
        return [len(self._encode(text).ids) for text in texts]

    @cached_property
    def _control(self) -> tuple[int, int]:
        first = self.tokenizer.token_to_id("[CLS]")
        separator = self.tokenizer.token_to_id("[SEP]")
        if first is None or separator is None:
            raise ConfigError("the tokenizer of a span judge needs the tokens [CLS] and [SEP]")
        return first, separator


def unsupported_tokens(reading: SpanInput, spans: Sequence[tuple[int, int]]) -> list[int]:
    """1 for each token of the hypothesis that shares a character with one of the spans, else 0.

    Args:
        spans: places (start, end) in the hypothesis, in characters, without the one at `end`.

    Example:
        >>> reading = SpanInput([2, 5, 6, 3], [9, 3, 6, 0], (1, 3), [(0, 4), (5, 9)])
        >>> unsupported_tokens(reading, [(5, 9)])
        [0, 1]
    """
    return [
        int(any(start < span_end and span_start < end for span_start, span_end in spans))
        for start, end in reading.places
    ]


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem for _, _, stem in lexical.stems(text) if stem)


def _marks(text: str, tokens: _Tokens, marks: Mapping[str, int], default: int) -> list[int]:
    """The mark of each token: that of the word it belongs to."""
    result = []
    words = iter(lexical.stems(text))
    start, end, stem = next(words, (len(text), len(text), ""))
    for token_start, _ in tokens.offsets:
        while token_start >= end and start < len(text):
            start, end, stem = next(words, (len(text), len(text), ""))
        inside = start <= token_start < end
        result.append(marks.get(stem, default) if inside else default)
    return result
