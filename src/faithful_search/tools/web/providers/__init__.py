"""Web search services, one file each; `load("searxng")` is the class in `searxng.py`."""

from __future__ import annotations

import sys

from .... import registry
from .base import Provider

__all__ = ["Provider", "load", "names"]


def names() -> list[str]:
    """The files here that define a provider.

    Example:
        >>> names()
        ['ddgs', 'searxng', 'serper']
    """
    return registry.names(sys.modules[__name__], Provider)


def load(name: str) -> type[Provider]:
    """The provider in the file of that name. Raises `ConfigError` when there is none, naming those that exist."""
    return registry.load(sys.modules[__name__], name, Provider)
