"""The verbs of everybody else: saving and loading by node, listing, deleting, signalling, exporting, checking.

Written once over the primitives of `Transaction`, as is `Journal`, on which this builds.
"""

from __future__ import annotations

import base64
import builtins
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Literal

import msgspec

from milepost import fence
from milepost.errors import (
    CheckpointNotFoundError,
    DeserializeStateError,
    RunNotResumableError,
    SignalRefusedError,
    StoreError,
)
from milepost.fence import Row
from milepost.process import is_gone
from milepost.record import Record, format_time, make_record
from milepost.store import (
    ENDED,
    CheckpointInfo,
    Ranges,
    RunInfo,
    Signal,
    VerifyReport,
    check_id,
    check_run_id,
)
from milepost.stores.journal import Journal, check_tags
from milepost.stores.transaction import Note, Transaction, note_of, seal_of

__all__ = ["Runs"]

_PAGE = 256
_MOST = 1 << 40
"""More runs than any store has; what a caller may give as a limit has no bound."""
_encode_line = msgspec.json.Encoder().encode


class Runs(Journal):
    """A whole store, but for its medium."""

    # -- by run and node ---------------------------------------------------------------------------

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        check_run_id(run_id)
        check_id(node_id)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data to save must be bytes, not {type(data).__name__}")
        copied = bytes(data)
        with self._write("save") as tx:
            now = self.clock.time()
            row = tx.row(run_id)
            if row is not None:
                self._refuse_live(row, self._state(row, now), "saved to")
            save_from_outside(tx, run_id, node_id, copied, now, row)

    def load(self, run_id: str, node_id: str, visit: int | None = None) -> bytes:
        check_run_id(run_id)
        check_id(node_id)
        with self._read("load") as tx:
            row = tx.row(run_id)
            if row is None:
                found = None
            elif visit is None:
                found = tx.live_checkpoint(run_id, row.live, node_id=node_id)
            else:
                found = tx.find_visit(run_id, node_id, visit)
        if found is None:
            what = "there is none" if visit is None else f"there is no visit {visit}"
            if row is None:
                what = "there is no such run"
            raise CheckpointNotFoundError(run_id, node_id, f"{what} in {self.place}")
        return found.envelope()

    def list(self, run_id: str) -> builtins.list[CheckpointInfo]:
        newest: dict[str, CheckpointInfo] = {}
        for info in self.history(run_id):
            if not info.superseded:
                newest.pop(info.node_id, None)
                newest[info.node_id] = info
        return [*newest.values()]

    def history(self, run_id: str) -> builtins.list[CheckpointInfo]:
        check_run_id(run_id)
        with self._read("history") as tx:
            row = tx.row(run_id)
            entries = [] if row is None else tx.entries(run_id)
        live: Ranges = () if row is None else row.live
        return [entry.info(run_id, not fence.is_live(entry.record.sequence, live)) for entry in entries]

    def delete(self, run_id: str, node_id: str, *, force: bool = False) -> None:
        check_run_id(run_id)
        check_id(node_id)
        with self._write("delete") as tx:
            now = self.clock.time()
            row = tx.row(run_id)
            if row is None or tx.newest_checkpoint(run_id, node_id=node_id) is None:
                return
            if not force:
                self._refuse_live(row, self._state(row, now), "deleted from")
            newest = tx.newest(run_id)
            visit = tx.last_visit(run_id, node_id)
            removed = tx.remove_node(run_id, node_id)
            fields = {"verb": "delete", "epoch": row.epoch + 1, "removed": removed}
            record = make_record(run_id, newest + 1, format_time(now), "owner", node_id, visit, fields=fields)
            tx.put_row(fence.intruded(row, newest + 1, now))
            tx.insert(run_id, (self._sealed(record),))

    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        check_run_id(run_id)
        with self._write("delete_run") as tx:
            row = tx.row(run_id)
            if row is None:
                return
            if not force:
                self._refuse_live(row, self._state(row, self.clock.time()), "deleted")
            tx.remove_run(run_id)
        self._held.pop(run_id, None)

    # -- listing -----------------------------------------------------------------------------------

    def list_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> builtins.list[RunInfo]:
        if not isinstance(limit, int):
            raise TypeError(f"limit must be an int, not {limit!r}")
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        for name, moment in (("updated_before", updated_before), ("updated_after", updated_after)):
            if moment is not None and not isinstance(moment, datetime):
                raise TypeError(f"{name} must be a datetime, not {moment!r}")
        if after is not None:
            check_run_id(after)
        check_tags(tags or {})
        limit = min(limit, _MOST)
        wanted = None if status is None else {status} if isinstance(status, str) else set(status)
        # Whether a running run is dead is not in its row: it is asked of each.
        statuses = None if wanted is None else {"running" if s == "dead" else s for s in wanted}
        gone = functools.cache(is_gone)
        found: builtins.list[RunInfo] = []
        while len(found) < limit:
            with self._read("list_runs") as tx:
                rows = tx.page(
                    flow=flow,
                    statuses=statuses,
                    tags=tags or {},
                    updated_before=None if updated_before is None else updated_before.timestamp(),
                    updated_after=None if updated_after is None else updated_after.timestamp(),
                    limit=limit,
                    after=after,
                )
                infos = [self._view(tx, row, gone=gone).info for row in rows]
            found += [info for info in infos if wanted is None or info.status in wanted]
            if len(rows) < limit:
                break
            after = rows[-1].run_id
        return found[:limit]

    # -- signals and cancels -----------------------------------------------------------------------

    def put_signal(
        self, run_id: str, name: str, payload: bytes | None, *, signal_id: str | None = None, to: str | None = None
    ) -> Literal["taken", "kept", "duplicate"]:
        check_run_id(run_id)
        check_id(name, "signal name")
        if signal_id is not None:
            check_id(signal_id, "signal id")
        with self._write("put_signal") as tx:
            now = self.clock.time()
            row = self._row(tx, run_id)
            if signal_id is not None and tx.has_signal(run_id, signal_id):
                return "duplicate"
            if row.status in {"finished", "cancelled"}:
                raise RunNotResumableError(
                    f"run {run_id!r} is {row.status} and takes no signal {name!r} any more: signals are for runs that "
                    f"go on",
                    run_id=run_id,
                    status=row.status,
                    reason=row.reason,
                )
            match, new = fence.place_signal(row, name, to, now)
            if to is not None and match is None:
                open_waits = ", ".join(repr(wait.wait_id) for wait in row.waiting) or "nothing"
                raise SignalRefusedError(
                    f"run {run_id!r} does not wait for signal {name!r} at {to!r}, it waits for {open_waits}: leave "
                    f"out `to` to have the signal kept for the next wait of its name",
                    run_id=run_id,
                    wait_id=to,
                )
            copied = None if payload is None else bytes(payload)
            tx.add_signal(run_id, Signal(new.signals, name, copied, signal_id, to, now))
            tx.put_row(new)
            return "kept" if match is None else "taken"

    def signals(self, run_id: str, *, after: int = 0) -> builtins.list[Signal]:
        check_run_id(run_id)
        with self._read("signals") as tx:
            return tx.signals(run_id, after)

    def request_cancel(
        self, run_id: str, reason: str = "", sequence: int | None = None
    ) -> Literal["cancelled", "requested", "ended"]:
        check_run_id(run_id)
        # A reason is told, never compared: what UTF-8 cannot hold is told as its escape.
        reason = reason.encode("utf-8", "backslashreplace").decode()
        with self._write("request_cancel") as tx:
            now = self.clock.time()
            row = self._row(tx, run_id)
            newest = tx.newest(run_id)
            state = self._state(row, now)
            outcome, new = fence.cancel(row, reason, sequence, state=state, newest=newest, now=now)
            if new is not None:
                tx.put_row(new)
            if new is not None and outcome == "cancelled":
                fields = {"status": "cancelled", "reason": reason, "epoch": new.epoch}
                record = make_record(run_id, newest + 1, format_time(now), "finish", fields=fields)
                tx.insert(run_id, (self._sealed(record),))
            return outcome

    # -- export and verify -------------------------------------------------------------------------

    def export(self, run_id: str) -> bytes:
        check_run_id(run_id)
        with self._read("export") as tx:
            row = self._row(tx, run_id)
            lines = [_encode_line({"run": {name: value for name, value in asdict(row).items() if name != "nonce"}})]
            notes = {entry.record.sequence: entry.note for entry in tx.entries(run_id)}
            for record in tx.records(run_id):
                if record.header is not None:
                    lines.append(record.envelope())
                    continue
                note = notes.get(record.sequence)
                saved = {
                    "run_id": run_id,
                    "node_id": record.node_id,
                    "sequence": record.sequence,
                    "visit": record.visit,
                    "timestamp": None if note is None else format_time(note.timestamp),
                    "data": base64.b64encode(record.envelope()).decode(),
                }
                lines.append(_encode_line({"saved": saved}))
            lines += [_encode_line({"signal": _signal_fields(signal)}) for signal in tx.signals(run_id)]
        return b"\n".join(lines) + b"\n"

    def verify(self, run_id: str) -> VerifyReport:
        check_run_id(run_id)
        problems: builtins.list[str] = []
        with self._read("verify") as tx:
            row: Row | None = None
            try:
                row = self._row(tx, run_id)
            except StoreError as exc:  # the row is damaged: the records may be whole all the same
                problems.append(str(exc))
        missing: builtins.list[tuple[int, int]] = []
        removed = 0
        expected = 1 if row is not None and not row.flow else 0
        for record in self._all(run_id):
            if record.sequence > expected:
                missing.append((expected, record.sequence - 1))
            expected = record.sequence + 1
            try:
                self.seals.check(run_id, record)
                fields, state = record.fields(), record.state()
            except DeserializeStateError as exc:
                problems.append(str(exc))
                continue
            if record.kind == "owner" and fields.get("verb") == "delete":
                removed += fields.get("removed", 0)
            note = self._note(run_id, record.sequence) if record.is_foreign else None
            if len(state or b"") != record.size:
                problems.append(f"record {record.sequence} had {record.size} bytes and has {len(state or b'')} now")
            elif note is not None and note.seal != seal_of(run_id, record):
                problems.append(
                    f"record {record.sequence} at node {record.node_id!r} was saved from outside and was changed after that"
                )
        if sum(last - first + 1 for first, last in missing) > removed:
            problems += [
                f"record {first} is missing, without a deletion that says so"
                if first == last
                else f"records {first} to {last} are missing, without a deletion that says so"
                for first, last in missing
            ]
        if row is not None and expected <= row.sequence:
            problems.append(
                f"the journal ends at record {expected - 1}, but the run had record {row.sequence} when it became "
                f"{row.status}"
            )
        return VerifyReport(not problems, tuple(problems))

    def _note(self, run_id: str, sequence: int) -> Note | None:
        with self._read("verify") as tx:
            entry = tx.newest_checkpoint(run_id, after=sequence - 1, before=sequence + 1)
        return None if entry is None else entry.note

    def _all(self, run_id: str) -> Iterator[Record]:
        """All records in order, a page at a time, so that memory stays small and nobody waits for long."""
        after = -1
        while True:
            page = self.read(run_id, after=after, limit=_PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].sequence


def save_from_outside(
    tx: Transaction, run_id: str, node_id: str, data: bytes, timestamp: float, row: Row | None
) -> None:
    """Add a visit with the run's next number and epoch; the run is made if `row` is None."""
    if row is None:
        row = Row(run_id, "", "interrupted", created_at=timestamp, updated_at=timestamp, epoch=0)
        tx.add_row(row)
    sequence = tx.newest(run_id) + 1
    visit = tx.last_visit(run_id, node_id) + 1
    record = Record(sequence, "checkpoint", node_id, visit, len(data), None, data)
    new = fence.intruded(row, sequence, timestamp)
    tx.put_row(replace(new, status="interrupted", reason="") if row.status in ENDED else new)
    tx.insert(run_id, (record,), note_of(run_id, record, timestamp))


def _signal_fields(signal: Signal) -> dict[str, Any]:
    fields = signal._asdict()
    if signal.payload is not None:
        try:
            fields["payload"] = msgspec.Raw(_encode_line(msgspec.json.decode(signal.payload)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # a store takes any bytes
            fields["payload"], fields["data"] = None, base64.b64encode(signal.payload).decode()
    return fields
