"""The judge that looks for the whole hypothesis as it stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ..text import normalize
from .base import Judge, Pair, Verdict


@dataclass(frozen=True)
class ContainmentJudge(Judge):
    """Supported when the normalised hypothesis occurs, on word boundaries, in one paragraph of the
    normalised premise; p is 1 or 0.

    Paragraphs are separated by blank lines, so that no match spans two documents. They are compared
    as `squad` normalises, and as `unicode` does: kinds of quotes and dashes, ways to write a number
    or a date, and scripts without blanks are no matter. It is meant for short answers: a paraphrase
    or a whole sentence is rarely found, an empty hypothesis never is, and "yes" or "no" gets p = 0.
    """

    name: ClassVar[str] = "containment"
    lexical: ClassVar[bool] = True
    reads_queries: ClassVar[bool] = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for pair in pairs:
            hypothesis = normalize(pair.hypothesis)
            contained = False
            if not hypothesis:
                why = "nothing to look for"
            elif hypothesis in ("yes", "no"):
                why = f"{hypothesis!r} cannot be judged by containment"
            else:
                contained = _stands_in(pair.hypothesis, pair.premise, "squad")
                contained = contained or _stands_in(pair.hypothesis, pair.premise, "unicode")
                why = f"{hypothesis!r} is {'' if contained else 'not '}in the evidence"
            verdicts.append(Verdict(float(contained), contained, why, self.name))
        return verdicts


def _stands_in(hypothesis: str, premise: str, normaliser: str) -> bool:
    words = normalize(hypothesis, normaliser)
    if not words:
        return False
    paragraphs = premise.split("\n\n")
    return any(f" {words} " in _words(paragraph, normaliser) for paragraph in paragraphs)


@lru_cache(maxsize=2048)  # rollouts of one question, and rewards of one rollout, share passages
def _words(paragraph: str, normaliser: str) -> str:
    """The paragraph's words between blanks, also at its ends."""
    return f" {normalize(paragraph, normaliser)} "
