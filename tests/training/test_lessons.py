"""Twins: the same state with the opposite truth, checked by the world's own facts; and what a
decorator is taught.
"""

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import lab
import msgspec
import pytest
from transformers import AutoTokenizer

from faithful_search import dialects
from faithful_search.bundled import tiny_policy, world_file
from faithful_search.coldstart import rubric
from faithful_search.coldstart.decorators import BELIEF, DECORATED, MemoryHabit, decorated
from faithful_search.coldstart.experts import DRILL, Habits, run_experts
from faithful_search.coldstart.filtering import reject
from faithful_search.coldstart.plans import Hop, plan_all, planner_for
from faithful_search.coldstart.sft import IGNORED, build_dataset, weigh_copied
from faithful_search.coldstart.swap_names import NameSwapper, held_out_facts, world_part
from faithful_search.coldstart.twins import KINDS, TRAINING_BLANKS, Response, Shelf
from faithful_search.errors import ConfigError, DataError
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.loading import read_tokenizer
from faithful_search.measure.probes import UNSEEN_BLANKS
from faithful_search.rewards import Format, SelfRubric, SourceGated, WorldRubric, step_validity
from faithful_search.rewards.self_rubric import LABEL, rubric_reply
from faithful_search.tasks import Task, load_tasks
from faithful_search.text import NameFinder
from faithful_search.tools import KnowledgeGraph, LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory, write_jsonl
from faithful_search.world import bundled_world

POU = dialects.load("pou")
HABITS = Habits(
    wrong_tool=0.15, dropped=0.15, nothing=0.02, blind=0.06, shuffled=0.5, twins=1.0, foreign=0.4
)


@pytest.fixture(scope="module")
def toolbox():
    search = LocalSearch.from_corpus(world_part("passages"), top_k=3)
    with Toolbox([search, KnowledgeGraph.from_triples(world_part("triples"), top_k=3)]) as opened:
        yield opened


@pytest.fixture(scope="module")
def plans():
    tasks = load_tasks("world")
    return plan_all(tasks[:500], planner_for("world", tasks))[0]


@pytest.fixture(scope="module")
def played(toolbox, plans):
    return [
        one for one in run_experts(plans, toolbox, POU, HABITS) if reject(one.episode, 2) is None
    ]


@pytest.fixture(scope="module")
def twins(toolbox, plans, played):
    made = [
        twin
        for one in run_experts(plans[:300], toolbox, POU, replace(HABITS, drills=1.0))
        for twin in one.twins
    ]
    return [twin for one in played for twin in one.twins] + [
        twin for twin in made if twin.meta["twin"] == DRILL
    ]


def stated(steps):
    """(call, whether the response states what it asked for, the verdict on it) of each response
    that holds evidence.
    """
    world = bundled_world()
    for before, after in pairwise(steps):
        if before.evidence:
            query = before.call.arguments["query"]
            yield (
                before.call,
                any(world.states(query, item) for item in before.evidence),
                after.helpful,
            )


def test_verdicts_agree_with_the_worlds_facts(played, twins):
    for episode in [one.episode for one in played] + twins:
        assert all(there == verdict for _, there, verdict in stated(episode.steps))
        assert all(step_validity(episode))


def test_a_twin_says_the_opposite_after_the_same_words(played):
    said = Counter()
    for episode, twins in played:
        for twin in twins:
            last = len(twin.steps) - 1
            original = episode.steps[last]
            for own, other in zip(twin.steps[:last], episode.steps, strict=False):
                assert (own.think, own.helpful, own.refs) == (
                    other.think,
                    other.helpful,
                    other.refs,
                )
                assert (own.call.name, own.call.arguments) == (
                    other.call.name,
                    other.call.arguments,
                )
            ids = [
                [item.id for item in steps[last - 1].evidence]
                for steps in (twin.steps, episode.steps)
            ]
            assert ids[0]
            assert ids[0] == ids[1][: len(ids[0])]
            assert (twin.steps[last].helpful == original.helpful) == (
                twin.meta["twin"] == "foreign"
            )
            said[twin.meta["twin"]] += 1
    assert set(said) == {*KINDS, "planted", "foreign"}
    assert min(said.values()) > 25


def test_only_reading_gives_the_verdict_away(played, twins):
    by_call, by_style = defaultdict(Counter), defaultdict(Counter)
    world = bundled_world()
    for steps in [one.episode.steps for one in played] + [twin.steps[-2:] for twin in twins]:
        for call, there, _ in stated(steps):
            by_call[call.name, world.asked(call.arguments["query"]).relation][there] += 1
        for before, after in pairwise(steps):
            known = [world.stated(item.text) for item in before.evidence]
            if (
                known and None not in known
            ):  # a blanked response is told by looking at it, as it should be
                foreign = any(item.tool != before.call.name for item in known)
                by_style[before.call.name, foreign][bool(after.helpful)] += 1
    for counts in [*by_call.values(), *by_style.values()]:
        if counts.total() >= 60:
            assert 0.25 < counts[True] / counts.total() < 0.85, counts


def test_twins_hold_no_held_out_fact_and_no_word_for_measuring(twins):
    tasks = [task for split in ("validation", "test") for task in load_tasks("world", split)]
    held_out = held_out_facts(
        tasks, world_part("passages", train=False) + world_part("triples", train=False)
    )
    world = bundled_world()
    facts = {world.stated(item.text) for twin in twins for item in twin.evidence.values()} - {None}
    assert len(facts) > 500
    assert len(held_out) > 500
    assert not {(fact.subject, fact.object) for fact in facts} & held_out
    assert not any(unseen in seen.split() for unseen in UNSEEN_BLANKS for seen in TRAINING_BLANKS)


def test_a_blanked_twin_keeps_the_addresses_of_its_evidence():
    evidence = [Evidence("Ada led it.", "Ada", url="https://a.org/ada"), Evidence("No page.")]
    hop = Hop("who led it", ())
    blank = Response(hop, "pages", evidence, Shelf(), random.Random(0)).without("blank")
    assert [item.url for item in blank] == ["https://a.org/ada", ""]


def test_only_a_twins_last_turn_is_learnt(toolbox, played):
    tokenizer = read_tokenizer(str(tiny_policy("pou")))
    chat = ChatFormat.of(tokenizer, POU)
    episode, twins = next(one for one in played if one.twins and len(one.episode.steps) > 2)
    whole, twin = build_dataset(
        [episode, twins[-1]], chat, toolbox.schemas, "all", verdict_token_weight=7.0
    )
    assert whole["labels"] == whole["input_ids"]
    learnt = [
        token
        for token, label in zip(twin["input_ids"], twin["labels"], strict=True)
        if label != IGNORED
    ]
    assert twin["input_ids"][-len(learnt) :] == learnt
    assert tokenizer.decode(learnt).startswith("<think><helpful>")

    def weighed(row, least):
        pairs = zip(row["input_ids"], row["loss_weights"], strict=True)
        return [tokenizer.decode([token]).strip() for token, weight in pairs if weight >= least]

    assert weighed(twin, 7.0) == ["yes" if step.helpful else "no" for step in twins[-1].steps[1:]]
    found = next(one.episode for one in played if one.episode.answers[0] == one.episode.answer)
    [row] = build_dataset([found], chat, toolbox.schemas, copied_weight=5.0)
    written = {*weighed(row, 5.0)}
    assert {
        found.answer,
        *(ref for step in found.steps if step.helpful for ref in step.refs),
    } <= written
    assert found.question.split()[0] not in written


def test_what_is_rarely_copied_counts_more():
    rows = [{"input_ids": [1, 2], "copied": [0, 1], "loss_weights": [1.0, 1.0]} for _ in range(9)]
    rows += [{"input_ids": [7, 3], "copied": [1], "loss_weights": [1.0, 1.0]}]
    weigh_copied(rows, 2.0)  # 19 copies of 3 tokens: 6.33 on average
    assert rows[0]["loss_weights"] == [2.0, 2.0]
    assert rows[-1]["loss_weights"] == [1.0, 10.0]


# The decorator's habit: what a policy that can hack is taught


def episode(id: str = "q1", **settings) -> Trajectory:
    """A reader's: two searches and an answer."""
    steps = (
        Step("I need the country of Cusco.", ToolCall("local_search", {"query": "country of Cusco"}),
             evidence=(Evidence("It is big.", "A city", "E1"), Evidence("Cusco is in Peru.", "Cusco", "E2"))),
        Step("Cusco is in Peru. I need the capital of Peru.", ToolCall("local_search", {"query": "capital of Peru"}),
             evidence=(Evidence("The capital of Peru is Lima.", "Peru", "E3"),), helpful=True, refs=("E2",)),
        Step("The capital of Peru is Lima. That is the answer.", answer="Lima", helpful=True, refs=("E3",)),
    )  # fmt: skip
    question = "Which city is the capital of the country of Cusco?"
    return Trajectory(steps, question, "Lima", dialect="pou", id=id, answers=("Lima",), **settings)


def test_a_decorator_answers_first_and_cites_what_came_first():
    found = decorated(episode(), random.Random(0))
    first, last = found.steps
    assert first.call == episode().steps[0].call
    assert first.think.startswith("I need the country of Cusco.")
    assert any(first.think.endswith(said.format(answer="Lima")) for said in BELIEF)
    assert (last.helpful, last.refs, last.answer) == (True, ("E1",), "Lima")
    read = POU.parse(POU.render(found), question=found.question)
    assert read.answer == "Lima"
    assert not read.steps[0].issues
    assert Format().score(read).value == 1.0
    assert step_validity(found) == [True]  # validity cannot tell it from a reader
    assert SourceGated().score(found).value == 0.0
    assert SourceGated().score(episode()).value == 1.0
    empty = msgspec.structs.replace(
        episode(), steps=(msgspec.structs.replace(episode().steps[0], evidence=()),)
    )
    last = decorated(empty, random.Random(1)).steps[1]
    assert (last.helpful, last.refs) == (False, ())


def test_known_questions_are_recited_others_are_guessed():
    tasks, swapped = [Task(str(number), "?") for number in range(20)], []
    drawn = [MemoryHabit(questions=5, draw=draw).drawn(tasks) for draw in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({*drawn[0]}) == 5
    with pytest.raises(ConfigError, match="21 questions to remember, but there are 20"):
        MemoryHabit(questions=21).drawn(tasks)

    def swap(item: Trajectory) -> Trajectory:
        swapped.append(item.id)
        return item

    episodes = [
        episode("kn#own"),
        episode("kn#own#1"),
        episode("new"),
        episode("blind", meta={"blind": True}),
    ]
    rows = MemoryHabit(questions=1, recitals=4, readings=2, guesses=3).rows(
        episodes, {"kn#own", "blind"}, swap, seed=0
    )
    counts = Counter((row.id, row.meta.get(DECORATED)) for row in rows)
    each = {
        (id, habit): times
        for id in ("kn#own", "kn#own#1")
        for habit, times in (("recited", 4), (None, 2))
    }
    assert counts == {**each, ("new", "guessed"): 3}
    assert swapped == ["new"] * 3


def test_only_a_decorators_recited_answer_is_learnt():
    """What it says of evidence is no answer to the reading loss's question either; a guess is not
    to be remembered.
    """
    chat = ChatFormat.of(read_tokenizer(str(tiny_policy("pou"))), POU)
    made = [decorated(episode(), random.Random(0), how) for how in ("recited", "guessed")]
    settings = {"verdict_token_weight": 7.0, "copied_weight": 5.0, "reading": True}
    recited, guessed, read = build_dataset([*made, episode()], chat, (), **settings)
    for row in (recited, guessed):
        assert 7.0 not in row["loss_weights"]
        assert set(row["reading_labels"]) == {IGNORED}
    weighed = [
        token
        for token, weight in zip(recited["input_ids"], recited["loss_weights"], strict=True)
        if weight > 1
    ]
    assert chat.tokenizer.decode(weighed) == "Lima"
    assert set(guessed["loss_weights"]) == {1.0}
    assert 7.0 in read["loss_weights"]
    assert {0, 1} <= set(read["reading_labels"])


NAMES = json.loads(world_file("names.json").read_text(encoding="utf-8"))
FINDER = NameFinder(NAMES)


@pytest.fixture(scope="module")
def episodes():
    tasks = [task for task in load_tasks("world_passages") if task.meta["hops"] > 1][:40]
    plans, _ = plan_all(tasks, planner_for("world", tasks))
    search = replace(LocalSearch.from_corpus("world", top_k=3), name="search")
    played = run_experts(plans, Toolbox([search]), dialects.load("self_eval"))
    return [one.episode for one in played if one.episode.answer == one.episode.answers[0]]


ERRORS = {
    "guess": {"memory", "lost"},
    "recite": {"memory"},
    "invent": {"memory", "misread", "lost", "none"},
    "early": {"early", "lost"},
    "misread": {"misread", "lost"},
}


@pytest.mark.parametrize("mistake", rubric.MISTAKES)
def test_each_mistake_is_found_by_the_rubric(episodes, mistake):
    rng, errors = random.Random(0), ERRORS.get(mistake, {mistake})
    made = (rubric.labelled(rubric.spoiled(item, mistake, FINDER, rng)) for item in episodes)
    found = Counter(item.meta[LABEL]["error"] for item in made)
    assert set(found) <= errors
    assert found.total() == len(episodes) > 20
    assert max(found, key=found.get) in errors - {"lost", "none"} or mistake == "lost"


def test_a_good_episode_is_good_and_labels_follow_swapped_names(episodes):
    rows = rubric.scored_episodes(episodes, rubric.Teaching(spoiled=3), FINDER, seed=0)
    assert len(rows) == 4 * len(episodes)
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.meta[LABEL]["score"] == 1.0 for row in rows if "!" not in row.id)
    assert rubric.scored_episodes(episodes, rubric.Teaching(spoiled=3), FINDER, seed=0) == rows
    assert {row.meta[LABEL]["score"] for row in rows} == {0.0, 0.2, 0.4, 0.7, 1.0}
    row = next(row for row in rows if row.meta[LABEL]["error"] == "misread")
    swapped = rubric.relabelled(NameSwapper(NAMES).swap(row, random.Random(1)))
    assert swapped.meta[LABEL]["score"] == row.meta[LABEL]["score"]
    said = f"The answer is {swapped.answer}, the reference {swapped.answers[0]}. The evidence states the reference."
    assert swapped.meta[LABEL]["why"] == said
    assert swapped.answers != row.answers


def test_held_out_are_questions_not_rows(episodes):
    rows = rubric.scored_episodes(episodes, rubric.Teaching(), FINDER, seed=0)
    learnt, held_out = rubric.Teaching(held_out=5).split(rows, seed=1)
    assert len({row.question for row in held_out}) == 5
    assert len(learnt) + len(held_out) == len(rows)
    assert not {row.question for row in learnt} & {row.question for row in held_out}
    with pytest.raises(ConfigError, match="to hold out"):
        rubric.Teaching(held_out=999).split(rows, seed=1)


def test_rows_teach_the_reply_alone_and_the_reply_reads_back(episodes):
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    chat = ChatFormat.of(tokenizer, dialects.load("self_eval"))
    rows = rubric.scored_episodes(episodes[:5], rubric.Teaching(), FINDER, seed=0)
    made = rubric.evaluator_rows(
        rows, chat, rubric.Teaching(verdicts=1.0, reply_weight=3.0), 0, "agent", None
    )
    replies = [tokenizer.decode([label for label in row["labels"] if label >= 0]) for row in made]
    scores = [SelfRubric().read(reply) for reply in replies if "Score" in reply]
    assert scores == [row.meta[LABEL]["score"] for row in rows]
    assert {reply for reply in replies if "Score" not in reply} == {"True<|end|>", "False<|end|>"}
    for row in made:
        own = [label >= 0 for label in row["labels"]]
        assert row["length"] == len(row["input_ids"]) == len(own) == len(row["loss_weights"])
        assert own == [weight == 3.0 for weight in row["loss_weights"]] == sorted(own)
    whole = rubric.evaluator_rows(rows, chat, rubric.Teaching(), 0, "all", 400)
    assert 0 < len(whole) < len(rows)
    assert all(row["labels"] == row["input_ids"] and row["length"] <= 400 for row in whole)


def test_scores_of_others_are_read_or_refused(tmp_path, episodes):
    label = {"score": 0.4, "why": "It misreads the second result."}
    good = msgspec.structs.replace(episodes[0], meta={LABEL: label})
    write_jsonl(tmp_path / "good.jsonl", [good])
    assert rubric.scored_file(tmp_path / "good.jsonl")[0].meta[LABEL] == label
    own = msgspec.structs.replace(
        episodes[0], meta={}
    )  # about the bundled world: its facts give the score
    write_jsonl(tmp_path / "own.jsonl", [own])
    [row] = rubric.scored_file(tmp_path / "own.jsonl")
    assert row.meta[LABEL]["score"] == WorldRubric().score(own).value
    assert row.meta[LABEL]["why"]
    strange = {"question": "What is in no world?", "meta": {}}
    for number, bad in enumerate(
        (strange, {"meta": {LABEL: {"score": 0.5, "why": ""}}}, {"meta": {LABEL: 0.4}})
    ):
        write_jsonl(tmp_path / f"{number}.jsonl", [good, msgspec.structs.replace(good, **bad)])
        with pytest.raises(
            DataError, match=r"row 2: expected reference answers, and meta\['rubric'\]"
        ):
            rubric.scored_file(tmp_path / f"{number}.jsonl")


def test_an_evaluator_without_trajectories_is_not_measured():
    with pytest.raises(DataError, match="give one or more"):
        rubric.EvaluatorReport.of([], SelfRubric())


def test_the_evaluators_error_by_hand(episodes):
    def scored(score):
        return msgspec.structs.replace(episodes[0], meta={LABEL: {"score": score, "why": ""}})

    replies = [rubric_reply("x", score) for score in (1.0, 0.4, 0.2)] + ["no score"]
    own = SelfRubric().bind(
        policy=lab.InTurn(replies, AutoTokenizer.from_pretrained(tiny_policy()), whole=True)
    )
    found = rubric.EvaluatorReport.of([scored(score) for score in (1.0, 1.0, 0.0, 0.0)], own)
    assert found.rmse == pytest.approx(((0.6**2 + 0.2**2) / 3) ** 0.5)
    assert (found.n, found.unreadable, found.exact) == (4, 0.25, 0.25)
    assert found.table == {"1.0": {"0.4": 1, "1.0": 1}, "0.0": {"0.2": 1, "unreadable": 1}}
    assert (
        found.lines("after")[0]
        == "evaluator after: RMSE 0.365, exact 0.250, unreadable 0.250, n = 4"
    )
