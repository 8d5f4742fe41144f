"""A fork: the beginning of a run, up to one of its records, as the lines of a run of its own. No I/O.

`import_run` takes these lines, so a fork is stored as an import is: by a store of any kind, checked,
sealed anew and in one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from milepost.model.ranges import ranges_of
from milepost.model.record import FORKED_FROM, OWNER, REPLY, START, Record, format_time, make_record
from milepost.model.seal import Seals
from milepost.store import RunRow, Signal
from milepost.stores.base.export import lines_of
from milepost.stores.base.fence import Row
from milepost.stores.base.gaps import Gaps
from milepost.stores.base.transaction import Note, note_of

__all__ = ["Prefix", "lines_of_fork", "unexplained_gaps"]

NOT_COPIED = "milepost.not-copied"
"""The name that replaces the name of a signal that is not copied, while one with a higher
number is. Nothing waits for it."""

_encode = msgspec.json.Encoder().encode


class Prefix(NamedTuple):
    """The records of a run up to one of them, all checked, and what else is copied with them."""

    row: RunRow
    records: tuple[Record, ...]
    signals: tuple[Signal, ...]
    """All signals that were ever sent, or () if no record has used one."""
    moments: Mapping[int, float]
    """The times at which records from outside were saved, in POSIX seconds by record number."""

    @property
    def sequence(self) -> int:
        """The number of the last record."""
        return self.records[-1].sequence


def unexplained_gaps(prefix: Prefix) -> int:
    """Count the numbers that are missing among the records, less the deletions that are recorded among them."""
    gaps = Gaps(has_start=bool(prefix.row.info.flow))
    missing = removed = 0
    for record in prefix.records:
        missing += record.sequence - gaps.next
        gaps.pass_over(record.sequence)
        fields = record.fields() if record.kind == OWNER else {}
        if fields.get("verb") == "delete" and isinstance(fields.get("removed"), int):
            removed += fields["removed"]
    return max(0, missing - removed)


def lines_of_fork(
    prefix: Prefix,
    seals: Seals,
    now: float,
    missed: Sequence[str],
    amendment: tuple[Mapping[str, Any], bytes | None] | None,
) -> bytes:
    """Return the lines of the fork, under the run id of its origin and sealed with the origin's `seals`.

    `amendment` holds the fields of the owner record that amends the point, and the new state, encoded (None:
    unchanged).
    """
    info, records = prefix.row.info, list(prefix.records)
    epoch = prefix.row.epoch
    if records[0].kind == START:
        records[0] = _with_origin(records[0], info.run_id, prefix.sequence, seals)
    if amendment is not None:
        epoch += 1
        records.append(_amendment(prefix, seals, now, epoch, *amendment))
    signals = _signals(prefix)
    row = Row(
        info.run_id,
        info.flow,
        "interrupted",
        created_at=now,
        updated_at=now,
        epoch=epoch,
        reason=f"it was forked from run {info.run_id!r} at record {prefix.sequence}: resume it",
        signals=len(signals),
        degraded=bool(missed),
        missed=tuple(missed),
        tags={**info.tags, FORKED_FROM: f"{info.run_id}#{prefix.sequence}"},
        live=ranges_of(prefix.records),
        sequence=records[-1].sequence,
        pruned=unexplained_gaps(prefix),
    )
    noted = [(record, _note(prefix, record)) for record in records]
    return b"\n".join(lines_of(row, noted, signals, Record.envelope)) + b"\n"


def _with_origin(start: Record, run_id: str, sequence: int, seals: Seals) -> Record:
    """Add the fork's origin to its start record. A fork of a fork names all its origins."""
    fields = start.fields()
    fields.pop("seal", None)
    origin: dict[str, Any] = {"run_id": run_id, "sequence": sequence}
    if "origin" in fields:
        origin["origin"] = fields["origin"]
    return start._replace(header=seals.seal(_encode({**fields, "origin": origin})[:-1]))


def _amendment(
    prefix: Prefix, seals: Seals, now: float, epoch: int, told: Mapping[str, Any], state: bytes | None
) -> Record:
    reason = "its router is to be asked again" if state is None else "its state was overridden"
    fields = {"verb": "fork", **told, "epoch": epoch, "reason": reason}
    info = prefix.row.info
    record = make_record(info.run_id, prefix.sequence + 1, format_time(now), OWNER, state=state, fields=fields)
    assert record.header is not None
    return record._replace(header=seals.seal(record.header))


def _signals(prefix: Prefix) -> list[Signal]:
    """Return the signals that the records have used, under their numbers. Of an unused one at most the number stays."""
    used = {record.fields().get("signal") for record in prefix.records if record.kind == REPLY}
    newest = max((number for number in used if isinstance(number, int)), default=0)
    return [
        signal if signal.number in used else Signal(signal.number, NOT_COPIED, None, None, None, signal.sent_at)
        for signal in prefix.signals
        if signal.number <= newest
    ]


def _note(prefix: Prefix, record: Record) -> Note | None:
    moment = prefix.moments.get(record.sequence)
    return None if moment is None else note_of(prefix.row.info.run_id, record, moment)
