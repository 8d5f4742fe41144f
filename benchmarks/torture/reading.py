"""The journals that a store keeps, as plain values, and the log that the workers wrote.

A store is asked for nothing but the bytes of `export`. Of a SQLite file the tables are read too, by SQL, and must say
the same.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from benchmarks.torture.checking import Entry, Execution, Journal, Log, Saved
from milepost import RunNotFoundError, open_store

__all__ = ["parse_export", "read_journals", "read_log"]

_STATE = b',"state":'


def read_journals(url: str, run_ids: Iterable[str]) -> dict[str, Journal]:
    """The journals of those runs that the store at `url` has."""
    found = {}
    with open_store(url) as store:
        for run_id in run_ids:
            try:
                found[run_id] = store.export(run_id)
            except RunNotFoundError:
                continue
    rows = _sqlite_rows(url.removeprefix("sqlite:///"), found) if url.startswith("sqlite:///") else {}
    return {run_id: parse_export(run_id, data, rows.get(run_id)) for run_id, data in found.items()}


def parse_export(run_id: str, data: bytes, rows: list[Any] | None = None) -> Journal:
    """The journal in what `export` gave; `rows` is what the tables themselves say, if that is known."""
    run: Mapping[str, Any] = {}
    entries, damage = list[Entry](), list[str]()
    for line in data.splitlines():
        fields = json.loads(line)
        if "run" in fields:
            run = fields["run"]
        elif "sequence" in fields:
            kind = fields.get("kind", "checkpoint")
            entries.append(Entry(fields["sequence"], kind, fields["node_id"], fields["visit"], fields))
            damage += _damage(line, fields)
        else:
            damage.append(f"a line that is neither run nor record: {line[:60]!r}")
    if rows is not None and rows != [(run.get("status"), run.get("epoch")), *map(_bare, entries)]:
        damage.append("the tables say something else than the export")
    live = tuple((first, last) for _, first, last in run.get("live", ()))
    return Journal(run_id, run.get("status", ""), live, tuple(entries), tuple(damage))


def _damage(line: bytes, fields: Mapping[str, Any]) -> Iterator[str]:
    if _STATE in line and not fields.get("compressed"):
        state = line.partition(_STATE)[2][:-1]
        if fields.get("digest") != "sha256:" + hashlib.sha256(state).hexdigest():
            yield f"the digest of record {fields['sequence']} is not that of its state"


def _bare(entry: Entry) -> tuple[Any, ...]:
    header = {name: value for name, value in entry.fields.items() if name != "state"}
    return entry.sequence, entry.kind, entry.node_id, entry.visit, header


def _sqlite_rows(path: str, run_ids: Iterable[str]) -> dict[str, list[Any]]:
    """Status and epoch of each run, then the columns and header of each record, in their order."""
    connection = sqlite3.connect(f"{Path(unquote(path)).absolute().as_uri()}?mode=ro", uri=True)
    try:
        found = {}
        for run_id in run_ids:
            query = "SELECT id, status, epoch FROM runs WHERE run_id = ?"
            number, *row = connection.execute(query, (run_id,)).fetchone()
            query = "SELECT sequence, kind, node_id, visit, header FROM records WHERE run = ? ORDER BY sequence"
            records = connection.execute(query, (number,)).fetchall()
            found[run_id] = [tuple(row), *((*columns, json.loads(header)) for *columns, header in records)]
        return found
    finally:
        connection.close()


def read_log(path: Path) -> Log:
    """What the workers wrote, each line in one write."""
    log = Log()
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, *words = line.split(" ")
        if kind == "began":
            run_id, node_id, visit, attempt, pid, at = words
            log.executions.append(Execution(run_id, node_id, int(visit), int(attempt), int(pid), float(at)))
        elif kind == "saved":
            run_id, sequence, node_id = words
            log.saved.append(Saved(run_id, int(sequence), node_id))
        elif kind == "lost":
            log.lost += 1
        else:
            log.errors[" ".join(words)] += 1
    return log
