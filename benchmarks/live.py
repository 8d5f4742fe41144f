"""Live events: how late a reader in another process gets them, and what they cost where they are emitted.

Run as `python -m benchmarks.live [URL]` (default: a SQLite store in a temporary folder). It prints three figures: the
latency in another process, the time that an event which nobody reads takes on the emitting thread, and the share of a
core that 1000 events a second take.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from milepost import END, START, CompiledGraph, Context, Engine, Graph, MemoryStore, Store, open_store
from milepost.drivers.live import live_writer
from milepost.events import Emitted

EVENTS = 3000
RATE = 1000
UNREAD = 5000


def graph_of(talk: Callable[[Context, int], int]) -> CompiledGraph[int]:
    """Make a graph of one node."""
    return Graph(int).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", END).compile("talking")


def paced(ctx: Context, state: int) -> int:
    """Emit `EVENTS` events, `RATE` a second, each with the time at which it was emitted."""
    began = time.perf_counter()
    for number in range(EVENTS):
        while (left := began + number / RATE - time.perf_counter()) > 0:
            time.sleep(left)
        ctx.emit("token", time.time())
    return state


def silent(ctx: Context, state: int) -> int:
    """Keep the pace of `paced`, and emit nothing."""
    began = time.perf_counter()
    for number in range(EVENTS):
        while (left := began + number / RATE - time.perf_counter()) > 0:
            time.sleep(left)
        time.time()
    return state


def unread(ctx: Context, state: int) -> int:
    """Emit events as fast as possible, and print the microseconds that one takes on this thread."""
    costs = []
    for _ in range(UNREAD):
        began = time.thread_time_ns()
        ctx.emit("token", "word")
        costs.append((time.thread_time_ns() - began) / 1000)
    print(f"an event that nobody reads: median {statistics.median(costs):.1f} us, mean {statistics.mean(costs):.1f} us")
    return state


def worker(url: str) -> None:
    """Do the run of the latency in a process of its own."""
    with open_store(url) as store:
        Engine(store, flows=[graph_of(paced)]).worker(poll=0.05).run(until_idle=True)


def latency(url: str) -> None:
    """Print how late events are in another process than the worker's."""
    with open_store(url) as store:
        handle = Engine(store, flows=[graph_of(paced)]).start(graph_of(paced), 0)
        source = f"from benchmarks.live import worker; worker({url!r})"
        process = subprocess.Popen([sys.executable, "-c", source])
        late = [time.time() - event.data for event in handle.events() if isinstance(event, Emitted)]
        process.wait()
    within = {limit: sum(one <= limit for one in late) / EVENTS for limit in (0.1, 0.2, 1.0)}
    print(
        f"latency: median {statistics.median(late):.3f} s, 95 % {statistics.quantiles(late, n=20)[-1]:.3f} s, ", end=""
    )
    print(f"most {max(late):.3f} s; within {json.dumps(within)} of {EVENTS}")


def share(store: Store) -> None:
    """Print the share of a core that events take at `RATE` a second, over that of the same run without them."""
    took = []
    for talk in (silent, paced):
        began = time.process_time()
        graph_of(talk).run(0, store=store)
        live_writer.flush(30)
        took.append(time.process_time() - began)
    print(f"{RATE} events a second take {(took[1] - took[0]) / (EVENTS / RATE):.1%} of a core")


def main(url: str) -> None:
    """Print all figures for the store at `url`."""
    latency(url)
    with open_store(url) as store:
        graph_of(unread).run(0, store=store)
        live_writer.flush(30)
        share(store)
    graph_of(unread).run(0, store=MemoryStore())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/runs.db")
