"""What every command is told besides its own options, and the decorator that makes a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(slots=True)
class Invocation:
    """One call of the command line."""

    store_url: str | None = None
    """As given with `--store`; None: not given."""
    is_json: bool = False
    """Print JSON, and nothing else, on the standard output."""
    is_live: bool = False
    """Each line of the standard output is an event."""
    is_debug: bool = False
    """Show tracebacks and the library's log."""
    run_id: str | None = None
    """The run that this call has begun or gone on with; None: none yet."""


def shared_options(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--store`, `--json` and `--debug`, which may stand before a command's name and behind it."""

    def note(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
        def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
            if value:
                setattr(context.ensure_object(Invocation), name, value)

        return callback

    for option in (
        click.option("--debug", is_flag=True, expose_value=False, callback=note("is_debug"), is_eager=True,
                     help="Show tracebacks and the log."),
        click.option("--json", is_flag=True, expose_value=False, callback=note("is_json"), is_eager=True,
                     help="Print JSON: one document, or a line for each live event."),
        click.option("--store", metavar="URL", expose_value=False, callback=note("store_url"),
                     help="Where runs are kept, such as sqlite:///runs.db. Default: $MILEPOST_STORE, else "
                          "sqlite:///.milepost/runs.db."),
    ):  # fmt: skip
        fn = option(fn)
    return fn


def command(name: str, *options: Callable[..., Any], **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function of (`Invocation`, its options); it returns an exit code or None for 0."""

    def make(fn: Callable[..., Any]) -> click.Command:
        wrapped: Any = click.pass_obj(fn)
        for option in reversed((*options, shared_options)):
            wrapped = option(wrapped)
        decorate: Callable[[Any], click.Command] = click.command(name, **settings)
        return decorate(wrapped)

    return make
