"""The judge that needs no model: is the hypothesis written in the premise?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..text import normalize
from .base import Pair, Verdict


@dataclass(frozen=True)
class LexicalJudge:
    """Supported when the normalised hypothesis occurs, on word boundaries, in one paragraph of the normalised premise;
    p is 1 or 0.

    Paragraphs are separated by blank lines, so that no match spans two documents. It is meant for short answers: a
    paraphrase or a whole sentence is rarely found, an empty hypothesis never is, and "yes" or "no" gets p = 0.
    """

    name: ClassVar[str] = "lexical"
    lexical: ClassVar[bool] = True
    reads_queries: ClassVar[bool] = False

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts = []
        for pair in pairs:
            wanted, found = normalize(pair.hypothesis), False
            if not wanted:
                why = "nothing to look for"
            elif wanted in ("yes", "no"):
                why = f"{wanted!r} cannot be judged by containment"
            else:
                found = any(f" {wanted} " in f" {normalize(part)} " for part in pair.premise.split("\n\n"))
                why = f"{wanted!r} is {'' if found else 'not '}in the evidence"
            verdicts.append(Verdict(float(found), found, why, self.name))
        return verdicts
