"""Runs, records and claims for tests of stores, built as an engine builds them.

Each function fills in what a test does not care about. Times are POSIX seconds; with a store at
hand they come from its clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal

from milepost.model.ranges import Ranges
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, OWNER, START, Record, format_time, make_record
from milepost.store import Append, Claim, Claimed, NewRun, Release, RunRow, RunSnapshot, Store, Token, Verdict

__all__ = [
    "begin",
    "checkpoint",
    "claim_of",
    "failure",
    "finish",
    "new_run",
    "owner",
    "start",
    "take",
    "whole",
    "work",
    "write",
]

EPOCH_TIME = 1_767_225_600.0
"""2026-01-01 UTC, where `FakeClock` begins."""


def start(run_id: str, *, flow: str = "orders", state: bytes = b'{"n":5}', at: float = EPOCH_TIME) -> Record:
    """Build the start record of a run, with `state` as its input."""
    fields = {"flow": flow, "entry": "first", "epoch": 1}
    return make_record(run_id, 0, format_time(at), START, state=state, fields=fields)


def checkpoint(
    run_id: str,
    sequence: int,
    node_id: str = "work",
    *,
    visit: int = 1,
    state: bytes = b'{"n":6}',
    attempt: int = 1,
    at: float = EPOCH_TIME,
) -> Record:
    """Build the checkpoint of a node that has completed."""
    fields = {"next_node": "later", "attempt": attempt}
    return make_record(run_id, sequence, format_time(at), CHECKPOINT, node_id, visit, state, fields)


def failure(run_id: str, sequence: int, node_id: str = "work", *, visit: int = 1, at: float = EPOCH_TIME) -> Record:
    """Build the record of an attempt that failed."""
    fields = {"op": "execute", "error": "ValueError", "message": "no", "attempt": 1, "final": False}
    return make_record(run_id, sequence, format_time(at), FAILURE, node_id, visit, fields=fields)


def finish(run_id: str, sequence: int, *, status: str = "finished", at: float = EPOCH_TIME) -> Record:
    """Build the record that ends a run."""
    return make_record(run_id, sequence, format_time(at), FINISH, fields={"status": status})


def owner(
    run_id: str,
    sequence: int,
    epoch: int,
    *,
    node_id: str = "",
    state: bytes | None = None,
    live: Ranges | None = None,
    at: float = EPOCH_TIME,
) -> Record:
    """Build the owner record of a claim. With `node_id` and `state` it overrides the state at that node."""
    fields = {"epoch": epoch, "verb": "resume", "live": live}
    return make_record(run_id, sequence, format_time(at), OWNER, node_id, state=state, fields=fields)


def new_run(
    run_id: str,
    *,
    flow: str = "orders",
    lease: float = 30.0,
    tags: Mapping[str, str] | None = None,
    status: Literal["running", "ready"] = "running",
    wake_at: float | None = None,
    state: bytes = b'{"n":5}',
    at: float = EPOCH_TIME,
) -> NewRun:
    """Build the argument of `create`, with a nonce of its own."""
    record = start(run_id, flow=flow, state=state, at=at)
    return NewRun(run_id, flow, secrets.token_hex(8), record, lease, {} if tags is None else tags, status, wake_at)


def begin(store: Store, run_id: str, **changes: Any) -> Token:
    """Create a run now and own it."""
    return store.create(new_run(run_id, at=store.clock.time(), **changes))


def claim_of(latest: RunSnapshot, *, lease: float = 30.0, at: float = EPOCH_TIME, **changes: Any) -> Claim:
    """Build a claim that fits the snapshot `latest`. `changes` are fields of `Claim`."""
    row, sequence = latest.row, latest.newest + 1
    record = owner(row.info.run_id, sequence, row.epoch + 1, live=changes.get("live"), at=at)
    request = Claim(row.info.run_id, latest.newest, row.epoch + 1, secrets.token_hex(8), record, lease)
    return request._replace(crashed=row.lease == "ended")._replace(**changes)


def take(store: Store, run_id: str, **changes: Any) -> Claimed:
    """Claim a run as it stands now."""
    return store.claim(claim_of(store.latest(run_id), at=store.clock.time(), **changes))


def write(
    store: Store,
    token: Token,
    *records: Record,
    release: Release | None = None,
    tags: Mapping[str, str] | None = None,
) -> Verdict:
    """Append records of one run in a batch of their own."""
    (verdict,) = store.append([Append(token, records, release, tags)])
    return verdict


def work(store: Store, token: Token, *node_ids: str, release: Release | None = None) -> Verdict:
    """Append one checkpoint for each of `node_ids`, at the next numbers, with visits counted."""
    known = store.read(token.run_id)
    records = list[Record]()
    for node_id in node_ids:
        sequence = known[-1].sequence + 1 + len(records)
        visit = 1 + sum(record.node_id == node_id and record.kind == CHECKPOINT for record in (*known, *records))
        state = b'{"n":%d}' % sequence
        records.append(checkpoint(token.run_id, sequence, node_id, visit=visit, state=state, at=store.clock.time()))
    return write(store, token, *records, release=release)


def whole(store: Store, run_id: str) -> tuple[RunRow, list[Record]]:
    """Return the row and all records of a run, to check that a call has changed nothing."""
    return store.get_run(run_id), store.read(run_id)
