"""The rules that each request is held to before a page sees it: which host, from which page, and who asks."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.requests import Request

from milepost.console.page_errors import PageError

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer. Files that never change have another `Cache-Control`."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE = frozenset({"GET", "HEAD"})
LARGEST_BODY = 5 * 1024 * 1024


def host_of(authority: str) -> str:
    """Return the name in a Host header, without its port; "" for what is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower().rstrip(".")
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Return whether a host is an IP address. No name leads to it, so no other site can have it in its power."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def check_host(request: Request, allowed: Collection[str], *, takes_addresses: bool) -> None:
    """Refuse a request whose Host is none of this console's; a site that rebinds its name to this machine sends its own."""
    host = host_of(request.headers.get("host", ""))
    is_known = host in LOOPBACK or host.endswith(".localhost") or host in allowed or "*" in allowed
    if not is_known and not (takes_addresses and is_address(host)):
        raise PageError(
            421, "Wrong host", f"this console does not answer for host {host!r}: allow it where it is started"
        )


def check_origin(request: Request) -> None:
    """Refuse an unsafe request that another site's page has sent. No browser lets a page forge these headers."""
    if request.method in SAFE:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site == "same-origin"
    elif origin is not None:
        is_own = "" != _authority_of(origin) == request.headers.get("host", "").lower()
    else:
        is_own = False
    if not is_own:
        raise PageError(403, "Not from here", "an action must be sent by a page of this console")


def _authority_of(origin: str) -> str:
    """Return the host of an Origin header with its port; "" for what is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class TokenAccess:
    """The way in of a console that stands alone: a token in the address once, a cookie from then on.

    `new_ticket` gives a token that is good once, for the browser that is opened. What the cookie holds proves the token
    without giving it away, so a cookie outlives a restart with the same token.
    """

    def __init__(self, token: str | None, port: int) -> None:
        self._token = secrets.token_urlsafe(24) if token is None else token
        self._tickets: set[str] = set()
        self.cookie = f"milepost_{port}"
        self._proof = hmac.new(self._token.encode(), f"cookie {port}".encode(), hashlib.sha256).hexdigest()

    @property
    def token(self) -> str:
        """The token, which goes into the address that is printed."""
        return self._token

    def new_ticket(self) -> str:
        """Return a token that is good once."""
        ticket = secrets.token_urlsafe(24)
        self._tickets.add(ticket)
        return ticket

    def takes(self, token: str) -> bool:
        """Return whether a token of an address lets in; a ticket is used up."""
        ticket = next((known for known in self._tickets if _is_same(known, token)), None)
        if ticket is not None:
            self._tickets.discard(ticket)
            return True
        return _is_same(self._token, token)

    def knows(self, request: Request) -> bool:
        """Return whether the request has the cookie."""
        return _is_same(self._proof, request.cookies.get(self.cookie, ""))

    def cookie_header(self, base: str) -> str:
        """Return the header that sets the cookie. Links of other sites may lead here, so it is Lax: no GET changes anything."""
        return f"{self.cookie}={self._proof}; HttpOnly; SameSite=Lax; Path={base or '/'}"


def _is_same(known: str, given: str) -> bool:
    return hmac.compare_digest(known.encode(), given.encode("utf-8", "surrogatepass"))


async def read_form(request: Request) -> bytes:
    """Read the body of a request, 5 MB at most."""
    body = bytearray()
    too_large = PageError(413, "Too large", f"a form may have {LARGEST_BODY // 1024 // 1024} MB at most")
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise too_large
    return bytes(body)
