"""Wikidata as a knowledge graph: the statements about the entities that a query names, a line for each property."""

import asyncio
import math
import re
from calendar import month_name
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, groupby, islice, zip_longest
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence
from ..wire.http import Http
from .base import Condenser, Tool
from .graphs.facts import MOST_FACTS, condensed, listed
from .untrusted import check_address, line, rows, section
from .words import words

_LONGEST_SEARCH = 250  # characters that the search takes
_ENTITIES, _SEARCHES = 4, 4  # that are looked at; requests to find them
_IDS = 50  # entities of one request
_KEPT = 20_000  # labels in memory
_SPARE = 3  # properties more than are shown, for those that turn out to have no value with a label
_PASSING = frozenset(("maxlag", "ratelimited", "readonly", "timeout", "no-stashed-content"))
_SMALL = set(
    words(
        "a an and are at by did do does for from had has have how in is it of on or the to was were with"
    )
)
_SMALL |= set(words("what when where which who whom whose why"))
_ASKING = (_SMALL | set(words("find give list name tell"))) - set(
    words("by for from it or to with")
)
_LINKS = set(
    words(
        "a an at in of on the to de la le du da di del von van der den and f\u00fcr und et y al el bin ibn"
    )
)
_BREAK = re.compile(
    r"['\u2019]s\b|[,;:!?()\[\]\"\u201c\u201d\u00ab\u00bb]"
)  # what follows belongs to another name
_QUOTED = re.compile(r"[\"\u201c\u00ab]([^\"\u201c\u201d\u00ab\u00bb]{2,100})[\"\u201d\u00bb]")
_OF = re.compile(r"\b(?:of|for|in|by|from|about)\b|['\u2019]s\b", re.IGNORECASE)
_ENTITY = re.compile(r"[QP][1-9]\d{0,11}")
_TIME = re.compile(r"([+-])(\d{1,16})-(\d\d)-(\d\d)T")
_NUMBER = re.compile(r"[+-]?(\d{1,40})(\.\d{1,40})?")
_LEFT_OUT = {
    "external-id",
    "commonsMedia",
    "musical-notation",
    "math",
    "tabular-data",
    "geo-shape",
    "entity-schema",
}
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


@dataclass(frozen=True)
class Wikidata(Tool):
    """Facts one hop around the entities of a query, by the public APIs of Wikidata or another Wikibase.

    The entities are searched for by the whole query first and, where none is called exactly so, by the names in it (see
    `candidates`). Of namesakes several are looked at. Their properties are ranked by the words that the query shares
    with their labels and other names. One piece of evidence holds the values of one property, the preferred ones before
    others, with the times from, until or at which they hold.

    A `condenser` writes one paragraph about each entity from its facts; where it fails, the facts are given. `url` is
    that of the action API. An entity with many statements takes some megabytes (`Http.max_bytes`).
    """

    name: str = "knowledge_graph"
    description: str = ""
    top_k: int = 5
    language: str = "en"
    condenser: Condenser | None = None
    url: str = "https://www.wikidata.org/w/api.php"
    http: Http = field(default_factory=lambda: Http(max_bytes=20_000_000), repr=False)
    _known: dict[str, Named] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_address(self.url, "https://www.wikidata.org/w/api.php")
        if self.top_k < 1 or not self.language:
            raise ConfigError(f"top_k must be at least 1, and language given; got {self}")

    @property
    def cache_key(self) -> str:  # type: ignore[override]
        condenser = self.condenser.name if self.condenser else ""
        return f"wikidata {self.url} {self.language} {self.top_k} {condenser}"

    async def knowledge_graph(self, query: str) -> list[Evidence]:
        """Look up facts about the entities named in the query in a knowledge graph.

        Args:
            query: The entities by name and the relation wanted, such as 'capital of France'.
        """
        tried = candidates(query)
        if not tried:
            raise ToolError("The query names no entity; name one, and the relation wanted.")
        whole = await self._search(tried[0])
        hits = [whole]
        if not any(name.casefold() == tried[0].casefold() for _, name in whole):
            hits = [*await asyncio.gather(*(self._search(name) for name in tried[1:])), whole]
        # the best known of each name, then the second best
        linked = dict(hit for hit in chain.from_iterable(zip_longest(*hits)) if hit is not None)
        names = dict(list(linked.items())[:_ENTITIES])
        # an entity's own name says nothing about which of its properties is wanted
        asked = (
            set(words(query)) - _SMALL - {word for name in names.values() for word in words(name)}
        )
        ranked = await self._ranked(names, asked)
        best = ranked[: self.top_k + _SPARE if self.condenser is None else MOST_FACTS]
        needed = await self._names(ids_in(chain.from_iterable(values for *_, values in best)))
        labels = {key: named.label for key, named in needed.items()}
        found = []
        for item, about, values in best:
            told = {text: said.preferred for said in values if (text := text_of(said, labels))}
            if not told:  # its values have no labels
                continue
            preferred = [text for text, first in told.items() if first]
            other = [text for text, first in told.items() if not first]
            text = f"{about}: {listed(preferred or other)}."
            if (
                preferred and other
            ):  # so that the value of today does not drown in those of a hundred years
                text += f" Other values: {listed(other)}."
            found.append(msgspec.structs.replace(item, text=text))
        if self.condenser is None:
            return found[: self.top_k]
        return await condensed(self.condenser, query, found, self.top_k)

    async def _search(self, name: str) -> list[tuple[str, str]]:
        """Ids of entities of that name, best known first, each with the name that matched."""
        asked = {
            "search": name[:_LONGEST_SEARCH],
            "language": self.language,
            "uselang": self.language,
            "type": "item",
        }
        document = await self._ask(action="wbsearchentities", **asked, limit=_ENTITIES)
        hits = [
            (row.get("id"), line(section(row, "match").get("text"), 200))
            for row in rows(document, "search")
        ]
        return [(str(entity), name) for entity, name in hits if is_id(entity)][:_ENTITIES]

    async def _ranked(
        self, ids: Iterable[str], asked: set[str]
    ) -> list[tuple[Evidence, str, list[Statement]]]:
        """Properties of the entities, those that the query asks for first: evidence without text, the names of entity
        and property, and the values."""
        # one request each: an entity's statements are some megabytes
        found = await asyncio.gather(
            *(self._entities([each], "labels|descriptions|claims") for each in ids)
        )
        said = {key: (entity, statements(entity)) for each in found for key, entity in each.items()}
        names = await self._names(chain.from_iterable(told for _, told in said.values()))
        relations = []
        for key, (entity, told) in said.items():
            label, about = (
                named(entity, self.language).label,
                named(entity, self.language, "descriptions").label,
            )
            title, url = (
                f"{label} ({about})" if about else label,
                f"https://www.wikidata.org/wiki/{key}",
            )
            for name, values in told.items():
                if label and names[name].label:
                    item = Evidence(text="", title=title, source=f"{key}-{name}", url=url)
                    # how many of the asked words its best name has, and which share of that name they are
                    called = [
                        set(words(each)) - _SMALL
                        for each in (names[name].label, *names[name].aliases)
                    ]
                    shared = [
                        (len(asked & each), len(asked & each) / len(each))
                        for each in called
                        if each
                    ]
                    fits = max(shared, default=(0, 0.0))
                    relations.append((fits, (item, f"{label}, {names[name].label}", values)))
        return [relation for _, relation in sorted(relations, key=itemgetter(0), reverse=True)]

    async def _names(self, ids: Iterable[str]) -> dict[str, Named]:
        """The names of items and properties, from memory or asked for; empty where there are none."""
        wanted = list(dict.fromkeys(ids))
        names = {each: known for each in wanted if (known := self._known.get(each))}
        missing = [each for each in wanted if each not in names]
        batches = [missing[start : start + _IDS] for start in range(0, len(missing), _IDS)]
        for found in await asyncio.gather(
            *(self._entities(batch, "labels|aliases") for batch in batches)
        ):
            for each, entity in found.items():
                names[each] = named(entity, self.language)
        self._known.update(names)
        for each in list(self._known)[
            : max(0, len(self._known) - _KEPT)
        ]:  # the oldest; other threads do the same
            self._known.pop(each, None)
        return {each: names.get(each, Named()) for each in wanted}

    async def _entities(self, ids: Sequence[str], parts: str) -> dict[str, Any]:
        asked = {
            "ids": "|".join(ids),
            "props": parts,
            "languages": self.language,
            "languagefallback": 1,
        }
        document = await self._ask(action="wbgetentities", **asked)
        found = [
            value for value in section(document, "entities").values() if isinstance(value, Mapping)
        ]
        # a redirect is answered under the id that it leads to
        named = {
            section(value, "redirects").get("from") or value.get("id"): value for value in found
        }
        return {each: named[each] for each in ids if each in named}

    async def _ask(self, **parameters: Any) -> Any:
        reply = await self.http.get(
            self.url, params={**parameters, "format": "json"}, accept=("application/json",)
        )
        # megabytes of JSON would hold up the event loop
        document, host = await asyncio.to_thread(reply.json), urlsplit(self.url).hostname
        if failed := section(document, "error"):
            code = line(failed.get("code"), 60)
            passes = code in _PASSING or code.startswith("internal_api_error")
            raise ToolError(f"{host} refused to answer: {code}", passing=passes)
        if not isinstance(document, Mapping):
            raise ToolError(f"{host} answered with something else than facts.")
        return document


def candidates(query: str) -> list[str]:
    """Names to try, best first: the whole query, what is quoted, capitalised words, what "of" and "'s" divide.

    Where there is none of these, shorter parts of the query.

    Example:
        >>> candidates("Where was the director of Lost in Translation born?")[1:]
        ['Lost in Translation', 'Lost', 'Translation']
    """
    whole = " ".join(query.split()).rstrip("?.! ")
    # the last part first: it is the entity in "population of the capital of x"
    divided = [part.strip() for part in reversed(_OF.split(whole))]
    divided = (
        [re.sub(r"^(?:the|a|an) ", "", part) for part in divided if part]
        if len(divided) > 1
        else []
    )
    told = whole.split()
    shorter = [" ".join(told[:-1]), told[0], told[-1]] if len(told) > 1 else []
    # what is written as a name comes before what only may be one
    found = [whole, *([*_QUOTED.findall(query), *_capitalised(whole), *divided] or shorter)]
    named = [
        name
        for name in (each.strip(" -\u2013'\u2019") for each in found)
        if name.casefold() not in _ASKING
    ]
    return list(dict.fromkeys(name for name in named if name))[:_SEARCHES]


def _capitalised(text: str) -> list[str]:
    """Runs of words with capitals, longest first; small words like "of" may link them, and are tried without, too."""

    def is_link(word: str) -> bool:
        return word.casefold() in _LINKS

    def may_belong(word: str) -> bool:
        return word[:1].isupper() or word[:1].isdigit() or is_link(word)

    whole = []
    for piece in _BREAK.split(text):
        for belongs, run in groupby(piece.split(), key=may_belong):
            # without "Who" and "The" at its beginning and "of" at its end
            kept = list(
                dropwhile(lambda word: not word[:1].isupper() or word.casefold() in _ASKING, run)
            )
            while kept and is_link(kept[-1]):
                kept.pop()
            whole += [kept] if belongs and kept else []
    parts = [
        list(part) for run in whole for linked, part in groupby(run, key=is_link) if not linked
    ]
    return [" ".join(run) for run in [*sorted(whole, key=len, reverse=True), *parts]]


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
                when = tuple(
                    (word, section(first, "datavalue"))
                    for word, firsts in times
                    for first in firsts
                )
                found.append(Statement(value, rank == "preferred", when))
        if found:
            told[name] = sorted(found, key=lambda each: not each.preferred)[:_STATEMENTS]
    return told


def ids_in(told: Iterable[Statement]) -> list[str]:
    """The items whose labels the texts of statements need, each once: values, and units of values."""
    values = [section(each.value, "value") for each in told]
    return list(
        dict.fromkeys(
            str(key) for value in values for key in (value.get("id"), _unit(value)) if is_id(key)
        )
    )


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
    if kind != "globecoordinate" or not all(
        isinstance(d, (int, float)) and abs(d) <= 360 for d in (north, east)
    ):
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
        ending = (
            "th"
            if number % 100 in (11, 12, 13)
            else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        )
        return f"{number}{ending} {word}{era}"
    if precision < 6:
        return f"about {year:,}{era}"
    return f"{year // 10 * 10}s{era}" if precision == 8 else f"{year}{era}"
