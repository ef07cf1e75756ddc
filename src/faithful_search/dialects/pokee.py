"""PokeeResearch: research turns, and verification turns in which the agent checks the answer it
gave.

A verification turn is a step whose `think` is the verification and whose `verified` its result. A
result goes before an answer, an answer before a call. `Trajectory.answer` is the last answer given,
even where the agent went on to find it incorrect: that clears `stop_reason`. Lines of the
controller between turns are skipped, with or without a role.
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
from .tool_calls import MARKS, PLACES, TAGGED, ToolCalls
from .turns import Fields, skip

_OPEN = "<verification>"
_ANSWERED = "You have provided an answer. ##The verification mode starts##."
_INCORRECT = (
    "The answer is verified to be incorrect. Please incorporate the feedback of the verification "
    "into your research. "
    "##The research mode starts##."
)
_NO_ACTION = "You are in the {} mode but didn't generate a <{}> block. Please try again."
_LINE = re.compile(
    r"You have provided an answer\. ##The verification mode starts##\.?"
    r"|The answer is verified to be incorrect\.[^<>#]{0,200}##The research mode starts##\.?"
    r"|You are in the (?:research|verification) mode but didn't generate a "
    r"<(?:tool_call|verification_result)> block\."
    r" Please try again\."
)
_CHECKS = "|<verification>|</verification_result>"  # further places where a turn may end
_CHECK = re.compile(r"<verification>(.*?)(?:(</verification>)|\Z)", re.DOTALL | re.IGNORECASE)
_RESULT = re.compile(r"<verification_result>([^<]{0,200})</verification_result>", re.IGNORECASE)


class Pokee(ToolCalls):
    system = prompt_file("pokee")
    user_prompt = "{question} ##The research mode starts##"
    stop = ("</tool_call>", "</answer>", "</verification_result>")
    tool_names: ClassVar[Mapping[str, str]] = {"browse": "web_read"}
    can_verify = True
    forbidden = (
        rf"{tags('verification', 'verification_result')}|{JSON_LIST}"
        r"|The (?:research|verification) mode starts##"
    )
    marks = MARKS | {"verification": 3.0, "verification_result": 4.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"##The (?:research|verification) mode starts##": 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"web_(?:read|browse)"': 4.0,
        r'<tool_call>\s{0,9}\{"name":\s?"web_search",\s?"arguments":\s?\{"query_list"': 4.0,
        r'<tool_response>\s{0,9}\[\s{0,9}\{\s{0,9}"query":': 4.0,
    }
    question_pattern = re.compile(r"\A(.*?)(?:##The research mode starts##\s*+)?+\Z", re.DOTALL)
    turn_ends = re.compile(PLACES + _CHECKS, re.IGNORECASE)
    tagged_turn_ends = re.compile(TAGGED + _CHECKS, re.IGNORECASE)
    controller_pattern = re.compile(
        r"##The (?:research|verification) mode starts##|\AYou are in the (?:research|verification) "
        r"mode but "
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

    def controller_reply(self, steps: Sequence[Step], verify: bool = False) -> str | None:
        """The opening of the next mode, or again that of the mode in which the turn did nothing.

        After an answer the agent verifies, until it says CORRECT, which ends the episode, or
        INCORRECT, after which it does research.
        """
        *earlier, last = steps
        if last.answer is not None:
            return _ANSWERED if verify else None
        if last.verified is False:
            return _INCORRECT
        verifies = False  # whether the last turn was to verify an answer
        for step in earlier:
            if step.answer is not None:
                verifies = True
            elif step.verified is not None:
                verifies = False
        if not verifies:
            return _NO_ACTION.format("research", "tool_call")
        return None if last.verified else _NO_ACTION.format("verification", "verification_result")

    def last_role(self, text: str, start: int, end: int) -> int:
        return end if "user\n" in text.casefold() else -1

    def ends_at(self, text: str, start: int, place: re.Match[str]) -> int | None:
        """Also before a verification that follows other tags, and after its result."""
        tag = place[0].lower()
        if tag == "</verification_result>":
            return place.end()
        if tag == _OPEN:
            at = place.start()
            follows_tag = text[max(start, at - 200) : at].rstrip().endswith(">")
            return at if at > start and follows_tag else None
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
        verdict = result[1].strip().upper() if result else ""
        fields["verified"] = {"CORRECT": True, "INCORRECT": False}.get(verdict)
        if fields["verified"] is None:
            why = f"the verification says {verdict[:40]!r}, not CORRECT or INCORRECT"
            issues.append(Issue("verification_invalid", why))
        return [{**fields, "issues": tuple(issues)}]

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        answer, stop_reason = super().conclude(steps)
        if answer is not None and steps[-1].get("verified") is True:
            stop_reason = "answered"
        return answer, stop_reason

    def render_turn(self, step: Step) -> str:
        if step.verified is None:
            return super().render_turn(step)
        verification = f"<verification>{step.think or ''}</verification>"
        verdict = "CORRECT" if step.verified else "INCORRECT"
        return f"{verification}<verification_result>{verdict}</verification_result>"

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        return read_list(body, ("query", "url"))

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        """Searches with their results, and pages that were read: these have an address, no title."""
        entries: list[Any] = []
        for is_page, passages in groupby(evidence, _is_page):
            if not is_page:
                entries.append(search_of(passages, "query", "search_results", "description"))
                continue
            for page in passages:
                entries.append({"url": page.url, "information": page.text, "nested_urls": []})
        return as_json(entries)


def _is_page(passage: Evidence) -> bool:
    return bool(passage.url and passage.text and not passage.title)
