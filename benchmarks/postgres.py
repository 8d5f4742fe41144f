"""What it costs that a node is durable in PostgreSQL, beside the same bytes inserted by hand; and what grows with the store.

The server is one of these benchmarks alone, with its default durability, on this machine: a round trip costs next to nothing
here. Behind a pooler both sides go through it.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from benchmarks.flows import Page, loop, page, turn, turn_async
from benchmarks.report import Figure, at_least, at_most, compare
from benchmarks.rounds import interleave, seconds
from benchmarks.setting import Setting
from benchmarks.stores import MOMENT, begin, opened, server_of
from milepost import Store
from milepost.model.record import CHECKPOINT, make_record
from milepost.store import Append, Token

__all__ = ["postgres"]

_MICRO = 1e6
_MILLI = 1e3
_BYTES = 1500
"""Header and state of a node with 1 KB."""
_CHUNK = 25
"""Appends a side and round: few, so that both sides of a round meet the same machine."""
_NUMBERS = itertools.count(1)


def postgres(setting: Setting) -> Iterator[Figure]:
    """One run, many runs, a pooler, and large stores. Nothing without a server in a wheel."""
    server = server_of()
    if server is None:
        return
    with server:
        yield from _one_run(setting, server.dsn)
        yield from _many_runs(setting, server.dsn)
        yield from _behind_a_pooler(setting, server)
        yield from _saves(setting, server.dsn)
        yield from _large(setting, server.dsn)


def _one_run(setting: Setting, dsn: str) -> Iterator[Figure]:
    times = max(setting.size.nodes // 4, 2)
    graph, begin = loop(Page, turn, times), page(1024)

    def run(store: Store) -> float:
        return seconds(lambda: graph.run(begin, store=store, run_id=_name(), max_iterations=None)) / times

    with opened(dsn) as store, _raw(dsn) as raw:
        found = interleave(setting.size.rounds * 10, {"append": _appending(store), "raw": raw})
        yield compare(
            "append of 1 KB to PostgreSQL", found, measure="ratio", unit="us", scale=_MICRO, place="disk", ours="append",
            limit="raw", limit_is="raw prepared insert", goal=at_most(1.25), aim=at_most(1.15),
        )  # fmt: skip
        found = interleave(setting.size.rounds, {"node": partial(run, store), "raw": raw})
        yield compare(
            "durable node, 1 KB, on PostgreSQL", found, measure="ratio", unit="us", scale=_MICRO, place="disk",
            ours="node", limit="raw", limit_is="raw prepared insert", note="with begin and end of the run",
            aim=at_most(1.15),
        )  # fmt: skip


def _many_runs(setting: Setting, dsn: str) -> Iterator[Figure]:
    size = setting.size
    with opened(dsn) as store:
        found = interleave(
            size.long_rounds,
            {
                "threads": partial(_threads, store, size.runs, size.run_nodes),
                "async": partial(_tasks, store, size.runs, size.run_nodes),
                "raw": partial(_raw_threads, dsn, size.runs, size.run_nodes),
            },
        )
    for name, ours in ((f"{size.runs} threads with a sync run", "threads"), (f"{size.runs} async runs", "async")):
        yield compare(
            f"{name}, PostgreSQL", found, measure="ratio", unit="nodes/s", place="disk", ours=ours, limit="raw",
            limit_is=f"{size.runs} raw connections", goal=at_least(0.8), aim=at_least(1.0),
        )  # fmt: skip


def _behind_a_pooler(setting: Setting, server: Any) -> Iterator[Figure]:
    from pgbouncer import PROGRAM, PgBouncer

    if PROGRAM is None:
        return
    with (
        PgBouncer(server.dsn, server.user) as pooler,
        opened(pooler.dsn) as store,
        _raw(pooler.dsn, is_prepared=False) as raw,
        _raw(server.dsn) as direct,
    ):
        sides = {"append": _appending(store), "raw": raw, "direct": direct}
        found = interleave(setting.size.rounds * 5, sides)
    for limit, limit_is, goal in (
        ("raw", "raw insert behind the same pooler", at_most(1.6)),
        ("direct", "raw prepared insert, direct", None),
    ):
        yield compare(
            f"append of 1 KB to PostgreSQL behind PgBouncer, beside {limit_is}", found, measure="ratio", unit="us",
            scale=_MICRO, place="disk", ours="append", limit=limit, limit_is=limit_is, goal=goal,
        )  # fmt: skip


def _saves(setting: Setting, dsn: str) -> Iterator[Figure]:
    state = b'{"n":1,"text":"' + b"milepost " * 1137 + b'"}'
    envelope = b'{"version":1,"run_id":"other","node_id":"work","next_node":null,"state":' + state + b"}"
    with opened(dsn) as store:
        found = interleave(
            setting.size.rounds,
            {
                "appended": _appending(store, state),
                "saved": lambda: seconds(lambda: store.save("other", "work", envelope), times=5),
                "loaded": lambda: seconds(lambda: store.load("other", "work"), times=5),
            },
        )
    for name, ours in (
        ("append of 10 KB to PostgreSQL", "appended"),
        ("save of 10 KB from outside on PostgreSQL", "saved"),
        ("load of 10 KB from PostgreSQL", "loaded"),
    ):
        yield compare(
            name, found, measure="ours", unit="ms", scale=_MILLI, place="disk", ours=ours,
            goal=None if ours == "loaded" else at_most(10),
        )  # fmt: skip


def _large(setting: Setting, dsn: str) -> Iterator[Figure]:
    """Where a run stands after few and many checkpoints; pages and polls of a store with many runs."""
    few, many = setting.size.journals[0], setting.size.journals[-1]
    with opened(dsn) as store:
        for length in (few, many):
            _lengthen(dsn, begin(store, f"length {length}"), length)
        found = interleave(
            setting.size.rounds * 3,
            {
                "long": lambda: seconds(lambda: store.latest(f"length {many}"), times=5),
                "short": lambda: seconds(lambda: store.latest(f"length {few}"), times=5),
            },
        )
        yield compare(
            f"latest of {many} checkpoints on PostgreSQL", found, measure="ratio", unit="ms", scale=_MILLI, place="disk",
            ours="long", limit="short", limit_is=f"of {few}", goal=at_most(1.2),
        )  # fmt: skip
        _multiply(dsn, many)
        found = interleave(
            setting.size.rounds,
            {
                "page": lambda: seconds(store.list_runs),
                "due": lambda: seconds(lambda: store.claim_due(["multiplied"], 5)),
                "nothing": lambda: seconds(lambda: store.claim_due(["of nobody"], 5)),
            },
        )
    for name, ours in (
        (f"first page of {many} runs on PostgreSQL", "page"),
        (f"5 due runs of {many} on PostgreSQL", "due"),
        (f"a poll for due runs among {many} that finds none", "nothing"),
    ):
        yield compare(
            name, found, measure="ours", unit="ms", scale=_MILLI, place="disk", ours=ours, goal=at_most(50)
        )  # fmt: skip


# -- sides -----------------------------------------------------------------------------------------


def _name() -> str:
    return f"run {next(_NUMBERS)}"


def _appending(store: Store, state: bytes = b'"%s"' % (b"x" * 1024)) -> Callable[[], float]:
    """Appends to one run that is there already, the records made beforehand."""
    run_id = _name()
    token, sequence = begin(store, run_id), itertools.count(1)
    fields = {"next_node": "work", "attempt": 1, "prev_node_id": "work", "iteration": 1, "epoch": 1}

    def side() -> float:
        appends = [
            Append(token, (make_record(run_id, number, MOMENT, CHECKPOINT, "work", number, state, fields),))
            for number in itertools.islice(sequence, _CHUNK)
        ]
        turns = iter(appends)
        return seconds(lambda: store.append((next(turns),)), times=_CHUNK)

    return side


@contextmanager
def _raw(dsn: str, *, is_prepared: bool = True) -> Iterator[Callable[[], float]]:
    """One connection that inserts as many bytes, by psycopg's shortest way, each row committed."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS raw (run bigint, id bigint, data bytea, PRIMARY KEY (run, id))")
        cursor, run, data = connection.cursor(), next(_NUMBERS), b" " * _BYTES

        def insert() -> None:
            cursor.execute("INSERT INTO raw VALUES (%s, %s, %s)", (run, next(_NUMBERS), data), prepare=is_prepared)

        insert()
        yield lambda: seconds(insert, times=_CHUNK)


def _raw_threads(dsn: str, runs: int, nodes: int) -> float:
    """Rows a second of as many threads with a connection each."""
    with ExitStack() as stack:
        sides = [stack.enter_context(_raw(dsn)) for _ in range(runs)]
        chunks = max(nodes // _CHUNK, 1)

        def work(side: Callable[[], float]) -> None:
            for _ in range(chunks):
                side()

        return runs * chunks * _CHUNK / _together([partial(work, side) for side in sides])


def _threads(store: Store, runs: int, nodes: int) -> float:
    graph, begin = loop(Page, turn, nodes), page(1024)

    def work() -> None:
        assert graph.run(begin, store=store, run_id=_name(), max_iterations=None).n == nodes

    return runs * nodes / _together([work] * runs)


def _tasks(store: Store, runs: int, nodes: int) -> float:
    graph, begin = loop(Page, turn_async, nodes), page(1024)

    async def work() -> float:
        began = perf_counter()
        runs_at_once = (graph.arun(begin, store=store, run_id=_name(), max_iterations=None) for _ in range(runs))
        await asyncio.gather(*runs_at_once)
        return runs * nodes / (perf_counter() - began)

    return asyncio.run(work())


def _together(works: list[Callable[[], None]]) -> float:
    """Seconds that all of `works` take, each in a thread."""
    threads = [threading.Thread(target=work) for work in works]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return perf_counter() - began


def _lengthen(dsn: str, token: Token, length: int) -> None:
    """Give a run `length` checkpoints, past the store: its own way would take minutes."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO milepost.records SELECT id, n, 'checkpoint', 'work', n, 1024, '', '{\"next_node\":\"work\"}', "
            "%s FROM milepost.runs, generate_series(1, %s) AS n WHERE run_id = %s",
            (b'"%s"' % (b"x" * 1022), length, token.run_id),
        )
        connection.execute("ANALYZE milepost.records")


def _multiply(dsn: str, count: int) -> None:
    """Add `count` runs: most finished, some that wait, some that are due."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        statuses = "(ARRAY['finished', 'finished', 'ready', 'waiting', 'interrupted'])[n %% 5 + 1]"
        connection.execute(
            "INSERT INTO milepost.runs (run_id, flow, status, reason, created_at, updated_at, epoch, nonce, owner, lease, "
            "wake_at, waiting, crash_count, crashed_at, signals, degraded, missed, tags, live, worked, sequence) "
            f"SELECT 'multiplied ' || n, 'multiplied', {statuses}, '', n, n, 1, '', '', 0, "
            "CASE WHEN n %% 5 = 3 THEN 1e11 END, '[]', 0, -1, 0, false, '[]', '{}', '[]', false, 0 "
            "FROM generate_series(1, %s) AS n",
            (count,),
        )
        connection.execute(
            "INSERT INTO milepost.records SELECT id, 0, 'start', '', 1, 2, '', '{}', '{}' FROM milepost.runs "
            "WHERE flow = 'multiplied'"
        )
        connection.execute("ANALYZE milepost.runs, milepost.records")
