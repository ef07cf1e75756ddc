"""Teaching a policy to score: mistakes and what they deserve, the rows to learn from, and the evaluator's error."""

import json
import random
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from transformers import AutoTokenizer

from faithful_search import dialects
from faithful_search.bundled import tiny_policy, world_file
from faithful_search.coldstart.experts import run_experts
from faithful_search.coldstart.plans import plan_all, planner_for
from faithful_search.coldstart.rubric import (
    LABEL,
    MISTAKES,
    EvaluatorReport,
    Teaching,
    evaluator_rows,
    labelled,
    relabelled,
    scored_episodes,
    scored_file,
    spoiled,
)
from faithful_search.coldstart.swap_names import NameSwapper
from faithful_search.errors import ConfigError, DataError
from faithful_search.inference.base import Completion
from faithful_search.inference.chat import ChatFormat
from faithful_search.rewards import SelfRubric, WorldRubric
from faithful_search.rewards.self_rubric import rubric_reply
from faithful_search.tasks import load_tasks
from faithful_search.text import NameFinder
from faithful_search.tools import Toolbox
from faithful_search.tools.local_search import LocalSearch
from faithful_search.trajectory import write_jsonl

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


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found_by_the_rubric(episodes, mistake):
    rng, errors = random.Random(0), ERRORS.get(mistake, {mistake})
    found = Counter(labelled(spoiled(item, mistake, FINDER, rng)).meta[LABEL]["error"] for item in episodes)
    assert set(found) <= errors and found.total() == len(episodes) > 20
    assert max(found, key=found.get) in errors - {"lost", "none"} or mistake == "lost"


def test_a_good_episode_is_good_and_labels_follow_swapped_names(episodes):
    rows = scored_episodes(episodes, Teaching(spoiled=3), FINDER, seed=0)
    assert len(rows) == 4 * len(episodes) and len({row.id for row in rows}) == len(rows)
    assert all(row.meta[LABEL]["score"] == 1.0 for row in rows if "!" not in row.id)
    assert scored_episodes(episodes, Teaching(spoiled=3), FINDER, seed=0) == rows
    assert {row.meta[LABEL]["score"] for row in rows} == {0.0, 0.2, 0.4, 0.7, 1.0}
    row = next(row for row in rows if row.meta[LABEL]["error"] == "misread")
    swapped = relabelled(NameSwapper(NAMES).swap(row, random.Random(1)))
    assert swapped.meta[LABEL]["score"] == row.meta[LABEL]["score"]
    said = f"The answer is {swapped.answer}, the reference {swapped.answers[0]}. The evidence states the reference."
    assert swapped.meta[LABEL]["why"] == said
    assert swapped.answers != row.answers


def test_held_out_are_questions_not_rows(episodes):
    rows = scored_episodes(episodes, Teaching(), FINDER, seed=0)
    learnt, held_out = Teaching(held_out=5).split(rows, seed=1)
    assert len({row.question for row in held_out}) == 5 and len(learnt) + len(held_out) == len(rows)
    assert not {row.question for row in learnt} & {row.question for row in held_out}
    with pytest.raises(ConfigError, match="to hold out"):
        Teaching(held_out=999).split(rows, seed=1)


def test_rows_teach_the_reply_alone_and_the_reply_reads_back(episodes):
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy())
    chat = ChatFormat.of(tokenizer, dialects.load("self_eval"))
    rows = scored_episodes(episodes[:5], Teaching(), FINDER, seed=0)
    made = evaluator_rows(rows, chat, Teaching(verdicts=1.0, reply_weight=3.0), 0, "agent", None)
    replies = [tokenizer.decode([label for label in row["labels"] if label >= 0]) for row in made]
    scores = [SelfRubric().read(reply) for reply in replies if "Score" in reply]
    assert scores == [row.meta[LABEL]["score"] for row in rows]
    assert {reply for reply in replies if "Score" not in reply} == {"True<|end|>", "False<|end|>"}
    for row in made:
        own = [label >= 0 for label in row["labels"]]
        assert row["length"] == len(row["input_ids"]) == len(own) == len(row["loss_weights"])
        assert own == [weight == 3.0 for weight in row["loss_weights"]] == sorted(own)
    whole = evaluator_rows(rows, chat, Teaching(), 0, "all", 400)
    assert 0 < len(whole) < len(rows)
    assert all(row["labels"] == row["input_ids"] and row["length"] <= 400 for row in whole)


def test_scores_of_others_are_read_or_refused(tmp_path, episodes):
    label = {"score": 0.4, "why": "It misreads the second result."}
    good = msgspec.structs.replace(episodes[0], meta={LABEL: label})
    write_jsonl(tmp_path / "good.jsonl", [good])
    assert scored_file(tmp_path / "good.jsonl")[0].meta[LABEL] == label
    own = msgspec.structs.replace(episodes[0], meta={})  # about the bundled world: its facts give the score
    write_jsonl(tmp_path / "own.jsonl", [own])
    [row] = scored_file(tmp_path / "own.jsonl")
    assert row.meta[LABEL]["score"] == WorldRubric().score(own).value and row.meta[LABEL]["why"]
    strange = {"question": "What is in no world?", "meta": {}}
    for number, bad in enumerate((strange, {"meta": {LABEL: {"score": 0.5, "why": ""}}}, {"meta": {LABEL: 0.4}})):
        write_jsonl(tmp_path / f"{number}.jsonl", [good, msgspec.structs.replace(good, **bad)])
        with pytest.raises(DataError, match=r"row 2: expected reference answers, and meta\['rubric'\]"):
            scored_file(tmp_path / f"{number}.jsonl")


class Scripted:
    def __init__(self, replies):
        self.tokenizer, self.replies = AutoTokenizer.from_pretrained(tiny_policy()), iter(replies)

    def generate(self, prompts, sampling, max_new_tokens=None):
        return [Completion(self.tokenizer(next(self.replies))["input_ids"], "eos") for _ in prompts]


def test_the_evaluators_error_by_hand(episodes):
    def scored(score):
        return msgspec.structs.replace(episodes[0], meta={LABEL: {"score": score, "why": ""}})

    replies = [rubric_reply("x", score) for score in (1.0, 0.4, 0.2)] + ["no score"]
    rubric = SelfRubric().bind(policy=Scripted(replies))
    found = EvaluatorReport.of([scored(score) for score in (1.0, 1.0, 0.0, 0.0)], rubric)
    assert found.rmse == pytest.approx(((0.6**2 + 0.2**2) / 3) ** 0.5)
    assert (found.n, found.unreadable, found.exact) == (4, 0.25, 0.25)
    assert found.table == {"1.0": {"0.4": 1, "1.0": 1}, "0.0": {"0.2": 1, "unreadable": 1}}
    assert found.lines("after")[0] == "evaluator after: RMSE 0.365, exact 0.250, unreadable 0.250, n = 4"
