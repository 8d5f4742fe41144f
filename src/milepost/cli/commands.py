"""What all commands have in common: exit codes, the shared options, and the decorator that makes a command of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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

# -- Exit codes, and which error means which. Nothing else decides them ----------------------------


OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
WAITING = 4
LOCKED = 5
UNCHECKED = 6
INTERRUPTED = 130
TERMINATED = 143

EXIT_CODES = {
    OK: "done",
    FAILED: "failed: the run did, or what was asked could not be done",
    USAGE: "usage: a wrong option, target, id, input or store",
    NOT_FOUND: "not found: no such run, node, visit or store",
    WAITING: "waiting: the run waits for a signal or a time",
    LOCKED: "locked: another owner executes the run",
    UNCHECKED: "nothing was checked",
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
        return NOT_FOUND if isinstance(error.__cause__, FileNotFoundError) else USAGE
    return FAILED


# -- What every command is told besides its own options, and the decorator that makes a command ----


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
