"""The bundled world: its size, its splits, and that its questions can be answered from it."""

import re
from collections import Counter
from functools import cache
from itertools import pairwise

import build_world
import pytest

from faithful_search.bundled import bundled_json, world_file
from faithful_search.tasks import read_rows

LEAST_QUESTIONS = {"train": 1800, "validation": 200, "test": 400}
LEAF_TYPES = {"category", "continent", "field"}
NAMES = bundled_json("world/names.json")
LONGEST_FIRST = sorted(NAMES, key=len, reverse=True)
NAMED = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, LONGEST_FIRST))})(?!\w)")


@cache
def rows(name):
    return list(read_rows(world_file(f"{name}.jsonl.gz")))


@cache
def by_id(name):
    return {row["id"]: row for row in rows(name)}


def hops(split, *keys):
    """These of every hop of the split's questions."""
    return {tuple(hop[key] for key in keys) for row in rows(split) for hop in row["meta"]["chain"]}


def test_rebuild_is_identical():
    first = build_world.build()
    assert first == build_world.build() and build_world.stale(first) == []


@pytest.mark.parametrize(("split", "least"), LEAST_QUESTIONS.items())
def test_questions_are_enough_and_varied(split, least):
    questions = rows(split)
    by_hops = Counter(row["meta"]["hops"] for row in questions)
    answers = Counter(row["answers"][0] for row in questions)
    assert len(questions) >= least and max(answers.values()) <= 0.08 * len(questions)
    assert [round(by_hops[count] / len(questions), 2) for count in (1, 2, 3)] == [0.30, 0.45, 0.25]


def test_questions_ids_and_names_are_unique_and_names_many_enough():
    questions = [row for split in LEAST_QUESTIONS for row in rows(split)]
    for key in ("question", "id"):
        assert len({row[key] for row in questions}) == len(questions)
    assert len({name.lower() for name in NAMES}) == len(NAMES) <= 2300
    assert all(count >= 25 for kind, count in Counter(NAMES.values()).items() if kind not in LEAF_TYPES)


def test_passages_name_only_their_own_fact_in_few_words():
    passages = rows("passages")
    assert len(passages) >= 1050
    for passage in passages:
        [(subject, _, value)] = passage["facts"]
        assert passage["title"] == subject and 12 <= len(passage["text"].split()) <= 30
        assert {subject, value} == set(NAMED.findall(passage["text"])), passage["id"]
    texts = [*(row["text"] for row in passages), *(row["question"] for split in LEAST_QUESTIONS for row in rows(split))]
    words = {word for text in texts for word in re.findall(r"[\w']+", NAMED.sub(" ", text).lower())}
    assert len(words) <= 700


@pytest.mark.parametrize("split", LEAST_QUESTIONS)
def test_chains_are_stated(split):
    for row in rows(split):
        chain = row["meta"]["chain"]
        assert row["supporting_ids"] == [place for hop in chain for place in (hop["passage"], hop["triple"]) if place]
        assert row["answers"] == [chain[-1]["object"]] and row["meta"]["hops"] == len(chain)
        assert NAMED.findall(row["question"]) == [chain[0]["subject"]]
        assert all(first["object"] == second["subject"] for first, second in pairwise(chain))
        for hop in chain:
            fact = [hop["subject"], hop["relation"], hop["object"]]
            assert hop["passage"] or hop["triple"]
            if hop["passage"]:
                passage = by_id("passages")[hop["passage"]]
                assert passage["split"] == split and fact in passage["facts"]
                assert hop["subject"] in passage["text"] and hop["object"] in passage["text"]
            if hop["triple"]:
                triple = by_id("triples")[hop["triple"]]
                stated = [triple["subject"], triple["relation"], triple["object"]]
                assert triple["split"] == split and stated == fact


def test_relations_have_one_value():
    facts = {tuple(fact) for row in rows("passages") for fact in row["facts"]}
    facts |= {(row["subject"], row["relation"], row["object"]) for row in rows("triples")}
    assert len({fact[:2] for fact in facts}) == len(facts)


@pytest.mark.parametrize("keys", [("subject", "relation", "object"), ("subject",), ("passage",), ("triple",)])
def test_splits_share_no_fact_no_subject_and_no_evidence(keys):
    train, validation, test = (hops(split, *keys) - {(None,)} for split in LEAST_QUESTIONS)
    assert test.isdisjoint(train | validation) and validation.isdisjoint(train)


def test_train_knows_every_chain_shape():
    train, validation, test = (
        {tuple(hop["relation"] for hop in row["meta"]["chain"]) for row in rows(split)} for split in LEAST_QUESTIONS
    )
    assert test | validation <= train
