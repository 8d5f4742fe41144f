"""The console on large stores: how long its pages take on the server, what they weigh, and how long a browser draws.

Run as `python -m benchmarks.console [--runs N] [--records N]`. It fills a SQLite file: real runs, copies of their rows by one
INSERT ... SELECT, and more real runs, which the first pages show. Then a process of its own asks the console for pages,
without a network, and prints the median time and the size of each, the time for the last values of the long run, and its
memory. At last Chromium, if it is there, draws graphs of `DRAWN` nodes. Figures are compared with their goals on the
machine that the goals are meant for; all are processor time, because other programs may run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import milepost.console
from milepost import END, START, CompiledGraph, Engine, Graph, SQLiteStore, step, workflow
from milepost.errors import MilepostError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
LAST_VALUES = 20.0
"""Milliseconds that the newest visit of each node of the long run may take."""
MEMORY = 90
"""Megabytes that a process with nothing but the console may have."""
DRAWN = 200
DRAWING = 1000.0
"""Milliseconds that a graph of `DRAWN` nodes may take in the browser, from the click to the picture."""
CHROMIUM = Path(os.environ.get("MILEPOST_TEST_CHROMIUM", "/usr/bin/chromium"))
STATIC = Path(milepost.console.__file__).parent / "static"


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


def print_figure(name: str, took: list[float], goal: float | None, more: str = "") -> None:
    """Print the median of milliseconds, beside its goal if it has one."""
    goals = f", goal {goal:.0f}" if goal is not None else ""
    print(f"{name:48} {statistics.median(took):8.1f} ms{goals:11}  {more}", flush=True)


async def measure(app: Any, pages: list[str]) -> None:
    """Print the figures of each page."""
    for page in pages:
        path, _, query = page.partition("?")
        took, status, weight = [], 0, 0
        for _ in range(ASKED):
            began = time.process_time()
            status, weight = await ask(app, path, query)
            took.append((time.process_time() - began) * 1000)
        print_figure(f"{page:44} {status}", took, GOALS.get(page), f"{weight / 1024:7.1f} KB")


def fill(path: Path, runs: int, records: int) -> None:
    """Make the runs of a store that was not there."""
    with SQLiteStore(path) as store:
        make_runs(Engine(store), "old", 100)
    began = time.perf_counter()
    copy_rows(path, runs)
    print(f"{runs} rows copied in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    with SQLiteStore(path) as store:
        engine = Engine(store)
        for run_id, visits in (("medium", 1000), ("long", records)):
            engine.run(ring(visits), {}, run_id=run_id, max_iterations=visits)
        make_runs(engine, "new", 100)


def look(path: Path, records: int) -> None:
    """Print the figures of a console of a store that was filled, in a process that does nothing else."""
    import milepost.console.alone  # what the command loads, too

    with SQLiteStore(path, read_only=True) as store:
        app = milepost.console.console(Engine(store, flows=[asking]))
        pages = [
            "/", "/runs", "/runs?status=failed", "/runs?status=finished&flow=orders", "/runs?prefix=old-7", "/waits", "/flows",
            "/flows/orders", "/store", "/runs/medium", "/runs/long", f"/runs/long/at/{records // 2}", "/runs/new-8",
            "/runs/none",
        ]  # fmt: skip
        asyncio.run(measure(app, pages))
        took = []
        for _ in range(ASKED):
            began = time.process_time()
            store.list("long")
            took.append((time.process_time() - began) * 1000)
        print_figure("last values of the long run", took, LAST_VALUES)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'memory of the console':48} {most:8.1f} MB, goal {MEMORY}")


def drawn_graphs() -> dict[str, dict[str, Any]]:
    """Return graphs of `DRAWN` nodes, as a page has them: lines that differ in what crosses them, and ten branches."""
    dice = random.Random(1)
    ids = [f"node{number}" for number in range(DRAWN)]
    straight = [*pairwise(["__start__", *ids, "__end__"])]
    across = [(ids[place], ids[place + dice.randint(2, 8)]) for place in range(DRAWN - 8)]
    ending = [(node, "__end__") for node in ids[:-1]]
    each = (DRAWN - 2) // 10
    lanes = [(ids[0], *ids[1 + lane * each : 1 + (lane + 1) * each], ids[-1]) for lane in range(10)]
    branches = [("__start__", ids[0]), *(pair for lane in lanes for pair in pairwise(lane)), (ids[-1], "__end__")]
    edges = {"line": straight, "edges across": straight + across, "ends": straight + ending, "branches": branches}
    return {
        name: {
            "nodes": [{"id": node, "name": node, "kind": "node", "status": "", "note": ""} for node in ids],
            "edges": [{"source": a, "target": b, "label": "", "is_conditional": False} for a, b in pairs],
        }
        for name, pairs in edges.items()
    }


def draw() -> None:
    """Print how long Chromium takes to lay out and show graphs, by the time of the page's own thread."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("graphs: playwright is not installed")
        return
    if not CHROMIUM.exists():
        print(f"graphs: there is no {CHROMIUM}")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        for name, graph in drawn_graphs().items():
            took = [_drawing(browser, graph) for _ in range(ASKED)]
            print_figure(f"a graph of {DRAWN} nodes is drawn: {name}", took, DRAWING, f"{len(graph['edges'])} edges")
        browser.close()


def _drawing(browser: Browser, graph: dict[str, Any]) -> float:
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    page.set_content('<div id="drawing"></div><script type="application/json" id="graph"></script>')
    page.add_style_tag(path=str(STATIC / "console.css"))
    page.add_script_tag(path=str(STATIC / "dagre.min.js"))
    page.evaluate("text => { document.getElementById('graph').textContent = text; }", json.dumps(graph))
    page.add_script_tag(path=str(STATIC / "graph.js"), type="module")
    page.locator("#drawing svg").wait_for()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def ticks() -> float:
        found = session.send("Performance.getMetrics")["metrics"]
        return next(float(metric["value"]) for metric in found if metric["name"] == "TaskDuration")

    before = ticks()
    page.get_by_role("button", name=f"Show all {DRAWN} nodes").click()
    page.wait_for_function("n => document.querySelectorAll('#drawing .node').length === n", arg=DRAWN)
    took = (ticks() - before) * 1000
    page.close()
    return took


def main(runs: int, records: int, folder: Path) -> None:
    """Fill a store and print all figures."""
    path = folder / "runs.db"
    fill(path, runs, records)
    command = [sys.executable, "-m", "benchmarks.console", "--look", str(path), "--records", str(records)]
    subprocess.run(command, check=True)
    draw()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--look", type=Path, metavar="FILE", help="only look at this store, which was filled before")
    parser.add_argument("--draw", action="store_true", help="only draw graphs")
    given = parser.parse_args()
    if given.draw:
        draw()
    elif given.look is not None:
        look(given.look, given.records)
    else:
        with tempfile.TemporaryDirectory() as kept:
            main(given.runs, given.records, Path(kept))
