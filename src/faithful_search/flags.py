"""Dataclass fields as command-line flags, and checks of their values."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .docstrings import summary_and_arguments
from .errors import ConfigError

_THEIRS: Any = object()
"""Stands for the default of the parameter that a flag sets."""


def flag(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field that becomes a flag, with its help text. A list is copied for each
    instance.
    """
    metadata["help"] = help
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: [*default], metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def knob(owner: Callable[..., Any], parameter: str, default: Any = _THEIRS, help: str = "") -> Any:
    """A flag that sets a parameter of a reward, of a function that makes one, or of other settings.

    What the flag does is said where the parameter is defined: its default is the parameter's, and
    its help text is what the owner's docstring, or the help text of its own flag, says of it.

    Args:
        owner: whose parameter it is.
        parameter: its name.
        default: where the flag has another default.
        help: where the flag takes other values than the parameter.

    Example:
        >>> from faithful_search.rewards import SelfRubric
        >>> knob(SelfRubric, "temperature").default
        0.1
    """
    if default is _THEIRS:
        default = inspect.signature(owner).parameters[parameter].default
    text = _help_of(owner, parameter)
    return flag(default, help or text[:1].upper() + text[1:])


def _help_of(owner: Callable[..., Any], parameter: str) -> str:
    """What a class, or one that it extends, or a function says of its parameter."""
    if isinstance(owner, type) and dataclasses.is_dataclass(owner):
        for field in dataclasses.fields(owner):
            if field.name == parameter and "help" in field.metadata:
                return str(field.metadata["help"])
    for place in inspect.getmro(owner) if isinstance(owner, type) else (owner,):
        _, arguments = summary_and_arguments(inspect.cleandoc(place.__doc__ or ""))
        if parameter in arguments:
            return arguments[parameter]
    return ""


def old_name_line(old: str, new: str) -> str:
    """What is said of a flag that was typed by the name that it had in the last release."""
    return f"{old} is called {new} now; the old name works until the next release"


def at_home(value: Any) -> Any:
    """A setting of a file, a word of a command line, or a list of them, with `~` as the home folder
    where a path begins with it. No shell reads files, and many leave `--out=~/runs` as it is.

    Example:
        >>> at_home("~/runs") == at_home("--out=~/runs").removeprefix("--out=")
        True
        >>> at_home(5)
        5
    """
    if isinstance(value, list):
        return [at_home(entry) for entry in value]
    if not isinstance(value, str):
        return value
    name, equals, path = value.partition("=")
    if equals and name.startswith("--"):
        return f"{name}={os.path.expanduser(path)}"
    return os.path.expanduser(value)


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


def check_literals(flags: Any) -> None:
    """Raise `ConfigError` if a flag is none of the choices that its type, a `Literal`, has. On the
    command line the parser refuses them; a YAML file says what it likes.
    """
    choices = {}
    for name, kind in get_type_hints(type(flags)).items():
        if get_origin(kind) is Literal:
            choices[name] = get_args(kind)
    check_choices(flags, choices)


def prices_of(text: str, name: str) -> tuple[float, float]:
    """The prices of a million prompt and completion tokens, from the text of a flag. Raises
    `ConfigError`, which calls them by this name, for anything but two numbers.

    Example:
        >>> prices_of("0.15,0.6", "--prices")
        (0.15, 0.6)
    """
    try:
        prompt, completion = map(float, text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{name} {text!r} are two numbers, as 0.15,0.6: of a million prompt and completion "
            "tokens"
        ) from error
    return prompt, completion


def refuse_unread(flags: Any, names: Iterable[str], reader: str, has_reader: bool = False) -> None:
    """Raise `ConfigError` if one of these flags is not at its default, though nothing reads it.

    Args:
        flags: a dataclass of flags.
        names: the flags that only `reader` reads.
        reader: the flag, or what else, that reads them.
        has_reader: it is there, so that nothing is refused.
    """
    if has_reader:
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
