"""The store of a command, the options that every command has, and the ways in which commands end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import click

from milepost.errors import (
    AsyncNodeError,
    CheckpointNotFoundError,
    GraphError,
    InvalidIDError,
    InvalidResumeNodeError,
    LeaseLost,
    MissingExtraError,
    OptionError,
    RunLockedError,
    RunSuspended,
    StoreError,
)

if TYPE_CHECKING:
    from milepost.store import Store

# Durations as options take them: a number with its unit, so that nobody deletes by the second what is meant by
# the day.


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.ASCII)


def read_duration(text: str) -> float:
    """Read a duration such as `30d`; it is given in seconds. `click.BadParameter` without a unit, and for anything else."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: give a number and s, m, h, d or w, such as 30d")
    number, unit = found.groups()
    if not unit:
        raise click.BadParameter(f"{text!r} has no unit: give {number}s for seconds, or m, h, d or w, such as 30d")
    return float(number) * _UNITS[unit]


def read_pause(text: str) -> float:
    """Read a duration that is longer than none."""
    seconds = read_duration(text)
    if not seconds:
        raise click.BadParameter(f"{text!r} is no time at all: give more than 0s")
    return seconds


# -- Exit codes, and which error means which. Nothing else decides them ----------------------------


OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
WAITING = 4
LOCKED = 5
INTERRUPTED = 130
TERMINATED = 143

EXIT_CODES = {
    OK: "done",
    FAILED: "failed: the run did, or what was asked could not be done",
    USAGE: "usage: a wrong option, target, id, input or store",
    NOT_FOUND: "not found: no such run, node, visit or store",
    WAITING: "waiting: the run waits for a signal or a time",
    LOCKED: "locked: another owner executes the run",
    INTERRUPTED: "interrupted by Ctrl-C; the run can be resumed",
    TERMINATED: "a worker that got SIGTERM twice; what ran is taken up by the next one",
}

_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    ((CheckpointNotFoundError,), NOT_FOUND),
    ((RunSuspended,), WAITING),
    ((RunLockedError, LeaseLost), LOCKED),
    ((AsyncNodeError, GraphError, InvalidIDError, InvalidResumeNodeError, MissingExtraError, OptionError), USAGE),
)


class NotFound(click.ClickException):
    """The error for something that was named and is not there."""

    exit_code = NOT_FOUND


def code_of(error: BaseException) -> int:
    """The exit code of a command that ended with `error`."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        # A node that exits has not brought its run to the end, and its code could be taken for one of these here.
        return FAILED
    for kinds, code in _MEANINGS:
        if isinstance(error, kinds):
            return code
    if isinstance(error, StoreError) and error.op == "open":
        return USAGE
    return FAILED


# -- What every command is told besides its own options, and the decorator that makes a command ----


@dataclass(slots=True)
class Invocation:
    """One call of the command line."""

    store_url: str | None = None
    """As given with `--store`; None: not given."""
    app: str | None = None
    """As given with `--app`; None: not given."""
    app_store: str | None = None
    """The store of the app's engine, if none was named and it is no default; it is named in commands that are shown."""
    is_json: bool = False
    """Print JSON, and nothing else, on the standard output."""
    is_live: bool = False
    """Each line of the standard output is an event."""
    is_debug: bool = False
    """Show tracebacks and the library's log."""
    run_id: str | None = None
    """The run that this call has begun or gone on with; None: none yet."""


def _note(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return the callback of an option that is noted in the `Invocation` instead of being passed on."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(Invocation), name, value)

    return callback


def shared_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--store`, `--json` and `--debug`, which may stand before a command's name and behind it."""
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, callback=_note("is_debug"), is_eager=True,
                     help="Show tracebacks and the log."),
        click.option("--json", is_flag=True, expose_value=False, callback=_note("is_json"), is_eager=True,
                     help="Print JSON: one document, or a line for each live event."),
        click.option("--store", metavar="URL", expose_value=False, callback=_note("store_url"),
                     help="Where runs are kept, such as sqlite:///runs.db. Default: $MILEPOST_STORE, else store in "
                          "[tool.milepost] of pyproject.toml, else sqlite:///.milepost/runs.db."),
    ):  # fmt: skip
        fn = option(fn)
    return fn


app_option = click.option(
    "--app", metavar="MODULE:NAME", expose_value=False, callback=_note("app"),
    help="What has the flows: an Engine or a Worker, such as shop:engine. Default: $MILEPOST_APP, else app in "
         "[tool.milepost] of pyproject.toml.",
)  # fmt: skip
optional_app_option = click.option(
    "--app", metavar="MODULE:NAME", expose_value=False, callback=_note("app"),
    help="An Engine or a Worker, such as shop:engine, whose store is used. Default: none, no code is needed.",
)  # fmt: skip


by_option = click.option("--by", metavar="NAME", help="Who does this; show and history tell it.")


def command(name: str, *options: Callable[..., Any], **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function of (`Invocation`, its options); it returns an exit code or None for 0."""

    def make(fn: Callable[..., Any]) -> click.Command:
        wrapped: Any = click.pass_obj(fn)
        for option in reversed((*options, shared_options)):
            wrapped = option(wrapped)
        decorate: Callable[[Any], click.Command] = click.command(name, **settings)
        return decorate(wrapped)

    return make


# -- Which store a command works on, and how it is opened: to run something, or only to look -------


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
    settings = tool.get("milepost", {})
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
