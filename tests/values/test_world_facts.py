"""The bundled world's facts: what states what, foils that only look like it, and the judge that knows."""

import random

import msgspec
import pytest
from hypothesis import given, strategies as st

from faithful_search.counterfactual import CounterfactualWorld
from faithful_search.judges import Pair
from faithful_search.judges.facts import FactsJudge
from faithful_search.rewards import AnswerSupport
from faithful_search.rewards.citation_states_fact import CitationStatesFact
from faithful_search.tasks import load_tasks
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
from faithful_search.world import SPLITS, Asked, Change, bundled_world, chains_of

WORLD = bundled_world()
ALGIERS = "The parliament of Algeria meets in Algiers, where new laws are read and passed."
QUERIES = [f"{item.relation} of {item.subject}" for item in WORLD.statements if item.split == "train"]


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("capital of Japan", ("Japan", "capital")),
        ("Japan capital", ("Japan", "capital")),
        (" birth country of Ada Lovelace ", ("Ada Lovelace", "birth country")),  # not "country"
        ("Ada Lovelace birth country", ("Ada Lovelace", "birth country")),
        ("where do they speak Thai", None),
        ("", None),
    ],
)
def test_what_a_query_asks_for(query, asked):
    assert WORLD.asked(query) == (None if asked is None else Asked(*asked))


@pytest.mark.parametrize(
    ("query", "text", "states"),
    [
        ("capital of Algeria", ALGIERS, True),
        ("Algeria capital", "The capital of Algeria is Algiers.", True),
        ("capital of Angola", ALGIERS, False),
        ("currency of Algeria", ALGIERS, False),
        ("capital of Algeria", ALGIERS.replace("Algiers", "Luanda"), False),
        ("capital of Algeria", "content", False),
    ],
)
def test_what_states_what(query, text, states):
    assert WORLD.states(query, Evidence(text, "Algeria")) is states
    (verdict,) = FactsJudge().judge_batch([Pair(f"Other\nNothing.\n\nAlgeria\n{text}", query, task="states")])
    assert (verdict.label, verdict.p) == (states, float(states)) and not verdict.abstained
    (other,) = FactsJudge().judge_batch([Pair(text, query, task="info_think")])  # another task is not the facts'
    assert other.abstained and "info_think" in other.why


def test_every_statement_states_its_own_fact_and_no_question_lacks_one():
    assert all(WORLD.states(f"{item.relation} of {item.subject}", item.evidence) for item in WORLD.statements)
    tasks = [task for split in SPLITS for task in load_tasks("world", split)]
    assert len(chains_of()) == len(tasks)
    assert all(
        item.object == task.answers[0] for task in tasks for item in WORLD.by_fact[chains_of()[task.question][-1]]
    )


TWO_HOPS = next(task for task in load_tasks("world", "validation") if len(task.meta["chain"]) == 2)


def test_an_answer_is_supported_by_the_last_fact_of_the_chain_alone():
    first, last = (
        WORLD.by_fact[Asked(fact["subject"], fact["relation"])][0].evidence for fact in TWO_HOPS.meta["chain"]
    )
    answer = TWO_HOPS.answers[0]

    def label(premise, said=answer, question=TWO_HOPS.question):
        return FactsJudge().judge_batch([Pair(premise, said, question)])[0].label

    assert label(f"{first.title}\n{first.text}\n\n{last.title}\n{last.text}") is True
    assert label(last.text, answer.upper()) is True  # normalised as exact match is
    assert label(first.text) is False and label("content") is False
    assert label(last.text, TWO_HOPS.meta["chain"][0]["object"]) is False
    assert label(last.text, "is") is False  # a word of the passage, which a comparison of words takes
    assert label(last.text, question="Who is this?") is None


def test_support_by_facts_takes_the_short_answer_as_its_claim():
    fact = TWO_HOPS.meta["chain"][-1]
    last = WORLD.by_fact[Asked(fact["subject"], fact["relation"])][0].evidence
    call = ToolCall("local_search", {"query": "anything"})
    found = Step(call=call, evidence=(Evidence(last.text, last.title, "E1"), Evidence("Nothing.", "Other", "E2")))

    def support(answer, ref):
        steps = (found, Step(helpful=True, refs=(ref,), answer=answer))
        score = AnswerSupport(FactsJudge()).score(Trajectory(steps, TWO_HOPS.question, answer, dialect="pou"))
        return score.value, score.parts["texts"]

    answer = TWO_HOPS.answers[0]
    assert support(answer, "E1") == (1.0, [answer]) and support(answer, "E2") == (0.0, [answer])
    assert support("Nothing", "E2")[0] == 0.0


@given(st.sampled_from(QUERIES), st.integers(0, 2**32))
def test_a_foil_never_states_what_is_asked(query, seed):
    foils, asked = bundled_world(("train",)), WORLD.asked(query)
    gold = WORLD.by_fact[asked][0]
    replaced = foils.replace(query, gold.evidence, random.Random(seed))
    lured = foils.lure(query, random.Random(seed))
    for title, text in filter(None, (replaced, lured)):
        assert not WORLD.states(query, Evidence(text, title)) and text != gold.text
    if replaced is not None:  # it is a true sentence about the subject or the relation
        other = WORLD.stated(replaced[1])
        assert (other.subject == asked.subject) != (other.relation == asked.relation) and other.split == "train"
    if lured is not None:  # its name is one of that relation
        assert any(item.object in lured[1] for item in WORLD.by_relation[asked.relation] if item.object != gold.object)


LUANDA = ALGIERS.replace("Algiers", "Luanda")
"""What the passage says in a changed world; in the world as it is, a lure may say the same."""
CHANGE = Change("Algeria", "capital", "Algiers", "Luanda", 0, Asked("Algeria", "capital"), ("Algiers",))


def states(text, change=None, query="capital of Algeria"):
    return FactsJudge().judge_batch([Pair(f"Algeria\n{text}", query, task="states", change=change)])[0].label


def test_what_a_passage_states_depends_on_the_world_it_was_read_in():
    assert [states(text, CHANGE) for text in (LUANDA, "The capital of Algeria is Luanda.", ALGIERS)] == [1, 1, 0]
    assert [states(text) for text in (LUANDA, "The capital of Algeria is Luanda.", ALGIERS)] == [0, 0, 1]
    assert states("The capital of Algeria is Rome.", CHANGE) is False  # a lure is one in any world
    other = WORLD.by_fact[Asked("Japan", "capital")][0].text
    assert states(other, CHANGE, "capital of Japan") is True  # all else is as it was
    assert WORLD.stated(LUANDA) is None and WORLD.changed(CHANGE).stated(LUANDA).source == WORLD.stated(ALGIERS).source


@pytest.mark.parametrize("hop", [0, 1])
def test_support_goes_by_the_chain_as_it_is_walked_in_the_changed_world(hop):
    two_hops = [task for task in load_tasks("world", "validation") if len(task.meta["chain"]) == 2]
    world = CounterfactualWorld(WORLD)
    made = ((task, world.change(task)) for task in two_hops)
    original, task = next(pair for pair in made if pair[1] and pair[1].meta["counterfactual"]["hop"] == hop)
    change = Change.of(task.meta)
    fact, old = task.meta["chain"][-1], original.meta["chain"][-1]
    last, before = (
        world.by_fact[Asked(link["subject"], link["relation"])][0].text
        for world, link in ((WORLD.changed(change), fact), (WORLD, old))
    )

    def label(premise, said, change=change):
        return FactsJudge().judge_batch([Pair(premise, said, original.question, change=change)])[0].label

    assert label(last, task.answers[0]) is True and label(last, original.answers[0]) is False
    assert label(before, original.answers[0]) is False
    assert label(before, original.answers[0], None) is True and label(last, task.answers[0], None) is False
    (elsewhere,) = FactsJudge().judge_batch([Pair(last, task.answers[0], "Who is this?", change=change)])
    assert elsewhere.abstained


def test_rewards_by_facts_read_the_world_off_the_rollout():
    """An engine's rollout carries its change; read back from a log it is the same."""
    meta = {"counterfactual": msgspec.to_builtins(CHANGE)}
    question = next(question for question, chain in chains_of().items() if chain[-1] == CHANGE.asked)
    for text, answer, changed, supported in (
        (LUANDA, "Luanda", True, 1.0),
        (ALGIERS, "Algiers", True, 0.0),
        (LUANDA, "Luanda", False, 0.0),
        (ALGIERS, "Algiers", False, 1.0),
    ):
        call = ToolCall("local_search", {"query": "capital of Algeria"})
        steps = (
            Step(call=call, evidence=(Evidence(text, "Algeria", "E1"),)),
            Step(helpful=True, refs=("E1",), answer=answer),
        )
        row = Trajectory(steps, question, answer, dialect="pou", meta=meta if changed else {})
        for rollout in (row, Trajectory.from_json(row.to_json())):
            assert AnswerSupport(FactsJudge()).score(rollout).value == supported
            assert CitationStatesFact().score(rollout).value == supported


def test_foils_draw_by_their_seed_and_know_what_is_true_in_a_changed_world():
    change = Change("Algeria", "capital", "Algiers", "Accra", 0, Asked("Algeria", "capital"))
    query, text = "capital of Algeria", ALGIERS.replace("Algiers", "Accra")
    foils, item = bundled_world(("train",)), WORLD.by_fact[Asked("Algeria", "capital")][0].evidence
    one, again = (foils.replace(query, item, random.Random(3)) for _ in range(2))
    assert one == again
    assert foils.replace("who knows", item, random.Random(0)) is foils.lure("?", random.Random(0)) is None

    def lures(foils):
        return {foils.lure(query, random.Random(seed))[1] for seed in range(400)}

    assert text in lures(foils) and not foils.states(query, Evidence(text))
    assert text not in lures(foils.changed(change)) and foils.changed(change).states(query, Evidence(text))
