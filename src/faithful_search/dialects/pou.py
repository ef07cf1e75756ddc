"""Proof-of-Use: from the second step on, every thought opens with a verdict on the evidence
received (section 3.2).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec

from ..errors import DialectError
from ..formats.blocks import as_json
from ..trajectory import Evidence, Span, Step, ToolCall
from .base import prompt_file
from .fence import one_line
from .tool_calls import MARKS, OPEN, ToolCalls
from .turns import Fields, Grammar, Tag, TurnReader

_NAMES = ("think", "helpful", "ref", "tool_call", "tool_response", "answer")
_VERDICT_TAGS = ("helpful", "ref")
# What opens a thought from the second turn on. It may be missing: the first turn has none.
_VERDICT = r"(?:\s*+<helpful>(?P<helpful>yes|no)</helpful>\s*+<ref>(?P<ref>[^<]*+)</ref>)?+"
# The id between a passage's title and its text. The blank before it is checked by looking back from
# the bracket: a pattern that begins with a literal character is found far faster.
_CITE = re.compile(r"\[(?<= \[)(E[0-9]++)\]: ")
_ID = re.compile(r"E[0-9]+")
_LONGEST_URL = 500


class _VerdictReader(TurnReader):
    """Also reads the verdict that opens a thought."""

    def no_think(self) -> None:
        super().no_think()
        if not self.first:
            self.issue("verdict_missing", "no verdict on the tool response before")

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        """Read the verdict; where it opens the thought, the reasoning begins after it."""
        verdict_tags = [tag for tag in inner if tag.name in _VERDICT_TAGS]
        openings = [tag for tag in verdict_tags if tag.name == "helpful" and not tag.closing]
        reasoning_start = span[0]
        if not openings:
            if not self.first:
                self.issue("verdict_missing", "no verdict on the tool response before", span)
            for tag in verdict_tags:
                self.unbalanced(tag)
        else:
            opening = openings[0]
            if self.first:
                why = "a verdict before there was any tool response"
                self.issue("verdict_unexpected", why, opening.span)
            opens_thought = not self.text[span[0] : opening.start].strip()
            if not opens_thought:
                why = "the verdict does not open the thought"
                self.issue("verdict_not_first", why, opening.span)
            number = inner.index(opening)
            end, used = self._verdict(inner[number : number + 4])
            superfluous = [tag for tag in verdict_tags if tag not in used]
            if superfluous:
                why = "more verdict tags than one verdict has"
                self.issue("verdict_multiple", why, superfluous[0].span)
            if opens_thought:
                reasoning_start = end
        self.nested([tag for tag in inner if tag.name not in _VERDICT_TAGS])
        return reasoning_start, span[1]

    def _verdict(self, tags: list[Tag]) -> tuple[int, list[Tag]]:
        """Read the verdict that begins with these tags, the first of which opens `<helpful>`.

        Returns where it ends, and the tags that belong to it.
        """
        expected = (("helpful", False), ("helpful", True), ("ref", False), ("ref", True))
        count = 0  # of the tags that are as they should be
        for tag, form in zip(tags, expected, strict=False):
            if (tag.name, tag.closing) != form:
                break
            count += 1
        if count > 2 and self.text[tags[1].end : tags[2].start].strip():
            count = 2  # words stand between the verdict and `<ref>`
        if count == 1:
            self.issue("verdict_unclosed", "<helpful> is not closed", tags[0].span)
            return tags[0].start, tags[:1]
        self._helpful((tags[0].end, tags[1].start))
        if count == 4:
            self._refs((tags[2].end, tags[3].start))
            return tags[3].end, tags[:count]
        if count == 3:
            self.issue("ref_unclosed", "<ref> is not closed", tags[2].span)
        else:
            self.issue("ref_missing", "no <ref> behind the verdict", (tags[1].end, tags[1].end))
        return tags[1].end, tags[:count]

    def _helpful(self, span: Span) -> None:
        """Read whether the verdict says that the evidence was helpful."""
        self.spans["helpful"] = span
        value = self.text[slice(*span)]
        if value not in ("yes", "no"):
            self.issue("verdict_invalid", f"the verdict is {value[:40]!r}, not yes or no", span)
        meant = value.strip().lower()
        if meant in ("yes", "no"):
            self.fields["helpful"] = meant == "yes"

    def _refs(self, span: Span) -> None:
        """Read the ids that the verdict cites."""
        self.spans["ref"] = span
        names = _names(self.text[slice(*span)])
        ids = tuple(name for name in names if name != "null")
        self.fields["refs"] = ids
        if not names:
            self.issue("ref_empty", "<ref> holds neither ids nor null", span)
        elif ids and len(ids) < len(names):
            self.issue("ref_null_mixed", "null stands beside ids", span)


class PoU(ToolCalls):
    """The dialect of Proof-of-Use.

    `Step.helpful` and `Step.refs` of step t judge the evidence of step t - 1.
    """

    system = prompt_file("pou")
    grammar = Grammar(
        "tool_call", "tool_response", _NAMES, last_answer_counts=False, opens=_VERDICT
    )
    turn_reader = _VerdictReader
    needs_arguments = True
    tagged_turn_ends = re.compile(OPEN)
    between_parts = ""
    forbidden = r"\[[Ee][0-9]++\]"
    marks = MARKS | {"helpful": 4.0, "ref": 2.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"<tool_response>\n[^\n<]{0,60}(?: <http[^\n<>]{0,200}>)? \[E[0-9]{1,7}\]: ": 4.0
    }

    def fields_of(self, turn: re.Match[str], first: bool) -> Fields | None:
        """The fields of a turn, with the verdict that each but the first should have."""
        verdict, cited = turn.group("helpful", "ref")
        if (verdict is None) is not first:
            return None
        fields = super().fields_of(turn, first)
        if fields is None or first:
            return fields
        refs = _names(cited)
        if refs == ["null"]:
            refs = []
        elif not refs or "null" in refs:
            return None
        fields["helpful"], fields["refs"] = verdict == "yes", tuple(refs)
        spans = {"helpful": turn.span("helpful"), "ref": turn.span("ref")}
        fields["spans"] = spans | fields["spans"]
        return fields

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """Passages by their ids. Lines before the first title belong to no passage."""
        # [title + blank, id, text + newline + next title + blank, next id, …, last text]
        pieces = _CITE.split(body)
        last = len(pieces) - 1
        if not last:
            return [], body
        passages = []
        next_title = pieces[0][pieces[0].rfind("\n") + 1 : -1]
        for number in range(1, last, 2):
            title, text = next_title, pieces[number + 1]
            if number + 1 < last:
                end = text.rfind("\n")
                next_title = text[end + 1 : -1]
                text = text[: max(end, 0)]
            address = title.rfind(" <http") if title[-1:] == ">" else -1
            if address < 0:
                passages.append(Evidence(text, title, pieces[number]))
            else:
                url = title[address + 2 : -1]
                passages.append(Evidence(text, title[:address], pieces[number], url=url))
        return passages, ""

    def last_role(self, text: str, start: int, end: int) -> int:
        return -1  # no role ends a turn, so that a thought may hold any word

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        # An answer ends the episode: only the last turn's counts.
        return super().conclude(steps[-1:])

    def write_think(self, step: Step) -> str:
        if step.helpful is None:
            return super().write_think(step)
        verdict = "yes" if step.helpful else "no"
        refs = ", ".join(step.refs) or "null"
        return f"<helpful>{verdict}</helpful><ref>{refs}</ref>{super().write_think(step)}"

    def write_call(self, call: ToolCall) -> str:
        call_as_json = as_json({"name": call.name, "arguments": call.arguments})
        if not self.grammar.tag.search(call_as_json):
            return call_as_json
        # No argument may look like the end of the call.
        return call_as_json.replace("<", "\\u003c")

    def escaped_evidence(self, passage: Evidence, escape: Callable[[str], str]) -> Evidence:
        """The passage, without an address that no policy could open or that is long.

        A long address would crowd out the evidence, and a shortened one would lead nowhere.
        """
        url = passage.url
        if not url.startswith(("http://", "https://")) or len(url) > _LONGEST_URL:
            passage = msgspec.structs.replace(passage, url="")
        return super().escaped_evidence(passage, escape)

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        """One line for each passage. The address of a page stands after its title, with no `<`.

        Raises:
            DialectError: for evidence whose id is not `E` and a number (the toolbox gives these).
        """
        lines = []
        for passage in evidence:
            if not _ID.fullmatch(passage.id):
                raise DialectError(
                    f"evidence id {passage.id!r}: this dialect writes E and a number; give the "
                    "evidence ids through the toolbox"
                )
            title = one_line(passage.title)
            if passage.url:
                title += f" <{one_line(passage.url).replace('<', '&lt;')}>"
            elif title.endswith(">"):  # it would read as an address
                title = f"{title[:-1]}&#62;"
            lines.append(f"{title} [{passage.id}]: {passage.text}")
        return "\n".join(lines)


def _names(cited: str) -> list[str]:
    """The names between the commas of a `<ref>`."""
    if "," not in cited:
        name = cited.strip()
        return [name] if name else []
    return [name for part in cited.split(",") if (name := part.strip())]
