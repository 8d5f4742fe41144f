"""A PostgreSQL server that goes away: while nobody looks, in the middle of runs, and exactly at a commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from psycopg_pool import ConnectionPool

from milepost import END, CompiledGraph, Engine, Graph
from milepost.errors import MilepostError, RunExistsError, StoreError
from milepost.store import Append, Release, Statement, Token
from milepost.stores.postgres import schema as postgres_schema
from milepost.stores.postgres.connection import Link
from milepost.stores.postgres.pool import Connections
from milepost.stores.postgres.store import PostgresStore
from milepost.testing.children import Child
from milepost.testing.journals import begin, checkpoint, take, work, write
from postgres_proxy import APPEND, COMMIT, Proxy
from postgres_server import Database, Server, given_dsn

MODES = ["fast", "immediate"]


@dataclass(frozen=True)
class Count:
    n: int = 0


def loop(times: int, pause: float = 0.0) -> CompiledGraph[Count]:
    def work(state: Count) -> Count:
        time.sleep(pause)
        return replace(state, n=state.n + 1)

    graph = Graph(Count).add_node("work", work).set_entry("work")
    graph.add_conditional_edge("work", lambda state: "work" if state.n < times else END, ["work", END])
    return graph.compile("loop")


@pytest.fixture
def proxy(postgres: str) -> Iterator[Proxy]:
    with Proxy(postgres) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy) -> Iterator[PostgresStore]:
    with PostgresStore(proxy.dsn) as store:
        yield store


@pytest.fixture
def server(request: pytest.FixtureRequest, postgres: str) -> Server:
    if given_dsn():
        pytest.skip("another's server is not restarted")
    server = request.getfixturevalue("own_server")
    assert isinstance(server, Server)
    return server


def sequences(store: PostgresStore, run_id: str) -> list[int]:
    return [record.sequence for record in store.read(run_id)]


# -- restarts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_while_nobody_looks_is_not_noticed(server: Server, mode: str) -> None:
    with PostgresStore(server.dsn) as store:
        token = begin(store, "r")
        work(store, token, "a")
        server.restart(mode)  # type: ignore[arg-type]
        assert "written" == write(store, token, checkpoint("r", 2)).outcome
        server.restart(mode)  # type: ignore[arg-type]
        assert 2 == store.get_run("r").info.sequence
        server.restart(mode)  # type: ignore[arg-type]
        assert "kept" == store.renew([token])[0].outcome
        assert {} == store.cancels(["r"])
        assert "written" == write(store, token, checkpoint("r", 3), release=Release("finished")).outcome


@pytest.mark.parametrize("mode", MODES)
def test_runs_go_on_over_a_restart(server: Server, mode: str) -> None:
    with PostgresStore(server.dsn) as store:
        graph = loop(150, pause=0.005)
        results: dict[str, Count | MilepostError] = {}

        def run(run_id: str) -> None:
            try:
                results[run_id] = graph.run(Count(), store=store, run_id=run_id, max_iterations=None)
            except MilepostError as exc:
                results[run_id] = exc

        threads = [threading.Thread(target=run, args=(f"r{n}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        while len(infos := store.list_runs()) < 6 or min(info.sequence for info in infos) < 20:
            time.sleep(0.01)
        server.restart(mode)  # type: ignore[arg-type]
        for thread in threads:
            thread.join()
        for run_id, result in results.items():
            if isinstance(result, MilepostError):  # told, and good to go on from
                results[run_id] = graph.resume(store, run_id)
        assert {f"r{n}": Count(150) for n in range(6)} == results
        for n in range(6):
            assert store.verify(f"r{n}").ok
            assert 150 == len(store.history(f"r{n}"))


def test_async_runs_go_on_over_a_restart(server: Server) -> None:
    with PostgresStore(server.dsn) as store:
        graph = loop(200)

        async def main() -> list[Count]:
            runs = [
                asyncio.ensure_future(graph.arun(Count(), store=store, run_id=f"r{n}", max_iterations=None))
                for n in range(6)
            ]
            while len(infos := await asyncio.to_thread(store.list_runs)) < 6 or infos[0].sequence < 5:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(server.restart, "immediate")
            return await asyncio.gather(*runs)

        assert [Count(200)] * 6 == asyncio.run(main())
        assert [200] * 6 == [len(store.history(f"r{n}")) for n in range(6)]


def test_a_server_that_stays_away_ends_a_run_with_a_clear_error_and_it_can_be_resumed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresStore(server.dsn) as store:
        monkeypatch.setattr(store, "_patience", 1.0)
        graph = loop(100, pause=0.01)
        failed: list[MilepostError] = []

        def run() -> None:
            try:
                graph.run(Count(), store=store, run_id="r", max_iterations=None)
            except MilepostError as exc:
                failed.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        while not store.list_runs() or store.get_run("r").info.sequence < 5:
            time.sleep(0.01)
        server.stop()
        try:
            thread.join()
            with pytest.raises(StoreError, match="failed to get run"):
                store.get_run("r")
        finally:
            server.start()
        assert "mend the store, then resume" in str(failed[0])
        assert isinstance(failed[0].__cause__, StoreError)
        assert Count(100) == graph.resume(store, "r", max_iterations=None)
        assert 100 == len(store.history("r"))


# -- a connection that is cut at a commit ------------------------------------------------------------------


@pytest.mark.parametrize("what", ["question", "answer"])
def test_an_append_that_nobody_heard_of_is_written_once(store: PostgresStore, proxy: Proxy, what: str) -> None:
    token = begin(store, "r")
    work(store, token, "a")
    with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
        assert ("written", None) == write(store, token, checkpoint("r", 2, "b"))
    assert ("written", None) == write(store, token, checkpoint("r", 3, "c"))
    assert ["a", "b", "c"] == [info.node_id for info in store.history("r")]
    assert store.verify("r").ok


@pytest.mark.parametrize("what", ["question", "answer"])
def test_a_release_that_nobody_heard_of_counts_once(store: PostgresStore, proxy: Proxy, what: str) -> None:
    for n, records in enumerate([(checkpoint("r0", 1),), ()]):
        token = begin(store, f"r{n}")
        store.append([Append(begin(store, f"warm {n}"), (), Release("ready"))])
        with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
            assert "written" == write(store, token, *records, release=Release("failed", "why")).outcome
        info = store.get_run(f"r{n}").info
        assert ("failed", len(records)) == (info.status, info.sequence)
        assert "lost" == write(store, token, checkpoint(f"r{n}", 2)).outcome


@pytest.fixture
def entries(store: PostgresStore, database: Database) -> Iterator[Callable[[], list[int]]]:
    """What is in a table of the user's own."""
    database.query("DROP TABLE IF EXISTS entries")
    database.query("CREATE TABLE entries (id integer)")
    yield lambda: [number for (number,) in database.query("SELECT id FROM entries ORDER BY id")]
    database.query("DROP TABLE entries")


def entering(token: Token, sequence: int) -> Append:
    statement = Statement("INSERT INTO entries VALUES (%s) /* a user's */", (sequence,))
    return Append(token, (checkpoint(token.run_id, sequence),), statements=(statement,))


@pytest.mark.parametrize("what", ["question", "answer"])
@pytest.mark.parametrize("where", [COMMIT, b"a user's"], ids=["commit", "statement"])
def test_statements_of_an_append_that_nobody_heard_of_are_executed_once(
    store: PostgresStore, proxy: Proxy, entries: Callable[[], list[int]], what: str, where: bytes
) -> None:
    token = begin(store, "r")
    with proxy.cutting(where, what):  # type: ignore[arg-type]
        assert [("written", None)] == store.append([entering(token, 1)])
    assert ([1], [0, 1]) == (entries(), sequences(store, "r"))
    assert [("written", None)] == store.append([entering(token, 2)])
    assert [1, 2] == entries()
    assert store.verify("r").ok


def test_an_owner_that_was_overtaken_while_its_append_was_lost_hears_of_it(
    store: PostgresStore, proxy: Proxy, postgres: str
) -> None:
    token = begin(store, "r")
    work(store, token, "a")
    under_locks = store._append_under_locks

    def overtaken(*args: object, **kwargs: object) -> object:
        with PostgresStore(postgres) as other:
            assert "claimed" == take(other, "r", takeover=True).outcome
        return under_locks(*args, **kwargs)  # type: ignore[arg-type]

    store._append_under_locks = overtaken  # type: ignore[assignment,method-assign]
    with proxy.cutting(APPEND, "question"):
        assert "lost" == write(store, token, checkpoint("r", 2, "b")).outcome
    assert ["checkpoint", "owner"] == [record.kind for record in store.read("r", after=0)]


@pytest.mark.parametrize("what", ["question", "answer"])
def test_those_who_share_a_commit_are_all_settled(store: PostgresStore, proxy: Proxy, what: str) -> None:
    tokens = [begin(store, f"r{n}") for n in range(8)]
    store.append([Append(token, (checkpoint(token.run_id, 1),)) for token in tokens])
    outcomes: list[str] = []
    threads = [
        threading.Thread(target=lambda t=token: outcomes.append(write(store, t, checkpoint(t.run_id, 2)).outcome))
        for token in tokens
    ]
    for lane in store._lanes:
        lane.lock.acquire()
    for thread in threads:
        thread.start()
    while sum(map(len, store._lanes)) < 8:
        time.sleep(0.001)
    with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
        for lane in store._lanes:
            lane.lock.release()
            lane.wake_first()
        for thread in threads:
            thread.join()
    assert ["written"] * 8 == outcomes
    assert [[0, 1, 2]] * 8 == [sequences(store, f"r{n}") for n in range(8)]


@pytest.mark.parametrize("what", ["question", "answer"])
def test_a_batch_that_nobody_heard_of_is_written_once(store: PostgresStore, proxy: Proxy, what: str) -> None:
    tokens = [begin(store, f"r{n}") for n in range(4)]
    store.append([Append(token, (checkpoint(token.run_id, 1),)) for token in tokens])
    release = Release("finished")
    with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
        batch = [Append(token, (checkpoint(token.run_id, 2),), release) for token in tokens]
        assert ["written"] * 4 == [verdict.outcome for verdict in store.append(batch)]
    assert [[0, 1, 2]] * 4 == [sequences(store, f"r{n}") for n in range(4)]
    assert {"finished"} == {info.status for info in store.list_runs()}


@pytest.mark.parametrize("what", ["question", "answer"])
def test_a_commit_of_the_way_under_locks_that_nobody_heard_of_counts_once(
    store: PostgresStore, proxy: Proxy, what: str
) -> None:
    token = begin(store, "r")
    with proxy.cutting(COMMIT, what):  # type: ignore[arg-type]
        assert "written" == write(store, token, checkpoint("r", 1), tags={"a": "b"}).outcome
    assert ([0, 1], {"a": "b"}) == (sequences(store, "r"), dict(store.get_run("r").info.tags))


def test_a_write_whose_commit_nobody_heard_of_says_so_and_is_not_repeated(store: PostgresStore, proxy: Proxy) -> None:
    begin(store, "r")
    with proxy.cutting(COMMIT, "answer"), pytest.raises(StoreError, match="failed to put signal"):
        store.put_signal("r", "go", b"1")
    assert 1 == len(store.signals("r"))
    with proxy.cutting(COMMIT, "answer"), pytest.raises(StoreError, match="failed to save"):
        store.save("s", "a", b"1")
    assert [1] == sequences(store, "s")


@pytest.mark.parametrize("what", ["question", "answer"])
def test_a_run_whose_beginning_nobody_heard_of_is_begun_once(store: PostgresStore, proxy: Proxy, what: str) -> None:
    begin(store, "warm")
    with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
        token = begin(store, "r")
    assert "written" == work(store, token, "a").outcome
    with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
        begin(store, "later", status="ready")
    assert ["later"] == [token.run_id for token, _ in store.claim_due(["orders"], 5)]
    for _ in range(2):
        with proxy.cutting(APPEND, what), pytest.raises(RunExistsError):  # type: ignore[arg-type]
            begin(store, "r")


@pytest.mark.parametrize("moment", [b"BEGIN", b"UPDATE", b"INSERT INTO", b"FOR UPDATE"])
def test_a_write_that_is_cut_before_its_commit_begins_anew(store: PostgresStore, proxy: Proxy, moment: bytes) -> None:
    begin(store, "r")
    for what in ("question", "answer"):
        store._preparing.is_on = False  # so that the text of each statement is sent
        with proxy.cutting(moment, what):  # type: ignore[arg-type]
            assert "kept" == store.put_signal("r", "go", b"1")
    assert [1, 2] == [signal.number for signal in store.signals("r")]


def test_a_renewal_and_a_look_at_cancels_are_asked_again(store: PostgresStore, proxy: Proxy) -> None:
    token = begin(store, "r")
    store.renew([token])
    store.cancels(["r"])
    for act in (lambda: store.renew([token])[0].outcome == "kept", lambda: store.cancels(["r"]) == {}):
        for what in ("question", "answer"):
            act()
            with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
                assert act()


def test_a_run_does_not_notice_a_cut(store: PostgresStore, proxy: Proxy, database: Database) -> None:
    for n, what in enumerate(("question", "answer")):
        graph = loop(30)
        with proxy.cutting(APPEND, what):  # type: ignore[arg-type]
            assert Count(30) == graph.run(Count(), store=store, run_id=f"r{n}", max_iterations=None)
        assert list(range(32)) == sequences(store, f"r{n}")
        assert store.verify(f"r{n}").ok
    counted = "SELECT count(*), count(DISTINCT (run, sequence)) FROM milepost.records"
    assert [(64, 64)] == database.query(counted)


def test_a_connection_that_the_server_ends_while_it_is_idle_is_replaced(
    store: PostgresStore, database: Database
) -> None:
    token = begin(store, "r")
    store.renew([token])
    kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'milepost'"
    for sequence in (1, 2):
        database.query(kill)
        assert "written" == write(store, token, checkpoint("r", sequence)).outcome
        database.query(kill)
        assert "kept" == store.renew([token])[0].outcome
        database.query(kill)
        assert sequence == store.get_run("r").info.sequence


def test_a_process_that_freezes_with_a_lock_holds_up_others_for_a_short_time(
    store: PostgresStore, postgres: str
) -> None:
    token = begin(store, "r", lease=3.0)
    with PostgresStore(postgres) as other, Child() as child:
        begin(other, "s", lease=3.0)
        child.tell(
            "from milepost.stores.postgres.store import PostgresStore\n"
            f"store = PostgresStore({postgres!r})\n"
            "begin(store, 'of the child', lease=3.0)\n"
            "open_write = store._write('look')\n"
            "answer = open_write.__enter__().row('r').run_id"
        )
        child.freeze()
        end = time.monotonic() + 10
        while True:
            try:
                other.put_signal("r", "go", None)
            except StoreError:  # the row was waited for in vain
                assert time.monotonic() < end
            else:
                break
        child.thaw()
        with pytest.raises(RuntimeError, match="_WriteLost"):
            child.tell("open_write.__exit__(None, None, None)")
    assert "written" == work(store, token, "a").outcome


# -- bytes that vanish ---------------------------------------------------------------------------------------

LEASE = 9.0
"""A server has a third of it for each call: so long that a busy machine is not taken for a dead server."""


@pytest.fixture(params=["own", "pool"])
def vanishing(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[PostgresStore]:
    """A store whose way to the server can be made a hole; of connections of its own, and of a caller's pool."""
    if request.param == "own":
        with PostgresStore(proxy.dsn) as store:
            yield store
    else:
        with (
            ConnectionPool(proxy.dsn, min_size=2, max_size=2, timeout=LEASE) as pool,
            PostgresStore(pool) as store,
        ):
            pool.wait()  # one that vanishes while the pool opens it is waited for without end
            yield store


@pytest.mark.parametrize(
    "act",
    [
        lambda store, token: write(store, token, checkpoint("r", 1)).outcome == "written",
        lambda store, token: write(store, token, checkpoint("r", 1), tags={"a": "b"}).outcome == "written",
        lambda store, token: store.renew([token])[0].outcome == "kept",
        lambda store, token: store.cancels(["r"]) == {},
        lambda store, token: store.claim_due(["orders"], 1) == [],
        lambda store, token: store.get_run("r").info.status == "running",
        lambda store, token: begin(store, "s", lease=LEASE).run_id == "s",
    ],
    ids=["append", "append under locks", "renew", "cancels", "claim", "read", "create"],
)
def test_a_call_whose_bytes_vanish_ends_and_takes_another_connection(
    vanishing: PostgresStore, proxy: Proxy, act: Callable[[PostgresStore, Token], bool]
) -> None:
    token = begin(vanishing, "r", lease=LEASE)
    vanishing.renew([token])
    proxy.swallow()
    assert act(vanishing, token)
    assert vanishing.verify("r").ok


def test_a_connection_of_a_pool_that_never_led_anywhere_is_replaced(proxy: Proxy) -> None:
    with (
        ConnectionPool(proxy.dsn, min_size=2, max_size=2, timeout=LEASE) as pool,
        PostgresStore(pool) as store,
    ):
        token = begin(store, "r", lease=LEASE)
        held = [pool.getconn(), pool.getconn()]  # the store has used at most one of them at a time
        proxy.swallow()
        for connection in held:
            store._connections._sessions.pop(connection, None)  # type: ignore[attr-defined]
            pool.putconn(connection)
        assert "written" == write(store, token, checkpoint("r", 1)).outcome


def test_a_call_ends_within_its_lease_where_no_connection_leads_anywhere(store: PostgresStore, proxy: Proxy) -> None:
    token = begin(store, "r", lease=LEASE)
    proxy.swallow(all_to_come=True)
    began = time.monotonic()
    with pytest.raises(StoreError, match="failed to append"):
        write(store, token, checkpoint("r", 1))
    assert time.monotonic() < began + LEASE


@pytest.mark.parametrize("at", ["open_connection", "_lock"])
def test_an_upgrade_whose_bytes_vanish_ends(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, at: str, schema: str
) -> None:
    """Before the first look at the tables, and in the upgrade itself."""
    act = getattr(postgres_schema, at)

    def vanish(*args: object) -> object:
        done = act(*args)
        proxy.swallow()
        return done

    monkeypatch.setattr(postgres_schema, at, vanish)
    monkeypatch.setattr(postgres_schema, "_PATIENCE", 3.0)
    monkeypatch.setattr(postgres_schema, "_UPGRADE", 1.0)
    with pytest.raises(StoreError, match="failed to open"):
        postgres_schema.migrate(proxy.dsn, schema=schema)
    monkeypatch.undo()
    assert 0 == postgres_schema.migrate(proxy.dsn, schema=schema).found


@pytest.mark.parametrize("running", [0, 1])
def test_a_worker_stops_within_its_grace_where_no_connection_leads_anywhere(proxy: Proxy, running: int) -> None:
    inside, go_on, asked = threading.Event(), threading.Event(), threading.Event()

    def held(state: Count) -> Count:
        inside.set()
        go_on.wait()
        return state

    flow = Graph(Count).add_node("a", held).add_edge("a", END).set_entry("a").compile("held")
    store = PostgresStore(proxy.dsn)
    claim_due = store.claim_due

    def told(*args: object, **options: object) -> object:
        if inside.is_set() or not running:
            proxy.swallow(all_to_come=True)
            asked.set()
        return claim_due(*args, **options)  # type: ignore[arg-type]

    engine = Engine(store, flows=[flow])
    for n in range(running):
        engine.start(flow, Count(), run_id=f"r{n}")
    store.claim_due = told  # type: ignore[assignment,method-assign]
    worker = engine.worker(poll=0.01, grace=0.5)
    with worker:
        assert asked.wait(30)
        began = time.monotonic()
    engine.close()
    store.close()
    # A call of the server may take 10 seconds here; the bound is the grace, and a second each for what is under way.
    assert time.monotonic() < began + 8
    go_on.set()


# -- servers that take no writes for a while -----------------------------------------------------------------


@pytest.fixture
def read_only(database: Database) -> Iterator[Callable[[bool], None]]:
    """Have the sessions that begin from now on take no writes, or take them again; those that are open are cut."""
    name = database.query("SELECT quote_ident(current_database())")[0][0]

    def put(is_on: bool) -> None:
        database.query("SET default_transaction_read_only = off")
        value = "SET default_transaction_read_only = on" if is_on else "RESET default_transaction_read_only"
        database.query(f"ALTER DATABASE {name} {value}")
        if is_on:
            kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'milepost'"
            database.query(kill)

    yield put
    put(False)


WRITES: dict[str, Callable[[PostgresStore, Token], object]] = {
    "append": lambda store, token: write(store, token, checkpoint("r", 1)),
    "append under locks": lambda store, token: write(store, token, checkpoint("r", 1), tags={"a": "b"}),
    "statements": lambda store, token: store.append(
        [Append(token, (checkpoint("r", 1),), statements=(Statement("SELECT %s", (1,)),))]
    ),
    "renew": lambda store, token: store.renew([token]),
    "signal": lambda store, token: store.put_signal("r", "go", None),
    "save": lambda store, token: store.save("s", "a", b"1"),
    "claim": lambda store, token: store.claim_due(["orders"], 1),
    "create": lambda store, token: begin(store, "s"),
    "delete": lambda store, token: store.delete_run("ready"),
}


@pytest.mark.parametrize("act", WRITES.values(), ids=WRITES)
def test_a_write_waits_until_the_server_takes_writes_again(
    store: PostgresStore, read_only: Callable[[bool], None], act: Callable[[PostgresStore, Token], object]
) -> None:
    token = begin(store, "r")
    begin(store, "ready", status="ready")
    refused = threading.Event()
    give = Connections.give

    def tell(self: Connections, link: Link) -> None:
        if link.is_lost:
            refused.set()
        give(self, link)

    read_only(True)
    # The sessions that are open now take no writes, and stay open.
    [store.get_run("r") for _ in range(2)]
    outcomes: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connections, "give", tell)
        thread = threading.Thread(target=lambda: outcomes.append(act(store, token)))
        thread.start()
        assert refused.wait(30)
        assert "running" == store.get_run("r").info.status  # who reads need not wait
        read_only(False)
        thread.join()
    assert 1 == len(outcomes)
    assert store.verify("r").ok
    assert "written" == write(store, token, checkpoint("r", store.get_run("r").info.sequence + 1)).outcome
