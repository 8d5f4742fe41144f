"""One entry of a journal, as the core makes it and as stores keep it.

An envelope is one JSON object, `{header fields..., "seal": ..., "state": ...}`. A `Record` holds it in two
parts: the header as JSON text, and the state as the bytes that were encoded. Stores that can keep bytes keep
the two apart; `envelope()` puts them together again, the same text each time.

A record from outside (`Store.save`) has no header of ours: its bytes are kept and given back as they came.

Nothing here reads a clock, a file or a network.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from milepost.errors import CheckpointCorruptError, CheckpointIntegrityError, CheckpointVersionError

__all__ = [
    "ALWAYS_COMPRESSED",
    "CHECKPOINT",
    "CHECKPOINT_VERSION",
    "FAILURE",
    "FINISH",
    "ITEMS",
    "OWNER",
    "REPLY",
    "ROLLBACK",
    "ROUTE",
    "START",
    "WAIT",
    "Record",
    "Seals",
    "compress",
    "decompress",
    "digest_of",
    "format_time",
    "make_checkpoint",
    "make_record",
    "parse_time",
]

CHECKPOINT_VERSION = 1

CHECKPOINT = "checkpoint"
START = "start"
OWNER = "owner"
FAILURE = "failure"
ROUTE = "route"
ITEMS = "items"
WAIT = "wait"
REPLY = "reply"
ROLLBACK = "rollback"
FINISH = "finish"

NEVER_COMPRESSED = 1024
ALWAYS_COMPRESSED = 1024 * 1024
DECOMPRESSED_LIMIT = 1024 * 1024 * 1024

_encode_json = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class Record(NamedTuple):
    """A journal entry. Immutable; the bytes in it are never shared with a caller who could change them.

    `header` is the JSON text of the header without its closing brace, sealed once a store has written it, or
    None for a record from outside. `payload` is the encoded state (None: the record has none), packed as
    `packing` says: "" (as encoded) or "zstd". `size` is the number of bytes of the unpacked payload.
    """

    sequence: int
    kind: str
    node_id: str
    visit: int
    size: int
    header: bytes | None
    payload: bytes | None
    packing: str = ""

    @property
    def is_foreign(self) -> bool:
        """Whether the record was saved from outside a run."""
        return self.header is None

    def fields(self) -> dict[str, Any]:
        """The header's fields; `CheckpointCorruptError` if it is no JSON object."""
        if self.header is None:
            return {}
        try:
            return _decode_object(self.header + b"}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise CheckpointCorruptError(
                f"record {self.sequence} at node {self.node_id!r} has a damaged header ({exc}): go on from the record "
                f"before it with on_corrupt='previous', or restore the store from a copy",
                node_id=self.node_id,
                sequence=self.sequence,
            ) from exc

    def state(self) -> bytes | None:
        """The payload unpacked, or None; `CheckpointCorruptError` if it cannot be unpacked."""
        if self.packing == "" or self.payload is None:
            return self.payload
        return decompress(self.payload, self.size, where=f"record {self.sequence} at node {self.node_id!r}")

    def envelope(self) -> bytes:
        """The whole record as one JSON object, or for a record from outside its own bytes.

        `CheckpointCorruptError` if header or payload cannot be read.
        """
        if self.header is None:
            return self.state() or b""
        if self.payload is None:
            return self.header + b"}"
        if self._is_compressed(self.header):
            packed = self.payload if self.packing else compress(self.payload)
            state: bytes = b'"' + base64.b64encode(packed) + b'"'
        else:
            state = self.state() or b""
        return b"".join((self.header, b',"state":', state, b"}"))

    def _is_compressed(self, header: bytes) -> bool:
        # `compressed` is written by us with exactly this text, and a quote inside a JSON string is escaped; a nested
        # object (tags) could hold it, so the answer is asked of the parsed header.
        return b'"compressed":true' in header and self.fields().get("compressed") is True


def make_record(
    run_id: str,
    sequence: int,
    timestamp: str,
    kind: str,
    node_id: str = "",
    visit: int = 1,
    state: bytes | None = None,
    fields: Mapping[str, Any] | None = None,
    compressing: bool = False,
    digest: str | None = None,
) -> Record:
    """Make a record of `state` (encoded JSON) with the header `fields` that its kind has.

    Whether the state is compressed follows from its size: never below 1 KB, always above 1 MB, in between if
    `compressing`. `digest` may be given where it is known already. Keys of `fields` whose value is None are
    left out, but for `next_node`, where null means "not decided". On the path of every node, so it is kept fast.
    """
    header: dict[str, Any] = {
        "version": CHECKPOINT_VERSION,
        "run_id": run_id,
        "node_id": node_id,
        "sequence": sequence,
        "timestamp": timestamp,
    }
    if kind != CHECKPOINT:
        header["kind"] = kind
    header["visit"] = visit
    if fields:
        header |= fields
        if None in fields.values():
            for name in [name for name, value in fields.items() if value is None and name != "next_node"]:
                del header[name]
    payload, packing, size = state, "", 0
    if state is not None:
        size = len(state)
        header["digest"] = digest or digest_of(state)
        if size > ALWAYS_COMPRESSED or (compressing and size >= NEVER_COMPRESSED):
            payload, packing = compress(state), "zstd"
            header["compressed"] = True
            header["encoding"] = "zstd+base64"
            header["size"] = size
        else:
            header["encoding"] = "json"
    return Record(sequence, kind, node_id, visit, size, _encode_json(header)[:-1], payload, packing)


class _CheckpointHeader(msgspec.Struct):
    """The header of a checkpoint in the order in which it is written; what is UNSET is left out."""

    version: int
    run_id: str
    node_id: str
    sequence: int
    timestamp: str
    visit: int
    next_node: str | None
    attempt: int
    prev_node_id: str
    iteration: int
    duration_ms: float
    epoch: int
    missed: tuple[str, ...] | msgspec.UnsetType
    tags: Mapping[str, str] | msgspec.UnsetType
    digest: str
    compressed: bool | msgspec.UnsetType
    encoding: str
    size: int | msgspec.UnsetType


def make_checkpoint(
    run_id: str,
    sequence: int,
    timestamp: str,
    node_id: str,
    visit: int,
    state: bytes,
    next_node: str | None,
    attempt: int,
    prev_node_id: str,
    iteration: int,
    duration_ms: float,
    epoch: int,
    missed: tuple[str, ...] = (),
    tags: Mapping[str, str] | None = None,
    compressing: bool = False,
) -> Record:
    """`make_record` for the one kind that is written after every node, and therefore the fast one."""
    size = len(state)
    payload, packing, encoding = state, "", "json"
    compressed: Any = msgspec.UNSET
    if size > ALWAYS_COMPRESSED or (compressing and size >= NEVER_COMPRESSED):
        payload, packing, encoding, compressed = compress(state), "zstd", "zstd+base64", True
    header = _CheckpointHeader(
        CHECKPOINT_VERSION,
        run_id,
        node_id,
        sequence,
        timestamp,
        visit,
        next_node,
        attempt,
        prev_node_id,
        iteration,
        duration_ms,
        epoch,
        missed or msgspec.UNSET,
        tags or msgspec.UNSET,
        digest_of(state),
        compressed,
        encoding,
        size if packing else msgspec.UNSET,
    )
    return Record(sequence, CHECKPOINT, node_id, visit, size, _encode_json(header)[:-1], payload, packing)


def digest_of(state: bytes) -> str:
    """The digest of an encoded, uncompressed state."""
    return "sha256:" + hashlib.sha256(state).hexdigest()


def compress(data: bytes) -> bytes:
    """One zstd frame at level 3, with a checksum and the size of its content."""
    zstd = _zstd()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: 3, parameter.checksum_flag: 1, parameter.content_size_flag: 1}
    frame: bytes = zstd.compress(data, options=options)
    return frame


@functools.cache
def _zstd() -> Any:
    """The zstd module: imported when a state is compressed for the first time, which most programs never do."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def decompress(data: bytes, size: int | None, *, where: str = "state") -> bytes:
    """Undo `compress`, giving exactly `size` bytes (None: up to 1 GiB); all else is `CheckpointCorruptError`.

    Not a byte beyond that is unpacked, whatever the frame says of itself.
    """
    limit = DECOMPRESSED_LIMIT if size is None else size
    zstd = _zstd()
    try:
        unpacker = zstd.ZstdDecompressor()
        plain: bytes = unpacker.decompress(data, max_length=min(limit + 1, sys.maxsize))
        is_whole = unpacker.eof and not unpacker.unused_data
    except zstd.ZstdError as exc:
        raise CheckpointCorruptError(f"{where} is not valid zstd: {exc}") from exc
    if len(plain) > limit or not is_whole or (size is not None and len(plain) != size):
        wanted = f"at most {limit}" if size is None else str(size)
        raise CheckpointCorruptError(f"{where} does not unpack to the {wanted} bytes that it should have")
    return plain


def format_time(seconds: float) -> str:
    """A POSIX time as records write it: UTC, six digits, `2025-12-20T15:30:00.000000Z`."""
    global _second
    whole = int(seconds // 1)
    micros = round((seconds - whole) * 1_000_000)
    if micros == 1_000_000:
        whole, micros = whole + 1, 0
    known, text = _second
    if whole != known:
        text = datetime.fromtimestamp(whole, UTC).isoformat()[:-6]
        _second = (whole, text)
    return f"{text}.{micros:06d}Z"


_second = (0, "1970-01-01T00:00:00")
"""The second that was written last, and its text: most records of a run are made in the same one."""


def parse_time(text: str) -> datetime:
    """An aware UTC datetime from the text of a record; ValueError if it is none or has no zone.

    Digits beyond microseconds are cut off.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError(f"time {text!r} is outside the years 1 to 9999 in UTC") from exc


class Seals:
    """Seals the headers of records and proves that a record is what was written.

    The seal stands last in the header and covers its bytes from the first to the comma before it, so that
    digest, place and every other field are covered too.
    """

    __slots__ = ()

    def seal(self, header: bytes) -> bytes:
        """`header` (without closing brace) with its seal as the last field."""
        return b'%s,"seal":"sha256:%s"' % (header, hashlib.sha256(header).hexdigest().encode())

    def check(self, run_id: str, record: Record) -> None:
        """Raise unless `record` is whole and belongs at its place in `run_id`.

        `CheckpointIntegrityError` when seal, place or digest do not fit, `CheckpointCorruptError` when header or
        payload cannot be read, `CheckpointVersionError` when a newer release wrote it. A record from outside has
        nothing to check here.
        """
        if record.header is None:
            return
        fields = record.fields()
        version = fields.get("version")
        if isinstance(version, int) and version > CHECKPOINT_VERSION:
            # Asked first: what a newer release seals, and how, is not known here.
            raise CheckpointVersionError(
                f"record {record.sequence} of run {run_id!r} at node {record.node_id!r} has format version {version}; "
                f"this library reads up to {CHECKPOINT_VERSION}: upgrade milepost",
                run_id=run_id,
                node_id=record.node_id,
                found=version,
                supported=CHECKPOINT_VERSION,
            )
        at = record.header.rfind(b',"seal":"')
        if at < 0:
            raise self._broken(run_id, record, "a seal", "none")
        if self.seal(record.header[:at]) != record.header:
            raise self._broken(run_id, record, "the seal of its header", str(fields.get("seal")))
        place = (run_id, record.node_id, record.sequence, record.kind, record.visit)
        found = (
            fields.get("run_id"),
            fields.get("node_id"),
            fields.get("sequence"),
            fields.get("kind", CHECKPOINT),
            fields.get("visit", 1),
        )
        if place != found:
            raise self._broken(run_id, record, f"place {place}", f"{found}")
        state = record.state()
        expected = fields.get("digest")
        if (state is None) != (expected is None):
            raise self._broken(run_id, record, "a state with its digest", "one without the other")
        if state is not None and digest_of(state) != expected:
            raise self._broken(run_id, record, str(expected), digest_of(state))

    def _broken(self, run_id: str, record: Record, expected: str, found: str) -> CheckpointIntegrityError:
        return CheckpointIntegrityError(
            f"record {record.sequence} of run {run_id!r} at node {record.node_id!r} was changed after it was written "
            f"(expected {expected}, found {found}): go on from the record before it with on_corrupt='previous', "
            f"or restore the store from a copy",
            run_id=run_id,
            node_id=record.node_id,
            sequence=record.sequence,
            expected=expected,
            found=found,
        )
