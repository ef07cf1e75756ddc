"""Labels that were looked at again: audit the labels, then score the judges on both versions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from ...errors import DataError
from ...json_lines import read_rows
from ...reading.files import PathLike
from .labelled import Labelled, label_of


class Revision(msgspec.Struct, frozen=True):
    """The label that a row got when it was looked at again, the same or another, and why."""

    label: bool
    why: str = ""


class LabelChange(msgspec.Struct, frozen=True):
    """A row whose label changed."""

    id: str
    source: str
    label: bool
    revised: bool
    why: str = ""


def load(path: PathLike, rows: Iterable[Labelled]) -> dict[str, Revision]:
    """The revisions in a JSON-lines file, by the ids of these rows.

    Each line has the `id` of a row (as in `verdicts.jsonl`, or as the labelled file has it), its
    `label` and, if you like, `why`.

    Raises `DataError` for a line that cannot be read, and for an id that no row has, that several
    rows have, or that stands there twice.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        places[row.id].append(row.id)
        parts = row.id.split(":", 2)  # FILE:ROW, and :ID where the file has ids
        if len(parts) > 2:
            places[parts[2]].append(row.id)
    revisions: dict[str, Revision] = {}
    for number, line in enumerate(read_rows(path), start=1):
        place = f"{path}, row {number}"
        try:
            name = str(line["id"])
            label = label_of(line["label"])
        except KeyError as error:
            raise DataError(f"{place}: no column {error}; it has: {', '.join(line)}") from error
        except ValueError as error:
            raise DataError(f"{place}: {error}") from error
        ids = places.get(name, [])
        if len(ids) != 1:
            how_many = "several rows have" if ids else "no labelled row has"
            raise DataError(f"{place}: {how_many} the id {name!r}; take it from verdicts.jsonl")
        if ids[0] in revisions:
            raise DataError(f"{place}: the id {name!r} was revised before in this file")
        revisions[ids[0]] = Revision(label, str(line.get("why") or ""))
    if not revisions:
        raise DataError(f"{path}: no revised labels")
    return revisions


def changes(rows: Iterable[Labelled], revisions: Mapping[str, Revision]) -> list[LabelChange]:
    """The rows whose label changed, in order."""
    changed = []
    for row in rows:
        revision = revisions.get(row.id)
        if revision is not None and revision.label != row.label:
            change = LabelChange(row.id, row.source, row.label, revision.label, revision.why)
            changed.append(change)
    return changed
