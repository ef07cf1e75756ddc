"""Changed worlds: what is changed, when it is valid, and that nothing of it reaches other questions."""

import os
import subprocess
import sys
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from paths import SHARED

from faithful_search.counterfactual import REASONS, CounterfactualWorld, chain_of
from faithful_search.errors import DataError
from faithful_search.tasks import Task, load_tasks, read_rows
from faithful_search.tools import KnowledgeGraph, LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, ToolCall
from faithful_search.world import Asked, Change, Statement, World, bundled_world, triple_text

QA = SHARED / "data" / "qa"
BUNDLED = CounterfactualWorld(bundled_world(), seed=0)
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
    return {"chain": [dict(zip(("subject", "relation", "object"), fact, strict=True)) for fact in facts]}


QUESTION = Task("q", "Capital of Aso's land?", ("Tokyo",), meta=chain(PEAK, ("Japan", "capital", "Tokyo")))


def test_a_fact_is_changed_wherever_it_is_stated_and_the_chain_is_walked_again():
    """There is one other country and one other capital in the split, so that both changes are known by hand."""
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
        {"subject": "Mount Aso", "relation": "country", "object": "Oman", "passage": "W1", "triple": "T1"},
        {"subject": "Oman", "relation": "capital", "object": "Muscat", "passage": None, "triple": "T4"},
    ]
    asked, gold = Asked("Oman", "capital"), ("Tokyo",)
    assert Change.of(first.meta) == Change("Mount Aso", "country", "Japan", "Oman", 0, asked, gold)
    assert Change.of(last.meta).asked == Asked("Japan", "capital")
    assert (first.id, first.question) == ("q", QUESTION.question) and QUESTION.edits == {}


@pytest.mark.parametrize(
    ("more", "task", "reason"),
    [
        ((), {"meta": {}}, "it has no chain of facts"),
        ((), {"meta": {"chain": [{"subject": "Mount Aso"}]}}, "its chain of facts cannot be read"),
        ((), {"answers": ("yes",)}, "its chain does not end in its answer"),
        ((), {"edits": {"a": "b"}}, "its world is changed already"),
        ((triple(9, ("Mount Aso", "country", "Peru")),), {}, REASONS[4]),
        ((), {"question": "Where in Japan is Tokyo?"}, "the question names the fact's object or the answer"),
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
    assert world.change(given) is None and world.change_all([given]) == ([], {reason: 1})


@pytest.mark.parametrize(
    ("text", "old", "new", "works"),
    [
        ("Mount Aso rises in Japan.", "Japan", "Oman", True),
        ("Mount Aso, of Japan, is Japanese.", "Japan", "Oman", True),  # whole names alone are names
        ("Mount Aso lies in North Korea, Korea's north.", "North Korea", "Oman", False),  # a part of the name is left
        ("Mount Aso rises in Japan, not in Oman.", "Japan", "Oman", False),  # the new object stands there already
        ("It rises in Japan.", "Japan", "Oman", True),  # its title names it
        ("Mount Aso rises in Japan.", "Japan", "New Japan", False),  # the old name is in the new one
        ("Mount Aso rises near Aso.", "Aso", "Oman", False),  # the subject's name gives the object away
    ],
)
def test_the_edited_text_says_the_new_fact_and_nothing_of_the_old_one(text, old, new, works):
    fact = ("Mount Aso", "country", old)
    world = World((passage(1, fact, text), passage(2, ("Mount Meru", "country", new), "Meru.")))
    task = CounterfactualWorld(world).change(Task("q", "Which land?", (old,), meta=chain(fact)))
    assert (task is not None) is works
    assert task is None or list(task.edits.values()) == [text.replace(old, new).replace(f"{new}ese", f"{old}ese")]


@cache
def changed_training(every: int = 10) -> list[Task]:
    return BUNDLED.change_all(TRAIN[::every])[0]


@pytest.mark.slow
def test_what_is_dropped_of_the_training_questions_is_what_the_page_says():
    found, dropped = BUNDLED.change_all(TRAIN)
    assert dropped == {"another text names the fact's subject and object": 50} and len(found) == 2950


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_every_changed_training_question_is_valid_by_a_walk_of_its_own(every):
    facts = {(item.subject, item.relation): item for item in bundled_world().statements}
    gold = {task.id: task for task in TRAIN}
    for task in changed_training(every):
        change, links = Change.of(task.meta), chain_of(task)
        assert len(links) == len(gold[task.id].meta["chain"]) and links[0].subject == chain_of(gold[task.id])[0].subject
        for hop, link in enumerate(links):
            known = change.new if link.asked == (change.subject, change.relation) else facts[link.asked].object
            assert link.object == known and (hop == 0 or link.subject == links[hop - 1].object)
        assert task.answers == (links[-1].object,) and links[-1].asked == change.asked
        assert task.answers != gold[task.id].answers == change.answers and links[change.hop].object == change.new
        stated = bundled_world().by_fact[Asked(change.subject, change.relation)]
        assert {item.text for item in stated} == set(task.edits)
        assert all(change.subject in text and change.new in text for text in task.edits.values())


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_a_changed_training_world_never_leaks_into_evaluation_questions(every):
    """No fact, passage or triple of another split is said, changed or walked over."""
    world = bundled_world()
    held_out = [item for item in world.statements if item.split != "train"]
    pairs = {(item.subject, item.object) for item in held_out}
    texts, facts = {item.text for item in held_out}, {item[3:6] for item in held_out}
    for task in changed_training(every):
        change = Change.of(task.meta)
        assert (change.subject, change.new) not in pairs and facts.isdisjoint(chain_of(task))
        assert texts.isdisjoint(task.edits) and texts.isdisjoint(task.edits.values())
    for split in ("validation", "test"):
        questions = {task.question for task in load_tasks("world", split)}
        assert questions.isdisjoint(task.question for task in changed_training(every))


@pytest.mark.slow
@pytest.mark.parametrize("query", ["{1} of {0}", "{0} {1}"])
def test_the_tools_find_every_statement_by_its_own_fact(query):
    """The rule by which changed texts are found: tools search what they hold, and edits leave the subject in it. One
    passage is found by the second wording alone."""
    items = bundled_world().statements
    calls = [ToolCall(item.tool, {"query": query.format(item.subject, item.relation)}) for item in items]
    with Toolbox([LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]) as tools:
        found = tools.run_batch(calls, [tools.session() for _ in calls])
    missed = [
        item.source
        for item, shown in zip(items, found, strict=True)
        if item.text not in {evidence.text for evidence in shown.evidence}
    ]
    assert missed == (["W0031"] if query == "{1} of {0}" else [])


def test_a_changed_rollout_is_shown_the_changed_world_by_the_real_tools():
    with Toolbox([LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]) as tools:
        for task in changed_training()[::20]:
            world, session = bundled_world().changed(Change.of(task.meta)), tools.session(task.edits)
            for fact in task.meta["chain"]:
                query = f"{fact['relation']} of {fact['subject']}"
                shown = [
                    item
                    for name in ("local_search", "knowledge_graph")
                    for item in tools.run_batch([ToolCall(name, {"query": query})], [session])[0].evidence
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


def test_one_seed_is_the_same_to_the_byte_in_another_process_too():
    found = set()
    for seed in "57":
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, env=env, check=True)
        found.add(done.stdout)
    assert len(found) == 1


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(TRAIN), min_size=10, max_size=20, unique_by=lambda task: task.id), st.integers(0, 99))
def test_two_seeds_or_turns_differ_and_the_company_of_a_question_does_not_matter(tasks, seed):
    world = CounterfactualWorld(bundled_world(), seed)
    made = [world.change(task) for task in tasks]
    assert made == [world.change(task) for task in reversed(tasks)][::-1]
    assert made != [world.change(task, 1) for task in tasks]
    other = CounterfactualWorld(bundled_world(), seed + 1)
    assert made != [other.change(task) for task in tasks]


CORPUS = [
    Evidence("Konrad Wolf was the son of Friedrich Wolf.", "Konrad Wolf", source="p1"),
    Evidence("Friedrich Wolf, born in Neuwied, wrote plays in Moscow.", "Friedrich Wolf (writer)", source="p2"),
    Evidence("Anna Seghers was born in Mainz.", "Anna Seghers", source="p3"),
    Evidence("Her son Peter was born in Paris.", "Peter", source="p4"),
]


def two_wiki(*triples: tuple[str, str, str]) -> Task:
    meta = {"evidence_triples": [list(fact) for fact in triples], "type": "compositional"}
    return Task(triples[0][0], "Where was his father born?", (triples[-1][2],), (), ("Titles",), meta)


def test_a_2wiki_question_is_changed_by_its_triples():
    """At the last hop Neuwied can become Mainz; at the first, Friedrich Wolf cannot become anyone: no other father."""
    asked = two_wiki(("Konrad Wolf", "father", "Friedrich Wolf"), ("Friedrich Wolf", "place of birth", "Neuwied"))
    other = two_wiki(("Anna Seghers", "place of birth", "Mainz"))
    world = CounterfactualWorld.annotated([asked, other], CORPUS)
    task = world.changed(asked)
    assert task.answers == ("Mainz",) and task.supporting_titles == ("Konrad Wolf", "Friedrich Wolf (writer)")
    assert task.edits == {CORPUS[1].text: "Friedrich Wolf, born in Mainz, wrote plays in Moscow."}
    assert [tuple(link) for link in chain_of(task)][-1] == ("Friedrich Wolf", "place of birth", "Mainz")
    assert task.meta["type"] == "compositional" and "evidence_triples" not in task.meta
    told = CounterfactualWorld.annotated([asked, other], [*CORPUS, Evidence("Friedrich Wolf left Neuwied.", "Neuwied")])
    assert told.change(asked) is None  # another passage of the corpus gives it away


def test_a_musique_question_is_changed_by_its_decomposition():
    def rows(*given: tuple[str, str, int]) -> list[dict[str, str]]:
        return [
            {"question": question, "answer": answer, "title": CORPUS[at].title, "text": CORPUS[at].text}
            for question, answer, at in given
        ]

    parts = rows(("Who is Konrad Wolf's father?", "Friedrich Wolf", 0), ("#1 >> place of birth", "Neuwied", 1))
    asked = Task("m1", "Where was his father born?", ("Neuwied", "Neuwied am Rhein"), meta={"decomposition": parts})
    other = Task("m2", "?", ("Mainz",), meta={"decomposition": rows(("Anna Seghers >> place of birth", "Mainz", 2))})
    assert chain_of(asked)[1].asked == Asked("Friedrich Wolf", "place of birth")
    task = CounterfactualWorld.annotated([asked, other], CORPUS).changed(asked)
    assert task.answers == ("Mainz",) and list(task.edits) == [CORPUS[1].text]
    assert Change.of(task.meta).answers == asked.answers
    with pytest.raises(DataError, match="none of 1 questions is annotated"):
        CounterfactualWorld.annotated([Task("1", "Who?", ("me",))], CORPUS)


@pytest.mark.slow
@pytest.mark.skipif(not QA.exists(), reason="the question files are not part of this project")
@pytest.mark.parametrize(("name", "least"), [("2wikimultihopqa", 200), ("musique", 40)])
def test_real_questions_are_changed_by_their_annotations(name, least):
    tasks = load_tasks(QA / name / "train.jsonl.gz")
    corpus = [Evidence(row["text"], row["title"], source=row["id"]) for row in read_rows(QA / name / "corpus.jsonl.gz")]
    found, dropped = CounterfactualWorld.annotated(tasks, corpus).change_all(tasks)
    assert len(found) >= least and len(found) + dropped.total() == len(tasks) and set(dropped) <= set(REASONS)
    texts = {item.text for item in corpus}
    for task in found:
        change = Change.of(task.meta)
        assert task.edits and set(task.edits) <= texts and task.answers[0] not in change.answers
        assert all(change.new in text and change.old not in text.split() for text in task.edits.values())
