"""Pairs of the bundled world: their labels can be reckoned anew from the world's facts."""

import re
from collections import Counter

import pytest

from faithful_search.bundled import world_file
from faithful_search.distil.world_pairs import world_pairs
from faithful_search.measure.agreement.labelled import Labelled
from faithful_search.tasks import load_tasks, read_rows

STATES = re.compile(r"The (?P<relation>[\w ]+?) of (?P<subject>.+?) is (?P<object>.+?)\. ")


@pytest.fixture(scope="module")
def pairs() -> list[Labelled]:
    return world_pairs(limit=40, swap=False)


@pytest.fixture(scope="module")
def swapped() -> list[Labelled]:
    return world_pairs(limit=40)


def kind(row: Labelled) -> str:
    return row.id.rpartition(":")[2]


def facts() -> dict[tuple[str, str, str], str]:
    """Every fact that a passage states, with the passage's text as it stands in a premise."""
    rows = read_rows(world_file("passages.jsonl.gz"))
    return {tuple(fact): f"{row['title']}\n{row['text']}" for row in rows for fact in row["facts"]}


def stated(row: Labelled) -> tuple[str, str, str] | None:
    found = STATES.match(row.hypothesis)
    return None if found is None else (found["relation"], found["subject"], found["object"])


def test_labels_are_balanced_on_both_sides_and_every_kind_occurs(pairs):
    count = Counter((row.split, row.label) for row in pairs)
    assert count["train", True] == count["train", False] > 50
    assert count["heldout", True] == count["heldout", False] > 100
    assert {kind(row) for row in pairs} == {"true", "name", "claim", "denial", "unsaid", "other"}
    assert len({row.id for row in pairs}) == len(pairs)
    assert {row.task for row in pairs} == {"info_think"} and {row.source for row in pairs} == {"world"}
    again = world_pairs(limit=3, swap=False)
    assert again[0] == pairs[0] and again == world_pairs(limit=3, swap=False)
    assert again != world_pairs(seed=1, limit=3, swap=False)


def test_the_world_bears_the_labels_out(pairs):
    known = facts()
    for row in pairs:
        found = stated(row)
        shown = found is not None and known.get((found[1], found[0], found[2]), "\0") in row.premise
        denied = row.hypothesis.startswith(("Nothing on", "This does not give"))
        assert shown or denied if row.label else found is None or not shown, row
    assert min(Counter(map(kind, pairs)).values()) >= 3


def test_a_false_pair_has_the_response_of_the_true_one_before_it(pairs, swapped):
    known = facts()
    for rows in (pairs, swapped):
        for true, false in zip(rows[::2], rows[1::2], strict=True):
            assert true.label and not false.label and true.hypothesis != false.hypothesis
            assert (true.premise, true.question, true.group) == (false.premise, false.question, false.group)
            if rows is pairs and kind(false) in ("denial", "unsaid"):  # what a denial denies is there
                relation, subject, found = stated(true)
                assert known[subject, relation, found] in false.premise
                assert kind(false) == "unsaid" or f"the {relation} of {subject}" in false.hypothesis


def test_no_question_group_and_no_held_out_passage_is_on_the_side_to_learn_from(pairs, swapped):
    held = [row for row in read_rows(world_file("passages.jsonl.gz")) if row["split"] != "train"]
    texts = {row["text"] for row in held}
    questions = {task.question for split in ("validation", "test") for task in load_tasks("world", split)}
    for rows in (pairs, swapped):
        learnt = [row for row in rows if row.split == "train"]
        assert not {row.group for row in learnt} & {row.group for row in rows if row.split == "heldout"}
        for row in learnt:
            assert not texts.intersection(row.premise.split("\n"))
    assert not questions & {row.question for row in pairs if row.split == "train"}


def test_names_are_swapped_on_the_side_to_learn_from_only(pairs, swapped):
    both = list(zip(pairs, swapped, strict=True))
    assert all(one == other for one, other in both if one.split == "heldout")
    learnt = [(one, other) for one, other in both if one.split == "train"]
    changed = sum(one.premise != other.premise for one, other in learnt)
    assert changed > 0.8 * len(learnt), "some have so many names that each draw would state a held-out fact"
    assert all((one.id, one.label, one.group) == (other.id, other.label, other.group) for one, other in both)
