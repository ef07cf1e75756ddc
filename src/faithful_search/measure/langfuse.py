"""An audit's scores as Langfuse takes them: events of its public ingestion API.

`POST /api/public/ingestion` with `{"batch": [event, …]}`, of at most 3.5 MB, answers 207 with
`successes` and `errors` (https://langfuse.com/docs/api). A score belongs to the trace with its
`traceId`, and replaces an earlier one with the same `id`: sending twice adds nothing.
"""

import os
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import msgspec

from ..errors import ConfigError, DataError, ToolError
from ..text import shortened
from ..wire.background import Background
from ..wire.http import Http
from ..wire.redact import carried, redact
from .documents import Document
from .workers import chunks

PUBLIC_KEY, SECRET_KEY = "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"
ADDRESSES = ("LANGFUSE_BASE_URL", "LANGFUSE_HOST")
"""Where the server's address may stand in the environment; the older name last."""
CLOUD = "https://cloud.langfuse.com"
AT_ONCE = 500
"""Events of a request: with their comments less than a megabyte."""
LONGEST_COMMENT = 1000  # characters


class SentScores(msgspec.Struct):
    """What became of scores: how many the server took, and why others were refused, or could not be
    sent.
    """

    accepted: int = 0
    refused: list[str] = []


class EventOutcome(msgspec.Struct):
    """The server's word on one event."""

    id: str
    message: str | None = None
    error: Any = None


class IngestionReply(msgspec.Struct):
    successes: list[EventOutcome]
    errors: list[EventOutcome]


def batch_of(document: Document) -> dict[str, Any]:
    """The body of a request with a row's scores; those without a value are left out, and so is what
    looks like a key in a reason.

    Raises `DataError` for a row without an id, which is its trace's.
    """
    trace = document.trajectory.id
    if not trace:
        raise DataError("no id of a trace: name the column that holds it with --id-column")
    time = document.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    events = []
    for name, value in document.scores.items():
        if value is None:
            continue
        body: dict[str, Any] = {
            "id": f"faithful-search/{trace}/{name}",
            "traceId": trace,
            "name": name,
            "value": float(value),
            "dataType": "NUMERIC",
        }
        reason = document.reasons.get(name)
        if reason:
            body["comment"] = shortened(redact(reason), LONGEST_COMMENT)
        event = {"id": str(uuid4()), "timestamp": time, "type": "score-create", "body": body}
        events.append(event)
    return {"batch": events}


def send(documents: Iterable[Document]) -> SentScores:
    """Send the rows' scores to the server that the environment names (`ADDRESSES`, else Langfuse's
    cloud), with its keys (`PUBLIC_KEY`, `SECRET_KEY`).

    Raises `ConfigError` where a key is missing, `DataError` where the server cannot be asked or
    does not answer as this API does.
    """
    address = next(filter(None, map(os.environ.get, ADDRESSES)), CLOUD).rstrip("/")
    headers = {"Authorization": f"Basic {_credentials()}"}
    http = Http(timeout=60.0)
    background = Background()
    outcome = SentScores()
    try:
        for events_at_once in chunks(_events(documents, outcome), AT_ONCE):
            body = {"batch": events_at_once}
            request = http.post(f"{address}/api/public/ingestion", json=body, headers=headers)
            reply = msgspec.json.decode(background.run(request).body, type=IngestionReply)
            outcome.accepted += len(reply.successes)
            outcome.refused += [_why(error) for error in reply.errors]
    except ToolError as error:
        raise DataError(f"Langfuse at {address}: {error}; check the address and keys") from error
    except msgspec.DecodeError as error:
        raise DataError(
            f"{address} does not answer as Langfuse's ingestion API: {error}"
        ) from error
    finally:
        background.stop()
    return outcome


def _credentials() -> str:
    keys = [carried(os.environ.get(name, "")) for name in (PUBLIC_KEY, SECRET_KEY)]
    if not all(keys):
        raise ConfigError(
            f"Langfuse asks for keys: set {PUBLIC_KEY} and {SECRET_KEY} (project settings, API keys)"
        )
    return b64encode(":".join(filter(None, keys)).encode()).decode("ascii")


def _events(documents: Iterable[Document], outcome: SentScores) -> Iterator[dict[str, Any]]:
    for document in documents:
        try:
            yield from batch_of(document)["batch"]
        except DataError as error:
            outcome.refused.append(f"row {document.row}: {error}")


def _why(outcome: EventOutcome) -> str:
    message = outcome.message or "refused"
    return f"{message} ({outcome.error})" if outcome.error else message
