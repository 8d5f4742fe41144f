"""Somebody who can write to a store's medium, but has no key: changes records and signals where they are kept.

Each medium is changed with its own means, past the store: the dict of a memory store, SQL, the files of a folder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from milepost.model.record import Record
from milepost.store import Signal
from milepost.stores.base.fence import Row
from milepost.stores.file.commit import Lines, encode, load

__all__ = ["Attacker"]

Change = Callable[[Record], Record]

_UPDATE = """
UPDATE {records} SET kind = {0}, node_id = {0}, visit = {0}, size = {0}, header = {0}, payload = {0}, packing = {0}
WHERE sequence = {0} AND run = (SELECT id FROM {runs} WHERE run_id = {0})
"""
_DELETE = "DELETE FROM {records} WHERE sequence = {0} AND run = (SELECT id FROM {runs} WHERE run_id = {0})"


class Attacker:
    """Works on one medium; `kind` and `path` are those of the tests' own `Medium`."""

    def __init__(self, kind: str, path: Any) -> None:
        self._kind = kind
        self._path = path

    def kept(self, store: Any, run_id: str, sequence: int) -> Record:
        """The record as the medium has it."""
        with store._read("look") as tx:
            (record,) = tx.records(run_id, after=sequence - 1, before=sequence + 1)
        assert isinstance(record, Record)
        return record

    def change(self, store: Any, run_id: str, sequence: int, change: Change) -> None:
        """Put `change(record)` in the record's place; its number stays, even if the new one has another."""
        if self._kind == "memory":
            self._change_memory(store, run_id, sequence, change)
        elif self._kind == "file":
            self._change_file(run_id, sequence, change)
        else:
            self._change_row(run_id, sequence, change(self.kept(store, run_id, sequence)))

    def remove(self, store: Any, run_id: str, sequence: int) -> None:
        """Take a record away, as if it had never been there."""
        if self._kind == "memory":
            run = store._runs[run_id]
            run.records[:] = [record for record in run.records if record.sequence != sequence]
            for records in run.by_node.values():
                records[:] = [record for record in records if record.sequence != sequence]
        elif self._kind == "file":
            self._rewrite_file(run_id, sequence, lambda records: [r for r in records if r.sequence != sequence])
        elif self._kind == "postgres":
            with psycopg.connect(self._path) as connection:
                delete = _DELETE.format("%s", records="milepost.records", runs="milepost.runs")
                assert 1 == connection.execute(delete, (sequence, run_id)).rowcount  # type: ignore[call-overload]
        else:
            with closing(sqlite3.connect(self._path)) as connection, connection:
                delete = _DELETE.format("?", records="records", runs="runs")
                assert 1 == connection.execute(delete, (sequence, run_id)).rowcount

    def change_row(self, store: Any, run_id: str, change: Callable[[Row], Row]) -> Row:
        """Put `change(row)` in the place of the run's row; return the row that was there."""
        with store._write("change") as tx:
            row: Row = tx.row(run_id)
            tx.put_row(change(row))
        return row

    def send(self, store: Any, run_id: str, signal: Signal) -> None:
        """Put a signal there as if it had been sent."""
        with store._write("send") as tx:
            tx.add_signal(run_id, signal)

    def delay(self, store: Any, run_id: str, sent_at: float) -> None:
        """Let the run's signals have been sent at another time."""
        if self._kind == "memory":
            signals = store._runs[run_id].signals
            signals[:] = [signal._replace(sent_at=sent_at) for signal in signals]
        elif self._kind == "file":
            for path in Path(self._path, run_id).glob("*/0*"):
                commit = load(str(path), run_id, int(path.name), "whole")
                records = [commit.record(at, placed) for at, placed in commit.places()]
                signals = [signal._replace(sent_at=sent_at) for signal in commit.signals()]
                path.write_bytes(encode(commit.header, Lines(records, signals)))
        elif self._kind == "postgres":
            with psycopg.connect(self._path) as connection:
                connection.execute("UPDATE milepost.signals SET sent_at = %s", (sent_at,))
        else:
            with closing(sqlite3.connect(self._path)) as connection, connection:
                connection.execute("UPDATE signals SET sent_at = ?", (sent_at,))

    def everything(self, store: Any) -> bytes:
        """All bytes that the medium has, as they lie there."""
        if self._kind == "memory":
            return repr(store._runs).encode()
        if self._kind == "postgres":
            with psycopg.connect(self._path) as connection:
                tables = ("runs", "records", "signals")
                found = [connection.execute(f"SELECT * FROM milepost.{table}").fetchall() for table in tables]  # type: ignore[arg-type]
            return repr(found).encode()
        paths = [path for path in self._path.parent.rglob("*") if path.is_file()]
        return b"\n".join(bytes(path) + b"\n" + path.read_bytes() for path in paths)

    def _change_memory(self, store: Any, run_id: str, sequence: int, change: Change) -> None:
        run = store._runs[run_id]
        place = next(i for i, record in enumerate(run.records) if record.sequence == sequence)
        old = run.records[place]
        run.records[place] = new = change(old)._replace(sequence=sequence)
        run.by_node[old.node_id].remove(old)
        run.by_node.setdefault(new.node_id, []).append(new)
        run.by_node[new.node_id].sort(key=lambda record: record.sequence)

    def _change_row(self, run_id: str, sequence: int, new: Record) -> None:
        _, kind, node_id, visit, size, header, payload, packing = new
        text = None if header is None else (header + b"}").decode()
        values = (kind, node_id, visit, size, text, payload, packing, sequence, run_id)
        if self._kind == "postgres":
            update = _UPDATE.format("%s", records="milepost.records", runs="milepost.runs")
            with psycopg.connect(self._path) as connection:
                assert 1 == connection.execute(update, values).rowcount  # type: ignore[call-overload]
            return
        with closing(sqlite3.connect(self._path)) as connection, connection:
            assert 1 == connection.execute(_UPDATE.format("?", records="records", runs="runs"), values).rowcount

    def _change_file(self, run_id: str, sequence: int, change: Change) -> None:
        def changed(records: list[Record]) -> list[Record]:
            return [
                change(record)._replace(sequence=sequence) if record.sequence == sequence else record
                for record in records
            ]

        self._rewrite_file(run_id, sequence, changed)

    def _rewrite_file(self, run_id: str, sequence: int, change: Callable[[list[Record]], list[Record]]) -> None:
        # The ids of these tests stand for themselves in the names of folders.
        for path in sorted(Path(self._path, run_id).glob("*/0*")):
            commit = load(str(path), run_id, int(path.name), "whole")
            records = [commit.record(at, placed) for at, placed in commit.places()]
            if sequence in {record.sequence for record in records}:
                path.write_bytes(encode(commit.header, Lines(change(records), list(commit.signals()))))
                return
        raise AssertionError(f"run {run_id!r} has no record {sequence}")
