"""Our own trajectories, as `fs.read_jsonl` reads them: whatever the format was, everything else here takes them."""

from __future__ import annotations

from typing import Any

import msgspec

from .turns import Document


def write(document: Document) -> dict[str, Any]:
    """The trajectory itself; scores and reasons are in its `meta`, as those of an evaluation are."""
    read = document.trajectory
    given = {"scores": document.scores, "reasons": document.reasons} if document.scores else {}
    made: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(read, meta={**read.meta, **given}))
    return made
