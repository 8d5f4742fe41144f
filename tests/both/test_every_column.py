"""Each column of each table and each field of a commit file, changed by somebody who has no key.

A store with keys must find each such change before user code runs and before anything of it is shown, or it makes no
difference. What is neither stands in `NOT_PROVEN`, and in docs/security.md with what a writer can do with it. The columns
and fields are read from the medium, so a new one fails here until it is proven or listed.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
import psycopg.rows
import pytest

from milepost import END, Graph, RunSuspended, SQLiteStore, Steps, step, workflow
from milepost.errors import CheckpointCorruptError, CheckpointVersionError, MilepostError, RunStopped, StoreError
from milepost.stores.file.commit import Header, Placed, PlacedSignal, RowText, summed
from milepost.stores.file.store import FileStore
from milepost.stores.postgres.store import PostgresStore
from milepost.testing import FakeClock
from milepost.views.journal import is_workflow, records_of
from milepost.views.status import view_run

SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}}
KEYS = {"signed": SIGNED, "both": {**SIGNED, "encryption_key": {"e": b"encryption key, exactly 32 bytes"}}}
TAGS = {"team": "red"}


def named(part: str, fields: str) -> set[str]:
    return {f"{part}.{field}" for field in fields.split()}


PROVEN = {
    *named("runs", "id status reason wake_at waiting cancel degraded missed sequence blocked_by seal life"),
    *named("records", "id kind node_id visit size payload header"),
    *named("signals", "payload name signal_id wait_id sent_at sent_by"),
    # In files:
    *named("records", "base64"),
    *named("signals", "to by base64"),
    *named("commit", "version commit first checkpoint signalled removal removed count size row"),
}
"""Where a change is found before anything comes of it, or makes no difference."""

UNUSED = {
    *named("runs", "nonce lease crash_count crashed_at live rested_at"),
    *named("commit", "last records"),
}
"""Columns that are listed as not proven, and that no verb makes use of, or is not misled by, in the runs of this test."""

NOT_PROVEN = UNUSED | {
    *named("runs", "run_id flow tags created_at updated_at owner epoch lease_until worked signals"),
    *named("run_tags", "name value run tag"),
    *named("workers", "name time body"),
    *named("paused_schedules", "name time body"),
    *named("records", "run sequence packing"),
    *named("signals", "run number"),
    *named("commit", "due signals is_deleted"),
}
"""The table in docs/security.md. `live_events` has tests of its own: an event whose seal does not fit is left out."""

# -- the runs -------------------------------------------------------------------------------------------------

executed: list[Any] = []
"""What user code was called with."""


def counted(state: dict[str, Any]) -> dict[str, Any]:
    executed.append(state)
    return {**state, "n": state["n"] + 1}


def answered(state: dict[str, Any], reply: Any) -> dict[str, Any]:
    executed.append(reply.payload)
    return {**state, "reply": reply.payload}


GRAPH = (
    Graph(dict)
    .add_node("a", counted)
    .add_node("b", counted)
    .add_wait("ask", "go", apply=answered, prompt="go on?", payload=int)
    .add_node("c", counted)
    .add_edge("a", "b")
    .add_edge("b", "ask")
    .add_edge("ask", "c")
    .add_edge("c", END)
    .set_entry("a")
    .compile("graph")
)


def enlarged(n: int, text: str) -> dict[str, Any]:
    executed.append(n)
    return {"n": n, "text": text}


@workflow("flow")
def flow(n: int, text: str) -> Steps[Any]:
    """Two large values, and a wait."""
    first = yield from step("a").python(enlarged, args=(n, text))
    second = yield from step("b").python(enlarged, args=(first["n"] + 1, text))
    reply = yield from step("ask").wait_for("go", payload=int)
    return [second["n"], reply.payload]


def large(seed: int) -> str:
    return " ".join(str(number * seed) for number in range(1500))


def begin(store: Any, seed: int) -> None:
    """Begin the runs; `seed` tells those of two stores apart."""
    state = {"n": seed, "text": large(seed)}
    for run_id in ("rests", "told", "asks", "ended"):
        with pytest.raises(RunStopped):
            GRAPH.run(state, store=store, run_id=run_id, tags=TAGS, stop_after="a")
    store.save("told", "a", store.load("told", "a"))
    for run_id in ("flow", "flow told"):
        with pytest.raises(RunSuspended):
            flow.run(seed, large(seed), store=store, run_id=run_id, tags=TAGS)


def go_on(store: Any, seed: int) -> None:
    """Go on with them: one rests after its first node, two wait, two were told, one has ended."""
    for run_id in ("told", "asks", "ended"):
        with pytest.raises(RunSuspended):
            GRAPH.resume(store, run_id)
    for run_id in ("told", "asks", "flow", "flow told"):
        store.put_signal(run_id, "later", b"%d" % seed, signal_id=f"l{seed}", by=f"ann{seed}")
    for run_id in ("told", "flow told", "ended"):
        store.put_signal(run_id, "go", b"%d" % (seed + 1), by=f"ann{seed}")
    GRAPH.resume(store, "ended")


OTHERS = {"told": "asks", "asks": "told", "flow": "flow told", "flow told": "flow", "rests": "ended", "ended": "rests"}
"""Each run, and the one whose values are put into it."""


# -- what is shown and done -----------------------------------------------------------------------------------

FOUND = "found"


def look(call: Callable[[], Any]) -> Any:
    """What a call gives or raises, as text; `FOUND` for the error of a store or a checkpoint."""
    try:
        given = call()
        return given if given == FOUND else repr(given)
    except (StoreError, CheckpointCorruptError, CheckpointVersionError):
        return FOUND
    except MilepostError as exc:
        return repr(exc)


def shown(store: Any, run_id: str) -> Any:
    """What `milepost show` shows."""
    return view_run(store.latest(run_id), records_of(store, run_id), "", is_workflow(store, run_id))


def listed(store: Any, run_id: str) -> Any:
    """The list of runs, and those with a tag; `FOUND` if the run is listed as damaged."""
    infos = {info.run_id: info for info in store.list_runs()}
    if run_id in infos and infos[run_id].blocked_by == "damage":
        return FOUND
    return infos, sorted(info.run_id for info in store.list_runs(tags=TAGS))


def seen_of(store: Any, run_id: str) -> dict[str, Any]:
    """What the verbs that only look show of a run."""
    owner = flow if run_id.startswith("flow") else GRAPH
    calls: dict[str, Callable[[], Any]] = {
        "get_run": lambda: store.get_run(run_id),
        "list_runs": lambda: listed(store, run_id),
        "latest": lambda: store.latest(run_id, with_nodes=True),
        "history": lambda: store.history(run_id),
        "signals": lambda: store.signals(run_id),
        "cancels": lambda: store.cancels([run_id]),
        "plan_resume": lambda: owner.plan_resume(store, run_id),
        "show": lambda: shown(store, run_id),
        "verify": lambda: FOUND if store.verify(run_id).problems else "ok",
    }
    return {name: look(call) for name, call in calls.items()}


def done_to(store: Any, run_id: str) -> dict[str, Any]:
    """What is executed when somebody goes on with a run, and what comes out."""
    owner = flow if run_id.startswith("flow") else GRAPH
    done = {}
    for name in ("resume", "resume after an answer"):
        executed.clear()
        result = look(lambda: owner.resume(store, run_id))
        done[name] = FOUND if result == FOUND and not executed else (result, str(executed))
        if result == FOUND or not result.startswith("RunSuspended"):
            break
        done["signal"] = look(lambda: store.put_signal(run_id, "go", b"7"))
    return done


def claimed_from(store: Any, run_id: str) -> dict[str, Any]:
    """What a worker takes. It is right to take no run that is listed as damaged."""
    if listed(store, run_id) == FOUND:
        assert run_id not in taken(store)
        return {"claim_due": FOUND}
    return {"claim_due": look(lambda: taken(store))}


def taken(store: Any) -> list[str]:
    return sorted(row.info.run_id for _, row in store.claim_due(["graph", "flow"], 9))


LOOKING = {"get_run", "list_runs", "latest", "history", "signals", "cancels", "plan_resume", "show", "verify"}


def differences(honest: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The verbs that show or do something else although no error tells what was changed.

    What is only shown may differ once `get_run` or `verify` tell the change; what is executed may never differ.
    """
    is_told = FOUND in {after.get("get_run"), after.get("verify")}
    return [
        name
        for name, seen in after.items()
        if seen != FOUND and seen != honest.get(name, seen) and not (is_told and name in LOOKING)
    ]


# -- the media: what stands where, and how it is changed ------------------------------------------------------


class Cell(NamedTuple):
    """One place in what is kept of a run: a table or a part of a file, the row in it, and the column or field."""

    part: str
    key: tuple[int, ...]
    """The same in all stores and runs: the number of a record or signal, and of a file's commit."""
    field: str

    @property
    def name(self) -> str:
        return f"{self.part}.{self.field}"

    @property
    def before(self) -> Cell:
        """The same place of the record, signal or commit before."""
        return self._replace(key=(*self.key[:-1], self.key[-1] - 1)) if self.key else self


Values = dict[Cell, Any]
KEYS_OF_ROWS = {"runs": (), "records": ("sequence",), "signals": ("number",), "run_tags": ()}


class Tables:
    """The tables of a database, which `ask` reads and writes."""

    mark = "?"
    schema = ""

    def ask(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        raise NotImplementedError

    def values(self, run_id: str) -> Values:
        found: Values = {}
        (number,) = [row["id"] for row in self.rows("runs") if row["run_id"] == run_id]
        for table, names in KEYS_OF_ROWS.items():
            for row in self.rows(table):
                if row["id" if table == "runs" else "run"] == number:
                    key = tuple(row[name] for name in names)
                    found |= {Cell(table, key, field): value for field, value in row.items()}
        return found

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.ask(f"SELECT * FROM {self.schema}{table}")

    def write(self, run_id: str, cell: Cell, value: Any) -> bool:
        """Return whether the database takes the value."""
        mark = self.mark
        number = f"(SELECT id FROM {self.schema}runs WHERE run_id = {mark})"
        places = ["id" if cell.part == "runs" else "run", *KEYS_OF_ROWS[cell.part]]
        where = " AND ".join(f"{name} = {number if at == 0 else mark}" for at, name in enumerate(places))
        try:
            self.ask(
                f"UPDATE {self.schema}{cell.part} SET {cell.field} = {mark} WHERE {where}", value, run_id, *cell.key
            )
        except (sqlite3.Error, psycopg.Error):
            return False
        return True


class SQLiteFile(Tables):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs.db"

    def open(self, keys: Any) -> Any:
        return SQLiteStore(self.path, durability="normal", clock=FakeClock(), **keys)

    def ask(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement, values)]

    def all_columns(self) -> set[str]:
        tables = [row["name"] for row in self.ask("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {f"{table}.{row['name']}" for table in tables for row in self.ask(f"PRAGMA table_info({table})")}

    def keep(self) -> None:
        self.kept = self.path.read_bytes()

    def put_back(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.path.write_bytes(self.kept)


class Schema(Tables):
    mark = "%s"
    schema = "milepost."

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True, row_factory=psycopg.rows.dict_row)

    def open(self, keys: Any) -> Any:
        return PostgresStore(self.dsn, clock=FakeClock(), **keys)

    def ask(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(statement, values)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []

    def all_columns(self) -> set[str]:
        found = self.ask(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'milepost'"
        )
        return {f"{row['table_name']}.{row['column_name']}" for row in found}

    def keep(self) -> None:
        self.ask("DROP SCHEMA IF EXISTS kept CASCADE")
        self.ask("CREATE SCHEMA kept")
        for table in KEYS_OF_ROWS:
            self.ask(f"CREATE TABLE kept.{table} AS TABLE milepost.{table}")

    def put_back(self) -> None:
        with self.connection.transaction():
            self.ask("SET LOCAL session_replication_role = replica")
            for table in KEYS_OF_ROWS:
                names = ", ".join(name for name in self.rows_of(table) if name != "rested_at")
                self.ask(f"DELETE FROM milepost.{table}")
                self.ask(
                    f"INSERT INTO milepost.{table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM kept.{table}"
                )

    def rows_of(self, table: str) -> list[str]:
        found = self.ask(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'kept' AND table_name = %s", table
        )
        return [row["column_name"] for row in found]


class Folder:
    """A file store: the first lines of the commits of a run, and the headers of the records below them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs"
        self.copy = folder / "kept"

    def open(self, keys: Any) -> Any:
        return FileStore(self.path, clock=FakeClock(), **keys)

    def all_columns(self) -> set[str]:
        parts = {"commit": Header, "runs": RowText, "records": Placed, "signals": PlacedSignal}
        return {f"{part}.{field}" for part, kind in parts.items() for field in kind.__struct_fields__}

    def values(self, run_id: str) -> Values:
        found: Values = {}
        commits = self.commits(run_id)
        for number, path in enumerate(commits):
            line = json.loads(path.read_bytes().partition(b"\n")[0])
            line.pop("sum")
            parts: list[tuple[str, tuple[int, ...], dict[str, Any], Any]] = []
            if path == commits[-1]:  # of the others no row is read
                parts = [("commit", (number,), line, Header), ("runs", (number,), line["row"], RowText)]
            for part, kind in (("records", Placed), ("signals", PlacedSignal)):
                parts += [(part, (number, at), each, kind) for at, each in enumerate(line.get(part, []))]
            for part, key, content, kind in parts:
                assert content.keys() <= {*kind.__struct_fields__}
                found |= {Cell(part, key, field): content.get(field) for field in kind.__struct_fields__}
        return found

    def commits(self, run_id: str) -> list[Path]:
        return sorted((self.path / quote(run_id)).glob("*/0*"))

    def write(self, run_id: str, cell: Cell, value: Any) -> bool:
        if isinstance(value, bytes):
            return False
        path = self.commits(run_id)[cell.key[0]]
        first, _, rest = path.read_bytes().partition(b"\n")
        line = json.loads(first)
        line.pop("sum")
        content = (
            line if cell.part == "commit" else line["row"] if cell.part == "runs" else line[cell.part][cell.key[1]]
        )
        content[cell.field] = value
        path.write_bytes(summed(json.dumps(line, separators=(",", ":")).encode()) + b"\n" + rest)
        return True

    def keep(self) -> None:
        shutil.copytree(self.path, self.copy)

    def put_back(self) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self.copy, self.path)


# -- the five ways to change a value --------------------------------------------------------------------------

STATUSES = ("ready", "running", "waiting", "interrupted", "blocked", "failed", "finished", "cancelled")
OTHER_VALUES: dict[str, list[Any]] = {
    "status": [*STATUSES],
    "tags": ['{"team":"blue"}', {"team": "blue"}],
    "live": ["[[0,2]]", [[0, 2]]],
    "missed": ['["x"]', ["x"]],
    "removed": [[[1, 2]]],
    "kind": ["finish", "checkpoint", "owner"],
}


def changed(field: str, value: Any) -> list[Any]:
    if field in OTHER_VALUES:
        return OTHER_VALUES[field]
    match value:
        case None:
            return [True, 9e9, "x", b"x"]
        case bool():
            return [not value]
        case int() | float():
            return [value + 1, value + 10**6, value - 10**6]
        case bytes():
            return [bytes([value[0] ^ 1]) + value[1:] if value else b"x"]
        case str():
            return [f"{value}x", re.sub(r"\w(?=\W*$)", "0", value)]
        case _:
            return [[], {}]


def emptied(value: Any) -> list[Any]:
    match value:
        case str():
            return ["", None, *(["[]"] if value[:1] == "[" else ["{}"] if value[:1] == "{" else [])]
        case bytes():
            return [b"", None]
        case _:
            return [0, None]


MISSING: Any = object()


class Source(NamedTuple):
    """The values of a run, and those that may be put in their place."""

    now: Values
    other_run: Values
    other_store: Values
    earlier: Values

    def ways(self, cell: Cell) -> Iterator[tuple[str, Any]]:
        value = self.now[cell]
        given = [("changed", other) for other in changed(cell.field, value)]
        given += [("emptied", other) for other in emptied(value)]
        given += [
            ("other run", self.other_run.get(cell, MISSING)),
            ("other store", self.other_store.get(cell, MISSING)),
        ]
        given += [("earlier", self.earlier.get(cell, MISSING)), ("before", self.now.get(cell.before, MISSING))]
        tried = [(type(value), value)]
        for way, other in given:
            if other is not MISSING and (type(other), other) not in tried:
                tried.append((type(other), other))
                yield way, other


def unproven(
    medium: Any, other: Any, keys: Any, victims: Iterable[str], *, is_small: bool = False
) -> dict[str, dict[str, set[str]]]:
    """Try all changes of the runs `victims`: the columns that were not found, what was changed, and the verbs that differ."""
    with other.open(keys) as store:
        begin(store, 5)
        go_on(store, 5)
    with medium.open(keys) as store:
        begin(store, 3)
    earlier = {run_id: medium.values(run_id) for run_id in victims}
    with medium.open(keys) as store:
        go_on(store, 3)
    medium.keep()
    missed: dict[str, dict[str, set[str]]] = {}
    for run_id in victims:
        values = medium.values(run_id)
        source = Source(values, medium.values(OTHERS[run_id]), other.values(run_id), earlier[run_id])
        honest = observed(medium, keys, run_id, lambda: True)
        for cell in values:
            if is_small and cell.part == "records" and cell.key != (2,):
                continue
            for way, value in source.ways(cell):
                after = observed(
                    medium,
                    keys,
                    run_id,
                    lambda: medium.write(run_id, cell, value),  # noqa: B023
                    claims=cell.part in {"runs", "commit"},
                )
                for name in differences(honest, after):
                    change = f"{run_id} {cell.key} {way} {value!r}"[:90]
                    missed.setdefault(cell.name, {}).setdefault(name, set()).add(change)
    return missed


def observed(medium: Any, keys: Any, run_id: str, change: Callable[[], bool], *, claims: bool = True) -> dict[str, Any]:
    """What the verbs show and do after a change; nothing if the medium does not take it."""
    medium.put_back()
    if not change():
        return {}
    with medium.open(keys) as store:
        seen = seen_of(store, run_id) | done_to(store, run_id)
    if not claims:
        return seen
    medium.put_back()
    change()
    with medium.open(keys) as store:
        return seen | claimed_from(store, run_id)


# -- the tests ------------------------------------------------------------------------------------------------


def columns_in(medium: Any) -> set[str]:
    """The columns of the medium, without those that are of no run."""
    with medium.open(SIGNED):
        found: set[str] = medium.all_columns()
    return {name for name in found if not name.startswith(("migrations.", "live_events.", "sqlite_"))}


def two(kind: Callable[[Path], Any], folder: Path) -> tuple[Any, Any]:
    """A medium, and another one of the same kind."""
    for name in ("one", "other"):
        (folder / name).mkdir()
    return kind(folder / "one"), kind(folder / "other")


def test_every_column_of_sqlite_is_proven_or_listed(tmp_path):
    assert columns_in(SQLiteFile(tmp_path)) <= PROVEN | NOT_PROVEN


def test_every_field_of_a_commit_is_proven_or_listed(tmp_path):
    assert columns_in(Folder(tmp_path)) <= PROVEN | NOT_PROVEN


def test_what_is_not_proven_stands_in_the_docs():
    assert not PROVEN & NOT_PROVEN
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    table = page.partition("## What is not proven")[2].partition("\n## ")[0]
    listed = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+\.\w+)`", line.split("|")[1])
    }
    assert listed == NOT_PROVEN


def test_no_change_of_a_column_passes_that_is_not_listed(tmp_path):
    missed = unproven(*two(SQLiteFile, tmp_path), SIGNED, ["flow"], is_small=True)
    assert missed.keys() <= NOT_PROVEN - UNUSED, missed


@pytest.mark.wide
@pytest.mark.parametrize("run_id", ["told", "ended", "rests"])
def test_no_change_of_other_runs_passes(tmp_path, run_id):
    missed = unproven(*two(SQLiteFile, tmp_path), SIGNED, [run_id])
    assert missed.keys() <= NOT_PROVEN - UNUSED, missed


@pytest.mark.wide
@pytest.mark.parametrize(("kind", "keys"), [(SQLiteFile, "both"), (Folder, "signed"), (Folder, "both")])
def test_keys_prove_the_same_columns_everywhere(tmp_path, kind, keys):
    missed = unproven(*two(kind, tmp_path), KEYS[keys], ["flow"], is_small=True)
    assert missed.keys() <= NOT_PROVEN - UNUSED, missed


@pytest.mark.wide
@pytest.mark.parametrize("keys", KEYS)
def test_postgres_proves_the_same_columns(postgres, tmp_path, keys):
    medium, other = Schema(postgres), SQLiteFile(tmp_path)
    with medium.connection:
        missed = unproven(medium, other, KEYS[keys], ["flow"], is_small=True)
        assert missed.keys() <= NOT_PROVEN - UNUSED, missed
        assert columns_in(medium) <= PROVEN | NOT_PROVEN
