"""Blocks of a document joined and split to paragraphs of a size that can be cited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...paragraphs import paragraphs
from .base import Block, Paragraph


def pack(blocks: Iterable[Block], shortest: int, longest: int) -> Iterator[Paragraph]:
    """Paragraphs of `shortest` to `longest` characters, as far as the blocks allow.

    A block that is too long is split at the ends of sentences; short ones are joined on lines of their own. A heading
    stays with what follows it, and no paragraph goes over a change of `place`.

    Example:
        >>> [p.text for p in pack([Block("Rivers", heading=True), Block("The Seine."), Block("The Loire.")], 10, 50)]
        ['Rivers\\nThe Seine.', 'The Loire.']
    """
    held = _Held()
    for block in blocks:
        if held.place != block.place or (held.size >= shortest and not held.ends_in_heading):
            yield from held.release()
        for part in paragraphs(block.text, longest):
            if held.size + len(part) > longest:
                yield from held.release()
            if not held.lines and block.lead and len(block.lead) + len(part) < longest:
                held.add(block.lead, block)
            held.add(part, block)
    yield from held.release()


class _Held:
    """The paragraph being put together."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.lines: list[str] = []
        self.size, self.place, self.ends_in_heading = 0, "", False

    def add(self, line: str, block: Block) -> None:
        self.lines.append(line)
        self.size += len(line) + 1
        self.place, self.ends_in_heading = block.place, block.heading

    def release(self) -> Iterator[Paragraph]:
        if self.lines:
            yield Paragraph("\n".join(self.lines), self.place)
        self._clear()
