"""The console on large stores: how long its pages take on the server, and what they weigh.

Run as `python -m benchmarks.console [--runs N] [--records N]`. It fills a SQLite file: real runs, copies of their rows by one
INSERT ... SELECT, and more real runs, which the first pages show. Then it asks the console for pages, without a network,
and prints the median time and the size of each. The time of a page is compared with its goal on the machine that the goals
are meant for; processor time, because other programs may run.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from milepost import END, START, CompiledGraph, Engine, Graph, SQLiteStore, step, workflow
from milepost.console import console
from milepost.errors import MilepostError

ASKED = 7
"""The number of times that each page is asked for."""
GOALS = {
    "/runs": 50.0,
    "/runs/medium": 150.0,
    "/runs/long": 300.0,
}
"""Milliseconds that a page may take."""
NODES = 100
"""The number of nodes of the long run."""


def double(state: dict[str, Any]) -> dict[str, Any]:
    """Do the work of a node."""
    return {**state, "n": state.get("n", 0) + 1}


def fail(state: dict[str, Any]) -> dict[str, Any]:
    """Fail, as some runs do."""
    raise ValueError("no price for it")


def line(name: str, *work: Callable[[dict[str, Any]], dict[str, Any]]) -> CompiledGraph[dict[str, Any]]:
    """Make a graph of nodes in a line."""
    graph: Graph[dict[str, Any]] = Graph(dict)
    nodes = [f"node{number}" for number in range(len(work))]
    for node_id, fn in zip(nodes, work, strict=True):
        graph.add_node(node_id, fn)
    for source, target in zip([START, *nodes], [*nodes, END], strict=True):
        graph.add_edge(source, target)
    return graph.compile(name)


def ring(visits: int) -> CompiledGraph[dict[str, Any]]:
    """Make a graph of `NODES` nodes that goes round until there are so many visits."""
    graph: Graph[dict[str, Any]] = Graph(dict)
    nodes = [f"node{number}" for number in range(NODES)]
    for node_id in nodes:
        graph.add_node(node_id, double)
    graph.set_entry(nodes[0])
    for source, target in pairwise(nodes):
        graph.add_edge(source, target)
    graph.add_conditional_edge(nodes[-1], lambda state: END if state["n"] >= visits else nodes[0], [nodes[0], END])
    return graph.compile("ring")


@workflow("asking")
def asking(number: int) -> Any:
    """Ask a person."""
    reply = yield from step("ask").wait_for("approval", payload=bool, prompt=f"pay {number}?")
    return reply.payload


def make_runs(engine: Engine, prefix: str, count: int) -> None:
    """Make real runs: of ten eight finish, one fails and one waits."""
    good, bad = line("orders", double, double), line("imports", double, fail)
    for number in range(count):
        with suppress(MilepostError):
            flow: Any = asking if number % 10 == 9 else bad if number % 10 == 8 else good
            engine.run(flow, number if flow is asking else {"n": number}, run_id=f"{prefix}-{number}")


def copy_rows(path: Path, count: int) -> None:
    """Copy the rows of runs until there are so many, without their records, an hour older each."""
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(runs)") if not row[5] or row[2] != "INTEGER"]
        (known,) = connection.execute("SELECT count(*) FROM runs").fetchone()
        chosen = {"run_id": "run_id || '-' || copy.value"}
        chosen |= {name: f"{name} - 1000000 + copy.value" for name in ("created_at", "updated_at") if name in columns}
        connection.execute(
            f"INSERT INTO runs ({', '.join(columns)}) SELECT {', '.join(chosen.get(name, name) for name in columns)} "
            f"FROM runs, (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < ?) "
            f"SELECT value FROM n) AS copy",
            (max(1, count // known),),
        )


async def ask(app: Any, path: str, query: str) -> tuple[int, int]:
    """Ask for a page, and return its status and its size."""
    sent: list[Mapping[str, Any]] = []
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "headers": [(b"host", b"localhost")], "root_path": "", "scheme": "http",
        "server": ("localhost", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    answer: Awaitable[None] = app(scope, receive, send)
    await answer
    return sent[0]["status"], sum(len(message.get("body", b"")) for message in sent[1:])


async def measure(app: Any, pages: list[str]) -> None:
    """Print the figures of each page."""
    for page in pages:
        path, _, query = page.partition("?")
        took, status, weight = [], 0, 0
        for _ in range(ASKED):
            began = time.process_time()
            status, weight = await ask(app, path, query)
            took.append((time.process_time() - began) * 1000)
        goal = f", goal {GOALS[page]:.0f}" if page in GOALS else ""
        print(f"{page:44} {status}  {statistics.median(took):8.1f} ms{goal:10}  {weight / 1024:7.1f} KB", flush=True)


def main(runs: int, records: int, folder: Path) -> None:
    """Fill a store and print all figures."""
    path = folder / "runs.db"
    with SQLiteStore(path) as store:
        engine = Engine(store)
        make_runs(engine, "old", 100)
    began = time.perf_counter()
    copy_rows(path, runs)
    print(f"{runs} rows copied in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    with SQLiteStore(path) as store:
        engine = Engine(store, flows=[asking])
        for run_id, visits in (("medium", 1000), ("long", records)):
            engine.run(ring(visits), {}, run_id=run_id, max_iterations=visits)
        make_runs(engine, "new", 100)
        app = console(engine)
        pages = [
            "/", "/runs", "/runs?status=failed", "/runs?status=finished&flow=orders", "/runs?prefix=old-7", "/waits", "/flows",
            "/flows/orders", "/runs/medium", "/runs/long", f"/runs/long/at/{records // 2}", "/runs/new-8", "/runs/none",
        ]  # fmt: skip
        asyncio.run(measure(app, pages))
        print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as kept:
        main(given.runs, given.records, Path(kept))
