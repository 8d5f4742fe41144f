"""The store that a command works on, how it is opened, to run in it or only to look; and files with states in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import click

from milepost.cli.commands import Invocation, NotFound

if TYPE_CHECKING:
    from milepost.store import Store

_DEFAULT_FILE = Path(".milepost/runs.db")
DEFAULT_URL = "sqlite:///.milepost/runs.db"
_DEFAULT_FOLDER = (Path(".milepost/checkpoints"), "file:.milepost/checkpoints")


def project() -> tuple[Path, dict[str, str]]:
    """Return the project's root and what `[tool.milepost]` in its pyproject.toml says.

    The root is the nearest folder with such a file, from the working directory upwards; without one it is the working
    directory. Raises `click.UsageError` for a file that cannot be read, and for what is no setting.
    """
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file()), None)
    if root is None:
        return here, {}
    import tomllib

    try:
        tool = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"{root / 'pyproject.toml'} can't be read: {exc}") from exc
    settings = tool.get("milepost", {}) if isinstance(tool, dict) else tool
    if not isinstance(settings, dict) or any(
        name not in {"app", "store"} or not isinstance(value, str) for name, value in settings.items()
    ):
        raise click.UsageError(
            f"[tool.milepost] of {root / 'pyproject.toml'} takes texts as app and store, and nothing else"
        )
    return root, settings


def chosen_app(invocation: Invocation) -> tuple[str, Path | None] | None:
    """Return the app that was named, and the folder that its name begins at if a project's file names it; None: none.

    `--app` wins, then `MILEPOST_APP`, then the project's file.
    """
    if named := invocation.app or os.environ.get("MILEPOST_APP"):
        return named, None
    root, settings = project()
    return (settings["app"], root) if settings.get("app") else None


def chosen_url(invocation: Invocation) -> str | None:
    """Return the store that was named by `--store`, `MILEPOST_STORE` or the project's file, the first of these; None: none."""
    if named := invocation.store_url or os.environ.get("MILEPOST_STORE"):
        return named
    root, settings = project()
    url = settings.get("store") or None
    if url is None or root == Path.cwd():
        return url
    path, folder = file_of(url), folder_of(url)
    return url_for(root / path) if path else f"file://{quote(str(root / folder))}" if folder else url


def source_of_url(invocation: Invocation) -> str:
    """Say what named the store."""
    if invocation.store_url:
        return "--store"
    if os.environ.get("MILEPOST_STORE"):
        return "MILEPOST_STORE"
    return "the default" if chosen_url(invocation) is None else "pyproject.toml"


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


def url_of_store(store: Store) -> str | None:
    """Return the URL of a store in a file or folder, from the working directory; None for any other, and the default."""
    path = Path(store.place)
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    url = f"sqlite:///{quote(str(path))}" if path.is_file() else f"file:{quote(str(path))}" if path.is_dir() else None
    return None if url == DEFAULT_URL else url


def store_words(url: str | None) -> list[str]:
    """Return the option that names a store in a command that is shown; a URL that may hold a secret is left to the reader."""
    from milepost.stores.url import shown_url

    return [] if url is None else ["--store", url if shown_url(url) == url else "URL"]


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
    """Return whether a URL names a PostgreSQL database."""
    return url.partition(":")[0].lower() in {"postgresql", "postgres"}


def is_file_store(folder: Path) -> bool:
    """Return whether there is a file store in `folder`."""
    return (folder / ".milepost" / "version.json").is_file()


def open_or_make(invocation: Invocation) -> Store:
    """The store to run something in, which is made if it is not there."""
    return _open(chosen_url(invocation) or DEFAULT_URL)


def open_existing(invocation: Invocation) -> Store:
    """The store to change something in; `NotFound` where there is none."""
    return _open_there(url_of(invocation))


def open_to_look(invocation: Invocation) -> Store:
    """The store to look into as `open_existing` finds it, opened to read only: looking at a file changes nothing of it."""
    return _open_there(url_of(invocation), read_only=True)


def open_each(invocation: Invocation) -> Iterator[Store]:
    """The stores to list: the one that was named, else each default that exists; none where there is none."""
    for url in _urls_of(invocation) if has_store(invocation) else ():
        yield _open_there(url, read_only=True)


def has_store(invocation: Invocation) -> bool:
    """Return whether there is a store to look into, or one was named."""
    return chosen_url(invocation) is not None or url_of(invocation) != DEFAULT_URL or _DEFAULT_FILE.exists()


def _open_there(url: str, *, read_only: bool = False) -> Store:
    path, folder = file_of(url), folder_of(url)
    if path is not None:
        if not path.exists():
            raise NotFound(f"there is no store at {path.absolute()}: run something first, or give --store")
        _refuse_foreign(path)
    elif folder is not None and not is_file_store(folder):
        what = "is a folder without runs" if folder.is_dir() else "is no folder"
        raise NotFound(f"{folder.absolute()} {what}: run something first, or give the store with --store")
    return _open(url, read_only=read_only)


def _open(url: str, *, read_only: bool = False) -> Store:
    from milepost.stores.url import open_store  # the help texts need no store

    return open_store(url, read_only=read_only)


def _refuse_foreign(path: Path) -> None:
    """Refuse a database of something else: to open it as a store would add tables to it."""
    import sqlite3

    try:
        with closing(sqlite3.connect(f"file:{quote(os.fspath(path.absolute()))}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return  # the store says better what is wrong
    if not tables & {"runs", "checkpoints"}:
        what = "a database without runs" if tables else "empty"
        raise NotFound(f"{path.absolute()} is {what}: give the store's file with --store")


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, in place of one that is there, or to a pipe or device. Raise OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            path.chmod(0o600)  # a file that was there may be one that others can read
            file.truncate(0)
        file.write(data)
