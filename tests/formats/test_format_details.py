"""What is particular to a format: server tools, code agents, text, states, other ways of handing in
the answer.
"""

import json
from random import Random
from typing import Any

import pytest
from dialect_texts import kinds
from test_formats import FORMATS, installed

from faithful_search import formats
from faithful_search.dialects import parse
from faithful_search.errors import DataError, DialectError, FaithfulSearchError
from faithful_search.reading.rows import READER
from faithful_search.trajectory import Trajectory

USER = {"role": "user", "content": "Who?"}


def seen(found: Trajectory) -> list[tuple[Any, ...]]:
    """Of each step: the call's name, titles and texts of its evidence, the note."""
    return [
        (
            step.call and step.call.name,
            [item.title or item.text for item in step.evidence],
            step.note,
        )
        for step in found.steps
    ]


def test_anthropics_server_tools() -> None:
    result = [
        {
            "type": "web_search_result",
            "url": "https://a.org",
            "title": "Ada",
            "encrypted_content": "x",
        }
    ]
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    blocks = [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "1", "content": result},
        {"type": "server_tool_use", "id": "2", "name": "web_search", "input": {"query": "b"}},
        {"type": "web_search_tool_result", "tool_use_id": "2", "content": failed},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Ada"},
    ]
    found = parse([USER, {"role": "assistant", "content": blocks}])
    assert seen(found) == [
        ("web_search", ["Ada"], ""),
        ("web_search", [], "max_uses_exceeded"),
        (None, [], ""),
    ]
    assert found.steps[0].evidence[0].url == "https://a.org"
    assert found.answer == "Ada"
    assert kinds(found) == ["content_unread"]


def test_text_beside_a_thought_and_an_image_between_two_results() -> None:
    calls = [
        {"type": "tool_use", "id": i, "name": i, "input": {"query": "q", "site": None}}
        for i in "ab"
    ]
    said = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "I look."}, *calls]
    image = [{"type": "text", "text": "two"}, {"type": "image", "source": {}}]
    back = [
        {"type": "tool_result", "tool_use_id": i, "content": what}
        for i, what in (("b", image), ("a", "one"))
    ]
    found = parse([USER, {"role": "assistant", "content": said}, {"role": "user", "content": back}])
    assert seen(found) == [("a", ["one"], ""), ("b", ["two"], "")]
    assert kinds(found) == ["content_unread"]
    assert found.steps[0].think == "Hm.\nI look."
    assert [step.call and step.call.arguments for step in found.steps] == [{"query": "q"}] * 2
    handed = {"type": "tool_use", "id": "z", "name": "final_answer", "input": {"answer": "Ada"}}
    (last,) = parse([USER, {"role": "assistant", "content": [*said[:2], handed]}]).steps
    assert (last.think, last.answer) == ("Hm.\nI look.", "Ada")


def test_tools_that_openai_runs_itself() -> None:
    searched = {
        "type": "search",
        "query": "a",
        "sources": [{"type": "url", "url": "https://a.org", "title": "A"}],
    }
    output = [
        {"type": "web_search_call", "id": "w", "status": "completed", "action": searched},
        {
            "type": "file_search_call",
            "id": "f",
            "queries": ["b"],
            "results": [{"filename": "n", "text": "Ada did."}],
        },
        {
            "type": "mcp_call",
            "id": "m",
            "name": "look",
            "arguments": "{}",
            "output": "nothing here",
        },
        {"type": "mcp_call", "id": "n", "name": "look", "arguments": "{}", "error": "down"},
        {
            "type": "message",
            "id": "x",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Ada"}],
        },
    ]
    found = parse({"input": "Who?", "output": output})
    assert seen(found) == [
        ("web_search", ["A"], ""), ("file_search", ["n"], ""), ("look", ["nothing here"], ""),
        ("look", [], "down"), (None, [], ""),
    ]  # fmt: skip
    assert (found.question, found.answer, kinds(found)) == ("Who?", "Ada", [])
    assert found.steps[1].call is not None
    assert found.steps[1].call.arguments == {"queries": ["b"]}


def test_gemini_without_ids_and_with_code() -> None:
    parts = [
        {"functionCall": {"name": "a", "args": {"q": "1"}}},
        {"functionCall": {"name": "b", "args": {}}},
    ]
    code = [
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"codeExecutionResult": {"output": "1\n"}},
    ]
    contents = [
        {"role": "user", "parts": [{"text": "Who?"}]},
        {"role": "model", "parts": parts},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": n, "response": {"result": f"r{n}"}}} for n in "ab"
            ],
        },
        {"role": "model", "parts": [*code, {"text": "Ada"}]},
    ]
    found = parse(contents)
    assert seen(found) == [
        ("a", ["ra"], ""),
        ("b", ["rb"], ""),
        ("python", ["1\n"], ""),
        (None, [], ""),
    ]
    assert found.answer == "Ada"
    assert not kinds(found)


@pytest.mark.parametrize("name", ["final_answer", "submit_answer", "submit"])
@pytest.mark.parametrize("arguments", ['{"answer": "Ada"}', {"text": "Ada"}, "Ada"])
def test_an_answer_through_a_tool_is_the_answer(name: str, arguments: Any) -> None:
    look = {"id": "1", "function": "search", "arguments": {"query": "q"}}
    hand = {"id": "2", "function": name, "arguments": arguments}
    chat = [
        USER,
        {"role": "assistant", "content": "look", "tool_calls": [look, hand]},  # both at once
        {"role": "tool", "tool_call_id": "1", "content": "Ada did."},
        {"role": "tool", "tool_call_id": "2", "content": "Ada"},
    ]
    found = parse(chat)
    assert seen(found) == [("search", ["Ada did."], ""), (None, [], "")]
    assert (found.answer, found.stop_reason, kinds(found)) == ("Ada", "answered", [])
    knowing = {"role": "assistant", "content": "I know.", "tool_calls": [hand]}
    alone = parse([USER, knowing, {"role": "tool", "content": "x"}])
    assert (alone.answer, alone.steps[0].think, len(alone.steps)) == ("Ada", "I know.", 1)


def test_a_code_agents_last_step() -> None:
    """Its call is code, and what the code gave back as the answer is no evidence."""

    def step(number: int, said: str, code: str, seen: str, **more: Any) -> dict[str, Any]:
        function = {"name": "python_interpreter", "arguments": code}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        return {
            "step_number": number,
            "model_output": said,
            "tool_calls": [call],
            "observations": seen,
            **more,
        }

    links = "## Search Results\n\n[Ada](https://a.org)\nAda did it.\n\n[Bob](https://b.org)\nBob did not."
    last = "\nLast output from code snippet:\n"
    failed = {"type": "AgentParsingError", "message": "no code"}
    steps = [
        {"task": "Who?", "task_images": None},
        step(1, "I search.", "print(web_search('who'))", f"Execution logs:\n{links}{last}None"),
        {"step_number": 2, "model_output": "hm", "tool_calls": [], "error": failed},
        step(3, "So it is Ada.", "final_answer('Ada')", f"Execution logs:{last}Ada", action_output="Ada",
             is_final_answer=True),
    ]  # fmt: skip
    found = parse(steps)
    assert seen(found) == [
        ("python_interpreter", ["Ada", "Bob"], ""),
        (None, [], ""),
        (None, [], ""),
    ]
    assert found.steps[0].evidence[1].text == "Bob did not."
    assert [step.think for step in found.steps] == ["I search.", "hm", "So it is Ada."]
    assert (found.answer, found.question, kinds(found)) == ("Ada", "Who?", ["no_action"])
    forced = {
        "step_number": 3,
        "action_output": "Ada",
        "error": {"type": "AgentMaxStepsError", "message": "Reached"},
    }
    for log in ([*steps[:3], forced], {"output": "Ada", "steps": [*steps[:3], forced]}):
        assert [step.answer for step in parse(log).steps] == [None, None, "Ada"]


def test_react_text() -> None:
    text = (
        "Question: Who?\nThought: I look.\nAction: Search[Ada]\nObservation: Ada did it.\n"
        'Thought 2: Once more.\nAction: lookup\nAction Input: {"query": "Bob"}\nObservation: []\n'
        "Thought: I know.\nFinal Answer: Ada"
    )
    found = parse(text)
    assert seen(found) == [("Search", ["Ada did it."], ""), ("lookup", [], "[]"), (None, [], "")]
    assert [step.think for step in found.steps] == ["I look.", "Once more.", "I know."]
    assert (found.question, found.answer, found.dialect) == ("Who?", "Ada", "openai")
    assert parse("Thought: a\nAction: Finish[Ada]").answer == "Ada"


def test_older_forms() -> None:
    """An executor's intermediate steps, the field that came before `tool_calls`, and a second
    question.
    """
    action = {"tool": "search", "tool_input": "who", "log": "Thought: I look.\nAction: search"}
    found = parse(
        {"input": "Who?", "intermediate_steps": [[action, "Ada did it."]], "output": "Ada"}
    )
    assert seen(found) == [("search", ["Ada did it."], ""), (None, [], "")]
    assert (found.question, found.steps[0].think, found.answer) == ("Who?", "I look.", "Ada")
    asked = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "search", "arguments": '{"query": "who"}'},
    }
    returned = {"role": "function", "name": "search", "content": "Ada did it."}
    found = parse([USER, asked, returned, {"role": "assistant", "content": "Ada"}])
    assert seen(found) == [("search", ["Ada did it."], ""), (None, [], "")]
    assert not kinds(found)
    found = parse(
        [
            USER,
            {"role": "assistant", "content": "Ada"},
            USER,
            {"role": "assistant", "content": "Bob"},
        ]
    )
    assert found.answer == "Bob"
    assert kinds(found) == ["asked_again", "dialect_assumed"]
    assert not found.evidence


@pytest.mark.parametrize(
    ("value", "seems"),
    [
        ({"traceId": "t", "attributes": []}, "spans.*let the instrumentation record"),
        ({"steps": [{"foo": 1}]}, "smolagents"),
        ({"schema_version": "1", "steps": []}, "ATIF"),
        ([{"a": 1}], "an object with a"),
    ],
)
def test_a_refusal_says_what_it_seems_to_be(value: Any, seems: str) -> None:
    with pytest.raises(DataError, match=seems):
        parse(value)
    with pytest.raises((DataError, DialectError), match=seems):
        READER.parse(
            json.dumps(value if isinstance(value, dict) else {"text": json.dumps(value)}).encode()
        )


ODD = [
    None,
    "",
    "x",
    7,
    -1,
    True,
    [],
    {},
    [None],
    {"type": "text"},
    {"role": "assistant"},
    [[]],
    "{",
    "[{}]",
]


def shaken(value: Any, random: Random, odds: float = 0.04) -> Any:
    """The value with parts of it left out, doubled, or replaced by something else."""
    if random.random() < odds:
        return random.choice(ODD)
    if isinstance(value, dict):
        kept = {
            name: shaken(item, random, odds)
            for name, item in value.items()
            if random.random() > odds
        }
        return kept if random.random() > odds else list(kept.values())
    if isinstance(value, list):
        items = [shaken(item, random, odds) for item in value if random.random() > odds]
        return items * 2 if random.random() < odds else items
    return value


def test_broken_logs_raise_only_the_packages_errors() -> None:
    random, rows = Random("formats"), list(installed("author").values())
    for _ in range(80):
        value = shaken(random.choice(rows), random)
        text = json.dumps(value)
        for read, source in ((parse, value), (parse, text), (READER.parse, text.encode())):
            try:
                read(source)
            except FaithfulSearchError as error:
                assert str(error)


def test_every_format_has_its_row_here() -> None:
    # ReAct is text; the others have files of their own: test_api_responses.py, test_stores.py,
    # test_rows_and_exports.py, test_reports.py, test_several_conversations.py, test_runs.py
    others = {
        *("mistral", "openai_evals", "react", "react_steps", "api_response", "dspy", "langfuse"),
        *("pydantic_ai", "rag", "browsecomp_plus", "exports", "report", "message_lines"),
        *("role_lines", "streams", "weave", "ai_sdk", "autogen", "miroflow", "a2a"),
    }
    assert set(formats.formats()) <= {*FORMATS, *others}


def test_an_episode_that_ended_before_its_first_step_is_read_back() -> None:
    stored = Trajectory((), "Who?", None, "failed", "openai", "ask-1", meta={"why": "no server"})
    row = json.loads(stored.to_json())
    assert formats.content(row).value == stored


def test_a_row_that_has_more_than_a_trajectory_is_none() -> None:
    row = {"stop_reason": "length", "dialect": "openai", "output": "<answer>Ada</answer>"}
    assert formats.content(row).place == "output"
