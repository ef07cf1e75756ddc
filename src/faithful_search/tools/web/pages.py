"""Documents of the web to paragraphs, read in processes that can be killed: one that hangs or
crashes costs a page.
"""

import time
from dataclasses import dataclass, replace

import msgspec

from ...errors import ConfigError, ToolError
from ...wire import killable

_START = 60.0  # seconds for a process to come up, at most


class Paragraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a document that can be cited; `place` says where it stands, such as "p. 3" of a
    PDF.
    """

    text: str
    place: str = ""


class ParsedPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document that was read. `cut` says what was left out; empty when it was read whole."""

    title: str
    paragraphs: tuple[Paragraph, ...]
    cut: str = ""


@dataclass(frozen=True)
class PageSettings:
    """How documents are read."""

    seconds: float = 10.0
    """The most that reading one document may take. Of a long PDF, what was read by then is kept."""
    memory: int = 1_000_000_000
    """Bytes that a document may take in the process that reads it, where the system can limit
    that.
    """
    workers: int = 2
    """Processes that read at once, shared by all tools of equal `workers` and `memory`."""
    shortest: int = 200
    """Paragraphs with fewer characters are joined with the next."""
    longest: int = 1_200
    """Paragraphs with more characters are split at the ends of sentences."""

    def __post_init__(self) -> None:
        if (
            min(self.seconds, self.memory, self.workers) <= 0
            or not 0 < self.shortest <= self.longest
        ):
            raise ConfigError(f"all must be positive, and shortest not above longest: {self}")


class Job(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str
    reading: PageSettings


Answer = ParsedPage | str
"""What a process says: the page, or why there is none."""


def read(
    body: bytes, content_type: str, reading: PageSettings, deadline: float | None = None
) -> ParsedPage:
    """Read a document in another process; blocks. Thread-safe.

    `content_type` is what the server says it is, with its parameters; may be empty. After
    `deadline` (`time.monotonic`) the page is no longer wanted. Raises `ToolError` when it cannot be
    read, saying why.
    """
    deadline = deadline if deadline is not None else time.monotonic() + 2 * reading.seconds + _START
    seconds = reading.seconds
    try:
        with program(reading).worker(deadline) as worker:
            seconds = max(0.01, min(seconds, deadline - time.monotonic()))
            job = Job(body, content_type, replace(reading, seconds=seconds))
            answer = msgspec.json.decode(worker.ask(msgspec.json.encode(job), seconds), type=Answer)
    except killable.Busy:
        raise ToolError("other pages are still being read; try again", transient=True) from None
    except killable.NotStarted:
        raise ToolError("the page reader does not start") from None
    except killable.Late:
        raise ToolError(f"reading it took longer than {seconds:.3g} seconds") from None
    except (killable.Crashed, msgspec.MsgspecError):
        raise ToolError("it crashed the program that reads pages") from None
    if isinstance(answer, str):
        raise ToolError(answer)
    return answer


def program(reading: PageSettings) -> killable.Program:
    """The program that reads documents within these limits."""
    return killable.Program(f"{__package__}.documents", reading.memory, reading.workers)
