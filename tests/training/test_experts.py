"""Expert episodes: planned from annotation, played with the real tools, filtered; and their names
swapped.
"""

import json
import random
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, strategies as st
from paths import SHARED

from faithful_search import dialects
from faithful_search.bundled import world_file
from faithful_search.coldstart import experts, plans
from faithful_search.coldstart.experts import Habits
from faithful_search.coldstart.filtering import accept, reject
from faithful_search.coldstart.swap_names import NameSwapper, world_part, world_swapper
from faithful_search.errors import DataError
from faithful_search.tasks import Task, load_tasks
from faithful_search.text import NameFinder, plain
from faithful_search.tools import KnowledgeGraph, LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

CALM = Habits(0, 0, 0, 0, 0)
POU, SEARCH_R1 = dialects.load("pou"), dialects.load("search_r1")
PASSAGES = [
    {"id": "p1", "title": "Zodiac (film)", "text": "Zodiac is a film directed by David Fincher."},
    {"id": "p2", "title": "David Fincher", "text": "David Fincher was born in Denver."},
    {"id": "p3", "title": "Seven Samurai", "text": "Seven Samurai is a film by Akira Kurosawa."},
    {"id": "p4", "title": "Mount Elbert", "text": "Mount Elbert is a mountain that hikers like."},
]
TRIPLES = [{"id": "t1", "subject": "Denver", "relation": "river", "object": "South Platte"}]
DIRECTOR = plans.Hop(
    "the director of Zodiac",
    (
        (plans.SEARCH, "director of Zodiac"),
        (plans.GRAPH, "director of Zodiac"),
        (plans.SEARCH, "Zodiac director"),
    ),
    "The director of Zodiac is David Fincher.",
    subject="Zodiac",
    gold_ids=frozenset({"p1"}),
)
BORN = plans.Hop(
    "the birth city of David Fincher",
    ((plans.SEARCH, "birth city of David Fincher"), (plans.GRAPH, "birth city of David Fincher")),
    "The birth city of David Fincher is Denver.",
    subject="David Fincher",
    gold_ids=frozenset({"p2"}),
)
PLAN = plans.Plan("q1", "Where was the director of Zodiac born?", ("Denver",), (DIRECTOR, BORN))


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox([LocalSearch.from_corpus(PASSAGES), KnowledgeGraph.from_triples(TRIPLES)]) as box:
        yield box


@pytest.fixture(scope="module")
def one_tool():
    with Toolbox([LocalSearch.from_corpus(PASSAGES, name="search")]) as box:
        yield box


def run_experts(*given, **named):
    return [played.episode for played in experts.run_experts(*given, **named)]


def run_expert(plan, *given):
    return run_experts([plan], *given)[0]


def copies(count):
    return [replace(PLAN, id=str(number)) for number in range(count)]


# Plans


def test_world_plan_tries_the_relations_usual_tool_first():
    def fact(passage, triple):
        return {
            "subject": "A",
            "relation": "river",
            "object": "B",
            "passage": passage,
            "triple": triple,
        }

    def task(number, *facts):
        return Task(str(number), "What is the river of A?", ("B",), meta={"chain": list(facts)})

    tasks = [
        task(0, fact("W1", None)),
        task(1, fact(None, "T1")),
        task(2, fact("W3", "T2"), fact(None, "T9")),
    ]
    assert plans.usual_tools(tasks) == {"river": plans.GRAPH}
    hop = plans.planner_for("world", tasks)(tasks[2])[0]
    assert hop.queries == (
        (plans.GRAPH, "river of A"),
        (plans.SEARCH, "river of A"),
        (plans.GRAPH, "A river"),
    )
    assert hop.gold_ids == {"W3", "T2"}
    assert hop.statement == "The river of A is B."
    assert plans.plan_world(tasks[2])[0].queries[0][0] == plans.SEARCH


def test_musique_substitutes_earlier_answers_in_both_forms():
    rows = [
        {
            "question": "Zodiac >> director",
            "answer": "David Fincher",
            "title": "Zodiac",
            "text": "",
        },
        {"question": "where was #1 born", "answer": "Denver", "title": "David Fincher", "text": ""},
    ]
    first, second = plans.plan_musique(Task("m", "q", ("Denver",), meta={"decomposition": rows}))
    assert (first.need, first.queries[0]) == (
        "the director of Zodiac",
        (plans.SEARCH, "director of Zodiac"),
    )
    assert second.queries[0] == (plans.SEARCH, "Where was David Fincher born?")
    assert second.statement == "Where was David Fincher born? Denver."
    assert second.object == "Denver"
    assert second.gold_titles == {"David Fincher"}
    with pytest.raises(DataError, match="later"):
        plans.plan_musique(Task("m", "q", ("Denver",), meta={"decomposition": rows[1:]}))


def test_unplannable_tasks_are_counted_by_reason():
    good = Task(
        "1", "q", ("B",), meta={"chain": [{"subject": "A", "relation": "river", "object": "B"}]}
    )
    half = {"chain": [{"object": "B"}]}
    tasks = [
        good,
        Task("2", "q", ("B",)),
        Task("3", "q", ("B",), meta=half),
        Task("4", "q", ("",), meta=good.meta),
    ]
    made, skipped = plans.plan_all(tasks, plans.plan_world)
    assert [plan.id for plan in made] == ["1"]
    assert skipped == {
        "no chain": 1,
        "an annotation without subject and relation": 1,
        "no answer": 1,
    }
    with pytest.raises(DataError, match="1 no evidence_triples"):
        plans.plan_all([good], plans.planner_for("2wiki"))
    with pytest.raises(DataError, match="hotpotqa"):
        plans.planner_for("nq")


# Playing them


def test_a_calm_episode_says_calls_and_cites_what_it_should(toolbox):
    episode = run_expert(PLAN, toolbox, POU, CALM)
    first, second, last = episode.steps
    assert (first.call.name, first.call.arguments) == (
        plans.SEARCH,
        {"query": "director of Zodiac"},
    )
    assert first.helpful is None
    assert "the director of Zodiac" in first.think
    assert second.helpful is last.helpful is True
    assert last.answer == "Denver"
    assert second.think.startswith("The director of Zodiac is David Fincher.")
    assert [[episode.evidence[ref].source for ref in step.refs] for step in (second, last)] == [
        ["p1"],
        ["p2"],
    ]
    assert list(episode.evidence) == [f"E{n}" for n in range(1, len(episode.evidence) + 1)]
    assert reject(episode) is None
    assert episode.text == POU.render(episode)


def test_same_seed_same_episodes_whatever_the_batches(toolbox):
    habits = Habits(
        dropped=0.0, blind=0.0
    )  # what takes a fact's place comes from the other episodes of the batch
    once = run_experts(copies(40), toolbox, POU, habits, seed=5)
    assert once == run_experts(copies(40), toolbox, POU, habits, seed=5, concurrency=7)
    assert once != run_experts(copies(40), toolbox, POU, habits, seed=6)


def test_after_a_wrong_tool_the_other_is_tried(toolbox):
    episode = run_expert(PLAN, toolbox, POU, replace(CALM, wrong_tool=1.0))
    assert [step.call.name for step in episode.steps if step.call] == [
        plans.GRAPH,
        plans.SEARCH,
    ] * 2
    assert episode.steps[0].note
    assert episode.steps[1].helpful is False
    assert episode.steps[1].refs == ()
    assert "I try local_search." in episode.steps[1].think
    assert episode.answer == "Denver"
    assert reject(episode) is None


def test_dropped_gold_is_not_cited_and_searched_again(toolbox):
    episodes = run_experts(copies(60), toolbox, POU, replace(CALM, dropped=0.5))
    lost = [e for e in episodes if e.steps[1].helpful is False]
    assert lost
    assert len(lost) < len(episodes)
    assert not any(DIRECTOR.gold(e.steps[0].evidence) for e in lost)
    found = [e for e in lost if not reject(e)]
    assert found
    assert all(len(e.steps) >= 4 for e in found)


def test_a_blind_episode_ends_in_unknown(toolbox):
    episodes = run_experts(copies(40), toolbox, POU, replace(CALM, blind=1.0))
    assert all(
        episode.answer == plans.UNKNOWN and episode.steps[-1].helpful is False
        for episode in episodes
    )
    assert all(reject(episode) is None for episode in episodes)
    assert reject(msgspec.structs.replace(episodes[0], answer="Denver")) == "wrong_answer"
    pairs = [pair for episode in episodes for pair in pairwise(episode.steps)]
    unhelpful = [
        before.evidence for before, after in pairs if before.evidence and after.helpful is False
    ]
    blank = [
        evidence for evidence in unhelpful if all(item.title == item.text for item in evidence)
    ]
    assert 0.25 < len(blank) / len(unhelpful) < 0.85  # the others hold sentences that do not say it
    assert not any(item.source for evidence in blank for item in evidence)


def test_shuffled_evidence_keeps_ids_in_order_and_moves_the_gold(toolbox):
    episodes = run_experts(copies(60), toolbox, POU, replace(CALM, shuffled=1.0))
    for episode in episodes:
        assert [item.id for item in episode.evidence.values()] == [
            f"E{n + 1}" for n in range(len(episode.evidence))
        ]
        assert episode.evidence[episode.steps[2].refs[0]].source == "p2"
    assert {[item.source for item in e.steps[1].evidence].index("p2") for e in episodes} == {0, 1}


def test_what_is_not_found_is_given_up_and_rejected(toolbox):
    elsewhere = replace(DIRECTOR, gold_ids=frozenset({"elsewhere"}))
    episode = run_expert(replace(PLAN, hops=(elsewhere,)), toolbox, POU, CALM)
    assert episode.answer == plans.UNKNOWN
    assert len(episode.steps) == 4
    assert reject(episode) == "not_found"
    assert episode.steps[2].call.arguments["query"] == "Zodiac director"
    episode = run_expert(replace(PLAN, hops=(BORN, DIRECTOR)), toolbox, POU, CALM)
    assert not episode.steps
    assert reject(episode) == "not_named"
    assert reject(run_expert(replace(PLAN, question="Of what?"), toolbox, POU, CALM)) == "not_named"


@pytest.fixture(scope="module")
def search_alone():
    with Toolbox([LocalSearch.from_corpus(PASSAGES)]) as box:
        yield box


OF_THE_GRAPH = replace(BORN, queries=((plans.GRAPH, "birth city of David Fincher"),))
WITHOUT_A_TOOL = replace(PLAN, hops=(DIRECTOR, OF_THE_GRAPH))


def test_a_hop_without_a_tool_is_given_up(search_alone):
    episode = run_expert(WITHOUT_A_TOOL, search_alone, POU, CALM)
    assert reject(episode) == "not_found"
    assert episode.answer == plans.UNKNOWN
    last = episode.steps[1]
    assert last.helpful is True
    [cited] = last.refs
    assert episode.evidence[cited].source == "p1"


def test_a_first_hop_without_a_tool_has_no_verdict(search_alone):
    graph_hop = replace(DIRECTOR, queries=((plans.GRAPH, "director of Zodiac"),))
    episode = run_expert(replace(PLAN, hops=(graph_hop, BORN)), search_alone, POU, CALM)
    assert reject(episode) == "not_found"
    assert episode.steps[0].helpful is None


def test_twins_go_on_only_where_a_tool_can(search_alone):
    habits = replace(CALM, twins=1.0, foreign=1.0, drills=1.0, dropped=0.5)
    many_plans = [replace(WITHOUT_A_TOOL, id=f"q{number}") for number in range(20)]
    all_played = experts.run_experts(many_plans, search_alone, POU, habits)
    twins = [twin for played in all_played for twin in played.twins]
    assert twins
    assert {twin.steps[-1].helpful for twin in twins} == {False}


def test_hotpotqa_quotes_the_evidence(toolbox):
    titles = ("David Fincher", "Zodiac (film)")
    [plan], _ = plans.plan_all(
        [Task("h", PLAN.question, ("Denver",), supporting_titles=titles)], plans.plan_hotpotqa
    )
    assert [hop.subject for hop in plan.hops] == [
        "Zodiac (film)",
        "David Fincher",
    ]  # the question names the first
    episode = run_expert(plan, toolbox, POU, CALM)
    assert episode.steps[1].think.startswith("Zodiac is a film directed by David Fincher.")
    assert episode.steps[2].think.startswith("David Fincher was born in Denver.")
    assert reject(episode) is None


def test_a_search_only_dialect_calls_its_one_tool(
    one_tool,
):
    episode = run_expert(
        PLAN, one_tool, SEARCH_R1, replace(CALM, wrong_tool=1.0)
    )  # there is no other one
    first, second, last = episode.steps
    assert [step.call.name for step in (first, second)] == ["search", "search"]
    assert second.think.startswith("The director of Zodiac is David Fincher.")
    assert (last.answer, first.helpful, last.refs) == ("Denver", None, ())
    some = run_experts(copies(100), one_tool, SEARCH_R1, replace(CALM, unsaid=0.4))
    silent = [episode for episode in some if episode.steps[-1].think == "I can answer now."]
    assert 25 <= len(silent) <= 55  # right, and written as it should be
    assert reject(silent[0]) is None


# The filter


def test_reject_names_each_reason(toolbox, one_tool):
    good = run_expert(PLAN, toolbox, POU, CALM)

    def changed(number, **fields):
        steps = list(good.steps)
        steps[number] = msgspec.structs.replace(steps[number], **fields)
        return msgspec.structs.replace(good, steps=tuple(steps), answer=steps[-1].answer)

    bad = [
        changed(1, refs=("E9",)),
        changed(1, think=None),
        changed(2, refs=("E1",)),
        changed(2, answer="Boulder"),
    ]
    kept, reasons = accept([good, *bad, changed(2, helpful=False, refs=())])
    assert kept == [good]
    assert reasons == {
        "citation": 2,
        "format": 1,
        "wrong_answer": 1,
        "ungrounded": 1,
    }
    # without verdicts an answer need only stand in evidence that was seen
    plain_one = run_expert(PLAN, one_tool, SEARCH_R1, CALM)
    elsewhere = tuple(msgspec.structs.replace(step, evidence=()) for step in plain_one.steps)
    assert reject(msgspec.structs.replace(plain_one, steps=elsewhere)) == "ungrounded"
    for both, reason in (
        ("David Fincher and Denver", None),
        ("David Fincher and Boulder", "ungrounded"),
    ):
        assert reject(msgspec.structs.replace(plain_one, answer=both, answers=(both,))) == reason


QA = SHARED / "data" / "qa"


@pytest.mark.skipif(not QA.exists(), reason="the question files are not part of this project")
@pytest.mark.parametrize(
    ("kind", "folder", "share"),
    [("musique", "musique", 0.6), ("2wiki", "2wikimultihopqa", 0.7), ("hotpotqa", "hotpotqa", 0.5)],
)
def test_real_questions_become_grounded_episodes(kind, folder, share):
    tasks = load_tasks(QA / folder / "train.jsonl.gz", limit=80)
    made, skipped = plans.plan_all(tasks, plans.planner_for(kind, tasks))
    assert not skipped
    with Toolbox([LocalSearch.from_corpus(QA / folder / "corpus.jsonl.gz", top_k=5)]) as box:
        kept, reasons = accept(run_experts(made, box, POU))
    assert len(kept) > share * len(tasks), reasons
    assert not {"format", "citation", "wrong_answer"} & set(reasons)
    titles = {task.id: set(map(plain, task.supporting_titles)) for task in tasks}
    for episode in kept:
        cited = {plain(episode.evidence[ref].title) for step in episode.steps for ref in step.refs}
        assert cited
        assert cited <= titles[episode.id]


# Swapping names

NAMES = {
    "Zodiac": "film",
    "Seven": "film",
    "Seven Samurai": "film",
    "David Fincher": "person",
    "Ann Lee": "person",
}
NAMES |= {"Denver": "city", "Paris": "city", "Rome": "city"}


def test_finder_takes_whole_names_longest_first():
    found = NameFinder(NAMES).find(
        "Seven Samurai, Seven; Sevens. Denver's, not xDenver or Denver2, only “Denver”"
    )
    assert found == ("Seven Samurai", "Seven", "Denver", "Denver")
    assert NameFinder({"9½ Weeks": "film", "'68": "film"}).find("In '68 came 9½ Weeks") == (
        "'68",
        "9½ Weeks",
    )
    with pytest.raises(DataError, match=r"\?!"):
        NameFinder({"?!": "film"})


PIECES = [*NAMES, "Samurai", "the", "'s ", " ", ", ", "x", "é", "\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_finder_keeps_the_text(text):
    finder = NameFinder(NAMES)
    assert "".join(finder.segments(text)) == text == finder.sub(lambda name: name, text)


def test_a_swap_is_consistent_injective_and_within_types(toolbox):
    episode, finder = run_expert(PLAN, toolbox, POU, CALM), NameFinder(NAMES)
    for seed in range(20):
        swapped = NameSwapper(NAMES).swap(episode, random.Random(seed))
        image: dict[str, str] = {}
        for old, new in zip(
            finder.find(all_text(episode)), finder.find(all_text(swapped)), strict=True
        ):
            assert image.setdefault(old, new) == new
            assert NAMES[old] == NAMES[new]
        assert len(set(image.values())) == len(image) == 3
        assert swapped.answers == (image["Denver"],) == (swapped.answer,)
        assert swapped.steps[0].call == ToolCall(
            plans.SEARCH, {"query": f"director of {image['Zodiac']}"}
        )
        assert reject(swapped) is None
        assert swapped.text == ""
        assert swapped.steps[1].spans == {}


def all_text(episode):
    parts = [episode.question]
    for step in episode.steps:
        parts += [step.think, json.dumps(step.call.arguments) if step.call else step.answer]
        parts += [f"{item.title} | {item.text}" for item in step.evidence]
    return "\n".join(parts)


def test_a_forbidden_fact_is_drawn_again():
    names = {"Ann": "person", "Bea": "person", "Rome": "city", "Paris": "city"}

    def told(text, title=""):
        return Trajectory((Step(evidence=(Evidence(text, title, "E1"),)),), "Where does Ann live?")

    episode = told("Ann lives in Rome.", "Ann")
    allowed = NameSwapper(
        names,
        [("Ann", "Paris"), ("Bea", "Rome"), ("Bea", "Paris"), ("Rome", "Cairo"), ("Peru", "Rome")],
    )
    drawn = {allowed.swap(episode, random.Random(seed)).evidence["E1"].text for seed in range(10)}
    assert drawn == {"Ann lives in Rome."}
    assert allowed.leaks(told("at home in Paris", "Bea"))
    assert allowed.leaks(told("There is a Cairo near Rome."))
    assert allowed.leaks(told("Rome is the capital of Peru."))
    assert not allowed.leaks(told("Bea likes the Parisian kind."))
    with pytest.raises(DataError, match="held-out fact"):
        NameSwapper(names, [(a, b) for a in ("Ann", "Bea") for b in ("Rome", "Paris")]).swap(
            episode, random.Random(0)
        )


def test_world_questions_become_valid_episodes():
    tasks = load_tasks("world", limit=150)
    made, _ = plans.plan_all(tasks, plans.planner_for("world", tasks))
    with Toolbox([LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]) as box:
        played = run_experts(made, box, POU, seed=3)
    kept, reasons = accept(played, min_steps=2)
    assert len(kept) > 0.9 * len(played)
    assert set(reasons) <= {"not_found"}
    assert {step.call.name for episode in played for step in episode.steps if step.call} == {
        plans.SEARCH,
        plans.GRAPH,
    }
    pairs = [pair for episode in played for pair in pairwise(episode.steps)]
    first = [before.evidence[0].id in after.refs for before, after in pairs if after.refs]
    assert 0.4 < sum(first) / len(first) < 0.85
    swapper, rng = (
        world_swapper(json.loads(world_file("names.json").read_text(encoding="utf-8"))),
        random.Random(0),
    )
    swapped = [swapper.swap(episode, rng) for episode in kept]
    texts = {row["text"] for row in world_part("passages", train=False)}
    assert not any(item.text in texts for episode in swapped for item in episode.evidence.values())
    assert not any(map(swapper.leaks, swapped))
    assert all(reject(episode, min_steps=2) is None for episode in swapped)
    assert sum(a.question != b.question for a, b in zip(kept, swapped, strict=True)) > 0.9 * len(
        kept
    )
