"""Proof-of-Use: from the second step on, every thought opens with a verdict on the evidence received (section 3.2)."""

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
_VERDICT = r"(?:\s*+<helpful>(?P<helpful>yes|no)</helpful>\s*+<ref>(?P<ref>[^<]*+)</ref>)?+"
# The blank before it is looked for behind the bracket: a pattern that begins with one character is found far faster.
_CITE = re.compile(r"\[(?<= \[)(E[0-9]++)\]: ")
_ID = re.compile(r"E[0-9]+")
_LONGEST_URL = 500


class _Reader(TurnReader):
    """Reads also the verdict that opens a thought."""

    def no_think(self) -> None:
        super().no_think()
        if not self.first:
            self.issue("verdict_missing", "no verdict on the tool response before")

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        """Read the verdict; the reasoning begins behind it where it opens the thought."""
        verdict = [tag for tag in inner if tag.name in ("helpful", "ref")]
        start = next(
            (k for k, tag in enumerate(inner) if tag.name == "helpful" and not tag.closing), None
        )
        rest = span[0]
        if start is None:
            if not self.first:
                self.issue("verdict_missing", "no verdict on the tool response before", span)
            for tag in verdict:
                self.unbalanced(tag)
        else:
            opening = inner[start].span
            if self.first:
                self.issue(
                    "verdict_unexpected", "a verdict before there was any tool response", opening
                )
            opens = not self.text[span[0] : opening[0]].strip()
            if not opens:
                self.issue("verdict_not_first", "the verdict does not open the thought", opening)
            end, used = self._verdict(inner[start : start + 4])
            more = [tag for tag in verdict if tag not in used]
            if more:
                self.issue(
                    "verdict_multiple", "more verdict tags than one verdict has", more[0].span
                )
            rest = end if opens else rest
        self.nested([tag for tag in inner if tag not in verdict])
        return rest, span[1]

    def _verdict(self, tags: list[Tag]) -> tuple[int, list[Tag]]:
        """Read the verdict that these tags begin; returns where it ends, and those that it has."""
        wanted = (("helpful", False), ("helpful", True), ("ref", False), ("ref", True))
        right = [(tag.name, tag.closing) == want for tag, want in zip(tags, wanted, strict=False)]
        fits = [*right, False].index(False)
        if fits > 2 and self.text[tags[1].end : tags[2].start].strip():
            fits = 2
        if fits == 1:
            self.issue("verdict_unclosed", "<helpful> is not closed", tags[0].span)
            return tags[0].start, tags[:1]
        self.spans["helpful"] = (tags[0].end, tags[1].start)
        value = self.text[tags[0].end : tags[1].start]
        if value not in ("yes", "no"):
            self.issue(
                "verdict_invalid",
                f"the verdict is {value[:40]!r}, not yes or no",
                self.spans["helpful"],
            )
        if value.strip().lower() in ("yes", "no"):
            self.fields["helpful"] = value.strip().lower() == "yes"
        if fits == 2:
            self.issue("ref_missing", "no <ref> behind the verdict", (tags[1].end, tags[1].end))
        elif fits == 3:
            self.issue("ref_unclosed", "<ref> is not closed", tags[2].span)
        else:
            cited = self.spans["ref"] = (tags[2].end, tags[3].start)
            names = _names(self.text[slice(*cited)])
            self.fields["refs"] = ids = tuple([name for name in names if name != "null"])
            if not names:
                self.issue("ref_empty", "<ref> holds neither ids nor null", cited)
            elif ids and len(ids) < len(names):
                self.issue("ref_null_mixed", "null stands beside ids", cited)
        return tags[3 if fits == 4 else 1].end, tags[:fits]


class PoU(ToolCalls):
    """The dialect of Proof-of-Use. `Step.helpful` and `Step.refs` of step t judge the evidence of step t - 1."""

    system = prompt_file("pou")
    grammar = Grammar(
        "tool_call", "tool_response", _NAMES, last_answer_counts=False, opens=_VERDICT
    )
    reader = _Reader
    needs_arguments = True
    places = re.compile(OPEN)  # no role ends a turn, so that a thought may hold any word
    joint = ""
    forbidden = r"\[[Ee][0-9]++\]"
    marks = MARKS | {"helpful": 4.0, "ref": 2.0}
    signs: ClassVar[Mapping[str, float]] = {
        r"<tool_response>\n[^\n<]{0,60}(?: <http[^\n<>]{0,200}>)? \[E[0-9]{1,7}\]: ": 4.0
    }

    def fields_of(self, turn: re.Match[str], first: bool) -> Fields | None:
        """Also with the verdict that a turn should have."""
        if (turn["helpful"] is None) is not first:
            return None
        fields = super().fields_of(turn, first)
        if fields is not None and not first:
            refs = _names(turn["ref"])
            if refs == ["null"]:
                refs = []
            elif not refs or "null" in refs:
                return None
            fields["helpful"], fields["refs"] = turn["helpful"] == "yes", tuple(refs)
            fields["spans"] = {
                "helpful": turn.span("helpful"),
                "ref": turn.span("ref"),
                **fields["spans"],
            }
        return fields

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """Evidence by its ids. Lines before the first title belong to no evidence."""
        pieces = _CITE.split(
            body
        )  # title and a blank, id, text + newline + title and a blank, id, …, text
        last = len(pieces) - 1
        if not last:
            return [], body
        found = []
        head = pieces[0][pieces[0].rfind("\n") + 1 : -1]
        for at in range(1, last, 2):
            title, url, text = head, "", pieces[at + 1]
            if at + 1 < last:
                end = text.rfind("\n")
                head, text = text[end + 1 : -1], text[: max(end, 0)]
            if title[-1:] == ">" and (address := title.rfind(" <http")) >= 0:
                title, url = title[:address], title[address + 2 : -1]
            found.append(Evidence(text, title, pieces[at], url=url))
        return found, ""

    def conclude(self, steps: Sequence[Fields]) -> tuple[str | None, str | None]:
        return super().conclude(
            steps[-1:]
        )  # an answer ends the episode: only the last turn's counts

    def write_think(self, step: Step) -> str:
        if step.helpful is None:
            return super().write_think(step)
        verdict = f"<helpful>{'yes' if step.helpful else 'no'}</helpful><ref>{', '.join(step.refs) or 'null'}</ref>"
        return verdict + super().write_think(step)

    def write_call(self, call: ToolCall) -> str:
        written = as_json({"name": call.name, "arguments": call.arguments})
        # no argument may look like the end of the call
        return written.replace("<", "\\u003c") if self.grammar.tag.search(written) else written

    def fenced(self, item: Evidence, escape: Callable[[str], str]) -> Evidence:
        """A long address would crowd out the evidence, and a shortened one lead nowhere: it is left out."""
        shown = item.url.startswith(("http://", "https://")) and len(item.url) <= _LONGEST_URL
        return super().fenced(item if shown else msgspec.structs.replace(item, url=""), escape)

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        """One line per piece of evidence, with the address of a page, which may hold no `<`, behind its title.

        Raises:
            DialectError: for evidence whose id is not `E` and a number (the toolbox gives these).
        """
        lines = []
        for item in evidence:
            if not _ID.fullmatch(item.id):
                why = (
                    "this dialect writes E and a number; give the evidence ids through the toolbox"
                )
                raise DialectError(f"evidence id {item.id!r}: {why}")
            head = one_line(item.title)
            if item.url:
                head += f" <{one_line(item.url).replace('<', '&lt;')}>"
            elif head.endswith(">"):
                head = f"{head[:-1]}&#62;"
            lines.append(f"{head} [{item.id}]: {item.text}")
        return "\n".join(lines)


def _names(cited: str) -> list[str]:
    return [name for part in cited.split(",") if (name := part.strip())]
