"""Suites of questions that are known by name, one file each, with a value `SUITE`."""

import os
import pkgutil
from functools import lru_cache
from importlib import import_module

from .base import Suite as Suite


@lru_cache(maxsize=1)
def suites() -> tuple[Suite, ...]:
    """All suites, in the order of their files' names."""
    files = sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name != "base")
    return tuple(import_module(f".{name}", __name__).SUITE for name in files)


def of(source: str | os.PathLike[str]) -> Suite | None:
    """The suite that has questions of this name; `None` for the name of a file or a Hub dataset.

    Example:
        >>> of("world_pairs") is of("world")
        True
        >>> of("questions.jsonl") is None
        True
    """
    name = str(source)
    return next((suite for suite in suites() if name in suite.names), None)


def facts_are_known(source: str | os.PathLike[str]) -> bool:
    """Whether a judge knows the facts that the questions of this name ask for."""
    suite = of(source)
    return suite is not None and bool(suite.judges)


def judges() -> dict[str, str]:
    """Where the judges are that suites bring, as `module:Class`, by name."""
    return {name: place for suite in suites() for name, place in suite.judges.items()}
