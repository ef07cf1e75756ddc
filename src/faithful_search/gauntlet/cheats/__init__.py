"""Cheats: scripted agents that try to be paid without reading. One short file each, found by its
name.
"""

import sys

from ... import registry
from ..cheat import Cheat


def load(name: str) -> type[Cheat]:
    """The cheat of that file name, `load("cite_all")`; of a file elsewhere, by its path; or of an
    entry point of the group `faithful_search.gauntlet.cheats`.

    Raises `ConfigError` naming those that exist.
    """
    return registry.find(sys.modules[__name__], name, Cheat, names())


def names() -> list[str]:
    """The names that `load` knows."""
    return registry.names(sys.modules[__name__], Cheat)
