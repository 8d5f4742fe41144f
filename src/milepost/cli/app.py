"""The group of all commands, and the edge where every error becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from milepost import __version__
from milepost.cli.commands import EXIT_CODES, INTERRUPTED, USAGE, Invocation, code_of, shared_options
from milepost.cli.logs import logging_warnings
from milepost.cli.text import to_json
from milepost.errors import FlowChangedError, MilepostError, RunNotFoundError
from milepost.views.text import clean, in_options

BROKEN_PIPE = 141
"""As a shell tells of a process that SIGPIPE ended."""

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())


@click.group(
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="milepost", message="%(prog)s %(version)s")
@shared_options
@click.pass_context
def cli(context: click.Context) -> None:
    """Durable workflows in plain Python: run, look into and resume runs that survive the death of their process.

    \b
    Begin with:   milepost demo
    Then:         milepost run my_flow.py:graph '{"id": "o-17"}'
                  milepost run my_flow.py:workflow --input id=o-17
                  milepost runs
                  milepost resume RUN my_flow.py:graph
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(USAGE)


class Deferred(click.Command):
    """A command that is imported when it is called. To list it takes only its name and its summary."""

    def __init__(self, name: str, home: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self._home = home

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self._home.partition(":")
        command: click.Command = getattr(import_module(f"milepost.cli.{module}"), name)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        return self.load().make_context(*args, **kwargs)


for _name, _home, _summary in (
    ("cancel", "sending:cancel", "Ask a run to end, or all that match."),
    ("check", "check:check_runs", "Check the app's code against the runs that are open."),
    ("console", "console:console", "Serve web pages of a store's runs, until Ctrl-C."),
    ("crashtest", "crashing:crashtest", "Kill a flow everywhere, and see whether it ends the same."),
    ("db", "database:db", "Look at the tables of a database, and bring them up to date."),
    ("delete", "keeping:delete", "Delete a run, or one node of it, for good."),
    ("demo", "demo:demo", "See a pipeline survive a SIGKILL, on real data."),
    ("diff", "looking:diff", "Show what changed in the state from A to B."),
    ("doctor", "checking:doctor", "Check Python, SQLite, the store and the extras."),
    ("export", "keeping:export", "Write everything of a run as JSON lines."),
    ("fork", "keeping:fork", "Copy a run up to a node into a new run, and print its id."),
    ("graph", "checking:draw_graph", "Draw a graph as Mermaid, Graphviz or JSON."),
    ("history", "looking:history", "List all records of a run in order."),
    ("import", "keeping:import_run", "Take in a run that export wrote."),
    ("prune", "keeping:prune", "Delete old runs and old visits for good, of runs that have ended."),
    ("record-test", "recording:record_as_test", "Turn a run into a test: its record, and a file for pytest."),
    ("recover", "working:recover", "Go once through what is due or has lost its process."),
    ("requeue", "sending:requeue", "Leave runs to the workers, by id or all that match."),
    ("resume", "running:resume", "Go on with a run where its records end."),
    ("retry", "running:retry", "Run again what failed, with fresh attempts."),
    ("run", "running:run", "Run a flow and record it."),
    ("runs", "listing:runs", "List runs, newest first."),
    ("schedules", "workers:schedules", "List the schedules of the workers; pause one, or have it go on."),
    ("show", "looking:show", "Show where a run stands, and why."),
    ("signal", "sending:signal", "Send a run a signal."),
    ("start", "sending:start", "Record a run for a worker to take up, and print its id."),
    ("state", "looking:state", "Print a recorded state, as the JSON that it is."),
    ("stats", "keeping:stats", "Tell how much a store holds: runs by status, records, bytes."),
    ("verify", "keeping:verify", "Check all records of a run, or with --all of all runs."),
    ("watch", "looking:watch", "Follow a run to its end, whoever executes it."),
    ("worker", "working:worker", "Execute runs that were started, are due, or lost their process."),
    ("workers", "workers:workers", "List the workers of the last 24 hours."),
):
    cli.add_command(Deferred(_name, _home, _summary))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Every error is told here, in one line on the standard error."""
    invocation = Invocation()
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            with logging_warnings("--debug" in given):
                answer = _invoke(given, invocation)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            invocation.is_json = invocation.is_json or "--json" in given
            answer = _tell(exc, invocation)
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has gone; the interpreter would complain of that when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return answer


def _invoke(arguments: list[str], invocation: Invocation) -> int:
    """Run a command without click's own way with errors, which has exit codes of its own."""
    try:
        with cli.make_context("milepost", arguments, obj=invocation) as context:
            answer: Any = cli.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return answer if isinstance(answer, int) else 0


def _tell(exc: BaseException, invocation: Invocation) -> int:
    code = code_of(exc)
    line = _line_of(exc, invocation)
    if invocation.is_debug and not isinstance(exc, click.ClickException):
        traceback.print_exception(exc)
    elif invocation.is_debug and exc.__cause__ is not None:
        traceback.print_exception(exc.__cause__)
    print(f"milepost: {line}", file=sys.stderr)
    if invocation.is_json:
        document: dict[str, Any] = {"type": type(exc).__name__, "message": line, "exit_code": code}
        if isinstance(exc, MilepostError):
            document |= {"run_id": exc.run_id, "node_id": exc.node_id}
        if isinstance(exc, FlowChangedError):
            document["differences"] = list(exc.differences)
        marked = {"event": "Error"} if invocation.is_live else {}
        print(to_json({**marked, "error": document}, is_line=True))
    return code


def _line_of(exc: BaseException, invocation: Invocation) -> str:
    """The error in one line."""
    onwards = f": milepost resume {invocation.run_id} [TARGET] goes on" if invocation.run_id else ""
    if code_of(exc) == INTERRUPTED:
        return clean(f"interrupted{onwards}")
    if isinstance(exc, SystemExit):
        return clean(f"the code that ran ended with SystemExit({exc.code!r}){onwards}")
    if isinstance(exc, RunNotFoundError):
        return clean(f"no run {exc.run_id!r} in {exc.store}: milepost runs lists what is there")
    if isinstance(exc, click.ClickException):
        text = exc.format_message()
        if isinstance(exc, click.UsageError) and exc.ctx is not None:
            text += f" (see: {exc.ctx.command_path} --help)"
    elif isinstance(exc, (MilepostError, OSError)):
        # The recorded traceback of a run that failed elsewhere is for --debug, which prints the whole error.
        text = in_options(str(exc).partition("\nas recorded where it ran:")[0])
    else:
        text = f"unexpected {type(exc).__name__}: {exc} (--debug shows where)"
    # A list of problems has a line for each, which begins with "- "; an option's own dashes stay.
    parts = [part.strip().removeprefix("- ") for part in text.split("\n") if part.strip()]
    return clean("; ".join(parts)).replace(":;", ":")
