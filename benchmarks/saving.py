"""What it costs that a node is durable: a node of 1 KB, a growing list, a megabyte, single saves."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.flows import Page, loop, page, turn, turn_async
from benchmarks.raw import TABLES, connect, insert_each, size_on_disk
from benchmarks.report import Figure, Goal, at_most, compare
from benchmarks.rounds import Rounds, busy_seconds, interleave, seconds
from benchmarks.setting import Setting
from milepost import END, CompiledGraph, FileStore, Graph, MemoryStore, SQLiteStore, Store
from milepost.model.record import CHECKPOINT, START, Record, format_time, make_record
from milepost.store import Append, NewRun, Token

__all__ = ["append_each", "big", "durable", "growth", "records_of", "saves", "state_of"]

_MILLI = 1e3
_MICRO = 1e6
_RUN = "benchmark"
_MOMENT = format_time(1_767_225_600.0)


def durable(setting: Setting) -> Iterator[Figure]:
    """A node of 1 KB on SQLite, each durable before the next begins, beside an insert of the same bytes."""
    times = setting.size.nodes
    begin = page(1024)
    graph, graph_async = loop(Page, turn, times), loop(Page, turn_async, times)
    sizes = _written(graph, begin)
    for place in setting.places:

        def ours(store: Store) -> float:
            return seconds(lambda: graph.run(begin, store=store, run_id=_RUN, max_iterations=None)) / times

        def awaited(store: Store) -> float:
            async def work() -> float:
                began = perf_counter()
                await graph_async.arun(begin, store=store, run_id=_RUN, max_iterations=None)
                return perf_counter() - began

            return asyncio.run(work()) / times

        def by_hand(place: str = place) -> float:
            with setting.folder(place) as folder:
                connection = connect(folder / "raw.db", "rowid")
                rows, data = itertools.count(), b" " * max(sizes)

                def inserting(state: Page) -> Page:
                    connection.execute("INSERT INTO records VALUES (?, ?, ?)", (next(rows), _RUN, data))
                    return turn(state)

                inserted = loop(Page, inserting, times)
                taken = seconds(lambda: inserted.run(begin, max_iterations=None)) / times
                connection.close()
            return taken

        found = interleave(
            setting.size.long_rounds,
            {
                "sync": _on_a_file(setting, place, ours),
                "by hand": by_hand,
                **_raw_sides(setting, place, sizes, times),
                "async": _on_a_file(setting, place, awaited),
            },
        )
        is_disk = place == "disk"
        yield _beside_raw(
            "durable node, 1 KB", found, place, ours="sync", goal=at_most(1.25) if is_disk else None,
            aim=at_most(1.10 if is_disk else 2.5),
        )  # fmt: skip
        yield compare(
            "durable node, 1 KB, beside a node that inserts a row by hand", found, measure="ratio", unit="us",
            scale=_MICRO, place=place, ours="sync", limit="by hand", limit_is="no store, the node commits a raw insert",
        )  # fmt: skip
        yield _beside_raw("durable node, 1 KB, a lone async run", found, place, ours="async")


def growth(setting: Setting) -> Iterator[Figure]:
    """A list that grows by 2 KB with each node, beside inserts of what is new; what stays on disk; and reading it back.

    A list of ten times the length shows what grows with the list itself.
    """
    times = setting.size.growth
    types: dict[str, type[Log] | type[ListFirst]] = {"ours": Log, "list first": ListFirst}
    graphs = {name: _growing(2048, times, type_) for name, type_ in types.items()}
    longer = _growing(2048, 10 * times)
    for place in setting.places:
        aim = at_most(1.5 if place == "disk" else 4)
        bytes_ours: list[float] = []
        bytes_raw: list[float] = []

        def side(name: str, place: str = place, kept: list[float] = bytes_ours) -> float:
            graph = graphs[name]
            with setting.folder(place) as folder:
                store = SQLiteStore(folder / "runs.db")
                begin = types[name]()
                taken = seconds(lambda: graph.run(begin, store=store, run_id=_RUN, max_iterations=None)) / times
                store.close()
                if name == "ours":
                    kept.append(size_on_disk(folder / "runs.db"))
            return taken

        raw = _raw_sides(setting, place, (2048,), times, bytes_raw)
        found = interleave(setting.size.long_rounds, {**{name: partial(side, name) for name in graphs}, **raw})
        yield _beside_raw("list growing by 2 KB a node, time", found, place, aim=aim, limit_is="append only")
        yield _beside_raw(
            "list growing by 2 KB a node, first in its state, time", found, place, ours="list first", aim=aim,
            limit_is="append only",
        )  # fmt: skip
        yield compare(
            "list growing by 2 KB a node, bytes kept",
            Rounds({"ours": tuple(bytes_ours), "raw": tuple(bytes_raw[: len(bytes_ours)])}),
            measure="ratio",
            unit="MB",
            scale=1e-6,
            place=place,
            limit="raw",
            limit_is="append only",
            aim=at_most(1.3),
        )
        found = interleave(
            setting.size.long_rounds,
            {
                "ours": _on_a_file(setting, place, partial(_each_node, longer, 10 * times)),
                **_raw_sides(setting, place, (2048,), 10 * times),
            },
        )
        yield _beside_raw(
            "longer list growing by 2 KB a node, time", found, place, aim=aim, limit_is="append only"
        )  # fmt: skip
    place = next(iter(setting.places))
    graph = _growing(1024, times)
    for what, opened in (("", SQLiteStore), (" in files", FileStore)):
        with setting.folder(place) as folder:
            with opened(folder / "runs") as store:
                final = graph.run(Log(), store=store, run_id=_RUN, max_iterations=None)
            kept = float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
        yield compare(
            f"list growing by 1 KB a node, bytes kept{what}",
            Rounds({"ours": (kept,), "raw": (float(len(graph._definition.codec.encode(final))),)}),
            measure="ratio",
            unit="MB",
            scale=1e-6,
            place=place,
            limit="raw",
            limit_is="the final state",
            goal=at_most(10),
        )
    for kilobytes, length in ((32, 60), (180, 180)):
        yield _reading(setting, kilobytes, min(length, setting.size.nodes))
    yield _reading_after(setting, 32, 10 * setting.size.nodes)


def _each_node(graph: CompiledGraph[Any], times: int, store: Store) -> float:
    """Return the seconds that a node of `graph`, which runs `times` of them, takes on average."""
    return seconds(lambda: graph.run(Log(), store=store, run_id=_RUN, max_iterations=None)) / times


def _reading(setting: Setting, kilobytes: int, length: int) -> Figure:
    """What each of `length` differences costs whoever reads the newest state of a run, whose nodes changed a little."""
    states = list(_changing(kilobytes * 1024, length + 1))
    place = [*setting.places][-1]
    with setting.folder(place) as folder, SQLiteStore(folder / "runs.db") as store:
        for run_id, kept in (("chain", states), ("whole", states[-1:])):
            records = tuple(_checkpoint(run_id, number, state) for number, state in enumerate(kept, 1))
            store.append((Append(_begin(store, run_id), records),))
        read = partial(busy_seconds, store.latest, times=10)
        found = interleave(
            setting.size.rounds,
            {"ours": lambda: read("chain") / length, "twice": lambda: 2 * read("whole") / length},
        )
    return compare(
        f"reading {length} differences of a state of {kilobytes} KB, for each", found, measure="beyond", unit="us",
        scale=_MICRO, place=place, limit="twice", limit_is="twice the state whole", aim=at_most(5),
    )  # fmt: skip


def _reading_after(setting: Setting, kilobytes: int, visits: int) -> Figure:
    """Cost of reading the newest state after many visits that changed a little, as the mean over further visits.

    They are as many as a chain of such differences has, so that each of its lengths counts.
    """
    further = 64
    states = enumerate(_changing(kilobytes * 1024, visits + (setting.size.rounds + 1) * further), 1)
    place = [*setting.places][-1]
    with setting.folder(place) as folder, SQLiteStore(folder / "runs.db") as store:
        token = _begin(store)

        def visit(times: int) -> None:
            records = tuple(_checkpoint(_RUN, *next(states)) for _ in range(times))
            store.append((Append(token, records),))

        for _ in range(visits // further):
            visit(further)
        visit(visits % further)

        def read() -> float:
            taken = 0.0
            for _ in range(further):
                visit(1)
                taken += busy_seconds(store.latest, _RUN, times=3)
            return taken / further

        found = interleave(setting.size.rounds, {"ours": read})
    return compare(
        f"reading the newest state of {kilobytes} KB after {visits} visits", found, measure="ours", unit="ms",
        scale=_MILLI, place=place, aim=at_most(2),
    )  # fmt: skip


def big(setting: Setting) -> Iterator[Figure]:
    """A state of 1 MB that a node rewrites, changes in one place, or leaves alone; encoding is set aside.

    What is told of a node is the time from its begin to the begin of the next one.
    """
    times = setting.size.big
    for place in setting.places:
        for what, states, bound in _megabytes(setting.size.big_rows):
            stamps: list[float] = []
            graph = _cycling(states, times, stamps)
            codec = graph._definition.codec
            sizes = [len(codec.encode(state)) for state in states]

            def ours(store: Store, graph: Any = graph, state: Rows = states[0], stamps: list[float] = stamps) -> float:
                stamps.clear()
                graph.run(state, store=store, run_id=_RUN, max_iterations=None)
                return (stamps[-1] - stamps[0]) / (times - 1)

            def encoding(states: Sequence[Rows] = states, codec: Any = codec) -> float:
                turns = itertools.cycle(states)
                return seconds(lambda: codec.encode(next(turns)), times=times)

            found = interleave(
                setting.size.long_rounds,
                {
                    "ours": _on_a_file(setting, place, ours),
                    **_raw_sides(setting, place, sizes, times),
                    "encoding": encoding,
                },
            )
            fastest = found.fastest(*TABLES)
            yield compare(
                f"state of 1 MB, {what}",
                found,
                measure="ratio" if what == "rewritten" else "ours",
                unit="ms",
                scale=_MILLI,
                place=place,
                limit=fastest,
                aside="encoding",
                limit_is=f"raw insert, {fastest}",
                goal=bound,
                aim=bound,
                note="beyond encoding",
            )


def saves(setting: Setting) -> Iterator[Figure]:
    """Single saves of 10 KB through the store's contract and its views, in memory and on SQLite, and reading them."""
    times = max(setting.size.nodes // 5, 2)
    state = state_of(10_240)
    records = records_of(state, times)
    envelope = b'{"version":1,"run_id":"other","node_id":"work","next_node":null,"state":' + state + b"}"
    sizes = [len(records[0].header or b"") + 90 + len(state)]  # the seal is added by the store

    def appended(store: Store, measured: Callable[..., float] = seconds) -> float:
        return append_each(store, records, measured)

    def saved(store: Store, measured: Callable[..., float] = seconds) -> float:
        return measured(lambda: store.save("other", "work", envelope), times=times)

    def loaded(store: Store, measured: Callable[..., float] = seconds) -> float:
        store.save("other", "work", envelope)
        return measured(lambda: store.load("other", "work"), times=times)

    def in_a_dict() -> float:
        kept: dict[tuple[str, int], bytes] = {}
        numbers = itertools.count()
        return busy_seconds(lambda: kept.__setitem__(("run", next(numbers)), bytes(state)), times=times)

    found = interleave(
        setting.size.rounds,
        {
            "appended": lambda: appended(MemoryStore(), busy_seconds),
            "dict": in_a_dict,
            "saved": lambda: saved(MemoryStore(), busy_seconds),
            "loaded": lambda: loaded(MemoryStore(), busy_seconds),
        },
    )
    for name, ours, goal in (
        ("append of 10 KB in memory", "appended", at_most(10)),
        ("save of 10 KB from outside in memory", "saved", None),
        ("load of 10 KB from memory", "loaded", None),
    ):
        yield compare(
            name,
            found,
            measure="beyond",
            unit="us",
            scale=_MICRO,
            ours=ours,
            limit="dict",
            limit_is="a dict",
            goal=goal,
        )
    for place in setting.places:
        found = interleave(
            setting.size.long_rounds,
            {
                "appended": _on_a_file(setting, place, appended),
                **_raw_sides(setting, place, sizes, times),
                "saved": _on_a_file(setting, place, saved),
                "loaded": _on_a_file(setting, place, loaded),
            },
        )
        fastest = found.fastest(*TABLES)
        for name, ours, goal in (
            ("append of 10 KB on SQLite", "appended", at_most(1)),
            ("save of 10 KB from outside on SQLite", "saved", at_most(1)),
            ("load of 10 KB from SQLite", "loaded", None),
        ):
            yield compare(
                name, found, measure="ours", unit="ms", scale=_MILLI, place=place, ours=ours,
                limit=None if ours == "loaded" else fastest, limit_is=f"raw insert, {fastest}", goal=goal,
            )  # fmt: skip


# -- what is measured ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One record of a large state."""

    id: int
    name: str
    score: float
    tags: list[str]


@dataclass(frozen=True)
class Rows:
    """A large state."""

    n: int
    rows: list[Row]


@dataclass(frozen=True)
class Log:
    """A state that grows."""

    n: int = 0
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class ListFirst:
    """A state that grows, with nothing before its list."""

    items: tuple[str, ...] = ()
    n: int = 0


def _growing(size: int, times: int, type_: type[Log] | type[ListFirst] = Log) -> CompiledGraph[Any]:
    text = page(size).text

    def work(state: Any) -> Any:
        return type_(n=state.n + 1, items=(*state.items, f"{state.n:06d} {text}"))

    return loop(type_, work, times)


def _megabytes(count: int) -> Iterator[tuple[str, list[Rows], Goal]]:
    def rows(shift: int) -> list[Row]:
        return [Row(n, f"customer {n + shift} of the shop", (n + shift) / 7, ["new", "paid"]) for n in range(count)]

    first, second = rows(0), rows(1)
    changed = [
        *first[: count // 2],
        replace(first[count // 2], name="somebody else altogether"),
        *first[count // 2 + 1 :],
    ]
    yield "rewritten", [Rows(0, first), Rows(1, second)], at_most(1.2)
    yield "one record changed", [Rows(0, first), Rows(0, changed)], at_most(3)
    yield "untouched", [Rows(0, first)], at_most(0.5)


def _cycling(states: Sequence[Rows], times: int, stamps: list[float]) -> CompiledGraph[Rows]:
    """A loop whose node returns `states` in turn, `times` in all, and stamps when it begins."""
    turns = itertools.cycle((*states[1:], states[0]))

    def work(state: Rows) -> Rows:
        stamps.append(perf_counter())
        return next(turns)

    graph = Graph(Rows)
    graph.add_node("work", work).set_entry("work")
    graph.add_conditional_edge("work", lambda state: "work" if len(stamps) < times else END, ["work", END])
    return graph.compile("megabyte")


def state_of(size: int) -> bytes:
    """Return a state of about so many bytes."""
    return b'{"n":1,"text":"' + b"milepost " * ((size - 17) // 9) + b'"}'


def records_of(state: bytes, times: int) -> list[Record]:
    """Return the checkpoints of a loop whose node leaves `state` each time."""
    return [_checkpoint(_RUN, number, state) for number in range(1, times + 1)]


def _checkpoint(run_id: str, number: int, state: bytes) -> Record:
    fields = {"next_node": "work", "attempt": 1, "prev_node_id": "work", "iteration": number, "epoch": 1}
    return make_record(run_id, number, _MOMENT, CHECKPOINT, "work", number, state, fields)


def _changing(size: int, times: int) -> Iterator[bytes]:
    """Give states of about `size` bytes, each with another number and another cell of its table than the one before."""
    chance = random.Random(7)
    rows = [b'{"id":%d,"score":%.12f}' % (n, chance.random()) for n in range(size // 36)]
    for number in range(times):
        n = chance.randrange(len(rows))
        rows[n] = b'{"id":%d,"score":%r}' % (n, chance.random())
        yield b'{"n":%d,"rows":[%s]}' % (number, b",".join(rows))


def append_each(store: Store, records: Sequence[Record], measured: Callable[..., float]) -> float:
    """Append `records` to a new run one by one, and return what `measured` says that one costs."""
    token = _begin(store)
    turns = iter(records)
    return measured(lambda: store.append((Append(token, (next(turns),)),)), times=len(records))


def _begin(store: Store, run_id: str = _RUN) -> Token:
    start = make_record(run_id, 0, _MOMENT, START, state=b"{}", fields={"flow": "loop", "entry": "work", "epoch": 1})
    return store.create(NewRun(run_id, "loop", "0" * 16, start, 600.0, {}))


# -- sides -----------------------------------------------------------------------------------------


def _written(graph: CompiledGraph[Any], begin: Any) -> list[int]:
    """The bytes of header and state in each record that a run of `graph` writes for a node."""
    store = MemoryStore()
    graph.run(begin, store=store, run_id=_RUN, max_iterations=None)
    records = store.read(_RUN, kinds=(CHECKPOINT,))
    return [len(record.header or b"") + 1 + len(record.payload or b"") for record in records]


def _on_a_file(setting: Setting, place: str, work: Callable[[Store], float]) -> Callable[[], float]:
    def side() -> float:
        with setting.folder(place) as folder, SQLiteStore(folder / "runs.db") as store:
            return work(store)

    return side


def _raw_sides(
    setting: Setting, place: str, sizes: Sequence[int], times: int, kept: list[float] | None = None
) -> dict[str, Callable[[], float]]:
    """A side for each raw table. `kept` is given the bytes that the first of them leaves on disk, a value a round."""

    def side(table: str, path: Path) -> float:
        connection = connect(path, table)
        try:
            return insert_each(connection, _RUN, sizes, times)
        finally:
            connection.close()

    def in_a_folder(table: str) -> float:
        with setting.folder(place) as folder:
            taken = side(table, folder / "raw.db")
            if kept is not None and table == next(iter(TABLES)):
                kept.append(size_on_disk(folder / "raw.db"))
            return taken

    return {table: partial(in_a_folder, table) for table in TABLES}


def _beside_raw(
    name: str,
    found: Rounds,
    place: str,
    *,
    ours: str = "ours",
    limit_is: str = "raw insert",
    goal: Goal | None = None,
    aim: Goal | None = None,
) -> Figure:
    fastest = found.fastest(*TABLES)
    return compare(
        name,
        found,
        measure="ratio",
        unit="us",
        scale=_MICRO,
        place=place,
        ours=ours,
        limit=fastest,
        limit_is=f"{limit_is}, {fastest}",
        goal=goal,
        aim=aim,
    )
