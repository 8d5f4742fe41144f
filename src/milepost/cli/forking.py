"""The command that makes a run of a part of another one: fork. It needs no code of the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from milepost.cli.exits import OK
from milepost.cli.invocation import Invocation, command
from milepost.cli.places import open_existing
from milepost.cli.text import to_json
from milepost.drivers import SyncDriver
from milepost.graph.fork_run import fork as forked
from milepost.model.clock import SYSTEM
from milepost.model.ids import new_run_id
from milepost.store import Store
from milepost.stores.url import open_store
from milepost.views.text import clean

__all__ = ["fork"]


@command(
    "fork",
    click.argument("run_id", metavar="RUN"),
    click.option("--node", "node_id", metavar="NODE", help="Up to this node or step. Default: up to where RUN is."),
    click.option("--visit", type=click.IntRange(1), metavar="N", help="With --node: up to this visit of it."),
    click.option("--as", "new_id", metavar="ID", help="The id of the new run. Default: one is made."),
    click.option("--into", metavar="URL", help="Where the new run is kept. Default: where RUN is."),
)
def fork(
    invocation: Invocation, run_id: str, node_id: str | None, visit: int | None, new_id: str | None, into: str | None
) -> int:
    """Copy a run up to a node into a new run, and print its id.

    The new run is to be resumed. RUN itself is not touched, whatever its status.
    Example: milepost fork o-17 --node price --as o-17-again
    """
    if node_id is None and visit is not None:
        raise click.UsageError("--visit goes with --node NODE")
    name = new_run_id(SYSTEM.time()) if new_id is None else new_id
    with open_existing(invocation) as store, _target(store, into) as target:
        SyncDriver(SYSTEM).run(forked(store, run_id, name, into=target, node_id=node_id, visit=visit))
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
