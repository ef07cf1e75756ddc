"""Discovery by file name: `load(package, "citation")` finds the one class that `citation.py`
defines. `find` also looks outside the package: at entry points, and in a file.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from .errors import ConfigError

T = TypeVar("T")


def names(package: ModuleType, base: type) -> list[str]:
    """The files of `package` that define a concrete subclass of `base`, sorted."""
    return sorted(
        info.name
        for info in pkgutil.iter_modules(package.__path__)
        if _find(package, info.name, base)
    )


def files(package: ModuleType, base: type) -> list[str]:
    """The files of `package` that derive a class from `base`, or from one called after it
    (`NLIJudge`), sorted; read and not imported, since some bring torch. Abstract classes, which
    derive from `ABC`, too, are left out.
    """
    derived = re.compile(rf"^class \w+\((?!.*\bABC\))(?:\w+, )*\w*{base.__name__}\b", re.MULTILINE)
    texts = {
        path.stem: path.read_text(encoding="utf-8")
        for folder in package.__path__
        for path in sorted(Path(folder).glob("*.py"))
    }
    return [name for name, text in texts.items() if derived.search(text)]


def load(package: ModuleType, name: str, base: type) -> type:
    """The public concrete subclass of `base` in `package/<name>.py`. Raises `ConfigError` naming
    those there are.
    """
    names_there = [info.name for info in pkgutil.iter_modules(package.__path__)]
    kind_found = _find(package, name, base) if name in names_there else None
    if kind_found is None:
        kind = package.__name__.rsplit(".", 1)[-1]
        raise ConfigError(
            f"unknown name {name!r} in {kind}; there are: {', '.join(names(package, base))}"
        )
    return kind_found


def find(
    package: ModuleType,
    name: str,
    base: type,
    known: Collection[str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> type:
    """The subclass of `base` by the name of a file of `package` that is `known`, by a name that
    `elsewhere` gives the place of (`module:Class`), by the path of a file, or by an entry point of
    the group that is called as `package`.

    Raises `ConfigError` when there is none, naming those known, or it cannot be imported. A file or
    package is only run where somebody named it.
    """
    kind_name = base.__name__.lower()
    if name in known:
        return load(package, name, base)
    if name in elsewhere:
        module, _, class_name = elsewhere[name].partition(":")
        kind: type = getattr(importlib.import_module(module), class_name)
        return kind
    if name.endswith(".py"):
        return _in_file(Path(name).expanduser(), base)
    for point in entry_points(group=package.__name__, name=name):
        value = point.load()
        if not (inspect.isclass(value) and issubclass(value, base)):
            raise ConfigError(f"the entry point {name!r} is {point.value}, which is no {kind_name}")
        return value
    there_are = ", ".join(sorted({*known, *elsewhere}))
    raise ConfigError(
        f"unknown {kind_name} {name!r}; there are: {there_are}; a file that defines one is named "
        "by its path, which ends in .py"
    )


def make(kind: Callable[..., T], **settings: Any) -> T:
    """An object of a class that `find` returned, with these settings. Raises `ConfigError` where
    the class, which may be somebody's own, needs others.
    """
    try:
        return kind(**settings)
    except TypeError as error:
        raise ConfigError(
            f"cannot make {getattr(kind, '__name__', kind)}: {error}; give its settings defaults"
        ) from error


def _in_file(path: Path, base: type) -> type:
    kind, key = base.__name__.lower(), str(path.resolve())
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ConfigError(f"there is no file {path} that could define {_with_article(kind)}")
        module = sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # scripts may end the program
            del sys.modules[key]
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"cannot import {path}, which should define {_with_article(kind)}: {reason}"
            ) from (error)
    defined = _only(sys.modules[key], base)
    if defined is None:
        raise ConfigError(f"{path} defines no {kind}, or several: it needs one class of {base!r}")
    return defined


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _find(package: ModuleType, name: str, base: type) -> type | None:
    return _only(importlib.import_module(f"{package.__name__}.{name}"), base)


def _only(module: ModuleType, base: type) -> type | None:
    """The one public concrete subclass that the module defines itself."""
    # Classes that the file imports, base classes and private ones are not what it is for.
    defined = [
        value
        for key, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, base)
        and value.__module__ == module.__name__
        and not key.startswith("_")
        and not inspect.isabstract(value)
    ]
    return defined[0] if len(defined) == 1 else None
