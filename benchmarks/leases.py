"""What it costs to hold many runs: a renewal of all their leases now and then, and a look for cancels each second."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import interleave, seconds
from benchmarks.setting import Setting
from benchmarks.stores import begin, opened, server_of
from milepost import SQLiteStore, Store

__all__ = ["leases"]

_MILLI = 1e3
_RUNS = 500


def leases(setting: Setting) -> Iterator[Figure]:
    """500 held runs in a SQLite file, and in PostgreSQL where there is a server in a wheel."""
    with setting.folder("disk") as folder, SQLiteStore(folder / "runs.db") as store:
        yield from _held(setting, store, "SQLite")
    server = server_of()
    if server is not None:
        with server, opened(server.dsn) as store:
            yield from _held(setting, store, "PostgreSQL")


def _held(setting: Setting, store: Store, name: str) -> Iterator[Figure]:
    tokens = [begin(store, f"held {number}") for number in range(_RUNS)]
    run_ids = [token.run_id for token in tokens]
    sides = {"renewed": partial(seconds, store.renew, tokens), "looked": partial(seconds, store.cancels, run_ids)}
    found = interleave(setting.size.rounds, sides)
    for what, ours in (("renewal of", "renewed"), ("look for cancels of", "looked")):
        yield compare(
            f"{what} {_RUNS} held runs on {name}", found, measure="ours", unit="ms", scale=_MILLI, place="disk", ours=ours,
            goal=at_most(50),
        )  # fmt: skip
