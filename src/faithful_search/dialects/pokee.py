"""PokeeResearch: research turns, and verification turns in which the agent checks the answer it gave.

A verification turn is a step whose `think` is the verification and whose `verified` its result. A result goes before
an answer, an answer before a call. `Trajectory.answer` is the last answer given, even where the agent went on to find
it incorrect: that clears `stop_reason`. Lines of the controller between turns are skipped, with or without a role.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

from ..formats.blocks import as_json
from ..trajectory import Evidence, Issue, Step
from .base import prompt_file
from .fence import tags
from .passages import JSON_LIST, read_list, search_of
from .segments import Segment
from .tool_calls import MARKS, PLACES, ToolCalls
from .turns import Fields, skip

_OPEN = "<verification>"
_ANSWERED = "You have provided an answer. ##The verification mode starts##."
_INCORRECT = (
    "The answer is verified to be incorrect. Please incorporate the feedback of the verification into your research. "
    "##The research mode starts##."
)
_NO_ACTION = "You are in the {} mode but didn't generate a <{}> block. Please try again."
_LINE = re.compile(
    r"You have provided an answer\. ##The verification mode starts##\.?"
    r"|The answer is verified to be incorrect\.[^<>#]{0,200}##The research mode starts##\.?"
    r"|You are in the (?:research|verification) mode but didn't generate a <(?:tool_call|verification_result)> block\."
    r" Please try again\."
)
_CHECK = re.compile(r"<verification>(.*?)(?:(</verification>)|\Z)", re.DOTALL | re.IGNORECASE)
_RESULT = re.compile(r"<verification_result>([^<]{0,200})</verification_result>", re.IGNORECASE)


class Pokee(ToolCalls):
    system = prompt_file("pokee")
    ask = "{question} ##The research mode starts##"
    stop = ("</tool_call>", "</answer>", "</verification_result>")
    tool_names: ClassVar[Mapping[str, str]] = {"browse": "web_read"}
    verifies = True
    forbidden = rf"{tags('verification', 'verification_result')}|{JSON_LIST}|The (?:research|verification) mode starts##"
    marks = MARKS | {"verification": 3.0, "verification_result": 4.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"##The (?:research|verification) mode starts##": 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"web_(?:read|browse)"': 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"web_search",\s?"arguments":\s?\{"query_list"': 4.0,
        r'<tool_response>\s{0,9}\[\s{0,9}\{\s{0,9}"query":': 4.0,
    }
    asked = re.compile(r"\A(.*?)(?:##The research mode starts##\s*+)?+\Z", re.DOTALL)
    places = re.compile(PLACES + r"|<verification>|</verification_result>", re.IGNORECASE)
    steers = re.compile(
        r"##The (?:research|verification) mode starts##|\AYou are in the (?:research|verification) mode but "
    )

    def split(self, text: str, start: int, end: int) -> Iterator[Segment]:
        """The controller's lines also end a turn where no role stands before them."""
        for segment in super().split(text, start, end):
            if segment.who != "agent":
                yield segment
                continue
            begin, until = segment.span
            lines = [line.span() for line in _LINE.finditer(text, begin, until)]
            for stop, behind in (*lines, (until, until)):
                begin = skip(text, begin, stop)
                if begin < stop:
                    yield Segment("agent", (begin, stop))
                begin = behind

    def controller(self, steps: Sequence[Step], verify: bool = False) -> str | None:
        """The next mode: verification after an answer, research after one found incorrect; again what was missed.

        The agent verifies from an answer on until it says CORRECT, which ends the thread, or INCORRECT.
        """
        *before, last = steps
        if last.answer is not None:
            return _ANSWERED if verify else None
        if last.verified is False:
            return _INCORRECT
        spoke = next(
            (
                step
                for step in reversed(before)
                if step.answer is not None or step.verified is not None
            ),
            None,
        )
        if spoke is None or spoke.answer is None:
            return _NO_ACTION.format("research", "tool_call")
        return None if last.verified else _NO_ACTION.format("verification", "verification_result")

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Also before a verification that follows other tags, and after its result."""
        tag = place[0].lower()
        if tag == "</verification_result>":
            return place.end()
        if tag == _OPEN:
            at = place.start()
            return (
                at
                if at > start and text[max(start, at - 200) : at].rstrip().endswith(">")
                else None
            )
        return super().ends_at(text, start, place)

    def read_turns(
        self, text: str, start: int, end: int, first: bool, alone: bool = False
    ) -> list[Fields]:
        result = _RESULT.search(text, start, end)
        begins = text[start : start + len(_OPEN)].lower() == _OPEN
        check = _CHECK.search(text, start, end) if result or begins else None
        if result is None and (check is None or not check[2]):
            return super().read_turns(text, start, end, first, alone)
        fields: Fields = {"spans": {"step": (start, start + len(text[start:end].rstrip()))}}
        issues: list[Issue] = []
        if check and check[2]:
            fields["think"], fields["spans"]["think"] = check[1], check.span(1)
        else:
            issues.append(Issue("think_missing", "a verification result without a verification"))
        said = result[1].strip().upper() if result else ""
        fields["verified"] = {"CORRECT": True, "INCORRECT": False}.get(said)
        if fields["verified"] is None:
            why = f"the verification says {said[:40]!r}, not CORRECT or INCORRECT"
            issues.append(Issue("verification_invalid", why))
        return [{**fields, "issues": tuple(issues)}]

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        answer, ended = super().conclude(steps)
        upheld = answer is not None and steps[-1].get("verified") is True
        return answer, "answered" if upheld else ended

    def render_turn(self, step: Step) -> str:
        if step.verified is None:
            return super().render_turn(step)
        result = "CORRECT" if step.verified else "INCORRECT"
        return f"<verification>{step.think or ''}</verification><verification_result>{result}</verification_result>"

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        return read_list(body, ("query", "url"))

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        """The results of one search and the pages read, which have an address and no title."""
        written: list[Any] = []
        for is_page, items in groupby(
            evidence, lambda item: bool(item.url and item.text and not item.title)
        ):
            if is_page:
                written += [
                    {"url": item.url, "information": item.text, "nested_urls": []} for item in items
                ]
            else:
                written.append(search_of(items, "query", "search_results", "description"))
        return as_json(written)
