"""Whatever the bytes: an envelope is read, or refused with an error of decoding, and never read as another."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.errors import DeserializeStateError, SerializeStateError
from milepost.model.checkpoint import Checkpoint, migrate, read_envelope
from milepost.model.record import FAILURE, START, compress, make_record
from milepost.model.seal import Seals
from thoroughness import examples

MOMENT = datetime(2025, 12, 20, 15, 30, tzinfo=UTC)
STAMP = "2025-12-20T15:30:00.000000Z"


def envelope_of(kind: str, state: bytes | None, **fields: Any) -> bytes:
    record = make_record("r", 4, STAMP, kind, "work", 2, state, fields)
    assert record.header is not None
    return Seals().sealed(record).envelope()


SEALED = {
    "a checkpoint": Checkpoint(
        "r", "b", "c", {"name": "Grüße", "n": [1, 2.5, None]}, timestamp=MOMENT, tags={"a": "b"}, extra={"more": 1}
    ).encode(),
    "a compressed one": Checkpoint("r", "b", "c", "x" * 1200, timestamp=MOMENT, compressed=True).encode(),
    "a start": envelope_of(START, b'{"n":5}', flow="orders", entry="first", epoch=1),
    "a failure": envelope_of(FAILURE, None, op="execute", message="no", attempt=2, final=True),
}
OLD = {
    "go": b'{"RunID":"r","NodeID":"b","NextNode":"c","State":"' + base64.b64encode(b'{"n":1}') + b'"}',
    "text version": b'{"version":"1.0","run_id":"r","node_id":"b","next_node":"c","sequence":2,"state":{"n":1}}',
    "steps": b'{"checkpoint_id":"b","workflow_name":"w","step_results":[],"saved_at":"2025-12-20T15:30:00Z"}',
    "compressed": b'{"version":1,"run_id":"r","node_id":"b","compressed":true,"state":"%b"}'
    % base64.b64encode(compress(b'{"n":1}')),
}


def outcome(data: bytes) -> Checkpoint | None:
    """The checkpoint in `data`, or None where it is refused; all three readers are asked, and agree."""
    try:
        migrated = migrate(data)
    except DeserializeStateError:
        migrated = None
    try:
        read = read_envelope(data)
    except DeserializeStateError:
        read = None
    try:
        found = Checkpoint.decode(data)
    except DeserializeStateError:
        return None
    assert read is not None
    assert migrated is not None
    assert read[1] == read_envelope(migrated)[1]
    return found


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes(data: bytes) -> None:
    outcome(data)


NAMES = st.sampled_from(
    [
        "version",
        "run_id",
        "node_id",
        "sequence",
        "timestamp",
        "state",
        "next_node",
        "attempt",
        "prev_node_id",
        "compressed",
        "visit",
        "digest",
        "encoding",
        "seal",
        "kind",
        "size",
        "iteration",
        "duration_ms",
        "branch",
        "outcome",
        "missed",
        "epoch",
        "updates",
        "tags",
        "RunID",
        "NodeID",
        "NextNode",
        "State",
        "Version",
        "nodeid",
        "Compressed",
        "Timestamp",
        "checkpoint_id",
        "step_results",
        "saved_at",
        "workflow_name",
        "extra",
        "other",
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**63, 2**64, 10**400, -1, 1.0]),
    st.text(max_size=8),
    st.sampled_from(
        ["1", "1.0", "2", "json", "zstd+base64", "aesgcm+base64", "checkpoint", "start", "sha256:", "e30="]
    ),
    st.sampled_from([STAMP, "2025-12-20", "0001-01-01T00:00:00+09:00", base64.b64encode(compress(b"{}")).decode()]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)


@given(st.dictionaries(NAMES, VALUES, max_size=8))
@settings(max_examples=examples(300), deadline=None)
def test_any_object_of_our_field_names(fields: dict[str, Any]) -> None:
    found = outcome(json.dumps(fields).encode())
    if found is not None:
        again = Checkpoint.decode(found.encode())
        assert (found.state, found.extra, found.next_node) == (again.state, again.extra, again.next_node)


@given(st.dictionaries(NAMES, VALUES, max_size=3))
@settings(deadline=None)
def test_any_field_beside_those_that_must_be_there(fields: dict[str, Any]) -> None:
    outcome(json.dumps({"run_id": "r", "node_id": "b", "state": {"n": 1}, **fields}).encode())


PIECES = st.sampled_from(
    [
        b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\ud800", b"\\u0000", b"\xff", b"\x00", b"NaN", b"-Infinity",
        b"1e400", b"9" * 5000, b"null", b"true", b'"state":1,', b'"seal":"sha256:00",', b'"version":2,', b" ", b"\n",
        b"[" * 3000, b'{"a":' * 3000, b"\xef\xbb\xbf",
    ]
)  # fmt: skip


@given(st.sampled_from([*SEALED.values(), *OLD.values()]), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_envelopes_with_pieces_put_in_cut_out_and_doubled(data: bytes, draw: st.DataObject) -> None:
    for _ in range(draw.draw(st.integers(1, 3))):
        start = draw.draw(st.integers(0, len(data)))
        stop = draw.draw(st.integers(start, min(len(data), start + 30)))
        piece = draw.draw(st.one_of(PIECES, st.just(b""), st.just(data[start:stop] * 2), st.binary(max_size=4)))
        data = data[:start] + piece + data[stop:]
    outcome(data)


@pytest.mark.parametrize("data", SEALED.values(), ids=SEALED)
@pytest.mark.parametrize("mask", [0x01, 0x02, 0x20, 0x80, 0xFF])
def test_a_flipped_byte_is_refused_or_changes_nothing(data: bytes, mask: int) -> None:
    expected = Checkpoint.decode(data)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= mask
        found = outcome(bytes(flipped))
        assert found is None or expected == found, f"byte {place}"


@pytest.mark.parametrize("data", [*SEALED.values(), *OLD.values()], ids=[*SEALED, *OLD])
def test_an_envelope_cut_anywhere_is_refused(data: bytes) -> None:
    assert outcome(data) is not None
    for length in range(len(data)):
        assert outcome(data[:length]) is None, f"cut at {length}"


@pytest.mark.parametrize("depth", [10, 200, 900, 950, 980, 990, 1000, 5000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_of_any_depth(depth: int, opening: bytes, closing: bytes) -> None:
    state = opening * depth + b"null" + closing * depth
    found = outcome(b'{"run_id":"r","node_id":"b","state":' + state + b"}")
    assert (depth <= 200) <= (found is not None)
    outcome(state)
    outcome(b'{"RunID":"r","NodeID":"b","State":"' + base64.b64encode(state) + b'"}')
    outcome(b'{"node_id":"b","compressed":true,"state":"' + base64.b64encode(compress(state)) + b'"}')


@given(st.text(alphabet=st.characters(), max_size=5), st.integers(0xD800, 0xDFFF), st.text(max_size=5))
@settings(deadline=None)
def test_a_lone_surrogate_is_refused_wherever_it_stands(before: str, surrogate: int, after: str) -> None:
    text = json.dumps(before)[:-1] + f"\\u{surrogate:04x}" + json.dumps(after)[1:]
    for data in ('{"node_id":"b","state":%s}', '{"node_id":"b","state":{%s:1}}', '{"node_id":"b","state":1,%s:1}'):
        try:
            json.loads(text).encode()
        except UnicodeEncodeError:
            assert outcome((data % text).encode()) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.booleans())
@settings(deadline=None)
def test_any_json_value_comes_back_the_same(state: Any, compressed: bool) -> None:
    made = Checkpoint("r", "b", "c", state, timestamp=MOMENT, compressed=compressed)
    found = Checkpoint.decode(made.encode())
    assert json.dumps(state) == json.dumps(found.state)
    assert found.encode() == made.encode()


@given(JSON)
@settings(deadline=None)
def test_migration_keeps_the_text_of_the_state(state: Any) -> None:
    text = json.dumps(state, separators=(",", ":")).encode()
    assert migrate(b'{"node_id":"b","state":' + text + b"}").endswith(b',"state":' + text + b"}")


@given(VALUES)
@settings(deadline=None)
def test_what_is_written_by_hand_is_read_or_refused_at_once(state: Any) -> None:
    try:
        data = Checkpoint("r", "b", "c", state, timestamp=MOMENT).encode()
    except SerializeStateError:
        return
    assert state == Checkpoint.decode(data).state
