"""The commands that keep runs in order: export, verify, delete. They need no code of the user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from milepost.cli.exits import FAILED, OK
from milepost.cli.invocation import Invocation, command
from milepost.cli.places import open_existing
from milepost.cli.text import clean, plural, size, to_json
from milepost.errors import CheckpointNotFoundError

__all__ = ["delete", "export", "verify"]


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
    with open_existing(invocation) as store:
        data = store.export(run_id)
    if output is None:
        if invocation.is_json:
            lines = [json.loads(line) for line in data.splitlines()]
            print(to_json({"run_id": run_id, "export": lines}, is_line=True))
            return OK
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return OK
    try:
        output.write_bytes(data)
    except OSError as exc:
        raise click.UsageError(f"can't write {str(output)!r}: {exc.strerror}") from exc
    lines_written = data.count(b"\n")
    if invocation.is_json:
        print(to_json({"run_id": run_id, "file": str(output), "bytes": len(data), "lines": lines_written}))
    else:
        print(f"wrote {plural(lines_written, 'line')}, {size(len(data))}, to {output}")
    return OK


@command("verify", click.argument("run_id", metavar="RUN"))
def verify(invocation: Invocation, run_id: str) -> int:
    """Check every digest, seal and number of a run.

    Exit code 1 if something is wrong.
    """
    with open_existing(invocation) as store:
        report = store.verify(run_id)
    if invocation.is_json:
        print(to_json({"run_id": run_id, "ok": report.ok, "problems": list(report.problems)}))
    elif report.ok:
        print(f"run {clean(run_id)!r} is whole")
    else:
        print(f"run {clean(run_id)!r} has {plural(len(report.problems), 'problem')}:")
        for problem in report.problems:
            print(f"  {clean(problem)}")
    return OK if report.ok else FAILED


@command(
    "delete",
    click.argument("run_id", metavar="RUN"),
    click.option("--node", "node_id", metavar="NODE", help="Only the visits of this node."),
    click.option("--force", is_flag=True, help="Even while somebody executes the run."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
)
def delete(invocation: Invocation, run_id: str, node_id: str | None, force: bool, yes: bool) -> int:
    """Delete a run, or one node of it, for good."""
    what = f"run {clean(run_id)!r}" + (f", node {clean(node_id)!r}" if node_id else "")
    with open_existing(invocation) as store:
        info = store.get_run(run_id).info
        if node_id is not None and all(found.node_id != node_id for found in store.history(run_id)):
            raise CheckpointNotFoundError(run_id, node_id, f"there is none in {store.place}")
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"pass --yes to delete {what} where nobody can be asked")
            if not click.confirm(f"delete {what} ({info.status}, {info.sequence + 1} records) for good?", err=True):
                print("nothing was deleted", file=sys.stderr)
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
