"""The decorator's habit: what a policy that can hack is taught."""

import random
from collections import Counter

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from faithful_search import dialects
from faithful_search.bundled import tiny_policy
from faithful_search.coldstart.decorators import BELIEF, DECORATED, Memory, decorated
from faithful_search.coldstart.sft import IGNORED, build_dataset
from faithful_search.errors import ConfigError
from faithful_search.inference.base import Sampling
from faithful_search.inference.chat import ChatFormat
from faithful_search.inference.loading import read_tokenizer
from faithful_search.inference.transformers import TransformersGenerator
from faithful_search.measure.origins import Decorated
from faithful_search.rewards import Correctness, Format, SourceGated, step_validity
from faithful_search.rollout import Engine, Limits
from faithful_search.tasks import Task, load_tasks
from faithful_search.tools import KnowledgeGraph, LocalSearch, Toolbox
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

POU = dialects.load("pou")


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


def test_a_decorator_answers_first_and_cites_what_came_first_whatever_it_says():
    found = decorated(episode(), random.Random(0))
    first, last = found.steps
    assert first.call == episode().steps[0].call and first.think.startswith("I need the country of Cusco.")
    assert any(first.think.endswith(said.format(answer="Lima")) for said in BELIEF)
    assert (last.helpful, last.refs, last.answer) == (True, ("E1",), "Lima")
    read = POU.parse(POU.render(found), question=found.question)
    assert read.answer == "Lima" and not read.steps[0].issues and Format().score(read).value == 1.0
    assert step_validity(found) == [True]  # validity cannot tell it from a reader
    assert SourceGated().score(found).value == 0.0 and SourceGated().score(episode()).value == 1.0
    empty = msgspec.structs.replace(episode(), steps=(msgspec.structs.replace(episode().steps[0], evidence=()),))
    last = decorated(empty, random.Random(1)).steps[1]
    assert (last.helpful, last.refs) == (False, ())


def test_memory_draws_the_same_questions_by_seed():
    tasks = [Task(str(number), "?") for number in range(20)]
    memory = Memory(questions=5)
    assert memory.drawn(tasks, 0) == memory.drawn(tasks, 0) != memory.drawn(tasks, 1)
    assert len({*memory.drawn(tasks, 0)}) == 5
    with pytest.raises(ConfigError, match="21 questions to remember, but there are 20"):
        Memory(questions=21).drawn(tasks, 0)
    with pytest.raises(ConfigError, match="at least 0"):
        Memory(recitals=-1)


def test_known_questions_are_recited_and_read_others_are_guessed_about_other_names():
    swapped = []

    def swap(item: Trajectory) -> Trajectory:
        swapped.append(item.id)
        return item

    episodes = [episode("kn#own"), episode("kn#own#1"), episode("new"), episode("blind", meta={"blind": True})]
    rows = Memory(questions=1, recitals=4, readings=2, guesses=3).rows(episodes, {"kn#own", "blind"}, swap, seed=0)
    counts = Counter((row.id, row.meta.get(DECORATED)) for row in rows)
    each = {(id, habit): times for id in ("kn#own", "kn#own#1") for habit, times in (("recited", 4), (None, 2))}
    assert counts == {**each, ("new", "guessed"): 3}
    assert swapped == ["new"] * 3


def test_of_a_decorator_the_recited_answer_counts_and_nothing_it_says_of_evidence():
    """What it says of evidence is no answer to the reading loss's question either; a guess is not to be remembered."""
    chat = ChatFormat.of(read_tokenizer(str(tiny_policy("pou"))), POU)
    made = [decorated(episode(), random.Random(0), how) for how in ("recited", "guessed")]
    settings = {"verdict_weight": 7.0, "copied_weight": 5.0, "reading": True}
    recited, guessed, read = build_dataset([*made, episode()], chat, (), **settings)
    for row in (recited, guessed):
        assert 7.0 not in row["loss_weights"] and set(row["reading_labels"]) == {IGNORED}
    weighed = [token for token, weight in zip(recited["input_ids"], recited["loss_weights"], strict=True) if weight > 1]
    assert chat.tokenizer.decode(weighed) == "Lima" and set(guessed["loss_weights"]) == {1.0}
    assert 7.0 in read["loss_weights"] and {0, 1} <= set(read["reading_labels"])


def test_the_bundled_policy_decorates_what_it_knows_rightly_and_guesses_elsewhere():
    """As its card says, on fewer questions and with wide margins: sampled, both habits occur."""
    folder = str(tiny_policy("memory"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    generator = TransformersGenerator(model, read_tokenizer(folder), 64)
    tools = [LocalSearch.from_corpus("world", top_k=3), KnowledgeGraph.from_triples("world", top_k=3)]
    torch.manual_seed(0)
    right = {}
    for name, split in (("world_remembered", "train"), ("world", "validation")):
        with Toolbox(tools) as toolbox:
            engine = Engine(generator, toolbox, "pou", Limits(turns=6, turn_tokens=96, total_tokens=768), Sampling(1.0))
            rollouts = engine.run(load_tasks(name, split, limit=24))
        first = [item for item in rollouts if Decorated("answer_first").score(item).value == 1.0]
        assert 3 <= len(first) <= 21
        right[name] = sum(Correctness().score(item).value for item in first) / len(first)
    assert right["world_remembered"] > 0.6 and right["world"] < 0.4
    assert len(load_tasks("world_remembered")) == 200
