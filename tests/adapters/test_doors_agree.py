"""Recorded rollouts are worth the same, to the last digit, through every door and in an audit."""

import asyncio
import gzip
import json
import math

import httpx2
import pytest
from paths import SHARED
from served import running
from test_agent_lightning import events_of

from faithful_search.adapters import agent_lightning, nemo_gym, openrlhf, verl
from faithful_search.adapters.settings import scoring_of
from faithful_search.adapters.trl import trl_reward
from faithful_search.measure.audit import audit
from faithful_search.measure.convert import convert
from faithful_search.measure.scores import read_scores
from faithful_search.reading.rows import read_trajectories
from faithful_search.serving.rewarding import Rewarding

RECORDED = SHARED / "data" / "trajectories"
TEXTS = {
    "r1_searcher_2wiki_qwen": ("r1_searcher", "gen_text_store"),
    "r1_searcher_hotpotqa_llama": ("r1_searcher", "gen_text_store"),
    "r1_searcher_hotpotqa_qwen": ("r1_searcher", "gen_text_store"),
    "search_r1_ppo_3b": ("search_r1", "solution"),
    "search_r1_verl_tool": ("search_r1_like", "output"),
}
CHATS = [*TEXTS, "webdancer"]
RESULTS = {
    "correctness": "exact_match_squad",
    "info_think": "info_think_lexical",
    "think_search": "think_search_lexical",
}
"""What an audit calls the value of a reward."""
METRICS = ("answer_correctness", "info_think_faithfulness", "think_search_faithfulness")
NOTHING = -7.0
"""What stands for a rollout without a value."""

pytestmark = pytest.mark.skipif(not RECORDED.exists(), reason="needs ../shared/data/trajectories")


@pytest.fixture(scope="module", params=[20, pytest.param(None, marks=pytest.mark.slow)], ids=str)
def limit(request):
    """How many rows of each file; all of them takes minutes."""
    return request.param


def first_rows(name, limit):
    with gzip.open(RECORDED / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for _, line in zip(range(limit or 10**6), file, strict=False)]


def written(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def audited(path, dialect):
    """What an audit says of each row."""
    folder = path.with_suffix(".audit")
    audit(path, folder, dialect=dialect, metrics=METRICS, how="squad")
    return list(read_scores(folder / "scores.jsonl"))


def known_of(path, dialect):
    """Question and gold answers of each row."""
    read = [row.trajectory for row in read_trajectories(path, dialect)]
    return [{"question": each.question, "answers": list(each.answers)} for each in read]


class Recorded:
    """Rollouts as one of the doors gets them, and what an audit says of each."""

    def __init__(self, rollouts, dialect, responses, path):
        self.rollouts, self.dialect, self.responses = rollouts, dialect, responses
        self.lines, self.known = audited(path, dialect), known_of(path, dialect)

    def values(self, reward):
        column = [line.scores[RESULTS[reward]].value for line in self.lines]
        return [NOTHING if value is None else value for value in column]

    def settings(self, reward):
        return {
            "mix": reward,
            "dialect": self.dialect,
            "responses": self.responses,
            "abstained": NOTHING,
        }

    def scoring(self, reward):
        return scoring_of(**self.settings(reward))


_KEPT = {}


@pytest.fixture(params=sorted(TEXTS))
def texts(request, limit, tmp_path):
    """A file of recorded texts."""
    name = request.param
    if (name, limit) not in _KEPT:
        dialect, column = TEXTS[name]
        rows = first_rows(name, limit)
        path = written(rows, tmp_path / "rows.jsonl")
        rollouts = [row[column] for row in rows]
        _KEPT[name, limit] = Recorded(rollouts, dialect, "anywhere", path)
    return _KEPT[name, limit]


@pytest.fixture(params=CHATS)
def chats(request, limit, tmp_path):
    """The same rollouts as chat messages with results of tools."""
    name = f"{request.param} as messages"
    if (name, limit) not in _KEPT:
        rows = written(first_rows(request.param, limit), tmp_path / "rows.jsonl")
        dialect, _ = TEXTS.get(request.param, ("web_dancer", None))
        path = tmp_path / "chats.jsonl"
        convert(rows, path, "openai", dialect=dialect)
        lines = path.read_text(encoding="utf-8").splitlines()
        rollouts = [json.loads(line)["messages"] for line in lines]
        _KEPT[name, limit] = Recorded(rollouts, "openai", "messages", path)
    return _KEPT[name, limit]


@pytest.fixture(params=RESULTS)
def reward(request):
    return request.param


def through_scoring(recorded, reward):
    known = recorded.known
    columns = {name: [values[name] for values in known] for name in ("question", "answers")}
    scoring = recorded.scoring(reward)
    scores = scoring.score(recorded.rollouts, **columns)
    return [scoring.number(score) for score in scores]


def through_ascore(recorded, reward):
    scoring = recorded.scoring(reward)

    async def score(rollout, known):
        return scoring.number(await scoring.ascore(rollout, **known))

    return gathered(score, recorded.rollouts, recorded.known)


def through_verl(recorded, reward):
    settings = recorded.settings(reward)

    async def score(rollout, known):
        info = {"question": known["question"]}
        text = rollout if isinstance(rollout, str) else ""
        if not text:
            info["messages"] = rollout
        result = await verl.compute_score("", text, known["answers"], info, **settings)
        return result["score"]

    return gathered(score, recorded.rollouts, recorded.known)


def through_verl_sync(recorded, reward):
    settings = recorded.settings(reward)
    values = []
    for rollout, known in zip(recorded.rollouts, recorded.known, strict=True):
        info = {"question": known["question"], "messages": rollout}
        if isinstance(rollout, str):
            del info["messages"]
        text = rollout if isinstance(rollout, str) else ""
        result = verl.compute_score_sync("", text, known["answers"], info, **settings)
        values.append(result["score"])
    return values


def through_openrlhf(recorded, reward):
    settings = recorded.settings(reward)
    function = openrlhf.reward_function(settings.pop("mix"), **settings)
    known = recorded.known
    questions = [values["question"] for values in known]
    return function(recorded.rollouts, questions, [values["answers"] for values in known])[
        "rewards"
    ]


def through_get_reward(recorded, reward):
    known = recorded.known
    body = {
        "query": recorded.rollouts,
        "prompts": [values["question"] for values in known],
        "labels": [values["answers"] for values in known],
    }
    with running(Rewarding(recorded.scoring(reward))) as url:
        return httpx2.post(f"{url}/get_reward", json=body, timeout=600).json()["rewards"]


def through_trl(recorded, reward):
    known = recorded.known
    function = trl_reward(recorded.scoring(reward).rule, dialect=recorded.dialect)
    values = function(
        completions=recorded.rollouts,
        answers=[each["answers"] for each in known],
        question=[each["question"] for each in known],
    )
    return [NOTHING if value is None else value for value in values]


def through_nemo_gym(recorded, reward):
    settings = recorded.settings(reward)

    async def score(rollout, known):
        body = {"messages": rollout, **known}
        return (await nemo_gym.verify(body, **settings))["reward"]

    return gathered(score, recorded.rollouts, recorded.known)


def through_agent_lightning(recorded, reward):
    settings = recorded.settings(reward)
    values = []
    for rollout, known in zip(recorded.rollouts, recorded.known, strict=True):
        value = agent_lightning.reward_of_events(
            events_of(rollout), known["answers"], known["question"], **settings
        )
        values.append(value)
    return values


def through_evaluate(recorded, reward):
    values = []
    with running(Rewarding(recorded.scoring(reward))) as url, httpx2.Client(timeout=600) as client:
        for rollout, known in zip(recorded.rollouts, recorded.known, strict=True):
            asked = {"search_forbidden_strs": [known["question"]]}
            body = {"history": rollout, "label": known["answers"], "remote_env_info": asked}
            values.append(client.post(f"{url}/evaluate", json=body).json()["reward"])
    return values


def through_verifiers(recorded, reward):
    vf = pytest.importorskip("verifiers.v1", reason="needs the extra adapters")
    from pydantic import TypeAdapter
    from test_verifiers import trace_of

    from faithful_search.adapters.verifiers import FaithfulData, FaithfulTask

    settings = recorded.settings(reward)
    messages = TypeAdapter(vf.Messages)

    class Task(FaithfulTask):
        pass

    Task.mix, Task.dialect = settings.pop("mix"), settings.pop("dialect")
    Task.settings = settings

    async def score(rollout, known):
        data = FaithfulData(question=known["question"], answers=known["answers"])
        task = Task(data)
        trace = trace_of(task, messages.validate_python(list(map(as_verifiers, rollout))))
        await task.score(trace)
        return trace.rewards["faithful"].score

    return gathered(score, recorded.rollouts, recorded.known)


def through_inspect(recorded, reward):
    pytest.importorskip("inspect_ai", reason="needs the extra adapters")
    from inspect_ai.model import ChatMessage
    from inspect_ai.scorer import Target
    from inspect_ai.solver import TaskState
    from pydantic import TypeAdapter

    from faithful_search.adapters.inspect_ai import faithfulness

    scorer = faithfulness(reward, recorded.dialect)
    messages = TypeAdapter(list[ChatMessage])

    async def score(rollout, known):
        read = messages.validate_python(list(map(as_inspect, rollout)))
        asked = known["question"] or ""
        state = TaskState("mockllm/model", sample_id=1, epoch=1, input=asked, messages=read)
        value = (await scorer(state, Target(known["answers"]))).value
        return NOTHING if math.isnan(value) else value

    return gathered(score, recorded.rollouts, recorded.known)


def gathered(score, rollouts, known):
    async def all_of_them():
        return await asyncio.gather(*map(score, rollouts, known))

    return asyncio.run(all_of_them())


def as_verifiers(message):
    """A chat message as verifiers' values are made."""
    calls = message.get("tool_calls") or []
    made = [{"id": call["id"], **call["function"]} for call in calls]
    return message | {"tool_calls": made} if made else message


def as_inspect(message):
    """A chat message as inspect's values are made."""
    content = message.get("content") or ""
    thought = message.get("reasoning_content")
    if thought:
        blocks = [{"type": "reasoning", "reasoning": thought}]
        content = [*blocks, {"type": "text", "text": content}] if content else blocks
    made = {**message, "content": content}
    calls = message.get("tool_calls") or []
    if calls:
        made["tool_calls"] = [
            {
                "id": call["id"],
                "function": call["function"]["name"],
                "arguments": json.loads(call["function"]["arguments"]),
            }
            for call in calls
        ]
    return made


TEXT_DOORS = [
    through_scoring,
    through_ascore,
    through_verl,
    through_verl_sync,
    through_openrlhf,
    through_get_reward,
]
CHAT_DOORS = [
    *TEXT_DOORS,
    through_trl,
    through_nemo_gym,
    through_agent_lightning,
    through_evaluate,
    through_verifiers,
    through_inspect,
]


@pytest.mark.parametrize("door", TEXT_DOORS, ids=lambda door: door.__name__)
def test_texts_are_worth_the_same(door, texts, reward):
    assert door(texts, reward) == texts.values(reward)


@pytest.mark.parametrize("door", CHAT_DOORS, ids=lambda door: door.__name__)
def test_messages_are_worth_the_same(door, chats, reward):
    assert door(chats, reward) == chats.values(reward)
