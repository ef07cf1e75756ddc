"""Expert episodes: planned from annotation, played with the real tools, filtered; and their names swapped."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import SHARED

from faithful_search import dialects
from faithful_search.coldstart import experts
from faithful_search.coldstart.experts import Habits
from faithful_search.coldstart.filtering import UNKNOWN, accept, reject
from faithful_search.coldstart.plans import (
    GRAPH,
    SEARCH,
    Hop,
    Plan,
    plain,
    plan_2wiki,
    plan_all,
    plan_hotpotqa,
    plan_musique,
    plan_world,
    planner_for,
    usual_tools,
)
from faithful_search.coldstart.sft import held_out_facts
from faithful_search.coldstart.swap_names import NameSwapper
from faithful_search.errors import DataError
from faithful_search.names import NameFinder
from faithful_search.tasks import Task, load_tasks, read_rows, world_file
from faithful_search.tools import KnowledgeGraph, LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

CALM = Habits(0, 0, 0, 0, 0)
POU = dialects.load("pou")
PASSAGES = [
    {"id": "p1", "title": "Zodiac (film)", "text": "Zodiac is a film directed by David Fincher."},
    {"id": "p2", "title": "David Fincher", "text": "David Fincher was born in Denver."},
    {"id": "p3", "title": "Seven Samurai", "text": "Seven Samurai is a film by Akira Kurosawa."},
    {"id": "p4", "title": "Mount Elbert", "text": "Mount Elbert is a mountain that hikers like."},
]
TRIPLES = [{"id": "t1", "subject": "Denver", "relation": "river", "object": "South Platte"}]
DIRECTOR = Hop(
    "the director of Zodiac",
    ((SEARCH, "director of Zodiac"), (GRAPH, "director of Zodiac"), (SEARCH, "Zodiac director")),
    "The director of Zodiac is David Fincher.",
    subject="Zodiac",
    gold_ids=frozenset({"p1"}),
)
BORN = Hop(
    "the birth city of David Fincher",
    ((SEARCH, "birth city of David Fincher"), (GRAPH, "birth city of David Fincher")),
    "The birth city of David Fincher is Denver.",
    subject="David Fincher",
    gold_ids=frozenset({"p2"}),
)
PLAN = Plan("q1", "Where was the director of Zodiac born?", ("Denver",), (DIRECTOR, BORN))


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox([LocalSearch.from_corpus(PASSAGES), KnowledgeGraph.from_triples(TRIPLES)]) as box:
        yield box


@pytest.fixture(scope="module")
def world_toolbox():
    with Toolbox([LocalSearch.from_corpus("world"), KnowledgeGraph.from_triples("world")]) as box:
        yield box


@pytest.fixture(scope="module")
def world_episodes(world_toolbox):
    tasks = load_tasks("world", limit=400)
    plans, _ = plan_all(tasks, planner_for("world", tasks))
    return run_experts(plans, world_toolbox, POU, seed=3)


def run_experts(*given, **named):
    return [played.episode for played in experts.run_experts(*given, **named)]


def run_expert(plan, *given):
    return run_experts([plan], *given)[0]


def gold_ids(episode, hop_number, step):
    hop = PLAN.hops[hop_number]
    return tuple(item.id for item in hop.gold(episode.steps[step].evidence))


# Plans


def test_world_plan_tries_the_tool_that_usually_holds_the_relation():
    def fact(passage, triple):
        return {"subject": "A", "relation": "river", "object": "B", "passage": passage, "triple": triple}

    def task(number, *facts):
        return Task(str(number), "What is the river of A?", ("B",), meta={"chain": list(facts)})

    tasks = [task(0, fact("W1", None)), task(1, fact(None, "T1")), task(2, fact("W3", "T2"), fact(None, "T9"))]
    assert usual_tools(tasks) == {"river": GRAPH}
    hop = planner_for("world", tasks)(tasks[2]).hops[0]
    assert hop.queries == ((GRAPH, "river of A"), (SEARCH, "river of A"), (GRAPH, "A river"))
    assert hop.gold_ids == {"W3", "T2"} and hop.statement == "The river of A is B."
    assert plan_world(tasks[2]).hops[0].queries[0][0] == SEARCH


def test_musique_substitutes_earlier_answers_in_both_forms():
    rows = [
        {"question": "Zodiac >> director", "answer": "David Fincher", "title": "Zodiac", "text": ""},
        {"question": "where was #1 born", "answer": "Denver", "title": "David Fincher", "text": ""},
    ]
    first, second = plan_musique(Task("m", "q", ("Denver",), meta={"decomposition": rows})).hops
    assert (first.need, first.queries[0]) == ("the director of Zodiac", (SEARCH, "director of Zodiac"))
    assert second.queries[0] == (SEARCH, "Where was David Fincher born?")
    assert second.statement == "Where was David Fincher born? Denver."
    assert second.object == "Denver" and second.gold_titles == {"David Fincher"}
    with pytest.raises(DataError, match="later"):
        plan_musique(Task("m", "q", ("Denver",), meta={"decomposition": rows[1:]}))


def test_2wiki_recognises_the_title_with_its_qualifier():
    task = Task(
        "w",
        "q",
        ("Denver",),
        supporting_titles=("Zodiac (film)", "David Fincher"),
        meta={"evidence_triples": [["Zodiac", "director", "David Fincher"]]},
    )
    hop = plan_2wiki(task).hops[0]
    assert hop.gold([Evidence("A film by David Fincher.", "Zodiac (film)")])
    assert not hop.gold([Evidence("A film by David Finchers.", "Zodiac (film)")])
    assert not hop.gold([Evidence("A film by David Fincher.", "Seven")])


def test_unplannable_tasks_are_counted_by_reason_and_all_of_them_is_an_error():
    good = Task("1", "q", ("B",), meta={"chain": [{"subject": "A", "relation": "river", "object": "B"}]})
    plans, skipped = plan_all(
        [good, Task("2", "q", ("B",)), Task("3", "q", ("B",), meta={"chain": [{"object": "B"}]})], plan_world
    )
    assert [plan.id for plan in plans] == ["1"]
    assert skipped == {"no chain": 1, "an annotation without subject and relation": 1}
    with pytest.raises(DataError, match="1 no evidence_triples"):
        plan_all([good], plan_2wiki)
    with pytest.raises(DataError, match="hotpotqa"):
        planner_for("nq")


# Playing them


def test_a_calm_episode_says_calls_and_cites_what_it_should(toolbox):
    episode = run_expert(PLAN, toolbox, POU, CALM)
    first, second, last = episode.steps
    assert first.call.name == SEARCH and first.call.arguments == {"query": "director of Zodiac"}
    assert first.helpful is None and "the director of Zodiac" in first.think
    assert second.helpful is True and second.refs == gold_ids(episode, 0, 0) != ()
    assert second.think.startswith("The director of Zodiac is David Fincher.")
    assert last.refs == gold_ids(episode, 1, 1) and last.answer == "Denver"
    assert list(episode.evidence) == [f"E{n}" for n in range(1, len(episode.evidence) + 1)]
    assert episode.evidence[second.refs[0]].source == "p1"
    assert reject(episode) is None
    assert episode.text == POU.render(episode)
    start, end = second.spans["think"]
    assert episode.text[start:end] == second.think


def test_same_seed_same_episodes_whatever_the_batches(toolbox):
    plans = [replace(PLAN, id=str(number)) for number in range(40)]
    habits = Habits(dropped=0.0, blind=0.0)  # what takes a fact's place comes from the other episodes of the batch
    once = run_experts(plans, toolbox, POU, habits, seed=5)
    assert once == run_experts(plans, toolbox, POU, habits, seed=5, concurrency=7)
    assert once != run_experts(plans, toolbox, POU, habits, seed=6)


def test_wrong_tool_first_is_judged_unhelpful_and_the_other_is_tried(toolbox):
    episode = run_expert(PLAN, toolbox, POU, replace(CALM, wrong_tool=1.0))
    assert [step.call.name for step in episode.steps if step.call] == [GRAPH, SEARCH, GRAPH, SEARCH]
    assert episode.steps[0].note and episode.steps[1].helpful is False and episode.steps[1].refs == ()
    assert "I try local_search." in episode.steps[1].think
    assert episode.answer == "Denver" and reject(episode) is None


def test_dropped_gold_is_not_cited_and_searched_again(toolbox):
    plans = [replace(PLAN, id=str(number)) for number in range(60)]
    episodes = run_experts(plans, toolbox, POU, replace(CALM, dropped=0.5))
    lost = [e for e in episodes if e.steps[1].helpful is False]
    assert lost and len(lost) < len(episodes)
    for episode in lost:
        assert not DIRECTOR.gold(episode.steps[0].evidence)
    found = [e for e in lost if not reject(e)]
    assert found and all(len(e.steps) >= 4 for e in found)


def test_a_blind_episode_is_blanked_or_misses_the_fact_and_ends_in_unknown(toolbox):
    plans = [replace(PLAN, id=str(number)) for number in range(40)]
    episodes = run_experts(plans, toolbox, POU, replace(CALM, blind=1.0))
    assert all(episode.answer == UNKNOWN and episode.steps[-1].helpful is False for episode in episodes)
    assert all(reject(episode) is None for episode in episodes)
    assert reject(msgspec.structs.replace(episodes[0], answer="Denver")) == "wrong_answer"
    pairs = [pair for episode in episodes for pair in pairwise(episode.steps)]
    unhelpful = [before.evidence for before, after in pairs if before.evidence and after.helpful is False]
    blank = [evidence for evidence in unhelpful if all(item.title == item.text for item in evidence)]
    assert 0.25 < len(blank) / len(unhelpful) < 0.85  # the others hold sentences that do not say it
    assert not any(item.source or item.url for evidence in blank for item in evidence)


def test_shuffled_evidence_keeps_ids_in_order_and_moves_the_gold(toolbox):
    episodes = run_experts([replace(PLAN, id=str(n)) for n in range(60)], toolbox, POU, replace(CALM, shuffled=1.0))
    assert all(
        [e.id for e in ep.evidence.values()] == [f"E{n}" for n in range(1, len(ep.evidence) + 1)] for ep in episodes
    )
    places = {[e.source for e in ep.steps[1].evidence].index("p2") for ep in episodes}
    assert places == {0, 1}
    assert all(ep.evidence[ep.steps[2].refs[0]].source == "p2" for ep in episodes)


def test_nothing_found_gives_up_and_is_rejected(toolbox):
    plan = replace(PLAN, hops=(replace(DIRECTOR, gold_ids=frozenset({"elsewhere"})),))
    episode = run_expert(plan, toolbox, POU, CALM)
    assert episode.answer == UNKNOWN and len(episode.steps) == 4
    assert episode.steps[2].call.arguments["query"] == "Zodiac director"
    assert reject(episode) == "not_found"


def test_a_subject_that_nobody_named_is_not_queried(toolbox):
    episode = run_expert(replace(PLAN, hops=(BORN, DIRECTOR)), toolbox, POU, CALM)
    assert not episode.steps and reject(episode) == "not_named"
    assert reject(run_expert(replace(PLAN, question="Of what?"), toolbox, POU, CALM)) == "not_named"


def test_hotpotqa_quotes_the_evidence(toolbox):
    task = Task(
        "h", "Where was the director of Zodiac born?", ("Denver",), supporting_titles=("David Fincher", "Zodiac (film)")
    )
    plan = plan_hotpotqa(task)
    assert [hop.subject for hop in plan.hops] == ["Zodiac (film)", "David Fincher"]  # the question names the first
    episode = run_expert(plan, toolbox, POU, CALM)
    assert episode.steps[1].think.startswith("Zodiac is a film directed by David Fincher.")
    assert episode.steps[2].think.startswith("David Fincher was born in Denver.")
    assert reject(episode) is None


# The filter


def test_reject_names_each_reason(toolbox):
    good = run_expert(PLAN, toolbox, POU, CALM)

    def changed(number, **fields):
        steps = list(good.steps)
        steps[number] = msgspec.structs.replace(steps[number], **fields)
        return msgspec.structs.replace(good, steps=tuple(steps), answer=steps[-1].answer)

    assert reject(changed(1, think=None)) == "format"
    assert reject(changed(1, refs=("E9",))) == "citation"
    assert reject(changed(1, helpful=False)) == "citation"
    assert reject(changed(2, answer="Boulder")) == "wrong_answer"
    assert reject(changed(2, helpful=False, refs=())) == "ungrounded"
    assert reject(good, min_steps=4) == "too_short" and reject(good, max_steps=2) == "too_long"
    kept, reasons = accept([good, changed(1, refs=("E9",)), changed(1, think=None), changed(2, refs=("E1",))])
    assert kept == [good] and reasons == {"citation": 2, "format": 1}


SEARCH_R1 = dialects.load("search_r1")


@pytest.fixture(scope="module")
def one_tool():
    with Toolbox([LocalSearch.from_corpus(PASSAGES, name="search")]) as box:
        yield box


def test_a_dialect_that_can_only_search_calls_its_one_tool_by_its_own_name(one_tool):
    episode = run_expert(PLAN, one_tool, SEARCH_R1, replace(CALM, wrong_tool=1.0))  # there is no other one
    first, second, last = episode.steps
    assert [step.call.name for step in (first, second)] == ["search", "search"]
    assert first.call.arguments == {"query": "director of Zodiac"}
    assert second.think.startswith("The director of Zodiac is David Fincher.")
    assert (last.answer, first.helpful, last.refs) == ("Denver", None, ())
    assert "<search>director of Zodiac</search>" in SEARCH_R1.render(episode)


def test_without_verdicts_an_answer_need_only_stand_in_evidence_that_was_seen(one_tool):
    episode = run_expert(PLAN, one_tool, SEARCH_R1, CALM)
    assert reject(episode) is None
    elsewhere = tuple(msgspec.structs.replace(step, evidence=()) for step in episode.steps)
    assert reject(msgspec.structs.replace(episode, steps=elsewhere)) == "ungrounded"
    assert reject(msgspec.structs.replace(episode, answer="Boulder")) == "wrong_answer"
    for both, reason in (("David Fincher and Denver", None), ("David Fincher and Boulder", "ungrounded")):
        assert reject(msgspec.structs.replace(episode, answer=both, answers=(both,))) == reason


def test_what_is_found_is_left_unsaid_as_often_as_asked(one_tool):
    silent = run_expert(PLAN, one_tool, SEARCH_R1, replace(CALM, unsaid=1.0))
    thoughts = [step.think for step in silent.steps]
    assert not any("David Fincher is" in thought or "is David Fincher" in thought for thought in thoughts)
    assert thoughts[-1] == "I can answer now." and "the birth city of David Fincher" in thoughts[1]
    assert reject(silent) is None  # right, and written as it should be
    plans = [replace(PLAN, id=f"q{number}") for number in range(200)]
    some = run_experts(plans, one_tool, SEARCH_R1, replace(CALM, unsaid=0.4))
    unsaid = sum(episode.steps[-1].think == "I can answer now." for episode in some)
    assert 50 <= unsaid <= 110


# The bundled world


def test_most_world_questions_become_valid_episodes(world_episodes):
    kept, reasons = accept(world_episodes, min_steps=2)
    assert len(kept) > 0.9 * len(world_episodes)
    assert set(reasons) <= {"not_found"}


def test_world_episodes_hold_every_kind_of_mishap(world_episodes):
    steps = [step for episode in world_episodes for step in episode.steps]
    tools = {step.call.name for step in steps if step.call}
    first = [
        a.evidence[0].id in b.refs for e in world_episodes for a, b in zip(e.steps, e.steps[1:], strict=False) if b.refs
    ]
    assert tools == {SEARCH, GRAPH}
    assert any(step.call and not step.evidence for step in steps)
    assert any(item.text == item.title for step in steps for item in step.evidence)
    assert 0.4 < sum(first) / len(first) < 0.85


# Real questions, where they are at hand

QA = SHARED / "data" / "qa"


@pytest.mark.skipif(not QA.exists(), reason="the question files are not part of this project")
@pytest.mark.parametrize(
    ("kind", "folder", "share"),
    [("musique", "musique", 0.6), ("2wiki", "2wikimultihopqa", 0.7), ("hotpotqa", "hotpotqa", 0.5)],
)
def test_real_questions_become_grounded_episodes(kind, folder, share):
    tasks = load_tasks(QA / folder / "train.jsonl.gz", limit=200)
    plans, skipped = plan_all(tasks, planner_for(kind, tasks))
    assert not skipped
    with Toolbox([LocalSearch.from_corpus(QA / folder / "corpus.jsonl.gz", top_k=5)]) as box:
        episodes = run_experts(plans, box, POU)
    kept, reasons = accept(episodes)
    assert len(kept) > share * len(tasks), reasons
    assert not {"format", "citation", "wrong_answer"} & set(reasons)
    titles = {task.id: set(task.supporting_titles) for task in tasks}
    for episode in kept:
        cited = {episode.evidence[ref].title for step in episode.steps for ref in step.refs}
        assert cited and {plain(title) for title in cited} <= {plain(title) for title in titles[episode.id]}


# Swapping names

NAMES = {"Zodiac": "film", "Seven": "film", "Seven Samurai": "film", "David Fincher": "person", "Ann Lee": "person"}
NAMES |= {"Denver": "city", "Paris": "city", "Rome": "city"}


def test_finder_takes_whole_names_longest_first():
    finder = NameFinder(NAMES)
    assert finder.find("Seven Samurai, Seven; Sevens. Denver's") == ("Seven Samurai", "Seven", "Denver")
    assert (
        finder.sub(lambda name: f"<{name}>", "not xDenver or Denver2, only “Denver”")
        == "not xDenver or Denver2, only “<Denver>”"
    )
    assert NameFinder({"9½ Weeks": "film", "'68": "film"}).find("In '68 came 9½ Weeks") == ("'68", "9½ Weeks")
    with pytest.raises(DataError, match=r"\?!"):
        NameFinder({"?!": "film"})


@given(
    st.lists(st.sampled_from([*NAMES, "Samurai", "the", "'s ", " ", ", ", "x", "é", "\n"]), max_size=12).map("".join)
)
def test_finder_keeps_the_text(text):
    finder = NameFinder(NAMES)
    assert "".join(finder.segments(text)) == text == finder.sub(lambda name: name, text)


def test_a_swap_is_consistent_injective_and_within_types(toolbox):
    episode = run_expert(PLAN, toolbox, POU, CALM)
    for seed in range(20):
        swapped = NameSwapper(NAMES).swap(episode, random.Random(seed))
        before, after = _all_text(episode), _all_text(swapped)
        finder = NameFinder(NAMES)
        image: dict[str, str] = {}
        for old, new in zip(finder.find(before), finder.find(after), strict=True):
            assert image.setdefault(old, new) == new and NAMES[old] == NAMES[new]
        assert len(set(image.values())) == len(image) == 3
        assert swapped.answers == (image["Denver"],) == (swapped.answer,)
        assert swapped.steps[0].call == ToolCall(SEARCH, {"query": f"director of {image['Zodiac']}"})
        assert reject(swapped) is None and swapped.text == "" and swapped.steps[1].spans == {}


def _all_text(episode):
    parts = [episode.question]
    for step in episode.steps:
        parts += [step.think, json.dumps(step.call.arguments) if step.call else step.answer]
        parts += [f"{item.title} | {item.text}" for item in step.evidence]
    return "\n".join(parts)


def test_a_forbidden_fact_is_drawn_again():
    names = {"Ann": "person", "Bea": "person", "Rome": "city", "Paris": "city"}
    step = Step(evidence=(Evidence("Ann lives in Rome.", "Ann", "E1"),))
    episode = Trajectory((step,), "Where does Ann live?")
    allowed = NameSwapper(names, [("Ann", "Paris"), ("Bea", "Rome"), ("Bea", "Paris"), ("Rome", "Cairo")])
    assert {allowed.swap(episode, random.Random(seed)).evidence["E1"].text for seed in range(10)} == {
        "Ann lives in Rome."
    }
    assert allowed.leaks(Trajectory((Step(evidence=(Evidence("at home in Paris", "Bea", "E1"),)),)))
    assert allowed.leaks(Trajectory((Step(evidence=(Evidence("There is a Cairo near Rome.", "", "E1"),)),)))
    assert not allowed.leaks(Trajectory((Step(evidence=(Evidence("Bea likes the Parisian kind.", "", "E1"),)),)))
    with pytest.raises(DataError, match="held-out fact"):
        NameSwapper(names, [(a, b) for a in ("Ann", "Bea") for b in ("Rome", "Paris")]).swap(episode, random.Random(0))


def test_swapped_world_episodes_state_no_held_out_fact(world_episodes):
    held_out = [
        row
        for kind in ("passages", "triples")
        for row in read_rows(world_file(f"{kind}.jsonl.gz"))
        if row["split"] != "train"
    ]
    facts = held_out_facts([task for split in ("validation", "test") for task in load_tasks("world", split)], held_out)
    assert len(facts) > 500
    names = json.loads(world_file("names.json").read_text(encoding="utf-8"))
    swapper, rng = NameSwapper(names, facts), random.Random(0)
    kept = accept(world_episodes, min_steps=2)[0][:150]
    swapped = [swapper.swap(episode, rng) for episode in kept]
    texts = {row["text"] for row in held_out if "text" in row}
    assert not any(item.text in texts for episode in swapped for item in episode.evidence.values())
    assert not any(map(swapper.leaks, swapped))
    assert all(reject(episode, min_steps=2) is None for episode in swapped)
    assert sum(a.question != b.question for a, b in zip(kept, swapped, strict=True)) > 140
