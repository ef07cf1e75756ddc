"""Judges read pairs of texts and say whether the second follows from the first."""

from .base import Judge, Pair, Verdict
from .lexical import LexicalJudge

__all__ = ["Judge", "LexicalJudge", "Pair", "Verdict"]
