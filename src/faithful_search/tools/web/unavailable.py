"""A failure that only the operator can mend: a key that a service refuses, an account without credits."""

from __future__ import annotations

import logging
from functools import cache

from ...errors import ToolError

_log = logging.getLogger(__name__)


def unavailable(told: str, reason: str) -> ToolError:
    """An error that tells the policy no more than `told`; the log says `reason`, once.

    It is passing, as the operator may mend it: what a wrong key did belongs into no cache and no recording.
    """
    _warn(reason)
    return ToolError(told, passing=True, tried=True)


@cache
def _warn(reason: str) -> None:
    _log.error("%s", reason)
