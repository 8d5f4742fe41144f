"""A run that can't be read, or can't be claimed, on each store: it is named, it can be deleted, and it stops no other."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from milepost import END, Context, Engine, Graph, SQLiteStore
from milepost.errors import CheckpointCorruptError, StoreError
from milepost.model.record import make_record
from milepost.model.seal import Seals
from milepost.store import Release, Store
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.stores.base.transaction import Transaction
from milepost.stores.file.store import FileStore
from milepost.stores.memory import MemoryStore
from milepost.testing import FakeClock
from milepost.testing.journals import begin, checkpoint, work, write
from milepost.testing.tables import for_each

TEXT = '{"truncated'
DEEP = '[{"wait_id":"w#1","signal":null,"prompt":%s,"wake_at":null,"since":"2026-01-01T00:00:00Z"}]' % (
    "[" * 9999 + "]" * 9999
)


def change(column: str, value: Any) -> Callable[[Any, Callable[..., Any]], None]:
    """Damage a column of the row of `bad`."""
    return lambda table, query: query(f"UPDATE {table} SET {column} = ? WHERE run_id = ?", value)


def commit_of(root: Path) -> Path:
    return max((root / "bad").rglob("0000*"))


def cut(root: Path, query: object) -> None:
    commit_of(root).write_bytes(commit_of(root).read_bytes()[:50])


def link_to_itself(root: Path, query: object) -> None:
    path = commit_of(root)
    path.unlink()
    path.symlink_to(path)


def fifo(root: Path, query: object) -> None:
    path = commit_of(root)
    path.unlink()
    os.mkfifo(path)


def commit_without_end(root: Path, query: object) -> None:
    os.truncate(commit_of(root), 1 << 40)


def commit_of_zeros(root: Path, query: object) -> None:
    commit_of(root).write_bytes(b"")
    os.truncate(commit_of(root), 3 << 30)


def commit_device(root: Path, query: object) -> None:
    path = commit_of(root)
    path.unlink()
    path.symlink_to("/dev/zero")


def commit_link(root: Path, query: object) -> None:
    path = commit_of(root)
    path.rename(root.parent / "elsewhere")
    path.symlink_to(root.parent / "elsewhere")


def journal_fifo(root: Path, query: object) -> None:
    (root / "bad" / "journal").unlink()
    os.mkfifo(root / "bad" / "journal")


def journal_fifo_with_a_writer(root: Path, query: object) -> None:
    journal_fifo(root, query)
    os.open(root / "bad" / "journal", os.O_RDWR)


def journal_device(root: Path, query: object) -> None:
    (root / "bad" / "journal").unlink()
    (root / "bad" / "journal").symlink_to("/dev/zero")


def journal_without_end(root: Path, query: object) -> None:
    os.truncate(root / "bad" / "journal", 1 << 40)


def folder_link(root: Path, query: object) -> None:
    (root / "bad").rename(root.parent / "elsewhere")
    (root / "bad").symlink_to(root.parent / "elsewhere")


def folder_link_to_itself(root: Path, query: object) -> None:
    (root / "bad").rename(root.parent / "elsewhere")
    (root / "bad").symlink_to(root / "bad")


def journal(content: bytes) -> Callable[[Path, object], None]:
    return lambda root, query: (root / "bad" / "journal").write_bytes(content) and None


def journal_link_to_itself(root: Path, query: object) -> None:
    (root / "bad" / "journal").unlink()
    (root / "bad" / "journal").symlink_to(root / "bad" / "journal")


def long_name(root: Path, query: object) -> None:
    told = json.loads((root / "bad" / "journal").read_bytes())
    (root / "bad" / "journal").write_text(json.dumps({**told, "folder": "x" * 5000}))


def other_id(root: Path, query: object) -> None:
    told = json.loads((root / "bad" / "journal").read_bytes())
    (root / "bad" / "journal").write_text(json.dumps({**told, "run_id": "another"}))


FILES = {
    function.__name__: function
    for function in (cut, link_to_itself, fifo, folder_link_to_itself, journal_link_to_itself, long_name, other_id)
}
PUT_THERE = (
    *(commit_without_end, commit_of_zeros, commit_device, commit_link),
    *(journal_fifo, journal_fifo_with_a_writer, journal_device, journal_without_end, folder_link),
)
"""What somebody else puts in a file's place, so that a reader waits or never ends."""
COLUMNS = {
    "tags": change("tags", "[]"),
    "waiting": change("waiting", TEXT),
    "live": change("live", "[[1]]"),
    "epoch": change("epoch", 2**63 - 2),
    "signals": change("signals", 2**63 - 1),
    "prompt": change("waiting", DEEP),
}
CASES: list[Any] = [
    *(pytest.param("file", damage, id=f"file {name}") for name, damage in FILES.items()),
    pytest.param("file", journal(b" "), id="file empty journal"),
    *(pytest.param("sqlite", damage, id=f"sqlite {name}") for name, damage in COLUMNS.items()),
    *(
        pytest.param("postgres", COLUMNS[name], id=f"postgres {name}")
        for name in ("tags", "waiting", "epoch", "prompt")
    ),
]


class Place:
    """A store, and a way to damage what it has."""

    def __init__(self, kind: str, damage: Callable[..., None], tmp_path: Path, request: pytest.FixtureRequest) -> None:
        self.kind, self._damage, self._path = kind, damage, tmp_path
        if kind == "postgres":
            self._dsn, self._database = request.getfixturevalue("postgres"), request.getfixturevalue("database")

    def open(self) -> Store:
        if self.kind == "postgres":
            from milepost.stores.postgres.store import PostgresStore

            return PostgresStore(self._dsn)
        return FileStore(self._path / "runs") if self.kind == "file" else SQLiteStore(self._path / "runs.db")

    def damage(self, run_id: str = "bad") -> None:
        if self.kind == "file":
            self._damage(self._path / "runs", None)
        else:
            query = functools.partial(self._query, run_id)
            self._damage("milepost.runs" if self.kind == "postgres" else "runs", query)

    def _query(self, run_id: str, text: str, value: Any) -> None:
        if self.kind == "postgres":
            self._database.query(text.replace("?", "%s"), value, run_id)
            return
        with closing(sqlite3.connect(self._path / "runs.db")) as connection, connection:
            connection.execute(text, (value, run_id))


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(*request.param, tmp_path, request)


@pytest.mark.parametrize(
    "place",
    [
        *(pytest.param(case.values, id=case.id) for case in CASES),
        *(pytest.param(("file", damage), id=f"file {damage.__name__}") for damage in PUT_THERE),
    ],
    indirect=True,
)
def test_a_run_that_cannot_be_read_is_named_and_deleted_and_stops_no_other(place: Place) -> None:
    with place.open() as store:
        for run_id in ("bad", "good 1", "good 2"):
            begin(store, run_id, status="ready")
    place.damage()
    with place.open() as store:
        shown = {info.run_id: info for info in store.list_runs()}
        assert {"bad", "good 1", "good 2"} == shown.keys()
        assert ("blocked", True) == (shown["bad"].status, "bad" in shown["bad"].reason)
        assert ["bad"] == [info.run_id for info in store.list_runs(status="blocked")]
        assert {"good 1", "good 2"} == {info.run_id for info in store.list_runs(status="ready")}
        assert 3 == sum(store.stats().runs.values())
        assert not store.verify("bad").ok
        taken = [token.run_id for _ in range(3) for token, _ in store.claim_due(["orders"], 1)]
        assert ["good 1", "good 2"] == taken
        with pytest.raises(StoreError, match="bad"):
            store.delete_run("bad")
        assert ("bad",) == store.prune(older_than=0, statuses="blocked", dry_run=True).deleted
        assert "bad" in {info.run_id for info in store.list_runs()}
        store.delete_run("bad", force=True)
        assert {"good 1", "good 2"} == {info.run_id for info in store.list_runs()}
        work(store, begin(store, "bad"), "a", release=Release("finished"))
        assert "finished" == store.get_run("bad").info.status
        assert store.verify("bad").ok


@pytest.mark.parametrize("place", [pytest.param(case.values, id=case.id) for case in CASES[::3]], indirect=True)
def test_blocked_runs_are_listed_with_those_that_cannot_be_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.stores.base.store._PAGE", 2)
    with place.open() as store:
        for run_id in ("blocked 1", "ready 1", "bad", "blocked 2", "failed", "ready 2", "ready 3"):
            status = "ready" if run_id == "bad" else run_id.split()[0]
            work(store, begin(store, run_id), release=Release(status))
    place.damage()
    with place.open() as store:
        listed = store.list_runs()
        blocked = [info.run_id for info in listed if info.status == "blocked"]
        assert {"blocked 1", "bad", "blocked 2"} == set(blocked)
        for limit in (1, 2, 3, 100):
            found: list[str] = []
            while page := store.list_runs(status="blocked", limit=limit, after=found[-1] if found else None):
                found += [info.run_id for info in page]
                assert len(page) == limit or found == blocked
            assert blocked == found
        ended = [info for info in listed if info.status in {"blocked", "failed"}]
        assert ended == store.list_runs(status=["blocked", "failed"])


@pytest.mark.parametrize("place", [pytest.param(case.values, id=case.id) for case in CASES[::3]], indirect=True)
def test_pruning_deletes_blocked_runs_that_cannot_be_read(place: Place) -> None:
    with place.open() as store:
        for run_id in ("bad", "ready", "blocked"):
            work(store, begin(store, run_id), "a", release=Release("blocked" if run_id == "blocked" else "ready"))
    place.damage()
    with place.open() as store:
        assert {"bad", "blocked"} == set(store.prune(older_than=0, statuses="blocked").deleted)
        assert ["ready"] == [info.run_id for info in store.list_runs()]


class Failing(MemoryStore):
    """Can't look at the records of `bad`."""

    def _guard(self, tx: Transaction) -> DecodingTransaction:
        newest = tx.newest

        def asked(run_id: str) -> int:
            if run_id.startswith("bad"):
                raise OverflowError("a number is too large")
            return newest(run_id)

        tx.newest = asked  # type: ignore[method-assign]
        return super()._guard(tx)


def test_a_run_that_cannot_be_claimed_is_named_once_and_takes_no_other_along(caplog: pytest.LogCaptureFixture) -> None:
    with Failing() as store, caplog.at_level(logging.WARNING, "milepost"):
        for run_id in ("bad 1", "good 1", "bad 2", "good 2"):
            begin(store, run_id, status="ready")
        taken = [token.run_id for _ in range(3) for token, _ in store.claim_due(["orders"], 1)]
    assert ["good 1", "good 2"] == taken
    assert ["bad 1", "bad 2"] == [record.run_id for record in caplog.records]  # type: ignore[attr-defined]


@for_each("field", ["epoch", "sequence", "signals", "crash_count", "crashed_at"])
def test_an_import_takes_no_number_that_a_store_cannot_count_on_from(field: str) -> None:
    with MemoryStore() as store:
        begin(store, "r", status="ready")
        first, *rest = store.export("r").split(b"\n")
        for number in (2**62, 2**63 - 1, 2**64):
            told = json.loads(first)
            told["run"][field] = number
            with pytest.raises(CheckpointCorruptError, match="line 1"):
                store.import_run(b"\n".join([json.dumps(told).encode(), *rest]), run_id="s")
        assert ["r"] == [info.run_id for info in store.list_runs()]


def test_an_import_takes_no_text_that_would_make_every_list_slow() -> None:
    with MemoryStore() as store:
        begin(store, "r", status="ready")
        first, *rest = store.export("r").split(b"\n")
        long, moment = "x" * 3000, "2026-01-01T00:00:00.000000Z"
        wait = {"wait_id": "w#1", "signal": "go", "prompt": "", "wake_at": None, "since": moment}
        refused = {"text": long, "time": moment, "by": None}
        waits = [{**wait, "wait_id": long}, {**wait, "signal": long}, {**wait, "refused": refused}]
        for change in ({"flow": long}, {"missed": [long]}, *({"waiting": [changed]} for changed in waits)):
            told = {"run": {**json.loads(first)["run"], **change}}
            with pytest.raises(CheckpointCorruptError, match="has 3000 bytes: at most 2048 are taken"):
                store.import_run(b"\n".join([json.dumps(told).encode(), *rest]), run_id="s")


def test_an_import_takes_no_record_whose_number_leaves_no_room(tmp_path: Path) -> None:
    with MemoryStore() as store:
        begin(store, "r", status="ready")
        row = json.loads(store.export("r").split(b"\n")[0])
    fields = {"verb": "delete", "epoch": 1, "removed": 2**63}
    lines = [
        make_record("r", 0, "2026-01-01T00:00:00.000000Z", "start", fields={"flow": "orders"}),
        make_record("r", 1, "2026-01-01T00:00:00.000000Z", "owner", fields=fields),
        make_record("r", 2**63 - 1, "2026-01-01T00:00:00.000000Z", "checkpoint", "a", state=b"{}"),
    ]
    with SQLiteStore(tmp_path / "runs.db") as store, MemoryStore() as sealing:
        data = [json.dumps(row).encode(), *(sealing._sealed("r", "", line, "", "").envelope() for line in lines)]
        with pytest.raises(CheckpointCorruptError, match="line 4"):
            store.import_run(b"\n".join(data))


def forged(line: bytes, name: str, value: Any) -> bytes:
    """A line of an export with another value in the record, sealed as anybody can who has no key."""
    told = json.loads(line)
    if "saved" in told:
        told["saved"] |= {name: value}
        return json.dumps(told).encode()
    header = told.get("header", told)
    state = header.pop("state", None)
    header.pop("seal")
    header[name] = value
    header["seal"] = Seals().seal_of(json.dumps(header, separators=(",", ":")).encode()[:-1]).decode()
    if "header" not in told and state is not None:
        told["state"] = state
    return json.dumps(told, separators=(",", ":")).encode()


FORGED = {
    "no number": ("sequence", None),
    "no visit": ("visit", None),
    "no node": ("node_id", None),
    "no kind": ("kind", None),
    "no run": ("run_id", None),
    "no link": ("prev", None),
    "a link that ends the header": ("prev", 'sha256:0","seal":"sha256:0'),
    "a link with a line break": ("prev", "sha256:0\n"),
    "a long link": ("prev", "sha256:" + "0" * 1000),
    "a gap with such a link": ("gap", [1, 'sha256:0"],"node_id":["']),
    "a gap without a number": ("gap", [None, ""]),
}


@pytest.mark.parametrize(("name", "value"), FORGED.values(), ids=FORGED.keys())
def test_an_import_takes_only_a_place_and_links_that_it_keeps_as_they_are(name: str, value: Any) -> None:
    with MemoryStore() as store, MemoryStore() as other:
        token = begin(store, "r")
        write(store, token, checkpoint("r", 1, "a"), checkpoint("r", 2, "b"))
        write(store, token, checkpoint("r", 3, "b", visit=2, state=b'{"n": 1}'))
        store.release(token, Release("interrupted"))
        store.delete("r", "a")
        store.save("r", "c", b"anything")
        lines = store.export("r").strip().split(b"\n")
        for number, line in [*enumerate(lines)][1:]:
            # A record of the store's own has a kind and a gap in this form, one from outside has neither.
            if b'"saved"' in line and name in {"kind", "gap"}:
                continue
            changed = [*lines[:number], forged(line, name, value), *lines[number + 1 :]]
            with pytest.raises(CheckpointCorruptError, match=f"line {number + 1} of the run to import"):
                other.import_run(b"\n".join(changed))
        assert other.import_run(b"\n".join(lines)) == "r"


@pytest.mark.parametrize("place", [CASES[9].values], ids=["sqlite"], indirect=True)
async def test_runs_that_are_written_together_with_one_that_cannot_be_read_go_on(place: Place) -> None:
    is_damaged = asyncio.Event()
    runs = ["bad", *(f"good {number}" for number in range(6))]
    at_work: set[str] = set()

    async def meet(ctx: Context, state: dict[str, int]) -> dict[str, int]:
        at_work.add(ctx.run_id)
        if len(at_work) == len(runs):
            place.damage()
            is_damaged.set()
        await is_damaged.wait()
        return state

    graph = Graph(dict).add_node("a", meet).add_edge("a", END).set_entry("a").compile("g")
    with place.open() as store:
        ended = await asyncio.gather(
            *(graph.arun({"n": 1}, store=store, run_id=run_id) for run_id in runs), return_exceptions=True
        )
        assert isinstance(ended[0], StoreError)
        assert [{"n": 1}] * 6 == ended[1:]
        assert {"finished"} == {info.status for info in store.list_runs() if info.run_id != "bad"}
        assert 6 == len(store.list_runs(status="finished"))


@pytest.mark.parametrize("place", [CASES[9].values], ids=["sqlite"], indirect=True)
async def test_a_run_that_cannot_be_read_keeps_no_other_from_being_cancelled(place: Place) -> None:
    asked: list[str] = []
    runs = ["bad", "good 1", "good 2"]
    at_work: set[str] = set()
    is_asked = asyncio.Event()

    async def meet(ctx: Context, state: dict[str, int]) -> dict[str, int]:
        at_work.add(ctx.run_id)
        if len(at_work) == len(runs):
            place.damage()
            asked.extend(await engine.acancel_all("enough"))
            is_asked.set()
        await is_asked.wait()
        return state

    graph = Graph(dict).add_node("a", meet).add_edge("a", END).set_entry("a").compile("g")
    with place.open() as store, Engine(store, flows=[graph]) as engine:
        await asyncio.gather(*(engine.arun(graph, {}, run_id=run_id) for run_id in runs), return_exceptions=True)
        assert runs[1:] == asked
        assert set(runs[1:]) == {info.run_id for info in engine.list_runs(status="cancelled")}


@pytest.mark.parametrize("place", [CASES[9].values], ids=["sqlite"], indirect=True)
def test_a_schedule_whose_run_cannot_be_read_keeps_no_other_run_waiting(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    clock.set(datetime(2026, 3, 1, 5, 59, 30, tzinfo=UTC))

    def pass_a_minute(state: dict[str, int]) -> dict[str, int]:
        clock.advance(60)
        return state

    graph = Graph(dict).add_node("a", pass_a_minute).add_edge("a", END).set_entry("a").compile("g")
    with place.open() as store, Engine(store, flows=[graph], clock=clock) as engine:
        for run_id in ("first", "second", "bad@2026-03-01T06:00:00Z"):
            engine.start(graph, {}, run_id=run_id)
        place.damage("bad@2026-03-01T06:00:00Z")
        worker = engine.worker(concurrency=1).every("bad", graph.bind({}), "0 6 * * *")
        worker.run(until_idle=True)
        statuses = [info.status for info in engine.list_runs()]
    assert ["blocked", "finished", "finished"] == statuses
    assert 1 == len([record for record in caplog.records if "schedule 'bad'" in record.getMessage()])


def test_a_worker_goes_on_with_the_others_beside_a_damaged_row(tmp_path: Path) -> None:
    graph = Graph(dict).add_node("a", lambda state: state).add_edge("a", END).set_entry("a").compile("g")
    place = tmp_path / "runs.db"
    with SQLiteStore(place) as store, Engine(store, flows=[graph]) as engine:
        for run_id in ("bad", "good 1", "good 2"):
            engine.start(graph, {}, run_id=run_id)
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("UPDATE runs SET tags = ? WHERE run_id = 'bad'", (TEXT,))
    with SQLiteStore(place) as store, Engine(store, flows=[graph]) as engine:
        engine.worker(concurrency=1).run(until_idle=True)
        statuses = {info.run_id: info.status for info in engine.list_runs()}
    assert {"bad": "blocked", "good 1": "finished", "good 2": "finished"} == statuses


def test_a_row_that_only_looks_due_hides_no_other(tmp_path: Path) -> None:
    graph = Graph(dict).add_node("a", lambda state: state).add_edge("a", END).set_entry("a").compile("flow")
    with SQLiteStore(tmp_path / "runs.db") as store, Engine(store, flows=[graph]) as engine:
        for name in ("bad", "worse", "good", "better"):
            engine.start(graph, {}, run_id=name)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
            connection.execute("UPDATE runs SET owner = 'junk' WHERE run_id IN ('bad', 'worse')")
        engine.worker().run(until_idle=True)
        assert ["finished", "finished"] == [store.get_run(name).info.status for name in ("good", "better")]
