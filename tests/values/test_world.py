"""The bundled world, pairs made of its facts, and worlds in which one is changed: what states what,
what is valid.
"""

import os
import random
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import pairwise

import build_world
import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from paths import SHARED

from faithful_search.bundled import bundled_json, world_file
from faithful_search.counterfactual import REASONS, CounterfactualWorld, chain_of
from faithful_search.distil.world_pairs import world_pairs
from faithful_search.errors import DataError
from faithful_search.json_lines import read_rows
from faithful_search.judges import Pair
from faithful_search.measure.agreement.labelled import Labelled
from faithful_search.rewards import AnswerSupport
from faithful_search.rewards.citation_states_fact import CitationStatesFact
from faithful_search.tasks import Task, load_tasks, world_context
from faithful_search.tools import KnowledgeGraph, LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
from faithful_search.world import (
    SPLITS,
    Asked,
    Change,
    Statement,
    World,
    bundled_world,
    chains_of,
    triple_text,
)
from faithful_search.world.facts import FactsJudge

LEAST_QUESTIONS = {"train": 1800, "validation": 200, "test": 400, "test2": 400}
FACTS_OF = {"test2": "test"}  # whose facts the questions of a split ask for
LEAF_TYPES = {"category", "continent", "field"}
NAMES = bundled_json("world/names.json")
NAMED = re.compile(
    rf"(?<!\w)({'|'.join(map(re.escape, sorted(NAMES, key=len, reverse=True)))})(?!\w)"
)
STATES = re.compile(r"The (?P<relation>[\w ]+?) of (?P<subject>.+?) is (?P<object>.+?)\. ")


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
    assert first == build_world.build()
    assert build_world.stale(first) == []


@pytest.mark.parametrize(("split", "least"), LEAST_QUESTIONS.items())
def test_a_split_has_enough_questions(split, least):
    assert len(rows(split)) >= least


@pytest.mark.parametrize("split", LEAST_QUESTIONS)
def test_no_answer_is_frequent(split):
    answers = Counter(row["answers"][0] for row in rows(split))
    assert max(answers.values()) <= 0.08 * len(rows(split))


@pytest.mark.parametrize("split", LEAST_QUESTIONS)
@pytest.mark.parametrize(("hops", "share"), [(1, 0.30), (2, 0.45), (3, 0.25)])
def test_questions_are_mixed_by_their_hops(split, hops, share):
    with_hops = [row for row in rows(split) if row["meta"]["hops"] == hops]
    assert round(len(with_hops) / len(rows(split)), 2) == share


@pytest.mark.parametrize("key", ["question", "id"])
def test_questions_are_unique(key):
    values = [row[key] for split in LEAST_QUESTIONS for row in rows(split)]
    assert len(set(values)) == len(values)


def test_names_are_unique_in_any_case():
    assert len({name.lower() for name in NAMES}) == len(NAMES)


def test_there_are_enough_names_of_each_kind():
    kinds = Counter(NAMES.values())
    assert [name for name in kinds.keys() - LEAF_TYPES if kinds[name] < 25] == []


def test_a_tokenizer_can_hold_all_names():
    assert len(NAMES) <= 2300


def test_passages_are_many():
    assert len(rows("passages")) >= 1050


def test_passages_name_only_their_own_fact():
    for passage in rows("passages"):
        [(subject, _, value)] = passage["facts"]
        assert passage["title"] == subject
        assert {subject, value} == set(NAMED.findall(passage["text"])), passage["id"]


def test_passages_are_short():
    assert {len(row["text"].split()) for row in rows("passages")} <= set(range(12, 31))


def test_the_world_has_few_words():
    texts = [row["text"] for row in rows("passages")]
    texts += [row["question"] for split in LEAST_QUESTIONS for row in rows(split)]
    words = set()
    for text in texts:
        words.update(re.findall(r"[\w']+", NAMED.sub(" ", text).lower()))
    assert len(words) <= 700


@pytest.mark.parametrize("split", LEAST_QUESTIONS)
def test_chains_are_stated(split):
    for row in rows(split):
        chain = row["meta"]["chain"]
        assert row["supporting_ids"] == [
            place for hop in chain for place in (hop["passage"], hop["triple"]) if place
        ]
        assert row["answers"] == [chain[-1]["object"]]
        assert row["meta"]["hops"] == len(chain)
        assert NAMED.findall(row["question"]) == [chain[0]["subject"]]
        assert all(first["object"] == second["subject"] for first, second in pairwise(chain))
        for hop in chain:
            fact = [hop["subject"], hop["relation"], hop["object"]]
            assert hop["passage"] or hop["triple"]
            if hop["passage"]:
                passage = by_id("passages")[hop["passage"]]
                assert passage["split"] == FACTS_OF.get(split, split)
                assert fact in passage["facts"]
                assert hop["subject"] in passage["text"]
                assert hop["object"] in passage["text"]
            if hop["triple"]:
                triple = by_id("triples")[hop["triple"]]
                assert triple["split"] == FACTS_OF.get(split, split)
                assert [triple["subject"], triple["relation"], triple["object"]] == fact


def test_a_relation_of_a_subject_has_one_value():
    facts = {tuple(fact) for row in rows("passages") for fact in row["facts"]}
    facts |= {(row["subject"], row["relation"], row["object"]) for row in rows("triples")}
    assert len({fact[:2] for fact in facts}) == len(facts)


@pytest.mark.parametrize(
    "keys", [("subject", "relation", "object"), ("subject",), ("passage",), ("triple",)]
)
def test_splits_share_no(keys):
    train, validation, *tests = (hops(split, *keys) - {(None,)} for split in LEAST_QUESTIONS)
    assert set.union(*tests).isdisjoint(train | validation)
    assert validation.isdisjoint(train)


def chains(split):
    return {
        tuple(hop["subject"] + hop["relation"] for hop in row["meta"]["chain"])
        for row in rows(split)
    }


def test_the_second_test_asks_no_chain_of_the_first():
    assert chains("test").isdisjoint(chains("test2"))


def test_one_hop_questions_of_the_second_test_ask_for_other_facts():
    single = {chain for chain in chains("test2") if len(chain) == 1}
    asked = {(hop,) for chain in chains("test") for hop in chain}
    assert single.isdisjoint(asked)


def test_training_has_every_shape_of_chain():
    train, *held_out = (
        {tuple(hop["relation"] for hop in row["meta"]["chain"]) for row in rows(split)}
        for split in LEAST_QUESTIONS
    )
    assert set.union(*held_out) <= train


# pairs for a judge: their labels can be reckoned anew from the world's facts


@cache
def pairs(swap: bool = False) -> list[Labelled]:
    return world_pairs(limit=40, swap=swap)


def kind(row: Labelled) -> str:
    return row.id.rpartition(":")[2]


@cache
def shown() -> dict[tuple[str, str, str], str]:
    """Every fact that a passage states, with the passage's text as it stands in a premise."""
    return {
        tuple(fact): f"{row['title']}\n{row['text']}"
        for row in rows("passages")
        for fact in row["facts"]
    }


def stated(row: Labelled) -> tuple[str, str, str] | None:
    """Subject, relation and object of the response."""
    found = STATES.match(row.hypothesis)
    return None if found is None else (found["subject"], found["relation"], found["object"])


@pytest.mark.parametrize(("split", "least"), [("train", 50), ("heldout", 100)])
def test_labels_are_balanced(split, least):
    labels = Counter(row.label for row in pairs() if row.split == split)
    assert labels[True] == labels[False] > least


def test_every_kind_of_pair_occurs():
    kinds = Counter(map(kind, pairs()))
    assert set(kinds) == {"true", "name", "claim", "denial", "unsaid", "other"}
    assert min(kinds.values()) >= 3


def test_pairs_say_what_they_are():
    assert len({row.id for row in pairs()}) == len(pairs())
    assert {row.task for row in pairs()} == {"info_think"}
    assert {row.source for row in pairs()} == {"world"}


def test_pairs_depend_on_their_seed_alone():
    again = world_pairs(limit=3, swap=False)
    assert again[0] == pairs()[0]
    assert again == world_pairs(limit=3, swap=False)
    assert again != world_pairs(seed=1, limit=3, swap=False)


def test_the_world_bears_out_the_labels():
    for row in pairs():
        fact = stated(row)
        in_premise = fact is not None and shown().get(fact, "\0") in row.premise
        denied = row.hypothesis.startswith(("Nothing on", "This does not give"))
        if row.label:
            assert in_premise or denied, row
        else:
            assert not in_premise, row


def test_a_false_pair_shares_the_response_of_its_true_one():
    for some in (pairs(), pairs(swap=True)):
        for true, false in zip(some[::2], some[1::2], strict=True):
            assert true.label
            assert not false.label
            assert true.hypothesis != false.hypothesis
            assert (true.premise, true.question, true.group) == (
                false.premise,
                false.question,
                false.group,
            )
            if some is pairs() and kind(false) in (
                "denial",
                "unsaid",
            ):  # what a denial denies is there
                subject, relation, _ = found = stated(true)
                assert shown()[found] in false.premise
                assert kind(false) == "unsaid" or f"the {relation} of {subject}" in false.hypothesis


def test_training_pairs_share_nothing_with_held_out_ones():
    texts = {row["text"] for row in rows("passages") if row["split"] != "train"}
    questions = {
        task.question for split in ("validation", "test") for task in load_tasks("world", split)
    }
    for some in (pairs(), pairs(swap=True)):
        learnt = [row for row in some if row.split == "train"]
        assert not {row.group for row in learnt} & {
            row.group for row in some if row.split == "heldout"
        }
        assert not any(texts.intersection(row.premise.split("\n")) for row in learnt)
    assert not questions & {row.question for row in pairs() if row.split == "train"}


def test_names_are_swapped_on_the_side_to_learn_from_only():
    both = list(zip(pairs(), pairs(swap=True), strict=True))
    assert all(one == other for one, other in both if one.split == "heldout")
    learnt = [(one, other) for one, other in both if one.split == "train"]
    changed = sum(one.premise != other.premise for one, other in learnt)
    assert changed > 0.8 * len(learnt), (
        "some have so many names that each draw would state a held-out fact"
    )
    assert all(
        (one.id, one.label, one.group) == (other.id, other.label, other.group)
        for one, other in both
    )


# what states what

WORLD = bundled_world()
ALGIERS = "The parliament of Algeria meets in Algiers, where new laws are read and passed."
QUERIES = [
    f"{item.relation} of {item.subject}" for item in WORLD.statements if item.split == "train"
]


@pytest.mark.parametrize(
    ("query", "text", "states"),
    [
        ("capital of Algeria", ALGIERS, True),
        ("Algeria capital", "The capital of Algeria is Algiers.", True),
        ("capital of Angola", ALGIERS, False),
        ("currency of Algeria", ALGIERS, False),
        ("capital of Algeria", ALGIERS.replace("Algiers", "Luanda"), False),
    ],
)
def test_what_states_what(query, text, states):
    assert WORLD.states(query, Evidence(text, "Algeria")) is states
    (verdict,) = FactsJudge().judge_batch(
        [Pair(f"Other\nNothing.\n\nAlgeria\n{text}", query, task="states")]
    )
    assert (verdict.label, verdict.p) == (states, float(states))
    assert not verdict.abstained
    (other,) = FactsJudge().judge_batch([Pair(text, query, task="correctness")])
    assert other.abstained
    assert "correctness" in other.why


@pytest.mark.parametrize("query", [" birth country of Ada Lovelace ", "Ada Lovelace birth country"])
def test_a_query_asks_for_the_longest_relation_that_it_names(query):
    assert WORLD.asked(query) == Asked("Ada Lovelace", "birth country")  # not her "country"


@pytest.mark.parametrize("query", ["where do they speak Thai", ""])
def test_a_query_without_a_relation_asks_for_nothing(query):
    assert WORLD.asked(query) is None


def test_every_statement_states_its_own_fact():
    unstated = [
        statement
        for statement in WORLD.statements
        if not WORLD.states(f"{statement.relation} of {statement.subject}", statement.evidence)
    ]
    assert unstated == []


def test_a_statement_answers_every_question():
    tasks = [task for split in SPLITS for task in load_tasks("world", split)]
    assert len(chains_of()) == len(tasks)
    for task in tasks:
        answers = {each.object for each in WORLD.by_fact[chains_of()[task.question][-1]]}
        assert answers == {task.answers[0]}


TWO_HOPS = [task for task in load_tasks("world", "validation") if len(task.meta["chain"]) == 2]


def test_only_the_chains_last_fact_supports_an_answer():
    task = TWO_HOPS[0]
    first, last = (WORLD.by_fact[link.asked][0].evidence for link in chain_of(task))
    answer = task.answers[0]

    def label(premise, said=answer, question=task.question):
        return FactsJudge().judge_batch([Pair(premise, said, question)])[0].label

    assert label(f"{first.title}\n{first.text}\n\n{last.title}\n{last.text}") is True
    assert label(last.text, answer.upper()) is True  # normalised as exact match is
    assert label(first.text) is False
    assert label("content") is False
    assert label(last.text, task.meta["chain"][0]["object"]) is False
    assert (
        label(last.text, "is") is False
    )  # a word of the passage, which a comparison of words takes
    assert label(last.text, question="Who is this?") is None


@settings(max_examples=50)
@given(st.sampled_from(QUERIES), st.integers(0, 2**32))
def test_a_foil_never_states_what_is_asked(query, seed):
    foils, asked = bundled_world(("train",)), WORLD.asked(query)
    gold = WORLD.by_fact[asked][0]
    replaced = foils.replace(query, gold.evidence, random.Random(seed))
    lured = foils.lure(query, random.Random(seed))
    for title, text in filter(None, (replaced, lured)):
        assert not WORLD.states(query, Evidence(text, title))
        assert text != gold.text
    if replaced is not None:  # it is about the subject, under its title
        assert replaced[0] == asked.subject
        assert asked.subject in replaced[1]
    if lured is not None:  # its name is one of that relation
        assert any(
            item.object in lured[1]
            for item in WORLD.by_relation[asked.relation]
            if item.object != gold.object
        )


LUANDA = ALGIERS.replace("Algiers", "Luanda")
"""What the passage says in a changed world; in the world as it is, a lure may say the same."""
CHANGE = Change(
    "Algeria", "capital", "Algiers", "Luanda", 0, Asked("Algeria", "capital"), ("Algiers",)
)


def context(change):
    """What a pair says of the world that its premise was read in."""
    return world_context({"counterfactual": msgspec.to_builtins(change)} if change else {})


def states(text, change=None, query="capital of Algeria"):
    pair = Pair(f"Algeria\n{text}", query, task="states", context=context(change))
    return FactsJudge().judge_batch([pair])[0].label


def test_a_passage_is_read_in_its_own_world():
    assert [
        states(text, CHANGE) for text in (LUANDA, "The capital of Algeria is Luanda.", ALGIERS)
    ] == [1, 1, 0]
    assert [states(text) for text in (LUANDA, "The capital of Algeria is Luanda.", ALGIERS)] == [
        0,
        0,
        1,
    ]
    assert states("The capital of Algeria is Rome.", CHANGE) is False  # a lure is one in any world
    other = WORLD.by_fact[Asked("Japan", "capital")][0].text
    assert states(other, CHANGE, "capital of Japan") is True  # all else is as it was
    assert WORLD.stated(LUANDA) is None
    assert WORLD.changed(CHANGE).stated(LUANDA).source == WORLD.stated(ALGIERS).source


def test_a_context_that_is_no_change_leaves_the_pair_open():
    pair = Pair(ALGIERS, "capital of Algeria", task="states", context='{"a": 1}')
    (verdict,) = FactsJudge().judge_batch([pair])
    assert verdict.abstained
    assert "context cannot be read" in verdict.why


@pytest.mark.parametrize("hop", [0, 1])
def test_support_follows_the_changed_chain(hop):
    world = CounterfactualWorld(WORLD)
    made = ((task, world.change(task)) for task in TWO_HOPS)
    original, task = next(
        pair for pair in made if pair[1] and pair[1].meta["counterfactual"]["hop"] == hop
    )
    change = Change.of(task.meta)
    last = WORLD.changed(change).by_fact[chain_of(task)[-1].asked][0].text
    before = WORLD.by_fact[chain_of(original)[-1].asked][0].text

    def label(premise, said, change=change):
        pair = Pair(premise, said, original.question, context=context(change))
        return FactsJudge().judge_batch([pair])[0].label

    assert label(last, task.answers[0]) is True
    assert label(last, original.answers[0]) is False
    assert label(before, original.answers[0]) is False
    assert label(before, original.answers[0], None) is True
    assert label(last, task.answers[0], None) is False
    (elsewhere,) = FactsJudge().judge_batch(
        [Pair(last, task.answers[0], "Who is this?", context=context(change))]
    )
    assert elsewhere.abstained


def test_rewards_by_facts_read_the_world_off_the_rollout():
    """An engine's rollout carries its change; read back from a log it is the same."""
    meta = {"counterfactual": msgspec.to_builtins(CHANGE)}
    question = next(
        question for question, chain in chains_of().items() if chain[-1] == CHANGE.asked
    )
    for text, answer, changed, supported in (
        (LUANDA, "Luanda", True, 1.0),
        (ALGIERS, "Algiers", True, 0.0),
        (LUANDA, "Luanda", False, 0.0),
        (ALGIERS, "Algiers", False, 1.0),
    ):
        call = ToolCall("local_search", {"query": "capital of Algeria"})
        search = Step(call=call, evidence=(Evidence(text, "Algeria", "E1"),))
        steps = (search, Step(helpful=True, refs=("E1",), answer=answer))
        row = Trajectory(steps, question, answer, dialect="pou", meta=meta if changed else {})
        for rollout in (row, Trajectory.from_json(row.to_json())):
            support = AnswerSupport(FactsJudge()).score(rollout)
            assert (support.value, support.parts["texts"]) == (
                supported,
                [answer],
            )  # its claim is the short answer
            assert CitationStatesFact().score(rollout).value == supported


def test_foils_follow_their_seed_and_the_changed_world():
    change = Change("Algeria", "capital", "Algiers", "Accra", 0, Asked("Algeria", "capital"))
    query, text = "capital of Algeria", ALGIERS.replace("Algiers", "Accra")
    foils, item = bundled_world(("train",)), WORLD.by_fact[Asked("Algeria", "capital")][0].evidence
    one, again = (foils.replace(query, item, random.Random(3)) for _ in range(2))
    assert one == again
    assert (
        foils.replace("who knows", item, random.Random(0))
        is foils.lure("?", random.Random(0))
        is None
    )

    def lures(foils):
        return {foils.lure(query, random.Random(seed))[1] for seed in range(400)}

    assert text in lures(foils)
    assert not foils.states(query, Evidence(text))
    assert text not in lures(foils.in_context(context(change)))
    assert foils.in_context(context(change)).states(query, Evidence(text))


# changed worlds

QA = SHARED / "data" / "qa"
TRAIN = load_tasks("world")


def passage(number: int, fact: tuple[str, str, str], text: str, split: str = "train") -> Statement:
    return Statement(f"W{number}", "local_search", split, *fact, title=fact[0], text=text)


def triple(number: int, fact: tuple[str, str, str], split: str = "train") -> Statement:
    return Statement(f"T{number}", "knowledge_graph", split, *fact, fact[0], triple_text(*fact))


PEAK = ("Mount Aso", "country", "Japan")
SMALL = (
    passage(1, PEAK, "Mount Aso rises in Japan."),
    triple(1, PEAK),
    passage(2, ("Mount Meru", "country", "Oman"), "Oman has Mount Meru."),
    triple(3, ("Japan", "capital", "Tokyo")),
    triple(4, ("Oman", "capital", "Muscat")),
    triple(5, ("Mount Etna", "country", "Italy"), "test"),
    triple(6, ("Italy", "capital", "Rome"), "test"),
)


def chain(*facts: tuple[str, str, str]) -> dict[str, list[dict[str, str]]]:
    return {
        "chain": [dict(zip(("subject", "relation", "object"), fact, strict=True)) for fact in facts]
    }


QUESTION = Task(
    "q", "Capital of Aso's land?", ("Tokyo",), meta=chain(PEAK, ("Japan", "capital", "Tokyo"))
)


def test_a_fact_is_changed_wherever_it_is_stated():
    """There is one other country and one other capital in the split, so that both changes are known
    by hand.
    """
    seen = {}
    for turn in range(20):
        task = CounterfactualWorld(World(SMALL)).changed(QUESTION, turn)
        seen[task.meta["counterfactual"]["hop"]] = task
    first, last = seen[0], seen[1]
    assert first.answers == last.answers == ("Muscat",)
    assert first.edits == {
        "Mount Aso rises in Japan.": "Mount Aso rises in Oman.",
        "The country of Mount Aso is Japan.": "The country of Mount Aso is Oman.",
    }
    assert last.edits == {"The capital of Japan is Tokyo.": "The capital of Japan is Muscat."}
    assert first.meta["chain"] == [
        {
            "subject": "Mount Aso",
            "relation": "country",
            "object": "Oman",
            "passage": "W1",
            "triple": "T1",
        },
        {
            "subject": "Oman",
            "relation": "capital",
            "object": "Muscat",
            "passage": None,
            "triple": "T4",
        },
    ]
    asked, gold = Asked("Oman", "capital"), ("Tokyo",)
    assert Change.of(first.meta) == Change("Mount Aso", "country", "Japan", "Oman", 0, asked, gold)
    assert Change.of(last.meta).asked == Asked("Japan", "capital")
    assert (first.id, first.question) == ("q", QUESTION.question)
    assert QUESTION.edits == {}


@pytest.mark.parametrize(
    ("more", "task", "reason"),
    [
        ((), {"meta": {}}, "it has no chain of facts"),
        ((), {"meta": {"chain": [{"subject": "Mount Aso"}]}}, "its chain of facts cannot be read"),
        ((), {"answers": ("yes",)}, "its chain does not end in its answer"),
        ((), {"edits": {"a": "b"}}, "its world is changed already"),
        ((triple(9, ("Mount Aso", "country", "Peru")),), {}, REASONS[4]),
        (
            (),
            {"question": "Where in Japan is Tokyo?"},
            "the question names the fact's object or the answer",
        ),
        (
            (
                passage(8, ("Tokyo", "country", "Japan"), "Tokyo lies in Japan."),
                passage(9, ("Kumamoto", "view", "Mount Aso"), "Mount Aso is seen all over Japan."),
            ),
            {},
            "another text names the fact's subject and object",
        ),
        ((), {"answers": ("Tokyo", "Muscat")}, "no other object leads to another answer"),
    ],
)
def test_why_a_question_has_no_changed_world(more, task, reason):
    world = CounterfactualWorld(World((*SMALL, *more)))
    given = msgspec.structs.replace(QUESTION, **task)
    with pytest.raises(DataError, match=f"^{reason}$"):
        world.changed(given)
    assert world.change(given) is None
    assert world.change_all([given]) == ([], {reason: 1})


@pytest.mark.parametrize(
    ("text", "old", "new", "works"),
    [
        ("Mount Aso, of Japan, is Japanese.", "Japan", "Oman", True),  # whole names alone are names
        (
            "Mount Aso lies in North Korea, Korea's north.",
            "North Korea",
            "Oman",
            False,
        ),  # a part of the name is left
        (
            "Mount Aso rises in Japan, not in Oman.",
            "Japan",
            "Oman",
            False,
        ),  # the new object stands there already
        ("It rises in Japan.", "Japan", "Oman", True),  # its title names it
        (
            "Mount Aso rises in Japan.",
            "Japan",
            "New Japan",
            False,
        ),  # the old name is in the new one
        (
            "Mount Aso rises near Aso.",
            "Aso",
            "Oman",
            False,
        ),  # the subject's name gives the object away
    ],
)
def test_an_edited_text_states_only_the_new_fact(text, old, new, works):
    fact = ("Mount Aso", "country", old)
    world = World((passage(1, fact, text), passage(2, ("Mount Meru", "country", new), "Meru.")))
    task = CounterfactualWorld(world).change(Task("q", "Which land?", (old,), meta=chain(fact)))
    assert (task is not None) is works
    assert task is None or list(task.edits.values()) == [
        text.replace(old, new).replace(f"{new}ese", f"{old}ese")
    ]


@cache
def changed_training(every: int = 10) -> tuple[list[Task], Counter[str]]:
    return CounterfactualWorld(WORLD, seed=0).change_all(TRAIN[::every])


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_changed_training_questions_are_valid_and_leak_nothing(
    every,
):
    """No fact, passage or triple of another split is said, changed or walked over."""
    statements = WORLD.statements
    facts = {(item.subject, item.relation): item for item in statements}
    gold = {task.id: task for task in TRAIN}
    held_out = [item for item in statements if item.split != "train"]
    pairs, hops = (
        {(item.subject, item.object) for item in held_out},
        {item[3:6] for item in held_out},
    )
    texts = {item.text for item in held_out}
    made, dropped = changed_training(every)
    assert every > 1 or dropped == {REASONS[7]: 50}  # as the page says
    for task in made:
        change, links = Change.of(task.meta), chain_of(task)
        assert len(links) == len(gold[task.id].meta["chain"])
        assert links[0].subject == chain_of(gold[task.id])[0].subject
        for hop, link in enumerate(links):
            known = (
                change.new
                if link.asked == (change.subject, change.relation)
                else facts[link.asked].object
            )
            assert link.object == known
            assert hop == 0 or link.subject == links[hop - 1].object
        assert task.answers == (links[-1].object,)
        assert links[-1].asked == change.asked
        assert task.answers != gold[task.id].answers == change.answers
        assert links[change.hop].object == change.new
        assert {item.text for item in WORLD.by_fact[Asked(change.subject, change.relation)]} == set(
            task.edits
        )
        assert all(change.subject in text and change.new in text for text in task.edits.values())
        assert (change.subject, change.new) not in pairs
        assert hops.isdisjoint(links)
        assert texts.isdisjoint(task.edits)
        assert texts.isdisjoint(task.edits.values())
    asked = {task.question for task in made}
    assert all(
        asked.isdisjoint(task.question for task in load_tasks("world", split))
        for split in SPLITS[1:]
    )


def test_the_real_tools_show_the_changed_world():
    with Toolbox([LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]) as tools:
        for task in changed_training()[0][::20]:
            world, session = WORLD.changed(Change.of(task.meta)), tools.session(task.edits)
            for fact in task.meta["chain"]:
                query = f"{fact['relation']} of {fact['subject']}"
                calls = [
                    ToolCall(name, {"query": query}) for name in ("local_search", "knowledge_graph")
                ]
                shown = [
                    item
                    for found in tools.run_batch(calls, [session] * 2)
                    for item in found.evidence
                ]
                assert any(world.states(query, item) for item in shown)
                assert not any(item.text in task.edits for item in shown)


DIGEST = """
import hashlib, msgspec
from faithful_search.counterfactual import CounterfactualWorld
from faithful_search.tasks import load_tasks
from faithful_search.world import bundled_world
world = CounterfactualWorld(bundled_world(), 7)
made = [world.change(task, 3) for task in load_tasks("world", limit=60, seed=1)]
print(hashlib.sha256(msgspec.json.encode(made)).hexdigest())
"""


def test_one_seed_gives_the_same_bytes_in_another_process(capsys):
    env = {**os.environ, "PYTHONHASHSEED": "57"}
    done = subprocess.run(
        [sys.executable, "-c", DIGEST], capture_output=True, text=True, env=env, check=True
    )
    exec(DIGEST, {})
    assert capsys.readouterr().out == done.stdout


@settings(max_examples=3)
@given(
    st.lists(st.sampled_from(TRAIN), min_size=6, max_size=9, unique_by=lambda task: task.id),
    st.integers(0, 99),
)
def test_a_change_depends_on_seed_turn_and_question_alone(tasks, seed):
    world = CounterfactualWorld(WORLD, seed)
    made = [world.change(task) for task in tasks]
    assert made == [world.change(task) for task in reversed(tasks)][::-1]
    assert made != [world.change(task, 1) for task in tasks]
    other = CounterfactualWorld(WORLD, seed + 1)
    assert made != [other.change(task) for task in tasks]


CORPUS = [
    Evidence("Konrad Wolf was the son of Friedrich Wolf.", "Konrad Wolf", source="p1"),
    Evidence(
        "Friedrich Wolf, born in Neuwied, wrote plays in Moscow.",
        "Friedrich Wolf (writer)",
        source="p2",
    ),
    Evidence("Anna Seghers was born in Mainz.", "Anna Seghers", source="p3"),
    Evidence("Her son Peter was born in Paris.", "Peter", source="p4"),
]


def two_wiki(*triples: tuple[str, str, str]) -> Task:
    meta = {"evidence_triples": [list(fact) for fact in triples], "type": "compositional"}
    return Task(
        triples[0][0], "Where was his father born?", (triples[-1][2],), (), ("Titles",), meta
    )


def test_a_2wiki_question_is_changed_by_its_triples():
    """At the last hop Neuwied can become Mainz; at the first, Friedrich Wolf cannot become anyone:
    no other father.
    """
    asked = two_wiki(
        ("Konrad Wolf", "father", "Friedrich Wolf"), ("Friedrich Wolf", "place of birth", "Neuwied")
    )
    other = two_wiki(("Anna Seghers", "place of birth", "Mainz"))
    task = CounterfactualWorld.annotated([asked, other], CORPUS).changed(asked)
    assert task.answers == ("Mainz",)
    assert task.supporting_titles == (
        "Konrad Wolf",
        "Friedrich Wolf (writer)",
    )
    assert task.edits == {CORPUS[1].text: "Friedrich Wolf, born in Mainz, wrote plays in Moscow."}
    assert [tuple(link) for link in chain_of(task)][-1] == (
        "Friedrich Wolf",
        "place of birth",
        "Mainz",
    )
    assert task.meta["type"] == "compositional"
    assert "evidence_triples" not in task.meta
    told = CounterfactualWorld.annotated(
        [asked, other], [*CORPUS, Evidence("Friedrich Wolf left Neuwied.", "Neuwied")]
    )
    assert told.change(asked) is None  # another passage of the corpus gives it away


def test_a_musique_question_is_changed_by_its_decomposition():
    def rows(*given: tuple[str, str, int]) -> list[dict[str, str]]:
        return [
            {
                "question": question,
                "answer": answer,
                "title": CORPUS[at].title,
                "text": CORPUS[at].text,
            }
            for question, answer, at in given
        ]

    parts = rows(
        ("Who is Konrad Wolf's father?", "Friedrich Wolf", 0),
        ("#1 >> place of birth", "Neuwied", 1),
    )
    asked = Task(
        "m1",
        "Where was his father born?",
        ("Neuwied", "Neuwied am Rhein"),
        meta={"decomposition": parts},
    )
    other = Task(
        "m2",
        "?",
        ("Mainz",),
        meta={"decomposition": rows(("Anna Seghers >> place of birth", "Mainz", 2))},
    )
    assert chain_of(asked)[1].asked == Asked("Friedrich Wolf", "place of birth")
    task = CounterfactualWorld.annotated([asked, other], CORPUS).changed(asked)
    assert task.answers == ("Mainz",)
    assert list(task.edits) == [CORPUS[1].text]
    assert Change.of(task.meta).answers == asked.answers
    with pytest.raises(DataError, match="none of 1 questions is annotated"):
        CounterfactualWorld.annotated([Task("1", "Who?", ("me",))], CORPUS)


@pytest.mark.slow
@pytest.mark.skipif(not QA.exists(), reason="the question files are not part of this project")
@pytest.mark.parametrize(("name", "least"), [("2wikimultihopqa", 200), ("musique", 40)])
def test_real_questions_are_changed_by_their_annotations(name, least):
    tasks = load_tasks(QA / name / "train.jsonl.gz")
    corpus = [
        Evidence(row["text"], row["title"], source=row["id"])
        for row in read_rows(QA / name / "corpus.jsonl.gz")
    ]
    found, dropped = CounterfactualWorld.annotated(tasks, corpus).change_all(tasks)
    assert len(found) >= least
    assert len(found) + dropped.total() == len(tasks)
    assert set(dropped) <= set(REASONS)
    texts = {item.text for item in corpus}
    for task in found:
        change = Change.of(task.meta)
        assert task.edits
        assert set(task.edits) <= texts
        assert task.answers[0] not in change.answers
        assert all(
            change.new in text and change.old not in text.split() for text in task.edits.values()
        )


def test_a_foil_says_something_else_of_the_same_subject():
    foils, item = bundled_world(("train",)), WORLD.by_fact[Asked("Algeria", "capital")][0].evidence
    others = [
        other
        for relation in ("continent", "currency", "language")
        for other in foils.by_relation[relation]
    ]
    allowed = {other.about("Algeria").text for other in others}
    for seed in range(40):
        title, text = foils.replace("capital of Algeria", item, random.Random(seed))
        assert title == "Algeria"
        assert text in allowed


def test_a_relation_whose_subjects_have_no_other_has_no_foil():
    foils = bundled_world(("train",))
    item = foils.by_relation["birth country"][0]
    query = f"birth country of {item.subject}"
    assert foils.replace(query, item.evidence, random.Random(0)) is None
