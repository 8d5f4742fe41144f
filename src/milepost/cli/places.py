"""Which store a command works on, and how it is opened: to run something, or only to look."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, unquote

from milepost.cli.exits import NotFound
from milepost.cli.invocation import Invocation
from milepost.store import Store
from milepost.stores.url import open_store

__all__ = [
    "DEFAULT_URL",
    "chosen_url",
    "file_of",
    "folder_of",
    "has_store",
    "is_file_store",
    "is_postgres",
    "open_each",
    "open_existing",
    "open_or_make",
    "url_for",
    "url_of",
]

_DEFAULT_FILE = Path(".milepost/runs.db")
DEFAULT_URL = "sqlite:///.milepost/runs.db"
_DEFAULT_FOLDER = (Path(".milepost/checkpoints"), "file:.milepost/checkpoints")


def chosen_url(invocation: Invocation) -> str | None:
    """The store that was named by `--store` or `MILEPOST_STORE`; None: neither."""
    return invocation.store_url or os.environ.get("MILEPOST_STORE") or None


def url_of(invocation: Invocation) -> str:
    """The store to look into: the one that was named, else the default that exists, else the default."""
    return _urls_of(invocation)[0]


def _urls_of(invocation: Invocation) -> list[str]:
    named = chosen_url(invocation)
    if named is not None:
        return [named]
    folder, url = _DEFAULT_FOLDER
    there = [*([DEFAULT_URL] if _DEFAULT_FILE.exists() else []), *([url] if is_file_store(folder) else [])]
    return there or [DEFAULT_URL]


def url_for(path: str | os.PathLike[str]) -> str:
    """The URL of a SQLite file."""
    return "sqlite:///" + quote(os.fspath(Path(path).absolute()))


def file_of(url: str) -> Path | None:
    """The file of a SQLite URL; None for everything else."""
    scheme, _, rest = url.partition(":")
    path = unquote(rest[3:])
    is_file = scheme.lower() == "sqlite" and rest.startswith("///") and "?" not in rest and path != ":memory:"
    return Path(path) if is_file else None


def folder_of(url: str) -> Path | None:
    """The folder of a file store's URL; None for everything else."""
    scheme, _, rest = url.partition(":")
    path = unquote(rest[2:] if rest.startswith("///") else rest)
    is_folder = scheme.lower() == "file" and path.strip("/") and not path.startswith("//") and "?" not in rest
    return Path(path) if is_folder else None


def is_postgres(url: str) -> bool:
    """Whether a URL names a PostgreSQL database."""
    return url.partition(":")[0].lower() in {"postgresql", "postgres"}


def is_file_store(folder: Path) -> bool:
    """Whether there is a file store in `folder`."""
    return (folder / ".milepost" / "version.json").is_file()


def open_or_make(invocation: Invocation) -> Store:
    """The store to run something in, which is made if it is not there."""
    return open_store(chosen_url(invocation) or DEFAULT_URL)


def open_existing(invocation: Invocation) -> Store:
    """The store to look into or to resume in; `NotFound` where there is none, so that looking makes no files."""
    return _open_there(url_of(invocation))


def open_each(invocation: Invocation) -> Iterator[Store]:
    """The stores to list: the one that was named, else each default that exists; none where there is none."""
    yield from map(_open_there, _urls_of(invocation) if has_store(invocation) else ())


def has_store(invocation: Invocation) -> bool:
    """Whether there is a store to look into, or one was named."""
    return chosen_url(invocation) is not None or url_of(invocation) != DEFAULT_URL or _DEFAULT_FILE.exists()


def _open_there(url: str) -> Store:
    path, folder = file_of(url), folder_of(url)
    if path is not None:
        if not path.exists():
            raise NotFound(f"there is no store at {path.absolute()}: run something first, or give --store")
        _refuse_foreign(path)
    elif folder is not None and not is_file_store(folder):
        what = "is a folder without runs" if folder.is_dir() else "is no folder"
        raise NotFound(f"{folder.absolute()} {what}: run something first, or give the store with --store")
    return open_store(url)


def _refuse_foreign(path: Path) -> None:
    """Refuse a database of something else: to open it as a store would add tables to it."""
    try:
        with closing(sqlite3.connect(f"file:{quote(os.fspath(path.absolute()))}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return  # the store says better what is wrong
    if not tables & {"runs", "checkpoints"}:
        what = "a database without runs" if tables else "empty"
        raise NotFound(f"{path.absolute()} is {what}: give the store's file with --store")
