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
_QUESTION_SHARE = 0.3
"""What a word of the question counts beside one of the hypothesis, when parts are chosen."""
_NEIGHBOUR_SHARE = 0.3
"""What the score of a part's better neighbour counts beside its own."""


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
        stems_of_names: set[str] = set()
        for key, word in lexical.claims(hypothesis).items():
            if word.marked:
                stems_of_names.update(stem for _, _, stem in lexical.stems(key))
        readings = []
        end = 0
        for part in windows(hypothesis, self.hypothesis, 0, self._count):
            start = hypothesis.index(part, end)
            end = start + len(part)
            reading = self._reading(
                part, start, question, chunks, stems_of_chunks, stems_of_names, pair.task
            )
            readings.append(reading)
        return readings

    def _reading(
        self,
        part: str,
        start: int,
        question: str,
        chunks: Sequence[str],
        stems_of_chunks: Sequence[frozenset[str]],
        stems_of_names: Collection[str],
        task: str,
    ) -> SpanInput:
        """The input for a part of the hypothesis, which begins there at the character `start`."""
        stems_of_part = _stems(part)
        stems_of_question = _stems(question)
        chosen = self._chosen(chunks, stems_of_chunks, stems_of_part, stems_of_question)
        evidence = " ".join(chunks[place] for place in chosen)
        stems_read = frozenset().union(*(stems_of_chunks[place] for place in chosen))
        stems_of_evidence = frozenset().union(*stems_of_chunks)

        def mark_of(stem: str) -> str:
            """The mark of a word of the hypothesis."""
            if not stem:
                return "function"
            if stem in stems_read:
                return "read"
            if stem in stems_of_evidence:
                return "beyond"
            if stem in stems_of_question:
                return "asked"
            return "missing_name" if stem in stems_of_names else "missing"

        # By a word's stem; words of the evidence that the hypothesis lacks are "other".
        marks_of_part = {stem: _NUMBER_OF[mark_of(stem)] for stem in {*stems_of_part, ""}}
        marks_of_evidence = dict.fromkeys(stems_of_part, _NUMBER_OF["shared"])
        first_mark = _NUMBER_OF["thought" if task == "info_think" else "claim"]
        between = _NUMBER_OF["other"]
        part_tokens = self._encode(part)
        question_ids = self._encode(question).ids[: self.question]
        evidence_tokens = self._encode(evidence)
        evidence_ids = evidence_tokens.ids[: self.evidence]
        part_marks = _marks(part, part_tokens, marks_of_part, _NUMBER_OF["function"])
        question_marks = [_NUMBER_OF["question"]] * len(question_ids)
        evidence_marks = _marks(evidence, evidence_tokens, marks_of_evidence, between)
        evidence_marks = evidence_marks[: self.evidence]

        first, separator = self._control
        ids = [first, *part_tokens.ids, separator]
        ids += [*question_ids, separator]
        ids += [*evidence_ids, separator]
        marks = [first_mark, *part_marks, between]
        marks += [*question_marks, between]
        marks += [*evidence_marks, between]
        places = [(start + begin, start + end) for begin, end in part_tokens.offsets]
        return SpanInput(ids, marks, (1, 1 + len(part_tokens.ids)), places)

    def _chosen(
        self,
        chunks: Sequence[str],
        stems_of_chunks: Sequence[frozenset[str]],
        stems_of_part: frozenset[str],
        stems_of_question: frozenset[str],
    ) -> list[int]:
        """The places of the chunks that are read, in order: all where they fit, else those that
        share most words with the part of the hypothesis and the question.
        """
        sizes = self._count(chunks) if chunks else []
        if sum(sizes) <= self.evidence:
            return list(range(len(chunks)))
        only_in_question = stems_of_question - stems_of_part
        scores: list[float] = []
        for stems in stems_of_chunks:
            shared = len(stems_of_part & stems)
            shared_with_question = len(only_in_question & stems)
            scores.append(shared + _QUESTION_SHARE * shared_with_question)
        # What stands beside a chunk that shares much may go on about the same.
        with_neighbours = []
        padded = [0.0, *scores, 0.0]
        for before, score, after in zip(padded, scores, padded[2:], strict=False):
            with_neighbours.append(score + _NEIGHBOUR_SHARE * max(before, after))
        best_first = sorted(range(len(chunks)), key=lambda place: -with_neighbours[place])
        chosen: list[int] = []
        room = self.evidence
        for place in best_first:
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
    labels = []
    for start, end in reading.places:
        overlaps = any(start < span_end and span_start < end for span_start, span_end in spans)
        labels.append(int(overlaps))
    return labels


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem for _, _, stem in lexical.stems(text) if stem)


def _marks(text: str, tokens: _Tokens, marks: Mapping[str, int], default: int) -> list[int]:
    """The mark of each token: that of the stem of the word in which it begins, or else `default`."""
    marks_of_tokens = []
    behind_the_last = (len(text), len(text), "")
    words = iter(lexical.stems(text))
    start, end, stem = next(words, behind_the_last)
    for token_start, _ in tokens.offsets:
        while token_start >= end and start < len(text):
            start, end, stem = next(words, behind_the_last)
        is_in_word = start <= token_start < end
        marks_of_tokens.append(marks.get(stem, default) if is_in_word else default)
    return marks_of_tokens
