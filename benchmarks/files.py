"""The store in a folder of files: an append beside the least that makes a file durable, long journals, many runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks.flows import Page, loop, page, turn
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import interleave, seconds
from benchmarks.setting import Setting
from milepost.model.record import CHECKPOINT, START, Record, format_time, make_record
from milepost.store import Append, NewRun, Release, Token
from milepost.stores.file.store import FileStore

__all__ = ["files"]

_MILLI = 1e3
_MICRO = 1e6
_RUN = "benchmark"
_MOMENT = format_time(1_767_225_600.0)


def files(setting: Setting) -> Iterator[Figure]:
    """What files cost and what they make of long journals and many runs."""
    for place in setting.places:
        yield from _appends(setting, place)
        yield from _journals(setting, place)
        yield from _listings(setting, place)


def _appends(setting: Setting, place: str) -> Iterator[Figure]:
    # Short turns, and many of them: a disk's mood changes with what else is written.
    times, begin = max(2, setting.size.nodes // 50), page(1024)
    graph = loop(Page, turn, times)
    records = [_checkpoint(number, begin.text) for number in range(1, times + 1)]
    size = len(records[0].header or b"") + len(records[0].payload or b"") + 600  # as much again as the row takes

    def appended() -> float:
        with setting.folder(place) as folder, FileStore(folder / "runs") as store:
            token = _begin(store, _RUN)
            began = perf_counter()
            for record in records:
                store.append([Append(token, (record,))])
            return (perf_counter() - began) / times

    def ran() -> float:
        with setting.folder(place) as folder, FileStore(folder / "runs") as store:
            return seconds(lambda: graph.run(begin, store=store, run_id=_RUN, max_iterations=None)) / times

    def raw() -> float:
        with setting.folder(place) as folder:
            return put_each(folder, b" " * size, times)

    found = interleave(setting.size.long_rounds * 10, {"appended": appended, "raw": raw, "ran": ran})
    for name, ours, goal in (
        ("append of 1 KB to files", "appended", at_most(1.3) if place == "disk" else None),
        ("durable node, 1 KB, in files", "ran", None),
    ):
        yield compare(
            name, found, measure="ratio", unit="us", scale=_MICRO, place=place, ours=ours, limit="raw",
            limit_is="write, fsync, link and fsync of the folder", goal=goal,
        )  # fmt: skip


def put_each(folder: Path, data: bytes, times: int) -> float:
    """Seconds that it takes to make one file durable and to put it under a name that must be free."""
    made = f"{folder}/made"
    began = perf_counter()
    for number in range(times):
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.close(descriptor)
        os.link(made, f"{folder}/{number:012d}")
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.unlink(made)
    return (perf_counter() - began) / times


def _journals(setting: Setting, place: str) -> Iterator[Figure]:
    lengths = setting.size.journals
    with setting.folder(place) as folder:
        with _unsynced(), FileStore(folder / "runs") as store:
            for length in lengths:
                token = _begin(store, f"{_RUN}-{length}")
                for number in range(1, length + 1):
                    store.append([Append(token, (_checkpoint(number, "x" * 1024, token.run_id),))])
                store.release(token, Release("interrupted", "made for a benchmark"))
        with FileStore(folder / "runs") as store:

            def anew(length: int) -> float:
                with FileStore(folder / "runs") as fresh:
                    return seconds(fresh.latest, f"{_RUN}-{length}")

            sides = {
                f"latest {length}": partial(seconds, store.latest, f"{_RUN}-{length}", times=20) for length in lengths
            }
            sides |= {f"anew {length}": partial(anew, length) for length in lengths}
            found = interleave(setting.size.rounds * 3, sides)
    shortest, longest = min(lengths), max(lengths)
    yield compare(
        f"latest in files at {longest} checkpoints beside {shortest}", found, measure="ratio", unit="ms", scale=_MILLI,
        place=place, ours=f"latest {longest}", limit=f"latest {shortest}", limit_is=f"at {shortest}", goal=at_most(1.2),
    )  # fmt: skip
    for length in lengths:
        yield compare(
            f"latest in files at {length} checkpoints, by who knows nothing of them", found, measure="ours", unit="ms",
            scale=_MILLI, place=place, ours=f"anew {length}", goal=at_most(1),
        )  # fmt: skip


def _listings(setting: Setting, place: str) -> Iterator[Figure]:
    count = max(2, max(setting.size.journals) // 10)
    with setting.folder(place) as folder:
        with _unsynced(), FileStore(folder / "runs") as store:
            for number in range(count):
                store.release(_begin(store, f"run-{number}"), Release("finished" if number % 50 else "ready"))
        with FileStore(folder / "runs") as store:

            def first_look() -> float:
                with FileStore(folder / "runs") as fresh:
                    return seconds(fresh.list_runs)

            # Nobody takes a run of another flow: the poll looks and leaves all as it is.
            found = interleave(
                setting.size.long_rounds,
                {
                    "first": first_look,
                    "again": partial(seconds, store.list_runs),
                    "poll": partial(seconds, store.claim_due, ["loop"], 1, [f"run-{n}" for n in range(0, count, 50)]),
                },
            )
    for name, ours in (
        (f"page of 100 among {count} runs in files, first look", "first"),
        (f"page of 100 among {count} runs in files, again", "again"),
        (f"poll among {count} runs in files, {len(range(0, count, 50))} of which are ready", "poll"),
    ):
        yield compare(name, found, measure="ours", unit="ms", scale=_MILLI, place=place, ours=ours)


@contextmanager
def _unsynced() -> Iterator[None]:
    """Make many files without waiting for the disk: nothing of this must survive."""
    fsync = os.fsync
    os.fsync = lambda descriptor: None
    try:
        yield
    finally:
        os.fsync = fsync


def _checkpoint(number: int, text: str, run_id: str = _RUN) -> Record:
    fields = {"next_node": "work", "attempt": 1, "prev_node_id": "work", "iteration": number, "epoch": 1}
    return make_record(run_id, number, _MOMENT, CHECKPOINT, "work", number, b'{"text":"%s"}' % text.encode(), fields)


def _begin(store: FileStore, run_id: str) -> Token:
    start = make_record(run_id, 0, _MOMENT, START, state=b"{}", fields={"flow": "loop", "entry": "work", "epoch": 1})
    return store.create(NewRun(run_id, "loop", "0" * 16, start, 600.0, {}))
