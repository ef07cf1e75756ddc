"""Fetch the pages that reports without a trace cite, so that there is evidence to judge them by.

```
rows ─ cited_addresses ─> CitedAddresses ─ fetch_sources ─> FetchedPage, …
rows with the pages that they cite in the column `fetched_sources`  <──────┘
```

Pages are read by `tools.browse` behind its guard, since the writer of a report chose the addresses.
A page that cannot be read counts as not reachable, which says nothing about the report.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..citations import is_address, page_of, read_answer
from ..errors import ToolError
from ..evidence import note_kind
from ..formats.report import FETCHED as FETCHED_COLUMN
from ..reading.rows import Raw, Reader, RowSource, decoded
from ..reading.settings import ReadingSettings
from ..text import shortened
from ..tools.browse import Browse, Fetch
from ..tools.outcome import EVIDENCE_LENGTH, MOST_PASSAGES
from ..trajectory import NO_TRACE, Evidence, Trajectory
from ..wire.background import Background, map_concurrently
from ..wire.cache import Cache, key_of
from ..wire.failures import one_line
from ..wire.guard import Guard
from ..wire.http import Http
from .workers import progress_bar
from .writing import write_whole

FETCHED_FILE = "fetched.jsonl"
"""The file in the audit's folder with the rows and the pages that they cite. All commands read
it.
"""
PAGES = "pages.sqlite"
_AT_ONCE = 8  # the largest number of simultaneous requests
_SCHEMES = ("http://", "https://")


class FetchedPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page that is cited. `error` says why it is not reachable; a `transient` error is not kept,
    so that the page is asked for again.
    """

    url: str
    title: str = ""
    text: str = ""
    error: str = ""
    transient: bool = False


@dataclass(frozen=True)
class CitedAddresses:
    """The pages that reports without a trace cite: the addresses as they were first written, by
    `citations.page_of`.
    """

    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(urlsplit(address).netloc.lower() for address in self.addresses.values())

    def __str__(self) -> str:
        addresses = "address" if len(self.addresses) == 1 else "addresses"
        hosts = "host" if len(self.hosts) == 1 else "hosts"
        return f"{len(self.addresses):,} {addresses} at {len(self.hosts):,} {hosts}"


def cited_addresses(path: Path, reading: ReadingSettings) -> CitedAddresses:
    """The pages that the reports in a file cite. Nothing is fetched. Raises as `RowSource` does."""
    source = RowSource(path, reading)
    addresses: dict[str, str] = {}
    for raw in source:
        for page, address in _addresses_in(_report(raw, source.reader)).items():
            addresses.setdefault(page, address)
    return CitedAddresses(addresses)


def fetch_sources(
    rows: RowSource,
    pages: CitedAddresses,
    folder: Path,
    allow: str = "",
    on_progress: Callable[..., Any] | None = None,
) -> Path:
    """Fetch each of these pages once, and write a file of these rows, to which the
    pages that they cite are added. Returns the file.

    Pages are kept in the folder, so that an interrupted run can be continued; pages with a
    transient error are asked for again. `allow` names hosts and networks that may be read although
    they are not public. Raises `ConfigError` if a package is missing, `DataError` if the folder
    cannot be written.
    """
    names = [name.strip() for name in allow.split(",")]
    entries = tuple(name for name in names if name)
    browse = Browse(Fetch(Http(guard=Guard(entries))), top_k=MOST_PASSAGES)
    browse.check()
    cache = Cache(folder / PAGES)
    bar = (on_progress or progress_bar)(
        total=len(pages.addresses), desc="reading sources", unit="page"
    )

    async def fetch(entry: tuple[str, str]) -> tuple[str, FetchedPage]:
        name, address = entry
        page, _ = await cache.get_or_compute(
            key_of(page=name, allow=entries), partial(_fetch, browse, address), _decode, _encode
        )
        bar.update(1)
        return name, page

    with closing(cache), bar:
        work = map_concurrently(fetch, pages.addresses.items(), _AT_ONCE)
        read_pages = dict(Background().run(work))
    lines = [_with_pages(raw, rows.reader, read_pages) for raw in rows]
    return write_whole(folder / FETCHED_FILE, b"".join(lines))


def forget(folder: Path) -> None:
    """Remove the pages that were kept in the folder."""
    for suffix in ("", "-wal", "-shm"):
        (folder / f"{PAGES}{suffix}").unlink(missing_ok=True)


async def _fetch(browse: Browse, address: str) -> FetchedPage:
    try:
        paragraphs = await browse.browse(url=address)
    except ToolError as error:
        why = one_line(str(error)).removeprefix("The url was not read: ")
        return FetchedPage(address, error=why, transient=error.transient)
    text = shortened("\n".join(paragraph.text for paragraph in paragraphs), EVIDENCE_LENGTH)
    title = paragraphs[0].title if paragraphs else ""
    kind = note_kind(Evidence(text, title, url=address))
    if kind is not None or not text.strip():
        return FetchedPage(
            address, error=f"shows no page ({kind or 'empty'}): {shortened(text, 80)}"
        )
    return FetchedPage(address, title, text)


def _encode(page: FetchedPage) -> bytes | None:
    return None if page.transient else msgspec.json.encode(page)


def _decode(data: bytes) -> FetchedPage:
    return msgspec.json.decode(data, type=FetchedPage)


def _report(raw: Raw, reader: Reader) -> Trajectory | None:
    """The report without a trace in a row; `None` for any other row."""
    trajectory = reader(raw).trajectory
    if trajectory is None or all(issue.kind != NO_TRACE for issue in trajectory.issues):
        return None
    return trajectory


def _addresses_in(report: Trajectory | None) -> dict[str, str]:
    """The addresses that a report cites, by page."""
    addresses: dict[str, str] = {}
    if report is None:
        return addresses
    for source in read_answer(report).sources:
        if is_address(source.name):
            addresses.setdefault(page_of(source.name), _address(source.name))
    return addresses


def _address(name: str) -> str:
    """The address of a page, which may be cited without a scheme, or by its DOI."""
    return name if name.lower().startswith(_SCHEMES) else f"https://{page_of(name)}"


def _with_pages(raw: Raw, reader: Reader, pages: Mapping[str, FetchedPage]) -> bytes:
    """The row as a JSON line. A report has the pages that it cites in a column of their own."""
    if raw.error:
        return msgspec.json.encode({"could not be read": raw.error}) + b"\n"
    unchanged = raw.data.strip().replace(b"\n", b" ") + b"\n"
    report = _report(raw, reader)
    if report is None:
        return unchanged
    row = decoded(raw.data).value
    if not isinstance(row, dict):
        return unchanged
    cited_pages = [pages[page] for page in _addresses_in(report)]
    return msgspec.json.encode({**row, FETCHED_COLUMN: cited_pages}) + b"\n"
