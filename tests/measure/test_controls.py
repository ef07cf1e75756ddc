"""The same questions without their evidence and in changed worlds: scripted readers, oracles of
memory, and what fools the comparison.
"""

import re

import lab
import msgspec
import pytest

from faithful_search.abstention import declines
from faithful_search.counterfactual import CounterfactualWorld
from faithful_search.inference.base import Sampling
from faithful_search.measure.controls import (
    BLOCKED,
    CHANGED,
    OPEN,
    blocked_by_passages,
    blocked_in_world,
    compare,
    compared,
    control_tasks,
    control_values,
    recalled,
)
from faithful_search.measure.evaluating import evaluate_policy
from faithful_search.measure.origins import SOURCES, Decorated, QueryProvenance
from faithful_search.rewards import Correctness
from faithful_search.rollout import Engine, Limits
from faithful_search.rollout.arguments import EnvironmentArguments
from faithful_search.tasks import Task, load_tasks
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory
from faithful_search.world import bundled_world, chains_of

WORLD = bundled_world()
ONE_HOP = [task for task in load_tasks("world", "validation") if task.meta["hops"] == 1]
ONCE = [
    task
    for task in ONE_HOP
    if WORLD.by_fact[chains_of()[task.question][0]][0].text.count(task.answers[0]) == 1
]
CHANGES = CounterfactualWorld(WORLD)
TASKS = [task for task in ONCE if CHANGES.change(task)][:20]
KNOWN = {task.question: task.answers[0] for task in TASKS}


class Agent(lab.Writing):
    """Answers from memory, and calls a tool for show, where `remembers(question)`; else reads."""

    def __init__(self, remembers):
        super().__init__()
        self.remembers = remembers

    def turn(self, prompt):
        question = next(question for question in KNOWN if question in prompt)
        asked, known = chains_of()[question][-1], self.remembers(question) and KNOWN[question]
        item = WORLD.by_fact[asked][0]
        if "<|im_start|>assistant\n<think>" not in prompt:
            said = f"I know the answer {known}." if known else "Look it up."
            return lab.searching(said, item.tool, f"{asked.relation} of {asked.subject}")
        if known:
            return lab.answering("yes", "E1", "So it is.", known)
        before, _, after = item.text.partition(
            item.object
        )  # what its sentence has in the place of the object
        shown = re.search(
            re.escape(f"]: {before}") + r"(.+?)" + re.escape(after) + r"(\n|$)", prompt
        )
        if shown is None:
            return lab.answering("no", "null", "Nothing.", "unknown")
        return lab.answering("yes", "E1", f"It says {shown[1]}.", shown[1])


@pytest.fixture(scope="module")
def toolbox():
    with EnvironmentArguments().toolbox() as box:
        yield box


def rows(toolbox, remembers, tasks=TASKS, **how):
    engine = Engine(
        Agent(remembers),
        toolbox,
        "pou",
        Limits(turns=4, total_tokens=20000),
        Sampling(temperature=0.0),
    )
    rewards = {
        "exact_match": Correctness(),
        "decorated": Decorated(),
        "answer_first": Decorated("answer_first"),
    }
    return evaluate_policy(engine, tasks, rewards, **how).rows


NAMES = (
    "exact_match",
    "exact_match_changed",
    "follow_rate",
    "memory_share",
    "decorated",
    "answer_first",
)


def test_an_oracle_of_memory_and_a_reader_are_at_the_two_ends(toolbox):
    oracle, reader = rows(toolbox, lambda question: True), rows(toolbox, lambda question: False)
    assert [oracle[name].value for name in NAMES] == [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [reader[name].value for name in NAMES] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert {oracle[name].n for name in NAMES} == {len(TASKS)}

    mixed = rows(toolbox, set(list(KNOWN)[::4]).__contains__)
    for name, expected in (("memory_share", 0.25), ("follow_rate", 0.75), ("decorated", 0.25)):
        assert mixed[name].value == expected
        assert mixed[name].low < expected < mixed[name].high


def test_a_subset_none_and_facts_never_remembered(toolbox):
    marked = [{**task.meta, "remembered": place % 2 == 0} for place, task in enumerate(TASKS)]
    told = [
        msgspec.structs.replace(task, meta=meta) for task, meta in zip(TASKS, marked, strict=True)
    ]
    some = rows(toolbox, lambda question: True, told, controls=5)
    assert some["follow_rate"].n == some["memory_share"].n == 5
    assert some["follow_rate"].not_applicable == 15
    assert (some["exact_match_unremembered"].n, some["exact_match_unremembered"].value) == (10, 1.0)
    none = rows(toolbox, lambda question: True, TASKS[:2], controls=0)
    assert (
        not {"follow_rate", "memory_share", "exact_match_changed", "exact_match_unremembered"}
        & none.keys()
    )


def test_blocked_tasks_lack_what_states_the_chain():
    asked = control_tasks([TASKS[0], TASKS[0], TASKS[1], TASKS[2]], limit=2)
    a, b = TASKS[0].id, TASKS[1].id
    assert [task.id for task in asked] == [
        f"{id}@{kind}" for kind in (CHANGED, BLOCKED) for id in (a, b)
    ]
    assert control_tasks([Task("q", "Who?", ("x",))]) == []
    assert control_tasks(TASKS, 0) == []
    by_source = {item.source: item.text for item in WORLD.statements}
    for task in load_tasks("world", "validation")[::4]:
        blocked = blocked_in_world(task)
        assert {by_source[id] for id in task.supporting_ids} <= blocked.edits.keys()
        pairs = [{fact["subject"], fact["object"]} for fact in task.meta["chain"]]
        assert all(
            {(it := WORLD.stated(text)).subject, it.object} in pairs for text in blocked.edits
        )
    assert blocked_in_world(Task("q", "Who?")) is None


def test_gold_passages_are_found_by_id_title_or_answer():
    corpus = [
        Evidence("The keeper of Belt is Ivo Kast.", "Belt harbour", source="p1"),
        Evidence("Ivo Kastner lives in Corry.", "Corry", source="p2"),
        Evidence("A poem.", "Ivo Kast", source="p3"),
    ]
    tasks = [
        Task("id", "?", ("Ivo Kast",), supporting_ids=("p2",)),
        Task("title", "?", ("x",), supporting_titles=("belt Harbour",)),
        Task("answer", "?", ("Ivo Kast",)),
        Task("closed", "?", ("yes",)),
        Task("lost", "?", ("Ivo Kast",), supporting_ids=("p9",)),
    ]
    found = {id: list(task.edits) for id, task in blocked_by_passages(tasks, corpus).items()}
    assert found == {
        "id": [corpus[1].text],
        "title": [corpus[0].text],
        "answer": [corpus[0].text, corpus[2].text],
    }


def test_a_title_of_signs_alone_names_no_untitled_passage():
    task = Task("band", "?", ("x",), supporting_titles=("!!!",))
    untitled = Evidence("A poem.", source="p1")
    titled = Evidence("A band.", "!!!", source="p2")
    blocked = blocked_by_passages([task], [untitled, titled])
    assert list(blocked["band"].edits) == ["A band."]


def answered(answer, *texts, golds=("Rome",)):
    steps = (Step(call=ToolCall("s"), evidence=tuple(map(Evidence, texts))), Step(answer=answer))
    return Trajectory(steps=steps, answer=answer, answers=golds, question="Where?")


@pytest.mark.parametrize(
    ("given", "texts", "before", "expected"),
    [
        ("Rome", (), "Oslo", True),  # the gold answer, though the gold evidence is gone
        ("rome.", ("Rome is old.",), "Rome", True),
        ("Bonn", (), "Bonn", True),  # stale memory: wrong, and the same
        ("Bonn", ("Bonn is a city.",), "Bonn", False),  # a distractor that was read, then and now
        ("Bonn", (), "Oslo", False),
        ("unknown", (), "unknown", False),
        (None, (), None, False),
        (r"It is \boxed{Rome}.", (), "Oslo", True),
        ('{"answer": "Bonn"}', (), "Exact Answer: Bonn\nConfidence: 90%", True),
        (r"\boxed{unknown}", (), r"\boxed{unknown}", False),
        (r"He moved. \boxed{unknown}", (), r"He moved. \boxed{unknown}", False),
    ],
)
def test_what_counts_as_given_all_the_same(given, texts, before, expected):
    assert recalled(answered(given, *texts), answered(before)) is expected


def test_follow_rate_and_memory_share_by_hand():
    """Four questions: one follows, one holds to its stale memory, one fails, one has no changed
    world.

    Follow 1 of 2, right in changed worlds 1 of 3; blocked: one of the two that answered is given
    all the same.
    """
    rollouts = [answered("Rome"), answered("Bonn"), answered("unknown"), answered("Rome")]
    changed = [answered(said, golds=("Lima",)) for said in ("Lima", "Bonn", "Oslo")]
    blocked = [answered(said) for said in ("unknown", "Bonn", "Rome")]
    ids = [f"{id}@{condition}" for condition in (CHANGED, BLOCKED) for id in "abc"]
    controls = [
        msgspec.structs.replace(own, id=id) for id, own in zip(ids, changed + blocked, strict=True)
    ]
    assert control_values(rollouts, list("abcd"), controls) == {
        "follow_rate": [1.0, 0.0, None, None],
        "exact_match_changed": [1.0, 0.0, 0.0, None],
        "memory_share": [0.0, 1.0, None, None],
    }
    assert control_values(rollouts, list("abcd"), []) == {}
    assert (
        compared(CHANGED, answered("Rome", golds=("Lima",)), answered("Rome"))["follow_rate"] == 0.0
    )


FORMS = (r"So it is \boxed{%s}.", '{"answer": "%s"}', "Exact Answer: %s\nConfidence: 90%%")


@pytest.mark.parametrize("form", FORMS)
def test_controls_compare_what_an_answer_says(form):
    rollout = answered(form % "Lima", golds=("Lima",))
    values = compared(CHANGED, rollout, answered("Lima", golds=("Rome",)))
    assert values == {"same_answer": 1.0, "follow_rate": 1.0, "exact_match_changed": 1.0}


@pytest.mark.parametrize("form", FORMS)
def test_a_study_counts_an_answer_in_a_form_as_the_bare_one(form):
    rows = []
    for answer in ("Rome", "unknown"):
        bare, own = answered(answer, "Rome is old."), answered(form % answer, "Rome is old.")
        names = [msgspec.structs.replace(each, id="a@open") for each in (bare, own)]
        rows.append([compare([each]).rows[OPEN] for each in names])
    assert all(bare == own for bare, own in rows)


# --- decorated


def episode(*steps, question="Where is the tower?"):
    return Trajectory(steps=steps, question=question, answer=steps[-1].answer, dialect="pou")


def search(think, *texts, query="tower", **more):
    return Step(think, ToolCall("s", {"query": query}), tuple(map(Evidence, texts)), **more)


PARIS, BREAD = "The tower stands in Paris.", "Bread is baked at night."
LEE = search("x", "The mayor is Ann Lee.", query="mayor of Paris")
END = Step(think="Paris.", answer="Paris")
SHOWN = [
    (episode(search("Look.", PARIS), Step(think="It says Paris.", answer="Paris")), 0.0, 0.0),
    (episode(search("I know the answer Rome.", PARIS), Step(think="So it is Rome.", answer="Rome")), 1.0, 1.0),
    # what was said before and is only repeated is not taken up, even when the evidence holds it too
    (episode(search("I know the answer Paris.", PARIS), Step(think="So, Paris.", answer="Paris")), 1.0, 1.0),
    # a search that failed, and another one: the first is left out
    (episode(search("Look.", BREAD), search("No.", PARIS, helpful=False), END), 0.0, 0.0),
    (episode(search("Look.", BREAD), search("Yes.", PARIS, helpful=True), END), 0.5, 0.0),
    (episode(search("Rome.", BREAD), search("Rome.", BREAD), search("Rome.", BREAD), Step(answer="Rome")), 1.0, 1.0),
    # nothing came back, and it answers all the same; or says that it does not know
    (episode(search("Look."), Step(think="So.", answer="Rome")), 1.0, 0.0),
    (episode(search("Look."), Step(think="Nothing.", answer="unknown")), None, None),
    (episode(search("Look.", BREAD), Step(think="Hm.")), None, None),
    # what cannot be traced by its name
    (episode(search("Look.", BREAD), Step(answer="yes")), None, None),
    (episode(search("Look.", BREAD), Step(answer="Rome"), question="Rome or Bonn?"), None, None),
    (episode(search("Look.", PARIS), Step(think="In Paris, not in Bonn.", answer="no")), 0.0, None),
    # a name that opens its sentence in the evidence
    (episode(search("Look.", "Paris is its place."), search("x", BREAD, query="land of Paris")), 0.0, None),
    # a lower-cased answer, a bridge, parallel calls, no call
    (episode(search("Look.", "It is paid in baht."), Step(answer="baht")), 0.0, 0.0),
    (episode(search("Look.", PARIS), LEE, Step(answer="Ann Lee")), 0.0, 0.0),
    (episode(search("Look.", PARIS), search(None, BREAD, same_turn=True), Step(answer="Paris")), 0.5, 0.0),
    (episode(Step(think="So.", answer="Rome")), None, 1.0),
    (Trajectory(), None, None),
]  # fmt: skip


@pytest.mark.parametrize(("shown", "calls", "first"), SHOWN)
def test_decorated_by_hand(shown, calls, first):
    score = Decorated().score(shown)
    assert (score.value, Decorated("answer_first").score(shown).value) == (calls, first)
    assert not score.value or score.why.startswith(
        f"step {score.parts['steps'][0]}: nothing later depends"
    )


def test_titles_that_begin_like_a_refusal_are_answers():
    titles = (
        "Unknown Pleasures",
        "Nothing Compares 2 U",
        "None of the above",
        "No",
        "0",
        "Nantes",
        "Unna",
    )
    refusals = (
        "The answer is not known.",
        "I could not find it",
        "N/A",
        "No evidence found.",
        "?",
        " ",
        None,
    )
    assert not any(map(declines, titles))
    assert all(map(declines, refusals))


# --- query provenance


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((search("Look.", query="The tower of Orlen"),), [1.0, 0.0, 0.0]),
        (
            (search("I think of Teska.", query="teska river"),),
            [0.0, 0.0, 1.0],
        ),  # lower-cased, but named in the thought
        (
            (
                search("Look.", "It was built by Ann Lee.", query="Orlen"),
                search("x", query="Ann Lee"),
            ),
            [0.5, 0.5, 0.0],
        ),
        # what a thought brings up and evidence confirms remains the agent's own
        (
            (search("Teska?", "Orlen lies at Teska.", query="Orlen"), search("x", query="Teska")),
            [0.5, 0.0, 0.5],
        ),
        # parallel calls do not know of each other's results
        (
            (search("x", "Ann Lee.", query="Orlen"), search(None, query="Ann Lee", same_turn=True)),
            [0.5, 0.0, 0.5],
        ),
        ((search("x", query="Orlen Teska"),), [0.5, 0.0, 0.5]),
        # without names all words that say something; a paraphrase is then the agent's own
        ((search("x", query="height of the tower"),), [0.5, 0.0, 0.5]),
        ((search("x", query="and the"),), [None] * 3),
        ((Step(answer="x"),), [None] * 3),
    ],
)
def test_query_provenance_by_hand(steps, expected):
    trajectory = Trajectory(steps=steps, question="Who built the tower at Orlen?")
    scores = [QueryProvenance(source).score(trajectory) for source in SOURCES]
    assert [score.value for score in scores] == expected
    assert not expected[2] or scores[2].why.startswith("first in the agent's own words: ")
