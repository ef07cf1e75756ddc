"""What reading a document gives: a title and paragraphs; and the knobs of reading."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ....errors import ConfigError


class Paragraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a document that can be cited; `place` says where it stands, such as "p. 3" of a PDF."""

    text: str
    place: str = ""


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document that was read. `cut` says what was left out; empty when it was read whole."""

    title: str
    paragraphs: tuple[Paragraph, ...]
    cut: str = ""


class Block(msgspec.Struct, frozen=True):
    """What a document itself sets apart: a paragraph, a heading, an item of a list, a row of a table.

    `lead` is repeated at the top of a paragraph that begins with this block: the header of a row's table.
    """

    text: str
    heading: bool = False
    lead: str = ""
    place: str = ""


@dataclass(frozen=True)
class Reading:
    """How documents are read.

    Args:
        seconds: the most that reading one document may take. Of a long PDF, what was read by then is kept.
        memory: bytes that a document may take in the process that reads it, where the system can limit that.
        workers: processes that read at once, shared by all tools of equal `workers` and `memory`.
        shortest: paragraphs with fewer characters are joined with the next.
        longest: paragraphs with more characters are split at the ends of sentences.
    """

    seconds: float = 10.0
    memory: int = 1_000_000_000
    workers: int = 2
    shortest: int = 200
    longest: int = 1_200

    def __post_init__(self) -> None:
        if min(self.seconds, self.memory, self.workers) <= 0 or not 0 < self.shortest <= self.longest:
            raise ConfigError(f"all must be positive, and shortest not above longest: {self}")
