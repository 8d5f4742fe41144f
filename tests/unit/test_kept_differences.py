"""Graphs whose state is large and changes little: what is on the disk, and what is lost with a part of it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from milepost import END, START, CompiledGraph, Graph, NodeError
from milepost.errors import CheckpointCorruptError
from milepost.model.record import Record, unpacked
from milepost.store import Release, Store
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.stores.file.store import FileStore
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing.chats import chat, talk
from milepost.testing.journals import begin, write

TEXT = "what was said, and what was answered to that, at some length "
KEY = {"encryption_key": {"k": b"k" * 32}}


@dataclass(frozen=True)
class Chat:
    count: int = 0
    said: list[str] = field(default_factory=list)
    cost: float = 0.0


def talks(until: int, fails_at: int | None = None) -> CompiledGraph[Chat]:
    def talk(chat: Chat) -> Chat:
        if chat.count == fails_at:
            raise OSError("the line is dead")
        n = chat.count + 1
        return replace(chat, count=n, said=[*chat.said, f"{n}: {TEXT * 33}"[:2000]], cost=n / 7)

    return (
        Graph(Chat)
        .add_node("talk", talk)
        .add_edge(START, "talk")
        .add_conditional_edge("talk", lambda chat: "talk" if chat.count < until else END, ["talk", END])
        .compile("talks")
    )


def said(count: int) -> Chat:
    return talks(count).run(Chat())


def kept(path: Path) -> int:
    if path.is_dir():
        return sum(len(file.read_bytes()) for file in path.rglob("*") if file.is_file() and file.name != "journal")
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT sum(length(payload)) + sum(length(header)) FROM records").fetchone()[0]


Opened = Callable[..., Store]


@pytest.fixture(params=["sqlite", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Open the store of this test, which is at `tmp_path / "runs"`."""
    kind: Any = SQLiteStore if request.param == "sqlite" else FileStore
    return lambda **options: kind(tmp_path / "runs", **options)


@pytest.mark.parametrize("options", [{}, KEY])
def test_storage_grows_with_what_is_said(opened: Opened, tmp_path: Path, options: dict[str, Any]) -> None:
    with opened(**options) as store:
        final = talks(150).run(Chat(), store=store, run_id="r")
        size = store.get_run("r").info.size
    assert size > 300_000
    assert kept(tmp_path / "runs") < (1.65 if not options else 2.4) * size
    with opened(**options) as store:
        assert store.verify("r").ok
        assert [*range(1, 151)] == [info.visit for info in store.history("r")]
        assert said(150) == final


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(keys, marks=pytest.mark.wide) for keys in ({"signing_key": {"s": b"s" * 32}}, KEY))]
)
def test_each_process_goes_on_from_what_was_kept(opened: Opened, tmp_path: Path, options: dict[str, Any]) -> None:
    """A run that fails again and again, each time in a new store object: no resume writes the whole state again."""
    with opened(**options) as store, pytest.raises(NodeError):
        talks(60, fails_at=30).run(Chat(), store=store, run_id="r")
    for n in range(31, 60):
        with opened(**options) as store, pytest.raises(NodeError):
            talks(60, fails_at=n).resume(store, "r")
    before = kept(tmp_path / "runs")
    with opened(**options) as store:
        assert said(60) == talks(60).resume(store, "r")
        assert before < (4 if not options else 6) * store.get_run("r").info.size
        assert store.verify("r").ok


def test_a_damaged_record_costs_those_that_build_on_it(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    with SQLiteStore(path) as store, pytest.raises(NodeError):
        talks(60, fails_at=40).run(Chat(), store=store, run_id="r")
    with closing(sqlite3.connect(path)) as connection, connection:
        (found,) = connection.execute("SELECT payload FROM records WHERE sequence = 20").fetchone()
        said_there = json.loads(unpacked(found, 100_000))
        assert {"base", "since", "edits"} == said_there.keys()
        connection.execute("UPDATE records SET payload = ? WHERE sequence = 20", (found[:-30] + b"x" + found[-29:],))
    with SQLiteStore(path) as store:
        problems = store.verify("r").problems
        assert 21 <= len(problems)
        assert all(f"record {n} " in " ".join(problems) for n in range(20, 41))
        assert not [text for text in problems if "record 19 " in text]
        with pytest.raises(CheckpointCorruptError):
            talks(60).resume(store, "r")
        assert talks(60).resume(store, "r", on_corrupt="previous") == said(60)
        assert store.latest("r").point is not None


def test_a_lost_record_costs_those_that_build_on_it(tmp_path: Path) -> None:
    path = tmp_path / "runs"
    with FileStore(path) as store, pytest.raises(NodeError):
        talks(30, fails_at=20).run(Chat(), store=store, run_id="r")
    folder = json.loads((path / "r" / "journal").read_bytes())["folder"]
    commit = path / "r" / folder / "000000000010"
    line = commit.read_bytes().splitlines()[1]
    assert b'"delta":{"base":9,' in line
    os.truncate(commit, 100)
    with FileStore(path) as store:
        assert not store.verify("r").ok
        assert talks(30).resume(store, "r", on_corrupt="previous") == said(30)


def test_an_older_visit_is_gone_on_from(opened: Opened) -> None:
    with opened() as store:
        talks(50).run(Chat(), store=store, run_id="r")
        assert talks(55).resume_from(store, "r", "talk", visit=20) == said(55)
        assert talks(50).resume_from(store, "r", "talk", visit=7, rerun=True) == said(50)
        assert store.verify("r").ok
        copied = store.import_run(store.export("r"), run_id="copy")
        assert store.latest(copied).point is not None
        assert store.verify("copy").ok


@dataclass(frozen=True)
class Talks:
    """A chat of each branch, beside what all have in common."""

    common: str = "said before " * 2000
    a: list[str] = field(default_factory=list)
    b: list[str] = field(default_factory=list)
    c: list[str] = field(default_factory=list)


def in_parallel(times: int) -> CompiledGraph[Talks]:
    def met(state: Talks, ends: dict[str, Talks]) -> Talks:
        return replace(state, a=ends["a"].a, b=ends["b"].b, c=ends["c"].c)

    graph = Graph(Talks).add_node("begin", lambda state: state).add_node("join", lambda state: state, merge=met)
    graph.add_edge(START, "begin").add_edge("join", END)
    for name in "abc":

        def talk(state: Talks, name: str = name) -> Talks:
            lines = getattr(state, name)
            return replace(state, **{name: [*lines, f"{name}{len(lines)}: {TEXT * 33}"]})

        def again(state: Talks, name: str = name) -> str:
            return name if len(getattr(state, name)) < times else "join"

        graph.add_node(name, talk).add_edge("begin", name).add_conditional_edge(name, again, [name, "join"])
    return graph.compile("in parallel")


def test_branches_keep_what_each_of_them_changed(opened: Opened, tmp_path: Path) -> None:
    with opened() as store:
        final = in_parallel(12).run(Talks(), store=store, run_id="r")
        size = store.get_run("r").info.size
        assert store.verify("r").ok
        states = [record.state() for record in store.read("r", kinds=("checkpoint",))]
    assert kept(tmp_path / "runs") < 3.5 * size
    assert sum(len(state or b"") for state in states) > 15 * size
    assert final == in_parallel(12).run(Talks())
    with opened() as store:
        for visit in (11, 3):
            again = in_parallel(12).resume_from(store, "r", "b", visit=visit)
            assert again == final
        assert store.verify("r").ok


def test_what_is_removed_while_it_is_read_costs_no_reader_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files have no snapshots: a record may be written anew between two looks at its chain."""
    whole = DecodingTransaction._whole

    def and_then(guarded: DecodingTransaction, run_id: str, record: Record) -> Any:
        monkeypatch.setattr(DecodingTransaction, "_whole", whole)
        other.delete("r", "a")
        guarded._tx._histories["r"]._read.clear()  # type: ignore[attr-defined]  # as if it had read much else meanwhile
        return whole(guarded, run_id, record)

    with FileStore(tmp_path / "runs") as store, FileStore(tmp_path / "runs") as other:
        token = begin(store, "r")
        talk(store, token, 1, 19)
        write(store, token, release=Release("interrupted"))
        monkeypatch.setattr(DecodingTransaction, "_whole", and_then)
        point = store.latest("r").point
        assert point is not None
        assert chat(19) == point.state()
        assert "a" not in {info.node_id for info in store.history("r")}
