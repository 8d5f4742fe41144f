"""The beginning of a run: its start record and, if the run was started by name, the owner record that completes it.

A run can be started by its flow's name, without the flow's code. Its start record then has the name and the input as
plain JSON, and nothing that only the code knows. The first owner that has the code decodes this input and writes the
rest into an owner record, with the input as the flow's codec writes it. From then on both records together are read as
the start record of any other run.

Nothing here reads a clock, a file or a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from milepost.errors import CheckpointCorruptError
from milepost.model.record import OWNER, START, Record

BEGIN = "begin"
"""The verb of the owner record that completes a start record and does nothing else."""
COMPLETING = ("flow_version", "front", "inputs", "fingerprint", "shape", "inputs_hash", "entry")
"""The fields of a start record that only the flow's code knows."""
PAGE = 20
"""The number of owner records that are read at once. The one that completes the start is among the first ones."""

Page = tuple[str, int]
"""A page of records: their kind, and the number after which it begins."""


def is_incomplete(fields: Mapping[str, Any]) -> bool:
    """Return whether these are the fields of a start record without what only the flow's code knows."""
    return "fingerprint" not in fields and "entry" not in fields


def completes(fields: Mapping[str, Any]) -> bool:
    """Return whether these fields of an owner record complete a start record."""
    return "fingerprint" in fields


def completed(start: Record, fields: Mapping[str, Any], state: bytes | None) -> Record:
    """Return the start record with what it lacks, and with the input as the flow writes it. It has no seal."""
    header = dict(start.fields())
    header.pop("seal", None)
    header |= {name: fields[name] for name in COMPLETING if fields.get(name) is not None}
    payload = start.state() if state is None else state
    encoded = msgspec.json.encode(header)[:-1]
    return start._replace(header=encoded, payload=payload, size=len(payload or b""), packing="")


def completed_by(start: Record, records: Iterable[Record]) -> Record:
    """Return the start record as the first of `records` that completes it does; as it is if it is whole, or none does.

    Damaged records are ignored here.
    """
    if not is_incomplete(start.fields()):
        return start
    for record in records:
        with suppress(CheckpointCorruptError):
            fields = record.fields() if record.kind == OWNER else {}
            if completes(fields):
                return completed(start, fields, record.state())
    return start


def is_unread(point: Record | None, tail: Iterable[Record]) -> bool:
    """Return whether a run was started by name, and no owner with the flow's code has read its input yet.

    `point` is the record from which the run goes on; `tail` are the records after it.
    """
    with suppress(CheckpointCorruptError):
        return point is not None and point.kind == START and is_incomplete(completed_by(point, tail).fields())
    return False


def start_in(found: tuple[Record, ...], check: Callable[[Record], object] | None = None) -> Record | None:
    """Return the start record that `find_start` found, completed if it was; call `check` with each record of it."""
    if check is not None:
        for record in found:
            check(record)
    return completed_by(found[0], found[1:]) if found else None


def find_start() -> Generator[Page, list[Record], tuple[Record, ...]]:
    """Find the start record and, if it was completed, the owner record that does so; () if the run has no start record.

    Yields the pages of the journal that it needs. A damaged owner record is passed over.
    """
    found = yield START, -1
    if not found or not is_incomplete(found[0].fields()):
        return tuple(found[:1])
    after = 0
    while owners := (yield OWNER, after):
        for record in owners:
            with suppress(CheckpointCorruptError):
                if completes(record.fields()):
                    return found[0], record
        after = owners[-1].sequence
    return (found[0],)
