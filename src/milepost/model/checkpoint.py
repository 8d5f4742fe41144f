"""The checkpoint as one JSON object: `load` gives it, `export` writes it, and anybody may save one from outside.

Inside a journal a record is kept in two parts (`milepost.model.record`). This module reads envelopes of every form that
was ever written, and makes new ones. A chain of pure functions migrates older versions on read and leaves the state as
it is; a newer version is refused. Whatever the bytes are, only `DeserializeStateError` escapes.

Forms that are read: version 1; version "1.0" and no version at all; Go field names (`RunID`, `NodeID`, `NextNode`,
`State`, in any case, the state as base64 of JSON); without `next_node`; step workflows' files with `checkpoint_id`,
`workflow_name` and `step_results`.

An envelope must have a `node_id` and a `state`, or the names that an old form has for them. An envelope of ours has a
digest and a seal besides; it is refused if the seal is missing or does not fit. Only the store that holds the key
checks a seal made with a key.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointVersionError,
    DeserializeStateError,
    SerializeStateError,
    shown,
)
from milepost.model.record import (
    CHECKPOINT,
    CHECKPOINT_VERSION,
    compact_json,
    decompress,
    digest_of,
    make_record,
    parse_time,
)
from milepost.model.seal import KEYED, Seals

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
_STEP_NAMES = {"checkpoint_id": "node_id", "saved_at": "timestamp", "step_results": "state"}
_LAST = ("seal", "state")
_OPTIONAL = ("iteration", "duration_ms", "branch", "outcome", "epoch", "updates")

_TEXTS = ("run_id", "node_id", "next_node", "prev_node_id", "encoding", "kind", "branch", "outcome", "digest", "seal")
_COUNTS = {"sequence": 0, "visit": 1, "attempt": 1, "iteration": 0, "size": 0, "epoch": 0}
_MOST = 2**63 - 1

_NUMBER = r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint with its state as plain JSON values.

    To save one by hand, give `Checkpoint(run_id, node_id, next_node, state).encode()` to `store.save`: the last node of
    the run was `node_id`, and the run goes on at `next_node`. `state` is any JSON value, or bytes with the JSON text of
    one; `decode` gives the bytes of a state that is no JSON. `timestamp` is an aware datetime, by default the current
    time; None (an old form has none) is written as the begin of 1970. `extra` has the fields that this library does not know.
    """

    run_id: str
    node_id: str
    next_node: str | None = None
    state: Any = None
    sequence: int = 0
    timestamp: datetime | None = field(default_factory=_now)
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
        """Return the envelope as compact UTF-8 JSON, with digest and seal.

        The state is compressed above 1 MB, and from 1 KB on if `compressed`. Version, digest, encoding, size and seal
        are computed anew. Raises `SerializeStateError` if a field or the state is no exact JSON value of its kind.
        """
        state = self._encoded_state()
        fields: Fields = {"next_node": self.next_node, "attempt": self.attempt, "prev_node_id": self.prev_node_id}
        if self.kind != CHECKPOINT:
            # Records of other kinds have these only where they say something.
            fields = {name: value for name, value in fields.items() if value not in (None, 1, "")}
        fields |= {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None}
        if self.missed is not None:
            fields["missed"] = list(self.missed)
        if self.tags is not None:
            fields["tags"] = dict(self.tags)
        place = {"run_id": self.run_id, "node_id": self.node_id, "sequence": self.sequence, "visit": self.visit}
        misfit = _misfit({**place, **fields, "kind": self.kind})
        if misfit is not None:
            name, value = misfit
            raise _refusal(name, value, f"is {_shown(value)}")
        for name, value in self.extra.items():
            if name in _KNOWN:
                raise _refusal(f"extra.{name}", value, f"stands for the field {name!r}: give it as that")
            fields[name] = value
        texts = {name: msgspec.Raw(_dump(value, name)) for name, value in {**place, **fields}.items()}
        record = make_record(
            self.run_id,
            self.sequence,
            self._encoded_time(),
            self.kind,
            self.node_id,
            self.visit,
            state,
            {name: texts[name] for name in fields},
            self.compressed,
        )
        return Seals().sealed(record).envelope()

    def _encoded_state(self) -> bytes | None:
        if self.state is None and self.digest is None and self.kind != CHECKPOINT:
            return None
        if not isinstance(self.state, (bytes, bytearray)):
            return _dump(self.state, "state")
        try:
            return compact_json(self.state, "state")
        except DeserializeStateError as exc:
            raise SerializeStateError(str(exc), path="state", type_name=type(self.state).__name__) from exc

    def _encoded_time(self) -> str:
        moment = _EPOCH if self.timestamp is None else self.timestamp
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise _refusal("timestamp", moment, f"is {_shown(moment)}: give a datetime with a zone")
        try:
            return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
        except OverflowError as exc:
            raise _refusal("timestamp", moment, f"is {_shown(moment)}, outside the years 1 to 9999") from exc

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Read an envelope of any version, and check digest and seal where it has them.

        Raises `CheckpointVersionError`, `CheckpointCorruptError` or `CheckpointIntegrityError`, all of them
        `DeserializeStateError`.
        """
        fields, state, is_apart = _read(data)
        given = {name: value for name, value in fields.items() if name in _KNOWN and value is not None}
        if "missed" in given:
            given["missed"] = tuple(given["missed"])
        given.setdefault("run_id", "")
        given.setdefault("node_id", "")
        given["state"] = _value_of(state) if is_apart else _parse(state)
        given["timestamp"] = _moment(fields.get("timestamp"))
        return cls(**given, extra={name: value for name, value in fields.items() if name not in _KNOWN})

    @staticmethod
    def migrate(data: bytes) -> bytes:
        """Return the envelope in the current version; see `milepost.model.checkpoint.migrate`."""
        return migrate(data)


_KNOWN = frozenset(f.name for f in dataclasses.fields(Checkpoint)) - {"extra"}


def migrate(data: bytes) -> bytes:
    """Convert an envelope of any version to the current one, and leave the state untouched.

    A current envelope comes back as it is. The function is pure: nothing in a store is rewritten. Raises
    `DeserializeStateError` and its subclasses.
    """
    _, given = _open(data)
    if (given.get("version") == b"1" and "node_id" in given) or given.keys() == {"header", "data"}:
        return data
    # A seal over the old text proves nothing about the new one, and a digest without a seal counts as a lost seal.
    fields = {name: raw for name, raw in _migrated(given).items() if name not in {"seal", "digest"}}
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + raw for name, raw in fields.items()) + b"}"


def read_envelope(data: bytes) -> tuple[Fields, bytes]:
    """Return the header fields of an envelope of any version, and its state as plain, uncompressed, compact JSON text.

    A state that stands in it as bytes (see `Record.envelope`) is returned as these bytes, and that of a record without
    one is `null`. Raises `CheckpointIntegrityError` if the envelope has a digest or a
    seal that does not fit, `CheckpointCorruptError` for anything that is no envelope, and `CheckpointVersionError` for
    a newer version.
    """
    return _read(data)[:2]


def _read(data: bytes) -> tuple[Fields, bytes, bool]:
    """Read an envelope as `read_envelope` does; also return whether the state stands in it as bytes."""
    whole, given = _open(data)
    apart: bytes | None = None
    if given.keys() == {"header", "data"}:
        whole, apart = given["header"], _base64(given["data"])
        given = _members(whole)
    fields = _migrated(given)
    raw = fields.pop("state", None)
    header = {name: _parse(text) for name, text in fields.items()}
    # Go writes an unset text as "" and an unset number as 0.
    if header.get("next_node") == "":
        del header["next_node"]
    if header.get("attempt") == 0:
        header["attempt"] = 1
    misfit = _misfit(header)
    if misfit is not None:
        name, value = misfit
        raise CheckpointCorruptError(
            f"checkpoint has a {name} that is {_shown(value)}", path=name, found=type(value).__name__
        )
    _moment(header.get("timestamp"))
    state = _plain_state(header, raw) if apart is None else apart
    _prove(header, state, whole, given.get("state"))
    return header, b"null" if state is None else state, apart is not None


# -- the chain of migrations: each leaves `state` untouched ------------------------------------------------


def _from_0(fields: dict[str, bytes]) -> dict[str, bytes]:
    """Add the fields that version 0 did not have: the attempt and the node before."""
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


def _version(raw: bytes | None) -> int:
    """Return the version number: 0 if it is missing or null; text that reads as a number counts as that number."""
    # No true version has over 40 bytes, and a longer one may have more digits than Python turns into a number.
    version: Any = (
        None if raw is None else _parse(raw) if len(raw) <= 40 else raw[:40].decode("utf-8", "replace") + "..."
    )
    if version is None:
        return 0
    number = version
    if isinstance(version, str):
        number = float(version) if re.fullmatch(_NUMBER, version) else None
    is_whole = (
        isinstance(number, (int, float)) and not isinstance(number, bool) and _is_finite(number) and not number % 1
    )
    if not is_whole or not 0 <= number <= CHECKPOINT_VERSION:
        raise CheckpointVersionError(
            f"checkpoint has format version {shown(version)}; this library reads up to {CHECKPOINT_VERSION}: upgrade milepost, "
            f"or check where the checkpoint comes from",
            found=version,
            supported=CHECKPOINT_VERSION,
        )
    return int(number)


def _renamed(fields: dict[str, bytes]) -> dict[str, bytes]:
    """Rename the fields of Go structs, in any case, and those of step workflows' files to the present names."""
    if "node_id" in fields:
        return dict(fields)
    is_go = any(name.lower() in {"nodeid", "runid"} for name in fields)
    renamed: dict[str, bytes] = {}
    for name, raw in fields.items():
        new = _GO_NAMES.get(name.lower(), name) if is_go else _STEP_NAMES.get(name, name)
        if new in renamed:
            raise CheckpointCorruptError(f"checkpoint has the field {new!r} under two names", path=new)
        renamed[new] = raw
    state = renamed.get("state", b"null")
    if is_go and state.startswith(b'"') and renamed.get("compressed") != b"true":
        # A []byte field of Go is base64 text in JSON, and it holds the JSON of the state.
        renamed["state"] = compact_json(_base64(state), "checkpoint's state")
    return renamed


# -- bytes ----------------------------------------------------------------------------------------------


def _open(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return an envelope as compact text, and its members with their JSON text; refuse a doubled key anywhere."""
    whole = compact_json(data, "checkpoint")
    return whole, _members(whole)


def _members(text: bytes) -> dict[str, bytes]:
    """Return the members of a JSON object with their JSON text."""
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as exc:
        raise CheckpointCorruptError(f"checkpoint is no JSON object: {exc}") from exc
    return {name: bytes(raw) for name, raw in members.items()}


def _value_of(state: bytes) -> Any:
    """Return the value of a state's JSON text, which need not be compact; the bytes if they are no strict JSON."""
    try:
        return _parse(compact_json(state, "state"))
    except CheckpointCorruptError:
        return state


def _parse(raw: bytes) -> Any:
    """Return the value of compact text; `CheckpointCorruptError` if a number is too large for Python."""
    try:
        return json.loads(raw, parse_float=_finite)
    except (ValueError, RecursionError) as exc:
        raise CheckpointCorruptError(f"checkpoint has a value that cannot be read: {exc}"[:300]) from exc


def _is_finite(value: float) -> bool:
    """Return whether a float can hold the number: an int may be too large."""
    try:
        return isfinite(value)
    except OverflowError:
        return False


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"number {text[:40]} is out of range")
    return value


def _base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(_parse(text), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise CheckpointCorruptError(f"checkpoint's state is no base64: {exc}") from exc


def _plain_state(header: Fields, raw: bytes | None) -> bytes | None:
    """Return the state as it was before it was packed; None for a record that has no state."""
    if raw is None:
        if _is_checkpoint(header):
            raise CheckpointCorruptError("checkpoint has no state", path="state")
        return None
    compressed = header.get("compressed") is True
    encoding = header.get("encoding") or ("zstd+base64" if compressed else "json")
    if encoding == "zstd+base64":
        if not raw.startswith(b'"'):
            raise CheckpointCorruptError("checkpoint says compressed, but its state is no text")
        where = "checkpoint's state"
        return compact_json(decompress(_base64(raw), header.get("size"), where=where, header=lambda: header), where)
    if encoding != "json":
        raise CheckpointCorruptError(
            f"checkpoint has encoding {encoding!r}, which is read only through a store that has its key",
            path="encoding",
        )
    if compressed:
        raise CheckpointCorruptError("checkpoint says compressed and encoding 'json' at once", path="encoding")
    return raw


# -- fields -----------------------------------------------------------------------------------------------


def _misfit(header: Fields) -> tuple[str, Any] | None:
    """Find the first field with a value that is not of its kind; return name and value, or None if all fit."""
    for name, value in header.items():
        if value is not None and not _fits(name, value):
            return name, value
    if _is_checkpoint(header) and not header.get("node_id"):
        return "node_id", header.get("node_id")
    return None


def _is_checkpoint(header: Fields) -> bool:
    """Return whether the envelope is a checkpoint, and no record of another kind."""
    return header.get("kind") in (None, CHECKPOINT)


def _fits(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if name in _COUNTS:
        return type(value) is int and _COUNTS[name] <= value <= _MOST
    if name == "compressed":
        return isinstance(value, bool)
    if name == "duration_ms":
        return type(value) in {int, float} and _is_finite(value)
    if name == "missed":
        return isinstance(value, list) and all(isinstance(visit, str) for visit in value)
    if name == "tags":
        return isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair)
    return True


def _moment(text: Any) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_time(text)
    except (ValueError, TypeError) as exc:
        raise CheckpointCorruptError(
            f"checkpoint has a timestamp that is {_shown(text)}, and no time with a zone", path="timestamp"
        ) from exc


def _prove(header: Fields, state: bytes | None, whole: bytes, raw: bytes | None) -> None:
    """Raise `CheckpointIntegrityError` unless digest and seal fit, and none of them is missing that must be there."""
    digest, seal = header.get("digest"), header.get("seal")
    if digest is not None and (state is None or digest != digest_of(state)):
        computed = "no state" if state is None else digest_of(state)
        raise _changed("its digest does not fit its state", digest, computed)
    if seal is None:
        if digest is not None or not _is_checkpoint(header):
            raise _changed("its seal is gone", "a seal", "none")
    elif not seal.startswith(KEYED):
        # The seal is the header's last field and covers the text before it; the state stands behind it, last of all.
        sealed = whole.removesuffix(b"}" if raw is None else b',"state":' + raw + b"}")
        tail = b',"seal":' + msgspec.json.encode(seal)
        if Seals().seal(sealed.removesuffix(tail)) != sealed:
            raise _changed("its seal does not fit its header", seal, "another")


def _changed(what: str, expected: str, found: str) -> CheckpointIntegrityError:
    return CheckpointIntegrityError(
        f"checkpoint was changed after it was written ({what}): take a copy that was not, or, if the change is meant, "
        f"take digest and seal out",
        expected=expected,
        found=found,
    )


def _shown(value: Any) -> str:
    try:
        return f"{type(value).__name__} {value!r}"[:80]
    except Exception:  # an integer beyond the digits that Python shows, or a foreign object's own repr
        return type(value).__name__


def _refusal(path: str, value: Any, what: str) -> SerializeStateError:
    return SerializeStateError(f"{path} {what}", path=path, type_name=type(value).__name__)


def _dump(value: Any, path: str) -> bytes:
    """Return plain values as strict JSON; refuse a value that JSON would change."""
    try:
        _refuse_inexact(value, path)
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except SerializeStateError:
        raise
    except (ValueError, RecursionError) as exc:
        raise _refusal(
            path, value, f"is no plain JSON value ({exc}): give the bytes that the flow's codec makes"
        ) from exc


def _refuse_inexact(value: Any, path: str) -> None:
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise _refusal(path, key, f"has the key {_shown(key)}, which JSON would change: give text")
            _refuse_inexact(item, f"{path}.{key}")
    elif kind is list:
        for index, item in enumerate(value):
            _refuse_inexact(item, f"{path}[{index}]")
    elif kind not in {str, int, float, bool, type(None)} or (kind is float and not isfinite(value)):
        raise _refusal(
            path,
            value,
            f"is {_shown(value)}, which JSON would change: give lists, dicts, text and finite numbers, or bytes",
        )
