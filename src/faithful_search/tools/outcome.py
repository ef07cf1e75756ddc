"""What a tool returned or raised, before anything is kept, shown or logged: evidence is checked and
bounded, failures are put into our own words.

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
_CUT = (
    f" [cut off here: a call returns at most {EVIDENCE_LENGTH:,} characters and "
    f"{MOST_PASSAGES:,} passages]"
)
_logged_reasons: set[str] = set()  # by `unavailable`


class Fault(FaithfulSearchError):
    """A tool broke, or returned something else than evidence. It is not cached, recorded or tried
    again.
    """


def evidence_of(name: str, returned: Any) -> list[Evidence]:
    """What the tool `name` returned, as plain values of our own and within the limits above.

    Raises `Fault` when it is something else than a list of evidence whose texts are texts, and
    whatever else reading it raises.
    """
    if not isinstance(returned, (list, tuple)):
        raise Fault(
            f"Error: {name} failed: it returned {kind_of(returned)}, not a list of Evidence."
        )

    def text(row: Evidence, field: str, most: int) -> str:
        """The text in a field, cut to one character more than `most`, which shows that it was."""
        value = getattr(row, field)
        if not isinstance(value, str):
            raise Fault(
                f"Error: {name} failed: the {field} of its Evidence is {kind_of(value)}, not str."
            )
        # `str.__getitem__`, since the class of `value` may have methods of its own.
        return well_formed(str.__getitem__(value, slice(most + 1)))

    evidence: list[Evidence] = []
    if isinstance(returned, Partial):
        if not isinstance(returned.note, str):
            raise Fault(
                f"Error: {name} failed: the note of its result is {kind_of(returned.note)}, not "
                "str."
            )
        evidence = Partial(note=one_line(returned.note), transient=bool(returned.transient))
    room = EVIDENCE_LENGTH  # characters that are left
    for row in returned:
        if len(evidence) == MOST_PASSAGES:
            break
        if not isinstance(row, Evidence):
            raise Fault(
                f"Error: {name} failed: it returned {kind_of(row)} in a list, not Evidence."
            )
        score: Any = row.score
        if score is not None and not isinstance(score, Real):
            raise Fault(
                f"Error: {name} failed: the score of its Evidence is {kind_of(score)}, not a "
                "number."
            )
        if score is not None:
            score = float(score) if math.isfinite(score) else None  # JSON has no infinity
        passage = Evidence(
            text=text(row, "text", EVIDENCE_LENGTH),
            title=shortened(text(row, "title", LINE_LENGTH), LINE_LENGTH),
            source=shortened(text(row, "source", LINE_LENGTH), LINE_LENGTH),
            url=shortened(text(row, "url", LINE_LENGTH), LINE_LENGTH),
            score=score,
        )
        room -= sum(map(len, (passage.text, passage.title, passage.source, passage.url)))
        evidence.append(passage)
        if room < 0:
            break
    else:
        return evidence
    # Something was left out: the last text says so, and loses what is beyond the limit.
    last = evidence[-1]
    fitting = last.text[: max(0, len(last.text) + min(room, 0))]
    evidence[-1] = msgspec.structs.replace(last, text=fitting + _CUT)
    return evidence


def failure_of(name: str, error: BaseException) -> ToolError | Fault:
    """What to raise in place of the error that the tool `name` raised.

    A `ToolError` keeps its words (see `one_line`), of any other error only the kind is named. An
    error of the network is transient.
    """
    if type(error) is Fault:
        return error
    error_class: Any = type(error)  # `isinstance` would run code of the error
    message = f"Error: {name} failed: {kind_of(error)}."
    if issubclass(error_class, OSError):
        return ToolError(message, transient=True)
    if not issubclass(error_class, ToolError):
        return Fault(message)
    tool_error: Any = error
    try:
        wait = tool_error.retry_after
        if not isinstance(wait, (int, float)) or not math.isfinite(wait):
            wait = None
        return ToolError(
            one_line(str(tool_error)) or f"Error: {name} failed.",
            transient=bool(tool_error.transient),
            retry_after=wait,
            retried=bool(tool_error.retried),
        )
    except (Exception, SystemExit):  # a class of the tool's own, whose attributes raise
        return Fault(message)


def unavailable(message: str, reason: str) -> ToolError:
    """A failure that only the operator can mend, such as a key that a service refuses.

    It is transient, so that what a wrong key caused gets into no cache and no recording.

    Args:
        message: what the policy reads.
        reason: what the log says, once.
    """
    if reason not in _logged_reasons:
        _logged_reasons.add(reason)
        logging.getLogger(__name__).error("%s", reason)
    return ToolError(message, transient=True, retried=True)
