"""What steps cost: without a store, recorded, replayed; and what a long workflow leaves on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.raw import TABLES, connect, insert_each, size_on_disk
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import Rounds, busy_seconds, interleave, seconds
from benchmarks.setting import Setting
from milepost import Engine, MemoryStore, RunSuspended, SQLiteStore, Steps, step, workflow

__all__ = ["steps"]

_MILLI = 1e3
_MICRO = 1e6
_RUN = "benchmark"
_TEXT = "a line of text that a step gives " * 16


def count(number: int) -> int:
    return number + 1


def text(number: int) -> str:
    return _TEXT


@workflow("counting")
def counting(times: int) -> Steps[int]:
    number = 0
    for index in range(times):
        number = yield from step(f"count-{index}").python(count, args=(number,))
    return number


@workflow("counting-async")
async def counting_async(times: int) -> int:
    number = 0
    for index in range(times):
        number = await step(f"count-{index}").python(count, args=(number,))
    return number


@workflow("writing")
def writing(times: int) -> Steps[None]:
    for index in range(times):
        yield from step(f"write-{index}").python(text, args=(index,))


@workflow("parked")
def parked(times: int) -> Steps[int]:
    number = 0
    for index in range(times):
        number = yield from step(f"count-{index}").python(count, args=(number,))
    yield from step("wait").wait_for("go")
    return number


def steps(setting: Setting) -> Iterator[Figure]:
    """A step without a store, a recorded one, a replay of many, and the bytes of a short and a long workflow."""
    yield from _unsaved(setting)
    yield from _recorded(setting)
    yield from _replayed(setting)
    yield from _kept(setting)


def _unsaved(setting: Setting) -> Iterator[Figure]:
    times = setting.size.nodes

    def plain() -> None:
        number = 0
        for _ in range(times):
            number = count(number)

    async def awaited() -> float:
        began = perf_counter()
        await counting_async.arun(times=times)
        return perf_counter() - began

    found = interleave(
        setting.size.rounds,
        {
            "plain": lambda: busy_seconds(plain) / times,
            "sync": lambda: busy_seconds(lambda: counting.run(times=times)) / times,
            "async": lambda: asyncio.run(awaited()) / times,
        },
    )
    yield compare(
        "step without a store", found, measure="beyond", unit="us", scale=_MICRO, ours="sync", limit="plain",
        limit_is="plain loop", goal=at_most(20),
    )  # fmt: skip
    yield compare(
        "step without a store, plain function under await (a thread each)", found, measure="beyond", unit="us",
        scale=_MICRO, ours="async", limit="plain", limit_is="plain loop",
    )  # fmt: skip


def _recorded(setting: Setting) -> Iterator[Figure]:
    times = setting.size.nodes
    sizes = _written(times)
    for place in setting.places:

        def ours(place: str = place) -> float:
            with setting.folder(place) as folder, SQLiteStore(folder / "runs.db") as store:
                return seconds(lambda: writing.run(times=times, store=store, run_id=_RUN)) / times

        def raw(table: str, place: str = place) -> float:
            with setting.folder(place) as folder:
                connection = connect(folder / "raw.db", table)
                taken = insert_each(connection, _RUN, sizes, times)
                connection.close()
            return taken

        found = interleave(setting.size.long_rounds, {"ours": ours, **{table: partial(raw, table) for table in TABLES}})
        fastest = min(TABLES, key=lambda table: sorted(found.sides[table])[len(found.sides[table]) // 2])
        yield compare(
            "recorded step, 0.5 KB", found, measure="ratio", unit="us", scale=_MICRO, place=place, limit=fastest,
            limit_is=f"raw insert and commit, {fastest}", goal=at_most(1.25) if place == "disk" else None,
        )  # fmt: skip


def _written(times: int) -> tuple[int, ...]:
    """The bytes of each record of a step."""
    store = MemoryStore()
    writing.run(times=min(times, 20), store=store, run_id=_RUN)
    records = store.read(_RUN, kinds=("checkpoint",))
    return tuple(len(record.header or b"") + len(record.payload or b"") for record in records)


def _replayed(setting: Setting) -> Iterator[Figure]:
    times = max(setting.size.journals[-1] // 10, 2)
    place = next(iter(setting.places))
    with setting.folder(place) as folder, SQLiteStore(folder / "runs.db", durability="normal") as store:
        engine = Engine(store)
        with suppress(RunSuspended):
            engine.run(parked, times=times, run_id=_RUN)
        found = interleave(setting.size.rounds, {"ours": lambda: seconds(partial(engine.plan_resume, parked, _RUN))})
    yield compare(
        f"replay of {times:,} recorded steps", found, measure="ours", unit="ms", scale=_MILLI, place=place,
        goal=at_most(150) if times == 10_000 else None,
    )  # fmt: skip


def _kept(setting: Setting) -> Iterator[Figure]:
    """Bytes of a step in a workflow ten times as long, beside those of one in the short one."""
    place = next(iter(setting.places))
    times = max(setting.size.nodes // 10, 1)

    def size_of(length: int) -> float:
        with setting.folder(place) as folder:
            path: Path = folder / "runs.db"
            with SQLiteStore(path, durability="normal") as store:
                writing.run(times=length, store=store, run_id=_RUN)
            return float(size_on_disk(path)) / length

    found = Rounds({"ours": (size_of(times * 10),), "short": (size_of(times),)})
    yield compare(
        f"bytes kept for a step of {times * 10}, beside one of {times}", found, measure="ratio", unit="KB", scale=1e-3,
        place=place, limit="short", limit_is="the shorter workflow", goal=at_most(1.1),
    )  # fmt: skip
