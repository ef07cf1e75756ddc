"""The judge that looks for the whole hypothesis as it stands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..text import normalize
from .base import Judge, Pair, Verdict


@dataclass(frozen=True)
class ContainmentJudge(Judge):
    """Supported when the normalised hypothesis occurs, on word boundaries, in one paragraph of the
    normalised premise; p is 1 or 0.

    Paragraphs are separated by blank lines, so that no match spans two documents. It is meant for
    short answers: a paraphrase or a whole sentence is rarely found, an empty hypothesis never is,
    and "yes" or "no" gets p = 0.
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
                paragraphs = [f" {normalize(part)} " for part in pair.premise.split("\n\n")]
                contained = any(f" {hypothesis} " in paragraph for paragraph in paragraphs)
                why = f"{hypothesis!r} is {'' if contained else 'not '}in the evidence"
            verdicts.append(Verdict(float(contained), contained, why, self.name))
        return verdicts
