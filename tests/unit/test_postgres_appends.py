"""How the PostgreSQL store appends: in how many statements and commits, and what becomes of what is unusual."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from milepost.errors import StoreError
from milepost.model.info import Wait
from milepost.store import Append, Release, Token
from milepost.stores.postgres.append import Appends
from milepost.stores.postgres.store import PostgresStore
from milepost.testing.journals import begin, checkpoint, failure, take, work, write
from postgres_server import Database


@pytest.fixture
def store(postgres: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres) as store:
        yield store


def in_threads(acts: list[Callable[[], Any]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    return threads


def talk(store: PostgresStore, path: Path, act: Callable[[], object]) -> list[str]:
    """What the store's only idle connection says to the server during `act`, by the names of the protocol's messages."""
    (link,) = store._connections._idle  # type: ignore[attr-defined]
    with path.open("w+b") as file:
        link.connection.pgconn.trace(file.fileno())
        try:
            act()
        finally:
            link.connection.pgconn.untrace()
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.split("\t")[3] for line in lines if line.split("\t")[1:2] == ["F"]]


def append_at_once(store: PostgresStore, tokens: list[Token], append: Callable[[Token], Any]) -> None:
    """Have a thread for each token append while all lanes are busy, so that they share commits."""
    for lane in store._lanes:
        lane.lock.acquire()
    threads = in_threads([lambda token=token: append(token) for token in tokens])  # type: ignore[misc]
    while sum(map(len, store._lanes)) < len(tokens):
        time.sleep(0.001)
    for lane in store._lanes:
        lane.lock.release()
        lane.wake_first()
    for thread in threads:
        thread.join()


def commits(database: Database) -> int:
    """How many commits the records after the start took."""
    return int(database.query("SELECT count(DISTINCT xmin::text) FROM milepost.records WHERE sequence > 0")[0][0])


# -- statements and commits ------------------------------------------------------------------------------


def test_an_append_is_one_prepared_statement_and_one_round_trip(store: PostgresStore, tmp_path: Path) -> None:
    token = begin(store, "r")
    write(store, token, checkpoint("r", 1))
    said = talk(store, tmp_path / "trace", lambda: write(store, token, checkpoint("r", 2)))
    assert ["Bind", "Describe", "Execute", "Sync"] == said


def test_an_append_of_several_records_or_with_a_release_is_one_round_trip_too(
    store: PostgresStore, tmp_path: Path
) -> None:
    write(store, begin(store, "other"), checkpoint("other", 1), release=Release("finished"))
    token = begin(store, "r")
    write(store, token, checkpoint("r", 1), checkpoint("r", 2))
    for act in (
        lambda: write(store, token, checkpoint("r", 3), failure("r", 4)),
        lambda: write(store, token, checkpoint("r", 5), release=Release("finished")),
    ):
        assert ["Bind", "Describe", "Execute", "Sync"] == talk(store, tmp_path / "trace", act)
    assert ("finished", 5) == (store.get_run("r").info.status, store.get_run("r").info.sequence)


def test_an_append_touches_no_row_of_a_run(store: PostgresStore, database: Database) -> None:
    token = begin(store, "r")
    before = database.query("SELECT ctid::text FROM milepost.runs")
    work(store, token, *"abc")
    assert before == database.query("SELECT ctid::text FROM milepost.runs")


def test_a_renewal_touches_no_index(store: PostgresStore, database: Database) -> None:
    tokens = [begin(store, f"r{n}") for n in range(5)]
    store.renew(tokens)
    database.query("SELECT pg_stat_force_next_flush()")
    link = store._renewing.take(1.0)
    link.connection.execute("SELECT pg_stat_force_next_flush()")
    store._renewing.give(link)
    query = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'milepost.runs'::regclass"
    before = database.query(query)[0]
    store.renew(tokens)
    link = store._renewing.take(1.0)
    link.connection.execute("SELECT pg_stat_force_next_flush()")
    store._renewing.give(link)
    assert (before[0] + 5, before[1] + 5) == database.query(query)[0]


def test_batches_of_any_length_share_one_plan(store: PostgresStore) -> None:
    for length in (2, 3, 2, 9, 2, 40, 2, 2):
        tokens = [begin(store, f"{length} r{n} {time.monotonic()}") for n in range(length)]
        store.append([Append(token, (checkpoint(token.run_id, 1),)) for token in tokens])
    (link,) = store._connections._idle  # type: ignore[attr-defined]
    query = "SELECT custom_plans <= 5 AND generic_plans >= 3 FROM pg_prepared_statements WHERE statement LIKE '%given.epoch%'"
    assert [(True,)] == link.connection.execute(query).fetchall()


def test_what_another_store_of_the_process_wrote_with_the_same_token_is_noticed(
    store: PostgresStore, postgres: str
) -> None:
    token = begin(store, "r")
    write(store, token, checkpoint("r", 1))
    with PostgresStore(postgres) as other:
        assert "written" == write(other, token, checkpoint("r", 2, "b")).outcome
        assert "taken" == write(store, token, checkpoint("r", 2, "c")).outcome
        assert "written" == write(store, token, checkpoint("r", 3, "c")).outcome
        assert "gap" == write(other, token, checkpoint("r", 5, "d")).outcome
    assert ["work", "b", "c"] == [record.node_id for record in store.read("r", kinds=("checkpoint",))]


def test_a_record_that_is_gone_from_a_server_that_took_over_is_missed(store: PostgresStore, database: Database) -> None:
    token = begin(store, "r")
    work(store, token, *"ab")
    store._connections._idle[0].connection.close()  # type: ignore[attr-defined]
    database.query("DELETE FROM milepost.records WHERE sequence = 2")
    assert "gap" == write(store, token, checkpoint("r", 3, "c")).outcome


def test_threads_that_append_at_once_share_commits(store: PostgresStore, database: Database) -> None:
    tokens = [begin(store, f"r{n}") for n in range(12)]
    append_at_once(store, tokens, lambda token: write(store, token, checkpoint(token.run_id, 1)))
    assert len(store._lanes) == commits(database)
    assert [1] * 12 == [info.sequence for info in store.list_runs()]


def test_a_batch_is_one_commit_with_all_its_releases(store: PostgresStore, database: Database) -> None:
    tokens = [begin(store, f"r{n}") for n in range(8)]
    wait = Wait("w#1", "go")
    releases = [None, Release("finished"), Release("failed", "why", degraded=True, missed=("a#1",)), None] * 2
    releases[4] = Release("waiting", wake_at=1e9, waiting_for=(wait,), signals=0)
    batch = [
        Append(token, (checkpoint(token.run_id, 1), checkpoint(token.run_id, 2, "b")), release)
        for token, release in zip(tokens, releases, strict=True)
    ]
    assert [("written", None)] * 8 == store.append(batch)
    assert 1 == commits(database)
    infos = [store.get_run(f"r{n}").info for n in range(8)]
    assert ["running", "finished", "failed", "running", "waiting", "finished", "failed", "running"] == [
        info.status for info in infos
    ]
    assert ("why", True, ("a#1",)) == (infos[2].reason, infos[2].degraded, infos[2].missed)
    assert ((wait,), 1e9) == (infos[4].waiting_for, infos[4].wake_at.timestamp())  # type: ignore[union-attr]
    assert [2] * 8 == [info.sequence for info in infos]
    assert ["", None] == [infos[1].owner, infos[1].lease_until]


def test_a_batch_with_something_unusual_is_still_one_commit(store: PostgresStore, database: Database) -> None:
    tokens = [begin(store, f"r{n}") for n in range(6)]
    take(store, "r1", takeover=True)
    store.request_cancel("r2", "stop")
    write(store, tokens[3], checkpoint("r3", 1))
    batch = [Append(token, (checkpoint(token.run_id, 1, "new"),)) for token in tokens]
    batch[4] = Append(tokens[4], (checkpoint("r4", 1, "new"),), None, {"a": "b"})
    batch.append(Append(tokens[5], (checkpoint("r5", 2, "new"),)))
    assert ["written", "lost", "written", "taken", "written", "written", "written"] == [
        verdict.outcome for verdict in store.append(batch)
    ]
    query = "SELECT count(DISTINCT xmin::text), count(*) FROM milepost.records WHERE node_id = 'new'"
    assert [(1, 5)] == database.query(query)


def test_a_batch_that_fails_writes_nothing(store: PostgresStore, database: Database) -> None:
    tokens = [begin(store, f"r{n}") for n in range(3)]
    batch = [Append(token, (checkpoint(token.run_id, 1),)) for token in tokens]
    database.query("ALTER TABLE milepost.records ADD CONSTRAINT odd CHECK (node_id <> 'no')")
    try:
        with pytest.raises(StoreError, match="odd"):
            store.append([*batch[:2], Append(tokens[2], (checkpoint("r2", 1, "no"),))])
    finally:
        database.query("ALTER TABLE milepost.records DROP CONSTRAINT odd")
    assert 0 == commits(database)
    assert ["written"] * 3 == [verdict.outcome for verdict in store.append(batch)]


def test_one_bad_append_among_those_of_other_threads_hurts_nobody_else(
    store: PostgresStore, database: Database
) -> None:
    tokens = [begin(store, f"r{n}") for n in range(8)]
    take(store, "r1", takeover=True)
    database.query("ALTER TABLE milepost.records ADD CONSTRAINT odd CHECK (node_id <> 'no')")
    outcomes: dict[str, str] = {}

    def append(token: Token) -> None:
        record = checkpoint(token.run_id, 1, "no" if token.run_id == "r3" else "yes")
        if token.run_id == "r2":
            record = record._replace(visit=1 << 70)
        try:
            outcomes[token.run_id] = write(store, token, record).outcome
        except Exception as exc:
            outcomes[token.run_id] = type(exc).__name__

    try:
        append_at_once(store, tokens, append)
    finally:
        database.query("ALTER TABLE milepost.records DROP CONSTRAINT odd")
    assert ["lost", "OverflowError", "StoreError"] == [outcomes.pop(f"r{n}") for n in (1, 2, 3)]
    assert ["written"] * 5 == list(outcomes.values())


def test_a_leader_that_is_stopped_leaves_the_others_going(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [begin(store, f"r{n}") for n in range(8)]
    outcomes: list[str] = []
    stopped: list[str] = []
    many = Appends.many

    def interrupt_once(self: Appends, *args: Any, **kwargs: Any) -> set[int]:
        written = many(self, *args, **kwargs)
        if not stopped:
            stopped.append("after the commit")
            raise KeyboardInterrupt
        return written

    def append(token: Token) -> None:
        try:
            outcomes.append(write(store, token, checkpoint(token.run_id, 1)).outcome)
        except KeyboardInterrupt:
            outcomes.append("stopped")

    monkeypatch.setattr(Appends, "many", interrupt_once)
    append_at_once(store, tokens, append)
    assert ["stopped", *["written"] * 7] == sorted(outcomes)
    assert [1] * 8 == [info.sequence for info in store.list_runs()]
    assert all(store.verify(token.run_id).ok for token in tokens)


# -- the fence under way -----------------------------------------------------------------------------------


def test_an_append_waits_for_a_claim_that_has_begun_and_is_lost(
    store: PostgresStore, postgres: str, database: Database
) -> None:
    token = begin(store, "r")
    told: list[str] = []
    with psycopg.connect(postgres) as connection:
        connection.execute("UPDATE milepost.runs SET epoch = 2, nonce = 'of another'")
        (thread,) = in_threads([lambda: told.append(write(store, token, checkpoint("r", 1)).outcome)])
        database.await_lock()
        assert thread.is_alive()
    thread.join()
    assert ["lost"] == told
    assert [0] == [record.sequence for record in store.read("r")]


def test_an_append_waits_for_a_claim_that_is_undone_and_is_written(
    store: PostgresStore, postgres: str, database: Database
) -> None:
    token = begin(store, "r")
    told: list[str] = []
    with psycopg.connect(postgres) as connection:
        connection.execute("UPDATE milepost.runs SET epoch = 2, nonce = 'of another'")
        (thread,) = in_threads([lambda: told.append(write(store, token, checkpoint("r", 1)).outcome)])
        database.await_lock()
        connection.rollback()
    thread.join()
    assert ["written"] == told


def test_a_stuck_row_holds_up_nobody_else(store: PostgresStore, postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [begin(store, f"r{n}") for n in range(6)]
    monkeypatch.setattr(store, "_patience", 1.0)
    outcomes: dict[str, str] = {}

    def append(token: Token) -> None:
        began = time.monotonic()
        try:
            outcome = write(store, token, checkpoint(token.run_id, 1)).outcome
        except StoreError as exc:
            outcome = type(exc.__cause__).__name__
        outcomes[token.run_id] = f"{outcome} {'late' if time.monotonic() - began > 0.9 else 'in time'}"

    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT FROM milepost.runs WHERE run_id = 'r1' FOR UPDATE")
        append_at_once(store, tokens, append)
        assert ["written"] == [verdict.outcome for verdict in store.append([Append(tokens[0], (checkpoint("r0", 2),))])]
        assert ["kept", "unknown", "kept"] == [renewal.outcome for renewal in store.renew(tokens[:3])]
    assert "QueryCanceled late" == outcomes.pop("r1")
    assert ["written in time"] * 5 == list(outcomes.values())
    assert ["kept"] * 6 == [renewal.outcome for renewal in store.renew(tokens)]


def test_a_lease_is_renewed_while_its_run_appends_all_the_time(store: PostgresStore) -> None:
    token = begin(store, "r")
    is_over = threading.Event()

    def append_always() -> None:
        sequence = 0
        while not is_over.is_set():
            sequence += 1
            assert "written" == write(store, token, checkpoint("r", sequence)).outcome

    threads = in_threads([append_always])
    outcomes = {store.renew([token])[0].outcome for _ in range(50)}
    is_over.set()
    threads[0].join()
    assert {"kept"} == outcomes


def test_workers_leave_each_other_the_rows_that_they_have_locked(store: PostgresStore, postgres: str) -> None:
    for n in range(5):
        begin(store, f"r{n}", status="ready")
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT FROM milepost.runs WHERE run_id IN ('r0', 'r2') FOR UPDATE")
        assert ["r1", "r3"] == [token.run_id for token, _ in store.claim_due(["orders"], 2)]
        assert ["r4"] == [token.run_id for token, _ in store.claim_due(["orders"], 2)]
    assert ["r0", "r2"] == [token.run_id for token, _ in store.claim_due(["orders"], 2)]


def test_any_default_isolation_of_the_database_will_do(postgres: str) -> None:
    options = "-c default_transaction_isolation=serializable"
    with PostgresStore(psycopg.conninfo.make_conninfo(postgres, options=options)) as store:
        tokens = [begin(store, f"r{n}") for n in range(8)]
        threads = in_threads([lambda token=token: work(store, token, *"abc") for token in tokens])  # type: ignore[misc]
        threads += in_threads([lambda: store.renew(tokens) for _ in range(4)])
        threads += in_threads([lambda n=n: store.put_signal(f"r{n}", "go", None) for n in range(8)])  # type: ignore[misc]
        for thread in threads:
            thread.join()
        assert [(3, 1)] * 8 == [
            (store.get_run(f"r{n}").info.sequence, store.get_run(f"r{n}").signals) for n in range(8)
        ]


# -- prepared statements -----------------------------------------------------------------------------------


def prepared(store: PostgresStore) -> set[str]:
    link = store._connections.take(1.0)
    try:
        query = "SELECT statement FROM pg_prepared_statements"
        return {text for (text,) in link.connection.execute(query, prepare=False).fetchall()}
    finally:
        store._connections.give(link)


def test_statements_are_prepared_unless_that_is_not_wanted(postgres: str) -> None:
    for wanted in (True, False):
        with PostgresStore(postgres, prepare=wanted) as store:
            token = begin(store, f"r {wanted}")
            for _ in range(8):
                work(store, token, "a")
            texts = prepared(store)
            assert wanted == any("INSERT INTO" in text for text in texts)
            assert wanted == bool(texts)


def test_a_transaction_that_is_undone_costs_no_prepared_statement(store: PostgresStore) -> None:
    token = begin(store, "r")
    work(store, token, "a")
    before = prepared(store)
    for _ in range(2):
        with pytest.raises(Exception, match="exists"):
            begin(store, "r")
    assert before <= prepared(store)


def test_statements_that_somebody_deallocated_are_prepared_again(store: PostgresStore) -> None:
    token = begin(store, "r")
    work(store, token, "a")
    (link,) = store._connections._idle  # type: ignore[attr-defined]
    link.connection.pgconn.exec_(b"DEALLOCATE ALL")
    assert "written" == write(store, token, checkpoint("r", 2)).outcome
    assert store._preparing.is_on
    assert any("INSERT INTO" in text for text in prepared(store))


def test_statements_that_get_lost_all_the_time_are_no_longer_prepared(
    store: PostgresStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = begin(store, "r")
    work(store, token, "a")
    (link,) = store._connections._idle  # type: ignore[attr-defined]
    link._session.prepared = Amnesia()
    link.connection.pgconn.exec_(b"DEALLOCATE ALL")
    with caplog.at_level(logging.INFO, logger="milepost"):
        for sequence in range(2, 6):
            assert "written" == write(store, token, checkpoint("r", sequence)).outcome
    assert not store._preparing.is_on
    assert 1 == len(caplog.records)
    assert "no longer prepared" in caplog.text
    assert [1, 2, 3, 4, 5] == [info.sequence for info in store.history("r")]


class Amnesia(set[bytes]):
    """A connection that believes that everything is prepared."""

    def __contains__(self, name: object) -> bool:
        return True


def test_a_statement_that_is_lost_in_a_transaction_is_noticed_before_anything_is_done(store: PostgresStore) -> None:
    begin(store, "r")
    for _ in range(8):
        store.get_run("r")
        store.put_signal("r", "go", None)
    (link,) = store._connections._idle  # type: ignore[attr-defined]
    link.connection.pgconn.exec_(b"DEALLOCATE ALL")
    assert 8 == store.get_run("r").signals
    assert not store._preparing.is_on
    store._preparing.is_on = True
    assert "kept" == store.put_signal("r", "go", None)
    assert not store._preparing.is_on
    assert 9 == store.get_run("r").signals
    assert list(range(1, 10)) == [signal.number for signal in store.signals("r")]
