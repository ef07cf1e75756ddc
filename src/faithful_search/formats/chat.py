"""The one form of a chat's messages that all formats are read into, and its text."""

import re
from typing import NamedTuple

from ..trajectory import Citation

TAGLIKE = re.compile(r"<(?=\s*+(?:/\s*+)?[A-Za-z_|])")
END = "<|im_end|>\n"
_SPEAKERS = frozenset(("system", "user", "assistant", "tool"))


class Call(NamedTuple):
    """A structured call.

    Attributes:
        written: the call as text, with its tags.
        answer: what the call hands in; `None` for a call of any other tool.
    """

    id: str
    name: str
    written: str
    answer: str | None = None


class Piece(NamedTuple):
    """A stretch of a message's text.

    `source` is "thought", "content" or "answer", or "markup" for what is written around these.
    """

    source: str
    text: str


class Problem(NamedTuple):
    """Something about a message that makes its reading uncertain: an `Issue` without a place."""

    kind: str
    why: str


class Message(NamedTuple):
    """One message of the system, a user, an assistant or a tool.

    Attributes:
        id: of a tool's message, the id of the call that it says it answers.
        name: of a tool's message, the name of that call's tool; of an agent's, its own.
        place: of a tool's message, which call of the turn before it answers, counted among those
            that hand in no answer; `None`: the next one without a result.
        citations: what an API sent beside the content; spans are in the content.
        unread: the kinds of parts that were not understood.
        beside_results: of a user's message, whether these words stood in one message with results
            of tools, and so are none themselves.
        apart: of an agent's message, the messages that it was joined from, in the order in which
            they were said; empty for one that was not joined.
    """

    role: str
    content: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    id: str = ""
    name: str = ""
    place: int | None = None
    citations: tuple[Citation, ...] = ()
    unread: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    beside_results: bool = False
    apart: tuple["Message", ...] = ()

    @property
    def requests(self) -> tuple[Call, ...]:
        """The calls that ask for a result."""
        return tuple([call for call in self.calls if call.answer is None])

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers that were handed in, each once."""
        return tuple(dict.fromkeys(call.answer for call in self.calls if call.answer is not None))

    @property
    def pieces(self) -> list[Piece]:
        """The message as text, in stretches: thought, content, calls, answer."""
        thought, content = self.thought, self.content
        if self.calls and content.strip() and not TAGLIKE.search(content):
            # What is said beside a call is a thought, also where the API has no field for thoughts.
            thought, content = "\n".join(filter(None, (thought, content))), ""
        blocks: list[list[Piece]] = []
        if thought:
            blocks.append(_enclosed("think", Piece("thought", thought)))
        if content:
            blocks.append([Piece("content", content)])
        blocks += [[Piece("markup", request.written)] for request in self.requests]
        if self.answers:
            blocks.append(_enclosed("answer", Piece("answer", self.answers[-1])))
        pieces: list[Piece] = []
        for block in blocks:
            if pieces:
                pieces.append(Piece("markup", "\n"))
            pieces += block
        return pieces

    @property
    def content_at(self) -> int:
        """Where in `text` the content begins."""
        offset = 0
        for piece in self.pieces:
            if piece.source == "content":
                return offset
            # Content beside a call stands at the end of the thought
            if piece.source == "thought" and piece.text.endswith(self.content):
                return offset + len(piece.text) - len(self.content)
            offset += len(piece.text)
        return 0

    @property
    def text(self) -> str:
        """The message as text, with its markup."""
        if not self.thought and not self.calls:
            return self.content
        return "".join([piece.text for piece in self.pieces])

    @property
    def head(self) -> str:
        """What stands before the text where the chat is written as ChatML."""
        return f"<|im_start|>{self.role if self.role in _SPEAKERS else 'other'}\n"


def _enclosed(tag: str, piece: Piece) -> list[Piece]:
    return [Piece("markup", f"<{tag}>"), piece, Piece("markup", f"</{tag}>")]
