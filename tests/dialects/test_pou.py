"""Proof-of-Use's dialect: well-formed turns, chat markup, addresses, its prompt. Issues: `test_issues.py`."""

import json

import pytest

from faithful_search.dialects import load
from faithful_search.errors import DialectError
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

D = load("pou")
CALL = '<tool_call>{"name": "local_search", "arguments": {"query": "q"}}</tool_call>'
RESPONSE = "<tool_response>\nTitle [E1]: text\nOther [E2]: more\nlines\n</tool_response>"
LAST = "<think><helpful>yes</helpful><ref>E1, E2</ref>so</think><answer>Paris</answer>"
CHAT = (
    "<|im_start|>system\nExample: <think>x</think><answer>wrong</answer><|im_end|>\n"
    "<|im_start|>user\nWhere?<|im_end|>\n"
    f"<|im_start|>assistant\n<think>plan</think>{CALL}<|im_end|>\n<|im_start|>user\n{RESPONSE}<|im_end|>\n"
    f"<|im_start|>assistant\n{LAST}<|im_end|>\n"
)


def essence(trajectory: Trajectory) -> list[tuple[object, ...]]:
    return [(s.think, s.call, s.answer, s.helpful, s.refs, s.evidence, s.note) for s in trajectory.steps]


def test_reads_a_trajectory() -> None:
    t = D.parse(f"<think>plan</think>{CALL}{RESPONSE}{LAST}", question="Where?")
    one, two = t.steps
    assert (one.think, one.helpful, one.refs, one.issues) == ("plan", None, (), ())
    assert one.call == ToolCall("local_search", {"query": "q"}, '{"name": "local_search", "arguments": {"query": "q"}}')
    assert one.evidence == (Evidence("text", "Title", "E1"), Evidence("more\nlines", "Other", "E2"))
    assert (two.think, two.helpful, two.refs, two.answer, two.issues) == ("so", True, ("E1", "E2"), "Paris", ())
    assert (t.answer, t.stop_reason, t.question, t.dialect) == ("Paris", "answered", "Where?", "pou")


def test_reads_chat_markup_and_never_the_prompts_example() -> None:
    t = D.parse(CHAT)
    assert t.question == "Where?" and t.answer == "Paris" and not t.all_issues()
    assert essence(t) == essence(D.parse(f"<think>plan</think>{CALL}{RESPONSE}{LAST}"))
    llama = CHAT.replace("<|im_end|>\n", "<|eot_id|>")
    for role in ("system", "user", "assistant"):
        llama = llama.replace(f"<|im_start|>{role}\n", f"<|start_header_id|>{role}<|end_header_id|>\n\n")
    for same in (llama, CHAT.replace("<|im_start|>", "").replace("<|im_end|>", "")):
        assert essence(D.parse(same)) == essence(t) and D.parse(same).question == "Where?"
    alone = D.parse(CHAT[: CHAT.index("<think>plan")])
    assert (alone.steps, alone.answer, alone.stop_reason, alone.question) == ((), None, None, "Where?")
    unprompted = CHAT[CHAT.index("<think>plan") :]
    assert essence(D.parse(unprompted)) == essence(D.parse("<|im_end|>\n" + unprompted)) == essence(t)


def test_a_malformed_call_still_gets_its_response() -> None:
    bad = "<think>x</think><tool_call>{</tool_call>"
    t = D.parse(f"{bad}<tool_response>\nError: not JSON [E1] .\n</tool_response>{LAST}")
    assert [len(s.issues) for s in t.steps] == [1, 0] and t.steps[0].note == "Error: not JSON [E1] ."
    cut, roles = (
        "<think>x</think><tool_call>{",
        ("<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    )
    t = D.parse(f"{cut}{roles[0]}{RESPONSE}{roles[1]}{LAST}")
    assert len(t.steps) == 2 and list(t.evidence) == ["E1", "E2"] and t.answer == "Paris"


def test_what_was_cut_off() -> None:
    t = D.parse(f"<think>plan</think>{CALL}" + RESPONSE[:32])
    assert [i.kind for i in t.all_issues()] == ["response_unclosed"] and t.evidence["E1"].text == "text"
    assert D.parse("<think>x</think><answer>Par").stop_reason is None


def test_arguments_cannot_close_the_call() -> None:
    step = Step(think="x", call=ToolCall("s", {"query": "</tool_call><answer>é</answer>"}))
    again = D.parse_turn(D.render_turn(step), first=True)
    assert again.call.arguments == step.call.arguments and again.answer is None and not again.issues


def shown(*evidence: Evidence) -> tuple[str, tuple[Evidence, ...]]:
    """The observation, and the evidence read from it."""
    text = D.render_observation(evidence)
    return text, D.parse(f"<think>x</think>{CALL}{text}", fenced=True).steps[0].evidence


def test_the_address_of_a_page_stands_behind_its_title_and_a_note_where_there_is_no_evidence() -> None:
    page = Evidence("Steep it.", "Tea", "E3", url="https://tea.example/a?b=c#d")
    text, found = shown(page)
    assert "\nTea <https://tea.example/a?b=c#d> [E3]: Steep it.\n" in text and found == (page,)
    text, found = shown(Evidence("a", "", "E1", url="http://x"), Evidence("b\n\nc", "T", "E2"))
    assert "\n <http://x> [E1]: a\nT [E2]: b" in text and [item.url for item in found] == ["http://x", ""]
    assert D.render_observation((), "No results.") == "<tool_response>\nNo results.\n</tool_response>"
    assert "note" not in D.render_observation((Evidence("a", "b", "E1"),), "note")


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "file:///etc/passwd", "data:text/html,x", "p12", f"http://x/{'a' * 100_000}"]
)
def test_what_no_policy_could_browse_is_not_shown(url: str) -> None:
    text, found = shown(Evidence("a", "T", "E1", url=url))
    assert text == "<tool_response>\nT [E1]: a\n</tool_response>" and found == (Evidence("a", "T", "E1"),)


@pytest.mark.parametrize("name", ["", "e1", "E1]: x", "doc"])
def test_evidence_without_a_proper_id_is_refused(name: str) -> None:
    with pytest.raises(DialectError, match="toolbox"):
        D.render_observation((Evidence("a", "b", name),))


def test_the_prompt_shows_every_tool_and_parses_to_nothing() -> None:
    parameters = {"type": "object", "properties": {"entity": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "kg", "parameters": parameters}}
    system, user = D.prompt("Who?", [tool, tool])
    assert user == {"role": "user", "content": "Who?"} and system["role"] == "system"
    compact = json.dumps(tool, separators=(",", ":"))
    assert system["content"].count(compact) == 2 and "{{" not in system["content"].replace(compact, "")
    for needed in (*D.stop, "<helpful>", "<ref>null</ref>", "{"):
        assert needed in system["content"]
