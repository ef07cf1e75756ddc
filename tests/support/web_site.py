"""A web site on loopback with good pages and bad manners, for every test that fetches something."""

import functools
import gzip
import json
import ssl
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from urllib.parse import unquote, urlsplit

from faulty_server import Handler, Loopback, Request

HTML = "text/html; charset=utf-8"
ARTICLE = """<!doctype html>
<html lang="en"><head><title>The lighthouse of Vardal</title><script>var tracked = true;</script>
<style>p { color: black }</style></head>
<body><nav><a href="/">Home</a> <a href="/article">Lighthouses</a></nav>
<article><h1>The lighthouse of Vardal</h1>
<p>The lighthouse of Vardal was built in 1887 by the engineer Marit Solheim on the northern tip of the island.</p>
<p>Its lamp was changed from oil to electricity in 1931, and since then it can be seen from thirty kilometres away.</p>
<p>The keeper's house next to it has been a café since 2004; its owner, Jonas Øvregård, bakes the bread himself.</p>
</article><footer>All rights reserved by nobody.</footer></body></html>
"""
PARAGRAPH = "The bridge of Tarn has nine arches, and the middle one was rebuilt in 1952."


@dataclass(frozen=True)
class Page:
    """What is sent for a path."""

    body: bytes = b""
    type: str | None = HTML
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw(self, length: int | None = None) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} Whatever",
            f"Content-Length: {len(self.body) if length is None else length}",
        ]
        lines += [f"Content-Type: {self.type}"] * (self.type is not None)
        lines += [f"{key}: {value}" for key, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


Write = Callable[[bytes], object]


class WebSite(Loopback):
    """Serves until the `with` block ends; see `PAGES` and `MANNERS` for what there is.

    Attributes:
        seen: every request so far, in order.
        pages: by path; add to it what a test needs.
    """

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(host, tls)
        self.seen, self.scheme = self.requests, "https" if tls else "http"
        self.pages: dict[str, Page] = pages()
        self.counts: Counter[str] = Counter()

    def url(self, path: str = "/") -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{path}"

    def paths(self) -> list[str]:
        """The paths asked for, in order."""
        return [item.path for item in self.seen]

    def respond(self, request: Request, handler: Handler) -> None:
        request = replace(
            request, headers={key.lower(): value for key, value in request.headers.items()}
        )
        self.seen.append(request)
        path, write = request.path, handler.wfile.write
        if path in RAW:
            write(RAW[path])
            handler.close_connection = path != "/long"
        elif path in self.pages:
            write(self.pages[path].raw())
        else:
            first, _, rest = path[1:].partition("/")
            inner = replace(request, target=f"/{rest}?{urlsplit(request.target).query}")
            MANNERS.get(first, missing)(self, inner, write)


def pages() -> dict[str, Page]:
    """The pages that are simply there."""
    gzipped = {"Content-Encoding": "gzip"}
    return {
        "/": Page(
            b"<title>Home</title><p>Welcome to a small site about lighthouses and bridges.</p>"
        ),
        "/article": Page(ARTICLE.encode()),
        "/plain.txt": Page(f"{PARAGRAPH}\n\nIts toll house is empty.\n".encode(), "text/plain"),
        "/paper.pdf": Page(pdf(PARAGRAPH), "application/pdf"),
        "/broken.pdf": Page(pdf(PARAGRAPH)[:200], "application/pdf"),
        "/image": Page(b"\x89PNG\r\n\x1a\n" + bytes(100), "image/png"),
        "/no-type": Page(ARTICLE.encode(), None),
        "/latin1": Page(
            "<title>Café</title><p>Crème brûlée à la carte</p>".encode("latin-1"),
            "text/html; charset=latin-1",
        ),
        "/gzip": Page(gzip.compress(ARTICLE.encode()), headers=gzipped),
        "/deflate": Page(zlib.compress(ARTICLE.encode()), headers={"Content-Encoding": "deflate"}),
        "/raw-deflate": Page(
            zlib.compress(ARTICLE.encode(), wbits=-15), headers={"Content-Encoding": "deflate"}
        ),
        "/gzip-twice": Page(
            gzip.compress(gzip.compress(ARTICLE.encode())),
            headers={"Content-Encoding": "gzip, gzip"},
        ),
        "/gzip-members": Page(
            gzip.compress(b"<p>one") + gzip.compress(b" two</p>"), headers=gzipped
        ),
        "/gzip-cut": Page(gzip.compress(ARTICLE.encode())[:-20], headers=gzipped),
        "/gzip-garbage": Page(b"this was never packed", headers=gzipped),
        "/five-encodings": Page(b"x", headers={"Content-Encoding": "gzip, gzip, gzip, gzip, gzip"}),
        "/brotli": Page(b"\x0b\x02\x80hello\x03", headers={"Content-Encoding": "br"}),
        "/bomb": Page(bomb(), headers=gzipped),
        "/bomb-twice": Page(gzip.compress(bomb()), headers={"Content-Encoding": "gzip, gzip"}),
        "/empty": Page(status=204, type=None),
        "/large": Page(b"a" * 200_000, "text/plain"),
        "/cookie": Page(
            b"<p>Have a cookie.</p>", headers={"Set-Cookie": "session=chocolate; Path=/"}
        ),
        "/to-metadata": Page(
            status=302, headers={"Location": "http://169.254.169.254/latest/meta-data/"}
        ),
        "/to-localhost": Page(status=302, headers={"Location": "http://localhost/"}),
        "/to-file": Page(status=302, headers={"Location": "file:///etc/passwd"}),
        "/to-data": Page(status=302, headers={"Location": "data:text/html,<p>mine</p>"}),
        "/to-nowhere": Page(status=302, type=None),
        "/to-junk": Page(status=302, headers={"Location": "http://[:::"}),
        "/loop": Page(status=302, headers={"Location": "/loop-back"}),
        "/loop-back": Page(status=302, headers={"Location": "/loop"}),
    }


@functools.cache
def bomb(megabytes: int = 40) -> bytes:
    """Zeros, packed a thousandfold."""
    packer = zlib.compressobj(wbits=31)
    return b"".join([packer.compress(bytes(1 << 20)) for _ in range(megabytes)] + [packer.flush()])


def pdf(*pages: str) -> bytes:
    """A small PDF with one line of text on each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = f"BT /F1 11 Tf 40 700 Td ({text.translate({40: '[', 41: ']', 92: '/'})}) Tj ET"
        fonts = "/Resources << /Font << /F1 3 0 R >> >> /MediaBox [0 0 842 842]"
        objects.append(f"<< /Type /Page /Parent 2 0 R {fonts} /Contents {5 + 2 * number} 0 R >>")
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    body, places = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        places.append(len(body))
        body += f"{number} 0 obj\n{item}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    start, size = len(body), len(objects) + 1
    trailer = f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    return body + f"xref\n0 {size}\n0000000000 65535 f \n{table}{trailer}".encode()


@functools.cache
def slow_pdf() -> bytes:
    """40 kB that pypdf works on for a minute: a stream that unpacks to a million lines of text."""
    lines = zlib.compress(b"BT /F1 12 Tf 72 700 Td (The river is long.) Tj ET\n" * 1_000_000)
    head = pdf("x")
    start, end = (
        head.index(b"<< /Length", head.index(b"/Contents")),
        head.index(b"endobj", head.index(b"stream")),
    )
    stream = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream\n" % (len(lines), lines)
    return head[:start] + stream + head[end:]


def missing(site: WebSite, seen: Request, write: Write) -> None:
    write(Page(b"<p>Nothing here.</p>", status=404).raw())


def status(site: WebSite, seen: Request, write: Write) -> None:
    """`/status/429?after=2`: that status, with Retry-After."""
    headers = {"Retry-After": seen.parameters["after"]} if "after" in seen.parameters else {}
    write(Page(b"<p>No.</p>", status=int(seen.path[1:]), headers=headers).raw())


def sometimes(site: WebSite, seen: Request, write: Write) -> None:
    """`/sometimes/503/2?after=0`: fails twice, then works, then begins again."""
    site.counts[seen.path] += 1
    code, times = seen.path[1:].split("/")
    if site.counts[seen.path] % (int(times) + 1):
        status(site, replace(seen, target=f"/{code}?{urlsplit(seen.target).query}"), write)
    else:
        write(Page(ARTICLE.encode()).raw())


def redirect(site: WebSite, seen: Request, write: Write) -> None:
    """`/redirect/3`: three redirects, then the article. `/redirect?to=…`: anywhere,
    `&status=308`.
    """
    left, asked = int(seen.path[1:] or 0), seen.parameters
    target = asked.get("to") or (f"/redirect/{left - 1}" if left > 1 else "/article")
    write(Page(status=int(asked.get("status", 302)), headers={"Location": unquote(target)}).raw())


def echo(site: WebSite, seen: Request, write: Write) -> None:
    told = {
        "method": seen.method,
        "target": seen.target,
        "headers": seen.headers,
        "body": seen.data.decode(),
    }
    write(Page(json.dumps(told).encode(), "application/json").raw())


def wait(site: WebSite, seen: Request, write: Write) -> None:
    """`/wait/0.5`: answers after so many seconds."""
    site.over.wait(float(seen.path[1:]))
    write(Page(b"<p>Here at last.</p>").raw())


def silent(site: WebSite, seen: Request, write: Write) -> None:
    site.over.wait(3600)


def slow_headers(site: WebSite, seen: Request, write: Write) -> None:
    _drip(site, write, (bytes([byte]) for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"z" * 100_000))


def slow_body(site: WebSite, seen: Request, write: Write) -> None:
    write(Page().raw(length=100_000))
    _drip(site, write, repeat(b"z", 100_000))


def hints(site: WebSite, seen: Request, write: Write) -> None:
    """One interim answer after another, never the answer."""
    _drip(site, write, repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n", 10_000))


def _drip(site: WebSite, write: Write, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        write(piece)
        if site.over.wait(0.05):
            return


def endless(site: WebSite, seen: Request, write: Write) -> None:
    """A body without end or length; `/endless/gzip` says it is packed, and is."""
    packed = seen.path == "/gzip"
    write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + b"Content-Encoding: gzip\r\n" * packed
    )
    write(b"Transfer-Encoding: chunked\r\n\r\n")
    for part in _packed_for_ever() if packed else repeat(b"<p>more</p>" * 1000):
        write(b"%x\r\n%s\r\n" % (len(part), part))


def _packed_for_ever() -> Iterator[bytes]:
    """Gzip that goes on and on and never unpacks to a single byte."""
    packer = zlib.compressobj(wbits=31)
    yield packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    yield from repeat(b"\0\0\0\xff\xff" * 1000)


def crumbs(site: WebSite, seen: Request, write: Write) -> None:
    """A million chunks of one byte."""
    write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(1000):
        write(b"1\r\na\r\n" * 1000)
    write(b"0\r\n\r\n")


def huge_headers(site: WebSite, seen: Request, write: Write) -> None:
    write(Page(headers={f"X-{number}": "z" * 1000 for number in range(5000)}).raw())


def endless_header(site: WebSite, seen: Request, write: Write) -> None:
    write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        write(b"z" * 10_000)


MANNERS = {
    each.__name__.replace("_", "-"): each
    for each in (
        *(status, sometimes, redirect, echo, wait, silent, slow_headers, slow_body, hints),
        *(endless, crumbs, huge_headers, endless_header),
    )
}


def _claiming(length: str) -> bytes:
    return (
        Page(ARTICLE.encode())
        .raw()
        .replace(b"Content-Length: ", f"Content-Length: {length}\r\nX: ".encode(), 1)
    )


RAW = {
    "/drop": b"",
    "/close": Page(ARTICLE.encode()).raw(),  # without having said so
    "/garbage": b"\x16\x03\x01 this is not HTTP\r\n\r\n",
    "/short": Page(ARTICLE.encode()).raw(length=1_000_000),  # promises more than it sends
    "/long": Page(b"<p>first</p>").raw()
    + Page(b"<p>forged</p>").raw(),  # what follows looks like another answer
    **{f"/lying-length/{length}": _claiming(length) for length in ("-5", "ten", "99999999999")},
}
"""What is sent as it is; the connection is then closed, but for `long`."""
