"""What is special to the SQLite store: its file, its connections, its commits. The rest is in the contract."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milepost import END, Graph
from milepost.errors import OptionError, RunStopped, StoreClosedError, StoreError, StoreVersionError
from milepost.model.record import Record, make_record
from milepost.store import Append, Claim, NewRun, Release, Token
from milepost.stores.sqlite import schema as sqlite_schema
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing import journals

TIME = "2025-12-20T15:30:00.000000Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(path) as store:
        yield store


def begin(store: SQLiteStore, run_id: str = "r") -> Token:
    start = make_record(run_id, 0, TIME, "start", state=b"{}")
    return store.create(NewRun(run_id, "flow", f"nonce of {run_id}", start, 30.0, {}))


def checkpoint(run_id: str, sequence: int, node_id: str = "a", state: bytes = b'{"n":1}') -> Record:
    fields = {"next_node": "b"}
    return make_record(run_id, sequence, TIME, "checkpoint", node_id, sequence, state=state, fields=fields)


def write(store: SQLiteStore, token: Token, *records: Record) -> str:
    return store.append([Append(token, records)])[0].outcome


def shell(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def in_child(work: Any) -> int:
    """The exit status of a forked child that does `work`: 0 unless it raised."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


# -- the file ----------------------------------------------------------------------------------------


def test_only_the_owner_may_read_the_files(store: SQLiteStore, path: Path) -> None:
    begin(store)
    files = sorted(path.parent.iterdir())
    assert ["runs.db", "runs.db-shm", "runs.db-wal"] == [file.name for file in files]
    assert {0o600} == {stat.S_IMODE(file.stat().st_mode) for file in files}


def test_a_place_below_a_file_is_named_and_leaves_no_handle_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "no").touch()
    for _ in range(10):
        with pytest.raises(StoreError, match=str(tmp_path / "no" / "runs.db")):
            SQLiteStore(tmp_path / "no" / "runs.db")
    assert len(os.listdir("/proc/self/fd")) <= before  # less where what earlier tests left is closed meanwhile


@pytest.mark.parametrize("name", ["x" * 253, "y" * 300, "file/runs.db"])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_name_that_no_file_can_have_is_a_store_error(tmp_path: Path, name: str, is_read_only: bool) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=name):
        SQLiteStore(tmp_path / name, read_only=is_read_only)


def test_a_file_that_is_no_database_is_a_store_error(path: Path) -> None:
    path.write_bytes(b"not a database, but a file that has some length" * 100)
    with pytest.raises(StoreError) as caught:
        SQLiteStore(path)
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert (str(path), "open") == (caught.value.store, caught.value.op)


def test_closing_leaves_no_handle_open(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with SQLiteStore(path) as store:
            store.save("r", "a", b"1")
            store.load("r", "a")
    assert len(os.listdir("/proc/self/fd")) <= before  # less where what earlier tests left is closed meanwhile


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SQLiteStore("runs.db") as store:
        monkeypatch.chdir("/")
        store.save("r", "a", b"1")
        assert b"1" == store.load("r", "a")
        assert str(tmp_path / "runs.db") == store.place


@pytest.mark.parametrize("target", ["empty", "missing", "filled"])
def test_a_link_to_the_file_opens_the_same_store(tmp_path: Path, target: str) -> None:
    file, link = tmp_path / "data" / "runs.db", tmp_path / "runs.db"
    file.parent.mkdir()
    link.symlink_to("data/runs.db")
    if target == "empty":
        file.touch()
    elif target == "filled":
        SQLiteStore(file).close()
    with SQLiteStore(link) as store, SQLiteStore(file) as other:
        begin(store)
        assert str(file) == store.place
        assert ["r"] == [info.run_id for info in other.list_runs()]
        with SQLiteStore(link, read_only=True) as looking:
            assert ["r"] == [info.run_id for info in looking.list_runs()]
    assert [file.parent, link] == sorted(tmp_path.iterdir())


def test_a_link_of_somebody_who_only_shares_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, link = tmp_path / "theirs.db", tmp_path / "runs.db"
    file.touch()
    link.symlink_to(file)
    original = os.lstat
    foreign = SimpleNamespace(st_uid=os.geteuid() + 1, st_mode=link.lstat().st_mode)
    monkeypatch.setattr(os, "lstat", lambda path: foreign if path == str(link) else original(path))
    for is_read_only in (False, True):
        with pytest.raises(StoreError, match=f"{link} is a link of user"):
            SQLiteStore(link, read_only=is_read_only)
    assert 0 == file.stat().st_size


def test_a_file_of_a_newer_release_is_refused(store: SQLiteStore, path: Path) -> None:
    store.close()
    shell(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreVersionError, match="upgrade") as caught:
        SQLiteStore(path)
    assert (99, sqlite_schema.VERSION) == (caught.value.found, caught.value.supported)


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
def test_durability_is_the_level_of_syncing(path: Path, durability: Any, level: int) -> None:
    with SQLiteStore(path, durability=durability) as store:
        assert level == store._open().execute("PRAGMA synchronous").fetchone()[0]
        assert "wal" == store._open().execute("PRAGMA journal_mode").fetchone()[0]


def test_another_durability_is_refused(path: Path) -> None:
    with pytest.raises(OptionError):
        SQLiteStore(path, durability="off")  # type: ignore[arg-type]
    assert not path.exists()


def test_memory_is_one_database_for_all_threads() -> None:
    with SQLiteStore(":memory:") as store:
        threads = [threading.Thread(target=store.save, args=(f"r{i}", "a", b"1")) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 8 == len(store.list_runs())


def test_a_closed_store_says_so(store: SQLiteStore) -> None:
    token = begin(store)
    store.close()
    for call in (lambda: write(store, token, checkpoint("r", 1)), lambda: store.load("r", "a"), store.list_runs):
        with pytest.raises(StoreClosedError):
            call()


# -- what people see ---------------------------------------------------------------------------------


def test_the_view_checkpoints_has_the_newest_live_state_of_each_node(store: SQLiteStore, path: Path) -> None:
    token = begin(store)
    write(store, token, checkpoint("r", 1, "a"), checkpoint("r", 2, "b"), checkpoint("r", 3, "a"))
    store.release(token, Release("interrupted"))
    store.save("r", "c", b"\xff\x00any")
    rows = shell(path, "SELECT run_id, node_id, sequence, timestamp, data FROM checkpoints")
    assert [("r", "b", 2, TIME), ("r", "a", 3, TIME)] == [row[:4] for row in rows[:2]]
    assert [store.load("r", node) for node in ("b", "a", "c")] == [row[4] for row in rows]


def test_the_view_checkpoints_leaves_out_what_is_superseded(store: SQLiteStore, path: Path) -> None:
    token = begin(store)
    write(store, token, checkpoint("r", 1, "a"), checkpoint("r", 2, "a"), checkpoint("r", 3, "b"))
    owner = make_record("r", 4, TIME, "owner", fields={"verb": "resume_from"})
    live = (("", 0, 1), ("", 4, None))
    assert store.claim(Claim("r", 3, 2, "m", owner, 30.0, takeover=True, live=live)).token is not None
    assert [("a", 1)] == shell(path, "SELECT node_id, sequence FROM checkpoints")
    assert [("a", 1)] == [(info.node_id, info.sequence) for info in store.list("r")]


def test_a_packed_state_has_no_data_in_the_view(store: SQLiteStore, path: Path) -> None:
    token = begin(store)
    state = b'"' + b"x" * 2_000_000 + b'"'
    write(store, token, checkpoint("r", 1, "a", state))
    assert [(None,)] == shell(path, "SELECT data FROM checkpoints")
    assert json.loads(store.load("r", "a"))["compressed"]
    assert [2_000_002] == [info.size for info in store.list("r")]


def test_headers_are_json_for_the_shell(store: SQLiteStore, path: Path) -> None:
    write(store, begin(store), checkpoint("r", 1))
    query = "SELECT sequence, json_extract(header, '$.next_node') FROM journal WHERE kind = 'checkpoint'"
    assert [(1, "b")] == shell(path, query)


def test_a_damaged_record_is_found_by_verify_and_hides_no_other(store: SQLiteStore, path: Path) -> None:
    write(store, begin(store), checkpoint("r", 1, "a"), checkpoint("r", 2, "b"), checkpoint("r", 3, "c"))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE records SET header = CAST(x'ff7b00' AS TEXT) WHERE sequence = 1")
    connection.execute("UPDATE records SET payload = x'31' WHERE sequence = 2")
    connection.close()
    assert ["a", "b", "c"] == [info.node_id for info in store.list("r")]
    assert 2 == len(store.verify("r").problems)
    assert b'"n":1' in store.load("r", "c")


@pytest.mark.parametrize("change", ["DELETE FROM signals WHERE number = 1", "UPDATE runs SET signals = 3"])
def test_signals_that_vanished_are_found_by_verify(store: SQLiteStore, path: Path, change: str) -> None:
    begin(store, "r")
    for _ in range(2):
        store.put_signal("r", "go", None)
    assert store.verify("r").ok
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    (problem,) = store.verify("r").problems
    assert "signals" in problem


def test_records_that_vanished_are_found_by_verify(store: SQLiteStore, path: Path) -> None:
    token = begin(store)
    write(store, token, *(checkpoint("r", i) for i in range(1, 6)))
    store.release(token, Release("interrupted"))
    assert store.verify("r").ok
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("DELETE FROM records WHERE sequence IN (2, 5)")
    connection.close()
    assert ["record 2 is missing", "the journal ends at record 4"] == [
        problem.split(",")[0] for problem in store.verify("r").problems
    ]


# -- files of the first form ---------------------------------------------------------------------------


def make_first_form(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        "CREATE TABLE checkpoints (run_id TEXT NOT NULL, node_id TEXT NOT NULL, sequence INTEGER NOT NULL, "
        "timestamp TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (run_id, node_id))"
    )
    connection.execute("CREATE INDEX idx_checkpoints_run_id ON checkpoints(run_id)")
    connection.executemany(
        "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)",
        [
            ("r", "b", 5, "2025-12-20T15:30:00.123456789Z", b'{"next_node":"c"}'),
            ("r", "a", 2, "2025-12-20T15:29:00Z", b"\xff"),
            ("s", "a", 1, "nonsense", "text"),
        ],
    )
    connection.close()


def test_a_file_of_the_first_form_becomes_runs_once(path: Path) -> None:
    make_first_form(path)
    for _ in range(2):
        with SQLiteStore(path) as store:
            assert [("a", 1), ("b", 2)] == [(info.node_id, info.sequence) for info in store.history("r")]
            assert "2025-12-20T15:30:00.123456+00:00" == store.list("r")[1].timestamp.isoformat()
            assert (b"\xff", b"text") == (store.load("r", "a"), store.load("s", "a"))
            row = store.get_run("r")
            assert ("interrupted", "c", "") == (row.info.status, row.info.next_node, row.info.flow)
            assert store.verify("r").ok
    assert [(3,)] == shell(path, "SELECT count(*) FROM checkpoints_v0")


def test_a_row_of_the_first_form_that_is_no_text_stays_there_and_stops_no_other(path: Path) -> None:
    make_first_form(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO checkpoints VALUES (CAST(x'ff' AS TEXT), 'a', 1, CAST(x'ff' AS TEXT), x'00')")
    with SQLiteStore(path) as store:
        assert {"r", "s"} == {info.run_id for info in store.list_runs()}


def test_the_first_form_of_a_failed_set_up_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_first_form(path)

    def fail(*args: object) -> None:
        raise sqlite3.OperationalError("stopped")

    monkeypatch.setattr(SQLiteStore, "_take_over", fail)
    with pytest.raises(StoreError, match="stopped"):
        SQLiteStore(path)
    monkeypatch.undo()
    with SQLiteStore(path) as store:
        assert 2 == len(store.list_runs())


# -- commits -------------------------------------------------------------------------------------------


def test_threads_that_append_at_once_share_commits(store: SQLiteStore) -> None:
    tokens = [begin(store, f"r{i}") for i in range(8)]
    with store._group.lock:
        threads = [threading.Thread(target=write, args=(store, token, checkpoint(token.run_id, 1))) for token in tokens]
        for thread in threads:
            thread.start()
        while len(store._group) < len(threads):
            pass
        assert all(len(store.read(token.run_id)) == 1 for token in tokens)
    commits = count_commits(store)
    store._group.wake_first()
    for thread in threads:
        thread.join()
    assert 1 == len(commits)
    assert all(len(store.read(token.run_id)) == 2 for token in tokens)


def count_commits(store: SQLiteStore) -> list[str]:
    commits: list[str] = []
    store._open().set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)
    return commits


def test_one_bad_append_among_many_hurts_nobody_else(store: SQLiteStore) -> None:
    tokens = [begin(store, f"r{i}") for i in range(6)]
    bad = checkpoint("r3", 1)._replace(visit=1 << 70)
    outcomes: dict[str, str] = {}

    def work(token: Token) -> None:
        record = bad if token.run_id == "r3" else checkpoint(token.run_id, 1)
        try:
            outcomes[token.run_id] = write(store, token, record)
        except Exception as exc:
            outcomes[token.run_id] = type(exc).__name__

    with store._group.lock:
        threads = [threading.Thread(target=work, args=(token,)) for token in tokens]
        for thread in threads:
            thread.start()
        while len(store._group) < len(threads):
            pass
    store._group.wake_first()
    for thread in threads:
        thread.join()
    assert "OverflowError" == outcomes.pop("r3")
    assert {"written"} == set(outcomes.values())
    assert 5 == len(outcomes)


def test_a_leader_that_is_stopped_leaves_the_others_going(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [begin(store, f"r{i}") for i in range(4)]
    stopped: list[str] = []
    outcomes: list[str] = []
    whole = SQLiteStore._append_fast

    def interrupt_once(self: SQLiteStore, *args: Any) -> bool:
        if not stopped:
            stopped.append(threading.current_thread().name)
            raise KeyboardInterrupt
        return whole(self, *args)

    def work(token: Token) -> None:
        try:
            outcomes.append(write(store, token, checkpoint(token.run_id, 1)))
        except KeyboardInterrupt:
            outcomes.append("stopped")

    monkeypatch.setattr(SQLiteStore, "_append_fast", interrupt_once)
    with store._group.lock:
        threads = [threading.Thread(target=work, args=(token,)) for token in tokens]
        for thread in threads:
            thread.start()
        while len(store._group) < len(threads):
            pass
    store._group.wake_first()
    for thread in threads:
        thread.join()
    assert ["stopped", "written", "written", "written"] == sorted(outcomes)
    assert 3 == sum(len(store.read(token.run_id)) - 1 for token in tokens)


@pytest.mark.parametrize("numbers", [(1,), (1, 2)])
def test_who_is_interrupted_as_a_transaction_begins_leaves_none_open(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...]
) -> None:
    token = begin(store)
    group = [Append(token, (checkpoint("r", number),)) for number in numbers]

    class Interrupted:
        """Whose statement is carried out, but is not known to have been."""

        def __init__(self, real: Any) -> None:
            self.real = real

        def execute(self, *args: Any) -> None:
            self.real.execute(*args)
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    for write_all in (lambda: store.save("s", "a", b"1"), lambda: store.append(group)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            for name in ("_writer", "_inserter"):
                patch.setattr(store, name, Interrupted(getattr(store, name)))
            write_all()
    assert not store._writer.in_transaction  # type: ignore[union-attr]
    store.save("s", "a", b"2")
    assert b"2" == store.load("s", "a")


def test_a_lone_append_is_one_statement(store: SQLiteStore) -> None:
    token = begin(store)
    write(store, token, checkpoint("r", 1))
    statements: list[str] = []
    store._open().set_trace_callback(statements.append)
    write(store, token, checkpoint("r", 2))
    assert 1 == len(statements)


def test_a_release_reads_the_row_once(store: SQLiteStore) -> None:
    token = begin(store)
    statements: list[str] = []
    store._open().set_trace_callback(statements.append)
    assert "written" == store.release(token, Release("interrupted")).outcome
    assert 1 == sum(text.startswith("SELECT") and " FROM runs " in text for text in statements)


def test_records_from_before_there_was_a_key_are_read_without_a_query_for_each(path: Path) -> None:
    with SQLiteStore(path) as plain:
        token = begin(plain)
        for number in range(1, 50):
            write(plain, token, checkpoint("r", number))
    with SQLiteStore(path, signing_key={"s": b"signing key, 24 bytes..."}, allow_unsealed=True) as lenient:
        lenient.read("r", limit=1)
        statements: list[str] = []
        assert lenient._reader is not None
        lenient._reader.set_trace_callback(statements.append)
        assert 50 == len(lenient.read("r"))
    assert len(statements) < 10


def test_a_resume_reads_row_point_nodes_and_start_then_claims_in_one_transaction(store: SQLiteStore) -> None:
    graph: Graph[dict[str, Any]] = Graph(dict)
    graph.add_node("work", lambda state: state).set_entry("work")
    graph.add_conditional_edge("work", lambda state: "work", ["work", END])
    loop = graph.compile()
    with pytest.raises(RunStopped):
        loop.run({}, store=store, run_id="r", stop_after="work")
    store.get_run("r")
    statements: list[str] = []
    assert store._reader is not None
    here = threading.get_ident()

    def note(text: str) -> None:
        if threading.get_ident() == here:  # threads that renew leases have statements of their own
            statements.append(text)

    for connection in (store._open(), store._reader):
        connection.set_trace_callback(note)
    with pytest.raises(RunStopped):
        loop.resume(store, "r", stop_after="work")
    words = [text.split()[0] for text in statements]
    read, claimed = words[: words.index("COMMIT")], words[words.index("COMMIT") + 1 :]
    assert [
        "BEGIN",
        "SELECT",
        "SELECT",
        "WITH",
        "SELECT",
    ] == read  # the row, the point and what follows, its nodes, the start
    assert ["BEGIN", "SELECT", "SELECT"] == claimed[:3]  # the row and the newest record
    assert claimed.index("INSERT") < claimed.index("COMMIT")
    assert [1, 2] == [record.visit for record in store.read("r", kinds=("checkpoint",))]


def test_the_leases_of_many_runs_are_renewed_in_one_statement(store: SQLiteStore) -> None:
    tokens = [begin(store, f"r{number}") for number in range(50)]
    store.request_cancel("r7", "stop")
    statements: list[str] = []
    store._open().set_trace_callback(statements.append)
    assert ["stop" if number == 7 else None for number in range(50)] == [kept.cancel for kept in store.renew(tokens)]
    assert ["BEGIN", "UPDATE", "COMMIT"] == [statement.split()[0] for statement in statements]


def test_open_cancels_of_many_runs_are_looked_for_in_one_statement(store: SQLiteStore) -> None:
    tokens = [begin(store, f"r{number}") for number in range(50)]
    for run_id in ("r7", "r9"):
        store.request_cancel(run_id, f"stop {run_id}")
    store.get_run("r1")
    statements: list[str] = []
    assert store._reader is not None
    store._reader.set_trace_callback(statements.append)
    found = store.cancels([*(token.run_id for token in tokens), "of nobody"])
    assert {"r7": "stop r7", "r9": "stop r9"} == found
    assert ["BEGIN", "SELECT", "COMMIT"] == [statement.split()[0] for statement in statements]


def test_the_renewal_of_a_stale_token_beside_the_current_one_of_its_run_is_lost(store: SQLiteStore) -> None:
    stale, other = begin(store), begin(store, "other")
    owner = make_record("r", 1, TIME, "owner", fields={"verb": "resume"})
    current = store.claim(Claim("r", 0, 2, "m", owner, 30.0, takeover=True)).token
    assert current is not None
    outcomes = [renewal.outcome for renewal in store.renew([stale, current, other, Token("of nobody", 1, "n", "me")])]
    assert ["lost", "kept", "kept", "lost"] == outcomes


def test_a_number_that_was_deleted_is_still_taken(store: SQLiteStore) -> None:
    token = begin(store)
    write(store, token, checkpoint("r", 1, "a"), checkpoint("r", 2, "b"))
    store.delete("r", "b", force=True)
    owner = make_record("r", 4, TIME, "owner", fields={"verb": "resume"})
    claimed = store.claim(Claim("r", 3, 3, "m", owner, 30.0)).token
    assert claimed is not None
    assert "taken" == write(store, claimed, checkpoint("r", 2, "b"))
    assert "gap" == write(store, claimed, checkpoint("r", 6, "b"))
    assert "written" == write(store, claimed, checkpoint("r", 5, "b"))


def test_reading_does_not_wait_for_a_writer(store: SQLiteStore, path: Path) -> None:
    begin(store)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        assert "running" == store.get_run("r").info.status
        assert 1 == len(store.list_runs())
    finally:
        other.close()


def test_the_log_stays_short(path: Path) -> None:
    with SQLiteStore(path, durability="normal") as store:
        token = begin(store)
        for i in range(1, 3000):
            write(store, token, checkpoint("r", i, state=b'"' + b"x" * 1000 + b'"'))
        assert 8 * 1024 * 1024 > path.with_name("runs.db-wal").stat().st_size
        assert 1024 * 1024 < path.stat().st_size
        assert store.verify("r").ok


def test_the_log_stays_as_short_if_several_write(path: Path) -> None:
    # Each of them has counted what it has itself written; the log became four times as long, and grew at half of the commits.
    with ExitStack() as stack:
        stores = [stack.enter_context(SQLiteStore(path, durability="normal")) for _ in range(4)]
        tokens = [begin(store, f"r{number}") for number, store in enumerate(stores)]
        longest = 0
        for i in range(1, 600):
            for store, token in zip(stores, tokens, strict=True):
                write(store, token, checkpoint(token.run_id, i, state=b'"' + b"x" * 1000 + b'"'))
            longest = max(longest, path.with_name("runs.db-wal").stat().st_size)
        assert 4 * 1024 * 1024 < longest < 6 * 1024 * 1024
        assert 599 == stores[0].latest("r3").newest


def test_a_reader_in_the_way_only_puts_off_the_moving_of_the_log(path: Path) -> None:
    with SQLiteStore(path, durability="normal") as store:
        token = begin(store)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchone()
        for i in range(1, 600):
            assert "written" == write(store, token, checkpoint("r", i, state=b'"' + b"x" * 1000 + b'"'))
        reader.close()
        for i in range(600, 1200):
            assert "written" == write(store, token, checkpoint("r", i, state=b'"' + b"x" * 1000 + b'"'))
        assert 1024 * 1024 < path.stat().st_size


def test_a_full_disk_is_a_store_error_and_nothing_of_it_is_written(store: SQLiteStore) -> None:
    import resource
    import signal

    token = begin(store)

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        mine = begin(store, "child")
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        written = 0
        with pytest.raises(StoreError):
            while True:
                assert "written" == write(store, mine, checkpoint("child", written + 1, state=b'"%s"' % (b"x" * 9000)))
                written += 1
        assert written == store.get_run("child").info.sequence
        assert store.verify("child").ok

    assert 0 == in_child(fill)
    assert store.verify("child").ok
    assert "written" == write(store, token, checkpoint("r", 1))


# -- forks ---------------------------------------------------------------------------------------------


def test_a_forked_child_has_connections_of_its_own_and_no_tokens(store: SQLiteStore) -> None:
    token = begin(store)

    def work() -> None:
        assert "lost" == write(store, token, checkpoint("r", 1))
        assert "live" == store.get_run("r").lease
        store.save("child", "a", b"1")
        assert b"1" == store.load("child", "a")

    assert 0 == in_child(work)
    assert b"1" == store.load("child", "a")
    assert "ours" == store.get_run("r").lease
    assert "written" == write(store, token, checkpoint("r", 1))


def test_what_a_child_wrote_survives_the_end_of_its_parents_connections(path: Path) -> None:
    store = SQLiteStore(path)
    begin(store)
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        store.save("child", "a", b"1")
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        store.save("child", "b", b"2")
        os._exit(0)
    os.read(ready[0], 1)
    store.close()
    os.write(go[1], b"x")
    assert 0 == os.waitpid(pid, 0)[1]
    with SQLiteStore(path) as again:
        assert ["a", "b"] == [info.node_id for info in again.list("child")]


def test_memory_does_not_reach_a_forked_child() -> None:
    with SQLiteStore(":memory:") as store:
        store.save("r", "a", b"1")

        def work() -> None:
            with pytest.raises(StoreClosedError):
                store.load("r", "a")

        assert 0 == in_child(work)
        assert b"1" == store.load("r", "a")


def test_odd_rows_of_the_first_form_are_taken_over_as_far_as_that_is_possible(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        "CREATE TABLE Checkpoints (run_id TEXT, node_id TEXT, sequence INTEGER, timestamp TEXT, data BLOB)"
    )
    connection.executemany(
        "INSERT INTO Checkpoints VALUES (?, ?, ?, ?, ?)",
        [
            ("r", "later", 2, "2025-12-20 15:30:00", 5),
            ("r", "first", 2, 1_766_244_600, None),
            ("r", "zero", None, None, 1.5),
            ("r", "text", "x", b"\xff", "ü"),
            (None, "a", 1, "2025-12-20T15:29:00Z", b"1"),
            (b"\xff", "a", 1, "2025-12-20T15:29:00Z", b"1"),
            ("", "a", 1, "2025-12-20T15:29:00Z", b"1"),
            ("r", "x" * 600, 1, "2025-12-20T15:29:00Z", b"1"),
        ],
    )
    connection.close()
    with SQLiteStore(path) as store:
        assert ["zero", "later", "first", "text"] == [info.node_id for info in store.history("r")]
        assert [b"1.5", b"5", b"", "ü".encode()] == [store.load("r", i.node_id) for i in store.history("r")]
        assert 1 == len({info.timestamp for info in store.history("r")[1:3]})
        assert ["r"] == [info.run_id for info in store.list_runs()]
        assert store.verify("r").ok
    assert "4 rows" in caplog.text
    assert [(8,)] == shell(path, "SELECT count(*) FROM checkpoints_v0")


def test_a_table_of_the_first_form_may_be_without_rowid(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        "CREATE TABLE checkpoints (run_id TEXT, node_id TEXT, sequence INTEGER, timestamp TEXT, data BLOB, "
        "PRIMARY KEY (run_id, node_id)) WITHOUT ROWID"
    )
    connection.execute("INSERT INTO checkpoints VALUES ('r', 'a', 1, '2025-12-20T15:29:00Z', 'data')")
    connection.close()
    with SQLiteStore(path) as store:
        assert b"data" == store.load("r", "a")


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_file_beside_the_database_that_is_a_link_is_left_alone(
    tmp_path: Path, suffix: str, link: Callable[..., None], is_read_only: bool
) -> None:
    path, victim = tmp_path / "runs.db", tmp_path / "victim"
    SQLiteStore(path).close()
    path.chmod(0o666)
    victim.write_text("it is mine")
    victim.chmod(0o600)
    link(victim, f"{path}{suffix}")
    with pytest.raises(StoreError, match=f"runs.db{suffix}"):
        SQLiteStore(path, read_only=is_read_only)
    assert ("it is mine", 0o600) == (victim.read_text(), stat.S_IMODE(victim.stat().st_mode))


def test_all_who_may_write_the_database_may_write_its_log(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStore(path) as store:
        begin(store, "r")
        path.chmod(0o660)
        with SQLiteStore(path) as other:
            assert "r" == other.get_run("r").info.run_id
            modes = [stat.S_IMODE(os.stat(f"{path}{suffix}").st_mode) for suffix in ("-wal", "-shm")]
    assert [0o620, 0o620] == modes


FOREIGN = {
    "trigger": "CREATE TRIGGER watch AFTER UPDATE ON runs BEGIN SELECT randomblob(1000000000); END",
    "trigger of ours": "DROP TRIGGER run_tags_end; CREATE TRIGGER run_tags_end AFTER DELETE ON runs BEGIN SELECT 1; END",
    "trigger of a view": "CREATE TRIGGER watch INSTEAD OF DELETE ON journal BEGIN SELECT 1; END",
    "view": "DROP VIEW journal; CREATE VIEW journal AS SELECT * FROM runs",
    "generated column": "ALTER TABLE records ADD COLUMN more TEXT AS (zeroblob(size)) VIRTUAL",
    "column": "ALTER TABLE signals ADD COLUMN more TEXT",
    "index of an expression": "CREATE INDEX by_size ON records (zeroblob(size))",
    "index of ours": "DROP INDEX runs_by_flow; CREATE INDEX runs_by_flow ON runs (flow, zeroblob(epoch))",
    "index of a long text": "CREATE INDEX by_reason ON runs (flow) WHERE reason || reason || reason > 'a'",
    "view of a table": "DROP TABLE run_tags; CREATE VIEW run_tags AS SELECT run_id name, flow value, id run FROM runs",
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("version", [sqlite_schema.VERSION, 3])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_what_somebody_else_defined_on_the_tables_is_refused(
    tmp_path: Path, name: str, version: int, is_read_only: bool
) -> None:
    path = tmp_path / "runs.db"
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FOREIGN[name])
        connection.execute(f"PRAGMA user_version = {version}")
    if version != sqlite_schema.VERSION and (name == "view" or is_read_only):
        return
    with pytest.raises(StoreError, match="that no store makes"):
        SQLiteStore(path, read_only=is_read_only)
    with closing(sqlite3.connect(path)) as connection:
        assert version == connection.execute("PRAGMA user_version").fetchone()[0]


def test_tables_of_users_stand_beside_ours_with_what_is_on_them(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE orders (id TEXT PRIMARY KEY, upper TEXT AS (upper(id)) STORED);"
            "CREATE INDEX orders_by_lower ON orders (lower(id));"
            "CREATE TRIGGER watch AFTER INSERT ON orders BEGIN DELETE FROM orders; END;"
            "CREATE VIEW names AS SELECT run_id FROM runs; CREATE INDEX runs_by_owner ON runs (owner);"
        )
    with SQLiteStore(path) as store:
        begin(store, "r")
        assert ["r"] == [info.run_id for info in store.list_runs()]


def test_pages_that_lead_to_each_other_keep_no_reader_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        for n in range(300):
            begin(store, f"r{n}")
    monkeypatch.setattr("milepost.stores.sqlite.store._STEPS_OF_ONE_COUNT", 100)
    monkeypatch.setattr("milepost.stores.sqlite.store._MOST_COUNTS", 10)
    with SQLiteStore(tmp_path / "runs.db") as store:
        with pytest.raises(StoreError, match="interrupted"):
            store.list_runs()
        for _ in range(20):
            assert "r1" == store.get_run("r1").info.run_id


def test_what_is_deleted_is_overwritten(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        journals.work(store, begin(store), "4111 1111")
    assert b"4111 1111" in (tmp_path / "runs.db").read_bytes()
    with SQLiteStore(tmp_path / "runs.db") as store:
        store.delete_run("r", force=True)
    assert b"4111 1111" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
