"""A Wikibase entity's JSON read: its statements, and each value as text. All of it may be wrong or hostile."""

import math
import re
from calendar import month_name
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from ..untrusted import line, rows, section

_ENTITY = re.compile(r"[QP][1-9]\d{0,11}")
_TIME = re.compile(r"([+-])(\d{1,16})-(\d\d)-(\d\d)T")
_NUMBER = re.compile(r"[+-]?(\d{1,40})(\.\d{1,40})?")
_LEFT_OUT = {"external-id", "commonsMedia", "musical-notation", "math", "tabular-data", "geo-shape", "entity-schema"}
_PROPERTIES, _STATEMENTS = 500, 20  # read of an entity, and of one property
_VALUE, _LABEL = 300, 200  # characters kept
_WHEN = {"P580": "from", "P582": "until", "P585": "as of"}  # start time, end time, point in time


class Named(msgspec.Struct, frozen=True):
    """An entity's names."""

    label: str = ""
    aliases: tuple[str, ...] = ()


class Statement(msgspec.Struct, frozen=True):
    """What is said about an entity by one property: a value, and the times from, until or at which it holds."""

    value: Mapping[str, Any]
    preferred: bool = False
    when: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def is_id(value: Any) -> bool:
    return isinstance(value, str) and bool(_ENTITY.fullmatch(value))


def named(entity: Any, language: str, part: str = "labels") -> Named:
    """Its label (or description), in the language asked for or in one that replaces it, and its other names there."""
    label = line(section(section(entity, part), language).get("value"), _LABEL)
    aliases = (line(row.get("value"), _LABEL) for row in rows(section(entity, "aliases"), language))
    return Named(label, tuple(islice(aliases, _STATEMENTS)))


def statements(entity: Any) -> dict[str, list[Statement]]:
    """By property, the statements that say something to a reader, preferred ones first: none that are deprecated, no
    identifiers of other databases, media, formulas, or values that are unknown or do not exist."""
    claims, told = section(entity, "claims"), {}
    for name in filter(is_id, list(claims)[:_PROPERTIES]):
        found = []
        for row in rows(claims, name):
            snak, rank = section(row, "mainsnak"), row.get("rank")
            value = section(snak, "datavalue")
            if rank in ("preferred", "normal") and value and snak.get("datatype") not in _LEFT_OUT:
                qualifiers = section(row, "qualifiers")
                # of several start times, say, the first
                times = [(word, list(rows(qualifiers, key))[:1]) for key, word in _WHEN.items()]
                when = tuple((word, section(first, "datavalue")) for word, firsts in times for first in firsts)
                found.append(Statement(value, rank == "preferred", when))
        if found:
            told[name] = sorted(found, key=lambda each: not each.preferred)[:_STATEMENTS]
    return told


def ids_in(told: Iterable[Statement]) -> list[str]:
    """The items whose labels the texts of statements need, each once: values, and units of values."""
    values = [section(each.value, "value") for each in told]
    return list(dict.fromkeys(str(key) for value in values for key in (value.get("id"), _unit(value)) if is_id(key)))


def text_of(statement: Statement, labels: Mapping[str, str]) -> str:
    """The value with its times; empty when it cannot be told, as with an item that has no label."""
    text = _value(statement.value, labels)
    told = [f"{word} {when}" for word, value in statement.when if (when := _value(value, labels))]
    return f"{text} ({' '.join(told)})" if text and told else text


def _value(datavalue: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    kind, value = datavalue.get("type"), section(datavalue, "value")
    if kind == "string":
        return line(datavalue.get("value"), _VALUE)
    if kind == "wikibase-entityid":
        return labels.get(str(value.get("id")), "")
    if kind == "monolingualtext":
        return line(value.get("text"), _VALUE)
    if kind == "time":
        return time_text(value.get("time"), value.get("precision"))
    if kind == "quantity":
        return f"{amount_text(value.get('amount'))} {labels.get(_unit(value), '')}".strip()
    north: Any = value.get("latitude")
    east: Any = value.get("longitude")
    if kind != "globecoordinate" or not all(isinstance(d, (int, float)) and abs(d) <= 360 for d in (north, east)):
        return ""
    return f"{abs(north):.6g}° {'S' if north < 0 else 'N'}, {abs(east):.6g}° {'W' if east < 0 else 'E'}"


def _unit(value: Mapping[str, Any]) -> str:
    return line(value.get("unit"), _VALUE).rsplit("/", 1)[-1]


def amount_text(amount: Any) -> str:
    """A decimal number with separators from 10,000 on, as it was written otherwise; empty for anything else."""
    match = _NUMBER.fullmatch(amount) if isinstance(amount, str) else None
    if match is None:
        return ""
    whole = f"{int(match[1]):,}" if len(match[1]) > 4 else match[1]
    return f"{'-' if amount[0] == '-' else ''}{whole}{match[2] or ''}"


def time_text(time: Any, precision: Any) -> str:
    """A time to its precision: 11 is a day, 10 a month, 9 a year, 8 a decade, 7 a century, 6 a millennium."""
    match = _TIME.match(time) if isinstance(time, str) else None
    if match is None or not isinstance(precision, int):
        return ""
    year, month, day = int(match[2]), int(match[3]), int(match[4])
    era = " BCE" if match[1] == "-" else ""
    # the service writes 0 for a day or month that it does not know
    if precision >= 10 and 1 <= month <= 12:
        return f"{f'{day} ' if precision >= 11 and day else ''}{month_name[month]} {year}{era}"
    if precision in (6, 7):
        size, word = (100, "century") if precision == 7 else (1000, "millennium")
        number = math.ceil(year / size)
        ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return f"{number}{ending} {word}{era}"
    if precision < 6:
        return f"about {year:,}{era}"
    return f"{year // 10 * 10}s{era}" if precision == 8 else f"{year}{era}"
