"""The commands that keep runs in order: export, import, fork, verify, delete, prune, stats. They need no code of the user's."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import click

from milepost.cli.commands import FAILED, OK, Invocation, by_option, command
from milepost.cli.places import open_existing, open_or_make, open_to_look, write_private
from milepost.cli.text import escaped_json, print_facts, print_table, to_json
from milepost.cli.values import read_duration
from milepost.drivers import SyncDriver
from milepost.errors import CheckpointNotFoundError, RunNotFoundError, StoreError
from milepost.graph.fork_run import fork as forked
from milepost.model.ids import SYSTEM, new_run_id
from milepost.model.upkeep import Pruned, VerifyReport
from milepost.store import Store
from milepost.stores.url import open_store
from milepost.views.runs import STATUSES
from milepost.views.text import ago, clean, iso, plural, size


@command(
    "export",
    click.argument("run_id", metavar="RUN"),
    click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
                 help="Write to this file instead of the standard output."),
)  # fmt: skip
def export(invocation: Invocation, run_id: str, output: Path | None) -> int:
    """Write everything of a run as JSON lines.

    The run comes first, then its records in order, then its signals.
    """
    with open_to_look(invocation) as store:
        data = store.export(run_id)
    if output is None:
        if invocation.is_json:
            lines = [json.loads(line) for line in data.splitlines()]
            print(to_json({"run_id": run_id, "export": lines}, is_line=True))
            return OK
        sys.stdout.flush()
        if sys.stdout.isatty():
            print(escaped_json(data.decode()), end="")
        else:
            sys.stdout.buffer.write(data)
        return OK
    try:
        write_private(output, data)
    except OSError as exc:
        raise click.UsageError(f"can't write {str(output)!r}: {exc.strerror}") from exc
    lines_written = data.count(b"\n")
    if invocation.is_json:
        print(to_json({"run_id": run_id, "file": str(output), "bytes": len(data), "lines": lines_written}))
    else:
        print(f"wrote {plural(lines_written, 'line')}, {size(len(data))}, to {output}")
    return OK


@command(
    "import",
    click.argument("file", metavar="FILE", type=click.File("rb")),
    click.option("--run-id", metavar="ID", help="Keep the run under this id instead of its own."),
)
def import_run(invocation: Invocation, file: BinaryIO, run_id: str | None) -> int:
    """Take in a run that export wrote.

    FILE is what it wrote, - the standard input. Everything is checked first, then all of the run is kept or nothing.
    """
    data = file.read()
    with open_or_make(invocation) as store:
        kept = store.import_run(data, run_id=run_id)
        info = store.get_run(kept).info
    if invocation.is_json:
        print(to_json({"run_id": kept, "status": info.status, "bytes": len(data), "lines": data.count(b"\n")}))
    else:
        print(f"imported run {clean(kept)!r}, which is {info.status}")
    return OK


@command(
    "verify",
    click.argument("run_id", metavar="[RUN]", required=False),
    click.option("--all", "is_all", is_flag=True, help="Check every run of the store."),
)
def verify(invocation: Invocation, run_id: str | None, is_all: bool) -> int:
    """Check all records of a run, or with --all of all runs.

    Every digest, seal and number is proven. Exit code 1 if something is wrong.
    """
    if (run_id is None) != is_all:
        raise click.UsageError("name a run to verify, or give --all")
    with open_to_look(invocation) as store:
        reports = _verify_all(store) if run_id is None else {run_id: store.verify(run_id)}
    damaged = {name: report for name, report in reports.items() if not report.ok}
    if invocation.is_json:
        documents = [
            {"run_id": name, "ok": report.ok, "problems": list(report.problems)} for name, report in reports.items()
        ]
        problems = [document for document in documents if not document["ok"]]
        print(to_json({"ok": not damaged, "runs": len(reports), "damaged": problems} if is_all else documents[0]))
    elif is_all and not damaged:
        print(f"{plural(len(reports), 'run')} verified, nothing is wrong")
    elif not damaged:
        print(f"run {clean(run_id)!r} is whole")
    for name, report in damaged.items() if not invocation.is_json else ():
        print(f"run {clean(name)!r} has {plural(len(report.problems), 'problem')}:")
        for problem in report.problems:
            print(f"  {clean(problem)}")
    return FAILED if damaged else OK


def _verify_all(store: Store) -> dict[str, VerifyReport]:
    reports = {}
    for info in store.list_runs(limit=sys.maxsize):
        try:
            reports[info.run_id] = store.verify(info.run_id)
        except RunNotFoundError:  # deleted since it was listed
            continue
    return reports


@command(
    "delete",
    click.argument("run_id", metavar="RUN"),
    click.option("--node", "node_id", metavar="NODE", help="Only the visits of this node."),
    click.option("--force", is_flag=True, help="Even while somebody executes the run, or if it can't be read."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
)
def delete(invocation: Invocation, run_id: str, node_id: str | None, force: bool, yes: bool) -> int:
    """Delete a run, or one node of it, for good."""
    what = f"run {clean(run_id)!r}" + (f", node {clean(node_id)!r}" if node_id else "")
    with open_existing(invocation) as store:
        try:
            info = store.get_run(run_id).info
            size = f"{info.status}, {info.sequence + 1} records"
        except StoreError:
            if not force or node_id is not None:
                raise
            size = "which can't be read"
        if node_id is not None and all(found.node_id != node_id for found in store.history(run_id)):
            raise CheckpointNotFoundError(run_id, node_id, f"there is none in {store.place}")
        if not yes:
            check_that_somebody_can_be_asked(f"delete {what}")
            if not is_agreed(f"delete {what} ({size}) for good?"):
                return FAILED
        if node_id is None:
            store.delete_run(run_id, force=force)
        else:
            store.delete(run_id, node_id, force=force)
    if invocation.is_json:
        print(to_json({"run_id": run_id, "node_id": node_id, "deleted": True}))
    else:
        print(f"deleted {what}")
    return OK


def check_that_somebody_can_be_asked(deed: str) -> None:
    """Refuse to do what nobody has agreed to, and nobody can be asked about."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"pass --yes to {deed} where nobody can be asked")


def is_agreed(question: str, otherwise: str = "nothing was deleted") -> bool:
    """Ask the person at the terminal, and say `otherwise` where nothing is done."""
    agreed = click.confirm(question, err=True)
    if not agreed:
        print(otherwise, file=sys.stderr)
    return agreed


@command(
    "prune",
    click.option("--older-than", metavar="DURATION", type=read_duration,
                 help="Delete runs whose last activity is that long ago: 45s, 30m, 12h, 30d, 4w."),
    click.option("--keep-last", metavar="N", type=click.IntRange(1),
                 help="Keep the newest N visits of each node of every other run."),
    click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), metavar="STATUS",
                 help=f"Runs of this status: {', '.join(STATUSES)}. Repeatable. Default: finished and cancelled."),
    click.option("--dry-run", is_flag=True, help="Only tell what would be deleted."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
)  # fmt: skip
def prune(
    invocation: Invocation,
    older_than: float | None,
    keep_last: int | None,
    statuses: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete old runs and old visits for good, of runs that have ended.

    Shows what would go and asks first. A run that somebody executes is never touched.
    """
    if older_than is None and keep_last is None:
        raise click.UsageError("give --older-than, --keep-last or both: nothing is deleted unasked")
    wanted: dict[str, Any] = {"statuses": statuses} if statuses else {}
    with open_existing(invocation) as store:
        forget = functools.partial(store.prune, keep_last=keep_last, **wanted)
        if dry_run:
            return _show(invocation, forget(older_than=older_than, dry_run=True), is_dry=True)
        if not yes:
            check_that_somebody_can_be_asked("prune")
            began = store.clock.time()
            surplus = forget(older_than=older_than, dry_run=True)
            if surplus == Pruned():
                return _show(invocation, surplus)
            _list_surplus(surplus, sys.stderr)
            if not is_agreed(f"{_deeds(surplus, is_done=False)} for good?"):
                return FAILED
            if older_than is not None:  # no run that has become old while the answer was awaited: it was not shown
                older_than += store.clock.time() - began
        return _show(invocation, forget(older_than=older_than))


def _show(invocation: Invocation, pruned: Pruned, *, is_dry: bool = False) -> int:
    """Tell what was pruned, or would be."""
    if invocation.is_json:
        document = {"deleted": list(pruned.deleted), "thinned": list(pruned.thinned), "records": pruned.records}
        print(to_json({"dry_run": is_dry, **document}))
        return OK
    if is_dry:
        _list_surplus(pruned, sys.stdout)
    if pruned == Pruned():
        print("there is nothing to prune")
    else:
        print(f"would {_deeds(pruned, is_done=False)}" if is_dry else _deeds(pruned, is_done=True))
    return OK


def _list_surplus(pruned: Pruned, stream: TextIO) -> None:
    for deed, run_ids in (("delete", pruned.deleted), ("thin", pruned.thinned)):
        for run_id in run_ids:
            print(f"would {deed} {clean(run_id)}", file=stream)


def _deeds(pruned: Pruned, *, is_done: bool) -> str:
    """Say in one line what is deleted and taken out."""
    deeds = []
    if pruned.deleted:
        deeds.append(f"{'deleted' if is_done else 'delete'} {plural(len(pruned.deleted), 'run')}")
    if pruned.thinned:
        records, runs = plural(pruned.records, "record"), plural(len(pruned.thinned), "run")
        deeds.append(f"{'took' if is_done else 'take'} {records} out of {runs}")
    return " and ".join(deeds)


@command("stats")
def stats(invocation: Invocation) -> int:
    """Tell how much a store holds: runs by status, records, bytes."""
    with open_to_look(invocation) as store:
        found, place = store.stats(), store.place
    if invocation.is_json:
        document = {
            "runs": dict(found.runs),
            "records": found.records,
            "bytes": found.size,
            "oldest": iso(found.oldest),
        }
        print(to_json({"store": place, **document}))
        return OK
    if found.runs:
        print_table(("status", "runs"), list(found.runs.items()))
        print()
    print_facts(
        [
            ("runs", sum(found.runs.values()) or "none"),
            ("records", f"{found.records}, {size(found.size)}"),
            ("oldest", "" if found.oldest is None else ago(found.oldest)),
            ("store", place),
        ]
    )
    return OK


@command(
    "fork",
    click.argument("run_id", metavar="RUN"),
    click.option("--node", "node_id", metavar="NODE", help="Up to this node or step. Default: up to where RUN is."),
    click.option("--visit", type=click.IntRange(1), metavar="N", help="With --node: up to this visit of it."),
    click.option("--as", "new_id", metavar="ID", help="The id of the new run. Default: one is made."),
    click.option("--into", metavar="URL", help="Where the new run is kept. Default: where RUN is."),
    click.option("--ready", is_flag=True, help="Leave the new run to the workers."),
    by_option,
)
def fork(
    invocation: Invocation,
    run_id: str,
    node_id: str | None,
    visit: int | None,
    new_id: str | None,
    into: str | None,
    ready: bool,
    by: str | None,
) -> int:
    """Copy a run up to a node into a new run, and print its id.

    The new run is to be resumed, or with --ready a worker takes it. RUN itself is not touched, whatever its status.
    Example: milepost fork o-17 --node price --as o-17-again
    """
    if node_id is None and visit is not None:
        raise click.UsageError("--visit goes with --node NODE")
    name = new_run_id(SYSTEM.time()) if new_id is None else new_id
    with open_existing(invocation) as store, _target(store, into) as target:
        SyncDriver(SYSTEM).run(
            forked(store, run_id, name, into=target, node_id=node_id, visit=visit, ready=ready, by=by)
        )
        info = target.get_run(name).info
        place = target.place
    if invocation.is_json:
        document = {"run_id": name, "status": info.status, "sequence": info.sequence, "forked_from": run_id}
        print(to_json({**document, "store": place}))
    else:
        print(clean(name))
    return OK


@contextlib.contextmanager
def _target(store: Store, into: str | None) -> Iterator[Store]:
    if into is None:
        yield store
        return
    with open_store(into) as target:
        yield target
