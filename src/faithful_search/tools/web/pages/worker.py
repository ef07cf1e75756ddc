"""The process that reads documents: `python -m faithful_search.tools.web.pages.worker BYTES`; see `workers`."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from ....errors import ToolError
from .parsing import parse
from .workers import Answer, Job

_PAGES = 1_000
"""Pages after which the process ends, lest the memory that libraries keep adds up."""
_DECODER = msgspec.msgpack.Decoder(Job)
_ENCODER = msgspec.msgpack.Encoder()


def main(memory: int) -> None:
    """Answer until the pipe is closed, which it is when the parent ends in whatever way."""
    requests, replies = _private_pipes()
    # before the limit, so that it is for the document alone
    for name in ("trafilatura", "pypdf"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _limit(memory)
    for number in range(_PAGES):
        payload = _receive(requests)
        if payload is None:
            return
        reply = answer_to(_DECODER.decode(payload)) if number else b"ready"
        replies.write(len(reply).to_bytes(4, "big") + reply)
        replies.flush()


def answer_to(job: Job) -> bytes:
    """The encoded `Answer` to a job; nothing that goes wrong in a document ends the process."""
    _alarm(job.reading.seconds)
    try:
        answer = Answer(parse(job.body, job.content_type, job.reading))
    except ToolError as error:
        answer = Answer(None, str(error))
    except MemoryError:
        answer = Answer(None, "it needs too much memory to be read")
    except ImportError as error:
        answer = Answer(None, f"it cannot be read here: {error.name or 'what reads it'} is not installed")
    except RecursionError:
        answer = Answer(None, "it is nested too deeply to be read")
    except Exception as error:
        answer = Answer(None, f"it is damaged or of an unusual form ({type(error).__name__})")
    finally:
        _alarm(0)
    return _ENCODER.encode(answer)


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes under numbers of their own: what a library prints or reads must not get into the frames."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # from here on descriptors 0 and 1 lead nowhere
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return requests, replies


def _limit(memory: int) -> None:
    """So many bytes above what the process has now, and no file written."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, _size() + memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(ValueError, OSError):  # a system that does not know this limit, or has a lower one
            resource.setrlimit(kind, (most, most))


def _size() -> int:
    """The address space in use; 0 where the system does not say, which the limit then includes."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def _alarm(seconds: float) -> None:
    """End the process should the parent, whose task it is, be gone."""
    if hasattr(signal, "alarm"):
        signal.alarm(int(seconds) + 2 if seconds else 0)


def _receive(requests: BinaryIO) -> bytes | None:
    head = requests.read(4)
    size = int.from_bytes(head, "big")
    body = requests.read(size) if len(head) == 4 else b""
    return body if len(head) == 4 and len(body) == size else None


if __name__ == "__main__":
    main(int(sys.argv[1]))
