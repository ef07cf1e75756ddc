"""Labelled pairs from passages, questions and hops."""

import random
from typing import Any

import pytest

from faithful_search.distil.passage_pairs import CorpusPassage, answer_pairs, statement_pairs
from faithful_search.distil.thought_pairs import hops_of, thought_pairs
from faithful_search.text import normalize

TEXTS = {
    "Ada Lovelace": "Ada Lovelace was born in London in 1815. She wrote notes until 1843.",
    "Notes": "The Notes were published by Richard Taylor in 1843. They were read.",
    "Richard Taylor": "Richard Taylor was born in Norwich in 1781. He was a printer then.",
    "Jo Ray": "Jo Ray was born in Berlin in 1950. She was a singer until 1999.",
    "Kay May": "Kay May was born in Vienna in 1961. She was an actor until 2003.",
}
CORPUS = [CorpusPassage(title, text, place) for place, (title, text) in enumerate(TEXTS.items())]
BY_TITLE = {normalize(passage.title): passage for passage in CORPUS}
QUESTION = {
    "id": "q1",
    "question": "Where was the publisher of the Notes born?",
    "answers": ["Norwich"],
    "decomposition": [
        {"question": "Notes >> publisher", "answer": "Richard Taylor", "title": "Notes"},
        {"question": "Where was #1 born?", "answer": "Norwich", "title": "Richard Taylor"},
    ],
}
TRIPLES = {"evidence_triples": [["Notes", "publisher", "Richard Taylor"]]}
SEEDS = range(60)


def statements() -> list[Any]:
    pairs = []
    for seed in SEEDS:
        pairs += statement_pairs(CORPUS[seed % 5], CORPUS, random.Random(seed))
    return pairs


def answers() -> list[Any]:
    pairs = []
    for seed in SEEDS:
        pairs += answer_pairs(QUESTION, CORPUS[1:3], CORPUS, random.Random(seed))
    return pairs


def thoughts() -> list[Any]:
    pairs = []
    for seed in SEEDS:
        pairs += thought_pairs(QUESTION, BY_TITLE, CORPUS, random.Random(seed))
    return pairs


@pytest.mark.parametrize("make", [statements, answers, thoughts])
def test_true_and_false_pairs_are_about_equal(make):
    labels = [pair.label for pair in make()]
    assert 0.4 <= sum(labels) / len(labels) <= 0.6


@pytest.mark.parametrize("make", [statements, answers, thoughts])
def test_true_pairs_have_no_errors(make):
    assert {pair.spans for pair in make() if pair.label} == {()}


@pytest.mark.parametrize("make", [statements, answers, thoughts])
def test_errors_are_inside_the_hypothesis(make):
    for pair in make():
        for start, end in pair.spans or ():
            assert 0 <= start < end <= len(pair.hypothesis)


def test_statements_have_many_kinds():
    kinds = {pair.kind for pair in statements()}
    assert {"stated", "name", "both_sides", "evidence_only", "removed"} <= kinds


def test_nothing_shows_where_a_sentence_was_cut_out():
    text = "Ada was born in the city of London. She wrote many notes until 1843. They were printed."
    corpus = [CorpusPassage("Ada", text, 0), *CORPUS[2:]]
    pairs = []
    for seed in range(200):
        pairs += statement_pairs(corpus[0], corpus, random.Random(seed))
    without = [pair.premise for pair in pairs if pair.kind == "removed"]
    assert not [premise for premise in without if "  " in premise]


def test_the_statement_before_an_exchange_is_not_in_the_evidence():
    pairs = [pair for pair in statements() if pair.kind == "evidence_only"]
    assert {pair.hypothesis in pair.premise for pair in pairs} == {False}


@pytest.mark.parametrize("seed", [3160, 3622])
def test_no_sentence_of_a_joined_statement_stays_beside_its_exchange(seed):
    texts = {
        "Kestrel Bridge": "Kestrel Bridge is a stone bridge in the north of Varna. "
        "Kestrel Bridge was opened by the mayor in 1931. "
        "The bridge was closed to cars in 1988 and it has two arches.",
        "Other": "Other is a village in the hills of Moravia near Brno.",
        "Third": "Third was a poet who lived in Lisbon for ten years.",
    }
    corpus = [
        CorpusPassage(title, text, place) for place, (title, text) in enumerate(texts.items())
    ]
    _, false = statement_pairs(corpus[0], corpus, random.Random(seed))
    assert false.kind == "evidence_only"
    assert "Kestrel Bridge was opened by the mayor in 1931." not in false.premise


def test_a_right_answer_stands_in_its_evidence():
    assert all("Norwich" in pair.premise for pair in answers() if pair.label)


def test_an_unsupported_answer_does_not_stand_there():
    pairs = [pair for pair in answers() if pair.kind == "unsupported_answer"]
    assert {"Norwich" in pair.premise for pair in pairs} == {False}


@pytest.mark.parametrize(("answer", "other"), [("yes", "no"), ("No", "Yes")])
def test_yes_and_no_are_turned_round(answer, other):
    question = QUESTION | {"answers": [answer]}
    wrong = set()
    for seed in SEEDS:
        for pair in answer_pairs(question, CORPUS[1:3], CORPUS, random.Random(seed)):
            if pair.kind == "other_answer":
                [(start, end)] = pair.spans
                wrong.add(pair.hypothesis[start:end])
    assert wrong == {other}


def test_a_hop_refers_to_the_answer_before():
    assert hops_of(QUESTION)[1].need == "where was Richard Taylor born"


@pytest.mark.parametrize("question", [QUESTION, TRIPLES])
def test_a_relation_becomes_a_sentence(question):
    assert hops_of(question)[0].fact == "the publisher of Notes is Richard Taylor."


def test_thoughts_have_all_kinds():
    kinds = {pair.kind for pair in thoughts()}
    expected = {"finding", "rightly_nothing", "wrong_finding", "denial", "ignored", "claim"}
    assert kinds == expected


@pytest.mark.parametrize("kind", ["rightly_nothing", "claim"])
def test_after_a_failure_the_evidence_lacks_the_answer(kind):
    for pair in thoughts():
        if pair.kind == kind:
            both = "Richard Taylor" in pair.premise and "Norwich" in pair.premise
            assert not both


def test_a_thought_is_asked_as_one():
    assert {pair.task for pair in thoughts()} == {"info_think"}
