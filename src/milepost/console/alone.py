"""The console as a server of its own: a token lets in, and Ctrl-C ends it."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from urllib.parse import quote

import uvicorn

from milepost.console.app import Console, make_site
from milepost.console.guard import LOOPBACK, TokenAccess, is_address
from milepost.engine.engine import Engine
from milepost.errors import OptionError

SHORTEST_TOKEN = 16
_TRIED = 100
"""The number of ports that are tried."""
_PATIENCE = 1
"""Seconds for requests that are being answered when the server ends."""


def serve(
    engine: Engine,
    *,
    host: str = "127.0.0.1",
    port: int = 8600,
    token: str | None = None,
    write: bool = False,
    base_path: str | None = None,
    allow_hosts: Collection[str] = (),
    hide: Sequence[str] = (),
    hide_errors: bool = False,
    store_words: Sequence[str] = (),
    told: Callable[[str, str], None],
) -> None:
    """Serve the console until Ctrl-C.

    `told(address, ticket)` is called when the port listens. The address has the token, and `ticket` is the same address
    with a token that is good once. If the port is taken, the next free one is. Raises `OptionError` for a host of the
    network without a token, for a token that is too short, and for a host or port that can't be listened at.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise OptionError(
            f"MILEPOST_CONSOLE_TOKEN has {len(token)} characters: give {SHORTEST_TOKEN} or more", option="token"
        )
    if token is None and host not in LOOPBACK:
        raise OptionError(
            f"a console on {host} needs a token: set MILEPOST_CONSOLE_TOKEN ({SHORTEST_TOKEN} characters or more), or leave "
            f"--host out",
            option="host",
        )
    name = _login_name()
    site = make_site(
        engine,
        user=lambda request: name,
        write=write,
        base_path=base_path,
        hide=hide,
        hide_errors=hide_errors,
        store_words=store_words,
    )
    with _listening(host, port) as listener:
        bound = listener.getsockname()[1]
        access = TokenAccess(token, bound)
        hosts = {*(name.lower() for name in allow_hosts), *([] if is_address(host) else [host.lower()])}
        app = Console(site, hosts, access=access, takes_addresses=True)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=_PATIENCE,
        )  # fmt: skip
        shown = "localhost" if host in {"0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104
        address = f"http://{shown}:{bound}{base_path or ''}/?token="
        server = _Server(config, lambda: told(address + quote(access.token, safe=""), address + access.new_ticket()))
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that says when its port listens."""

    def __init__(self, config: uvicorn.Config, told: Callable[[], None]) -> None:
        super().__init__(config)
        self._told = told

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._told()


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket at the port, or at the next one that is free."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as exc:
        raise OptionError(f"can't listen at host {host!r}: {exc}", option="host") from exc
    error: OSError | None = None
    for tried in range(port, min(port + _TRIED, 65536)) if port else [0]:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], tried, *address[2:]))
            listener.listen()
        except OSError as exc:
            listener.close()
            error = exc
            if tried == port and not _is_taken(exc):
                break
            continue
        return listener
    raise OptionError(f"can't listen at {host}:{port}: {error}", option="port") from error


def _is_taken(exc: OSError) -> bool:
    import errno

    return exc.errno == errno.EADDRINUSE


def _login_name() -> str:
    """Return the name of the one who started the console, as actions are said to be done by."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "console"
