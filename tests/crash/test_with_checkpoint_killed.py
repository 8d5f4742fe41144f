"""Statements that count with a checkpoint, in processes that die: at any moment there is a row for each checkpoint."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from crashes_of_steps import Outside, Subject, play
from processes import Forks, die_at

from milepost import (
    END,
    CompiledGraph,
    Context,
    Graph,
    LeaseLost,
    Retry,
    SQLiteStore,
    Steps,
    Store,
    current,
    parallel,
    step,
    workflow,
)
from milepost.errors import StatementError
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Write
from milepost.model.ids import Clock
from milepost.stores.postgres.store import PostgresStore
from milepost.stores.url import open_store
from milepost.testing import FakeClock, Stepper, crashtest
from milepost.verbs import Job, flow_of

Stores = Callable[[Clock], Store]


class Rows:
    """The user's table in the database of a store: a row for each statement that took effect."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.records = "milepost.records" if self._is_served else "records"
        self.query("DROP TABLE IF EXISTS done")
        self.query("CREATE TABLE done (node_id text, visit integer)")

    @property
    def _is_served(self) -> bool:
        return self.url.startswith("postgresql")

    def query(self, sql: str) -> list[Any]:
        if self._is_served:
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(sql)
                return cursor.fetchall() if cursor.description else []
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()

    @property
    def all(self) -> list[tuple[str, int]]:
        return self.query("SELECT node_id, visit FROM done ORDER BY node_id, visit")

    def without_checkpoint(self) -> tuple[int, int]:
        """How many rows have no checkpoint, and how many checkpoints no row, as of one moment."""
        pairs = f"SELECT node_id, visit FROM {self.records} WHERE kind = 'checkpoint' AND node_id LIKE '%+'"
        both = "SELECT (SELECT count(*) FROM ({} EXCEPT {}) AS a), (SELECT count(*) FROM ({} EXCEPT {}) AS b)"
        mine = "SELECT node_id, visit FROM done"
        (found,) = self.query(both.format(mine, pairs, pairs, mine))
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    postgres: str = request.getfixturevalue("postgres")
    return postgres


@pytest.fixture
def rows(url: str) -> Iterator[Rows]:
    with open_store(url):
        rows = Rows(url)
    yield rows
    rows.query("DROP TABLE done")


@pytest.fixture
def opened(url: str) -> Stores:
    if url.startswith("postgresql"):
        return lambda clock: PostgresStore(url, clock=clock)
    return lambda clock: SQLiteStore(url.removeprefix("sqlite:///"), clock=clock)


def enter(ctx: Context[Any], *, wrong: bool = False) -> None:
    """Ask for the row of this visit."""
    assert ctx.store is not None
    mark = "%s" if ctx.store.place.startswith("postgresql") else "?"
    table = "nowhere" if wrong else "done"
    ctx.with_checkpoint(f"INSERT INTO {table} VALUES ({mark}, {mark})", (ctx.node_id, ctx.visit))


def looping() -> CompiledGraph[int]:
    """Three nodes, two of them visited twice: each enters its row, one of them at its second attempt only."""

    def add(ctx: Context[Any], state: int) -> int:
        enter(ctx)
        return state + 1

    def stumble(ctx: Context[Any], state: int) -> int:
        enter(ctx)
        if ctx.attempt == 1:
            enter(ctx, wrong=True)
        return state + 1

    graph = Graph(int).add_node("a+", add).add_node("b+", stumble, retry=Retry(max_attempts=9, backoff=0))
    graph.add_node("c+", add).add_edge("a+", "b+").add_edge("c+", END)
    graph.add_conditional_edge("b+", lambda n: "a+" if n < 4 else "c+", ["a+", "c+"])
    return graph.set_entry("a+").compile("looping")


def forked() -> CompiledGraph[int]:
    """Two branches at once and a node after them; one branch's first attempt fails with its statements."""

    def add(ctx: Context[Any], state: int) -> int:
        enter(ctx)
        return state + 1

    def stumble(ctx: Context[Any], state: int) -> int:
        enter(ctx)
        if ctx.attempt == 1:
            enter(ctx, wrong=True)
        return state + 1

    graph = Graph(int).add_node("a", lambda n: n).add_node("b+", add)
    graph.add_node("c+", stumble, retry=Retry(max_attempts=9, backoff=0))
    graph.add_node("d+", add, merge=lambda base, found: base + sum(found.values()))
    graph.add_edge("a", "b+").add_edge("a", "c+").add_edge("b+", "d+").add_edge("c+", "d+").add_edge("d+", END)
    return graph.set_entry("a").compile("forked")


LOOPED = [("a+", 1), ("a+", 2), ("b+", 1), ("b+", 2), ("c+", 1)]


FORKED = [("b+", 1), ("c+", 1), ("d+", 1)]


@pytest.mark.parametrize(
    ("make", "expected", "places"), [(looping, LOOPED, 40), (forked, FORKED, 20)], ids=["looping", "forked"]
)
def test_a_graph_that_dies_at_any_effect_has_a_row_for_each_checkpoint(
    make: Callable[[], CompiledGraph[int]], expected: list[tuple[str, int]], places: int, rows: Rows, opened: Stores
) -> None:
    seen: list[list[tuple[str, int]]] = []

    def before() -> None:
        seen.append(rows.all)
        rows.query("DELETE FROM done")

    report = crashtest(make(), 0, store=opened, before=before)
    assert ([], expected) == (seen[0], rows.all)
    assert len(seen) > report.scenarios > places
    assert [expected] * (len(seen) - 1) == seen[1:]


def at_once(outside: Outside) -> Any:
    """Steps one after the other and at once, each of which enters its row."""

    def act(name: str, fails: bool = False) -> str:
        outside.note(f"do {name}")
        ctx = current()
        enter(ctx)
        if fails and ctx.attempt == 1:
            enter(ctx, wrong=True)
        return name

    @workflow("at_once")
    def flow() -> Steps[list[Any]]:
        first = yield step("first+").python(act, args=("first+",))
        told = yield parallel(
            "all",
            step("a+").python(act, args=("all/a+",)),
            step("b+").python(act, args=("all/b+", True)).retry(9, backoff=0),
            step("c").python(lambda: "c"),
        )
        last = yield step("last+").python(act, args=("last+", True)).retry(9, backoff=0)
        return [first, told.child_results[1].output, last]

    return flow


def test_a_workflow_that_dies_at_any_effect_has_a_row_for_each_checkpoint(rows: Rows, opened: Stores) -> None:
    subject = Subject(at_once)
    number, expected = 0, [("all/a+", 1), ("all/b+", 1), ("first+", 1), ("last+", 1)]
    while True:
        for is_after in (False, True):
            rows.query("DELETE FROM done")
            ending = play(subject, ((number, is_after),), opened)
            assert ("finished", expected) == (ending.status, rows.all), ending.crashes
            assert ([], ()) == (ending.again, ending.problems), ending.crashes
        if not ending.crashes:
            break
        number += 1
    assert number > 20


# -- killed for real, at moments of the commit -------------------------------------------------------------------


def die_in_a_commit(url: str, log: str, run_id: str, commit: int, moment: int) -> None:
    """Run, and die at a moment of the append with this number, from 1, that has statements."""
    with open_store(url) as store:
        commits = 0
        append = store.append

        def tried(batch: Any) -> Any:
            try:
                return append(batch)
            except StatementError as exc:
                return exc

        def counted(batch: Any) -> Any:
            nonlocal commits
            commits += bool(batch[0].statements)
            told = (die_at(moment, tried) if commits == commit and batch[0].statements else tried)(batch)
            if isinstance(told, StatementError):
                raise told
            return told

        store.append = counted  # type: ignore[method-assign]
        looping().run(0, store=store, run_id=run_id)


def kill_at_moments(forks: Forks, url: str, log: str, rows: Rows, commit: int, parts: int) -> None:
    told = forks.call(die_in_a_commit, url, log, "whole", commit, -1).told
    (moments,) = (number for kind, number in told if kind == "moments")
    rows.query("DELETE FROM done")
    with open_store(url) as store:
        store.delete_run("whole")
        for part in range(parts + 1):
            moment = moments * part // parts if part < parts else sys.maxsize
            assert forks.call(die_in_a_commit, url, log, "r", commit, moment).was_killed
            assert (0, 0) == rows.without_checkpoint()
            assert 4 <= looping().run(0, store=store, run_id="r", if_exists="resume")
            assert (0, 0) == rows.without_checkpoint()
            assert LOOPED == rows.all
            assert store.verify("r").ok
            store.delete_run("r")
            rows.query("DELETE FROM done")


@pytest.mark.parametrize("commit", [1, 2, 7])
def test_a_process_killed_in_a_commit_leaves_both_or_neither(
    commit: int, forks: Forks, url: str, log: str, rows: Rows
) -> None:
    kill_at_moments(forks, url, log, rows, commit, parts=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("commit", range(1, 8))
def test_a_process_killed_at_many_moments_of_a_commit_leaves_both_or_neither(
    commit: int, forks: Forks, url: str, log: str, rows: Rows
) -> None:
    kill_at_moments(forks, url, log, rows, commit, parts=7)


# -- who was overtaken -------------------------------------------------------------------------------------------


def test_a_process_that_was_frozen_before_its_commit_executes_nothing(rows: Rows, opened: Stores) -> None:
    clock = FakeClock()
    with opened(clock) as mine, opened(clock) as other:
        frozen = Stepper(Job(flow_of(looping()), mine, "r", {}, {"clock": clock}, None).routine(0), clock=clock)
        write = frozen.run_until(Write)
        assert write.append.statements
        clock.advance(31)
        Stepper(
            Job(flow_of(looping()), other, "r", {}, {"clock": clock}, ResumeRequest()).routine(None), clock=clock
        ).run()
        assert LOOPED == rows.all
        with pytest.raises(LeaseLost):
            frozen.run()
        assert ((0, 0), LOOPED) == (rows.without_checkpoint(), rows.all)
        assert other.verify("r").ok
