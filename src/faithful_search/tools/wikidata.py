"""Wikidata as a knowledge graph: statements about the entities that a query names, one line for
each property.
"""

import asyncio
import math
import re
from calendar import month_name
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, groupby, islice, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence
from ..wire.http import Http
from .base import Condenser, Tool
from .graphs.facts import MOST_FACTS, condensed, listed
from .setup import Setup
from .untrusted import check_address, line, rows, section
from .words import words

_LONGEST_SEARCH = 250  # characters that the service's search takes
_ENTITIES = 4  # entities that a query is taken to name, at most
_SEARCHES = 4  # names of a query that are searched for
_IDS = 50  # entities that one request asks for
_KEPT = 20_000  # labels in memory
_SPARE = 3  # properties beyond `top_k`, in the place of those whose values have no labels
# Codes of errors that pass
_TRANSIENT = frozenset(("maxlag", "ratelimited", "readonly", "timeout", "no-stashed-content"))
_SMALL = set(
    words(
        "a an and are at by did do does for from had has have how in is it of on or the to was "
        "were with"
    )
)
_SMALL |= set(words("what when where which who whom whose why"))
# Words that are part of the question, and no name on their own
_ASKING = (_SMALL | set(words("find give list name tell"))) - set(
    words("by for from it or to with")
)
# Words that link the parts of a name
_LINKS = set(
    words(
        "a an at in of on the to de la le du da di del von van der den and f\u00fcr und et y al el "
        "bin ibn"
    )
)
# Stands between two names
_BREAK = re.compile(r"['\u2019]s\b|[,;:!?()\[\]\"\u201c\u201d\u00ab\u00bb]")
_QUOTED = re.compile(r"[\"\u201c\u00ab]([^\"\u201c\u201d\u00ab\u00bb]{2,100})[\"\u201d\u00bb]")
_OF = re.compile(r"\b(?:of|for|in|by|from|about)\b|['\u2019]s\b", re.IGNORECASE)
_ENTITY = re.compile(r"[QP][1-9]\d{0,11}")
_TIME = re.compile(r"([+-])(\d{1,16})-(\d\d)-(\d\d)T")
# By a time's precision: how many years there are in the period that it is written as
_PERIODS = {6: (1000, "millennium"), 7: (100, "century")}
_NUMBER = re.compile(r"[+-]?(\d{1,40})(\.\d{1,40})?")
# Types of values that say nothing to a reader
_LEFT_OUT = {
    "external-id",
    "commonsMedia",
    "musical-notation",
    "math",
    "tabular-data",
    "geo-shape",
    "entity-schema",
}
_PROPERTIES, _STATEMENTS = 500, 20  # that are read of an entity, and of each property
_VALUE, _LABEL = 300, 200  # characters that are kept
# Qualifiers: start time, end time, point in time
_WHEN = {"P580": "from", "P582": "until", "P585": "as of"}


class Named(msgspec.Struct, frozen=True):
    """An entity's names."""

    label: str = ""
    aliases: tuple[str, ...] = ()


class WikidataStatement(msgspec.Struct, frozen=True):
    """One value of an entity's property.

    Attributes:
        value: the value, as the service writes it.
        preferred: whether the service prefers it to others.
        when: the times from, until or at which it holds, each with the word for it.
    """

    value: Mapping[str, Any]
    preferred: bool = False
    when: tuple[tuple[str, Mapping[str, Any]], ...] = ()


class Property(NamedTuple):
    """An entity's property with its values.

    Attributes:
        evidence: the passage that they will be, still without text.
        about: the names of entity and property.
    """

    evidence: Evidence
    about: str
    values: list[WikidataStatement]


@dataclass(frozen=True)
class Wikidata(Tool):
    """Returns facts about the entities that a query names, from Wikidata or another Wikibase.

    Entities are searched for by the whole query, and if none has exactly that name, by the names in
    it (`candidates`); several namesakes are looked at. Their properties are ranked by the words
    that the query shares with the properties' names. Each passage holds the values of one property,
    preferred ones first, with the times from, until or at which they hold.

    Args:
        name: what the policy calls the tool.
        description: what the policy is told of it, instead of the method's docstring.
        top_k: how many passages a call returns.
        language: the code of the language of names and values.
        condenser: writes one paragraph about each entity from its facts; where it fails, the facts
            are returned.
        url: the address of the service's action API.
        http: the client. An entity with many statements takes some megabytes (`Http.max_bytes`).
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

    @classmethod
    def open(cls, source: str, setup: Setup) -> Tool:
        cls.takes_no(source)
        # An entity with many statements takes some megabytes.
        http = setup.http(max_bytes=20_000_000)
        return cls(condenser=setup.condenser, http=http, **setup.about)

    @property
    def cache_key(self) -> str:  # type: ignore[override]
        condenser = self.condenser.name if self.condenser else ""
        return f"wikidata {self.url} {self.language} {self.top_k} {condenser}"

    async def knowledge_graph(self, query: str) -> list[Evidence]:
        """Look up facts about the entities named in the query in a knowledge graph.

        Args:
            query: The entities by name and the relation wanted, such as 'capital of France'.
        """
        entities = await self._entities_of(query)
        # An entity's own name says nothing about which of its properties is asked for.
        wanted_words = set(words(query)) - _SMALL
        for name in entities.values():
            wanted_words.difference_update(words(name))
        properties = await self._ranked(entities, wanted_words)
        most = self.top_k + _SPARE if self.condenser is None else MOST_FACTS
        facts = await self._facts(properties[:most])
        if self.condenser is None:
            return facts[: self.top_k]
        return await condensed(self.condenser, query, facts, self.top_k)

    async def _entities_of(self, query: str) -> dict[str, str]:
        """The ids of entities that the query names, each with the name that matched."""
        names = candidates(query)
        if not names:
            raise ToolError("The query names no entity; name one, and the relation wanted.")
        whole_query = names[0]
        hits_of_names = [await self._search(whole_query)]
        # Where the whole query is the name of an entity, its parts are not looked for.
        names_found = {name.casefold() for _, name in hits_of_names[0]}
        if whole_query.casefold() not in names_found:
            searches = [self._search(name) for name in names[1:]]
            hits_of_names = [*await asyncio.gather(*searches), *hits_of_names]
        # First the best known entity of each name, then the second best.
        entities: dict[str, str] = {}
        for hits in zip_longest(*hits_of_names):
            entities.update(hit for hit in hits if hit is not None)
        return dict(islice(entities.items(), _ENTITIES))

    async def _facts(self, properties: Sequence["Property"]) -> list[Evidence]:
        """The properties as evidence, without those whose values have no labels."""
        all_values = chain.from_iterable(prop.values for prop in properties)
        names = await self._names(ids_in(all_values))
        labels = {key: name.label for key, name in names.items()}
        facts = []
        for prop in properties:
            is_preferred: dict[str, bool] = {}
            for statement in prop.values:
                text = text_of(statement, labels)
                if text:
                    is_preferred[text] = statement.preferred
            if not is_preferred:
                continue
            preferred = [text for text in is_preferred if is_preferred[text]]
            further = [text for text in is_preferred if not is_preferred[text]]
            fact = f"{prop.about}: {listed(preferred or further)}."
            # Apart, so that the value of today does not drown in those of a hundred years.
            if preferred and further:
                fact += f" Other values: {listed(further)}."
            facts.append(msgspec.structs.replace(prop.evidence, text=fact))
        return facts

    async def _search(self, name: str) -> list[tuple[str, str]]:
        """Ids of entities of that name, best known first, each with the name that matched."""
        document = await self._ask(
            action="wbsearchentities",
            search=name[:_LONGEST_SEARCH],
            language=self.language,
            uselang=self.language,
            type="item",
            limit=_ENTITIES,
        )
        hits = []
        for row in rows(document, "search"):
            entity = row.get("id")
            if is_id(entity):
                matched_name = line(section(row, "match").get("text"), 200)
                hits.append((str(entity), matched_name))
        return hits[:_ENTITIES]

    async def _ranked(self, ids: Iterable[str], wanted_words: set[str]) -> list["Property"]:
        """Properties of the entities, those that the query asks for first."""
        # One request each: an entity's statements are some megabytes.
        requests = [self._entities([key], "labels|descriptions|claims") for key in ids]
        entities: dict[str, Any] = {}
        for reply in await asyncio.gather(*requests):
            entities |= reply
        claims = {key: statements(entity) for key, entity in entities.items()}
        names = await self._names(chain.from_iterable(claims.values()))
        ranked: list[tuple[tuple[int, float], Property]] = []
        for key, entity in entities.items():
            label = named(entity, self.language).label
            description = named(entity, self.language, "descriptions").label
            title = f"{label} ({description})" if description else label
            for name, values in claims[key].items():
                relation = names[name]
                if not label or not relation.label:
                    continue
                evidence = Evidence(
                    text="",
                    title=title,
                    source=f"{key}-{name}",
                    url=f"https://www.wikidata.org/wiki/{key}",
                )
                prop = Property(evidence, f"{label}, {relation.label}", values)
                ranked.append((_overlap(relation, wanted_words), prop))
        ranked.sort(key=itemgetter(0), reverse=True)
        return [prop for _, prop in ranked]

    async def _names(self, ids: Iterable[str]) -> dict[str, Named]:
        """The names of items and properties, from memory or from the service; empty ones where it
        has none.
        """
        distinct = list(dict.fromkeys(ids))
        names: dict[str, Named] = {}
        for key in distinct:
            remembered = self._known.get(key)  # looked up once: other threads drop old ones
            if remembered is not None:
                names[key] = remembered
        missing = [key for key in distinct if key not in names]
        requests = []
        for start in range(0, len(missing), _IDS):
            requests.append(self._entities(missing[start : start + _IDS], "labels|aliases"))
        for reply in await asyncio.gather(*requests):
            for key, entity in reply.items():
                names[key] = named(entity, self.language)
        self._remember(names)
        return {key: names.get(key, Named()) for key in distinct}

    def _remember(self, names: Mapping[str, Named]) -> None:
        self._known.update(names)
        surplus = max(0, len(self._known) - _KEPT)
        for key in list(self._known)[:surplus]:  # the oldest; other threads do the same
            self._known.pop(key, None)

    async def _entities(self, ids: Sequence[str], parts: str) -> dict[str, Any]:
        document = await self._ask(
            action="wbgetentities",
            ids="|".join(ids),
            props=parts,
            languages=self.language,
            languagefallback=1,
        )
        entities: dict[Any, Any] = {}
        for value in section(document, "entities").values():
            if isinstance(value, Mapping):
                # The answer has a redirect under the id that it leads to.
                key = section(value, "redirects").get("from") or value.get("id")
                entities[key] = value
        return {key: entities[key] for key in ids if key in entities}

    async def _ask(self, **parameters: Any) -> Any:
        reply = await self.http.get(
            self.url, params={**parameters, "format": "json"}, accept=("application/json",)
        )
        # In a thread: megabytes of JSON would hold up the event loop.
        document = await asyncio.to_thread(reply.json)
        host = urlsplit(self.url).hostname
        error = section(document, "error")
        if error:
            code = line(error.get("code"), 60)
            transient = code in _TRANSIENT or code.startswith("internal_api_error")
            raise ToolError(f"{host} refused to answer: {code}", transient=transient)
        if not isinstance(document, Mapping):
            raise ToolError(f"{host} answered with something else than facts.")
        return document


def _overlap(relation: Named, wanted_words: set[str]) -> tuple[int, float]:
    """How many of the words a relation's best name has, and what share of that name they are."""
    best = (0, 0.0)
    for name in (relation.label, *relation.aliases):
        name_words = set(words(name)) - _SMALL
        if name_words:
            count = len(wanted_words & name_words)
            best = max(best, (count, count / len(name_words)))
    return best


def candidates(query: str) -> list[str]:
    """The names to search for, best first: the whole query, quoted parts, capitalised words, and the
    parts around "of" and "'s". Without any of these parts, shorter parts of the query.

    Example:
        >>> candidates("Where was the director of Lost in Translation born?")[1:]
        ['Lost in Translation', 'Lost', 'Translation']
    """
    text = " ".join(query.split()).rstrip("?.! ")
    # What is written as a name comes before what may be one.
    parts = [*_QUOTED.findall(query), *_capitalised(text), *_divided(text)]
    if not parts:
        parts = _shortened(text.split())
    names: dict[str, None] = {}  # in order, each once
    for part in (text, *parts):
        name = part.strip(" -\u2013'\u2019")
        if name and name.casefold() not in _ASKING:
            names[name] = None
    return list(names)[:_SEARCHES]


def _divided(text: str) -> list[str]:
    """The parts around "of" and "'s", the last one first: in "population of the capital of x" it is
    the entity.
    """
    parts = [part.strip() for part in reversed(_OF.split(text))]
    if len(parts) == 1:
        return []
    return [re.sub(r"^(?:the|a|an) ", "", part) for part in parts if part]


def _shortened(query_words: list[str]) -> list[str]:
    """The query without its last word, its first word, and its last; none of a single word."""
    if len(query_words) < 2:
        return []
    return [" ".join(query_words[:-1]), query_words[0], query_words[-1]]


def _capitalised(text: str) -> list[str]:
    """Runs of capitalised words, longest first, then their parts between words like "of" that link
    them.
    """

    def is_link(word: str) -> bool:
        return word.casefold() in _LINKS

    def may_belong(word: str) -> bool:
        return word[:1].isupper() or word[:1].isdigit() or is_link(word)

    def cannot_begin(word: str) -> bool:
        return not word[:1].isupper() or word.casefold() in _ASKING

    runs: list[list[str]] = []
    for piece in _BREAK.split(text):
        for belongs, group in groupby(piece.split(), key=may_belong):
            if not belongs:
                continue
            # Without "Who" or "The" at the beginning, and "of" at the end.
            run = list(dropwhile(cannot_begin, group))
            while run and is_link(run[-1]):
                run.pop()
            if run:
                runs.append(run)
    unlinked: list[list[str]] = []
    for run in runs:
        unlinked += [list(part) for linked, part in groupby(run, key=is_link) if not linked]
    longest_first = sorted(runs, key=len, reverse=True)
    return [" ".join(run) for run in [*longest_first, *unlinked]]


def is_id(value: Any) -> bool:
    return isinstance(value, str) and bool(_ENTITY.fullmatch(value))


def named(entity: Any, language: str, part: str = "labels") -> Named:
    """An entity's label (or another `part` of it, such as its description) and other names.

    The service has already put another language in the place of one that is missing.
    """
    term = section(section(entity, part), language)
    label = line(term.get("value"), _LABEL)
    rows_of_aliases = islice(rows(section(entity, "aliases"), language), _STATEMENTS)
    aliases = [line(row.get("value"), _LABEL) for row in rows_of_aliases]
    return Named(label, tuple(aliases))


def statements(entity: Any) -> dict[str, list[WikidataStatement]]:
    """The statements about an entity by property, preferred ones first.

    Left out is what says nothing to a reader: deprecated statements, identifiers of other
    databases, media, formulas, and values that are unknown or do not exist.
    """
    claims = section(entity, "claims")
    by_property: dict[str, list[WikidataStatement]] = {}
    for name in filter(is_id, list(claims)[:_PROPERTIES]):
        parsed = [_statement(row) for row in rows(claims, name)]
        usable = [statement for statement in parsed if statement is not None]
        if usable:
            usable.sort(key=lambda statement: not statement.preferred)
            by_property[name] = usable[:_STATEMENTS]
    return by_property


def _statement(row: Mapping[str, Any]) -> WikidataStatement | None:
    snak = section(row, "mainsnak")
    value = section(snak, "datavalue")
    rank = row.get("rank")
    if rank not in ("preferred", "normal") or not value or snak.get("datatype") in _LEFT_OUT:
        return None
    qualifiers = section(row, "qualifiers")
    times = []
    for key, word in _WHEN.items():
        # Only the first of several start times, for example.
        for qualifier in islice(rows(qualifiers, key), 1):
            times.append((word, section(qualifier, "datavalue")))
    return WikidataStatement(value, rank == "preferred", tuple(times))


def ids_in(values: Iterable[WikidataStatement]) -> list[str]:
    """The items whose labels are needed to write these statements, each once: values and units."""
    ids: dict[str, None] = {}
    for statement in values:
        value = section(statement.value, "value")
        for key in (value.get("id"), _unit(value)):
            if is_id(key):
                ids[str(key)] = None
    return list(ids)


def text_of(statement: WikidataStatement, labels: Mapping[str, str]) -> str:
    """The value with its times; empty where it cannot be written, as for an item without a label."""
    text = _value(statement.value, labels)
    times = []
    for word, value in statement.when:
        time = _value(value, labels)
        if time:
            times.append(f"{word} {time}")
    if not text or not times:
        return text
    return f"{text} ({' '.join(times)})"


def _value(datavalue: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The value as a reader is shown it; empty where it cannot be written."""
    kind = datavalue.get("type")
    value = section(datavalue, "value")
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
    if kind == "globecoordinate":
        return _place(value.get("latitude"), value.get("longitude"))
    return ""


def _place(latitude: Any, longitude: Any) -> str:
    for degrees in (latitude, longitude):
        if not isinstance(degrees, (int, float)) or abs(degrees) > 360:
            return ""
    north = f"{abs(latitude):.6g}° {'S' if latitude < 0 else 'N'}"
    east = f"{abs(longitude):.6g}° {'W' if longitude < 0 else 'E'}"
    return f"{north}, {east}"


def _unit(value: Mapping[str, Any]) -> str:
    return line(value.get("unit"), _VALUE).rsplit("/", 1)[-1]


def amount_text(amount: Any) -> str:
    """A decimal number, with separators from 10,000 on; empty for anything else."""
    match = _NUMBER.fullmatch(amount) if isinstance(amount, str) else None
    if match is None:
        return ""
    integer = f"{int(match[1]):,}" if len(match[1]) > 4 else match[1]
    sign = "-" if amount[0] == "-" else ""
    return f"{sign}{integer}{match[2] or ''}"


def time_text(time: Any, precision: Any) -> str:
    """A time, written to its precision.

    11 is a day, 10 a month, 9 a year, 8 a decade, 7 a century, 6 a millennium.
    """
    match = _TIME.match(time) if isinstance(time, str) else None
    if match is None or not isinstance(precision, int):
        return ""
    year = int(match[2])
    month = int(match[3])
    day = int(match[4])
    era = " BCE" if match[1] == "-" else ""
    # The service writes 0 for a day or month that it does not know.
    if precision >= 10 and 1 <= month <= 12:
        month_and_year = f"{month_name[month]} {year}{era}"
        if precision >= 11 and day:
            return f"{day} {month_and_year}"
        return month_and_year
    if precision in _PERIODS:
        years, period = _PERIODS[precision]
        number = math.ceil(year / years)
        return f"{number}{_ordinal_ending(number)} {period}{era}"
    if precision < 6:
        return f"about {year:,}{era}"
    if precision == 8:
        return f"{year // 10 * 10}s{era}"
    return f"{year}{era}"


def _ordinal_ending(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
