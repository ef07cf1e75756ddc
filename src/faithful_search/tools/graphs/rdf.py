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

# The properties that name an entity, best first. They are no facts. Names by the last one are found
# in queries, but not shown.
_NAMING = (
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
    those in the best one are kept, in the same order of languages.

    Raises:
        DataError: the file cannot be read, which names the line, or has no facts.
    """
    statements: dict[tuple[NamedNode, NamedNode, Any], None] = {}  # in order, each once
    # For each entity its names: the rank of the property, that of the language, the name
    names: dict[NamedNode, list[tuple[int, int, str]]] = {}
    # For the properties whose values have languages, the rank of the best
    best_language: dict[tuple[NamedNode, NamedNode], int] = {}
    for subject, predicate, value in _parsed(path):
        # A blank node has no name by which a reader could know it again.
        if not isinstance(subject, NamedNode) or not isinstance(value, (NamedNode, Literal)):
            continue
        if predicate.value not in _NAMING:
            statements[subject, predicate, value] = None
            if isinstance(value, Literal) and value.language:
                rank = best_language.get((subject, predicate), _language_rank(value))
                best_language[subject, predicate] = min(rank, _language_rank(value))
        elif isinstance(value, Literal) and value.value.strip():
            property_rank = _NAMING.index(predicate.value)
            name = (property_rank, _language_rank(value), _spaced(value.value))
            names.setdefault(subject, []).append(name)

    def label(node: NamedNode) -> str:
        if node in names:
            property_rank, _, name = min(names[node])
            if property_rank < len(_NAMING) - 1:
                return name
        return local_name(node.value)

    triples = []
    for subject, predicate, value in statements:
        if isinstance(value, NamedNode):
            object_label = label(value)
            object_key = value.value
        elif value.language and _language_rank(value) > best_language[subject, predicate]:
            continue
        else:
            # In quotation marks, which no IRI has: so it is not taken for the entity of that name.
            object_label = _spaced(value.value)
            object_key = f'"{value.value}"'
        property_name = local_name(predicate.value)
        if predicate in names:
            relation = label(predicate)
        else:  # `officialLanguage` becomes `official language`
            relation = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", property_name).lower()
        triple = Triple(
            id=f"{local_name(subject.value)}-{property_name}",
            subject=label(subject),
            relation=relation,
            object=object_label,
            subject_key=subject.value,
            object_key=object_key,
        )
        triples.append(triple)
    if not triples:
        raise DataError(f"{path}: no triples in it")
    names_and_iris = []
    for node, names_of_node in names.items():
        names_and_iris += [(name, node.value) for _, _, name in names_of_node]
    return triples, names_and_iris


def local_name(iri: str) -> str:
    """The last part of an IRI, readable.

    Example:
        >>> local_name("http://dbpedia.org/resource/Caf%C3%A9_Central"), local_name("urn:x:city#Nice")
        ('Café Central', 'Nice')
    """
    last = re.split(r"[/#:]", iri.rstrip("/#:"))[-1]
    return _spaced(unquote(last).replace("_", " ")) or iri


def _spaced(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def _language_rank(text: Literal) -> int:
    """0 for English, 1 for a text without a language, 2 for any other."""
    if not text.language:
        return 1
    return 0 if text.language.casefold().partition("-")[0] == "en" else 2


def _parsed(path: Path) -> list[Any]:
    """The statements of a file: subject, predicate and object."""
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
