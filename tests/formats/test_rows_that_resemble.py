"""Rows that resemble a format without being of it, and what formats take from one another."""

import json

import pytest

from faithful_search.formats import formats
from faithful_search.reading.rows import READER, read_trajectories
from faithful_search.trajectory import Trajectory

TEXT = (
    "<think>x</think><search>Ada</search><information>Ada was born in Veldt.</information>"
    "<think>y</think><answer>Veldt</answer>"
)
CALL = {"id": "1", "function": {"name": "search", "arguments": '{"query": "Ada"}'}}
CHAT = [
    {"role": "user", "content": "Where was Ada born?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "Ada was born in Veldt."},
    {"role": "assistant", "content": "Veldt"},
]
STEP = {"thought": "t", "action": "search[c]", "observation": "o"}


def read(row: object) -> Trajectory:
    return READER.parse(json.dumps(row).encode())


@pytest.mark.parametrize(
    "beside",
    [
        {"context": ["gold paragraph"]},
        {"contexts": ["gold paragraph"]},
        {"docs": ["gold paragraph"]},
        {"results": [{"text": "gold paragraph"}]},
        {"steps": [{"reasoning": "the grader's", "action": "accept"}]},
        {"history": [STEP]},
    ],
)
@pytest.mark.parametrize("episode", [{"messages": CHAT}, {"completion": TEXT}, {"output": TEXT}])
def test_what_stands_beside_an_episode_is_not_the_agents(episode, beside):
    trajectory = read({"question": "Where?", **episode, **beside, "answer": "Gold"})
    assert trajectory.answer == "Veldt"
    assert trajectory.answers == ("Gold",)
    assert [passage.text for passage in trajectory.evidence.values()] == ["Ada was born in Veldt."]


def test_steps_with_contexts_beside_them_are_steps():
    row = {"question": "Q", "trajectory": [STEP], "prediction": "Veldt", "contexts": ["gold"]}
    assert [step.call.name for step in read(row).steps if step.call] == ["search"]


@pytest.mark.parametrize(
    "columns",
    [
        {"task": "Q"},
        {"plan": "p"},
        {"reasoning": "r", "action": "keep"},
        {"from": "nq"},
        {"role": "user"},
        {"role": "user", "content": "Q"},
        {"type": "reasoning"},
        {"type": "bridge", "sessionId": "a"},
        {"type": "human", "content": "Q"},
    ],
)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_rows_are_not_taken_for_parts_of_one_chat(tmp_path, columns, suffix):
    rows = [{**columns, "output": TEXT, "answer": gold} for gold in ("G1", "G2")]
    path = tmp_path / f"rows{suffix}"
    lines = "\n".join(map(json.dumps, rows))
    path.write_text(json.dumps(rows) if suffix == ".json" else lines)
    trajectories = [row.trajectory for row in read_trajectories(path)]
    assert [each.answers for each in trajectories] == [("G1",), ("G2",)]
    assert [each.answer for each in trajectories] == ["Veldt", "Veldt"]


def test_tasks_with_answers_are_rows(tmp_path):
    rows = [{"task": f"Q{number}", "output": f"Answer {number}"} for number in range(2)]
    assert formats()["smolagents"].read(rows) is None


@pytest.mark.parametrize(
    "arguments", [{"answer": "Veldt", "confidence": "high"}, '{"answer": "Veldt"}', "Veldt"]
)
def test_answers_of_react_steps_are_handed_in_like_others(arguments):
    row = {"steps": [STEP, {"action": "finish", "action_input": arguments}]}
    assert read(row).answer == "Veldt"


def test_a_transcript_may_hand_in_its_answer_as_json():
    text = 'Thought: a\nAction: finish\nAction Input: {"answer": "Veldt"}'
    assert read({"text": text}).answer == "Veldt"


WIDE_COLON = "\uff1a"
AS_JSON = """Thought: I look.
Action:
```json
{"action": "search", "action_input": INPUT}
```
Observation: Ada was born in Veldt.
Thought: I know.
Action:
```
{"action": "Final Answer", "action_input": "Veldt"}
```"""
REACT = {
    "an action in JSON": AS_JSON.replace("INPUT", '"Ada"'),
    "arguments in JSON": AS_JSON.replace("INPUT", '{"query": "Ada"}'),
    "an answer as an action": (
        "Thought: I look.\nAction: search\nAction Input: Ada\n"
        "Observation: Ada was born in Veldt.\nAction: Final Answer\nAction Input: Veldt"
    ),
    "input as code": (
        'Thought: I look.\nAction: search\nAction Input:\n```json\n{"query": "Ada"}\n```\n'
        "Observation: Ada was born in Veldt.\nFinal Answer: Veldt"
    ),
    "bold marks": (
        "**Thought:** I look.\n**Action:** search\n**Action Input:** Ada\n"
        "**Observation:** Ada was born in Veldt.\n**Final Answer**: Veldt"
    ),
    "wide colons": (
        "Thought:找。\nAction:search\nAction Input:Ada\n"
        "Observation:Ada was born in Veldt.\nFinal Answer:Veldt"
    ).replace(":", WIDE_COLON),
    "blanks before colons": (
        "Thought : je cherche.\nAction : search[Ada]\nObservation : Ada was born in Veldt.\n"
        "Final Answer : Veldt"
    ),
    "Chinese": (
        "思考:找。\n行动:search\n行动输入:Ada\n观察:Ada was born in Veldt.\n最终答案:Veldt"
    ).replace(":", WIDE_COLON),
}


@pytest.mark.parametrize("text", REACT.values(), ids=REACT)
def test_react_is_read_however_it_is_laid_out(text):
    trajectory = read({"output": text})
    [call] = [step.call for step in trajectory.steps if step.call]
    assert (call.name, call.arguments) == ("search", {"query": "Ada"})
    assert [passage.text for passage in trajectory.passages] == ["Ada was born in Veldt."]
    assert trajectory.answer == "Veldt"


def test_a_chinese_chat_of_react_is_read():
    said = [
        "思考:找。\n行动:search[Ada]",
        "观察:Ada was born in Veldt.",
        "思考:好。\n最终答案:Veldt",
    ]
    action, observation, answer = [words.replace(":", WIDE_COLON) for words in said]
    chat = [
        {"role": "user", "content": "Ada 出生在哪里?"},
        {"role": "assistant", "content": action},
        {"role": "user", "content": observation},
        {"role": "assistant", "content": answer},
    ]
    assert read({"messages": chat}).answer == "Veldt"


def test_a_full_stop_behind_brackets_ends_an_action():
    assert read({"steps": [STEP, {"action": 'Finish["Veldt"].'}]}).answer == "Veldt"


def test_a_graders_sample_is_not_the_agents():
    def event(question: str, answer: str) -> dict[str, object]:
        data = {"prompt": [{"role": "user", "content": question}], "sampled": [answer]}
        return {"run_id": "r", "event_id": 0, "sample_id": "s", "type": "sampling", "data": data}

    trajectory = read({"lines": [event("Where?", "Veldt"), event("Is 'Veldt' right?", "Y")]})
    assert trajectory.answer == "Veldt"
    assert "left out: 1 further samples" in {issue.why for issue in trajectory.all_issues()}


def test_conversations_may_be_numbered_from_0(tmp_path):
    lines = [
        {"conversation_id": number, "role": role, "content": f"{role} {number}"}
        for role in ("user", "assistant")
        for number in (0, 1)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    answers = [row.trajectory.answer for row in read_trajectories(path)]
    assert answers == ["assistant 0", "assistant 1"]


def test_answer_in_an_observation_is_a_line_of_it():
    text = (
        "Question: Who?\nThought: x\nAction: search[c]\nObservation: line\nAnswer: 42 is a number\n"
        "Thought: d\nFinal Answer: Ada"
    )
    trajectory = read({"output": text})
    [passage] = trajectory.evidence.values()
    assert passage.text == "line\nAnswer: 42 is a number"
    assert trajectory.answer == "Ada"


def test_pages_of_mistrals_belong_to_the_last_search():
    execution = {"type": "tool.execution", "name": "web_search", "arguments": "{}"}
    page = {"type": "tool_reference", "tool": "web_search", "title": "Ada", "url": "https://e.org"}
    content = [{"type": "text", "text": "Veldt"}, page]
    entries = [execution, execution, {"type": "message.output", "content": content}]
    trajectory = read({"object": "conversation.response", "outputs": entries})
    assert [len(step.evidence) for step in trajectory.steps if step.call] == [0, 1]


EPISODE = "Question: q\nThought: a\nAction: search[x]\nObservation: {}\nThought: b\nAction: "
IN_CHINESE = "问题\uff1a为什么\n思考\uff1a深"


@pytest.mark.parametrize("page", [IN_CHINESE, "**Question:** why\n**Thought:** deep"])
def test_marks_of_another_style_are_the_pages(page):
    trajectory = read({"text": EPISODE.format(page) + "finish[y]"})
    assert trajectory.question == "q"
    assert [passage.text for passage in trajectory.evidence.values()] == [page]


@pytest.mark.parametrize("name", ["Final Answer", "final_answer"])
def test_an_answer_of_json_is_handed_in(name):
    action = f'{name}\nAction Input: {{"answer": "Bob"}}'
    assert read({"text": EPISODE.format("p") + action}).answer == "Bob"
