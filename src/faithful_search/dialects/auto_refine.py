"""AutoRefine: Search-R1's tags with `<documents>`, each followed by a `<refine>` in which the agent
says what matters in them.

What the agent refined belongs to the thought of its turn, and stands before what it thought. Such a
thought is put together from several blocks, with a line break between them, and its span reaches
from the first block to the last.
"""

import re
from typing import NamedTuple

from ..trajectory import Span
from .base import Dialect, prompt_file
from .passages import DOC_LINE, DocLines
from .tagged import MARKS, Tagged
from .turns import Grammar, Tag, TurnReader

_ASKED = r"For\s+example,\s+<answer>[^<]{1,40}</answer>\.\s+Question:[ \t]*"
_BEGINS = r"You are a helpful assistant (?:excel at|who is good at|who answers questions with)"


class _RefineBlock(NamedTuple):
    """A closed `<refine>` block: where its text stands, and where the block ends."""

    inner: Span
    end: int


class _AutoRefineReader(TurnReader):
    """Reads `<refine>` blocks between the other blocks of a turn as parts of its thought."""

    def __init__(
        self, dialect: Dialect, text: str, start: int, end: int, first: bool = True
    ) -> None:
        super().__init__(dialect, text, start, end, first)
        self.refined: list[Span] = []  # the inner texts of this turn's blocks
        self.blocks: dict[int, _RefineBlock] = {}  # by where they begin
        self.tags = self._without_blocks(self.tags)

    def _without_blocks(self, tags: list[Tag]) -> list[Tag]:
        """The tags except those of the blocks that stand in no other block, which go to
        `self.blocks`.
        """
        remaining: list[Tag] = []
        enclosing: str | None = None  # the name of the block that `tag` stands in
        number = 0
        while number < len(tags):
            tag = tags[number]
            if enclosing is None and tag.name == "refine" and not tag.closing:
                closing = tags[number + 1] if number + 1 < len(tags) else None
                if closing is not None and closing.closing and closing.name == "refine":
                    self.blocks[tag.start] = _RefineBlock((tag.end, closing.start), closing.end)
                    number += 2
                    continue
            elif enclosing is None:
                enclosing = None if tag.closing else tag.name
            elif tag.closing and tag.name == enclosing:
                enclosing = None
            remaining.append(tag)
            number += 1
        return remaining

    def outside(self, begin: int, end: int) -> None:
        while (start := self.text.find("<refine>", begin, end)) >= 0:
            block = self.blocks.get(start)
            if block is None or block.end > end:
                break
            super().outside(begin, start)
            self.refined.append(block.inner)
            begin = block.end
        super().outside(begin, end)

    def finish(self) -> None:
        parts, self.refined = self.refined, []
        if not parts:
            return
        if "think" in self.spans:
            parts.append(self.spans["think"])
        self.fields["think"] = "\n".join(self.text[start:end] for start, end in parts)
        self.spans["think"] = (min(parts)[0], max(end for _, end in parts))


class AutoRefine(DocLines, Tagged):
    user_prompt = prompt_file("auto_refine") + "\n"
    question_pattern = re.compile(rf"{_ASKED}(.*)", re.DOTALL)
    bare_prompt = re.compile(rf"\A\s*+{_BEGINS}(?>.*?{_ASKED})([^\n<]*+)", re.DOTALL)
    frame = ("\n\n<documents>", "</documents>\n\n")
    grammar = Grammar("search", "documents", ("think", "search", "documents", "refine", "answer"))
    turn_reader = _AutoRefineReader
    agent_begins = re.compile(r"<(?:refine|think|search|answer)>")
    forbidden = DOC_LINE
    marks = MARKS | {"documents": 6.0, "refine": 2.0}
