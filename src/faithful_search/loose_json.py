"""JSON that others wrote, to values: one decoder for rows, sessions, logs and the texts in them.

Files hold what the standard or a fast decoder refuses: half a surrogate pair, where a program cut a
text; `NaN`; numbers that no float can hold; a byte order mark; bytes that are not UTF-8. None of
that costs a row, and all of it is said. What cannot be read is a `DataError`, whatever was wrong.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from .errors import DataError
from .text import well_formed

MOST_BYTES = 100_000_000
"""The most that one row, or one record of a log, may take as JSON."""
MOST_NESTED = 200
"""How deep lists and objects may be nested: what reads them calls itself for each level."""
MOST_PARTS = 5_000_000
"""The most lists and objects in one value: an empty one takes twenty times as many bytes as it is
written with.
"""
_HALVES = "half characters, or bytes that are not UTF-8, are read as ?"
_BEYOND = "NaN, Infinity and numbers beyond all floats are read as null"
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
BLANK = b" \t\r\n\x00"
"""What may stand around a value: a crash leaves NULs at a file's end."""
_MARK = "\ufeff"  # a byte order mark
_AROUND = _MARK + BLANK.decode()
_BEGINNING = 4_000  # characters in which most values of a longer text end
_LONGEST_TOKEN = 20  # before the end of a text that was cut, an error may be due to the cut
_LONGEST_PRINTED = 100_000
_ESCAPE = r"\\[\\'\"nrtxuU]"
_PRINTED = re.compile(
    rf"\A(?:'(?:[^'\\\n]|{_ESCAPE})*+'|\"(?:[^\"\\\n]|{_ESCAPE})*+\""
    r"|None|True|False|[-+0-9.e{}\[\](),: ])*+"
)
# What the fast decoder raises for what the lenient one may read
_NOT_READ = (msgspec.MsgspecError, UnicodeError, RecursionError)


class Decoded(NamedTuple):
    """A value, and what in its JSON was not as it should be, in words."""

    value: Any
    repairs: tuple[str, ...] = ()


def decode(data: str | bytes, halves: bool = False, beyond: bool = False) -> Any:
    """The value of a JSON text; with `halves`, half characters stay as they are, with `beyond`, NaN
    and infinite numbers do. Raises `DataError` for what is none.

    Example:
        >>> decode('{"score": NaN, "text": "\\\\ud83d"}')
        {'score': None, 'text': '?'}
    """
    if len(data) <= MOST_BYTES:
        try:
            value = msgspec.json.decode(data)
        except _NOT_READ:
            pass
        else:
            check_depth(data, value)
            return value
    return decoded(data, halves, beyond=beyond).value


def decoded(
    data: str | bytes, halves: bool = False, most: int | None = None, beyond: bool = False
) -> Decoded:
    """The value of a JSON text, and what was put right in it. Raises `DataError` for what is none,
    or is too large.

    Of keys that are given twice the last counts. Line breaks and other control characters may stand
    in strings.
    """
    _check_size(data, most)
    with suppress(*_NOT_READ):
        value = msgspec.json.decode(data)
        check_depth(data, value)
        return Decoded(value)
    text = _as_text(data).strip(_AROUND)
    decoder = _Lenient(beyond=beyond)
    value = _tried(lambda: decoder.decode(text))
    check_depth(text, value)
    return decoder.repaired(value, "" if halves else text)


def decode_start(text: str) -> tuple[Any, int]:
    """The value at the start of a text, and where it ends. Raises `DataError` where none is."""
    _check_size(text)
    decoder = _Lenient()
    value, end = _tried(lambda: decoder.raw_decode(text))
    check_depth(text[:end], value)
    return decoder.repaired(value, text[:end]).value, end


def decode_strictly(text: str) -> Any:
    """The value of a text that is JSON to the letter; half characters, which JSON may hold, are
    read as `?`. Raises `DataError` for what is none.
    """
    _check_size(text)
    decoder = _Lenient(strict=True)
    value = _tried(lambda: decoder.decode(text))
    check_depth(text, value)
    return decoder.repaired(value, text).value


def printed(text: str) -> Any:
    """The value that Python printed (`{'error': …}`, `[{'title': …}]`); `None` for any other
    text.

    Example:
        >>> printed("{'title': None}")
        {'title': None}
    """
    text = text.strip()
    if len(text) > _LONGEST_PRINTED or not text.startswith(("{'", "[{'")):
        return None
    # Only plain values: Python takes long to read some others.
    if not _PRINTED.fullmatch(text):
        return None
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json.loads(json.dumps(ast.literal_eval(text)))
    return None


def parts_of(
    data: bytes, choose: Callable[[Any], list[Any] | None], most: int | None = None
) -> list[bytes] | None:
    """The JSON of some parts of a value, with whatever is wrong in it: reading them says so.

    `choose` gives the parts, or `None` where there are none. Raises `DataError` as `decode` does.
    """
    _check_size(data, most)
    with suppress(*_NOT_READ):
        value = msgspec.json.decode(data)
        parts = choose(value)
        return None if parts is None else list(map(msgspec.json.encode, parts))
    text = _as_text(data).strip(_AROUND)
    value = _tried(lambda: json.loads(text, strict=False, parse_int=_integer))
    parts = choose(value)
    return None if parts is None else [json.dumps(part).encode() for part in parts]


def end_of(text: str, start: int) -> int:
    """Where the value ends that begins there. Raises `DataError` where none does."""
    if len(text) - start > _BEGINNING:
        with suppress(_CutOff):
            return start + _end_in_beginning(text[start : start + _BEGINNING])
    return _end_in(text, start)


def _end_in_beginning(beginning: str) -> int:
    """Where the value ends that starts the beginning of a longer text.

    An error of Python's decoder counts the lines before it, so that many of them in one long text
    would take quadratic time. Here it counts those of the beginning.

    Raises `_CutOff` where the value, or its error, may be due to the cut, and `DataError` where
    there is no value.
    """
    certain = len(beginning) - _LONGEST_TOKEN
    try:
        end = _SCANNER.raw_decode(beginning)[1]
    except RecursionError:
        raise _CutOff from None
    except json.JSONDecodeError as error:
        # An open string is reported where it starts, however far it goes on
        if error.pos >= certain or error.msg.startswith("Unterminated string"):
            raise _CutOff from None
        raise DataError(str(error)) from None
    if end >= certain:  # a number may go on
        raise _CutOff
    return end


def _end_in(text: str, start: int) -> int:
    try:
        return _tried(lambda: _SCANNER.raw_decode(text, start))[1]
    except _TooDeep:
        return _end_of_nested(text, start)


def _end_of_nested(text: str, start: int) -> int:
    """The same by brackets alone, for what is nested too deeply to be read."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    raise DataError(_too_deep())


class _TooDeep(DataError):
    pass


class _CutOff(Exception):
    """A value may go on behind the end of the text that was read."""


class _Lenient(json.JSONDecoder):
    """Python's decoder, which notes the numbers that are none and reads them as `None`; with
    `beyond` as they are.
    """

    def __init__(self, strict: bool = False, beyond: bool = False) -> None:
        self.keeps_beyond = beyond
        self.has_beyond = False  # whether a number was read as `None`
        constant = self._refused if strict else self._constant
        super().__init__(
            strict=strict,
            parse_float=self._number,
            parse_int=self._number,
            parse_constant=constant,
        )

    def repaired(self, value: Any, text: str) -> Decoded:
        """The value without the half characters that the text holds."""
        repairs = [_BEYOND] if self.has_beyond else []
        if _ESCAPED_HALF.search(text) or _HALF.search(text):
            well_formed_value = _without_halves(value)
            if well_formed_value != value:
                value = well_formed_value
                repairs.append(_HALVES)
        return Decoded(value, tuple(repairs))

    def _number(self, digits: str) -> int | float | None:
        is_integer = digits.lstrip("-").isdigit()
        number = _integer(digits) if is_integer else float(digits)
        return number if isinstance(number, int) else self._noted(number)

    def _constant(self, name: str) -> float | None:
        return self._noted(float(name))

    def _noted(self, number: float) -> float | None:
        """The number; `None` where it is beyond all floats, unless these are kept."""
        if self.keeps_beyond or math.isfinite(number):
            return number
        self.has_beyond = True
        return None

    def _refused(self, name: str) -> None:
        raise ValueError(f"{name} is no JSON")


def _integer(digits: str) -> int | float:
    """The number; infinite where it has more digits than Python reads."""
    try:
        return int(digits)
    except ValueError:
        return math.inf


_SCANNER = json.JSONDecoder(strict=False, parse_int=_integer)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


def _as_text(data: str | bytes) -> str:
    # What is not UTF-8 becomes half characters, which are put right with all others.
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def _tried(decode_value: Callable[[], Any]) -> Any:
    """The value that this decodes. Raises `DataError` for whatever it raises."""
    try:
        return decode_value()
    except RecursionError:
        raise _TooDeep(_too_deep()) from None
    except ValueError as error:
        raise DataError(str(error)) from None


def _check_size(data: str | bytes, most: int | None = None) -> None:
    most = MOST_BYTES if most is None else most
    if len(data) > most:
        raise DataError(f"too large: more than {most:,} bytes of JSON")


def check_depth(data: str | bytes, value: Any) -> None:
    """Raise `DataError` where lists and objects are too many, or nested too deeply."""
    if len(data) <= 2 * MOST_NESTED:  # each level takes two brackets
        return
    if _brackets_in(data) <= MOST_NESTED:
        return
    level = [value] if isinstance(value, dict | list) else []
    depth = 0
    parts = 0
    while level:
        depth += 1
        parts += len(level)
        if depth > MOST_NESTED:
            raise DataError(_too_deep())
        if parts > MOST_PARTS:
            raise DataError(f"more than {MOST_PARTS:,} lists and objects in one value")
        level = _next_level(level)


def _brackets_in(data: str | bytes) -> int:
    """How many brackets open in a JSON text, those in strings among them."""
    if isinstance(data, bytes):
        return data.count(b"[") + data.count(b"{")
    return data.count("[") + data.count("{")


def _next_level(level: list[Any]) -> list[Any]:
    """The lists and objects that stand in these."""
    inner: list[Any] = []
    for holder in level:
        values = holder.values() if isinstance(holder, dict) else holder
        inner += [value for value in values if isinstance(value, dict | list)]
    return inner


def check_nested(value: Any) -> None:
    """Raise `DataError` where a value of Python's is nested too deeply, or holds itself."""
    level = [value] if isinstance(value, Mapping | list | tuple) else []
    for _ in range(MOST_NESTED + 1):
        inner: dict[int, Any] = {}  # each once, however often it is held
        for holder in level:
            values = holder.values() if isinstance(holder, Mapping) else holder
            for part in values:
                if isinstance(part, Mapping | list | tuple):
                    inner[id(part)] = part
        level = list(inner.values())
        if not level:
            return
    raise DataError(f"{_too_deep()}, or in a circle")


def _too_deep() -> str:
    return f"lists and objects nested more than {MOST_NESTED} levels deep"


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(key): _without_halves(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_halves(entry) for entry in value]
    return value
