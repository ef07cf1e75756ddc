"""Wikidata as a knowledge graph: the statements about the entities that a query names, a line for each property."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, groupby, zip_longest
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError, ToolError
from ..trajectory import Evidence
from ..wire.http import Http
from .base import Condenser, Tool
from .graphs.facts import MOST_FACTS, condensed, listed
from .graphs.wikibase import Named, Statement, ids_in, is_id, named, statements, text_of
from .untrusted import check_address, line, rows, section
from .words import words

_LONGEST_SEARCH = 250  # characters that the search takes
_ENTITIES, _SEARCHES = 4, 4  # that are looked at; requests to find them
_IDS = 50  # entities of one request
_KEPT = 20_000  # labels in memory
_SPARE = 3  # properties more than are shown, for those that turn out to have no value with a label
_PASSING = frozenset(("maxlag", "ratelimited", "readonly", "timeout", "no-stashed-content"))
_SMALL = frozenset(
    words("a an and are at by did do does for from had has have how in is it of on or the to was were with")
    + words("what when where which who whom whose why")
)
_ASKING = (_SMALL | set(words("find give list name tell"))) - set(words("by for from it or to with"))
_LINKS = frozenset(
    words("a an at in of on the to de la le du da di del von van der den and f\u00fcr und et y al el bin ibn")
)
_BREAK = re.compile(r"['\u2019]s\b|[,;:!?()\[\]\"\u201c\u201d\u00ab\u00bb]")  # what follows belongs to another name
_QUOTED = re.compile(r"[\"\u201c\u00ab]([^\"\u201c\u201d\u00ab\u00bb]{2,100})[\"\u201d\u00bb]")
_OF = re.compile(r"\b(?:of|for|in|by|from|about)\b|['\u2019]s\b", re.IGNORECASE)


@dataclass(frozen=True)
class Wikidata(Tool):
    """Facts one hop around the entities of a query, by the public APIs of Wikidata or another Wikibase.

    The entities are searched for by the whole query first and, where none is called exactly so, by the names in it (see
    `candidates`). Of namesakes several are looked at. Their properties are ranked by the words that the query shares
    with their labels and other names. One piece of evidence holds the values of one property, the preferred ones before
    others, with the times from, until or at which they hold.

    Args:
        language: of labels and search.
        condenser: writes one paragraph about each entity from its facts; where it fails, the facts are given.
        url: of the action API.
        http: the client. An entity with many statements takes some megabytes.
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
        asked = set(words(query)) - _SMALL - {word for name in names.values() for word in words(name)}
        ranked = await self._ranked(names, asked)
        best = ranked[: self.top_k + _SPARE if self.condenser is None else MOST_FACTS]
        needed = await self._names(ids_in(chain.from_iterable(values for *_, values in best)))
        labels = {key: named.label for key, named in needed.items()}
        found = []
        for item, about, values in best:
            told = {text: said.preferred for said in values if (text := text_of(said, labels))}
            preferred = [text for text, first in told.items() if first]
            other = [text for text, first in told.items() if not first]
            text = f"{about}: {listed(preferred or other)}."
            if preferred and other:  # so that the value of today does not drown in those of a hundred years
                text += f" Other values: {listed(other)}."
            if told:  # else its values have no labels
                found.append(msgspec.structs.replace(item, text=text))
        if self.condenser is None:
            return found[: self.top_k]
        return await condensed(self.condenser, query, found, self.top_k)

    async def _search(self, name: str) -> list[tuple[str, str]]:
        """Ids of entities of that name, best known first, each with the name that matched."""
        asked = {"search": name[:_LONGEST_SEARCH], "language": self.language, "uselang": self.language, "type": "item"}
        document = await self._ask(action="wbsearchentities", **asked, limit=_ENTITIES)
        hits = [(row.get("id"), line(section(row, "match").get("text"), 200)) for row in rows(document, "search")]
        return [(str(entity), name) for entity, name in hits if is_id(entity)][:_ENTITIES]

    async def _ranked(self, ids: Iterable[str], asked: set[str]) -> list[tuple[Evidence, str, list[Statement]]]:
        """Properties of the entities, those that the query asks for first: evidence without text, the names of entity
        and property, and the values."""
        # one request each: an entity's statements are some megabytes
        found = await asyncio.gather(*(self._entities([each], "labels|descriptions|claims") for each in ids))
        said = {key: (entity, statements(entity)) for each in found for key, entity in each.items()}
        names = await self._names(chain.from_iterable(told for _, told in said.values()))
        relations = []
        for key, (entity, told) in said.items():
            label, about = named(entity, self.language).label, named(entity, self.language, "descriptions").label
            title, url = f"{label} ({about})" if about else label, f"https://www.wikidata.org/wiki/{key}"
            for name, values in told.items():
                if label and names[name].label:
                    item = Evidence(text="", title=title, source=f"{key}-{name}", url=url)
                    fits = _fit(asked, names[name])
                    relations.append((fits, (item, f"{label}, {names[name].label}", values)))
        return [relation for _, relation in sorted(relations, key=itemgetter(0), reverse=True)]

    async def _names(self, ids: Iterable[str]) -> dict[str, Named]:
        """The names of items and properties, from memory or asked for; empty where there are none."""
        wanted = list(dict.fromkeys(ids))
        names = {each: known for each in wanted if (known := self._known.get(each))}
        missing = [each for each in wanted if each not in names]
        batches = [missing[start : start + _IDS] for start in range(0, len(missing), _IDS)]
        for found in await asyncio.gather(*(self._entities(batch, "labels|aliases") for batch in batches)):
            for each, entity in found.items():
                names[each] = named(entity, self.language)
        self._known.update(names)
        for each in list(self._known)[: max(0, len(self._known) - _KEPT)]:  # the oldest; other threads do the same
            self._known.pop(each, None)
        return {each: names.get(each, Named()) for each in wanted}

    async def _entities(self, ids: Sequence[str], parts: str) -> dict[str, Any]:
        asked = {"ids": "|".join(ids), "props": parts, "languages": self.language, "languagefallback": 1}
        document = await self._ask(action="wbgetentities", **asked)
        found = [value for value in section(document, "entities").values() if isinstance(value, Mapping)]
        # a redirect is answered under the id that it leads to
        named = {section(value, "redirects").get("from") or value.get("id"): value for value in found}
        return {each: named[each] for each in ids if each in named}

    async def _ask(self, **parameters: Any) -> Any:
        reply = await self.http.get(self.url, params={**parameters, "format": "json"}, accept=("application/json",))
        # megabytes of JSON would hold up the event loop
        document, host = await asyncio.to_thread(reply.json), urlsplit(self.url).hostname
        if failed := section(document, "error"):
            code = line(failed.get("code"), 60)
            passes = code in _PASSING or code.startswith("internal_api_error")
            raise ToolError(f"{host} refused to answer: {code}", passing=passes)
        if not isinstance(document, Mapping):
            raise ToolError(f"{host} answered with something else than facts.")
        return document


def _fit(asked: set[str], named: Named) -> tuple[int, float]:
    """How many of the asked words an entity's best name has, and which share of that name they are."""
    told = [set(words(name)) - _SMALL for name in (named.label, *named.aliases)]
    return max(((len(asked & name), len(asked & name) / len(name)) for name in told if name), default=(0, 0.0))


def candidates(query: str) -> list[str]:
    """Names to try, best first: the whole query, what is quoted, capitalised words, what "of" and "'s" divide.

    Where there is none of these, shorter parts of the query.

    Example:
        >>> candidates("Where was the director of Lost in Translation born?")[1:]
        ['Lost in Translation', 'Lost', 'Translation']
        >>> candidates("capital of france")
        ['capital of france', 'france', 'capital']
    """
    whole = " ".join(query.split()).rstrip("?.! ")
    # the last part first: it is the entity in "population of the capital of x"
    divided = [part.strip() for part in reversed(_OF.split(whole))]
    divided = [re.sub(r"^(?:the|a|an) ", "", part) for part in divided if part] if len(divided) > 1 else []
    told = whole.split()
    shorter = [" ".join(told[:-1]), told[0], told[-1]] if len(told) > 1 else []
    # what is written as a name comes before what only may be one
    found = [whole, *([*_QUOTED.findall(query), *_capitalised(whole), *divided] or shorter)]
    named = [name for name in (each.strip(" -\u2013'\u2019") for each in found) if name.casefold() not in _ASKING]
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
            kept = list(dropwhile(lambda word: not word[:1].isupper() or word.casefold() in _ASKING, run))
            while kept and is_link(kept[-1]):
                kept.pop()
            whole += [kept] if belongs and kept else []
    parts = [list(part) for run in whole for linked, part in groupby(run, key=is_link) if not linked]
    return [" ".join(run) for run in [*sorted(whole, key=len, reverse=True), *parts]]
