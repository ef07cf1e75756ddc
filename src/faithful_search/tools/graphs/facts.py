"""Facts of a knowledge graph, condensed to sentences."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence

import msgspec

from ...errors import ToolError
from ...trajectory import Evidence
from ...wire.cache import Partial
from ..condenser import Condenser
from ..words import words

_log = logging.getLogger(__name__)
MOST_VALUES = 10
"""Values that a sentence lists; of the others it says how many there are."""

_FOR_THE_CONDENSER = 30  # sentences about an entity that it is given
_PREPOSITIONS = frozenset(words("about after as at before between by for from in into of on over to under with"))


class Fact(msgspec.Struct, frozen=True):
    """The `relation` of `subject` is `object`, all three as labels.

    `entity` is the label of the one that the fact was found for: the object where it is `incoming`, else the subject.
    `source` names the fact, `url` the page about the entity.
    """

    subject: str
    relation: str
    object: str
    entity: str
    source: str
    url: str = ""
    incoming: bool = False


def grouped(facts: Iterable[Fact]) -> list[list[Fact]]:
    """The facts that one sentence can tell: of one entity, by one relation, in one direction. Groups and facts in the
    order given."""
    groups: dict[tuple[str, str, str, bool], list[Fact]] = {}
    for fact in facts:
        groups.setdefault((fact.entity, fact.url, fact.relation, fact.incoming), []).append(fact)
    return list(groups.values())


def sentence(facts: Sequence[Fact], english: bool = True) -> str:
    """What a group of facts says, each value once: a sentence for one value, else "subject, relation: values".

    Labels of another language than English are never made a sentence.

    Example:
        >>> sentence([Fact("France", "capital", "Paris", "France", "t1")])
        'The capital of France is Paris.'
        >>> sentence([Fact("Ann", "child", name, "Ann", "") for name in ("Bo", "Cy", "Di")])
        'Ann, child: Bo, Cy and Di.'
        >>> sentence([Fact(name, "country", "France", "France", "", incoming=True) for name in ("Lyon", "Nice")])
        'Lyon and Nice, country: France.'
        >>> sentence([Fact("Paris", "capital of", "France", "Paris", "")])
        'Paris, capital of: France.'
    """
    first = facts[0]
    values = list(dict.fromkeys(fact.subject if first.incoming else fact.object for fact in facts))
    if english and len(values) == 1 and _is_noun(first.relation):
        return f"The {first.relation} of {first.subject} is {first.object}."
    one, other = (listed(values), first.object) if first.incoming else (first.subject, listed(values))
    return f"{one}, {first.relation}: {other}."


def evidence_of(facts: Sequence[Fact]) -> Evidence:
    """A group of facts as one piece of evidence about their entity."""
    first = facts[0]
    return Evidence(text=sentence(facts), title=first.entity, source=first.source, url=first.url)


async def condensed(condenser: Condenser, query: str, facts: Sequence[Evidence], top_k: int) -> list[Evidence]:
    """One paragraph about each entity, which `condenser` writes from the facts.

    An entity of which they say nothing that was asked is left out, unless all are. Where the condenser fails, the facts
    themselves come after the paragraphs, and what is returned is `Partial`.
    """
    by_entity: dict[tuple[str, str], list[Evidence]] = {}
    for item in facts:
        by_entity.setdefault((item.title, item.url), []).append(item)
    about = list(by_entity.values())[:top_k]
    texts = await asyncio.gather(*(_paragraph(condenser, query, items) for items in about))
    told = [msgspec.structs.replace(items[0], text=text) for text, items in zip(texts, about, strict=True) if text]
    untold = [item for text, items in zip(texts, about, strict=True) if text is None for item in items]
    found = ([*told, *untold] or list(facts))[:top_k]
    return Partial(found) if None in texts else found


async def _paragraph(condenser: Condenser, query: str, facts: Sequence[Evidence]) -> str | None:
    """Empty when the facts say nothing about the query, `None` when there is no telling."""
    try:
        return (await condenser.condense(query, [item.text for item in facts[:_FOR_THE_CONDENSER]])).strip()
    except ToolError as error:
        _log.warning("no summary, so the facts themselves are shown: %s", error)
        return None


def listed(values: Sequence[str]) -> str:
    """`A, B and C`; what is beyond `MOST_VALUES` is counted."""
    if len(values) > MOST_VALUES:
        values = [*values[:MOST_VALUES], f"{len(values) - MOST_VALUES} more"]
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"


def _is_noun(relation: str) -> bool:
    """Whether "the … of X" can be said: `capital of`, `educated at`, `has part`, `award received`, `leads` cannot."""
    told = relation.split()
    verb = told[0] in ("has", "is") or any(word.endswith("ed") for word in told) or _is_verb(relation)
    return not verb and told[-1] not in _PREPOSITIONS


def _is_verb(relation: str) -> bool:
    """Whether it may be one, as `leads` and `knows` in RDF; a noun told as one, such as `headquarters`, reads well."""
    return re.fullmatch(r"\w+[^\Wsui]s", relation) is not None
