"""R1-Searcher: one running thought, interrupted by queries and documents between special tokens.

The opening `<think>` ends the prompt, so the agent's text seldom has it; what stands before a query is that turn's
thought. The thought is closed once, before the answer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..trajectory import Evidence, Span, Step
from .base import Dialect, prompt_file
from .fence import one_line
from .passages import MOST_DOCUMENTS
from .tagged import Tagged
from .turns import Grammar, Tag, TurnReader, skip

_TAG = (
    r"<(?=/?(?:think|answer)>|\|(?:begin|end)_of_(?:query|documents)\|>)"
    r"(/|\|end_of_)?(?:\|begin_of_)?(think|answer|query|documents)\|?>"
)
_TEXT, _GAP = " Text:", "\n\n"


class _Reader(TurnReader):
    """Puts the thought between two tags where it has none, so that it reads like any other."""

    def __init__(
        self, dialect: Dialect, text: str, start: int, end: int, first: bool = True
    ) -> None:
        super().__init__(dialect, text, start, end, first)
        act = next((k for k, tag in enumerate(self.tags) if tag.name != "think"), len(self.tags))
        limit = self.tags[act].start if act < len(self.tags) else end
        closed = any(tag.closing for tag in self.tags[:act])
        if act < len(self.tags) and self.tags[act].name == "answer" and not closed:
            self.issue("think_unclosed", "no </think> before the answer", self.tags[act].span)
        begin = skip(text, start)
        if not act and begin >= limit:
            return
        if not act or self.tags[0].start > begin or self.tags[0].closing:
            self.tags.insert(0, Tag(begin, begin, False, "think"))
            act += 1
        if not closed:
            last = max(self.tags[0].end, limit)
            self.tags.insert(act, Tag(last, last, True, "think"))

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        self.nested(inner)
        begin = min(skip(self.text, span[0]), span[1])
        return begin, begin + len(self.text[begin : span[1]].rstrip())

    def no_think(self) -> None:
        self.issue("think_missing", "the turn has no thought")


class R1Searcher(Tagged):
    system = prompt_file(
        "r1_searcher"
    )  # that system also writes `<think>` behind it; the agent may itself
    bare_prompt = re.compile(
        r"\s*+The User asks a question, and the Assistant solves it\.(?>(?>.*?\n\nUser:)(.*?)\nAssistant:|.*)",
        re.DOTALL,
    )
    stop = ("<|end_of_query|>", "</answer>")
    frame = ("\n\n<|begin_of_documents|>\n", "\n<|end_of_documents|>\n\n")
    reader = _Reader
    answer_opening = f"</think>{_GAP}<answer>"  # the thought runs up to `</think>`
    grammar = Grammar("query", "documents", ("think", "answer"), pattern=_TAG)
    speaks = re.compile(r"<\|begin_of_query\|>|</think>|<answer>")
    forbidden = r"\n\([0-9]++\)"
    marks: ClassVar[Mapping[str, float]] = {
        "begin_of_query": 4.0, "begin_of_documents": 4.0, "think": 0.5, "answer": 0.5,
        "search": -2.0, "tool_call": -3.0, "tool_response": -3.0, "helpful": -3.0,
    }  # fmt: skip

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """The response to its call is a note: behind a call alone, `</think>` would still be that turn's."""
        return Dialect.force_answer(self, step)

    def render_turn(self, step: Step) -> str:
        text = think = step.think or ""
        if step.call is not None:
            words = step.call.raw or f" {self.write_call(step.call)}"
            text += f"{think and _GAP}<|begin_of_query|>{words}<|end_of_query|>"
        if step.answer is not None:
            text += f"</think>{_GAP}<answer>{step.answer}</answer>"
        return text

    def write_note(self, note: str) -> str:
        """Prose that does not look like a list of passages."""
        return f"&#40;{note[1:]}" if note.startswith("(1)") else note

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        lines = []
        for number, item in enumerate(evidence, start=1):
            title = one_line(item.title).replace(
                _TEXT, f"&#32;{_TEXT[1:]}"
            )  # a title ends where _TEXT begins
            lines.append(f"({number})Title: {title}{_TEXT}  {item.text}")
        return "\n".join(lines)

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        if not body.startswith("(1)"):
            return [], body
        found, at = [], len("(1)")
        for number in range(2, MOST_DOCUMENTS + 1):
            end = body.find(f"\n({number})", at)
            if end < 0:
                break
            found.append(_titled(body[at:end]))
            at = body.index(")", end) + 1
        return [*found, _titled(body[at:])], ""


def _titled(text: str) -> Evidence:
    """`Title: … Text:  …`, the same quoted as in a CSV file, or a title and, three blanks on, the text."""
    if text.startswith('"Title:') and text.endswith('"'):
        text = text[1:-1].replace('""', '"')
    if not text.startswith("Title:"):
        title, gap, rest = text.partition("   ")
        return Evidence(rest, title) if gap else Evidence(text)
    title, _, rest = text.removeprefix("Title:").removeprefix(" ").partition(_TEXT)
    return Evidence(
        rest.removeprefix("  ") if rest.startswith("  ") else rest.removeprefix(" "), title
    )
