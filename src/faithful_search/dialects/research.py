r"""ReSearch: `<think> <search> <result> <answer>`, the answer in a box. Not the dialect of its
successor ReCall.

An answer without `\boxed{}`, which that system's reward would not count, is read all the same.
"""

import re
from collections.abc import Sequence

from ..trajectory import Evidence, Span
from .base import prompt_file
from .fence import one_line, opening_line
from .passages import MOST_DOCUMENTS, last_boxed
from .tagged import MARKS, Tagged
from .turns import Grammar

_QUOTED = re.compile(r'\n\n(?="[^\n]*"\n)')
_PARAGRAPH = re.compile(r"\n\n+")


class ReSearch(Tagged):
    system = prompt_file("research")
    frame = (" <result>\n", "\n</result>\n")
    # The base checkpoints'; in one that breaks off the agent has said nothing.
    bare_prompt = re.compile(
        r"\A\s*+A conversation between User and Assistant\.(?>(?>.*? User: )(.*?)\.? "
        r"Assistant:|.*)",
        re.DOTALL,
    )
    grammar = Grammar("search", "result")
    forbidden = r'\n\n"'
    marks = MARKS | {"result": 4.0}

    def write_note(self, note: str) -> str:
        return one_line(note)

    def write_body(self, evidence: Sequence[Evidence]) -> str:
        # A text that begins with a line break would look like the blank line before the next title.
        return "\n\n".join(
            f'"{one_line(passage.title)}"\n{opening_line(passage.text)}' for passage in evidence
        )

    def read_body(self, body: str) -> tuple[list[Evidence], str]:
        """Passages between blank lines, with the title in the first line of each. A single line is
        a note.
        """
        if "\n" not in body:
            return [], body
        first = body[: body.index("\n")]
        quoted = len(first) > 1 and first[0] == first[-1] == '"'
        if quoted:
            pieces = _QUOTED.split(body, MOST_DOCUMENTS - 1)
        else:
            pieces = _PARAGRAPH.split(body.strip(), MOST_DOCUMENTS - 1)
        passages = []
        for piece in pieces:
            title, line, text = piece.partition("\n")
            if not line:
                title, text = "", title
            elif len(title) > 1 and title[0] == title[-1] == '"':
                title = title[1:-1]
            passages.append(Evidence(text, title))
        return passages, ""

    def find_answer(self, text: str, span: Span) -> Span | None:
        return last_boxed(text, *span)

    def write_answer(self, answer: str) -> str:
        r"""The answer in its box; without one where its own braces would break it."""
        boxed = f"The final answer is \\[ \\boxed{{{answer}}} \\]"
        box = last_boxed(boxed)
        return super().write_answer(boxed if box and boxed[slice(*box)] == answer else answer)
