"""Build the bundled world: passages, triples, names and multi-hop questions from the tables in
`scripts/world`.

Every entity belongs to exactly one country, and every country to one split, so that questions of
different splits share no fact. `test2` is a second draw from the facts of the test split. It asks
no chain of facts that `test` asks, and prefers chains of facts that `test` does not need. The build
reads only committed tables and seeded generators, and writes the same bytes on every run.

    python scripts/build_world.py           # write the data files
    python scripts/build_world.py --check   # exit 1 when the committed files differ
"""

import argparse
import csv
import gzip
import itertools
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

TABLES = Path(__file__).resolve().parent / "world"
OUTPUT = Path(__file__).resolve().parents[1] / "src" / "faithful_search" / "data" / "world"
SEED = 20240607
SPLITS = ("train", "validation", "test")
QUESTIONS = {"train": 3000, "validation": 300, "test": 600}
SECOND_TEST, SECOND_SEED = "test2", 20261129
HOP_SHARE = {1: 0.30, 2: 0.45, 3: 0.25}
"""The share of questions by their number of hops."""
ANSWER_SHARE = 0.06
"""The largest share of a split's questions that may have the same answer."""
ONE_STORE_SHARE = 0.2
"""The share of the facts of a "both" relation that are stated in one store only."""
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
"""By relation, where its facts are stated (in a passage, in the knowledge graph, in both), and the
type of its objects.
"""
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
"""By type of entity, the relation that leads it towards its country."""
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


Chain = list["Fact"]
"""Facts of which each is about the object of the one before."""
Tables = dict[str, list[dict[str, str]]]
"""The rows of each table, by the type of their entities."""


@dataclass(frozen=True)
class Fact:
    """A fact of the world.

    Attributes:
        subject, relation, object: the triple.
        key: `TYPE.RELATION`, under which the phrasings of the fact stand.
        split: the split whose questions may ask for it.
        passage: the id of the passage that states it, if one does.
        triple: its id in the knowledge graph, if it is there.
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
        """The ids of the places that state it."""
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
    names = json.dumps(types, ensure_ascii=False, indent=0, sort_keys=True) + "\n"
    questions: dict[str, list[tuple[Chain, str]]] = {}
    facts_of_split: dict[str, list[Fact]] = {}
    for split in SPLITS:
        facts_of_split[split] = [fact for fact in facts if fact.split == split]
        questions[split] = write_questions(QUESTIONS[split], facts_of_split[split], phrasing, rng)
    questions[SECOND_TEST] = write_questions(
        QUESTIONS["test"],
        facts_of_split["test"],
        phrasing,
        random.Random(SECOND_SEED),
        before=questions["test"],
    )
    files = {
        "names.json": names.encode(),
        "passages.jsonl.gz": pack(passages),
        "triples.jsonl.gz": pack(triples),
    }
    numbers: Counter[int] = Counter()  # the last number of a question, by its hops
    for split, questions_of_split in questions.items():
        rows = [question_row(chain, text, split, numbers) for chain, text in questions_of_split]
        files[f"{split}.jsonl.gz"] = pack(rows)
    return files


# Tables, names and facts


def read_table(name: str) -> list[dict[str, str]]:
    """The rows of a table; the first column has the name of the entity."""
    with (TABLES / name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def name_types(tables: Tables) -> dict[str, str]:
    """The type of each name. A capital that is also listed as a city is a capital."""
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
    """Give a name this type. Raises `ValueError` if it has another one."""
    if name and types.setdefault(name, kind) != kind:
        raise ValueError(f"{name!r} is both {types[name]} and {kind}")


def check_names(types: dict[str, str]) -> None:
    """Raise `ValueError` for a name with unusual characters, and for one whose words occur inside
    another name.
    """
    words_of = {name: re.findall(r"\w+", name.lower()) for name in types}
    names_with: dict[str, list[str]] = defaultdict(list)
    for name, words in words_of.items():
        if not re.fullmatch(r"[\w '.-]+", name):
            raise ValueError(f"unusual character in {name!r}")
        for word in sorted(set(words)):
            names_with[word].append(name)
    for name, words in words_of.items():
        for longer in names_with[words[0]]:
            if longer != name and f" {' '.join(words)} " in f" {' '.join(words_of[longer])} ":
                raise ValueError(f"{name!r} occurs in {longer!r}")


def check_phrasing(types: dict[str, str], phrasing: dict[str, dict[str, list[str]]]) -> None:
    """Raise `ValueError` for a template that holds the name of an entity, which its reader would
    take for a statement about it.
    """
    any_name = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, types))})(?!\w)")
    for templates in phrasing.values():
        for template in itertools.chain.from_iterable(templates.values()):
            name = any_name.search(template)
            if name is not None:
                raise ValueError(f"{name[0]!r} occurs in the template {template!r}")


def raw_facts(tables: Tables, types: dict[str, str]) -> Iterator[Fact]:
    """Every cell of the tables as a fact that is not placed yet."""
    splits = entity_splits(tables)
    for kind, rows in tables.items():
        for row in rows:
            subject = row[kind]
            split = splits[kind, subject]
            for relation, name in row.items():
                if relation not in RELATIONS or relation == kind or not name:
                    continue
                _, kind_of_object = RELATIONS[relation]
                if splits.get((kind_of_object, name), split) != split:
                    raise ValueError(f"{subject!r} and {name!r} lie in different splits")
                # A capital is in the table of cities, but is asked about as a capital
                kind_of_subject = types[subject] if relation == "country" else kind
                yield Fact(subject, relation, name, f"{kind_of_subject}.{relation}", split)


def entity_splits(tables: Tables) -> dict[tuple[str, str], str]:
    """The split of every entity, by its type and name: that of its country."""
    parents: dict[tuple[str, str], str] = {}
    for kind, relation in PARENT.items():
        for row in tables[kind]:
            parents[kind, row[kind]] = row[relation]
    splits = {("country", row["country"]): row["split"] for row in tables["country"]}

    def resolve(kind: str, name: str) -> str:
        if (kind, name) not in splits:
            _, kind_of_parent = RELATIONS[PARENT[kind]]
            splits[kind, name] = resolve(kind_of_parent, parents[kind, name])
        return splits[kind, name]

    for kind, name in parents:
        resolve(kind, name)
    return splits


def place_facts(facts: list[Fact], rng: random.Random) -> list[Fact]:
    """The facts with the ids of a passage, a triple or both."""
    placed = []
    passages = 0
    triples = 0
    for fact in facts:
        store = draw_store(fact, rng)
        passage = triple = None
        if store != "kg":
            passages += 1
            passage = f"W{passages:04d}"
        if store != "passage":
            triples += 1
            triple = f"T{triples:04d}"
        placed.append(replace(fact, passage=passage, triple=triple))
    return placed


def draw_store(fact: Fact, rng: random.Random) -> str:
    """The relation's store; a fact of a "both" relation is sometimes stated in one of them only."""
    store = RELATIONS[fact.relation][0]
    if store == "both" and rng.random() < ONE_STORE_SHARE:
        return rng.choice(("passage", "kg"))
    return store


# Passages and triples


def write_passages(
    facts: list[Fact], templates: dict[str, list[str]], rng: random.Random
) -> list[dict]:
    """A passage for each fact that is stated in one."""
    rows = []
    for fact in facts:
        if fact.passage is None:
            continue
        template = rng.choice(templates[passage_key(fact.key)])
        rows.append(
            {
                "id": fact.passage,
                "title": fact.subject,
                "text": filled(template, fact.subject, fact.object),
                "facts": [[fact.subject, fact.relation, fact.object]],
                "split": fact.split,
            }
        )
    return rows


def passage_key(key: str) -> str:
    """The key of a fact's phrasings in passages, which are about capitals as about other cities."""
    return "city.country" if key == "capital.country" else key


def filled(template: str, subject: str, value: str = "") -> str:
    """A template with its subject and, where it has a place for one, its value."""
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
    before: Iterable[tuple[Chain, str]] = (),
) -> list[tuple[Chain, str]]:
    """A set of `total` chains of these facts, each with its question, balanced by hops, answers and
    shapes.

    No chain of the questions `before` is asked again, and chains with few of their facts come
    first.
    """
    asked_chains = {tuple(chain) for chain, _ in before}
    asked_facts = set(itertools.chain.from_iterable(asked_chains))
    facts_about: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        facts_about[fact.subject].append(fact)
    most_of_answer = int(ANSWER_SHARE * total)
    answers: Counter[str] = Counter()
    questions: set[str] = set()
    rows = []
    for hops, share in HOP_SHARE.items():
        walked = walk(facts, facts_about, hops)
        unasked = [chain for chain in walked if tuple(chain) not in asked_chains]
        chains = shuffled_by_shape(unasked, rng)
        chains.sort(key=lambda chain: len(asked_facts.intersection(chain)))
        missing = round(share * total)
        for chain in chains:
            question = ask(chain, phrasing, rng)
            answer = chain[-1].object
            if missing and answers[answer] < most_of_answer and question not in questions:
                questions.add(question)
                answers[answer] += 1
                missing -= 1
                rows.append((chain, question))
        if missing:
            raise ValueError(f"{missing} of {total} questions, those of {hops} hops, are missing")
    rng.shuffle(rows)
    return rows


def walk(facts: Iterable[Fact], facts_about: dict[str, list[Fact]], hops: int) -> Iterator[Chain]:
    """Every chain of so many facts that visits no name twice."""
    if hops == 1:
        yield from ([fact] for fact in facts)
        return
    for chain in walk(facts, facts_about, hops - 1):
        visited = {chain[0].subject, *(fact.object for fact in chain)}
        for fact in facts_about[chain[-1].object]:
            if fact.object not in visited:
                yield [*chain, fact]


def shuffled_by_shape(chains: list[Chain], rng: random.Random) -> list[Chain]:
    """The chains in random order, one of each shape in turn, so that rare shapes are asked for,
    too. The shape of a chain is the keys of its facts.
    """
    by_shape: dict[tuple[str, ...], list[Chain]] = defaultdict(list)
    for chain in chains:
        by_shape[tuple(fact.key for fact in chain)].append(chain)
    for same_shape in by_shape.values():
        rng.shuffle(same_shape)
    order = []
    while by_shape:
        for shape in sorted(by_shape):
            order.append(by_shape[shape].pop())
            if not by_shape[shape]:
                del by_shape[shape]
    return order


def ask(chain: Chain, phrasing: dict, rng: random.Random) -> str:
    """The chain as a question that mentions only its first subject."""
    subject = chain[0].subject
    for fact in chain[:-1]:
        subject = filled(rng.choice(phrasing["phrases"][fact.key]), subject)
    return filled(rng.choice(phrasing["questions"][chain[-1].key]), subject)


def question_row(chain: Chain, question: str, split: str, numbers: Counter[int]) -> dict:
    """The row of a question, with the next number of its hops in its id."""
    hops = len(chain)
    numbers[hops] += 1
    return {
        "id": f"q-{hops}hop-{numbers[hops]:05d}",
        "question": question,
        "answers": [chain[-1].object],
        "supporting_ids": list(itertools.chain.from_iterable(fact.evidence for fact in chain)),
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
    """The names of the data files that are missing or differ from a fresh build. What is compressed
    is compared unpacked, since compressors differ.
    """
    names = []
    for name, content in files.items():
        path = OUTPUT / name
        if not path.exists() or unpack(name, path.read_bytes()) != unpack(name, content):
            names.append(name)
    return names


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
