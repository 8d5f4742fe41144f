"""Many runs at once on one SQLite file: asyncio tasks, threads, processes. All figures are durable nodes a second."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter

from benchmarks.children import run_together
from benchmarks.flows import Page, loop, page, turn, turn_async
from benchmarks.raw import TABLES, connect, insert_each
from benchmarks.report import Figure, at_least, compare
from benchmarks.rounds import interleave
from benchmarks.setting import Setting
from milepost import SQLiteStore, Store

__all__ = ["concurrency"]

_BYTES = 1500
"""Header and state of a node with 1 KB."""


def concurrency(setting: Setting) -> Iterator[Figure]:
    """Runs side by side, beside one run alone, and processes side by side beside raw inserts by as many."""
    size = setting.size
    for place in setting.places:
        found = interleave(
            size.long_rounds,
            {
                "one async": _on_a_file(setting, place, lambda store: _tasks(store, 1, size.run_nodes * 4)),
                "async": _on_a_file(setting, place, lambda store: _tasks(store, size.runs, size.run_nodes)),
                "one sync": _on_a_file(setting, place, lambda store: _threads(store, 1, size.run_nodes * 4)),
                "threads": _on_a_file(setting, place, lambda store: _threads(store, size.runs, size.run_nodes)),
                "raw": partial(_raw_alone, setting, place),
            },
        )
        for name, ours, limit, goal in (
            (f"{size.runs} async runs", "async", "one async", at_least(3)),
            (f"{size.runs} threads with a sync run", "threads", "one sync", None),
        ):
            yield compare(
                name, found, measure="ratio", unit="nodes/s", place=place, ours=ours, limit=limit, limit_is="one run",
                goal=goal,
            )  # fmt: skip
        yield compare(
            f"{size.runs} async runs beside raw inserts", found, measure="ratio", unit="nodes/s", place=place,
            ours="async", limit="raw", limit_is="one raw connection",
        )  # fmt: skip
        yield from _processes(setting, place)


def _processes(setting: Setting, place: str) -> Iterator[Figure]:
    size = setting.size
    names = [str(number) for number in range(1, size.processes + 1)]
    lost = 0
    shares: list[float] = []
    """Of each round of ours, the nodes a second of the slowest process beside those of the fastest."""

    def together(what: str, *more: str) -> float:
        nonlocal lost
        with setting.folder(place) as folder:
            path = str(folder / "runs.db")
            if what == "nodes":
                SQLiteStore(path).close()
            else:
                connect(folder / "runs.db", more[0]).close()
            told = run_together([(what, path, name, str(size.process_nodes), *more) for name in names])
        lost += sum(child["done"] != size.process_nodes for child in told)
        taken = max(child["ended"] for child in told) - min(child["began"] for child in told)
        if what == "nodes":
            times = [child["ended"] - child["began"] for child in told]
            shares.append(min(times) / max(times))
        return len(told) * size.process_nodes / float(taken)

    sides: dict[str, Callable[[], float]] = {"ours": partial(together, "nodes")}
    sides |= {table: partial(together, "raw", table, str(_BYTES)) for table in TABLES}
    found = interleave(max(size.long_rounds // 2, 2), sides)
    best = max(TABLES, key=lambda table: found.spread(table).median)
    yield compare(
        f"{size.processes} processes on one file", found, measure="ratio", unit="nodes/s", place=place, limit=best,
        limit_is=f"as many with raw inserts, {best}", aim=at_least(0.8),
        note=f"{lost} runs lost, the slowest with {median(shares):.2f} of the fastest",
    )  # fmt: skip


def _on_a_file(setting: Setting, place: str, work: Callable[[Store], float]) -> Callable[[], float]:
    def side() -> float:
        with setting.folder(place) as folder, SQLiteStore(folder / "runs.db") as store:
            return work(store)

    return side


def _tasks(store: Store, runs: int, nodes: int) -> float:
    graph, begin = loop(Page, turn_async, nodes), page(1024)

    async def work() -> float:
        began = perf_counter()
        await asyncio.gather(
            *(graph.arun(begin, store=store, run_id=f"run-{number}", max_iterations=None) for number in range(runs))
        )
        return runs * nodes / (perf_counter() - began)

    return asyncio.run(work())


def _threads(store: Store, runs: int, nodes: int) -> float:
    graph, begin = loop(Page, turn, nodes), page(1024)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            graph.run(begin, store=store, run_id=f"run-{number}", max_iterations=None)
        except BaseException as exc:
            failed.append(exc)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(runs)]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = perf_counter() - began
    if failed:
        raise failed[0]
    return runs * nodes / taken


def _raw_alone(setting: Setting, place: str) -> float:
    with setting.folder(place) as folder:
        connection = connect(folder / "raw.db", "rowid")
        try:
            return 1 / insert_each(connection, "run", (_BYTES,), setting.size.run_nodes * 4)
        finally:
            connection.close()
