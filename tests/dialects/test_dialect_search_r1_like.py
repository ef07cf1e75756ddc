"""verl's dialect: bare queries, documents in a JSON result, the example in its prompt."""

from __future__ import annotations

import json

from faithful_search.dialects import load

D = load("search_r1_like")
DOCS = 'Doc 1 (Title: "Sea")\nwet\n\nDoc 2 (Title: Lake)\nflat\n---\nDoc 1 (Title: "Hill")\nhigh'


def test_documents_of_several_queries() -> None:
    call = '<tool_call>{"name": "search", "arguments": {"query_list": ["p", "q"]}}</tool_call>'
    response = f"<tool_response>\n{json.dumps({'result': DOCS})}\n</tool_response>"
    t = D.parse(f"<think>a</think>{call}{response}<think>b</think><answer>Ada</answer>")
    assert [(e.title, e.text) for e in t.evidence.values()] == [("Sea", "wet"), ("Lake", "flat"), ("Hill", "high")]
    assert t.answer == "Ada" and not t.all_issues()


def test_a_bare_query_is_a_search() -> None:
    step = D.parse_turn("<think>a</think><tool_call> who was it </tool_call>", first=True)
    assert step.call and (step.call.name, step.call.arguments) == ("search", {"query": "who was it"})
    (issue,) = D.parse_turn("<think>a</think><tool_call>{oops</tool_call>", first=True).issues
    assert issue.kind == "call_json"


def test_the_prompts_example_is_never_the_answer() -> None:
    prompt = D.prompt("Who?", [])[-1]["content"]
    chat = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    for text in (prompt, chat, f"user\n{prompt}\nassistant\n"):
        assert D.parse(text).answer is None and D.parse(text).question == "Who?"
    assert D.parse(f"{prompt}\n<think>a</think><answer>Ada</answer>").answer == "Ada"


def test_a_result_without_documents_is_a_note() -> None:
    response = '<tool_response>\n{"result": "nothing found"}\n</tool_response>'
    assert D.parse(f"<think>a</think><tool_call>q</tool_call>{response}").steps[0].note == "nothing found"
