"""Conversion between the columns of a database's tables and the values of the fence and the journal.

The columns of a damaged database may hold anything. A row or record that can't be read must not hide its
neighbours: a damaged row of `runs` raises a StoreError for that run alone, and a damaged record is given with an
empty header, which no check lets pass.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from milepost.model.ranges import Ranges
from milepost.model.record import Record, new_record, parse_time
from milepost.store import MOST, Count
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import DamagedRow, Note, RecordEntry

if TYPE_CHECKING:
    from milepost.model.info import Wait

__all__ = ["damaged_row", "entry_of", "json_text", "record_of", "record_values", "row_of", "row_to_show", "row_values"]

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_tags = msgspec.json.Decoder(dict[str, str]).decode
_decode_live: Any = msgspec.json.Decoder(Ranges).decode
_decode_note = msgspec.json.Decoder(dict[str, Any]).decode

_Time = Annotated[float, msgspec.Meta(ge=-62_135_596_800, lt=253_402_300_800)]  # what a datetime can hold


@functools.cache
def _waits() -> msgspec.json.Decoder[tuple[Wait, ...]]:
    from milepost.model.info import Wait  # few runs wait

    return msgspec.json.Decoder(tuple[Wait, ...])


class _RowColumns(msgspec.Struct, array_like=True):
    """The types that the columns of a row must have; a damaged database may hold anything in them."""

    run_id: str
    flow: str
    status: Literal["ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked"]
    created_at: _Time
    updated_at: _Time
    epoch: Count
    nonce: str
    owner: str
    lease: float
    lease_until: _Time | None
    reason: str
    wake_at: _Time | None
    waiting: str
    crash_count: Count
    crashed_at: Annotated[int, msgspec.Meta(ge=-1, lt=MOST)]
    signals: Count
    cancel: str | None
    degraded: int
    missed: str
    tags: str
    live: str
    worked: int
    sequence: Count
    pruned: Count
    id: int


_OPTIONAL: tuple[type, ...] = (bytes, type(None))
_RECORD_SHAPES = frozenset((int, str, str, int, int, h, str, payload) for h in _OPTIONAL for payload in _OPTIONAL)
_ENTRY_SHAPES = frozenset((int, str, str, int, int, h, str, note) for h in _OPTIONAL for note in (str, type(None)))


_BRACE = ord("}")


def record_values(record: Record) -> tuple[Any, ...]:
    """Return the values to bind for a record, without those of its run and its note."""
    sequence, kind, node_id, visit, size, header, payload, packing = record
    text = None if header is None else (header + b"}").decode()
    return sequence, kind, node_id, visit, size, packing, text, payload


def row_values(row: Row) -> tuple[Any, ...]:
    """Return the values to bind for a row, without its `id`."""
    return (
        row.run_id,
        row.flow,
        row.status,
        row.created_at,
        row.updated_at,
        row.epoch,
        row.nonce,
        row.owner,
        row.lease,
        row.lease_until,
        _text(row.reason),
        row.wake_at,
        json_text(row.waiting) if row.waiting else "[]",
        row.crash_count,
        row.crashed_at,
        row.signals,
        None if row.cancel is None else _text(row.cancel),
        row.degraded,
        json_text(row.missed) if row.missed else "[]",
        json_text(row.tags) if row.tags else "{}",
        json_text(row.live) if row.live else "[]",
        row.worked,
        row.sequence,
        row.pruned,
    )


def _text(value: str) -> str:
    # A reason may quote any exception, lone surrogates included, which UTF-8 can't carry.
    return value.encode("utf-8", "replace").decode()


def json_text(value: Any) -> str:
    """Return the JSON text of a value for a column."""
    return _encode(value).decode()


def row_of(values: Sequence[Any]) -> Row:
    """Build a row from its columns. Raise `DamagedRow` if they hold no row."""
    try:
        msgspec.convert(values, _RowColumns)
        columns: tuple[Any, ...] = (
            *values[:12],
            _waits().decode(values[12]) if values[12] != "[]" else (),
            *values[13:17],
            bool(values[17]),
            _decode_names(values[18]) if values[18] != "[]" else (),
            _decode_tags(values[19]) if values[19] != "{}" else {},
            _decode_live(values[20]) if values[20] != "[]" else (),
            bool(values[21]),
            *values[22:24],
        )
        return Row(*columns)
    except msgspec.MsgspecError as exc:
        raise damaged_row(values[0], exc) from exc


def damaged_row(run_id: Any, exc: Exception) -> DamagedRow:
    """Return the error to raise for a row that can't be read."""
    return DamagedRow(
        f"the row of run {run_id!r} is damaged ({exc}): restore the store from a copy, or delete the run with force=True",
        op="read",
    )


def row_to_show(values: Sequence[Any], damage: DamagedRow) -> Row:
    """Build a row to show from what is readable of a damaged one; its status is "blocked", its reason says why."""
    created_at, updated_at = (_time_of(value) for value in values[3:5])
    run_id, flow = str(values[0]), str(values[1])
    return Row(run_id, flow, "blocked", created_at=created_at, updated_at=updated_at, epoch=0, reason=str(damage))


def _time_of(value: Any) -> float:
    try:
        return msgspec.convert(value, _Time)
    except msgspec.ValidationError:
        return 0.0


def _damaged(values: Sequence[Any]) -> Record:
    """Build a record from columns whose types no store writes. It has an empty header and no payload."""
    sequence, kind, node_id, visit, *_ = values
    number, count = (value if type(value) is int else 0 for value in (sequence, visit))
    return Record(number, str(kind), str(node_id), count, 0, b"", None)


def record_of(values: Sequence[Any]) -> Record:
    """Build a record from its columns."""
    if (*map(type, values),) not in _RECORD_SHAPES:
        return _damaged(values)
    sequence, kind, node_id, visit, size, header, packing, payload = values
    # Reads call this for thousands of records, so `_open_header` is inlined.
    opened = header[:-1] if header and header[-1] == _BRACE else header
    return new_record((sequence, kind, node_id, visit, size, opened, payload, packing))


def entry_of(values: Sequence[Any]) -> RecordEntry:
    """Build a record without its payload, and its note."""
    if (*map(type, values),) not in _ENTRY_SHAPES:
        return RecordEntry(_damaged(values), None)
    sequence, kind, node_id, visit, size, header, packing, note = values
    record = Record(sequence, kind, node_id, visit, size, _open_header(header), None, packing)
    if note is None:
        return RecordEntry(record, None)
    try:
        fields = _decode_note(note)
        moment = parse_time(fields["timestamp"]).timestamp()
        return RecordEntry(record, Note(moment, fields.get("next_node"), fields.get("seal", "")))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):  # damaged: its seal fits nothing
        return RecordEntry(record, Note(0.0, None))


def _open_header(header: bytes | None) -> bytes | None:
    return header[:-1] if header is not None and header.endswith(b"}") else header
