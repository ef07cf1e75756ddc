"""TRL's trainer with `trl_reward`: what it pays, what it leaves out, and what it says."""

import asyncio
import logging
import pickle

import pytest

import faithful_search as fs
from faithful_search.adapters.trl import (
    TRLReward,
    asked_in,
    read_completion,
    trl_reward_parts,
)
from faithful_search.errors import ConfigError, DataError, DialectError
from faithful_search.rewards import Correctness, EvidenceSensitivity, Format, Mix, Warmup
from faithful_search.scoring import Scoring
from faithful_search.tools import LocalSearch, Toolbox

QUESTION = "What is the capital of Australia?"
ANSWERS = [["Canberra"]]
CALL = {
    "type": "function",
    "function": {"name": "local_search", "arguments": {"query": "capital of Australia"}},
}
LAST = "<think><helpful>yes</helpful><ref>E1</ref>It says so.</think><answer>{}</answer>"
FOUND = "Australia [E1]: Canberra is the capital of Australia."
CORPUS = [{"title": "Australia", "text": "Canberra is the capital of Australia."}]


def assistant(content, *calls):
    message = {"role": "assistant", "content": content}
    return {**message, "tool_calls": list(calls)} if calls else message


def tool(content):
    return {"role": "tool", "name": "local_search", "content": content}


def episode(first="<think>Look.</think>", found=FOUND, answer="Canberra"):
    return [assistant(first, CALL), tool(found), assistant(LAST.format(answer))]


def values(*completions, reward="pou", **columns):
    gold = ANSWERS * len(completions)
    return fs.trl_reward(reward)(completions=list(completions), answers=gold, **columns)


@pytest.fixture
def toolbox():
    with Toolbox([LocalSearch.from_corpus(CORPUS)]) as box:
        yield box


@pytest.fixture
def environment(toolbox):
    """One whose policy has searched."""
    environment = fs.SearchEnvironment.factory(toolbox)()
    asyncio.run(environment.local_search(query="capital of Australia"))
    return environment


def nested(depth: int) -> list:
    """A list in lists."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


CALLED = {"name": "local_search", "arguments": {"query": nested(300)}}


@pytest.mark.parametrize("call", [CALLED, {"type": "function", "function": CALLED}])
def test_a_call_nested_too_deeply_is_a_broken_call_and_ends_nothing(call):
    broken = [assistant("<think>Look.</think>", call), tool(FOUND), episode()[-1]]
    assert values(broken, episode()) == [-1.0, 1.0]


@pytest.mark.parametrize("completion", [{"role": "assistant"}, ["Canberra"], [[]], 7])
def test_a_completion_that_is_no_message_is_refused(completion):
    with pytest.raises(DataError, match="a completion is a text or a list of messages"):
        read_completion(completion, "pou")


AS_PARTS = [{"type": "image"}, {"type": "text", "text": QUESTION}]


@pytest.mark.parametrize("content", [QUESTION, AS_PARTS])
def test_the_question_is_read_off_the_prompt(content):
    assert asked_in([{"role": "user", "content": content}], "pou") == QUESTION


def test_a_right_cited_answer_earns_all():
    assert values(episode()) == [1.0]


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        (episode(answer="Sydney"), 0.0),
        (episode(found="Perth [E1]: Perth lies in Australia."), 0.0),
        ([assistant("Canberra.")], -1.0),
        ([assistant("<think>I know.</think><answer>Canberra</answer>")], 0.0),
    ],
    ids=["wrong", "not supported", "no format", "from memory"],
)
def test_what_other_answers_earn(completion, value):
    assert values(completion) == [value]


@pytest.mark.parametrize("thought", ["I look.", "I look.\n\nIn the encyclopedia.", " I look. "])
def test_text_beside_a_call_is_the_thought(thought):
    assert values(episode(first=thought)) == [1.0]


@pytest.mark.parametrize("completion", [None, [], "", ()], ids=repr)
def test_an_empty_completion_is_an_invalid_format(completion):
    assert values(completion) == [-1.0]


@pytest.mark.parametrize("completion", [None, []], ids=repr)
def test_an_empty_completion_earns_nothing_without_a_gate(completion):
    assert values(completion, reward="veritas") == [0.0]


def test_a_row_without_gold_answers_has_no_value():
    assert fs.trl_reward("pou")(completions=[episode()], answers=[None]) == [None]


def test_the_question_is_the_datasets_or_the_prompts():
    prompt = fs.dialects.load("pou").prompt(QUESTION, [])
    asked = []

    class Asked(Mix):
        def components(self, trajectories):
            asked.extend(trajectory.question for trajectory in trajectories)
            return super().components(trajectories)

    reward = fs.trl_reward(Asked(fs.pou_mix(sensitivity=False, alpha=0.5).parts))
    reward(completions=[episode()], prompts=[prompt], answers=ANSWERS)
    reward(completions=[episode()], prompts=[prompt], answers=ANSWERS, question=["Which?"])
    reward(completions=[episode()], prompts=[None], answers=ANSWERS)
    assert asked == [QUESTION, "Which?", None]


def test_the_column_of_answers_can_have_any_name():
    reward = fs.trl_reward("pou", answers="gold")
    assert reward(completions=[episode()], gold=["Canberra"], task=[3]) == [1.0]


def test_a_missing_column_of_answers_is_named():
    with pytest.raises(ConfigError, match=r"'answers'.*it has: gold"):
        fs.trl_reward("pou")(completions=[episode()], gold=["Canberra"])


def test_a_dataset_without_another_column_is_named_so():
    with pytest.raises(ConfigError, match="it has: no other"):
        fs.trl_reward("pou")(prompts=["Where?"], completions=["x"])


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("poo", "Mixes are: pou, veritas"),
        (fs.pou_mix(alpha=0.5), "asks the policy itself"),
        (EvidenceSensitivity(), "asks the policy itself"),
        (fs.pou_mix(sensitivity=False), "alpha"),
    ],
    ids=["unknown", "mix that asks", "reward that asks", "alpha adapts"],
)
def test_what_trl_cannot_give_is_refused(reward, said):
    with pytest.raises(ConfigError, match=said):
        fs.trl_reward(reward)


def test_an_unknown_dialect_is_refused_at_once():
    with pytest.raises(DialectError, match="pou"):
        fs.trl_reward("pou", dialect="poo")


def test_it_can_be_pickled():
    reward = pickle.loads(pickle.dumps(fs.trl_reward("pou")))
    assert reward(completions=[episode()], answers=ANSWERS) == [1.0]


def test_a_single_reward_will_do():
    assert fs.trl_reward(fs.rewards.Format())(completions=[episode()], answers=ANSWERS) == [1.0]


def test_a_warm_up_goes_by_the_trainers_step():
    class State:
        global_step = 0

    mix = Mix({"right": Correctness()}, gate=None, warmup=Warmup(("right",), 0, 4))
    reward, state = fs.trl_reward(mix), State()
    earned = []
    for state.global_step in (0, 1, 3):
        earned += reward(completions=[episode()], answers=ANSWERS, trainer_state=state)
    assert earned == [0.25, 0.5, 1.0]


# One function a part


@pytest.mark.parametrize("name", ["pou", "veritas", "pokee", "answer_only"])
def test_parts_add_up_to_the_whole(name):
    completions = [episode(), episode(answer="Sydney"), [assistant("Hm.")], None]
    batch = {"completions": completions, "answers": ANSWERS * 4}
    parts = [part(**batch) for part in trl_reward_parts(name)]
    assert [sum(row) for row in zip(*parts, strict=True)] == fs.trl_reward(name)(**batch)


def test_all_parts_score_the_rollouts_once():
    scored = []

    class Counted(Correctness):
        def score_batch(self, trajectories):
            scored.append(len(trajectories))
            return super().score_batch(trajectories)

    mix = Mix({"right": Counted(), "format": Format()}, gate=None)
    completions = [episode()]
    for part in trl_reward_parts(mix):
        part(completions=completions, answers=ANSWERS)
    assert scored == [1]


def test_parts_of_a_rollout_without_a_value_have_none():
    parts = trl_reward_parts("veritas")
    assert [part(completions=[episode()], answers=[None]) for part in parts] == [[None]] * 3


def test_parts_pickle_together():
    first, second = pickle.loads(pickle.dumps(trl_reward_parts("pou")))
    assert first.whole is second.whole


def test_a_single_reward_has_no_parts():
    with pytest.raises(ConfigError, match="has no parts"):
        trl_reward_parts("correctness")


# What it tells TRL and the user


def test_parts_and_reasons_are_logged():
    metrics, extras = {}, {}
    fs.trl_reward("pou")(
        completions=[episode(), [assistant("Hm.")]],
        answers=ANSWERS * 2,
        log_metric=metrics.__setitem__,
        log_extra=extras.__setitem__,
    )
    assert metrics["pou/format"] == 0.5
    assert metrics["pou/response_forged"] == 0.0
    assert extras["pou/why"][0] == ""
    assert "text outside all tags" in extras["pou/why"][1]


def test_the_first_batch_without_any_format_gets_a_hint(caplog):
    reward = fs.trl_reward("pou")
    for _ in range(2):
        reward(completions=[[assistant("Canberra.")]] * 4, answers=ANSWERS * 4)
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "all 4 rewards of the first batch are -1" in record.getMessage()
    assert "dialects.load('pou').prompt" in record.getMessage()


def test_the_hint_names_the_dialect_that_was_read(caplog):
    rule = fs.trl_reward("pou").scoring.rule
    TRLReward(Scoring(rule), "answers")(completions=[[assistant("Hm.")]], answers=ANSWERS)
    assert "dialects.load('pou').prompt" in caplog.text


def test_a_batch_with_a_valid_format_gets_no_hint(caplog):
    values(episode(), [assistant("Hm.")])
    assert caplog.records == []


def test_texts_are_counted_and_named_as_no_evidence(caplog):
    text = fs.dialects.load("pou").render(read_completion(episode(), "pou"))
    assert values(text, episode()) == [-1.0, 1.0]
    assert "1 of 2 completions of the first batch are texts" in caplog.text
    assert "in 1 of 2 completions of the first batch the policy wrote a tool" in caplog.text


# The environment's own results


def test_evidence_is_what_the_environment_returned(environment):
    completion = episode(found=environment.responses[0])
    read = read_completion(completion, "pou", environment=environment)
    assert read.evidence_from == "environment"
    assert [item.text for item in read.evidence.values()] == [CORPUS[0]["text"]]
    assert values(completion, environments=[environment]) == [1.0]


def test_what_the_environment_did_not_return_is_no_evidence(environment):
    completion = episode(found="Sydney [E1]: Canberra is the capital of Australia, too.")
    assert values(completion, environments=[environment]) == [0.0]


def test_a_response_counts_once(environment):
    found = environment.responses[0]
    twice = [*episode(found=found)[:2], *episode(found=found)[:2]]
    read = read_completion(twice, "pou", environment=environment)
    assert [len(step.evidence) for step in read.steps] == [1, 0]


def test_calls_made_at_once_may_return_in_any_order(environment):
    asyncio.run(environment.local_search(query="Canberra"))
    responses = list(environment.responses)
    messages = [assistant("a", CALL), tool(responses[1]), assistant("b", CALL), tool(responses[0])]
    read = read_completion(messages, "pou", environment=environment)
    assert [step.evidence[0].id for step in read.steps] == ["E2", "E1"]


ECHOES = [
    "{'error': 'Tool Australia [E1]: Canberra is the capital of Australia. not found.'}",
    "{'error': \"f() got an unexpected keyword argument 'Australia [E1]: Canberra is it.'\"}",
    "{'error': \"Unsupported tool call type: Canberra [E1]: Canberra\"}",
]


@pytest.mark.parametrize("found", ECHOES)
@pytest.mark.parametrize("dialect", ["pou", "openai", "search_r1"])
def test_words_of_a_call_that_trl_repeats_are_no_evidence(found, dialect, environment):
    for own in (None, environment):
        read = read_completion(episode(found=found), dialect, environment=own)
        assert read.evidence == {}


def test_environments_of_other_classes_are_passed_over():
    assert values(episode(), environments=[object()]) == [1.0]
