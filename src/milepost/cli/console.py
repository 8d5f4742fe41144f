"""The command that serves the console: web pages of a store's runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import click

from milepost.cli.commands import OK, Invocation, command, optional_app_option
from milepost.cli.places import open_existing, open_to_look, store_words
from milepost.cli.targets import opened_engine
from milepost.cli.text import to_json
from milepost.engine.engine import Engine
from milepost.errors import MissingExtraError
from milepost.views.text import clean, plural

TOKEN = "MILEPOST_CONSOLE_TOKEN"  # noqa: S105 - the name of the variable


@command(
    "console",
    click.argument("url", metavar="[STORE]", required=False),
    optional_app_option,
    click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST",
                 help=f"Where to listen. Any other than this machine needs {TOKEN}."),
    click.option("--port", type=click.IntRange(0, 65535), default=8600, show_default=True, metavar="N",
                 help="The port, or the next free one."),
    click.option("--write", is_flag=True, help="Let people act on runs. Without it the console only shows."),
    click.option("--base-path", metavar="PATH", help="The prefix that a proxy takes off, such as /milepost."),
    click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME",
                 help="A name that the console answers for. Repeatable."),
    click.option("--hide", multiple=True, metavar="PATH",
                 help="Show values at this path as \N{BULLET}\N{BULLET}\N{BULLET}, such as state.card. Repeatable."),
    click.option("--hide-errors", is_flag=True, help="Show only type and node of errors."),
    click.option("--no-browser", is_flag=True, help="Open no browser."),
)  # fmt: skip
def console(invocation: Invocation, url: str | None, no_browser: bool, **options: Any) -> int:
    """Serve web pages of a store's runs, until Ctrl-C.

    Everything is local: no account, and nothing is loaded from elsewhere. The console executes no run: workers do. With --app
    it knows the code, for edits of states and for plans.
    """
    if url is not None and invocation.store_url is not None:
        raise click.UsageError("name the store either as STORE or with --store, not both")
    invocation.store_url = url or invocation.store_url
    try:
        from milepost.console.alone import serve
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in {"jinja2", "starlette", "uvicorn"}:
            raise
        raise MissingExtraError(
            f"the console needs {exc.name}: pip install 'milepost[console]'", extra="console"
        ) from exc
    with _engine(invocation, write=options["write"]) as engine:

        def told(address: str, ticket: str) -> None:
            _tell(invocation, engine, address, **options)
            if not no_browser and _has_display():
                _open(ticket)

        words = store_words(invocation.store_url)
        serve(engine, token=os.environ.get(TOKEN) or None, store_words=words, told=told, **options)
    return OK


@contextlib.contextmanager
def _engine(invocation: Invocation, *, write: bool) -> Iterator[Engine]:
    """Yield the engine of the app, or one over the store, which is opened to read only unless people may act."""
    if invocation.app is not None:
        with opened_engine(invocation, is_looking=not write) as engine:
            yield engine
        return
    with (open_existing if write else open_to_look)(invocation) as store:
        yield Engine(store)


def _tell(invocation: Invocation, engine: Engine, address: str, *, write: bool, port: int, **_: Any) -> None:
    if invocation.is_json:
        print(to_json({"store": engine.store.place, "address": address, "write": write}, is_line=True), flush=True)
        return
    mode = "with actions" if write else "read-only"
    flows = plural(len(engine.store.flows()), "flow")
    print(f"console of {clean(engine.store.place)} ({flows}, {mode})")
    if port and urlsplit(address).port != port:
        print(f"  port {port} is taken")
    print(f"  {address}   # Ctrl-C ends", flush=True)


def _has_display() -> bool:
    """Return whether somebody sits before this terminal, and a browser could show something."""
    return sys.stdout.isatty() and (
        sys.platform in {"darwin", "win32"} or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    )


def _open(address: str) -> None:
    """Open a browser, in a thread of its own: some take their time."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
