"""Documents of the web to paragraphs, read in processes that can be killed: one that hangs or
crashes costs a page.
"""

import time
from dataclasses import dataclass, replace

import msgspec

from ...errors import ConfigError, ToolError
from ...wire import killable

_START_TIMEOUT = 60.0  # seconds for a process to start, at most


class Paragraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a document that can be cited. `place` is where it stands, such as "p. 3" of a PDF;
    empty where the document has no such places.
    """

    text: str
    place: str = ""


class ParsedPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document that was read. `cut` says how far, such as "the first 8 of its 90 pages"; empty
    when it was read whole.
    """

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
        any_not_positive = min(self.seconds, self.memory, self.workers) <= 0
        if any_not_positive or not 0 < self.shortest <= self.longest:
            raise ConfigError(f"all must be positive, and shortest not above longest: {self}")


class Job(msgspec.Struct, frozen=True):
    """What a process is asked: to read this document."""

    body: bytes
    content_type: str
    reading: PageSettings


Answer = ParsedPage | str
"""What a process answers: the page, or why there is none."""


def read(
    body: bytes, content_type: str, reading: PageSettings, deadline: float | None = None
) -> ParsedPage:
    """Read a document in another process; blocks. Thread-safe.

    Args:
        content_type: what the server says it is, with its parameters; may be empty.
        deadline: when the page is no longer wanted, by `time.monotonic`; by default after the time
            that another document, the start of a process and this document may take.

    Raises:
        ToolError: says why the document cannot be read.
    """
    if deadline is None:
        deadline = time.monotonic() + 2 * reading.seconds + _START_TIMEOUT
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
