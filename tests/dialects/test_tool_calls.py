"""Dialects whose calls are JSON: what their tools return, modes, parallel calls, answers. Issues:
`test_pou.py`.
"""

import json
from typing import Any

import pytest
from dialect_texts import essence, kinds

from faithful_search.dialects import load
from faithful_search.rewards import Format
from faithful_search.trajectory import Step, Trajectory

OPENAI, POKEE, RECALL = map(load, ("openai", "pokee", "recall"))


def asks(name: str, arguments: dict[str, Any], think: str = "a") -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<think>{think}</think><tool_call>{call}</tool_call>"


def responds(body: Any) -> str:
    return f"\n<tool_response>\n{body if isinstance(body, str) else json.dumps(body)}\n</tool_response>\n"


# what tools return

# dialects whose responses have a form: a tool of another kind returns prose
SHAPED = ("web_dancer", "deep_researcher", "pokee", "search_r1_like")
SEARCHED = {
    "search_query": "q",
    "web_page_info_list": [{"title": "T", "url": "u", "quick_summary": "s &lt;b>"}],
}
PAGE = [
    {
        "url": "u",
        "information": [
            {"page_number": n, "page_summary": s} for n, s in enumerate(("one", "two"))
        ],
    }
]
HIT = {"query": "q", "search_results": [{"url": "u", "title": "T", "description": "d"}]}
CUT = f"{json.dumps([HIT])[:-9]}...(truncated)"
READ = [
    {"url": "u", "information": "sum", "nested_urls": []},
    {"url": "v", "error message": "down"},
]
LIKE_DOCS = (
    'Doc 1 (Title: "Sea")\nwet\n\nDoc 2 (Title: Lake)\nflat\n---\nDoc 1 (Title: "Hill")\nhigh'
)
LINKS = (
    "A Google search for 'p' found 2 results:\n\n## Web Results\n1. [Sea "
    "(big)](https://s.org/a_(b))\n"
    "Date published: May 1\n\nwet\n\n2. [Lake](l)\n\n1. [inner](x)\n=======\n"
    "A Google search for 'q' found 1 results:\n\n## Web Results\n1. [Hill](h)\n\nhigh"
)
VISIT = (
    "The useful information in https://x.org for user goal g as follows: "
    "\n\nEvidence in page: \ne\n\nSummary: \ns\n\n"
)
BLOCK = '{"name": "wikipedia_search", "arguments": {}}\nresult: \n"A"\ntext of A'


@pytest.mark.parametrize(
    ("name", "body", "evidence", "note"),
    [
        ("deep_researcher", [SEARCHED], [("T", "s &lt;b>", "u")], ""),
        ("deep_researcher", PAGE, [("", "one\ntwo", "u")], ""),
        *(("deep_researcher", value, [], json.dumps(value)) for value in ([], [[]])),
        ("deep_researcher", {"a": 1}, [("", '{"a": 1}', "")], ""),
        ("pokee", [HIT], [("T", "d", "u")], ""),
        ("pokee", READ, [("", "sum", "u")], "down"),
        ("pokee", "Parsing failed: no JSON", [], "Parsing failed: no JSON"),
        ("pokee", CUT, [("", CUT, "")], ""),
        ("search_r1_like", {"result": LIKE_DOCS}, [("Sea", "wet", ""), ("Lake", "flat", ""), ("Hill", "high", "")], ""),
        ("search_r1_like", {"result": "nothing found"}, [], "nothing found"),
        ("search_r1_like", "<information></information>", [], ""),
        ("search_r1_like", "<information>\nno header\n</information>", [("", "no header", "")], ""),
        ("web_dancer", LINKS, [("Sea (big)", "Date published: May 1\n\nwet", "https://s.org/a_(b)"),
                               ("Lake", "1. [inner](x)", "l"), ("Hill", "high", "h")], ""),
        ("web_dancer", VISIT, [("", "Evidence in page: \ne\n\nSummary: \ns", "https://x.org")], ""),
        ("web_dancer", "[visit] Failed", [], "[visit] Failed"),
        ("web_dancer", "[Search] Invalid request", [], "[Search] Invalid request"),
        *((name, "The Seine.", [("", "The Seine.", "")], "") for name in SHAPED),
        ("recall", BLOCK, [("A", "text of A", "")], ""),
        ("recall", "error: execution timed out", [], "execution timed out"),
        ("openai", {"results": [{"url": "u", "snippet": "s"}]}, [("", "s", "u")], ""),
        ("openai", ["a", "b"], [("", "a", ""), ("", "b", "")], ""),
        ("openai", "plain words", [("", "plain words", "")], ""),
        ("openai", {"note": "nothing"}, [], "nothing"),
        *(("openai", nothing, [], nothing) for nothing in ("", "None", "[ ]", "{}")),
        ("openai", "{'error': 'it\\'s \"down\"'}", [], 'it\'s "down"'),  # as Python prints what a tool returned
        ("openai", "[{'title': 'T', 'url': None, 'content': \"it's\"}]", [("T", "it's", "")], ""),
        ("openai", "{'error': f'{x}'}", [("", "{'error': f'{x}'}", "")], ""),
    ],
)  # fmt: skip
def test_what_tools_return(
    name: str, body: Any, evidence: list[tuple[str, str, str]], note: str
) -> None:
    end = (
        "\\boxed{Ada}"
        if name == "recall"
        else "Ada"
        if name == "openai"
        else "<think>b</think><answer>Ada</answer>"
    )
    t = load(name).parse(f"{asks('search', {'query': ['q']})}{responds(body)}{end}")
    assert [(e.title, e.text, e.url) for e in t.evidence.values()] == evidence
    assert t.steps[0].note == note
    assert list(t.evidence) == [f"E{n}" for n in range(1, len(evidence) + 1)]
    assert t.answer == "Ada"
    assert set(kinds(t)) <= {"think_missing"}


# prompts and calls of verl's example and of WebDancer


def test_a_bare_query_is_a_search() -> None:
    step = load("search_r1_like").parse_turn(
        "<think>a</think><tool_call> who was it </tool_call>", first=True
    )
    assert step.call
    assert (step.call.name, step.call.arguments) == (
        "search",
        {"query": "who was it"},
    )


# PokeeResearch's two modes

SEARCH = asks("web_search", {"query_list": ["q"]}, "a user\nasked")
CONTROL = "user\nYou have provided an answer. ##The verification mode starts##.\nassistant\n"
WRONG = "user\nThe answer is verified to be incorrect. ##The research mode starts##.\nassistant\n"
CHECK = "<verification>no</verification><verification_result>INCORRECT</verification_result>"
DECODED = (
    "system\nYou research.\nuser\nWho? ##The research mode starts##\nassistant\n"
    f"{SEARCH}user{responds([HIT])}assistant\n{asks('web_read', {'url_list': ['u', 'v']}, 'b')}user{responds(READ)}"
    f"assistant\n<think>c</think><answer>Bob</answer>{CONTROL}{CHECK}{WRONG}<think>d</think><answer>Ada</answer>{CONTROL}"
    "<verification>yes</verification><verification_result>correct</verification_result>"
)


def test_a_decoded_rollout() -> None:
    t = POKEE.parse(DECODED)
    assert t.question == "Who?"
    assert t.answer == "Ada"
    assert t.stop_reason == "answered"
    assert not kinds(t)
    assert [(s.think, s.answer, s.verified) for s in t.steps] == [
        ("a user\nasked", None, None), ("b", None, None), ("c", "Bob", None), ("no", None, False),
        ("d", "Ada", None), ("yes", None, True),
    ]  # fmt: skip
    assert [(e.id, e.text) for e in t.evidence.values()] == [
        ("E1", "d"),
        ("E2", "sum"),
    ]
    assert t.steps[1].note == "down"
    assert all(t.text[slice(*step.spans["think"])] == step.think for step in t.steps)


def test_the_same_chat_as_messages() -> None:
    said = [
        ("user", "Who? ##The research mode starts##"),
        ("assistant", SEARCH),
        ("tool", json.dumps([HIT])),
        ("assistant", "<think>c</think><answer>Bob</answer>"),
        ("user", "You answered. ##The verification mode starts##. <answer>x</answer>"),
        ("assistant", CHECK),
    ]
    t = POKEE.parse_messages([{"role": role, "content": content} for role, content in said])
    assert [s.verified for s in t.steps] == [None, None, False]
    assert t.steps[0].evidence[0].url == "u"
    assert t.answer == "Bob"
    assert t.stop_reason is None
    assert t.question == "Who?"
    assert not kinds(t)


def test_a_result_before_an_answer_is_written_as_read() -> None:
    both = POKEE.parse_turn(
        "<answer>x</answer><verification_result>CORRECT</verification_result>", first=False
    )
    assert both.verified is True
    assert both.answer is None
    unsure = POKEE.parse(
        "<verification>hm</verification><verification_result>MAYBE</verification_result>"
    )
    assert unsure.steps[0].verified is None
    steps = (
        Step(think="a", answer="b"),
        Step(think="no", verified=False),
        Step(think="c", answer="d"),
    )
    found = POKEE.parse(POKEE.render(Trajectory(steps)), fenced=True)
    assert [(s.think, s.answer, s.verified) for s in found.steps] == [
        (s.think, s.answer, s.verified) for s in steps
    ]


# parallel calls and answers without a tag

CALL = '<tool_call>\n{"name": "wikipedia_search", "arguments": {"query": "%s"}}\n</tool_call>'


def test_parallel_calls_are_steps_of_one_turn() -> None:
    blocks = "".join(responds(BLOCK.replace("A", name)) for name in "AB")
    text = f"two things</think>\n{CALL % 'a'}\n{CALL % 'b'}<|im_end|>\n<|im_start|>user\n{blocks}<|im_end|>\n"
    text += "<|im_start|>assistant\n<think>so it is</think> The answer is \\[ \\boxed{\\text{Ada}} \\]<|im_end|>"
    t = RECALL.parse(text)
    assert [
        (s.think, s.same_turn, [(e.id, e.title, e.text) for e in s.evidence]) for s in t.steps
    ] == [
        ("two things", False, [("E1", "A", "text of A")]),
        (None, True, [("E2", "B", "text of B")]),
        ("so it is", False, []),
    ]
    assert t.answer == "\\text{Ada}"
    assert t.stop_reason == "answered"
    assert not kinds(t)
    again = RECALL.parse(RECALL.render(t), fenced=True)
    assert essence(again) == essence(t)
    assert list(map(len, again.turns)) == [2, 1]


def test_a_further_call_is_a_turn_where_none_are_parallel() -> None:
    t = OPENAI.parse(f"<think>a</think>{CALL % 'a'}{CALL % 'b'}{responds('x')}{responds('y')}Ada")
    for dialect in (POKEE, load("web_dancer")):
        first, second, _ = dialect.parse(dialect.render(t), fenced=True).steps
        assert (first.call.arguments["query"], second.call.arguments["query"]) == ("a", "b")
        assert [[e.text for e in s.evidence] for s in (first, second)] == [["x"], ["y"]]


def test_a_second_call_that_is_broken_and_a_missing_response() -> None:
    text = f"<think>a</think>{CALL % 'a'}<tool_call>{{oops</tool_call><tool_response>\noutput: \n7\n</tool_response>"
    first, second = RECALL.parse(text).steps
    assert first.evidence[0].text == "7"
    assert {i.kind for i in second.issues} == {
        "call_json",
        "response_missing",
    }
    assert second.same_turn
    assert second.call is None
    assert RECALL.parse("") == Trajectory(dialect="recall")


TWO_ANSWERS = "<think>a</think><answer>\\boxed{one}</answer><answer> \\boxed{two} </answer>"


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("recall", "a</think> \\boxed z\n\\boxed x", "x"),
        ("recall", "a</think> \\boxed{1} \\boxed{2}", "2"),
        ("recall", "a</think> \\boxed{cut", None),
        ("recall", f"<think>a</think> maybe \\boxed{{x}} {CALL % 'q'}", None),
        *(
            ("openai", text, None)
            for text in ("<", "<thi", "<think>a</think>\n<tool_ca", "<think>a</think>")
        ),
        ("openai", "<think>a</think>Ada<|im_end|>", "Ada"),
        *((name, TWO_ANSWERS, "\\boxed{one}") for name in ("pou", "deep_researcher")),
        *((name, TWO_ANSWERS, "\\boxed{two}") for name in ("pokee", "search_r1")),
        ("research", TWO_ANSWERS, "two"),
        ("openai", "<answer>one</answer>, or <answer>two</answer>", "two"),
        ("openai", "<answer>the tags <answer>x</answer></answer>", "the tags <answer>x</answer>"),
    ],
)
def test_which_answer_counts_with_tags_and_without(
    name: str, text: str, answer: str | None
) -> None:
    assert load(name).parse(text).answer == answer


NEITHER = {
    "behind a call": f"I look. {CALL % 'q'} Then more.\nuser{responds('x')}Ada",
    "between two calls": f"I look. {CALL % 'q'} Then {CALL % 'r'}{responds('x')}{responds('y')}Ada",
    "beside a thought": f"<think>I look.</think> Well: {CALL % 'q'}{responds('x')}Ada",
    "before a thought": "Well: <think>I know.</think> Ada",
}


@pytest.mark.parametrize("text", NEITHER.values(), ids=NEITHER)
def test_text_that_is_neither_thought_nor_answer_is_an_issue_but_no_fault_of_form(text):
    t = OPENAI.parse(text)
    assert t.answer == "Ada"
    assert kinds(t) == ["content_unread"]
    assert Format().score(t).value == 1.0


# chat messages with structured calls


@pytest.mark.parametrize(
    ("odd", "count"),
    [
        ([{"id": "1", "type": "function", "function": {"name": "a", "arguments": "{oops"}}], 1),
        ([{"id": "1", "type": "function", "function": {"name": "a", "arguments": "[1]"}}], 1),
        ("x", 1),
        ([None, 7, {"function": 3}, {}], 4),
        ([{"function": {"name": None}}], 1),
    ],
)
def test_odd_calls_are_issues(odd: Any, count: int) -> None:
    t = OPENAI.parse_messages([{"role": "assistant", "content": "x", "tool_calls": odd}])
    assert kinds(t) == ["call_json"] * count
    assert t.steps[0].think == "x"
    assert not any(step.call for step in t.steps)


@pytest.mark.parametrize("tags", ["</tool_call><tool_response>x", "<tool_response>"])
def test_arguments_may_be_an_object_or_text_and_hold_tags(tags: str) -> None:
    for arguments in ({"query": tags}, json.dumps({"query": tags})):
        call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": arguments}}
        t = OPENAI.parse_messages(
            [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]
        )
        assert t.steps[0].call
        assert t.steps[0].call.arguments == {"query": tags}
        assert not kinds(t)
