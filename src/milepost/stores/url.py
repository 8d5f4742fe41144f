"""A store from its URL."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from milepost.errors import OptionError
from milepost.store import Store

_FORMS = (
    "sqlite:///runs.db (in the working directory), sqlite:////srv/runs.db (absolute), sqlite:///:memory:, "
    "file:runs (a folder in the working directory), file:///srv/runs (absolute), "
    "postgresql://user:password@host:port/database or memory://"
)


def open_store(url: str, *, read_only: bool = False) -> Store:
    """Open the store that `url` names; it is the caller's to close.

    `sqlite:///runs.db` is relative to the working directory, `sqlite:////srv/runs.db` absolute; so are `file:runs` and
    `file:///srv/runs`, which name a folder. `memory://` is a new store in this process. Percent escapes stand for their
    characters. `postgresql://` and `postgres://` go to libpq as they are. Raises `OptionError` for anything else, and what
    the store itself raises when it can't be opened. With `read_only` nothing is made or migrated: `StoreError` if there is
    no store of this version, and from every verb that writes.
    """
    return opener(url)(read_only=read_only)


def open_for_call(url: str) -> Store:
    """Open the store that `url` names for one call, which closes it. Raises `OptionError` for a store in memory."""
    opened = open_store(url)
    if opened.is_blocking and opened.place != ":memory:":
        return opened
    opened.close()
    raise OptionError(
        f"a store at {url!r} would be gone with the call that it is opened for: give a MemoryStore()", option="store"
    )


def opener(url: str) -> Callable[..., Store]:
    """Return a function that opens the store that `url` names; raises `OptionError` for anything else, at once."""
    if not isinstance(url, str):
        raise TypeError(f"a store's URL must be a str, not {type(url).__name__}")
    scheme, is_url, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "memory" and is_url and rest in {"", "//", "///"}:
        from milepost.stores.memory import MemoryStore

        return MemoryStore
    path = unquote(rest[3:])
    if scheme == "sqlite" and rest[:3] == "///" and path and path[-1] != "/" and "?" not in rest and "\0" not in path:
        from milepost.stores.sqlite.store import SQLiteStore

        # The working directory is that of now, also if the store is opened later.
        return partial(SQLiteStore, path if path == ":memory:" else Path(path).absolute())
    folder = unquote(rest[2:] if rest[:3] == "///" else rest)
    if scheme == "file" and folder.strip("/") and folder[:2] != "//" and "?" not in rest and "\0" not in folder:
        from milepost.stores.file.store import FileStore

        return partial(FileStore, Path(folder).absolute())
    if scheme in {"postgresql", "postgres"} and rest[:2] == "//":
        from milepost.stores.postgres.store import PostgresStore

        return partial(PostgresStore, f"{scheme}:{rest}")
    if is_url and scheme == "file":
        problem = "a file URL has the path of a folder after file: or file://, no host and no options"
    elif is_url and scheme == "sqlite":
        problem = "a sqlite URL has three slashes, then the path of a file, and no options"
    elif "=" in url.partition("?")[0]:
        problem = "it is no URL of a store (PostgresStore takes connection strings of libpq)"
    else:
        problem = "it is no URL of a store"
    raise OptionError(f"can't open a store at {shown_url(url)!r}: {problem}: give {_FORMS}", option="store")


def shown_url(url: str) -> str:
    """Return the part of a URL that a text for people may show: all of it, or only its scheme if it may have a secret."""
    if not any(sign in url for sign in "@=?"):
        return url
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url)
    return f"{scheme[0] if scheme else ''}..."
