"""Which type a value in a YAML file has, and what is said of one that is not of its setting's."""

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .errors import ConfigError
from .text import shortened

MOST_SHOWN = 40  # characters of a value that is refused
SWITCHES = ("true", "false", "yes", "no", "t", "f", "y", "n", "1", "0")
"""What a setting that is on or off may say, as text; YAML's own values are compared as text, too."""
UNIONS = (Union, UnionType)
IN_WORDS = {
    str: {"one": "text", "several": "texts"},
    int: {"one": "a whole number", "several": "whole numbers"},
    float: {"one": "a number", "several": "numbers"},
    bool: {"one": "true or false", "several": "values of true or false"},
    list: {"one": "a list", "several": "lists"},
    dict: {"one": "a mapping", "several": "mappings"},
}
"""What values of a type are called."""


def check_kind(name: str, value: Any, kind: Any) -> None:
    """Raise `ConfigError` for a value that is not of the type of its setting.

    Text that says a number or a switch is one, as on the command line: YAML reads `1e-5` as text.

    Args:
        name: what the setting is called in the error, with the file that it stands in.
        value: what YAML made of it, or the text of a flag.
        kind: its type, as an annotation says it. A `Literal` takes any text: whoever reads the
            setting names its choices. A type that YAML has no values of takes any value; the
            elements of a list have types that it has.

    Example:
        >>> check_kind("mine.yaml: max_steps", "many", int | None)
        Traceback (most recent call last):
        ...
        faithful_search.errors.ConfigError: mine.yaml: max_steps is a whole number, not 'many'
    """
    if _is_of(value, kind):
        return
    if value is None:
        value_in_words = "empty"
    elif isinstance(value, bool):
        value_in_words = str(value).lower()  # as YAML writes it
    else:
        value_in_words = shortened(repr(value), MOST_SHOWN)
    advice = ""
    takes_text = _is_of("", kind)
    if takes_text and isinstance(value, (bool, int, float)):
        advice = "; if it is text, put it between quotes"
    raise ConfigError(f"{name} is {_in_words(kind)}, not {value_in_words}{advice}")


def _is_of(value: Any, kind: Any) -> bool:
    plain = get_origin(kind) or kind
    if plain in UNIONS:
        return any(_is_of(value, part) for part in get_args(kind))
    if plain is Literal:
        return isinstance(value, str)
    if plain is bool:
        return str(value).lower() in SWITCHES
    if plain in (int, float):
        return _is_number(value, plain)
    if plain in (str, dict, NoneType):
        return isinstance(value, plain)
    if plain is not list:
        return True
    if not isinstance(value, list):
        return False
    [element] = get_args(kind) or [object]
    return all(_is_of(entry, element) for entry in value)


def _is_number(value: Any, kind: type[int] | type[float]) -> bool:
    if isinstance(value, str):
        try:
            kind(value)
        except ValueError:
            return False
        return True
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole or (kind is float and isinstance(value, float))


def _in_words(kind: Any, count: Literal["one", "several"] = "one") -> str:
    plain = get_origin(kind) or kind
    if plain in UNIONS:
        parts = [part for part in get_args(kind) if part is not NoneType]
        return " or ".join(_in_words(part, count) for part in parts)
    if plain is list and get_args(kind):
        [element] = get_args(kind)
        return f"{IN_WORDS[list][count]} of {_in_words(element, 'several')}"
    return IN_WORDS[str if plain is Literal else plain][count]
