"""R1-Searcher: one running thought, interrupted by queries and documents between special tokens.

The opening `<think>` ends the prompt, so the agent's text seldom has it; what stands before a query
is that turn's thought. The thought is closed once, before the answer.
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


class _R1SearcherReader(TurnReader):
    """Adds the tags of the thought where they are missing, so that it is read like any other."""

    def __init__(
        self, dialect: Dialect, text: str, start: int, end: int, first: bool = True
    ) -> None:
        super().__init__(dialect, text, start, end, first)
        action = None  # the first tag of another name
        number = 0  # of that tag, or of all tags
        while number < len(self.tags) and action is None:
            if self.tags[number].name == "think":
                number += 1
            else:
                action = self.tags[number]
        limit = action.start if action else end
        closed = any(tag.closing for tag in self.tags[:number])
        if action and action.name == "answer" and not closed:
            self.issue("think_unclosed", "no </think> before the answer", action.span)
        begin = skip(text, start)
        if not number and begin >= limit:
            return  # there is no thought
        if not number or self.tags[0].start > begin or self.tags[0].closing:
            self.tags.insert(0, Tag(begin, begin, closing=False, name="think"))
            number += 1
        if not closed:
            last = max(self.tags[0].end, limit)
            self.tags.insert(number, Tag(last, last, closing=True, name="think"))

    def read_think(self, inner: list[Tag], span: Span) -> Span:
        self.nested(inner)
        begin = min(skip(self.text, span[0]), span[1])
        return begin, begin + len(self.text[begin : span[1]].rstrip())

    def no_think(self) -> None:
        self.issue("think_missing", "the turn has no thought")


class R1Searcher(Tagged):
    numbers_passages = True
    # R1-Searcher's own environment also writes `<think>` after it; the agent may do so itself.
    system = prompt_file("r1_searcher")
    bare_prompt = re.compile(
        r"\A\s*+The User asks a question, and the Assistant solves "
        r"it\.(?>(?>.*?\n\nUser:)(.*?)\nAssistant:|.*)",
        re.DOTALL,
    )
    stop = ("<|end_of_query|>", "</answer>")
    frame = ("\n\n<|begin_of_documents|>\n", "\n<|end_of_documents|>\n\n")
    turn_reader = _R1SearcherReader
    answer_opening = f"</think>{_GAP}<answer>"  # the thought runs up to `</think>`
    grammar = Grammar("query", "documents", ("think", "answer"), pattern=_TAG)
    agent_begins = re.compile(r"<\|begin_of_query\|>|</think>|<answer>")
    forbidden = r"\n\([0-9]++\)"
    marks: ClassVar[Mapping[str, float]] = {
        "begin_of_query": 4.0, "begin_of_documents": 4.0, "think": 0.5, "answer": 0.5,
        "search": -2.0, "tool_call": -3.0, "tool_response": -3.0, "helpful": -3.0,
    }  # fmt: skip

    def force_answer(self, step: Step) -> tuple[Step, str] | None:
        """Respond to its call with a note: right after the call, `</think>` would belong to its
        turn.
        """
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
        for number, passage in enumerate(evidence, start=1):
            # A title ends where `_TEXT` begins, so it must not hold that.
            title = one_line(passage.title).replace(_TEXT, f"&#32;{_TEXT[1:]}")
            lines.append(f"({number})Title: {title}{_TEXT}  {passage.text}")
        return "\n".join(lines)

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        if not body.startswith("(1)"):
            return [], body
        passages = []
        start = len("(1)")
        for number in range(2, MOST_DOCUMENTS + 1):
            end = body.find(f"\n({number})", start)
            if end < 0:
                break
            passages.append(_titled(body[start:end]))
            start = body.index(")", end) + 1
        passages.append(_titled(body[start:]))
        return passages, ""


def _titled(text: str) -> Evidence:
    """A passage: `Title: … Text:  …`, the same quoted as in a CSV file, or title, three blanks,
    text.
    """
    if text.startswith('"Title:') and text.endswith('"'):
        text = text[1:-1].replace('""', '"')
    if not text.startswith("Title:"):
        title, gap, inner = text.partition("   ")
        return Evidence(inner, title) if gap else Evidence(text)
    title, _, inner = text.removeprefix("Title:").removeprefix(" ").partition(_TEXT)
    blanks = "  " if inner.startswith("  ") else " "
    return Evidence(inner.removeprefix(blanks), title)
