"""The checkpoint as one JSON object: what `load` gives, `export` writes, and anybody may save from outside.

Inside a journal a record is kept in two parts (`milepost.record`). This file is the other side: it reads envelopes of
every form that was ever written, and makes new ones. Older versions are migrated on read by a chain of pure functions
that leave the state as it is; a newer version is refused. Whatever the bytes, only `DeserializeStateError` escapes.

Forms that are read: version 1; version "1.0" and no version at all; Go field names (`RunID`, `NodeID`, `NextNode`,
`State`, in any case, the state as base64 of JSON); without `next_node`; step workflows' files with `checkpoint_id`,
`workflow_name` and `step_results`.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointVersionError,
    DeserializeStateError,
    SerializeStateError,
)
from milepost.record import (
    ALWAYS_COMPRESSED,
    CHECKPOINT,
    CHECKPOINT_VERSION,
    Seals,
    compress,
    decompress,
    digest_of,
    format_time,
    parse_time,
)

__all__ = ["CHECKPOINT_VERSION", "Checkpoint", "migrate", "read_envelope"]

Fields = dict[str, Any]

_GO_NAMES = {
    "runid": "run_id",
    "nodeid": "node_id",
    "nextnode": "next_node",
    "prevnodeid": "prev_node_id",
    "state": "state",
    "version": "version",
    "sequence": "sequence",
    "timestamp": "timestamp",
    "attempt": "attempt",
    "compressed": "compressed",
}
_LAST = ("seal", "state")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint with its state as plain JSON values.

    Made by hand, `Checkpoint(run_id, node_id, next_node, state).encode()` is what `store.save` takes: a run whose last
    node was `node_id` and which goes on at `next_node`. `state` is any JSON value, or bytes with the JSON text of one.
    `timestamp` is an aware UTC datetime (None: written as the epoch's begin, for encode reads no clock). Fields that
    this library does not know are kept in `extra`.
    """

    run_id: str
    node_id: str
    next_node: str | None = None
    state: Any = None
    sequence: int = 0
    timestamp: datetime | None = None
    attempt: int = 1
    prev_node_id: str = ""
    visit: int = 1
    version: int = CHECKPOINT_VERSION
    compressed: bool = False
    digest: str | None = None
    encoding: str = "json"
    seal: str | None = None
    kind: str = CHECKPOINT
    size: int | None = None
    iteration: int | None = None
    duration_ms: float | None = None
    branch: str | None = None
    outcome: str | None = None
    missed: tuple[str, ...] | None = None
    epoch: int | None = None
    updates: Any = None
    tags: Mapping[str, str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The envelope as compact UTF-8 JSON, digested and sealed; compressed above 1 MB or if `compressed`.

        Raises `SerializeStateError` where the state is no exact JSON value.
        """
        state = bytes(self.state) if isinstance(self.state, (bytes, bytearray)) else _dump(self.state, "state")
        try:
            state = msgspec.json.format(state, indent=-1)
        except msgspec.DecodeError as exc:
            raise SerializeStateError(f"state is no JSON text: {exc}", path="state", type_name="bytes") from exc
        is_compressed = self.compressed or len(state) > ALWAYS_COMPRESSED
        header: Fields = {
            "version": CHECKPOINT_VERSION,
            "run_id": self.run_id,
            "node_id": self.node_id,
            "sequence": self.sequence,
            "timestamp": format_time(self.timestamp.timestamp() if self.timestamp is not None else 0.0),
        }
        if self.kind != CHECKPOINT:
            header["kind"] = self.kind
        header |= {
            "visit": self.visit,
            "next_node": self.next_node,
            "attempt": self.attempt,
            "prev_node_id": self.prev_node_id,
            "digest": digest_of(state),
        }
        if is_compressed:
            header |= {"compressed": True, "encoding": "zstd+base64", "size": len(state)}
        else:
            header["encoding"] = "json"
        for name in ("iteration", "duration_ms", "branch", "outcome", "missed", "epoch", "updates", "tags"):
            if getattr(self, name) is not None:
                header[name] = getattr(self, name)
        header |= {name: value for name, value in self.extra.items() if name not in header}
        sealed = Seals().seal(_dump(header, "header")[:-1])
        payload = b'"' + base64.b64encode(compress(state)) + b'"' if is_compressed else state
        return b"".join((sealed, b',"state":', payload, b"}"))

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Read an envelope of any version; digest and seal are proven where it has them.

        Raises `CheckpointVersionError`, `CheckpointCorruptError` or `CheckpointIntegrityError`, all of them
        `DeserializeStateError`.
        """
        fields, state = read_envelope(data)
        known = {f.name for f in dataclasses.fields(cls)} - {"extra", "state", "timestamp"}
        given = {name: fields[name] for name in known if fields.get(name) is not None}
        if "missed" in given:
            given["missed"] = tuple(given["missed"])
        given["run_id"] = str(fields.get("run_id") or "")
        given["node_id"] = str(fields.get("node_id") or "")
        extra = {
            name: value for name, value in fields.items() if name not in known and name not in {"state", "timestamp"}
        }
        return cls(**given, state=_parse(state), timestamp=_moment(fields.get("timestamp")), extra=extra)

    @staticmethod
    def migrate(data: bytes) -> bytes:
        """The envelope in the current version; see `milepost.checkpoint.migrate`."""
        return migrate(data)


def migrate(data: bytes) -> bytes:
    """An envelope of any version in the current one, with the state untouched; current ones are given back as they are.

    Pure: what is stored is never rewritten. Raises `DeserializeStateError` and its subclasses.
    """
    given = _members(data)
    if _is_current(given):
        return data
    fields = _migrated(given)
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in fields.items()) + b"}"


def read_envelope(data: bytes) -> tuple[Fields, bytes]:
    """The header fields of an envelope of any version, and its state as plain, uncompressed JSON text.

    Digest and seal are proven where the envelope has them: `CheckpointIntegrityError`. Anything that is no envelope is
    `CheckpointCorruptError`.
    """
    members = _members(data)
    fields = _migrated(members)
    header: Fields = {}
    for name, raw in fields.items():
        if name != "state":
            header[name] = _parse(bytes(raw))
    _check_types(header)
    state = bytes(fields.get("state", b"null"))
    if header.get("compressed") is True or header.get("encoding") == "zstd+base64":
        state = _unpack(state, header.get("size"))
    elif header.get("encoding", "json") != "json":
        raise CheckpointCorruptError(
            f"checkpoint has encoding {header['encoding']!r}, which needs a store with its key"
        )
    state = _compact(state)
    _prove(header, state, data)
    return header, state


# -- the chain of migrations: each leaves `state` untouched ------------------------------------------------


def _from_0(fields: dict[str, bytes]) -> dict[str, bytes]:
    """Version 0 knew neither attempts nor the node before."""
    return {"attempt": b"1", "prev_node_id": b'""', **fields, "version": b"1"}


_MIGRATIONS: dict[int, Callable[[dict[str, bytes]], dict[str, bytes]]] = {0: _from_0}


def _migrated(fields: dict[str, bytes]) -> dict[str, bytes]:
    fields = _renamed(fields)
    version = _version(fields.get("version"))
    while version < CHECKPOINT_VERSION:
        fields = _MIGRATIONS[version](fields)
        version += 1
    fields["version"] = b"1"
    return {name: fields[name] for name in (*(n for n in fields if n not in _LAST), *(n for n in _LAST if n in fields))}


def _is_current(fields: dict[str, bytes]) -> bool:
    return fields.get("version") == b"1" and "node_id" in fields


def _version(raw: bytes | None) -> int:
    """The version number; none or null is 0, and text that reads as a number is that number."""
    value = None if raw is None else _parse(raw)
    found = value
    if value is None:
        return 0
    if isinstance(value, str):
        try:
            value = float(value) if value.strip() == value else None
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value < 0 or value % 1:
        value = None
    if value is None or value > CHECKPOINT_VERSION:
        raise CheckpointVersionError(
            f"checkpoint has format version {found!r}; this library reads up to {CHECKPOINT_VERSION}: upgrade milepost, or "
            f"check where the checkpoint comes from",
            found=found,
            supported=CHECKPOINT_VERSION,
        )
    return int(value)


def _renamed(fields: dict[str, bytes]) -> dict[str, bytes]:
    """Fields under today's names: those of Go structs in any case, and those of step workflows' files."""
    if "checkpoint_id" in fields and "node_id" not in fields:
        renamed = {"node_id": fields["checkpoint_id"], **{n: raw for n, raw in fields.items() if n != "checkpoint_id"}}
        if "saved_at" in fields:
            renamed["timestamp"] = renamed.pop("saved_at")
        if "step_results" in fields:
            renamed["state"] = renamed.pop("step_results")
        return renamed
    if "node_id" in fields or not any(name.lower() in {"nodeid", "runid"} for name in fields):
        return dict(fields)
    renamed = {}
    for name, raw in fields.items():
        renamed[_GO_NAMES.get(name.lower(), name)] = raw
    state = renamed.get("state", b"null")
    if state.startswith(b'"') and renamed.get("compressed") != b"true":
        # A []byte field of Go is base64 text in JSON, and what it holds is the state's JSON.
        renamed["state"] = _compact(_base64(state))
    return renamed


# -- bytes ----------------------------------------------------------------------------------------------


def _members(data: bytes) -> dict[str, bytes]:
    """The members of an envelope with their JSON text, compact; a doubled key anywhere is refused."""
    try:
        text = bytes(data).decode("utf-8")
        json.loads(text, object_pairs_hook=_refuse_doubles, parse_constant=_refuse_constant)
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        return {name: _compact(bytes(raw)) for name, raw in members.items()}
    except DeserializeStateError:
        raise
    except (ValueError, TypeError, RecursionError, msgspec.DecodeError) as exc:
        raise CheckpointCorruptError(f"bytes are no checkpoint: {type(exc).__name__}: {exc}"[:300]) from exc


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> Any:
    if len({name for name, _ in pairs}) != len(pairs):
        raise CheckpointCorruptError("checkpoint has the same key twice in one object")
    return None


def _refuse_constant(name: str) -> NoReturn:
    raise CheckpointCorruptError(f"checkpoint has {name}, which is no JSON")


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except DeserializeStateError:
        raise
    except (ValueError, RecursionError) as exc:
        raise CheckpointCorruptError(f"checkpoint has a value that is no JSON: {exc}"[:300]) from exc


def _compact(raw: bytes) -> bytes:
    try:
        return msgspec.json.format(raw, indent=-1)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise CheckpointCorruptError(f"checkpoint has a value that is no JSON: {exc}"[:300]) from exc


def _base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(_parse(text), validate=True)
    except (binascii.Error, ValueError, TypeError) as exc:
        raise CheckpointCorruptError(f"checkpoint's state is no base64: {exc}") from exc


def _unpack(state: bytes, size: Any) -> bytes:
    if not state.startswith(b'"'):
        raise CheckpointCorruptError("checkpoint says compressed, but its state is no text")
    limit = size if isinstance(size, int) and not isinstance(size, bool) and size >= 0 else None
    return decompress(_base64(state), limit, where="checkpoint's state")


def _check_types(header: Fields) -> None:
    expected: dict[str, Any] = {
        "run_id": str,
        "node_id": str,
        "next_node": str,
        "prev_node_id": str,
        "sequence": int,
        "visit": int,
        "attempt": int,
        "iteration": int,
        "size": int,
        "epoch": int,
        "missed": list,
        "tags": dict,
        "compressed": bool,
        "encoding": str,
        "kind": str,
        "duration_ms": (int, float),
    }
    for name, kind in expected.items():
        value = header.get(name)
        if value is None:
            continue
        if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value < 0)):
            raise CheckpointCorruptError(
                f"checkpoint has a {name} that is {type(value).__name__} {str(value)[:60]!r}",
                path=name,
                expected=str(kind),
                found=type(value).__name__,
            )
    _moment(header.get("timestamp"))


def _moment(text: Any) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_time(text).astimezone(UTC)
    except (ValueError, TypeError, OverflowError) as exc:
        raise CheckpointCorruptError(f"checkpoint has a timestamp {str(text)[:60]!r} that is none with a zone") from exc


def _prove(header: Fields, state: bytes, data: bytes) -> None:
    digest, seal = header.get("digest"), header.get("seal")
    if digest is not None and digest != digest_of(state):
        raise CheckpointIntegrityError(
            "checkpoint's digest does not fit its state: it was changed after it was written",
            expected=str(digest),
            found=digest_of(state),
        )
    if isinstance(seal, str) and seal.startswith("sha256:"):
        # The seal is the header's last field and covers the text before it; the state stands behind it, last of all.
        sealed = _header_of(data)
        tail = b',"seal":"' + seal.encode() + b'"'
        if not sealed.endswith(tail) or Seals().seal(sealed[: -len(tail)]) != sealed:
            raise CheckpointIntegrityError(
                "checkpoint's seal does not fit its header: it was changed after it was written",
                expected=seal,
                found="another",
            )


def _header_of(data: bytes) -> bytes:
    """The text of an envelope before its state, without the comma; all of it but the brace where it has none."""
    whole = _compact(data)
    raw = msgspec.json.decode(whole, type=dict[str, msgspec.Raw]).get("state")
    if raw is None:
        return whole[:-1]
    return whole[: len(whole) - len(bytes(raw)) - len(b',"state":}')]


def _dump(value: Any, path: str) -> bytes:
    """Strict JSON of plain values; what JSON would change on the way is refused."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        is_same = json.loads(text) == value or isinstance(value, Mapping)
    except (TypeError, ValueError, RecursionError) as exc:
        raise SerializeStateError(
            f"{path} is no plain JSON value: {exc}; encode it with the flow's codec",
            path=path,
            type_name=type(value).__name__,
        ) from exc
    if not is_same:
        raise SerializeStateError(
            f"{path} holds values that JSON would change (tuples, say): give lists, or bytes of JSON",
            path=path,
            type_name=type(value).__name__,
        )
    return text
