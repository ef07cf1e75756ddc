"""WebDancer's dialect: blocks of links, and visits."""

from __future__ import annotations

from faithful_search.dialects import load

D = load("web_dancer")


CALL = '<think>\na\n</think>\n<tool_call>\n{"name": "search", "arguments": {"query": ["p", "q"]}}\n</tool_call>'
FOUND = (
    "A Google search for 'p' found 2 results:\n\n## Web Results\n1. [Sea (big)](https://s.org/a_(b))\n"
    "Date published: May 1\n\nwet\n\n2. [Lake](l)\n\n1. [inner](x)\n=======\n"
    "A Google search for 'q' found 1 results:\n\n## Web Results\n1. [Hill](h)\n\nhigh"
)
VISIT = (
    "The useful information in https://x.org for user goal g as follows: \n\nEvidence in page: \ne\n\nSummary: \ns\n\n"
)


def respond(body: str) -> str:
    return f"\n<tool_response>\n{body}\n</tool_response>\n"


def test_links_of_every_query() -> None:
    t = D.parse(f"{CALL}{respond(FOUND)}<think>b</think>\n<answer>\nAda\n</answer>")
    assert [(e.title, e.url, e.text) for e in t.evidence.values()] == [
        ("Sea (big)", "https://s.org/a_(b)", "Date published: May 1\n\nwet"),
        ("Lake", "l", "1. [inner](x)"),
        ("Hill", "h", "high"),
    ]
    assert t.answer == "Ada" and not t.all_issues()


def test_visits_and_failures() -> None:
    (page,) = D.parse(CALL + respond(VISIT)).steps[0].evidence
    assert (page.url, page.text) == ("https://x.org", "Evidence in page: \ne\n\nSummary: \ns")
    assert D.parse(CALL + respond("[visit] Failed")).steps[0].note == "[visit] Failed"


def test_the_prompts_example_is_not_the_agents() -> None:
    messages = [*D.prompt("Who?", []), {"role": "assistant", "content": "<think>a</think><answer>Ada</answer>"}]
    t = D.parse_messages(messages)
    assert t.question == "Who?" and t.answer == "Ada" and len(t.steps) == 1
