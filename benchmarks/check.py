"""How long `check` takes for a sample of many open runs.

Run as `python -m benchmarks.check [RUNS] [URL]` (default: 100 000 runs in a SQLite store in a temporary folder). It fills the
store with runs of two flows at several places, which really were at these places, and prints the seconds for the walk and
the sample, and the milliseconds for one run. The goal is at most 60 seconds for 100 000 runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from milepost import END, Engine, Graph, MemoryStore, RunSuspended, Steps, Store, open_store, step, workflow
from milepost.checking import check
from milepost.model.record import Record, make_record
from milepost.store import Append, NewRun, Release, RunSnapshot

RUNS = 100_000
BATCH = 100
NODES = "abcdefgh"
OF_ENVELOPES = frozenset(
    {"version", "run_id", "node_id", "visit", "sequence", "kind", "timestamp", "digest", "seal", "encoding", "size"}
)


def same(state: dict[str, int]) -> dict[str, int]:
    """Change nothing."""
    return state


def fetch(number: int) -> int:
    """Return the number."""
    return number


graph = Graph(dict[str, int])
for _name, _after in zip(NODES, (*NODES[1:], END), strict=True):
    graph.add_node(_name, same).add_edge(_name, _after)
orders = graph.set_entry(NODES[0]).compile("orders")


@workflow("ingest")
def ingest() -> Steps[None]:
    """Do ten steps, then wait."""
    for number in range(10):
        yield step(f"fetch-{number}").python(fetch, args=(number,))
    yield step("release").wait_for("release")


def examples() -> Iterator[tuple[RunSnapshot, list[Record]]]:
    """Yield runs of both flows, each with its records."""
    store = MemoryStore()
    for node in NODES[:-1]:
        orders.run({"n": 1}, store=store, run_id=node, stop_after=[node], full=True)
        yield store.latest(node), store.read(node)
    with suppress(RunSuspended):
        ingest.run(store=store, run_id="w")
    yield store.latest("w"), store.read("w")


def fill(store: Store, count: int) -> None:
    """Copy the examples in turn under new ids."""
    made, batch = [*examples()], []
    for number in range(count):
        latest, records = made[number % len(made)]
        info, run_id = latest.row.info, f"run-{number}"
        copies = [_copy(record, run_id) for record in records]
        digest = str(records[0].fields()["inputs_hash"])
        token = store.create(NewRun(run_id, info.flow, digest, copies[0], 600.0, {}, "running"))
        batch.append(Append(token, tuple(copies[1:]), Release(info.status, waiting_for=info.waiting_for)))
        if len(batch) == BATCH or number == count - 1:
            store.append(batch)
            batch = []


def _copy(record: Record, run_id: str) -> Record:
    fields = record.fields()
    moment = str(fields["timestamp"])
    own = {name: value for name, value in fields.items() if name not in OF_ENVELOPES}
    return make_record(run_id, record.sequence, moment, record.kind, record.node_id, record.visit, record.state(), own)


def main(arguments: list[str]) -> None:
    """Fill a store and check it."""
    count = int(arguments[0]) if arguments else RUNS
    with tempfile.TemporaryDirectory(prefix="milepost-check-") as folder:
        url = arguments[1] if len(arguments) > 1 else f"sqlite:///{Path(folder) / 'runs.db'}"
        with open_store(url) as store:
            began = time.perf_counter()
            fill(store, count)
            sys.stdout.write(f"filled in {time.perf_counter() - began:.1f} s\n")
        with open_store(url, read_only=True) as store:
            began, busy = time.perf_counter(), time.process_time()
            report = check(Engine(store, flows=[orders, ingest]), seed=7)
            took, busy = time.perf_counter() - began, time.process_time() - busy
    sys.stdout.write(f"{report}\n")
    sys.stdout.write(
        f"{took:.1f} s ({busy:.1f} s of a core) for {report.of} runs, {report.checked} of them checked; goal: 60 s for {RUNS}\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
