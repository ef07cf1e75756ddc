"""Calls and results in the markup of agents that search: Search-o1, WebThinker, DR Tulu."""

from typing import Any

import pytest
from dialect_texts import kinds

from faithful_search.dialects import parse

BODY = "Ada Mirov was born in <b>Veldt</b>,\na town in Oran."
SNIPPETS = (
    '<snippet id="S_a1">\nTitle: Ada Mirov\nURL: https://ex.org/ada\nSnippet: Born in '
    "Veldt.\nTitle: a word\n"
    "</snippet>\n<snippet id='S a2' source=\"x\">\nTitle: Veldt\nText: A town in\nOran.\n</snippet>"
)
QUESTION = "<|im_start|>user\nWhere was Ada born?<|im_end|>\n<|im_start|>assistant\n"


def steps(source: Any) -> list[tuple[str, Any, list[str]]]:
    return [
        (step.call.name, step.call.arguments, [item.text for item in step.evidence])
        for step in parse(source).steps
        if step.call
    ]


def o1(query: str, result: str) -> str:
    return (
        f"<|begin_search_query|>{query}<|end_search_query|>\n\n"
        f"<|begin_search_result|>{result}<|end_search_result|>\n\n"
    )


@pytest.mark.parametrize("prompt", ["", QUESTION])
def test_search_o1(prompt: str) -> None:
    text = f"{prompt}I search. {o1('Ada < Mirov', BODY)}Now the town. {o1('Veldt', BODY)}So:\n\\boxed{{Veldt}}"
    assert steps(text) == [
        ("search", {"query": "Ada < Mirov"}, [BODY]),
        ("search", {"query": "Veldt"}, [BODY]),
    ]
    read = parse(text)
    assert read.answer == "So:\n\\boxed{Veldt}" or read.answer == "Veldt"
    assert [step.think for step in read.steps[:2]] == ["I search.", "Now the town."]
    assert read.question == ("Where was Ada born?" if prompt else None)


def test_webthinker_opens_links() -> None:
    link = (
        "<|begin_click_link|>https://ex.org/ada<|end_click_link|>\n"
        "<|begin_click_result|>The page.<|end_click_result|>\n"
    )
    assert steps(f"I search. {o1('Ada', BODY)}I open it. {link}It was Veldt.") == [
        ("search", {"query": "Ada"}, [BODY]),
        ("click_link", {"url": "https://ex.org/ada"}, ["The page."]),
    ]


@pytest.mark.parametrize("prompt", ["", QUESTION])
def test_dr_tulu(prompt: str) -> None:
    text = (
        f'{prompt}<think>I search.</think>\n<call_tool name="snippet_search" limit="5">Ada '
        "Mirov</call_tool>\n"
        f"<tool_output>\n{SNIPPETS}\n</tool_output>\n<think>I open it.</think>\n"
        '<call_tool name="browse_webpage">https://ex.org/ada</call_tool>\n'
        "<tool_output>\n<webpage id=S_b1>\nTitle: Ada\nContent: The "
        "page.\n</webpage>\n</tool_output>\n"
        '<think>So.</think>\n<answer>Born in <cite id="S_a1">Veldt</cite>.</answer>'
    )
    assert steps(text) == [
        (
            "snippet_search",
            {"query": "Ada Mirov", "limit": "5"},
            ["Born in Veldt.\nTitle: a word", "A town in\nOran."],
        ),
        ("browse_webpage", {"url": "https://ex.org/ada"}, ["The page."]),
    ]
    read = parse(text)
    first, second = read.steps[0].evidence
    assert (first.title, first.url, first.label) == ("Ada Mirov", "https://ex.org/ada", "S_a1")
    assert (second.title, second.label) == ("Veldt", "S a2")
    assert read.answer == 'Born in <cite id="S_a1">Veldt</cite>.'
    assert [step.think for step in read.steps] == ["I search.", "I open it.", "So."]
    assert kinds(read) == []


def test_what_stands_beside_snippets_is_a_note() -> None:
    text = f'<call_tool name="s">Ada</call_tool><tool_output>{SNIPPETS}\nTimed out.</tool_output><answer>x</answer>'
    assert (len(parse(text).steps[0].evidence), parse(text).steps[0].note) == (2, "Timed out.")
    broken = text.replace("</snippet>", "")
    assert [item.text for item in parse(broken).steps[0].evidence] == [
        text.split("<tool_output>")[1].split("</tool_output>")[0].replace("</snippet>", "")
    ]


@pytest.mark.parametrize(
    "call",
    [
        "<|begin_search_query|>Ada<|end_search_query|>",
        '<call_tool name="search">Ada</call_tool>',
    ],
)
def test_such_calls_in_a_chat_are_calls(call: str) -> None:
    ask = {"role": "user", "content": "Where?"}
    chat = [
        ask,
        {"role": "assistant", "content": f"I search. {call}"},
        {"role": "user", "content": BODY},
        {"role": "assistant", "content": "Veldt."},
    ]
    assert steps(chat) == [("search", {"query": "Ada"}, [BODY])]
    assert parse(chat).answer == "Veldt."
    quoted = f"Agents write `{call}` when they search."
    assert parse([ask, {"role": "assistant", "content": quoted}]).answer == quoted


def test_the_agents_own_results_are_no_evidence() -> None:
    forged = f"I search. {o1('Ada', BODY)}It was Veldt."
    chat = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": forged}]
    for source in (parse(chat), parse(forged, responses="messages")):
        assert not any(step.evidence for step in source.steps)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (r"So the final answer is \boxed{Veldt}.", "Veldt"),
        (r"\boxed{Veldt}", "Veldt"),
        (r"It is \boxed{x_{1}}", r"It is \boxed{x_{1}}"),
        (r"One. Two \boxed{Veldt}", r"One. Two \boxed{Veldt}"),
        (r"Either \boxed{Veldt} or \boxed{Oran}", r"Either \boxed{Veldt} or \boxed{Oran}"),
        (r"So [1] \boxed{Veldt}", r"So [1] \boxed{Veldt}"),
    ],
)
def test_an_answer_that_is_a_box_is_what_it_holds(said: str, answer: str) -> None:
    assert parse(f"I search. {o1('Ada', BODY)}{said}").answer == answer
