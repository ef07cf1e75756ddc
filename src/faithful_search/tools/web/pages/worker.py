"""The process that reads documents: `python -m faithful_search.tools.web.pages.worker BYTES`; see `workers`."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys

import msgspec

from ....errors import ToolError
from .parsing import parse
from .workers import Answer, Job

_PAGES = 1_000
"""Pages after which the process ends, lest the memory that libraries keep adds up."""


def main(memory: int) -> None:
    """Answer until the pipe is closed, also by the end of the parent, however it ends."""
    # under numbers of their own: what a library prints or reads must not get into the frames
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    # before the limit, so that the memory is for the document alone
    for name in ("trafilatura", "pypdf"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):  # a system without such limits
        import resource

        used = 0  # where the system does not say, the limit includes it
        with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        # no file is written either, nor the memory of a crash
        for kind, most in ((resource.RLIMIT_AS, used + memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
            # a system that does not know this limit, or has a lower one
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(kind, (most, most))
    decoder = msgspec.msgpack.Decoder(Job)
    for number in range(_PAGES):
        head = requests.read(4)
        size = int.from_bytes(head, "big")
        payload = requests.read(size)
        if len(head) < 4 or len(payload) < size:
            return
        reply = answer_to(decoder.decode(payload)) if number else b"ready"
        replies.write(len(reply).to_bytes(4, "big") + reply)
        replies.flush()


def answer_to(job: Job) -> bytes:
    """The encoded `Answer` to a job; nothing that goes wrong in a document ends the process."""
    # the parent kills a process that is late; this ends it should the parent be gone
    if hasattr(signal, "alarm"):
        signal.alarm(int(job.reading.seconds) + 2)
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
        if hasattr(signal, "alarm"):
            signal.alarm(0)
    return msgspec.msgpack.encode(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
