"""Rewards of the literature as mixes, built from their published formulas: one file each, found by
its name, whose function of that name makes the mix, and whose `DIALECT` is how its policies write.

What a paper asks a model for is asked of words or of the bundled world's facts, unless a judge is
given; each docstring says so.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType

from ...errors import ConfigError
from ...judges import Judge
from ...rewards import Mix


def load(name: str) -> Callable[..., Mix]:
    """The function that makes that mix; its docstring has formula, source and what was simplified.

    Raises `ConfigError` naming those that exist.

    Example:
        >>> load("search_r1")().component_names
        ('search_r1_outcome',)
    """
    return getattr(_module(name), name)


def mix_of(name: str, judge: Judge | None = None) -> Mix:
    """That mix with the settings of its paper, and with this judge where it asks one.

    Raises `ConfigError` as `load`, and for a judge where the mix asks none.
    """
    make = load(name)
    if judge is None:
        return make()
    if not asks_judge(name):
        raise ConfigError(f"{name} asks no judge: leave --judge out")
    return make(judge=judge)


def asks_judge(name: str) -> bool:
    """Whether that mix can ask a judge. Raises as `load`."""
    return "judge" in inspect.signature(load(name)).parameters


def dialect_of(name: str) -> str:
    """The dialect that policies write which are trained with that mix; one with verdicts where the
    mix reads citations. Raises as `load`.
    """
    return _module(name).DIALECT


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def _module(name: str) -> ModuleType:
    if name not in names():
        raise ConfigError(f"unknown published reward {name!r}; there are: {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
