"""Dataclass fields as command-line flags, and checks of their values."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .errors import ConfigError


def flag(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field that becomes a flag, with its help text. A list is copied for each
    instance.
    """
    metadata["help"] = help
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: [*default], metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def old_name_line(old: str, new: str) -> str:
    """What is said of a flag that was typed by the name that it had in the last release."""
    return f"{old} is called {new} now; the old name works until the next release"


def check_least(flags: Any, **least: float) -> None:
    """Raise `ConfigError` if one of these flags is less than it may be."""
    for name, number in least.items():
        value = getattr(flags, name)
        if value is not None and not value >= number:  # NaN is not
            raise ConfigError(f"--{name} must be {number:g} or more, not {value:g}")


def check_shares(flags: Any, *names: str) -> None:
    """Raise `ConfigError` if one of these flags is not in [0, 1]."""
    for name in names:
        if not 0 <= getattr(flags, name) <= 1:
            raise ConfigError(f"--{name} must be in [0, 1], not {getattr(flags, name):g}")


def check_choices(flags: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Raise `ConfigError` if a flag, or a setting of the configuration, is none of its choices."""
    for name, allowed in choices.items():
        if getattr(flags, name) not in allowed:
            raise ConfigError(
                f"unknown {name} {getattr(flags, name)!r}; there are: {', '.join(allowed)}"
            )


def refuse_unread(flags: Any, reads: object, names: Iterable[str], reader: str) -> None:
    """Raise `ConfigError` if, without their reader, a flag is not at its default."""
    if reads:
        return
    changed = []
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if field.name in names and value != field.default:
            changed.append(f"--{field.name} {value}")
    if changed:
        raise ConfigError(
            f"{' '.join(changed)}: read with {reader} only; give that, or leave the default"
        )
