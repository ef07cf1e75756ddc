"""PokeeResearch: research turns, and verification turns in which the agent checks the answer it gave.

```
<think>plan</think><tool_call>{"name": "web_search", "arguments": {"query_list": ["…"]}</tool_call>
<tool_response>
[{"query": "…", "search_results": [{"url": "…", "title": "…", "description": "…"}]}]
</tool_response>
<think>reasoning</think><answer>…</answer>
<verification>check</verification><verification_result>CORRECT</verification_result>
```

A verification turn is a step whose `think` is the verification and whose `verified` its result; a result other than
CORRECT and INCORRECT is an issue of kind `verification_invalid`. A result goes before an answer, an answer before a
call. `Trajectory.answer` is the last answer given, even where the agent went on to find it incorrect: that clears
`stop_reason`, and the step says so.

Evidence is each search result (its description) and each page read (`information`, a summary made for the question);
failures are notes. Lines of the controller between turns (`##The verification mode starts##`) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from ..trajectory import Evidence, Issue, Step
from .fence import Fence, tags
from .json_evidence import JSON_LIST, read_list, write_list
from .tool_calls import FENCED, MARKS, PLACES, ToolCalls
from .turns import Fields

# The wording is ours, not its checkpoint's.
_SYSTEM = """You answer questions by research on the web, in turns. There are two modes.

In the research mode a turn is either a thought and one call,
<think>your reasoning</think><tool_call>{"name": "tool's name", "arguments": {...}}</tool_call>
or a thought and the answer:
<think>your reasoning</think><answer>the answer</answer>
In the verification mode you check the answer you gave:
<verification>your check</verification><verification_result>CORRECT or INCORRECT</verification_result>
After INCORRECT you do more research.

Tools, as JSON schemas, one a line:
{tools}"""
_OPEN = "<verification>"
_BREAK = re.compile(PLACES + r"|<verification>|</verification_result>", re.IGNORECASE)
_CHECK = re.compile(r"<verification>(.*?)(?:(</verification>)|\Z)", re.DOTALL | re.IGNORECASE)
_RESULT = re.compile(r"<verification_result>([^<]{0,200})</verification_result>", re.IGNORECASE)
_CONTROLLER = re.compile(
    r"##The (?:research|verification) mode starts##|\AYou are in the (?:research|verification) mode but "
)


class Pokee(ToolCalls):
    """The dialect of PokeeResearch-7B."""

    system = _SYSTEM
    ask = "{question} ##The research mode starts##"
    stop = ("</tool_call>", "</answer>", "</verification_result>")
    tool_names: ClassVar[Mapping[str, str]] = {"browse": "web_read"}
    fence = Fence(FENCED + "|" + tags("verification", "verification_result") + "|" + JSON_LIST)
    marks: ClassVar[Mapping[str, float]] = {**MARKS, "verification": 3.0, "verification_result": 4.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"##The (?:research|verification) mode starts##": 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"web_(?:read|browse)"': 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"web_search",\s?"arguments":\s?\{"query_list"': 4.0,
        r'<tool_response>\s{0,9}\[\s{0,9}\{\s{0,9}"query":': 4.0,
    }
    asked = re.compile(r"\A(.*?)(?:##The research mode starts##\s*+)?+\Z", re.DOTALL)
    places = _BREAK

    def is_controller(self, text: str) -> bool:
        """Whether these are the controller's words."""
        return _CONTROLLER.search(text) is not None

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Also before a verification that follows other tags, and after its result."""
        tag = place[0].lower()
        if tag == "</verification_result>":
            return place.end()
        if tag == _OPEN:
            at = place.start()
            return at if at > start and text[max(start, at - 200) : at].rstrip().endswith(">") else None
        return super().ends_at(text, start, place)

    def read_plain(self, text: str, start: int, end: int, first: bool) -> Fields | None:
        """Also a verification, whatever it says."""
        result = _RESULT.search(text, start, end)
        begins = text[start : start + len(_OPEN)].lower() == _OPEN
        check = _CHECK.search(text, start, end) if result or begins else None
        check = check if check and check[2] else None
        if result is None and check is None:
            return super().read_plain(text, start, end, first)
        spans = {"step": (start, start + len(text[start:end].rstrip()))}
        fields: Fields = {"spans": spans}
        issues: list[Issue] = []
        if check is not None:
            fields["think"], spans["think"] = check[1], check.span(1)
        else:
            issues.append(Issue("think_missing", "a verification result without a verification"))
        said = result[1].strip().upper() if result else ""
        if said in ("CORRECT", "INCORRECT"):
            fields["verified"] = said == "CORRECT"
        else:
            why = f"the verification says {said[:40]!r}, not CORRECT or INCORRECT"
            issues.append(Issue("verification_invalid", why))
        return {**fields, "issues": tuple(issues)}

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        """The last answer, answered for good unless the agent found it incorrect and stopped."""
        answer, ended = super().conclude(steps)
        upheld = answer is not None and steps[-1].get("verified") is True
        return answer, "answered" if upheld else ended

    def render_turn(self, step: Step) -> str:
        """Write one turn; a step with `verified` as a verification."""
        if step.verified is None:
            return super().render_turn(step)
        result = "CORRECT" if step.verified else "INCORRECT"
        return f"<verification>{step.think or ''}</verification><verification_result>{result}</verification_result>"

    def read_body(self, body: str, fenced: bool) -> tuple[list[Evidence], str]:
        """Search results and pages; any other body is a note."""
        return read_list(body, ("query", "url"))

    def write_body(self, evidence: Sequence[Evidence], escape: Callable[[str], str]) -> str:
        """The results of one search."""
        return write_list(evidence, escape, "query", "search_results", "description")
