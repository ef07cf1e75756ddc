"""Discovery by file name: `load(package, "citation")` finds the one class that `citation.py` defines."""

import importlib
import inspect
import pkgutil
from types import ModuleType

from .errors import ConfigError


def names(package: ModuleType, base: type) -> list[str]:
    """The files of `package` that define a concrete subclass of `base`, sorted."""
    return sorted(
        info.name
        for info in pkgutil.iter_modules(package.__path__)
        if _find(package, info.name, base)
    )


def load(package: ModuleType, name: str, base: type) -> type:
    """The public concrete subclass of `base` in `package/<name>.py`. Raises `ConfigError` naming those there are."""
    known = [info.name for info in pkgutil.iter_modules(package.__path__)]
    found = _find(package, name, base) if name in known else None
    if found is None:
        kind = package.__name__.rsplit(".", 1)[-1]
        raise ConfigError(
            f"unknown name {name!r} in {kind}; there are: {', '.join(names(package, base))}"
        )
    return found


def _find(package: ModuleType, name: str, base: type) -> type | None:
    module = importlib.import_module(f"{package.__name__}.{name}")
    # Classes that the file imports, base classes and private ones are not what it is for.
    own = [
        value
        for key, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not key.startswith("_")
        and not inspect.isabstract(value)
    ]
    return own[0] if len(own) == 1 else None
