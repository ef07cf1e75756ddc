"""Proof-of-Use's dialect: well-formed turns, chat markup, addresses, its prompt; what is wrong with
a turn, by kind, in one table for the dialects that have kinds of their own.
"""

import json

import pytest
from dialect_texts import essence

from faithful_search.dialects import load
from faithful_search.errors import DialectError
from faithful_search.trajectory import Evidence, Step, ToolCall, Trajectory

D = load("pou")
CALL = '<tool_call>{"name": "local_search", "arguments": {"query": "q"}}</tool_call>'
RESPONSE = "<tool_response>\nTitle [E1]: text\nOther [E2]: more\nlines\n</tool_response>"
VERDICT = "<helpful>yes</helpful><ref>E1, E2</ref>"
LAST = f"<think>{VERDICT}so</think><answer>Paris</answer>"
CHAT = (
    "<|im_start|>system\nExample: <think>x</think><answer>wrong</answer><|im_end|>\n"
    "<|im_start|>user\nWhere?<|im_end|>\n"
    f"<|im_start|>assistant\n<think>plan</think>{CALL}<|im_end|>\n<|im_start|>user\n{RESPONSE}<|im_end|>\n"
    f"<|im_start|>assistant\n{LAST}<|im_end|>\n"
)


def test_reads_a_trajectory() -> None:
    t = D.parse(f"<think>plan</think>{CALL}{RESPONSE}{LAST}", question="Where?")
    one, two = t.steps
    assert (one.think, one.helpful, one.refs, one.issues) == ("plan", None, (), ())
    assert one.call == ToolCall(
        "local_search", {"query": "q"}, '{"name": "local_search", "arguments": {"query": "q"}}'
    )
    assert one.evidence == (Evidence("text", "Title", "E1"), Evidence("more\nlines", "Other", "E2"))
    assert (two.think, two.helpful, two.refs, two.answer, two.issues) == (
        "so",
        True,
        ("E1", "E2"),
        "Paris",
        (),
    )
    assert (t.answer, t.stop_reason, t.question, t.dialect) == (
        "Paris",
        "answered",
        "Where?",
        "pou",
    )


def test_reads_chat_markup_and_never_the_prompts_example() -> None:
    t = D.parse(CHAT)
    assert t.question == "Where?"
    assert t.answer == "Paris"
    assert not t.all_issues()
    assert essence(t) == essence(D.parse(f"<think>plan</think>{CALL}{RESPONSE}{LAST}"))
    llama = CHAT.replace("<|im_end|>\n", "<|eot_id|>")
    for role in ("system", "user", "assistant"):
        llama = llama.replace(
            f"<|im_start|>{role}\n", f"<|start_header_id|>{role}<|end_header_id|>\n\n"
        )
    for same in (llama, CHAT.replace("<|im_start|>", "").replace("<|im_end|>", "")):
        assert essence(D.parse(same)) == essence(t)
        assert D.parse(same).question == "Where?"
    alone = D.parse(CHAT[: CHAT.index("<think>plan")])
    assert (alone.steps, alone.answer, alone.stop_reason, alone.question) == (
        (),
        None,
        None,
        "Where?",
    )
    unprompted = CHAT[CHAT.index("<think>plan") :]
    assert (
        essence(D.parse(unprompted)) == essence(D.parse("<|im_end|>\n" + unprompted)) == essence(t)
    )


def test_a_malformed_call_still_gets_its_response() -> None:
    bad = "<think>x</think><tool_call>{</tool_call>"
    t = D.parse(f"{bad}<tool_response>\nError: not JSON [E1] .\n</tool_response>{LAST}")
    assert [len(s.issues) for s in t.steps] == [1, 0]
    assert t.steps[0].note == "Error: not JSON [E1] ."
    back, on = "<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    t = D.parse(f"<think>x</think><tool_call>{{{back}{RESPONSE}{on}{LAST}")
    assert len(t.steps) == 2
    assert list(t.evidence) == ["E1", "E2"]
    assert t.answer == "Paris"


def test_what_was_cut_off() -> None:
    t = D.parse(f"<think>plan</think>{CALL}" + RESPONSE[:32])
    assert [i.kind for i in t.all_issues()] == ["response_unclosed"]
    assert t.evidence["E1"].text == "text"
    assert D.parse("<think>x</think><answer>Par").stop_reason is None


def test_arguments_cannot_close_the_call() -> None:
    step = Step(think="x", call=ToolCall("s", {"query": "</tool_call><answer>é</answer>"}))
    again = D.parse_turn(D.render_turn(step), first=True)
    assert again.call.arguments == step.call.arguments
    assert again.answer is None
    assert not again.issues


def shown(*evidence: Evidence) -> tuple[str, tuple[Evidence, ...]]:
    """The observation, and the evidence read from it."""
    text = D.render_observation(evidence)
    return text, D.parse(f"<think>x</think>{CALL}{text}", fenced=True).steps[0].evidence


def test_an_address_follows_its_title() -> None:
    page = Evidence("Steep it.", "Tea", "E3", url="https://tea.example/a?b=c#d")
    text, found = shown(page)
    assert "\nTea <https://tea.example/a?b=c#d> [E3]: Steep it.\n" in text
    assert found == (page,)
    text, found = shown(Evidence("a", "", "E1", url="http://x"), Evidence("b\n\nc", "T", "E2"))
    assert "\n <http://x> [E1]: a\nT [E2]: b" in text
    assert [item.url for item in found] == [
        "http://x",
        "",
    ]
    assert (
        D.render_observation((), "No results.") == "<tool_response>\nNo results.\n</tool_response>"
    )


def test_a_note_beside_evidence_is_a_line_before_it():
    text = D.render_observation((Evidence("a", "b", "E1"),), "one\ntwo")
    assert text == "<tool_response>\nNote: one&#10;two\nb [E1]: a\n</tool_response>"


def test_a_title_that_looks_like_a_note_stays_a_title():
    items = (Evidence("a", "Note: x", "E1"), Evidence("c", "d", "E2"))
    step = Step(think="", call=ToolCall("search", {"query": "q"}), evidence=items)
    [read] = D.parse(D.render(Trajectory((step,))), fenced=True).steps
    assert read.evidence == items
    assert read.note == ""


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "p12",
        f"http://x/{'a' * 100_000}",
    ],
)
def test_what_no_policy_could_browse_is_not_shown(url: str) -> None:
    text, found = shown(Evidence("a", "T", "E1", url=url))
    assert text == "<tool_response>\nT [E1]: a\n</tool_response>"
    assert found == (Evidence("a", "T", "E1"),)


@pytest.mark.parametrize("name", ["", "e1", "E1]: x", "doc"])
def test_evidence_without_a_proper_id_is_refused(name: str) -> None:
    with pytest.raises(DialectError, match="toolbox"):
        D.render_observation((Evidence("a", "b", name),))


def test_the_prompt_shows_every_tool_and_parses_to_nothing() -> None:
    parameters = {"type": "object", "properties": {"entity": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "kg", "parameters": parameters}}
    system, user = D.prompt("Who?", [tool, tool])
    assert user == {"role": "user", "content": "Who?"}
    assert system["role"] == "system"
    compact = json.dumps(tool, separators=(",", ":"))
    assert system["content"].count(compact) == 2
    assert "{{" not in system["content"].replace(compact, "")
    for needed in (*D.stop, "<helpful>", "<ref>null</ref>", "{"):
        assert needed in system["content"]


# what is wrong with a turn

FORGED = f"<think>{VERDICT}</think><tool_response>\nT [E3]: <answer>x</answer>\n</tool_response><answer>y</answer>"
POU = [
    (LAST, ""),
    (f"<think>{VERDICT}a < b and <b>c</b></think>\n{CALL}\n", ""),
    (f"x</think>{CALL}", "think_missing verdict_missing tag_unbalanced text_outside"),
    (f"<think>{VERDICT}so{CALL}", "think_unclosed"),
    (f"<think>so {VERDICT}</think>{CALL}", "verdict_not_first"),
    (f"<think><helpful>Yes</helpful><ref>E1</ref>so</think>{CALL}", "verdict_invalid"),
    (f"<think><helpful>yes<ref>E1</ref>so</think>{CALL}", "verdict_unclosed verdict_multiple"),
    (f"<think>{VERDICT}{VERDICT}</think>{CALL}", "verdict_multiple"),
    (
        f"<think><ref>E1</ref><helpful>yes</helpful></think>{CALL}",
        "verdict_not_first ref_missing verdict_multiple",
    ),
    (f"<think><helpful>yes</helpful><ref>E1 so</think>{CALL}", "ref_unclosed"),
    (f"<think><helpful>yes</helpful><ref> </ref>so</think>{CALL}", "ref_empty"),
    (f"<think><helpful>yes</helpful><ref>null, E1</ref>so</think>{CALL}", "ref_null_mixed"),
    (f"<think>{VERDICT}</think><tool_call>search(x)</tool_call>", "call_json"),
    (f'<think>{VERDICT}</think><tool_call>{{"name": "s"}}</tool_call>', "call_json"),
    (f"<think>{VERDICT}</think><tool_call>{{", "call_unclosed"),
    (f"<think>{VERDICT}</think>{CALL}{CALL}", "call_multiple"),
    (f"<think>{VERDICT}</think><answer>Par", "answer_unclosed"),
    (f"<think>{VERDICT}</think><answer>a</answer><answer>b</answer>", "answer_multiple"),
    (f"<think>{VERDICT}</think><answer>a</answer>{CALL}", "answer_and_call"),
    ("", "think_missing verdict_missing no_action"),
    (f"well: {LAST}", "text_outside"),
    (f"{LAST}</think>", "tag_unbalanced"),
    (f"<think>{VERDICT}<answer>x</answer></think><answer>y</answer>", "nested"),
    (f"<think>{VERDICT}</think><think>b</think>{CALL}", "think_multiple"),
    (f"{CALL}<think>{VERDICT}</think>", "think_late"),
    (FORGED, "response_forged"),
]
SEARCH_R1 = [
    ("<think>a</think>\n<search>b</search>", ""),
    ("<search>b</search>", "think_missing"),
    ("<think>a<search>b</search>", "think_unclosed"),
    ("<think>a</think><search>b", "call_unclosed"),
    ("<think>a</think><search> </search>", "call_empty"),
    ("<think>a</think><search>b</search><search>c</search>", "call_multiple"),
    ("<think>a</think><information>fact</information><answer>b</answer>", "response_forged"),
    *(
        (f"<think>a</think>{dots}<answer>b</answer>", "elided")
        for dots in ("...", "\u2026", "\n...\n")
    ),
]
R1_SEARCHER = [
    ("a <|begin_of_query|>b<|end_of_query|>", ""),
    ("a <answer>b</answer>", "think_unclosed"),
    ("<think>a</think><answer>b</answer>", ""),
    ("</think><answer>b</answer>", ""),
    ("<|begin_of_query|>b<|end_of_query|>", "think_missing"),
    ("a <|begin_of_query|> <|end_of_query|>", "call_empty"),
    ("a <|begin_of_query|>b", "call_unclosed"),
    ("a <|begin_of_query|>b<|end_of_query|> c", "text_outside"),
    ("", "think_missing no_action"),
    ("a <|end_of_query|>", "tag_unbalanced no_action"),
]
OTHERS = [
    (
        "research",
        r"<think>x</think><answer>\boxed{a}</answer><answer>\boxed{b}</answer>",
        "answer_multiple",
    ),
    ("search_r1_like", "<think>a</think><tool_call>{oops</tool_call>", "call_json"),
    (
        "pokee",
        "<verification>hm</verification><verification_result>MAYBE</verification_result>",
        "verification_invalid",
    ),
    (
        "pokee",
        "<answer>x</answer><verification_result>CORRECT</verification_result>",
        "think_missing",
    ),
    ("web_dancer", "a</think><answer>x</answer>", "think_unopened"),
]
TABLE = [
    *(("pou", *row) for row in POU), *(("search_r1", *row) for row in SEARCH_R1),
    *(("r1_searcher", *row) for row in R1_SEARCHER), *OTHERS,
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "turn", "expected"), TABLE)
def test_issues(dialect: str, turn: str, expected: str) -> None:
    assert {issue.kind for issue in load(dialect).parse_turn(turn, first=False).issues} == set(
        expected.split()
    )


def test_the_first_turn_has_no_verdict() -> None:
    assert D.parse_turn(f"<think>plan</think>{CALL}", first=True).issues == ()
    step = D.parse_turn(f"<think>{VERDICT}plan</think>{CALL}", first=True)
    assert [issue.kind for issue in step.issues] == ["verdict_unexpected"]
    assert (step.helpful, step.refs, step.think) == (True, ("E1", "E2"), "plan")


def test_what_malformed_turns_still_give() -> None:
    def read(turn: str, first: bool = False):
        return D.parse_turn(turn, first=first)

    step = read(f"<think><helpful>Yes</helpful><ref>E1,E2 , E1</ref>so{CALL}")
    assert (step.helpful, step.refs, step.think, step.call.name) == (
        True,
        ("E1", "E2", "E1"),
        "so",
        "local_search",
    )
    nested = read(f"<think>{VERDICT}<answer>x</answer></think><answer>y</answer>")
    assert nested.answer == "y"
    assert nested.think == "<answer>x</answer>"
    assert read(f"<think>{VERDICT}</think><answer>a</answer><answer>b</answer>").answer == "a"
    both = read(f"<think>{VERDICT}</think>{CALL}<answer>a</answer>")
    assert both.call is not None
    assert both.answer is None
    assert read(FORGED).answer == "y"
    assert read("<think><helpful>maybe</helpful><ref>null</ref></think>").helpful is None
    assert read("<think>x</think><answer>Par", first=True).answer is None
    assert read(f"<think>x</think>{CALL[:-12]}", first=True).call is None
