"""The facts of an RDF file, in any syntax that pyoxigraph reads, with labels for its terms."""

import gzip
import re
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyoxigraph import Literal, NamedNode, RdfFormat, parse

from ...errors import DataError
from .facts import Triple

# What names an entity and says nothing else about it, best first; the last one is only looked for,
# never shown.
_NAMES = (
    "http://www.w3.org/2000/01/rdf-schema#label",
    "http://www.w3.org/2004/02/skos/core#prefLabel",
    "http://schema.org/name",
    "https://schema.org/name",
    "http://www.w3.org/2004/02/skos/core#altLabel",
)


def read_rdf(path: Path) -> tuple[list[Triple], list[tuple[str, str]]]:
    """The facts of a file such as `graph.ttl` or `graph.nt.gz`, and all names of its entities, each
    with its IRI.

    A term is called by its rdfs:label, skos:prefLabel or schema:name in English, else by one
    without a language, else by any; without a label by the last part of its IRI. Labels of all
    languages, and skos:altLabel, name it in a query. Of a property's values in several languages
    those in the best one are kept. Raises `DataError` naming the file, and the line, that cannot be
    read; or when there are no facts.
    """
    statements: dict[tuple[NamedNode, NamedNode, Any], None] = {}
    names: dict[
        NamedNode, list[tuple[int, int, str]]
    ] = {}  # of each entity: by which property, how foreign, the name
    best: dict[
        tuple[NamedNode, NamedNode], int
    ] = {}  # how foreign the least foreign value of a property is
    for subject, predicate, value in _parsed(path):
        # a blank node has no name by which a reader could know it again
        if not isinstance(subject, NamedNode) or not isinstance(value, (NamedNode, Literal)):
            continue
        if predicate.value not in _NAMES:
            statements[subject, predicate, value] = None
            if isinstance(value, Literal) and value.language:
                best[subject, predicate] = min(_foreign(value), best.get((subject, predicate), 2))
        elif isinstance(value, Literal) and value.value.strip():
            called = (_NAMES.index(predicate.value), _foreign(value), _spaced(value.value))
            names.setdefault(subject, []).append(called)

    def label(node: NamedNode) -> str:
        rank, _, name = min(names.get(node, ()), default=(len(_NAMES), 0, ""))
        return name if rank < len(_NAMES) - 1 else local_name(node.value)

    triples = []
    for subject, predicate, value in statements:
        if isinstance(value, NamedNode):
            label_text, key = label(value), value.value
        elif value.language and _foreign(value) > best[subject, predicate]:
            continue
        else:
            # the quotation marks keep a literal from being taken for the entity of that name: no
            # IRI has any
            label_text, key = _spaced(value.value), f'"{value.value}"'
        name = local_name(predicate.value)
        # `officialLanguage` is read as `official language`
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
        relation = label(predicate) if predicate in names else words
        source = f"{local_name(subject.value)}-{name}"
        triples.append(Triple(source, label(subject), relation, label_text, subject.value, key))
    if not triples:
        raise DataError(f"{path}: no triples in it")
    return triples, [(name, node.value) for node, labels in names.items() for _, _, name in labels]


def local_name(iri: str) -> str:
    """The last part of an IRI, readable.

    Example:
        >>> local_name("http://dbpedia.org/resource/Caf%C3%A9_Central"), local_name("urn:x:city#Nice")
        ('Café Central', 'Nice')
    """
    last = re.split(r"[/#:]", iri.rstrip("/#:"))[-1]
    return _spaced(unquote(last).replace("_", " ")) or iri


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _foreign(text: Literal) -> int:
    """How far a literal's language is from English; text without a language is in between."""
    if not text.language:
        return 1
    return 0 if text.language.casefold().partition("-")[0] == "en" else 2


def _parsed(path: Path) -> list[Any]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            syntax = RdfFormat.from_extension(path.name.removesuffix(".gz").rpartition(".")[2])
            return [(quad.subject, quad.predicate, quad.object) for quad in parse(file, syntax)]
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise DataError(f"{path}{line}: {error.msg}") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"cannot read {path} as RDF: {error}") from error
