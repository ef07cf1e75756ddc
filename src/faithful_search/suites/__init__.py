"""Questions that are known by name, one file each, with a value `QUESTIONS`; and suites, one YAML
file each in `data/suites`.
"""

import os
import pkgutil
from functools import lru_cache
from importlib import import_module

from .base import (
    AgentLimits as AgentLimits,
    QuestionSet as QuestionSet,
    QuestionSource as QuestionSource,
    Suite as Suite,
)
from .reading import load_suite as load_suite, suite_names as suite_names

_WITHOUT_QUESTIONS = (
    "base",
    "downloading",
    "drawing",
    "published",
    "published_rows",
    "reading",
)


@lru_cache(maxsize=1)
def sources() -> tuple[QuestionSource, ...]:
    """All sources of questions, in the order of their files' names."""
    modules = (info.name for info in pkgutil.iter_modules(__path__))
    names = sorted(name for name in modules if name not in _WITHOUT_QUESTIONS)
    return tuple(import_module(f".{name}", __name__).QUESTIONS for name in names)


def of(source: str | os.PathLike[str]) -> QuestionSource | None:
    """The source that has questions of this name; `None` for the name of a file or a Hub dataset.

    Example:
        >>> of("world_pairs") is of("world")
        True
        >>> of("questions.jsonl") is None
        True
    """
    name = str(source)
    for questions in sources():
        if name in questions.names:
            return questions
    return None


def with_corpus(source: str | os.PathLike[str]) -> QuestionSource | None:
    """The source of this name if its questions need a corpus of their own, which may have the same
    name; else `None`.

    Example:
        >>> with_corpus("world") is of("world"), with_corpus("hotpotqa") is None
        (True, True)
    """
    questions = of(source)
    if questions is None or not questions.has_corpus:
        return None
    return questions


def facts_are_known(source: str | os.PathLike[str]) -> bool:
    """Whether a judge knows the facts that the questions of this name ask for."""
    questions = of(source)
    return questions is not None and bool(questions.judges)


def judges() -> dict[str, str]:
    """Where the judges are that sources of questions bring, as `module:Class`, by name."""
    places: dict[str, str] = {}
    for questions in sources():
        places.update(questions.judges)
    return places
