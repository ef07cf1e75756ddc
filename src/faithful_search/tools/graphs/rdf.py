"""A graph from RDF: a file of N-Triples, Turtle or another syntax that pyoxigraph reads, or a store it left on disk."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyoxigraph import BlankNode, Literal, NamedNode, Quad, RdfFormat, Store

from ...errors import DataError
from .facts import Fact
from .triples import RDF_SUFFIXES

_LABELS = tuple(
    NamedNode(iri)
    for iri in (
        "http://www.w3.org/2000/01/rdf-schema#label",
        "http://www.w3.org/2004/02/skos/core#prefLabel",
        "http://schema.org/name",
        "https://schema.org/name",
    )
)
_ALIAS = NamedNode("http://www.w3.org/2004/02/skos/core#altLabel")
_NAMES = frozenset((*_LABELS, _ALIAS))  # they name an entity and say nothing else about it
_MOST = 2_000  # facts of an entity that are looked at, in each direction: a class may have millions of members


class RdfGraph:
    """The facts of an RDF store, with labels for its terms.

    A term is called by its rdfs:label, skos:prefLabel or schema:name in the first of `languages` that it has, else by
    one without a language, else by any; without a label by the last part of its IRI. Labels of all languages, and
    skos:altLabel, name it in a query. Blank nodes, which have no name, are left out; of a property's values in several
    languages those in the best one are kept. The names are held in memory, the facts of a folder are not.

    Args:
        path: a file (`RDF_SUFFIXES`), or the folder of a pyoxigraph store, which is opened read-only.
        languages: preferred ones, best first.

    Raises:
        DataError: naming the file, and the line where there is one, that cannot be read; or when there are no facts.
    """

    inline = False

    def __init__(self, path: str | os.PathLike[str], languages: Sequence[str] = ("en",)) -> None:
        self.path, self.languages = Path(path), tuple(languages)
        self.store = _opened(self.path)
        if not self.store:
            raise DataError(f"{self.path}: no triples in it")

    def digest(self) -> str:
        """Tells these facts and labels from others, for a cache's key."""
        files = sorted(file for file in self.path.glob("*") if file.suffix in (".sst", ".log")) or [self.path]
        told = [",".join(self.languages), *(_digest_of(file) for file in files)]
        return hashlib.sha256(" ".join(told).encode()).hexdigest()

    def labels(self) -> Iterator[tuple[str, str]]:
        """Every name of every entity, with its IRI."""
        named: set[str] = set()
        for predicate in (*_LABELS, _ALIAS):
            for quad in self.store.quads_for_pattern(None, predicate, None, None):
                if isinstance(quad.subject, NamedNode) and isinstance(quad.object, Literal):
                    named.add(quad.subject.value)
                    yield quad.object.value, quad.subject.value
        for quad in self.store:
            for node in (quad.subject, quad.object):
                if isinstance(node, NamedNode) and node.value not in named:
                    named.add(node.value)
                    yield local_name(node.value), node.value

    def around(self, entities: Sequence[str]) -> list[Fact]:
        """The facts that have one of the entities as subject or object, each once, by relation and value."""
        found: dict[tuple[Any, Any, Any], Fact] = {}
        for entity in entities:
            node = NamedNode(entity)
            for quad in self._preferred(islice(self.store.quads_for_pattern(node, None, None, None), _MOST)):
                found.setdefault(_triple(quad), self._fact(quad, node, incoming=False))
            for quad in islice(self.store.quads_for_pattern(None, None, node, None), _MOST):
                if isinstance(quad.subject, NamedNode) and quad.predicate not in _NAMES:
                    found.setdefault(_triple(quad), self._fact(quad, node, incoming=True))
        return sorted(
            found.values(), key=lambda fact: (fact.incoming, fact.relation, fact.subject, fact.object, fact.url)
        )

    def _preferred(self, quads: Iterable[Quad]) -> list[Quad]:
        """The quads that tell something; of a property's values in several languages those in the best one."""
        told = [quad for quad in quads if not isinstance(quad.object, BlankNode) and quad.predicate not in _NAMES]
        places: dict[NamedNode, list[int]] = {}
        for quad in told:
            if isinstance(quad.object, Literal) and quad.object.language:
                places.setdefault(quad.predicate, []).append(self._place(quad.object))
        return [quad for quad in told if not self._is_foreign(quad.object, places.get(quad.predicate, ()))]

    def _is_foreign(self, term: Any, places: Sequence[int]) -> bool:
        return isinstance(term, Literal) and bool(term.language) and self._place(term) > min(places)

    def _place(self, literal: Literal) -> int:
        """How far a literal's language is from the one preferred most."""
        if not literal.language:
            return len(self.languages)
        spoken = literal.language.casefold().partition("-")[0]
        return self.languages.index(spoken) if spoken in self.languages else len(self.languages) + 1

    def _fact(self, quad: Quad, entity: NamedNode, incoming: bool) -> Fact:
        subject, relation, object_ = self._label(quad.subject), self._relation(quad.predicate), self._label(quad.object)
        source = f"{local_name(entity.value)}-{local_name(quad.predicate.value)}"
        url = entity.value if entity.value.startswith(("http://", "https://")) else ""
        return Fact(subject, relation, object_, self._label(entity), source, url, incoming)

    def _relation(self, predicate: NamedNode) -> str:
        return self._own_label(predicate) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", local_name(predicate.value)).lower()

    def _label(self, term: Any) -> str:
        if isinstance(term, Literal):
            return " ".join(term.value.split())
        return (self._own_label(term) or local_name(term.value)) if isinstance(term, NamedNode) else str(term)

    def _own_label(self, node: NamedNode) -> str:
        for predicate in _LABELS:
            found = [q.object for q in islice(self.store.quads_for_pattern(node, predicate, None, None), _MOST)]
            texts = [term for term in found if isinstance(term, Literal) and term.value.strip()]
            if texts:
                return " ".join(min(texts, key=lambda term: (self._place(term), term.value)).value.split())
        return ""

    def __reduce__(self) -> tuple[type[RdfGraph], tuple[Any, ...]]:
        return type(self), (self.path, self.languages)


def local_name(iri: str) -> str:
    """The last part of an IRI, readable.

    Example:
        >>> local_name("http://dbpedia.org/resource/Caf%C3%A9_Central"), local_name("urn:x:city#Nice")
        ('Café Central', 'Nice')
    """
    last = re.split(r"[/#:]", iri.rstrip("/#:"))[-1]
    return " ".join(unquote(last).replace("_", " ").split()) or iri


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _triple(quad: Quad) -> tuple[Any, Any, Any]:
    return quad.subject, quad.predicate, quad.object


def _opened(path: Path) -> Store:
    try:
        return Store.read_only(str(path)) if path.is_dir() else _loaded(path)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise DataError(f"{path}{line}: {error.msg}") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"cannot read {path} as RDF: {error}") from error


def _loaded(path: Path) -> Store:
    zipped = path.suffix == ".gz"
    suffix = Path(path.stem).suffix if zipped else path.suffix
    if suffix not in RDF_SUFFIXES:
        raise DataError(
            f"{path}: not an RDF file; its name should end in {', '.join(RDF_SUFFIXES)}, .gz after it or not"
        )
    store = Store()
    opener: Any = gzip.open if zipped else open
    with opener(path, "rb") as file:
        store.bulk_load(file, RdfFormat.from_extension(suffix[1:]))
    return store
