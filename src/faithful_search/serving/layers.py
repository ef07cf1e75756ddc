"""What stands before an application, whichever it is: who may ask, under which name, and bodies that come in time."""

from __future__ import annotations

import hmac
import re
import socket
from collections.abc import Sequence
from typing import Any

from ..wire.guard import as_address
from .app import App, Bodies, GoneError, Receive, header, refusal, send_reply
from .wire import Limits, RequestError

_PLACE = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]*)?")


def guarded(app: App, token: str) -> App:
    """The application for those who send `Authorization: Bearer TOKEN`; `/health` is for all. No token, no guard."""
    wanted = f"Bearer {token}".encode()

    async def ask(scope: Any, receive: Receive, send: Any) -> None:
        given = header(scope, b"authorization")
        # compared in constant time, so that how long it takes tells nothing about the token
        if scope["type"] == "http" and scope["path"] != "/health" and not hmac.compare_digest(given, wanted):
            return await send_reply(send, refusal(RequestError("a token is needed: Authorization: Bearer …", 401)))
        return await app(scope, receive, send)

    return ask if token else app


def addressed(app: App, names: Sequence[str] = ()) -> App:
    """The application for requests that name this server, and for none that a page of another site sent.

    A web page may give its own name this machine's address (DNS rebinding), and a browser then takes the answers for
    the page's own. Such requests carry the page's name in `Host`, so a name has to be known here: `localhost`, what the
    machine calls itself, or one of `names`. An IP address cannot be rebound and is always right. A request with an
    `Origin` comes from a page, which must be one of this machine's (loopback) or of `names`.
    """
    named = {name.lower() for name in names}
    own = {"localhost", socket.gethostname().lower(), *named}

    def check(scope: Any) -> None:
        headers = [(key, value.decode("latin-1")) for key, value in scope["headers"]]
        # every one of them: which of several an application would take is its own affair
        for place in [value for key, value in headers if key == b"host"] or [""]:
            host = _host_in(place)
            if as_address(host) is None and host not in own:
                told = (
                    f"start it with --allow-host {host[:80]} where that is its name" if host else "send a Host header"
                )
                raise RequestError(f"this server does not know itself by the name {host[:80]!r}: {told}", 421)
        for origin in (value for key, value in headers if key == b"origin"):
            page = _host_in(origin.partition("://")[2])
            if not (is_loopback(page) or page in named):
                raise RequestError(f"pages of {origin[:80]!r} are not answered", 403)

    async def ask(scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] == "http":
            try:
                check(scope)
            except RequestError as error:
                return await send_reply(send, refusal(error))
        return await app(scope, receive, send)

    return ask


def in_time(app: App, limits: Limits) -> App:
    """The application, which gets a request as soon as its body is whole; bodies too late or too large are refused."""
    bodies = Bodies(limits)

    async def ask(scope: Any, receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        try:
            async with bodies.read(scope, receive) as body:
                messages = [{"type": "http.request", "body": body, "more_body": False}]

                async def replay() -> Any:
                    # after the body the server tells only that the client has gone
                    return messages.pop() if messages else await receive()

                return await app(scope, replay, send)
        except (RequestError, GoneError) as error:
            return await send_reply(send, refusal(error))

    return ask


def is_loopback(host: str) -> bool:
    """Whether a name or an address is reached from this machine only.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("0.0.0.0")
        (True, True, True, False)
    """
    address = as_address(host)
    return host == "localhost" if address is None else address.is_loopback


def _host_in(place: str) -> str:
    """The host of `host:port`, without port and brackets; empty for anything else."""
    found = _PLACE.fullmatch(place.lower())
    return (found[1] or found[2]) if found else ""
