"""What a tool returned or raised, before it is kept, shown or logged: evidence checked and bounded,
failures retold.

The words of errors may hold keys and addresses. They go to the local log only, never to a policy or
a report.
"""

import logging
import math
from numbers import Real
from typing import Any

import msgspec

from ..errors import FaithfulSearchError, ToolError, kind_of
from ..text import shortened, well_formed
from ..trajectory import Evidence
from ..wire.failures import one_line
from .base import Partial

EVIDENCE_LENGTH = 200_000
"""Characters that one call may return, titles and addresses included; where more was cut off, the
last text says so.
"""
MOST_PASSAGES = 1_000
"""Passages that one call may return; the last text says that there were more."""
LINE_LENGTH = 2_000
"""Characters of a title, a source or an address; a longer one ends in an ellipsis."""
_CUT = f" [cut off here: a call returns at most {EVIDENCE_LENGTH:,} characters and {MOST_PASSAGES:,} passages]"
_told: set[str] = set()


class Fault(FaithfulSearchError):
    """A tool that broke, or broke its promise, rather than said what is wrong: not kept, recorded
    or tried again.
    """


def evidence_of(name: str, returned: Any) -> list[Evidence]:
    """What the tool `name` returned, as plain values of our own and within the limits above. Raises
    `Fault` when it is something else than a list of evidence whose texts are texts, and whatever
    reading it raises.
    """
    if not isinstance(returned, (list, tuple)):
        raise Fault(
            f"Error: {name} failed: it returned {kind_of(returned)}, not a list of Evidence."
        )

    def text(row: Evidence, part: str, most: int) -> str:
        value = getattr(row, part)
        if not isinstance(value, str):
            raise Fault(
                f"Error: {name} failed: the {part} of its Evidence is {kind_of(value)}, not str."
            )
        # a plain text even of a `str` with methods of its own; one character more than `most` shows
        # that there is more
        return well_formed(str.__getitem__(value, slice(most + 1)))

    evidence: list[Evidence] = []
    if isinstance(returned, Partial):
        if not isinstance(returned.note, str):
            raise Fault(
                f"Error: {name} failed: the note of its result is {kind_of(returned.note)}, not "
                "str."
            )
        evidence = Partial(note=one_line(returned.note), transient=bool(returned.transient))
    room = EVIDENCE_LENGTH
    for row in returned:
        if len(evidence) == MOST_PASSAGES:
            break
        if not isinstance(row, Evidence):
            raise Fault(
                f"Error: {name} failed: it returned {kind_of(row)} in a list, not Evidence."
            )
        lines = (text(row, part, LINE_LENGTH) for part in ("title", "source", "url"))
        title, source, url = (shortened(each, LINE_LENGTH) for each in lines)
        score: Any = row.score
        if score is not None and not isinstance(score, Real):
            raise Fault(
                f"Error: {name} failed: the score of its Evidence is {kind_of(score)}, not a "
                "number."
            )
        number = (
            float(score) if score is not None and math.isfinite(score) else None
        )  # JSON knows no other numbers
        passage = Evidence(text(row, "text", EVIDENCE_LENGTH), title, "", source, url, number)
        room -= sum(map(len, (passage.text, passage.title, passage.source, passage.url)))
        evidence.append(passage)
        if room < 0:
            break
    else:
        return evidence
    last = evidence[-1]
    fitting = last.text[: max(0, len(last.text) + min(room, 0))]
    evidence[-1] = msgspec.structs.replace(last, text=fitting + _CUT)
    return evidence


def failure_of(name: str, error: BaseException) -> ToolError | Fault:
    """What to raise in place of what the tool `name` raised: a `ToolError` keeps its words (see
    `one_line`), of any other error only the kind is told. What the network raises may pass.
    """
    if type(error) is Fault:
        return error
    kind: Any = type(error)  # unlike `isinstance`, this runs no code of the error
    message = f"Error: {name} failed: {kind_of(error)}."
    if issubclass(kind, OSError):
        return ToolError(message, transient=True)
    if not issubclass(kind, ToolError):
        return Fault(message)
    current: Any = error
    try:
        wait = current.retry_after
        wait = wait if isinstance(wait, (int, float)) and math.isfinite(wait) else None
        words = one_line(str(current)) or f"Error: {name} failed."
        return ToolError(
            words,
            transient=bool(current.transient),
            retry_after=wait,
            retried=bool(current.retried),
        )
    except (Exception, SystemExit):  # a `ToolError` by its name only
        return Fault(message)


def unavailable(message: str, reason: str) -> ToolError:
    """A failure that only the operator can mend, such as a key that a service refuses: the policy
    reads `message`, the log says `reason`, once. It is transient, so that what a wrong key caused
    gets into no cache and no recording.
    """
    if reason not in _told:
        _told.add(reason)
        logging.getLogger(__name__).error("%s", reason)
    return ToolError(message, transient=True, retried=True)
