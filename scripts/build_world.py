"""Build the bundled world: passages, triples, names and multi-hop questions from the tables in
``scripts/world``.

Every entity hangs on exactly one country, and every country belongs to one split, so chains of
different splits share no fact. ``test2`` is a second draw from the test split's facts: no chain of
the first is asked again, and facts that the first asks for come last. The build reads only
committed tables and seeded generators, and writes the same bytes on every run.

    python scripts/build_world.py           # write the data files
    python scripts/build_world.py --check   # exit 1 when the committed files differ
"""

import argparse
import csv
import gzip
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).resolve().parent / "world"
OUTPUT = Path(__file__).resolve().parents[1] / "src" / "faithful_search" / "data" / "world"
SEED = 20240607
SPLITS = ("train", "validation", "test")
QUESTIONS = {"train": 3000, "validation": 300, "test": 600}
SECOND_TEST, SECOND_SEED = "test2", 20261129
HOP_SHARE = {1: 0.30, 2: 0.45, 3: 0.25}
ANSWER_SHARE = 0.06
ONE_STORE_SHARE = 0.2

# relation -> (store, type of its object); "both" relations lose one of the stores for some of their
# facts
RELATIONS = {
    "director": ("passage", "director"),
    "lead actor": ("both", "actor"),
    "release year": ("kg", "year"),
    "birth country": ("passage", "country"),
    "birth city": ("passage", "city"),
    "field": ("both", "field"),
    "award year": ("kg", "year"),
    "country": ("both", "country"),
    "river": ("passage", "river"),
    "capital": ("both", "capital"),
    "currency": ("kg", "currency"),
    "language": ("both", "language"),
    "continent": ("kg", "continent"),
    "discoverer": ("passage", "discoverer"),
    "category": ("both", "category"),
    "discovery year": ("kg", "year"),
}
# the relation through which an entity of each table reaches its country
PARENT = {
    "film": "director",
    "director": "birth country",
    "actor": "birth country",
    "laureate": "birth city",
    "city": "country",
    "mountain": "country",
    "element": "discoverer",
    "discoverer": "birth country",
}
TABLE_FILES = {
    "country": "countries.csv",
    "film": "films.csv",
    "director": "directors.csv",
    "actor": "actors.csv",
    "laureate": "laureates.csv",
    "city": "cities.csv",
    "mountain": "mountains.csv",
    "element": "elements.csv",
    "discoverer": "discoverers.csv",
}


@dataclass(frozen=True)
class Fact:
    """One triple of the world, with the split it belongs to and the ids of the places that state
    it.
    """

    subject: str
    relation: str
    object: str
    key: str
    split: str
    passage: str | None = None
    triple: str | None = None

    @property
    def evidence(self) -> list[str]:
        return [place for place in (self.passage, self.triple) if place]

    def link(self) -> dict[str, str | None]:
        """The fact as one hop of a question's chain."""
        names = {"subject": self.subject, "relation": self.relation, "object": self.object}
        return {**names, "passage": self.passage, "triple": self.triple}


def build() -> dict[str, bytes]:
    """All data files of the world, by file name."""
    rng = random.Random(SEED)
    tables = {kind: read_table(name) for kind, name in TABLE_FILES.items()}
    phrasing = json.loads((TABLES / "phrasing.json").read_text(encoding="utf-8"))
    types = name_types(tables)
    check_names(types)
    check_phrasing(types, phrasing)

    facts = place_facts(list(raw_facts(tables, types)), rng)
    passages = write_passages(facts, phrasing["passages"], rng)
    triples = [triple_row(fact) for fact in facts if fact.triple]
    files = {
        "names.json": (
            json.dumps(types, ensure_ascii=False, indent=0, sort_keys=True) + "\n"
        ).encode(),
        "passages.jsonl.gz": pack(passages),
        "triples.jsonl.gz": pack(triples),
    }
    counters: Counter[int] = Counter()
    for split in SPLITS:
        chosen = [fact for fact in facts if fact.split == split]
        questions = write_questions(QUESTIONS[split], chosen, phrasing, rng)
        files[f"{split}.jsonl.gz"] = pack(
            question_row(*question, split, counters) for question in questions
        )
    second_rng = random.Random(SECOND_SEED)
    again = write_questions(QUESTIONS["test"], chosen, phrasing, second_rng, before=questions)
    files[f"{SECOND_TEST}.jsonl.gz"] = pack(
        question_row(*question, SECOND_TEST, counters) for question in again
    )
    return files


# Tables, names and facts


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of one table, each with the name of its entity under its first column."""
    with (TABLES / name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def name_types(tables: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    """The one type of every name; a capital that is also listed as a city is a capital."""
    types: dict[str, str] = {}
    for row in tables["country"]:
        claim(types, row["capital"], "capital")
    for kind, rows in tables.items():
        for row in rows:
            if kind != "city" or types.get(row[kind]) != "capital":
                claim(types, row[kind], kind)
    for rows in tables.values():
        for row in rows:
            for relation, name in row.items():
                if relation in RELATIONS and name not in types:
                    claim(types, name, RELATIONS[relation][1])
    return types


def claim(types: dict[str, str], name: str, kind: str) -> None:
    """Give ``name`` the type ``kind``, which no other type may hold."""
    if name and types.setdefault(name, kind) != kind:
        raise ValueError(f"{name!r} is both {types[name]} and {kind}")


def check_names(types: dict[str, str]) -> None:
    """Refuse a name with unusual characters or one that occurs, word for word, inside another
    name.
    """
    words = {name: tuple(re.findall(r"\w+", name.lower())) for name in types}
    by_word: dict[str, list[str]] = defaultdict(list)
    for name, parts in words.items():
        if not re.fullmatch(r"[\w '.-]+", name):
            raise ValueError(f"unusual character in {name!r}")
        for word in sorted(set(parts)):
            by_word[word].append(name)
    for name, parts in words.items():
        for other in by_word[parts[0]]:
            if other != name and f" {' '.join(parts)} " in f" {' '.join(words[other])} ":
                raise ValueError(f"{name!r} occurs in {other!r}")


def check_phrasing(types: dict[str, str], phrasing: dict[str, dict[str, list[str]]]) -> None:
    """Refuse a template that holds a name of its own, which would read as an entity."""
    name = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, types))})(?!\w)")
    for templates in phrasing.values():
        for template in (text for texts in templates.values() for text in texts):
            if found := name.search(template):
                raise ValueError(f"{found[0]!r} occurs in the template {template!r}")


def raw_facts(tables: dict[str, list[dict[str, str]]], types: dict[str, str]) -> Iterator[Fact]:
    """Every cell of the tables as a fact; ``key`` names the phrasing of its relation for its
    subject's type.
    """
    splits = entity_splits(tables)
    for kind, rows in tables.items():
        for row in rows:
            subject = row[kind]
            for relation, name in row.items():
                if relation in RELATIONS and relation != kind and name:
                    parent_split = splits.get((RELATIONS[relation][1], name), splits[kind, subject])
                    if parent_split != splits[kind, subject]:
                        raise ValueError(f"{subject!r} and {name!r} lie in different splits")
                    source = types[subject] if relation == "country" else kind
                    yield Fact(
                        subject, relation, name, f"{source}.{relation}", splits[kind, subject]
                    )


def entity_splits(tables: dict[str, list[dict[str, str]]]) -> dict[tuple[str, str], str]:
    """The split of every entity, inherited along its path to a country."""
    parents = {(kind, row[kind]): row[PARENT[kind]] for kind in PARENT for row in tables[kind]}
    splits = {("country", row["country"]): row["split"] for row in tables["country"]}

    def resolve(kind: str, name: str) -> str:
        if (kind, name) not in splits:
            relation = PARENT[kind]
            splits[kind, name] = resolve(RELATIONS[relation][1], parents[kind, name])
        return splits[kind, name]

    for kind, name in parents:
        resolve(kind, name)
    return splits


def place_facts(facts: list[Fact], rng: random.Random) -> list[Fact]:
    """Give each fact its places: a passage, a triple or both."""
    stores = [draw_store(fact, rng) for fact in facts]
    passage_ids = (f"W{number:04d}" for number in range(1, len(facts) + 1))
    triple_ids = (f"T{number:04d}" for number in range(1, len(facts) + 1))
    return [
        Fact(
            **{
                field: getattr(fact, field)
                for field in ("subject", "relation", "object", "key", "split")
            },
            passage=next(passage_ids) if store != "kg" else None,
            triple=next(triple_ids) if store != "passage" else None,
        )
        for fact, store in zip(facts, stores, strict=True)
    ]


def draw_store(fact: Fact, rng: random.Random) -> str:
    """The relation's own store; a "both" fact sometimes lives in only one of the two."""
    store = RELATIONS[fact.relation][0]
    if store == "both" and rng.random() < ONE_STORE_SHARE:
        return rng.choice(("passage", "kg"))
    return store


# Passages and triples


def write_passages(
    facts: list[Fact], templates: dict[str, list[str]], rng: random.Random
) -> list[dict]:
    """One passage for each fact that lives in a passage."""
    rows = []
    for fact in facts:
        if fact.passage:
            text = say(rng.choice(templates[phrase_key(fact.key)]), fact.subject, fact.object)
            stated = [[fact.subject, fact.relation, fact.object]]
            rows.append(
                {
                    "id": fact.passage,
                    "title": fact.subject,
                    "text": text,
                    "facts": stated,
                    "split": fact.split,
                }
            )
    return rows


def phrase_key(key: str) -> str:
    """Capitals are written about like other cities, save in questions that name their type."""
    return "city.country" if key == "capital.country" else key


def say(template: str, subject: str, value: str = "") -> str:
    """Fill a template with a subject and, where it has a place for one, a value."""
    return template.replace("{s}", subject).replace("{o}", value)


def triple_row(fact: Fact) -> dict[str, str | None]:
    names = {"subject": fact.subject, "relation": fact.relation, "object": fact.object}
    return {"id": fact.triple, **names, "split": fact.split}


# Questions


def write_questions(
    total: int,
    facts: list[Fact],
    phrasing: dict,
    rng: random.Random,
    before: Iterable[tuple[list[Fact], str]] = (),
) -> list[tuple[list[Fact], str]]:
    """A balanced set of chains of these facts, each with its question.

    No chain of the questions `before` is asked again. Those with the fewest of their facts come
    first.
    """
    asked_chains = {tuple(chain) for chain, _ in before}
    asked_facts = {fact for chain in asked_chains for fact in chain}
    outgoing: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        outgoing[fact.subject].append(fact)
    limit = int(ANSWER_SHARE * total)
    answers: Counter[str] = Counter()
    seen: set[str] = set()
    rows = []
    for hops, share in HOP_SHARE.items():
        unasked = [
            chain for chain in walk(facts, outgoing, hops) if tuple(chain) not in asked_chains
        ]
        chains = shuffled_by_shape(unasked, rng)
        chains.sort(key=lambda chain: len(asked_facts.intersection(chain)))
        wanted = round(share * total)
        for chain in chains:
            question = ask(chain, phrasing, rng)
            answer = chain[-1].object
            if wanted and answers[answer] < limit and question not in seen:
                seen.add(question)
                answers[answer] += 1
                wanted -= 1
                rows.append((chain, question))
        if wanted:
            raise ValueError(f"{wanted} of {total} questions, those of {hops} hops, are missing")
    rng.shuffle(rows)
    return rows


def walk(facts: Iterable[Fact], outgoing: dict[str, list[Fact]], hops: int) -> Iterator[list[Fact]]:
    """Every chain of ``hops`` facts that visits no name twice."""
    if hops == 1:
        yield from ([fact] for fact in facts)
        return
    for chain in walk(facts, outgoing, hops - 1):
        visited = {chain[0].subject, *(fact.object for fact in chain)}
        for fact in outgoing[chain[-1].object]:
            if fact.object not in visited:
                yield [*chain, fact]


def shuffled_by_shape(chains: list[list[Fact]], rng: random.Random) -> list[list[Fact]]:
    """The chains in random order, taking one of each shape in turn so that rare shapes are
    heard.
    """
    shapes: dict[tuple[str, ...], list[list[Fact]]] = defaultdict(list)
    for chain in chains:
        shapes[tuple(fact.key for fact in chain)].append(chain)
    for members in shapes.values():
        rng.shuffle(members)
    order = []
    while shapes:
        for shape in sorted(shapes):
            order.append(shapes[shape].pop())
        shapes = defaultdict(list, {shape: members for shape, members in shapes.items() if members})
    return order


def ask(chain: list[Fact], phrasing: dict, rng: random.Random) -> str:
    """The chain as one question that mentions only its first subject."""
    subject = chain[0].subject
    for fact in chain[:-1]:
        subject = say(rng.choice(phrasing["phrases"][fact.key]), subject)
    return say(rng.choice(phrasing["questions"][chain[-1].key]), subject)


def question_row(chain: list[Fact], question: str, split: str, counters: Counter[int]) -> dict:
    hops = len(chain)
    counters[hops] += 1
    return {
        "id": f"q-{hops}hop-{counters[hops]:05d}",
        "question": question,
        "answers": [chain[-1].object],
        "supporting_ids": [place for fact in chain for place in fact.evidence],
        "meta": {"hops": hops, "chain": [fact.link() for fact in chain], "split": split},
    }


# Files


def pack(rows: Iterable[dict]) -> bytes:
    """The rows as gzipped JSON lines, with nothing in the header that changes between runs."""
    lines = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
    return gzip.compress(lines.encode(), compresslevel=9, mtime=0)


def write(files: dict[str, bytes]) -> None:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (OUTPUT / name).write_bytes(content)


def stale(files: dict[str, bytes]) -> list[str]:
    """The names of the data files whose content differs from a fresh build; compressed files
    compare unpacked.
    """
    return [
        name for name, content in files.items() if unpacked(OUTPUT / name) != unpack(name, content)
    ]


def unpacked(path: Path) -> bytes | None:
    return unpack(path.name, path.read_bytes()) if path.exists() else None


def unpack(name: str, content: bytes) -> bytes:
    return gzip.decompress(content) if name.endswith(".gz") else content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="exit 1 when the data files differ from a fresh build"
    )
    check = parser.parse_args().check
    files = build()
    if not check:
        write(files)
        return 0
    different = stale(files)
    for name in different:
        print(f"{name} differs from a fresh build")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
