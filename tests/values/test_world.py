"""The bundled world: its size, its splits, and that its questions can be answered from it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import sys
from collections import Counter
from functools import cache
from importlib.resources import files
from itertools import pairwise
from types import ModuleType

import pytest
from paths import ROOT

WORLD = files("faithful_search") / "data/world"
BUILDER = ROOT / "scripts" / "build_world.py"
LEAST_QUESTIONS = {"train": 1800, "validation": 200, "test": 400}
LEAF_TYPES = {"category", "continent", "field"}


@cache
def rows(name: str) -> list[dict]:
    text = gzip.decompress((WORLD / f"{name}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


@cache
def names() -> dict[str, str]:
    return json.loads((WORLD / "names.json").read_text(encoding="utf-8"))


@cache
def by_id(name: str) -> dict[str, dict]:
    return {row["id"]: row for row in rows(name)}


@cache
def name_pattern() -> re.Pattern[str]:
    longest_first = sorted(names(), key=len, reverse=True)
    return re.compile(rf"(?<!\w)({'|'.join(map(re.escape, longest_first))})(?!\w)")


def chains(split: str) -> list[list[dict]]:
    return [row["meta"]["chain"] for row in rows(split)]


def hops(split: str) -> set[tuple[str, str, str]]:
    return {(hop["subject"], hop["relation"], hop["object"]) for chain in chains(split) for hop in chain}


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_world", BUILDER)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_rebuild_is_identical() -> None:
    builder = load_builder()
    first = builder.build()
    assert first == builder.build()
    assert builder.stale(first) == []


@pytest.mark.parametrize(("split", "least"), LEAST_QUESTIONS.items())
def test_questions_are_enough_and_varied(split: str, least: int) -> None:
    questions = rows(split)
    by_hops = Counter(row["meta"]["hops"] for row in questions)
    answers = Counter(row["answers"][0] for row in questions)
    assert len(questions) >= least
    assert [round(by_hops[count] / len(questions), 2) for count in (1, 2, 3)] == [0.30, 0.45, 0.25]
    assert max(answers.values()) <= 0.08 * len(questions)


def test_questions_and_ids_are_unique() -> None:
    questions = [row for split in LEAST_QUESTIONS for row in rows(split)]
    assert len({row["question"] for row in questions}) == len(questions)
    assert len({row["id"] for row in questions}) == len(questions)


def test_names_are_unique_and_many_enough() -> None:
    counts = Counter(names().values())
    lowered = [name.lower() for name in names()]
    assert len(set(lowered)) == len(lowered) <= 2300
    assert all(count >= 25 for kind, count in counts.items() if kind not in LEAF_TYPES)


def test_passages_name_only_their_own_fact() -> None:
    passages = rows("passages")
    assert len(passages) >= 1050
    for passage in passages:
        [(subject, _, value)] = passage["facts"]
        assert passage["title"] == subject
        assert {subject, value} == set(name_pattern().findall(passage["text"])), passage["id"]
        assert 12 <= len(passage["text"].split()) <= 30


def test_vocabulary_is_small() -> None:
    texts = [row["text"] for row in rows("passages")]
    texts += [row["question"] for split in LEAST_QUESTIONS for row in rows(split)]
    words = {word for text in texts for word in re.findall(r"[\w']+", name_pattern().sub(" ", text).lower())}
    assert len(words) <= 700


@pytest.mark.parametrize("split", LEAST_QUESTIONS)
def test_chains_are_stated(split: str) -> None:
    for row in rows(split):
        chain = row["meta"]["chain"]
        places = [place for hop in chain for place in (hop["passage"], hop["triple"]) if place]
        assert row["supporting_ids"] == places
        assert row["answers"] == [chain[-1]["object"]]
        assert row["meta"]["hops"] == len(chain)
        assert name_pattern().findall(row["question"]) == [chain[0]["subject"]]
        assert all(first["object"] == second["subject"] for first, second in pairwise(chain))
        for hop in chain:
            assert_stated(hop, split)


def assert_stated(hop: dict, split: str) -> None:
    fact = [hop["subject"], hop["relation"], hop["object"]]
    assert hop["passage"] or hop["triple"]
    if hop["passage"]:
        passage = by_id("passages")[hop["passage"]]
        assert passage["split"] == split and fact in passage["facts"]
        assert hop["subject"] in passage["text"] and hop["object"] in passage["text"]
    if hop["triple"]:
        triple = by_id("triples")[hop["triple"]]
        assert triple["split"] == split and [triple["subject"], triple["relation"], triple["object"]] == fact


def test_relations_have_one_value() -> None:
    values: dict[tuple[str, str], set[str]] = {}
    facts = [fact for row in rows("passages") for fact in row["facts"]]
    facts += [[row["subject"], row["relation"], row["object"]] for row in rows("triples")]
    for subject, relation, value in facts:
        values.setdefault((subject, relation), set()).add(value)
    assert all(len(found) == 1 for found in values.values())


def test_splits_share_no_fact() -> None:
    assert hops("test").isdisjoint(hops("train") | hops("validation"))
    assert hops("validation").isdisjoint(hops("train"))
    for place in ("passage", "triple"):
        used = {split: {hop[place] for chain in chains(split) for hop in chain} - {None} for split in LEAST_QUESTIONS}
        assert used["test"].isdisjoint(used["train"] | used["validation"])
        assert used["validation"].isdisjoint(used["train"])


def test_splits_share_no_subject() -> None:
    subjects = {split: {hop["subject"] for chain in chains(split) for hop in chain} for split in LEAST_QUESTIONS}
    assert subjects["test"].isdisjoint(subjects["train"] | subjects["validation"])
    assert subjects["validation"].isdisjoint(subjects["train"])


def test_train_knows_every_chain_shape() -> None:
    shapes = {split: {tuple(hop["relation"] for hop in chain) for chain in chains(split)} for split in LEAST_QUESTIONS}
    assert shapes["test"] | shapes["validation"] <= shapes["train"]
