"""The facts of an RDF file, in any syntax that pyoxigraph reads, with labels for its terms."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyoxigraph import Literal, NamedNode, RdfFormat, parse

from ...errors import DataError
from .facts import Graph, Triple

# What names an entity and says nothing else about it, best first; the last one is only looked for, never shown.
_NAMES = (
    "http://www.w3.org/2000/01/rdf-schema#label",
    "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://schema.org/name",
    "https://schema.org/name",
    "http://www.w3.org/2004/02/skos/core#altLabel",
)


def read_rdf(path: Path, languages: Sequence[str] = ("en",)) -> Graph:
    """Read a file such as `graph.ttl` or `graph.nt.gz`.

    A term is called by its rdfs:label, skos:prefLabel or schema:name in the first of `languages` that it has, else by
    one without a language, else by any; without a label by the last part of its IRI. Labels of all languages, and
    skos:altLabel, name it in a query. Blank nodes, which have no name, are left out; of a property's values in several
    languages those in the best one are kept.

    Raises:
        DataError: naming the file, and the line where there is one, that cannot be read; or when there are no facts.
    """
    told: dict[tuple[NamedNode, NamedNode, Any], None] = {}
    names: dict[NamedNode, list[tuple[int, int, str]]] = {}  # of each entity: by which property, how foreign, the name
    best: dict[tuple[NamedNode, NamedNode], int] = {}  # how foreign the least foreign value of a property is
    for quad in _parsed(path):
        subject, predicate, value = quad.subject, quad.predicate, quad.object
        # a blank node has no name by which a reader could know it again
        if not isinstance(subject, NamedNode) or not isinstance(value, (NamedNode, Literal)):
            continue
        foreign = _foreign(value, languages)
        if predicate.value not in _NAMES:
            told[subject, predicate, value] = None
            if isinstance(value, Literal) and value.language:
                best[subject, predicate] = min(foreign, best.get((subject, predicate), foreign))
        elif isinstance(value, Literal) and value.value.strip():
            name = " ".join(value.value.split())
            names.setdefault(subject, []).append((_NAMES.index(predicate.value), foreign, name))

    def label(node: NamedNode) -> str:
        rank, _, name = min(names.get(node, ()), default=(len(_NAMES), 0, ""))
        return name if rank < len(_NAMES) - 1 else local_name(node.value)

    triples = []
    for subject, predicate, value in told:
        if isinstance(value, Literal):
            if value.language and _foreign(value, languages) > best[subject, predicate]:
                continue
            # the quotation marks keep a literal from being taken for the entity of that name: no IRI has any
            shown, key = " ".join(value.value.split()), f'"{value.value}"'
        else:
            shown, key = label(value), value.value
        name = local_name(predicate.value)
        # `officialLanguage` is read as `official language`
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
        relation = label(predicate) if predicate in names else spaced
        triples.append(
            Triple(f"{local_name(subject.value)}-{name}", label(subject), relation, shown, subject.value, key)
        )
    if not triples:
        raise DataError(f"{path}: no triples in it")
    return Graph(triples, [(name, node.value) for node, found in names.items() for _, _, name in found])


def local_name(iri: str) -> str:
    """The last part of an IRI, readable.

    Example:
        >>> local_name("http://dbpedia.org/resource/Caf%C3%A9_Central"), local_name("urn:x:city#Nice")
        ('Café Central', 'Nice')
    """
    last = re.split(r"[/#:]", iri.rstrip("/#:"))[-1]
    return " ".join(unquote(last).replace("_", " ").split()) or iri


def _foreign(term: NamedNode | Literal, languages: Sequence[str]) -> int:
    """How far a literal's language is from the one preferred most; text without a language comes after those named."""
    if not isinstance(term, Literal) or not term.language:
        return len(languages)
    spoken = term.language.casefold().partition("-")[0]
    return list(languages).index(spoken) if spoken in languages else len(languages) + 1


def _parsed(path: Path) -> list[Any]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            return list(parse(file, RdfFormat.from_extension(path.name.removesuffix(".gz").rpartition(".")[2])))
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise DataError(f"{path}{line}: {error.msg}") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"cannot read {path} as RDF: {error}") from error
