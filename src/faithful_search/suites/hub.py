"""The published question sets, by name: `published` says where each is."""

from .base import QuestionSource
from .downloading import load
from .published import PUBLISHED

QUESTIONS = QuestionSource(names=tuple(PUBLISHED), rows=load)
