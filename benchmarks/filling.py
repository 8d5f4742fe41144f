"""Fills a store as years of use would, in minutes: many runs of several flows in every status, and one very long run.

All goes in by the store's contract, with a clock that walks from `BEGUN` on, a minute for each run. What is counted as one
checkpoint has a state of `STATE_BYTES`.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.flows import Page, page
from milepost import END, CompiledGraph, Graph, Store
from milepost.errors import RunStopped
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, OWNER, START, Record, format_time, make_record
from milepost.store import Append, Claim, NewRun, Release
from milepost.testing import FakeClock

__all__ = ["BEGUN", "CUSTOMER_RUNS", "FLOWS", "LONG_RUN", "QUEUED", "RESUMABLE", "Filled", "fill", "looping"]

BEGUN = 1_735_689_600.0
"""2025-01-01 UTC: so old that all of it may be pruned."""
FLOWS = ("orders", "invoices", "imports", "chats", "reports")
QUEUED = "chats"
"""The flow of which runs are due, one of 20 of all."""
STATE_BYTES = 512
CUSTOMER_RUNS = 10
"""Runs that have a tag's value in common, however many runs there are."""
LONG_RUN = "the long run"
RESUMABLE = 20
"""Runs that can be resumed, all of a flow of their own."""
_STATUSES = ("finished",) * 14 + ("failed", "failed", "waiting", "interrupted", "cancelled", "blocked")
_PRUNED = {"finished", "cancelled"}
_TOGETHER = 10
"""Runs whose records are committed together."""
_CHUNK = 1000
_SEED = 7


@dataclass(frozen=True, slots=True)
class Filled:
    """What is in a store now."""

    checkpoints: int
    runs: int
    ends: tuple[float, ...]
    """When runs that may be pruned ended, in order; some at the same moment."""


def looping(work: Callable[[Page], Page]) -> CompiledGraph[Page]:
    """The flow of the runs that can be resumed: a loop without an end."""
    graph: Graph[Page] = Graph(Page)
    graph.add_node("work", work).set_entry("work")
    graph.add_conditional_edge("work", lambda state: "work", ["work", END])
    return graph.compile("resumed")


def fill(store: Store, checkpoints: int) -> Filled:
    """Fill an empty store, whose clock is a `FakeClock`, with that many checkpoints, a tenth of them in the long run."""
    clock, chance = store.clock, random.Random(_SEED)
    assert isinstance(clock, FakeClock)
    graph = looping(lambda state: Page(state.n + 1, state.text))
    begun = 0
    ends: list[float] = []
    left, queued = checkpoints, FLOWS.index(QUEUED)
    spread = [(LONG_RUN, checkpoints // 10), *((f"resumable {number}", 50) for number in range(RESUMABLE))]
    # Those that are measured lie among the others, not at an end.
    due = {int(checkpoints * 0.6) - place * 60: plan for place, plan in enumerate(spread)}
    batch: list[Append] = []
    while left > 0:
        for mark in [mark for mark in due if left <= mark]:
            run_id, length = due.pop(mark)
            _lengthen(store, graph, run_id, min(length, left))
            left, begun = left - length, begun + 1
        length = min(chance.randint(10, 80), max(left, 1))
        status = "ready" if begun % 20 == queued else _STATUSES[chance.randrange(len(_STATUSES))]
        run_id, flow = f"{FLOWS[begun % len(FLOWS)]} {begun}", FLOWS[begun % len(FLOWS)]
        tags = {"customer": f"c-{begun // CUSTOMER_RUNS}", "region": ("eu", "us")[begun % 2]}
        start = make_record(run_id, 0, format_time(clock.time()), START, state=b"{}", fields={"flow": flow, "epoch": 1})
        new = NewRun(run_id, flow, "0" * 16, start, 60.0, tags, "ready" if status == "ready" else "running")
        token = store.create(new)
        if status != "ready":
            records = tuple(_records(run_id, length, status, format_time(clock.time()), chance))
            batch.append(Append(token, records, Release(status, "" if status == "finished" else f"it was {status}")))
            left -= length
        begun += 1
        if len(batch) == _TOGETHER or left <= 0:
            store.append(batch)
            if any(append.release and append.release.status in _PRUNED for append in batch):
                ends.append(clock.time())
            batch = []
        clock.advance(60.0)
    return Filled(checkpoints, begun, tuple(ends))


def _records(run_id: str, length: int, status: str, moment: str, chance: random.Random) -> Iterator[Record]:
    state = b'{"n":1,"text":"%s"}' % secrets.token_hex(STATE_BYTES // 2).encode()
    fields = {
        "next_node": "step 1",
        "attempt": 1,
        "prev_node_id": "step 0",
        "iteration": 1,
        "duration_ms": 1.5,
        "epoch": 1,
    }
    nodes = chance.randint(3, 12)
    for sequence in range(1, length + 1):
        node, visit = f"step {sequence % nodes}", sequence // nodes + 1
        yield make_record(run_id, sequence, moment, CHECKPOINT, node, visit, state, fields)
    if status == "failed":
        told = {"op": "execute", "error": "ValueError", "message": "no", "attempt": 1, "final": True}
        yield make_record(run_id, length + 1, moment, FAILURE, "step 1", 1, fields=told)
    elif status in _PRUNED:
        yield make_record(run_id, length + 1, moment, FINISH, fields={"status": status, "epoch": 1})


def _lengthen(store: Store, graph: CompiledGraph[Page], run_id: str, length: int) -> None:
    """An interrupted run of the graph with `length` checkpoints."""
    with suppress(RunStopped):
        graph.run(page(STATE_BYTES), store=store, run_id=run_id, stop_after="work")
    latest = store.latest(run_id)
    moment, epoch, newest = format_time(store.clock.time()), latest.row.epoch + 1, latest.newest
    owner = make_record(run_id, newest + 1, moment, OWNER, fields={"verb": "resume", "epoch": epoch})
    token = store.claim(Claim(run_id, newest, epoch, secrets.token_hex(8), owner, 600.0)).token
    assert token is not None
    fields: dict[str, Any] = {"next_node": "work", "attempt": 1, "prev_node_id": "work", "duration_ms": 0.001}
    text = page(STATE_BYTES).text
    for begin in range(2, length + 1, _CHUNK):
        records = tuple(
            make_record(
                run_id,
                newest + visit,
                moment,
                CHECKPOINT,
                "work",
                visit,
                graph._definition.codec.encode(Page(visit, text)),
                fields | {"iteration": visit, "epoch": epoch},
            )
            for visit in range(begin, min(begin + _CHUNK, length + 1))
        )
        store.append([Append(token, records)])
    store.release(token, Release("interrupted", "made for a benchmark"))
