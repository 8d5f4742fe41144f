"""One commit: the bytes of a write, and the proof that they are whole.

The first line has the run's row after this commit, the place of each record in the lines below, and where to look for
earlier records. A record's line is its envelope. Readers go by lengths and search for nothing: content that is no line
of JSON (packed or encrypted states, bytes saved from outside) is base64, and is read back byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Literal

import msgspec

from milepost.errors import StoreError
from milepost.model.info import Wait
from milepost.model.ranges import Ranges
from milepost.model.record import DIFFERENCE, NOT_JSON, VERBATIM, Record
from milepost.store import MOST, Count, Signal, Status
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import NewerRow, RecordEntry
from milepost.stores.file.fs import LARGEST, open_regular

# A checksum as the last field of a line of JSON, so that a changed bit is noticed. It is no protection against
# malice.


_DIGITS = 16
_LENGTH = len(b',"sum":""}') + _DIGITS


def summed(text: bytes) -> bytes:
    """Add a checksum to `text`, a JSON object."""
    body = text[:-1]
    return b'%s,"sum":"%s"}' % (body, hashlib.sha256(body).hexdigest()[:_DIGITS].encode())


def is_whole(line: bytes) -> bool:
    """Return whether `line` is unchanged since `summed` returned it."""
    return line == summed(line[:-_LENGTH] + b"}")


# -- The format of a commit of a run, a file that people can read: a line of JSON for the whole, ---


VERSION = 1
"""The version of the files. Readers refuse a higher one."""

_FIRST_READ = 16 * 1024
"""Size in bytes of the first read. Most commits are read whole at once; of larger ones only the parts that are needed."""
_PIECE = 1024 * 1024
"""Number of bytes that are read at once of what is larger."""
_LONGEST_LINE = 64 * 1024 * 1024
"""Size in bytes of the longest first line that is read, and therefore of the longest that is written."""

_Time = Annotated[float, msgspec.Meta(ge=-62_135_596_800, lt=253_402_300_800)]  # what a datetime can hold
_Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]

ONE_FILE = {
    *(errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL),
    *(errno.ENXIO, errno.EAGAIN, getattr(errno, "EUCLEAN", errno.EIO)),
}
"""Error numbers for a fault of one file, not of the whole file system."""

Depth = Literal["line", "headers", "whole"]
"""How much of a commit to read: its first line, also the headers of its records, or also their payloads."""


class Damaged(Exception):
    """A file that should hold a commit of its run and does not: it is torn, changed, or belongs to something else."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}")


class RowText(msgspec.Struct, omit_defaults=True):
    """A row as text, without the fields that have their default. It has the fields of `Row` in
    their order, with their types."""

    run_id: str
    flow: str
    status: Status
    created_at: _Time
    updated_at: _Time
    epoch: Count
    nonce: str = ""
    owner: str = ""
    lease: float = 0.0
    lease_until: _Time | None = None
    reason: str = ""
    wake_at: _Time | None = None
    waiting: tuple[Wait, ...] = ()
    crash_count: Count = 0
    crashed_at: Annotated[int, msgspec.Meta(ge=-1, lt=MOST)] = -1
    signals: Count = 0
    cancel: str | None = None
    degraded: bool = False
    missed: tuple[str, ...] = ()
    tags: dict[str, str] = {}
    live: Ranges = ()
    worked: bool = False
    sequence: Count = 0
    blocked_by: str = ""
    seal: str = ""
    life: str = ""


class Placed(msgspec.Struct, omit_defaults=True):
    """A record and its place in the file: the lengths in bytes of the header and of the payload in its line."""

    sequence: int
    kind: str
    node_id: str = ""
    visit: int = 1
    size: int = 0
    header: _Size = 0
    payload: _Size | None = None
    packing: str = ""
    base64: bool = False

    @property
    def before_payload(self) -> int:
        """The number of bytes before the payload in the line: the header, a comma, eight for a name, a quote."""
        return self.header + 1 + 8 + self.base64

    @property
    def length(self) -> int:
        """The length of the line in bytes."""
        if self.payload is None:
            return self.header + 2
        return self.before_payload + self.payload + self.base64 + 2


class PlacedSignal(msgspec.Struct, omit_defaults=True):
    """A signal and its place in the file. `payload` is the length of its payload in bytes; without one it has no line."""

    number: int
    name: str
    sent_at: float
    signal_id: str | None = None
    to: str | None = None
    payload: _Size | None = None
    base64: bool = False
    by: str | None = None

    @property
    def length(self) -> int:
        """The length of the line in bytes, 0 without one."""
        return 0 if self.payload is None else len(_SIGNAL) + self.payload + 2 * self.base64 + 2


class Header(msgspec.Struct, omit_defaults=True):
    """The first line of a commit."""

    version: int
    commit: int
    """The number of this file, from 0."""
    row: RowText
    first: int
    """The sequence of the commit's first record, or the next one to come if it has none."""
    last: int
    """The newest sequence that the run has used."""
    records: tuple[Placed, ...] = ()
    signals: tuple[PlacedSignal, ...] = ()
    checkpoint: int | None = None
    """The number of the commit with the newest checkpoint before this one."""
    signalled: int | None = None
    """The number of the commit with the newest signal before this one."""
    removal: int | None = None
    """The number of the newest commit, this one included, that removed records from the journal."""
    removed: tuple[tuple[int, int], ...] = ()
    """In such a commit, all removed records, those of earlier commits too: first and last
    sequence of each gap, in order."""
    due: int | None = None
    """The number of the commit since which the run may be due; see `due.py`."""
    count: int = 0
    """The number of records that the run has."""
    size: int = 0
    """Their size in bytes."""
    is_deleted: bool = False
    """True if this commit deleted the run. Nothing follows it."""


class _Version(msgspec.Struct):
    version: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header).decode
_decode_version = msgspec.json.Decoder(_Version).decode
_parse = msgspec.json.Decoder(msgspec.Raw).decode
_row_values = attrgetter(*RowText.__struct_fields__)
_SIGNAL = b'{"payload":'


def text_of(row: Row) -> RowText:
    """Convert a row to the text of a commit."""
    return RowText(*_row_values(row))


def row_of(text: RowText) -> Row:
    """Convert the text of a commit to a row."""
    return Row(*_row_values(text))


# -- writing ---------------------------------------------------------------------------------------------


class Lines:
    """The lines of a commit below its first."""

    def __init__(self, records: Sequence[Record], signals: Sequence[Signal] = ()) -> None:
        self.parts: list[bytes] = []
        self.records = tuple([_place(record, self.parts) for record in records])
        self.size = sum([placed.length for placed in self.records])
        """Size of the records in bytes."""
        self.signals = tuple([_place_signal(signal, self.parts) for signal in signals])


def encode(header: Header, lines: Lines) -> bytes:
    """Return the file's bytes. This fills in the header's `records` and `signals`."""
    header.records, header.signals = lines.records, lines.signals
    try:
        text = _encode(header)
    except UnicodeEncodeError:
        # A reason may quote any exception, lone surrogates included, which UTF-8 can't carry.
        row = header.row
        row.reason = _writable(row.reason)
        row.cancel = None if row.cancel is None else _writable(row.cancel)
        text = _encode(header)
    if len(text) + _LENGTH > _LONGEST_LINE:
        raise StoreError(
            f"the first line of a commit of run {header.row.run_id!r} would have {len(text)} bytes, and may have at most "
            f"{_LONGEST_LINE}: let fewer waits be open at once",
            op="append",
        )
    if (size := len(text) + sum(map(len, lines.parts))) > LARGEST:
        raise StoreError(
            f"a write to run {header.row.run_id!r} has {size} bytes, and one file at most {LARGEST}: write less at once",
            op="append",
        )
    return b"".join([summed(text), b"\n", *lines.parts])


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _place(record: Record, lines: list[bytes]) -> Placed:
    sequence, kind, node_id, visit, size, header, payload, packing = record
    assert header is not None
    placed = Placed(sequence, kind, node_id, visit, size, len(header), None, packing)
    is_foreign = packing == VERBATIM
    lines.append(header + b"," if payload is not None else header)
    if payload is not None:
        # A state is always JSON; bytes that were saved from outside may be anything.
        is_line = b"\n" not in payload and (_is_json(payload) if is_foreign else packing in {"", DIFFERENCE})
        lines.append(b'"saved":' if is_foreign else b'"delta":' if packing == DIFFERENCE else b'"state":')
        placed.payload, placed.base64 = _add(payload, is_line, lines)
    lines.append(b"}\n")
    return placed


def _place_signal(signal: Signal, lines: list[bytes]) -> PlacedSignal:
    number, name, payload, signal_id, to, sent_at, by = signal
    placed = PlacedSignal(number, name, sent_at, signal_id, to, by=by)
    if payload is not None:
        lines.append(_SIGNAL)
        placed.payload, placed.base64 = _add(payload, b"\n" not in payload and _is_json(payload), lines)
        lines.append(b"}\n")
    return placed


def _add(payload: bytes, is_line: bool, lines: list[bytes]) -> tuple[int, bool]:
    if is_line:
        lines.append(payload)
        return len(payload), False
    packed = base64.b64encode(payload)
    lines += (b'"', packed, b'"')
    return len(packed), True


def _is_json(payload: bytes) -> bool:
    try:
        _parse(payload)
        payload.decode()
    except NOT_JSON:
        return False
    return True


# -- reading ---------------------------------------------------------------------------------------------


class Commit:
    """A commit that was read, as deep as the reader asked."""

    __slots__ = ("_parts", "_start", "header", "is_whole")

    def __init__(self, header: Header, start: int, parts: bytes | dict[int, bytes], *, is_whole: bool) -> None:
        self.header = header
        self._start = start
        self._parts = parts
        """The file's bytes, or parts of them by the offset at which they begin."""
        self.is_whole = is_whole

    def places(self) -> Iterator[tuple[int, Placed]]:
        """Yield each record's offset and place, in order."""
        at = self._start
        for placed in self.header.records:
            yield at, placed
            at += placed.length

    def record(self, at: int, placed: Placed, *, with_payload: bool = True) -> Record:
        """Return the record whose line begins at `at`. If it can't be read, its header is empty."""
        header = self._part(at, placed.header)
        payload = None
        if with_payload and placed.payload is not None:
            try:
                payload = self._payload(at + placed.before_payload, placed.payload, placed.base64)
            except binascii.Error:
                header = b""
        return Record(
            placed.sequence, placed.kind, placed.node_id, placed.visit, placed.size, header, payload, placed.packing
        )

    def entry(self, at: int, placed: Placed) -> RecordEntry:
        """Return the record without its payload."""
        return RecordEntry(self.record(at, placed, with_payload=False))

    def signals(self) -> Iterator[Signal]:
        """Yield the signals, in order."""
        at = self._start + sum(placed.length for placed in self.header.records)
        for placed in self.header.signals:
            payload = None
            if placed.payload is not None:
                try:
                    payload = self._payload(at + len(_SIGNAL) + placed.base64, placed.payload, placed.base64)
                except binascii.Error:
                    payload = b""
                at += placed.length
            yield Signal(placed.number, placed.name, payload, placed.signal_id, placed.to, placed.sent_at, placed.by)

    def _payload(self, at: int, length: int, is_base64: bool) -> bytes:
        part = self._part(at, length)
        return base64.b64decode(part, validate=True) if is_base64 else part

    def _part(self, at: int, length: int) -> bytes:
        return self._parts[at : at + length] if isinstance(self._parts, bytes) else self._parts[at]


def load(path: str, run_id: str, number: int, depth: Depth = "line") -> Commit:
    """Read commit `number` of a run. Raise FileNotFoundError, `Damaged`, or `NewerRow` for a newer format."""
    try:
        descriptor = open_regular(path, LARGEST)
        try:
            return _read(descriptor, path, run_id, number, depth)
        finally:
            os.close(descriptor)
    except OSError as exc:
        if exc.errno not in ONE_FILE:
            raise
        raise Damaged(path, f"can't be read ({exc.strerror})") from exc


def _read(descriptor: int, path: str, run_id: str, number: int, depth: Depth) -> Commit:
    data = os.read(descriptor, _FIRST_READ)
    while (
        (length := data.find(b"\n") + 1) == 0
        and b"\0" not in data
        and len(data) < _LONGEST_LINE
        and (more := os.read(descriptor, len(data)))
    ):
        data += more
    header = _header_of(path, data[: length - 1] if length else b"")
    if header.commit != number or header.row.run_id != run_id:
        raise Damaged(path, f"holds commit {header.commit} of run {header.row.run_id!r}")
    if depth == "line" or len(data) < _FIRST_READ:
        return Commit(header, length, data, is_whole=len(data) < _FIRST_READ)
    if depth == "whole":
        end = length + sum(record.length for record in header.records) + sum(signal.length for signal in header.signals)
        return Commit(header, length, b"".join([data, *_text(descriptor, len(data), end)]), is_whole=True)
    commit = Commit(header, length, data, is_whole=False)
    parts = {at: b"".join(_text(descriptor, at, at + placed.header)) for at, placed in commit.places()}
    return Commit(header, length, parts, is_whole=False)


def _text(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    """Yield pieces of a text, up to the first one with a zero byte: JSON has none, and a file that only seems to be large
    is full of them."""
    piece = b""
    while begin < end and b"\0" not in piece and (piece := os.pread(descriptor, min(end - begin, _PIECE), begin)):
        begin += len(piece)
        yield piece


def _header_of(path: str, line: bytes) -> Header:
    try:
        header = _decode(line)
        version = header.version
    except NOT_JSON as exc:
        try:
            version = _decode_version(line).version
        except NOT_JSON:
            version = 0
        if version <= VERSION:
            raise Damaged(path, f"has a first line that is damaged ({exc})") from exc
    if version > VERSION:
        raise NewerRow(
            f"{path} has version {version}; this library reads up to {VERSION}: upgrade milepost",
            store=path,
            op="read",
            found=version,
            supported=VERSION,
        )
    if not is_whole(line):
        raise Damaged(path, "has a first line that was changed after it was written")
    return header
