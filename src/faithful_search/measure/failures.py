"""What a report says about an unexpected error, and what only the local log says."""

import logging

from ..errors import kind_of
from ..tools.outcome import ErrorLog

_errors = ErrorLog(logging.getLogger(__name__))


def told(what: str, error: Exception) -> str:
    """The kind of the error; its words, which may hold keys and addresses, go to the local log."""
    _errors.tell(what, error)
    return kind_of(error)
