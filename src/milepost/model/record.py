"""One entry of a journal, as the core makes it and as stores keep it.

An envelope is one JSON object, `{header fields..., "seal": ..., "state": ...}`; where the state is no compact JSON, it is
`{"header": {...}, "data": the state as base64}`. A `Record` holds it in two
parts: the header as JSON text, and the encoded state as bytes. Stores that can keep bytes keep the two apart;
`envelope()` puts them together again, and gives the same text each time.

A record from outside (`Store.save`) has no header of ours: a store keeps its bytes and gives them back unchanged.

Nothing here reads a clock, a file or a network.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import floor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    DeserializeStateError,
    StateTooLargeError,
    StoreError,
)

if TYPE_CHECKING:
    from milepost.model.rope import Rope

# The path to a branch of a fork, or to an item of a map, as records have it in their field `branch`.
#
# A path is a row of segments `fork#visit/branch`, the outermost first, so an inner path begins with the path that is
# around it. Ids have no whitespace. They may have `#`, but a slash follows the number of a visit, and no branch id has
# one.


_SEGMENT = re.compile(r"#(\d{1,19})/([^/]*)")
_LONGEST_PATH, _MOST_SEGMENTS = 64 * 1024, 256
"""Number of characters and of segments beyond which a text is no path: no graph is nested so deep."""


class Segment(NamedTuple):
    """One segment of a path: a branch of a fork, or an item of a map. `outer` is the path before it."""

    fork: str
    visit: int
    branch: str
    outer: str


def branch_path(outer: str, fork: str, visit: int, branch: str) -> str:
    """Give the path to `branch` of `fork` (its whole id), which is at the end of `outer` ("": it is in no branch)."""
    segment = f"{fork}#{visit}/{branch}"
    return f"{outer}/{segment}" if outer else segment


def segments_of(path: str) -> list[Segment]:
    """Split a path into its segments, the outermost first; [] for a text that is no path."""
    segments: list[Segment] = []
    begin = 0
    while (match := _SEGMENT.search(path, begin + 1 + path.startswith("/", begin))) is not None:
        if len(path) > _LONGEST_PATH or len(segments) == _MOST_SEGMENTS:
            return []
        fork = path[begin : match.start()].removeprefix("/")
        segments.append(Segment(fork, int(match[1]), match[2], path[:begin]))
        begin = match.end()
    return segments


# -- One entry of a journal, as the core makes it and as stores keep it ----------------------------


CHECKPOINT_VERSION: Literal[1] = 1

CHECKPOINT: Literal["checkpoint"] = "checkpoint"
START = "start"
OWNER = "owner"
FAILURE = "failure"
ROUTE = "route"
ITEMS = "items"
WAIT = "wait"
REPLY = "reply"
ROLLBACK = "rollback"
FINISH = "finish"

CONTINUE: Literal["continue"] = "continue"
"""The verb of the owner record with which a run begins again at its entry: a turn."""
END = "__end__"
"""The next node of a checkpoint after which nothing is left to run."""
REPLACED = ""
"""A key among updates. Its value names the fields that a node replaced, instead of returning something to reduce into
them. No field has this name in a graph whose nodes can do so."""

ZSTD = "zstd"
VERBATIM = "verbatim"
ENCRYPTED = "aesgcm"
UNENCRYPTED = "unencrypted"
UNLINKED = "unlinked"
MISPLACED = "misplaced"
STRIPPED = "stripped"
UNPACKED = "unpacked"
DIFFERENCE = "difference"

NEVER_COMPRESSED = 1024
ALWAYS_COMPRESSED = 1024 * 1024
DECOMPRESSED_LIMIT = 1024 * 1024 * 1024
"""Size in bytes of the largest state that is unpacked, and therefore of the largest that is written."""
_ANY_RATIO = 16 * 1024 * 1024
"""Unpacked size in bytes up to which any ratio is accepted. Beyond it the ratio must be at most `_MOST_RATIO`."""
_MOST_RATIO = 1000
_USUAL_RATIO = 64
"""Ratio above which the bytes are looked at before the memory is filled with them."""
_PIECE = 1024 * 1024

_UNREADABLE = {
    ENCRYPTED: "is encrypted: open the store with the keys that it was written with",
    UNENCRYPTED: "should be encrypted and is not: open the store with the keys that it was written with",
    UNLINKED: "does not follow the record before it: one of the two was exchanged",
    MISPLACED: "belongs to another run, which had this id before or has it in another store",
    STRIPPED: "has no seal of a key, although other records of the run have one",
}
"""The packings of which no state can be read, and what is told instead."""
NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are no JSON of the form that it reads, or nested too deep for it."""
REFUSED = frozenset({UNENCRYPTED, UNLINKED, MISPLACED, STRIPPED})
"""The packings that mark a record, on its way to a reader, as one that nobody may believe."""

_encode_json = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class _Columns(NamedTuple):
    """The values of a `Record`."""

    sequence: int
    kind: str
    node_id: str
    visit: int
    size: int
    header: bytes | None
    payload: bytes | None
    packing: str = ""


class Record(_Columns):
    """A journal entry. It is immutable, and never shares its bytes with a caller who could change them.

    `header` is the JSON text of the header without its closing brace, sealed once a store has written it, or
    None for a record from outside. `payload` is the encoded state (None: the record has none), packed as
    `packing` says:

    * "": the encoded state; in a record without a header, the bytes that were saved
    * "zstd": the encoded state as one zstd frame
    * "unpacked": the encoded state, although the header says that it is compressed; so the core hands it to a store
    * "difference": the change against an earlier record of the run, see `stores.base.deltas`; readers get it only if
      that record is lost
    * "verbatim": not a state but the bytes that were saved from outside, in a store that has a key: there such a
      record has a header, which seals it
    * "aesgcm": header and payload of the record, encrypted; `header` has the fields that stay readable
    * "unencrypted": never stored; a store with an encryption key gives a record like this that should be encrypted and
      is not
    * "unlinked": never stored; a store gives a record like this that does not cover the one before it in the journal

    `size` is the number of bytes of the unpacked payload. In an append to a store with `takes_ropes` a payload that is not
    packed may be a `milepost.model.rope.Rope`, which is as good as its bytes.
    """

    _decoded: Mapping[str, Any]
    """The header's fields, set by the first reader who asks for them: header and record never change."""

    @property
    def is_foreign(self) -> bool:
        """True if the record was saved from outside a run."""
        return self.header is None or self.packing == VERBATIM

    def fields(self) -> Mapping[str, Any]:
        """Return the header's fields, {} for a record from outside; `CheckpointCorruptError` for no JSON object."""
        return {} if self.is_foreign else self.header_fields()

    def header_fields(self) -> Mapping[str, Any]:
        """Return the header's fields, also if it only seals a record from outside; raise as `fields` does."""
        if self.header is None:
            return {}
        if "_decoded" in self.__dict__:
            return self._decoded
        try:
            self._decoded = _decode_object(self.header + b"}")
            return self._decoded
        except NOT_JSON as exc:
            raise CheckpointCorruptError(
                f"record {self.sequence} at node {self.node_id!r} has a damaged header ({exc}): go on from the record "
                f"before it with on_corrupt='previous', or restore the store from a copy",
                node_id=self.node_id,
                sequence=self.sequence,
            ) from exc

    def state(self) -> bytes | None:
        """Return the unpacked payload, or None. Raise `CheckpointCorruptError` if it cannot be unpacked.

        A record that is encrypted, or should be, that is not linked to the one before it or belongs elsewhere, raises
        `CheckpointIntegrityError`.
        """
        if self.packing in _UNREADABLE:
            raise CheckpointIntegrityError(
                f"record {self.sequence} at node {self.node_id!r} {_UNREADABLE[self.packing]}",
                node_id=self.node_id,
                sequence=self.sequence,
            )
        if self.packing in {"", UNPACKED, VERBATIM} or self.payload is None:
            return None if self.payload is None else bytes(self.payload)  # the same object unless it is a rope
        if self.packing == DIFFERENCE:
            raise CheckpointCorruptError(
                f"record {self.sequence} at node {self.node_id!r} says what changed since an earlier record that is gone or "
                f"damaged: go on from the record before that one with on_corrupt='previous', or restore the store from a copy",
                node_id=self.node_id,
                sequence=self.sequence,
            )
        where = f"record {self.sequence} at node {self.node_id!r}"
        return decompress(self.payload, self.size, where=where, header=self.header_fields)

    def envelope(self) -> bytes:
        """Return the whole record as one JSON object, or the saved bytes of a record from outside.

        Raises `CheckpointCorruptError` if header or payload cannot be read.
        """
        if self.header is None or self.packing == VERBATIM or self.packing in REFUSED:
            return self.state() or b""
        if self.payload is None:
            return self.header + b"}"
        if self.packing == ENCRYPTED:
            state = b'"' + base64.b64encode(self.payload) + b'"'
        elif not self._is_exact():
            data = base64.b64encode(self.state() or b"")
            return b"".join((b'{"header":', self.header, b'},"data":"', data, b'"}'))
        elif self.says_compressed:
            packed = self.payload if self.packing == ZSTD else compress(self.state() or b"")
            state = b'"' + base64.b64encode(packed) + b'"'
        else:
            state = self.state() or b""
        return b"".join((self.header, b',"state":', state, b"}"))

    def _is_exact(self) -> bool:
        """Return whether a reader of JSON gets exactly the state. A damaged one can't come back anyway."""
        try:
            state = self.state() or b""
        except CheckpointCorruptError:
            return True
        try:
            return compact_json(state, "state") == state
        except CheckpointCorruptError:
            return False

    @property
    def says_compressed(self) -> bool:
        """True if the header says that the state is compressed in the envelope; raises as `fields` does."""
        # The library writes `compressed` with exactly this text, and a quote inside a JSON string is escaped. A nested
        # object (tags) may have the text too, so the parsed header decides.
        return b'"compressed":true' in (self.header or b"") and self.fields().get("compressed") is True


new_record: Callable[[tuple[int, str, str, int, int, bytes | None, bytes | None, str]], Record]
new_record = functools.partial(tuple.__new__, Record)
"""A function that makes a `Record` of a tuple of all its fields, three times as fast as the constructor."""


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
) -> Record:
    """Make a record of `state` (encoded JSON) with the header `fields` that its kind has.

    The size of the state decides about compression: never below 1 KB, always above 1 MB, in between if `compressing`.
    The store adds digests and seal. Keys of `fields` whose value is None are left out, except `next_node`, where null
    means "not decided". Raises `StateTooLargeError` for a state of more than 1 GiB. Every node calls this, so it is
    kept fast.
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
        payload, packing, encoding, _ = _packed(state, size, compressing)
        if packing:
            header["compressed"] = True
        header["encoding"] = encoding
        if packing:
            header["size"] = size
    return Record(sequence, kind, node_id, visit, size, _encode_json(header)[:-1], payload, packing)


class _CheckpointHeader(msgspec.Struct):
    """The header of a checkpoint, its fields in the order of the JSON; UNSET fields are left out."""

    version: int
    run_id: str
    node_id: str
    sequence: int
    timestamp: str
    visit: int
    next_node: str | None
    attempt: int
    prev_node_id: str
    iteration: int | msgspec.UnsetType
    duration_ms: float
    epoch: int
    branch: str | msgspec.UnsetType
    trunk: int | msgspec.UnsetType
    fork: tuple[str, ...] | msgspec.UnsetType
    updates: msgspec.Raw | msgspec.UnsetType
    missed: tuple[str, ...] | msgspec.UnsetType
    tags: Mapping[str, str] | msgspec.UnsetType
    compressed: bool | msgspec.UnsetType
    encoding: str
    size: int | msgspec.UnsetType
    renamed: int | msgspec.UnsetType
    live: int | msgspec.UnsetType


def _packed(state: bytes | Rope, size: int, compressing: bool) -> tuple[Any, str, str, Any]:
    """Return a state as it is written: payload, packing, and the header's values of `encoding` and `compressed`."""
    if size > ALWAYS_COMPRESSED or (compressing and size >= NEVER_COMPRESSED):
        if size > DECOMPRESSED_LIMIT:
            raise StateTooLargeError(
                f"the state has {size} bytes, and no state may have more than {DECOMPRESSED_LIMIT}: keep large data outside "
                f"it and its path in it",
                type_name="bytes",
                size=size,
                limit=DECOMPRESSED_LIMIT,
            )
        if size <= _ANY_RATIO or not _is_too_dense(bytes(state)):
            return state, UNPACKED, "zstd+base64", True
    return state, "", "json", msgspec.UNSET


def _is_too_dense(state: bytes) -> bool:
    """Return whether a state would be packed into so few bytes that `decompress` refuses it."""
    # A part packs into hardly more bytes than the whole, so the beginning is enough to decide about most states.
    if len(state) <= unpacked_limit(len(compress(state[:_PIECE])) // 2):
        return False
    return len(state) > unpacked_limit(len(compress(state)))


def unpacked_limit(packed_size: int) -> int:
    """Return the largest number of bytes that `packed_size` packed bytes may unpack to."""
    return min(DECOMPRESSED_LIMIT, max(_ANY_RATIO, _MOST_RATIO * packed_size))


def make_checkpoint(
    run_id: str,
    sequence: int,
    timestamp: str,
    node_id: str,
    visit: int,
    state: bytes | Rope,
    next_node: str | None,
    attempt: int,
    prev_node_id: str,
    iteration: int | None,
    duration_ms: float,
    epoch: int,
    missed: tuple[str, ...] = (),
    tags: Mapping[str, str] | None = None,
    compressing: bool = False,
    fork: tuple[str, ...] | None = None,
    branch: str = "",
    trunk: int | None = None,
    updates: bytes | None = None,
    renamed: int | None = None,
    live: int = 0,
) -> Record:
    """Make a checkpoint as `make_record` would, but faster, because every node writes one.

    `fork` lists the branches that follow. `branch` and `trunk` give the place of a node inside something else.
    `renamed` is the number of the owner record with the new names of nodes, `live` that of the
    live events before it.
    """
    size = len(state)
    payload, packing, encoding, compressed = _packed(state, size, compressing)
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
        msgspec.UNSET if iteration is None else iteration,
        duration_ms,
        epoch,
        branch or msgspec.UNSET,
        msgspec.UNSET if trunk is None else trunk,
        fork or msgspec.UNSET,
        msgspec.UNSET if updates is None else msgspec.Raw(updates),
        missed or msgspec.UNSET,
        tags or msgspec.UNSET,
        compressed,
        encoding,
        size if packing else msgspec.UNSET,
        msgspec.UNSET if renamed is None else renamed,
        live or msgspec.UNSET,
    )
    return new_record((sequence, CHECKPOINT, node_id, visit, size, _encode_json(header)[:-1], payload, packing))


class _StepHeader(msgspec.Struct):
    """The header of a step's completion, its fields in the order of the JSON; UNSET fields are left out."""

    version: int
    run_id: str
    node_id: str
    sequence: int
    timestamp: str
    visit: int
    next_node: None
    attempt: int
    duration_ms: float
    step_type: str
    outcome: str
    args: Mapping[str, str] | msgspec.UnsetType
    rollback: bool | msgspec.UnsetType
    marked: bool | msgspec.UnsetType
    epoch: int
    compressed: bool | msgspec.UnsetType
    encoding: str
    size: int | msgspec.UnsetType
    live: int | msgspec.UnsetType


def make_step(
    run_id: str,
    sequence: int,
    timestamp: str,
    step_id: str,
    visit: int,
    state: bytes,
    fields: Mapping[str, Any],
    epoch: int,
    compressing: bool = False,
    live: int = 0,
) -> Record:
    """Make a step's completion as `make_record` would, but faster, because its `fields` are always the same ones."""
    size = len(state)
    payload, packing, encoding, compressed = _packed(state, size, compressing)
    header = _StepHeader(
        CHECKPOINT_VERSION,
        run_id,
        step_id,
        sequence,
        timestamp,
        visit,
        None,
        fields["attempt"],
        fields["duration_ms"],
        fields["step_type"],
        fields["outcome"],
        fields["args"] or msgspec.UNSET,
        fields["rollback"] or msgspec.UNSET,
        fields["marked"] or msgspec.UNSET,
        epoch,
        compressed,
        encoding,
        size if packing else msgspec.UNSET,
        live or msgspec.UNSET,
    )
    return new_record((sequence, CHECKPOINT, step_id, visit, size, _encode_json(header)[:-1], payload, packing))


class StepHead(msgspec.Struct, gc=False):
    """The header fields of a step's completion that a replay needs, read four times as fast as the whole header."""

    run_id: str
    node_id: str
    sequence: int
    timestamp: str
    digest: str
    step_type: Literal["python", "map", "subworkflow", "branch", "parallel", "wait", "timer"]
    outcome: Literal["succeeded", "skipped", "recovered", "failed"]
    version: Literal[1] = CHECKPOINT_VERSION
    kind: Literal["checkpoint"] = CHECKPOINT
    visit: int = 1
    args: dict[str, str] | None = None
    rollback: bool | None = None
    encoding: Literal["json", "zstd+base64"] = "json"
    branch: str | None = None


_decode_step = msgspec.json.Decoder(StepHead).decode


def step_head(header: bytes) -> StepHead | None:
    """Read the head of a step's completion; None for any other header, and for one that this release does not write."""
    try:
        return _decode_step(header + b"}")
    except NOT_JSON:
        return None


class DifferenceHead(msgspec.Struct, gc=False):
    """The header fields that prove a record that is stored as a difference: its place, and its digests."""

    run_id: str
    node_id: str
    sequence: int
    stored: str
    base: str
    version: Literal[1] = CHECKPOINT_VERSION
    kind: str = CHECKPOINT
    visit: int = 1


_decode_difference = msgspec.json.Decoder(DifferenceHead).decode


def difference_head(header: bytes) -> DifferenceHead | None:
    """Read the head of a record that is stored as a difference; None for any other header."""
    try:
        return _decode_difference(header + b"}")
    except NOT_JSON:
        return None


def packed(record: Record) -> Record:
    """Return the record, with its payload compressed if its header says so."""
    if record.packing != UNPACKED or record.payload is None:
        return record
    return record._replace(payload=compress(record.payload), packing=ZSTD)


def digest_of(state: bytes) -> str:
    """Return the digest of a state, or of other bytes that a record holds."""
    return "sha256:" + hashlib.sha256(state).hexdigest()


def compress(data: bytes) -> bytes:
    """Compress data to one zstd frame at level 3, with a checksum and the size of its content."""
    if len(data) > _LARGEST_FOR_IDLE:
        return _compress(_compressor(), data)
    try:
        # Nobody else has it meanwhile, and a child that is forked never has one that somebody was using.
        compressor = _idle_compressors.pop()
    except IndexError:
        compressor = _compressor()
    frame = _compress(compressor, data)
    _idle_compressors.append(compressor)
    return frame


_LARGEST_FOR_IDLE = 64 * 1024
"""Size of the largest data that a compressor may get which is used again. It keeps memory for as much as it had."""
_idle_compressors: list[Any] = []
"""Compressors that nobody uses. To make one takes five times as long as to compress 2 KB."""


def _compressor() -> Any:
    zstd = _zstd()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: 3, parameter.checksum_flag: 1, parameter.content_size_flag: 1}
    return zstd.ZstdCompressor(options=options)


def _compress(compressor: Any, data: bytes) -> bytes:
    frame: bytes = compressor.compress(data, compressor.FLUSH_FRAME)
    return frame


@functools.cache
def _zstd() -> Any:
    """Return the zstd module. It is imported at the first compression, because most programs compress no state."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except OSError as exc:
        raise StoreError(f"zstd, which large states are packed with, could not be loaded: {exc}", op="pack") from exc
    return zstd


def decompress(
    data: bytes, size: int | None, *, where: str = "state", header: Callable[[], Mapping[str, Any]] = dict
) -> bytes:
    """Undo `compress`, and return exactly `size` bytes (None: all there are). Raise `CheckpointCorruptError` otherwise.

    More than 1 GiB is refused, and so is more than 16 MB if it is over a thousand times the bytes of `data`: a few
    bytes must not fill the memory. No byte beyond the limit is unpacked, whatever size the frame states. What is dense,
    or of a size that is not known, is unpacked in pieces first, and the memory is filled only if it has `size` bytes and
    the digest that `header` gives.
    """
    limit = unpacked_limit(len(data))
    zstd = _zstd()
    try:
        if size is not None and not 0 <= size <= limit:
            raise CheckpointCorruptError(
                f"{where} does not unpack to the {size} bytes that it should have: {len(data)} may unpack to {limit} at most"
            )
        if size is None or size > max(_ANY_RATIO, _USUAL_RATIO * len(data)):
            size = _prove(zstd.ZstdDecompressor(), data, limit if size is None else size, size, header, where)
        unpacker = zstd.ZstdDecompressor()
        plain: bytes = unpacker.decompress(data, max_length=size + 1)
        is_whole = unpacker.eof and not unpacker.unused_data
    except zstd.ZstdError as exc:
        raise CheckpointCorruptError(f"{where} is not valid zstd: {exc}") from exc
    if len(plain) != size or not is_whole:
        raise CheckpointCorruptError(f"{where} does not unpack to the {size} bytes that it should have")
    return plain


def is_compressed(data: bytes) -> bool:
    """Return whether bytes that are else JSON are a zstd frame. Source: RFC 8878, 3.1.1."""
    return data.startswith(b"\x28\xb5\x2f\xfd")


def unpacked(data: bytes, most: int) -> bytes:
    """Undo `compress` for at most `most` bytes, whose number is not known. Raise `CheckpointCorruptError` otherwise."""
    zstd = _zstd()
    unpacker = zstd.ZstdDecompressor()
    try:
        plain: bytes = unpacker.decompress(data, max_length=min(most, unpacked_limit(len(data))) + 1)
    except zstd.ZstdError as exc:
        raise CheckpointCorruptError(f"it is not valid zstd: {exc}") from exc
    if not unpacker.eof or unpacker.unused_data:
        raise CheckpointCorruptError(f"it does not unpack to at most {most} bytes")
    return plain


def _prove(
    unpacker: Any, data: bytes, limit: int, size: int | None, header: Callable[[], Mapping[str, Any]], where: str
) -> int:
    """Return the number of bytes that `data` unpacks to, of which it keeps a piece at a time.

    Raise `CheckpointCorruptError` if there are more than `limit`, or not `size`, or if they have not the digest in
    `header`, if there is one.
    """
    counted, given, digest = 0, data, hashlib.sha256()
    while counted <= limit and not unpacker.eof:
        piece = unpacker.decompress(given, max_length=_PIECE)
        if not piece and unpacker.needs_input:
            break
        digest.update(piece)
        counted, given = counted + len(piece), b""
    stated = header().get("digest")
    is_as_stated = stated is None or stated == f"sha256:{digest.hexdigest()}"
    is_whole = unpacker.eof and not unpacker.unused_data
    if counted > limit or (size is not None and counted != size) or not is_whole or not is_as_stated:
        raise CheckpointCorruptError(
            f"{where} does not unpack to the bytes that it should have: {len(data)} may unpack to {limit} at most"
        )
    return counted


def format_time(seconds: float) -> str:
    """Format a POSIX time as in records: UTC, six digits after the seconds, `2025-12-20T15:30:00.000000Z`."""
    global _second
    whole = floor(seconds)
    micros = round((seconds - whole) * 1_000_000)
    if micros == 1_000_000:
        whole, micros = whole + 1, 0
    known, text = _second
    if whole != known:
        text = datetime.fromtimestamp(whole, UTC).isoformat()[:-6]
        _second = (whole, text)
    return f"{text}.{micros:06d}Z"


def as_posix(moment: datetime) -> float:
    """Return a moment in POSIX seconds, between `_EARLIEST` and `_LATEST`: others, as a float, may have no date in UTC."""
    return max(_EARLIEST, min(moment.timestamp(), _LATEST))


_EARLIEST = datetime.min.replace(tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
_second = (0, "1970-01-01T00:00:00")
"""The last formatted second and its text, kept because a run often makes many records within one second."""


def parse_time(text: str) -> datetime:
    """Read an aware UTC datetime from the text of a record; ValueError if it is no time or has no zone.

    Digits beyond microseconds are cut off.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError(f"time {text!r} is outside the years 1 to 9999 in UTC") from exc


# The origin of a forked run, from its start record: the run that it is a copy of, and the last record that was
# copied.
#
# Copied visits keep the random numbers, UUIDs and keys that they drew in the run that made them. Later visits draw the
# fork's own.


FORKED_FROM = "milepost.forked_from"
"""The tag of a fork: `<run id>#<sequence>` of its origin."""


class Origin(msgspec.Struct, frozen=True):
    """The run that a fork was made from, and the last of its records that was copied."""

    run_id: str
    sequence: int
    by: str | None = None
    """The one who forked it, as the caller said."""
    entropy: str | None = None
    """The random bits of its start record, as hex digits."""


def origins_of(begun: Mapping[str, Any]) -> tuple[Origin, ...]:
    """List the runs that a run was forked from, by its start record's fields: the nearest first, () for no fork."""
    origins = []
    origin = begun.get("origin")
    while isinstance(origin, Mapping):
        by, entropy = (None if origin.get(name) is None else str(origin[name]) for name in ("by", "entropy"))
        origins.append(Origin(str(origin.get("run_id")), int(origin.get("sequence") or 0), by, entropy))
        origin = origin.get("origin")
    return tuple(origins)


def source_of(origins: tuple[Origin, ...], sequence: int) -> Origin | None:
    """Return the run that made the record numbered `sequence`; None: the run that has it made it itself."""
    source = None
    for origin in origins:
        if sequence <= origin.sequence:
            source = origin
    return source


# -- JSON text that all readers understand alike ------------------------------------------------------


def compact_json(text: bytes | bytearray, what: str) -> bytes:
    """Return JSON text without its white space; numbers and strings stay as they were written.

    Raises `CheckpointCorruptError` for a text that is no strict JSON in UTF-8, and for anything that readers understand
    differently: doubled keys, lone surrogates, a byte order mark.
    """
    plain = text if isinstance(text, bytes) else bytes(memoryview(text))
    try:
        # Numbers stay text: their values are not needed here, and some have more digits than Python accepts.
        json.loads(
            plain.decode("utf-8"),
            object_pairs_hook=_refuse_doubles,
            parse_int=str,
            parse_float=str,
            parse_constant=_refuse_constant,
        )
        return msgspec.json.format(plain, indent=-1)
    except DeserializeStateError:
        raise
    except (ValueError, RecursionError, msgspec.DecodeError) as exc:
        raise CheckpointCorruptError(f"{what} is no JSON text: {type(exc).__name__}: {exc}"[:300]) from exc


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise CheckpointCorruptError("checkpoint has the same key twice in one object")


def _refuse_constant(name: str) -> NoReturn:
    raise CheckpointCorruptError(f"checkpoint has {name}, which is no JSON")
