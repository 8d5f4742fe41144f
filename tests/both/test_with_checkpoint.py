"""Statements that count with a checkpoint: what a node or a step asks for is in the database with its record, or not at all."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import psycopg
import pytest

from milepost import (
    END,
    Graph,
    LeaseLost,
    MemoryStore,
    NodeError,
    Retry,
    RunCancelled,
    SerializeStateError,
    StepError,
    StoreError,
    WorkflowContext,
    current,
    parallel,
    step,
    workflow,
)
from milepost.errors import CheckpointWriteError, OptionError, RouterError
from milepost.store import Append, Token
from milepost.testing.journals import take

INTEGRITY = (sqlite3.IntegrityError, psycopg.errors.IntegrityError)
NOW = Retry(max_attempts=3, backoff=0)
BOTH = pytest.mark.stores("sqlite", "postgres")
OTHERS = pytest.mark.stores("memory", "file")


class Book:
    """A table of the user's own, beside the store's, and how to look at it."""

    def __init__(self, medium: Any) -> None:
        self.medium = medium
        self.mark = "%s" if medium.kind == "postgres" else "?"
        self.enter = f"INSERT INTO entries (id, word) VALUES ({self.mark}, {self.mark})"

    def query(self, sql: str) -> list[Any]:
        if self.medium.kind == "postgres":
            with psycopg.connect(self.medium.path, autocommit=True) as connection:
                cursor = connection.execute(sql)
                return cursor.fetchall() if cursor.description else []
        with closing(sqlite3.connect(self.medium.path, timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()

    @property
    def rows(self) -> list[Any]:
        return self.query("SELECT id, word FROM entries ORDER BY id")


@pytest.fixture
def book(medium: Any, store: Any) -> Iterator[Book]:
    book = Book(medium)
    book.query("DROP TABLE IF EXISTS entries")
    book.query("CREATE TABLE entries (id integer PRIMARY KEY, word text CHECK (word <> 'no'))")
    yield book
    book.query("DROP TABLE entries")


def graph_of(verbs: Any, act: Callable[[Any], Any], log: list[str], **options: Any) -> Any:
    def named(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
        def node(ctx: Any, state: list[str]) -> list[str]:
            log.append(name)
            fn(ctx)
            return [*state, name]

        return verbs.node(node)

    graph = Graph(list[str])
    for name in "abc":
        graph.add_node(name, named(name, act if name == "b" else nothing), **(options if name == "b" else {}))
    return graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile("acting")


def workflow_of(verbs: Any, act: Callable[[Any], Any], log: list[str], retry: Any = None, **options: Any) -> Any:
    def named(name: str, fn: Callable[[Any], Any]) -> Callable[..., Any]:
        def call() -> str:
            log.append(name)
            fn(current())
            return name

        return verbs.node(call)

    @workflow("acting")
    def acting():
        told = []
        for name in "abc":
            one = step(name).python(named(name, act if name == "b" else nothing))
            if name == "b" and retry is not None:
                one = one.retry(retry.max_attempts, backoff=0)
            told.append((yield one))
        return told

    return acting


def nothing(ctx: Any) -> None:
    pass


class Front:
    """A flow of three units in a row, of which `b` acts, in one of the two ways to write it."""

    def __init__(self, kind: str, verbs: Any, log: list[str]) -> None:
        self.kind, self.verbs, self.log = kind, verbs, log
        self.error = NodeError if kind == "graph" else StepError
        self.flow: Any = None

    def run(self, act: Callable[[Any], Any], store: Any, *, retry: Any = None, **options: Any) -> Any:
        make = graph_of if self.kind == "graph" else workflow_of
        self.flow = make(self.verbs, act, self.log, retry=retry)
        given = ([],) if self.kind == "graph" else ()
        return self.verbs.run(self.flow, *given, store=store, run_id="r", **options)

    def resume(self, store: Any, **options: Any) -> Any:
        return self.verbs.resume(self.flow, store, "r", **options)


@pytest.fixture(params=["graph", "workflow"])
def front(request: pytest.FixtureRequest, verbs: Any, log: list[str]) -> Front:
    return Front(request.param, verbs, log)


def failures(store: Any) -> list[tuple[str, str, int]]:
    told = [record.fields() for record in store.read("r", kinds=("failure",))]
    return [(fields["op"], fields["error_type"], fields["attempt"]) for fields in told]


def recorded(store: Any) -> list[str]:
    return [info.node_id for info in store.list("r")]


# -- both, or neither


@BOTH
def test_statements_are_there_with_the_checkpoint(front, store, book):
    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "one"))
        ctx.with_checkpoint(book.enter, [2, "two"])
        ctx.with_checkpoint("UPDATE entries SET word = 'changed' WHERE id = 1")
        assert [] == book.rows  # nothing is open, and nothing is done, while user code runs

    assert list("abc") == front.run(act, store)
    assert [(1, "changed"), (2, "two")] == book.rows
    assert list("abc") == recorded(store)
    assert list("abc") == front.resume(store)
    assert [(1, "changed"), (2, "two")] == book.rows
    assert (list("abc"), True) == (front.log, store.verify("r").ok)


@BOTH
def test_params_are_bound_by_place_and_by_name(front, store, book):
    bad = "'); DROP TABLE entries; --"
    named = "%(id)s, %(word)s" if book.mark == "%s" else ":id, :word"

    def act(ctx):
        given = {"id": 1, "word": bad}
        ctx.with_checkpoint(f"INSERT INTO entries VALUES ({named})", given)
        given["word"] = "changed after it was asked for"
        ctx.with_checkpoint(book.enter, (2, None))
        ctx.with_checkpoint("DELETE FROM entries WHERE word LIKE 'x%'")

    front.run(act, store)
    assert [(1, bad), (2, None)] == book.rows


@BOTH
def test_a_failed_attempt_takes_what_it_asked_for_with_it(front, store, book):
    def act(ctx):
        ctx.with_checkpoint(book.enter, (ctx.attempt, f"attempt {ctx.attempt}"))
        ctx.tag("attempt", str(ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError("no")

    front.run(act, store, retry=NOW)
    assert [(3, "attempt 3")] == book.rows
    assert "3" == store.get_run("r").info.tags["attempt"]


@BOTH
def test_a_statement_that_fails_is_a_failed_attempt_that_the_policy_tries_again(front, store, book):
    book.query("INSERT INTO entries VALUES (7, 'taken')")

    def act(ctx):
        ctx.tag("attempt", str(ctx.attempt))
        ctx.tag(f"attempt {ctx.attempt}", "yes")
        ctx.with_checkpoint(book.enter, (ctx.attempt, "good"))
        ctx.with_checkpoint(book.enter, (7 if ctx.attempt == 1 else 8, "last"))

    assert list("abc") == front.run(act, store, retry=NOW)
    assert [(2, "good"), (7, "taken"), (8, "last")] == book.rows
    ((op, kind, attempt),) = failures(store)
    assert ("commit", 1) == (op, attempt)
    assert kind.rpartition(".")[2] in {"IntegrityError", "UniqueViolation"}
    assert ["a", "b", "b", "c"] == front.log
    assert [("a", 1), ("b", 2), ("c", 1)] == [(info.node_id, info.attempt) for info in store.list("r")]
    assert {"attempt": "2", "attempt 2": "yes"} == dict(store.get_run("r").info.tags)
    assert store.verify("r").ok


@BOTH
def test_without_attempts_left_the_node_fails_with_what_the_database_said(front, store, book):
    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "good"))
        ctx.with_checkpoint(book.enter, (2, "no"))

    with pytest.raises(front.error, match="failed after 2 failed attempts") as caught:
        front.run(act, store, retry=Retry(max_attempts=2, backoff=0))
    assert isinstance(caught.value.__cause__, INTEGRITY)
    assert book.enter in caught.value.__cause__.__notes__[0]
    assert ("r", "b", 2) == (caught.value.run_id, caught.value.node_id, caught.value.attempt)
    if front.kind == "graph":
        assert "commit" == caught.value.op
    assert [("commit", 1), ("commit", 2)] == [(op, attempt) for op, _, attempt in failures(store)]
    assert (["a"], [], "failed") == (recorded(store), book.rows, store.get_run("r").info.status)


@BOTH
def test_a_resume_runs_a_node_again_whose_statement_failed(front, store, book):
    book.query("INSERT INTO entries VALUES (1, 'in the way')")

    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "mine"))

    with pytest.raises(front.error):
        front.run(act, store)
    book.query("DELETE FROM entries")
    assert list("abc") == front.resume(store)
    assert (["a", "b", "b", "c"], [(1, "mine")]) == (front.log, book.rows)


@BOTH
@pytest.mark.parametrize("front", ["graph"], indirect=True)
def test_the_policy_is_asked_about_what_the_database_said(front, store, book):
    book.query("INSERT INTO entries VALUES (1, 'in the way')")
    policy = Retry(max_attempts=3, backoff=0, give_up_on=INTEGRITY)

    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "mine"))

    with pytest.raises(front.error):
        front.run(act, store, retry=policy)
    assert 1 == len(failures(store))


@BOTH
def test_statements_of_the_last_node_count_with_the_end_of_the_run(verbs, store, book):
    def last(ctx, state: int) -> int:
        ctx.with_checkpoint(book.enter, (ctx.attempt, "no" if ctx.attempt == 1 else "yes"))
        return state + 1

    graph = Graph(int).add_node("last", verbs.node(last), retry=NOW).add_edge("last", END).set_entry("last")
    assert 1 == verbs.run(graph.compile("last"), 0, store=store, run_id="r")
    assert ([(2, "yes")], "finished") == (book.rows, store.get_run("r").info.status)


@BOTH
def test_a_router_that_fails_keeps_the_statements_with_the_nodes_work(verbs, store, book):
    broken = [True]

    def act(ctx, state: int) -> int:
        ctx.with_checkpoint(book.enter, (ctx.attempt, "no" if ctx.attempt == 1 else "yes"))
        return state + 1

    def route(state: int) -> str:
        if broken:
            raise ValueError("no way")
        return END

    graph = Graph(int).add_node("a", verbs.node(act), retry=NOW).add_conditional_edge("a", route, [END])
    graph = graph.set_entry("a").compile("routed")
    with pytest.raises(RouterError):
        verbs.run(graph, 0, store=store, run_id="r")
    assert ([(2, "yes")], ["a"]) == (book.rows, recorded(store))
    broken.clear()
    assert 1 == verbs.resume(graph, store, "r")
    assert [(2, "yes")] == book.rows


@BOTH
def test_a_graph_below_a_workflow_commits_as_well(verbs, store, book):
    def act(ctx, state: int) -> int:
        ctx.with_checkpoint(book.enter, (ctx.attempt, "no" if ctx.attempt == 1 else "yes"))
        return state + 1

    graph = Graph(int).add_node("a", verbs.node(act), retry=NOW).add_edge("a", END).set_entry("a").compile("below")

    @workflow("above")
    def above():
        told = yield step("sub").subworkflow(graph.bind(0))
        return told.final_output

    assert 1 == verbs.run(above, store=store, run_id="r")
    assert [(2, "yes")] == book.rows


# -- several at once


@BOTH
@pytest.mark.parametrize("fails", [False, True])
def test_steps_that_run_at_once_commit_each_for_itself(verbs, store, book, fails):
    count = 12
    barrier = threading.Barrier(1 if verbs.has_coroutines else 6)

    def act(number: int) -> int:
        ctx = current()
        if number < barrier.parties and ctx.attempt == 1:
            barrier.wait(10)
        if number % 2 == 0:
            bad = fails and number % 4 == 0 and ctx.attempt == 1
            ctx.with_checkpoint(book.enter, (number, "no" if bad else "yes"))
        return number

    @workflow("at_once")
    def at_once():
        steps = [step(f"s{n}").python(verbs.node(act), args=(n,)).retry(2, backoff=0) for n in range(count)]
        told = yield parallel("all", *steps)
        return [told[n].output for n in range(count)]

    assert list(range(count)) == verbs.run(at_once, store=store, run_id="r")
    assert [(n, "yes") for n in range(0, count, 2)] == book.rows
    assert ["commit"] * (3 if fails else 0) == [op for op, _, _ in failures(store)]
    assert store.verify("r").ok
    assert list(range(count)) == verbs.resume(at_once, store, "r")


@BOTH
@pytest.mark.parametrize("fails", [False, True])
def test_branches_of_a_fork_commit_each_for_itself(verbs, store, book, fails):
    def act(ctx, state: list[str]) -> list[str]:
        number = ord(ctx.node_id[0]) - ord("a")
        if number % 2:
            ctx.with_checkpoint(book.enter, (number, "no" if fails and ctx.attempt == 1 else "yes"))
        return [*state, ctx.node_id]

    names = "abcdefgh"
    graph = Graph(list[str]).add_node("first", verbs.node(lambda state: state))
    graph.add_node(
        "last", verbs.node(lambda state: state), merge=lambda base, found: sorted(chain.from_iterable(found.values()))
    )
    for name in names:
        graph.add_node(name, verbs.node(act), retry=NOW).add_edge("first", name).add_edge(name, "last")
    graph = graph.add_edge("last", END).set_entry("first").compile("forked")
    assert [*names] == verbs.run(graph, [], store=store, run_id="r")
    assert [(number, "yes") for number in range(1, 8, 2)] == book.rows
    assert ["commit"] * (4 if fails else 0) == [op for op, _, _ in failures(store)]
    assert store.verify("r").ok
    assert [*names] == verbs.resume(graph, store, "r")


@BOTH
def test_items_of_a_map_commit_each_for_itself(verbs, store, book):
    def act(ctx, item: int) -> int:
        ctx.with_checkpoint(book.enter, (item, "no" if item % 3 == 0 and ctx.attempt == 1 else "yes"))
        return item

    def gather(state: list[int], results: list[int]) -> list[int]:
        ctx = current()
        ctx.with_checkpoint(book.enter, (100, "no" if ctx.attempt == 1 else "merged"))
        return results

    graph = Graph(list[int]).add_map("each", lambda state: state, verbs.node(act), merge=gather)
    graph = graph.add_edge("each", END).set_entry("each").compile("mapped")
    assert [*range(9)] == verbs.run(graph, [*range(9)], store=store, run_id="r", retry=NOW)
    assert [*((number, "yes") for number in range(9)), (100, "merged")] == book.rows
    assert store.verify("r").ok


@BOTH
def test_statements_of_a_nodes_threads_all_count(front, store, book):
    def act(ctx):
        threads = [threading.Thread(target=ctx.with_checkpoint, args=(book.enter, (n, "x"))) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    front.run(act, store)
    assert 16 == len(book.rows)


# -- the owner


@BOTH
def test_an_owner_that_was_overtaken_executes_nothing(front, medium, store, book):
    other = medium.open()

    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "late"))
        take(other, "r", takeover=True)

    with pytest.raises(LeaseLost):
        front.run(act, store)
    assert ([], ["a"]) == (book.rows, recorded(store))


@BOTH
def test_a_cancel_that_comes_meanwhile_keeps_what_was_done(front, medium, store, book):
    other = medium.open()

    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "done"))
        other.request_cancel("r", "enough")

    with pytest.raises(RunCancelled):
        front.run(act, store)
    assert ([(1, "done")], ["a", "b"]) == (book.rows, recorded(store))


# -- writes that fail


class Breaking:
    """A store that breaks at an append with statements: before it, or after it has taken place."""

    breaks = ""

    def append(self, batch: Any) -> Any:
        if not self.breaks or not any(append.statements for append in batch):
            return super().append(batch)  # type: ignore[misc]
        when, self.breaks = self.breaks, ""
        if when == "after":
            super().append(batch)  # type: ignore[misc]
        raise StoreError("the connection was lost")


@pytest.fixture
def breaking(medium: Any, book: Book) -> Any:
    return medium.open(Breaking)


@BOTH
def test_a_write_whose_outcome_was_lost_is_not_executed_again(front, breaking, book):
    def act(ctx):
        ctx.with_checkpoint(book.enter, (len(book.rows) + 1, "once"))

    breaking.breaks = "after"
    assert list("abc") == front.run(act, breaking)
    assert ([(1, "once")], list("abc")) == (book.rows, front.log)


@BOTH
@pytest.mark.parametrize("fatal", [True, False])
def test_a_store_that_fails_stops_the_run_and_drops_nothing_in_silence(front, breaking, book, fatal):
    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "once"))

    breaking.breaks = "before"
    with pytest.raises(CheckpointWriteError, match="connection was lost"):
        front.run(act, breaking, checkpoint_failure_fatal=fatal, retry=NOW)
    assert [] == book.rows
    assert list("abc") == front.resume(breaking)
    assert ([(1, "once")], ["a", "b", "b", "c"]) == (book.rows, front.log)


@BOTH
def test_a_state_that_cannot_be_recorded_stops_the_run_with_its_statements(verbs, store, book):
    def act(ctx, state: dict[str, Any]) -> dict[str, Any]:
        ctx.with_checkpoint(book.enter, (1, "once"))
        return {"lock": threading.Lock()}

    graph = Graph(dict).add_node("a", verbs.node(act)).add_edge("a", END).set_entry("a").compile("locked")
    with pytest.raises(SerializeStateError):
        verbs.run(graph, {}, store=store, run_id="r", checkpoint_failure_fatal=False)
    assert [] == book.rows


# -- what is refused


@BOTH
@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "commit",
        "  \n Commit ; ",
        ";;COMMIT",
        "-- so\n/* it */ COMMIT",
        "/* never closed */COMMIT",
        "END",
        "BEGIN",
        "BEGIN IMMEDIATE",
        "START TRANSACTION",
        "ROLLBACK",
        "ABORT",
        "ROLLBACK TO s",
        "SAVEPOINT s",
        "RELEASE s",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'",
        "ROLLBACK PREPARED 'x'",
        "SELECT 1; COMMIT",
        "WITH one AS (SELECT 1) COMMIT",
        "VACUUM",
        "",
        "-- only a comment",
    ],
)
def test_control_of_the_transaction_is_refused(front, store, book, sql):
    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "never"))
        ctx.with_checkpoint(sql)

    with pytest.raises(front.error):
        front.run(act, store)
    assert ([], ["a"]) == (book.rows, recorded(store))
    assert ["commit"] == [op for op, _, _ in failures(store)]
    book.query("DELETE FROM entries")  # nothing holds a lock


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT OR ROLLBACK INTO entries VALUES (1, 'x')",
        "insert/* */or -- so\n rollback into entries values (1, 'x')",
        "WITH one AS (SELECT 1, 'x') INSERT OR ROLLBACK INTO entries SELECT * FROM one",
        "UPDATE OR ROLLBACK entries SET id = 2",
        "CREATE TABLE more (id INTEGER UNIQUE ON CONFLICT ROLLBACK)",
        "ATTACH ':memory:' AS more",
        "DETACH main",
        "PRAGMA user_version = 9",
        "SELECT * FROM pragma_user_version",
        "UPDATE runs SET epoch = 9",
        "DELETE FROM run_tags",
        "DROP INDEX runs_by_flow",
        "DELETE FROM main.records",
        'INSERT INTO "signals" DEFAULT VALUES',
        "DROP VIEW journal",
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM entries; END",
        "CREATE TEMP TABLE runs (id)",
        "ALTER TABLE records ADD COLUMN more",
    ],
)
def test_sqlite_statements_keep_to_the_users_own_tables(front, store, book, sql):
    def act(ctx):
        ctx.with_checkpoint(sql)

    with pytest.raises(front.error, match="refused") as caught:
        front.run(act, store)
    assert isinstance(caught.value.__cause__, OptionError)
    assert store.verify("r").ok


@pytest.mark.stores("sqlite")
def test_words_of_control_within_texts_and_names_are_no_control(front, store, book):
    def act(ctx):
        ctx.with_checkpoint("""INSERT INTO entries VALUES (1, 'insert or rollback; commit') -- or rollback""")
        ctx.with_checkpoint("""CREATE TABLE [on conflict rollback] ("insert or rollback" TEXT);""")

    front.run(act, store)
    assert [(1, "insert or rollback; commit")] == book.rows


@pytest.mark.stores("sqlite")
def test_a_constraint_of_the_table_that_rolls_back_is_a_failed_attempt(front, store, book):
    book.query("CREATE TABLE strict (id INTEGER UNIQUE ON CONFLICT ROLLBACK)")

    def act(ctx):
        ctx.with_checkpoint(book.enter, (ctx.attempt, "x"))
        ctx.with_checkpoint("INSERT INTO strict VALUES (?)", (1,))
        ctx.with_checkpoint("INSERT INTO strict VALUES (?)", (ctx.attempt,))

    assert list("abc") == front.run(act, store, retry=NOW)
    assert [(2, "x")] == book.rows
    assert ["commit"] == [op for op, _, _ in failures(store)]


@pytest.mark.stores("postgres")
@pytest.mark.parametrize(
    "sql",
    [
        "/* nested /* comments */ */ COMMIT",
        "SET search_path TO milepost",
        "RESET ALL",
        "DISCARD ALL",
        "LISTEN x",
        "COPY entries FROM STDIN",
        "DO $$ BEGIN COMMIT; END $$",
        "DO $$ BEGIN ROLLBACK; END $$",
        "EXECUTE nothing",
        "CREATE DATABASE more",
    ],
)
def test_postgres_statements_leave_transaction_and_session_alone(front, store, book, sql):
    def act(ctx):
        ctx.with_checkpoint(book.enter, (1, "never"))
        ctx.with_checkpoint(sql)

    with pytest.raises(front.error):
        front.run(act, store)
    assert ([], ["a"]) == (book.rows, recorded(store))


@pytest.mark.stores("postgres")
def test_constraints_that_wait_for_the_end_of_the_transaction_fail_the_attempt(front, store, book):
    book.query("DROP TABLE IF EXISTS pairs")
    book.query("CREATE TABLE pairs (id integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    def act(ctx):
        ctx.with_checkpoint("INSERT INTO pairs VALUES (1)")
        ctx.with_checkpoint("INSERT INTO pairs VALUES (%s)", (ctx.attempt,))

    try:
        assert list("abc") == front.run(act, store, retry=NOW)
        assert [(1,), (2,)] == book.query("SELECT id FROM pairs ORDER BY id")
        assert ["commit"] == [op for op, _, _ in failures(store)]
    finally:
        book.query("DROP TABLE pairs")


@BOTH
def test_only_sequences_and_mappings_are_params(front, store, book):
    seen = []

    def act(ctx):
        for sql, params in ((1, ()), (b"SELECT 1", ()), ("SELECT 1", "text"), ("SELECT 1", 5), ("SELECT 1", {1, 2})):
            with pytest.raises(TypeError) as caught:
                ctx.with_checkpoint(sql, params)
            seen.append(str(caught.value))

    front.run(act, store)
    assert "params are a sequence or a mapping, not set" == seen[-1]


@OTHERS
def test_other_stores_refuse_at_once(front, store):
    def act(ctx):
        ctx.with_checkpoint("SELECT 1")

    with pytest.raises(front.error, match="with SQLiteStore and PostgresStore") as caught:
        front.run(act, store)
    assert ("store", OptionError) == (caught.value.__cause__.option, type(caught.value.__cause__))
    assert ["execute"] == [op for op, _, _ in failures(store)]


def test_without_a_store_it_is_refused_at_once(verbs, log):
    def act(ctx):
        ctx.with_checkpoint("SELECT 1")

    with pytest.raises(NodeError, match="has no store"):
        verbs.run(graph_of(verbs, act, log), [])
    with pytest.raises(StepError, match="has no store"):
        verbs.run(workflow_of(verbs, act, log))


class Shelf:
    """A store with the methods of the small protocol."""

    def __init__(self) -> None:
        self.kept: dict[Any, bytes] = {}

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        self.kept[run_id, node_id] = data

    def load(self, run_id: str, node_id: str) -> bytes:
        return self.kept[run_id, node_id]

    def list(self, run_id: str) -> list[Any]:
        return []

    def delete(self, run_id: str, node_id: str) -> None:
        self.kept.pop((run_id, node_id), None)

    def delete_run(self, run_id: str) -> None:
        self.kept.clear()

    def close(self) -> None:
        pass


def test_a_users_own_store_refuses_at_once(front, caplog):
    caplog.set_level(logging.ERROR)

    def act(ctx):
        ctx.with_checkpoint("SELECT 1")

    with pytest.raises(front.error, match="executes no statements"):
        front.run(act, Shelf())


@BOTH
def test_it_is_refused_where_no_checkpoint_follows(verbs, store, book):
    kept = []

    def refused(ctx: Any) -> None:
        with pytest.raises(OptionError, match="no checkpoint follows"):
            ctx.with_checkpoint(book.enter, (1, "never"))

    def act(ctx, state: int) -> int:
        kept.append(ctx)
        return state

    def route(ctx, state: int) -> str:
        refused(ctx)
        return END

    graph = Graph(int).add_node("a", verbs.node(act)).add_conditional_edge("a", route, [END]).set_entry("a")
    assert 0 == verbs.run(graph.compile("routed"), 0, store=store)
    refused(kept[0])

    def undo(ctx: Any) -> None:
        refused(current())

    @workflow("undone")
    def undone(ctx: WorkflowContext):
        refused(ctx)
        yield step("a").python(verbs.node(lambda: 1)).when(lambda ctx: refused(ctx) is None).with_rollback(undo)
        yield step("b").python(verbs.node(lambda: 1 // 0))

    with pytest.raises(StepError, match="step 'b'"):
        verbs.run(undone, store=store)
    assert [] == book.rows


def test_nothing_is_handed_over_where_nothing_was_asked_for(front):
    seen: list[Append] = []

    class Watched(MemoryStore):
        def append(self, batch: Any) -> Any:
            seen.extend(batch)
            return super().append(batch)

    front.run(nothing, Watched())
    assert seen
    assert {()} == {append.statements for append in seen}
    assert isinstance(seen[0].token, Token)
