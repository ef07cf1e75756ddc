"""WebDancer's dialect: blocks of links, visits, and 150 real chats."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from paths import SHARED

from faithful_search.dialects import load, parse

D = load("web_dancer")
REAL = SHARED / "data" / "trajectories" / "webdancer.jsonl.gz"
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


@pytest.mark.skipif(not REAL.exists(), reason="the shared data are not here")
def test_real_chats() -> None:
    """All without an issue, every result of every search as evidence; messages, ChatML and bare roles read alike."""
    with gzip.open(REAL) as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        messages = row["messages"]
        t = parse(messages)
        assert t.dialect == "web_dancer" and not t.all_issues() and t.question and "User:" not in t.question
        final = re.search(r"<answer>(.*)</answer>", messages[-1]["content"], re.DOTALL)
        assert final and t.answer == final[1].strip()
        received = "".join(m["content"] for m in messages[3:] if m["role"] == "user")
        assert len(t.evidence) >= sum(
            map(int, re.findall(r"(?m)^A Google search for .* found (\d+) results:$", received))
        )
        essence = [(s.think, s.call, s.answer, s.evidence, s.note) for s in t.steps]
        for form in ("<|im_start|>{role}\n{content}<|im_end|>\n", "{role}\n{content}\n"):
            text = "".join(form.format(**message) for message in messages)
            assert [(s.think, s.call, s.answer, s.evidence, s.note) for s in D.parse(text).steps] == essence
