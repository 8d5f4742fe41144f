"""What it costs to go on: the time from the call of `resume` to the first node, for short and long journals.

A long journal is made by appending records in large batches through the store's contract, as its owner would. Each
measured resume runs one node and stops, so that the journal grows by two records a round and not by failures.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.flows import Page, page
from benchmarks.raw import connect
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import interleave, seconds
from benchmarks.setting import Setting
from milepost import END, CompiledGraph, Graph, SQLiteStore, Store
from milepost.errors import RunStopped
from milepost.model.record import CHECKPOINT, OWNER, format_time, make_record
from milepost.store import Append, Claim, Release

__all__ = ["resume"]

_MILLI = 1e3
_RUN = "benchmark"
_BATCH = 2000


def resume(setting: Setting) -> Iterator[Figure]:
    """The latest checkpoint, a resume to its first node and a start to its first node."""
    reached = 0.0

    def work(state: Page) -> Page:
        nonlocal reached
        reached = perf_counter()
        return Page(state.n + 1, state.text)

    graph = _stepping(work)

    def resumed(store: Store) -> float:
        began = perf_counter()
        try:
            graph.resume(store, _RUN, stop_after="work", max_iterations=None)
        except RunStopped:
            return reached - began
        raise AssertionError("the run did not stop")

    def started(store: Store) -> float:
        began = perf_counter()
        try:
            graph.run(page(1024), store=store, run_id=secrets.token_hex(8), stop_after="work")
        except RunStopped:
            return reached - began
        raise AssertionError("the run did not stop")

    with ExitStack() as stack:
        folders = {place: stack.enter_context(setting.folder(place)) for place in setting.places}
        for place, folder in folders.items():
            stores: dict[int, Store] = {}
            raw = {}
            for length in setting.size.journals:
                name = f"{length}.db"
                made = next((other / name for other in folders.values() if (other / name).exists()), None)
                if made is None:
                    _make_journal(graph, folder / name, length)
                else:
                    shutil.copy(made, folder / name)
            # All are copied before one is opened and written to.
            for length in setting.size.journals:
                copy = folder / f"open-{length}.db"
                shutil.copy(folder / f"{length}.db", copy)
                stores[length] = stack.enter_context(SQLiteStore(copy))
                raw[length] = _Raw(folder / f"raw-{length}.db")
                stack.callback(raw[length].close)
            yield from _figures(setting, place, stores, raw, resumed, started)


def _figures(
    setting: Setting, place: str, stores: dict[int, Store], raw: dict[int, _Raw], resumed: Any, started: Any
) -> Iterator[Figure]:
    shortest, longest = min(stores), max(stores)
    sides: dict[str, Any] = {"start": partial(started, stores[shortest])}
    for length, store in stores.items():
        sides[f"latest {length}"] = partial(seconds, store.latest, _RUN, times=20)
        sides[f"resume {length}"] = partial(resumed, store)
        sides[f"raw {length}"] = raw[length].read_and_claim
    found = interleave(setting.size.rounds * 3, sides)
    for length in stores:
        yield compare(
            f"resume at {length} checkpoints, to the first node", found, measure="ours", unit="ms", scale=_MILLI,
            place=place, ours=f"resume {length}", limit=f"raw {length}", limit_is="a raw select and a raw claim",
            aim=at_most(2),
        )  # fmt: skip
    for what in ("latest", "resume"):
        yield compare(
            f"{what} at {longest} checkpoints beside {shortest}", found, measure="ratio", unit="ms", scale=_MILLI,
            place=place, ours=f"{what} {longest}", limit=f"{what} {shortest}", limit_is=f"at {shortest}",
            goal=at_most(1.2),
        )  # fmt: skip
    yield compare(
        "resume beyond a normal start", found, measure="beyond", unit="ms", scale=_MILLI, place=place,
        ours=f"resume {longest}", limit="start", limit_is="run, to its first node", goal=at_most(1),
    )  # fmt: skip


class _Raw:
    """The least that a resume could do: read the newest state, and commit who owns the run now."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, "without rowid")
        self._connection.execute("INSERT INTO records VALUES (?, 0, ?)", (_RUN, b" " * 1500))
        self._number = 0

    def read_and_claim(self) -> float:
        """Seconds that it takes."""
        self._number += 1
        began = perf_counter()
        self._connection.execute("SELECT data FROM records WHERE run = ? ORDER BY id DESC LIMIT 1", (_RUN,)).fetchone()
        self._connection.execute("INSERT INTO records VALUES (?, ?, ?)", (_RUN, self._number, b" " * 400))
        return perf_counter() - began

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _stepping(work: Any) -> CompiledGraph[Page]:
    """A loop without an end."""
    graph = Graph(Page)
    graph.add_node("work", work).set_entry("work")
    graph.add_conditional_edge("work", lambda state: "work", ["work", END])
    return graph.compile("resumed")


def _make_journal(graph: CompiledGraph[Page], path: Path, length: int) -> None:
    """A run with `length` checkpoints, interrupted."""
    with SQLiteStore(path) as store:
        with suppress(RunStopped):
            graph.run(page(1024), store=store, run_id=_RUN, stop_after="work")
        latest = store.latest(_RUN)
        now, epoch, newest = format_time(store.clock.time()), latest.row.epoch + 1, latest.newest
        record = make_record(_RUN, newest + 1, now, OWNER, fields={"verb": "resume", "epoch": epoch})
        token = store.claim(Claim(_RUN, newest, epoch, secrets.token_hex(8), record, 600.0)).token
        assert token is not None
        first, text = newest + 2, page(1024).text
        for begin in range(2, length + 1, _BATCH):
            visits = range(begin, min(begin + _BATCH, length + 1))
            records = tuple(
                make_record(
                    _RUN,
                    first + visit - 2,
                    now,
                    CHECKPOINT,
                    "work",
                    visit,
                    graph._definition.codec.encode(Page(visit, text)),
                    {
                        "next_node": "work",
                        "attempt": 1,
                        "prev_node_id": "work",
                        "iteration": visit,
                        "duration_ms": 0.001,
                        "epoch": epoch,
                    },
                )
                for visit in visits
            )
            store.append([Append(token, records)])
        store.release(token, Release("interrupted", "made for a benchmark"))
