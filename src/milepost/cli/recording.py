"""The command record-test: a run of production becomes a regression test."""

from __future__ import annotations

import contextlib
import sys
from keyword import iskeyword
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from milepost.cli.commands import FAILED, OK, Invocation, app_option, command
from milepost.cli.places import chosen_app, write_private
from milepost.cli.targets import Runnable, found_flow
from milepost.cli.text import to_json
from milepost.engine.engine import Engine
from milepost.engine.worker import Worker
from milepost.graph.builder import CompiledGraph
from milepost.testing.recording import NoTestError, RecordedTest, paths_of_test, record_test, source_of_test
from milepost.verbs import flow_of
from milepost.views.text import clean, plural, size
from milepost.workflows.definition import Workflow


@command(
    "record-test",
    click.argument("run_id", metavar="RUN"),
    click.option("-o", "--output", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
                 default=Path("tests/runs"), show_default=True, help="Write both files there."),
    click.option("--hide", "hide", metavar="PATH", multiple=True,
                 help="Replace the values at this path, such as state.card or inputs.token, by others. Repeatable."),
    click.option("--rename-run", is_flag=True, help="Give the run in the file another id."),
    click.option("--yes-plain-text", is_flag=True, help="Write what the store keeps encrypted as plain text."),
    click.option("--force", is_flag=True, help="Write over files that are there."),
    app_option,
)  # fmt: skip
def record_as_test(
    invocation: Invocation,
    run_id: str,
    output: Path,
    hide: tuple[str, ...],
    rename_run: bool,
    yes_plain_text: bool,
    force: bool,
) -> int:
    """Turn a run into a test: its record, and a file for pytest.

    The app is imported, and its store opened to read only: name it where the app makes it itself. Of the app's code only
    that runs which decides about the path. Exit code 1 if the run is not whole, if hiding changes its path, or if the
    test fails with the code as it is.
    Example: milepost record-test o-17 --app shop:engine --hide state.card
    """
    with found_flow(invocation, None, run_id, read_only=True) as (flow, open_engine):
        store = open_engine().store
        if store.seals.encrypts and not yes_plain_text:
            raise click.UsageError(
                f"{store.place} is encrypted, and a test is plain text: pass --yes-plain-text, and --hide PATH"
            )
        recorded, test = paths_of_test(output, flow.name, run_id)
        there = [str(path) for path in (recorded, test) if path.exists()]
        if there and not force:
            raise click.UsageError(f"{' and '.join(there)} exist: pass --force to write over them")
        name = f"test-{recorded.stem}" if rename_run else None
        try:
            with contextlib.redirect_stdout(sys.stderr):
                made = record_test(store, run_id, flow_of(flow), hide=hide, name=name)
        except NoTestError as exc:
            raise click.ClickException(str(exc)) from exc
        source = source_of_test(recorded, test, name or run_id, flow.name, *_place_of(invocation, flow))
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_private(recorded, made.data)
        test.write_text(source, encoding="utf-8")
    except OSError as exc:
        raise click.UsageError(f"can't write to {str(output)!r}: {exc.strerror}") from exc
    _tell(invocation, run_id, recorded, test, made)
    return OK if made.difference is None else FAILED


def _tell(invocation: Invocation, run_id: str, recorded: Path, test: Path, made: RecordedTest) -> None:
    if invocation.is_json:
        document = {"run_id": run_id, "status": made.status, "records": made.records, "bytes": len(made.data)}
        print(
            to_json({**document, "files": [str(recorded), str(test)], "difference": made.difference, "left": made.left})
        )
        return
    print(f"wrote {recorded} ({plural(made.records, 'record')}, {size(len(made.data))}) and {test}")
    if made.status not in {"finished", "failed"}:
        print(f"the run is {made.status}: the test plays it up to where it stands")
    if made.left:
        print(f"{plural(made.left, 'hidden value')} still stand in it, in other places or as names", file=sys.stderr)
    if made.difference is not None:
        lines = "\n".join(map(clean, made.difference.splitlines()))
        print(f"the test fails with the code as it is: {lines}", file=sys.stderr)


def _place_of(invocation: Invocation, flow: Runnable) -> tuple[str, str]:
    """Return the module of the app and the expression that gives the flow in it: its name there, or by the engine."""
    named = chosen_app(invocation)
    assert named is not None
    place, _, name = named[0].rpartition(":")
    module = Path(place).stem if place.endswith(".py") or "/" in place else place
    if not all(part.isidentifier() and not iskeyword(part) for part in module.split(".")):
        raise click.UsageError(f"a test can't import {place!r}: give the module a name that Python can import")
    for member, value in vars(sys.modules[module]).items():
        if value is flow:
            return module, member
    app: Any = attrgetter(name)(sys.modules[module])
    if callable(app) and not isinstance(app, (Engine, Worker)):
        name = f"{name}()"
        with contextlib.redirect_stdout(sys.stderr):
            app = app()
    if isinstance(app, (CompiledGraph, Workflow)):
        return module, name
    engine = f"{name}.engine" if isinstance(app, Worker) else name
    return module, f"{engine}.flows[{flow.name!r}]"
