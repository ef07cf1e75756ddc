"""Settings as fields of a dataclass, each with what `--help` says of it; and what refuses those that cannot be."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any

from .errors import ConfigError


def flag(default: Any, help: str, **metadata: Any) -> Any:
    """A field that is a flag; a list is copied for each instance."""
    metadata["help"] = help
    if isinstance(default, list):
        return field(default_factory=lambda: [*default], metadata=metadata)
    return field(default=default, metadata=metadata)


def refuse(cases: Iterable[tuple[object, str]]) -> None:
    """Raise `ConfigError` with the message of the first case that holds."""
    for wrong, message in cases:
        if wrong:
            raise ConfigError(message)


def check_least(flags: Any, **least: float) -> None:
    """Raise `ConfigError` if one of these flags is less than it may be."""
    for name, number in least.items():
        given = getattr(flags, name)
        if given is not None and not given >= number:  # NaN is not
            raise ConfigError(f"--{name} must be {number:g} or more, not {given:g}")


def check_shares(flags: Any, *names: str) -> None:
    """Raise `ConfigError` if one of these flags is not in [0, 1]."""
    for name in names:
        if not 0 <= getattr(flags, name) <= 1:
            raise ConfigError(f"--{name} must be in [0, 1], not {getattr(flags, name):g}")


def check_choices(flags: Any, choices: Mapping[str, Sequence[str]]) -> None:
    """Raise `ConfigError` if a flag, or a setting of the configuration, is none of its choices."""
    for name, known in choices.items():
        if getattr(flags, name) not in known:
            raise ConfigError(
                f"unknown {name} {getattr(flags, name)!r}; there are: {', '.join(known)}"
            )


def refuse_unread(flags: Any, reads: object, names: Iterable[str], reader: str) -> None:
    """Raise `ConfigError` if, without their reader, a flag is not at its default."""
    told = [(item, getattr(flags, item.name)) for item in fields(flags) if item.name in names]
    given = " ".join(f"--{item.name} {value}" for item, value in told if value != item.default)
    refuse(
        [
            (
                given and not reads,
                f"{given}: read with {reader} only; give that, or leave the default",
            )
        ]
    )
