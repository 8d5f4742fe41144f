"""The envelope: what is written, which old forms are read, and what is refused."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointVersionError,
    DeserializeStateError,
    SerializeStateError,
)
from milepost.model.checkpoint import CHECKPOINT_VERSION, Checkpoint, migrate, read_envelope
from milepost.model.record import FAILURE, START, Record, compress, digest_of, make_record
from milepost.model.seal import Seals
from milepost.testing.tables import for_each

STAMP = "2026-01-01T00:00:00.000000Z"
MOMENT = datetime(2025, 12, 20, 15, 30, tzinfo=UTC)


def by_hand(state: Any = None, **fields: Any) -> Checkpoint:
    return Checkpoint("r", "b", "c", state, **{"timestamp": MOMENT, **fields})


def outside(state: str = '{"n":1}', **fields: Any) -> bytes:
    """An envelope as another program may write it: no digest, no seal."""
    header = {"run_id": "r", "node_id": "b", "next_node": "c", **fields}
    return (json.dumps(header)[:-1] + f', "state": {state}' + "}").encode()


def sealed(record: Record) -> bytes:
    assert record.header is not None
    return Seals().sealed(record).envelope()


def text_of(size: int) -> str:
    """A str whose JSON text has `size` bytes."""
    return "x" * (size - 2)


# -- written ---------------------------------------------------------------------------------------------


def test_a_checkpoint_made_by_hand_is_written_and_read() -> None:
    data = Checkpoint(run_id="r", node_id="b", next_node="c", state={"count": 42}).encode()
    found = Checkpoint.decode(data)
    assert ("r", "b", "c", {"count": 42}) == (found.run_id, found.node_id, found.next_node, found.state)
    assert (1, 1, 1, 0, "") == (found.version, found.visit, found.attempt, found.sequence, found.prev_node_id)


def test_the_timestamp_is_that_of_the_making() -> None:
    before = datetime.now(UTC)
    made = Checkpoint("r", "b")
    assert made.timestamp is not None
    assert before <= made.timestamp <= datetime.now(UTC)
    assert made.encode() == made.encode()


def test_the_envelope_is_compact_with_seal_and_state_last() -> None:
    header = (
        '{"version":1,"run_id":"r","node_id":"b","sequence":0,"timestamp":"2025-12-20T15:30:00.000000Z","visit":1,'
        '"next_node":"c","attempt":1,"prev_node_id":"","encoding":"json","digest":"'
        + digest_of(b'{"z":1,"a":"\xc3\xbc"}')
        + '"'
    )
    expected = Seals().seal(header.encode()) + b',"state":{"z":1,"a":"\xc3\xbc"}}'
    assert expected == by_hand({"z": 1, "a": "ü"}).encode()


def test_a_timestamp_in_another_zone_is_written_in_utc() -> None:
    moment = datetime(2025, 12, 20, 17, 30, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert b'"timestamp":"2025-12-20T15:30:00.000005Z"' in by_hand({}, timestamp=moment).encode()
    assert b'"timestamp":"1970-01-01T00:00:00.000000Z"' in by_hand({}, timestamp=None).encode()
    late = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert late == Checkpoint.decode(by_hand({}, timestamp=late).encode()).timestamp


@pytest.mark.parametrize(
    "moment",
    [datetime(2025, 12, 20), "2025-12-20T15:30:00Z", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))],
)
def test_a_timestamp_without_a_zone_is_refused(moment: Any) -> None:
    with pytest.raises(SerializeStateError) as caught:
        by_hand({}, timestamp=moment).encode()
    assert "timestamp" == caught.value.path


@for_each("state", [None, True, 0, -1.5, "", "text", [], {}, [1, [2, {"a": None}]], 2**70])
def test_any_json_value_is_a_state(state: Any) -> None:
    found = Checkpoint.decode(by_hand(state).encode()).state
    assert (type(state), state) == (type(found), found)


def test_bytes_are_the_json_text_of_a_state() -> None:
    for given in (b' {"n": 1.50, "a": [ ]} ', bytearray(b'{"n":1.50,"a":[]}')):
        assert b'{"n":1.50,"a":[]}' == read_envelope(by_hand(given).encode())[1]


@for_each("state", [b"", b"{", b"NaN", b'{"a":1,"a":2}', b'"\xff"', b"\xef\xbb\xbf{}", b'"\\ud800"'])
def test_bytes_that_are_no_strict_json_are_refused(state: bytes) -> None:
    with pytest.raises(SerializeStateError):
        by_hand(state).encode()


class Level(int):
    pass


@for_each(
    "state, path",
    [
        ((1, 2), "state"),
        ({"items": [{"due": (1,)}]}, "state.items[0].due"),
        ({"a": {1: "b"}}, "state.a"),
        ({"a": {1, 2}}, "state.a"),
        ([float("nan")], "state[0]"),
        ([float("inf")], "state[0]"),
        (Level(3), "state"),
        ({"a": MOMENT}, "state.a"),
        ({"a": b"bytes"}, "state.a"),
        ("\ud800", "state"),
    ],
)
def test_a_value_that_json_would_change_is_refused_with_its_path(state: Any, path: str) -> None:
    with pytest.raises(SerializeStateError) as caught:
        by_hand(state).encode()
    assert path == caught.value.path


def test_an_integer_that_python_does_not_show_is_refused() -> None:
    with pytest.raises(SerializeStateError) as caught:
        by_hand(10**5000).encode()
    assert "state" == caught.value.path
    with pytest.raises(SerializeStateError):
        by_hand({}, sequence=10**5000).encode()


def test_a_state_that_holds_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(SerializeStateError):
        by_hand(state).encode()


@for_each(
    "fields",
    [
        {"sequence": -1},
        {"sequence": True},
        {"sequence": 2**64},
        {"visit": 0},
        {"attempt": 0},
        {"attempt": 1.0},
        {"missed": (1,)},
        {"tags": {"a": 1}},
        {"duration_ms": float("nan")},
        {"kind": 3},
        {"prev_node_id": None, "iteration": "1"},
        {"extra": {"state": 1}},
        {"extra": {"seal": "x"}},
        {"extra": {"a": (1,)}},
        {"extra": {"sequence": 1}},
        {"branch": "\ud800"},
    ],
)
def test_a_field_that_could_not_be_read_again_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SerializeStateError):
        by_hand({}, **fields).encode()


@for_each("run_id, node_id", [(1, "b"), ("r", None), ("r", ""), ("r", 2), ("\ud800", "b")])
def test_ids_that_could_not_be_read_again_are_refused(run_id: Any, node_id: Any) -> None:
    with pytest.raises(SerializeStateError):
        Checkpoint(run_id, node_id, "c", {}).encode()


def test_a_checkpoint_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        by_hand().state = 1  # type: ignore[misc]


@for_each(
    "size, compressed, is_compressed",
    [
        (1023, True, False),
        (1024, True, True),
        (1024, False, False),
        (1_048_576, False, False),
        (1_048_577, False, True),
        (2 * 1024 * 1024, False, True),
    ],
)
def test_a_state_is_compressed_by_its_size(size: int, compressed: bool, is_compressed: bool) -> None:
    state = text_of(size)
    data = by_hand(state, compressed=compressed).encode()
    found = Checkpoint.decode(data)
    assert is_compressed == found.compressed == (b'"compressed":true' in data)
    assert (size if is_compressed else None) == found.size
    assert state == found.state
    assert digest_of(b'"' + state.encode() + b'"') == found.digest


# -- read and kept ---------------------------------------------------------------------------------------


def test_every_field_comes_back() -> None:
    made = by_hand(
        {"n": 1},
        sequence=7,
        attempt=2,
        prev_node_id="a",
        visit=3,
        iteration=4,
        duration_ms=1.25,
        branch="fork#1/left",
        outcome="recovered",
        missed=("a#1", "b#2"),
        epoch=5,
        updates=[{"n": 1}],
        tags={"customer": "c-9"},
        extra={"note": {"deep": [1, None]}, "nothing": None, "big": 2**80, "extra": 1},
    )
    found = Checkpoint.decode(made.encode())
    anew = {"digest": found.digest, "seal": found.seal}
    assert dataclasses.replace(made, **anew) == found


def test_fields_that_are_not_known_are_kept() -> None:
    found = Checkpoint.decode(outside(colour="red", nested={"a": [1, 2.5, None]}, nothing=None))
    expected = {"colour": "red", "nested": {"a": [1, 2.5, None]}, "nothing": None}
    assert expected == found.extra
    assert expected == Checkpoint.decode(found.encode()).extra


def test_the_order_of_keys_in_a_state_is_kept() -> None:
    assert ["z", "a", "m"] == list(Checkpoint.decode(by_hand({"z": 1, "a": 2, "m": 3}).encode()).state)


def test_an_old_form_has_neither_digest_nor_seal() -> None:
    found = Checkpoint.decode(outside())
    assert (None, None, None) == (found.digest, found.seal, found.timestamp)


def test_records_without_a_state_come_back_as_they_were() -> None:
    data = sealed(make_record("r", 4, STAMP, FAILURE, "work", fields={"op": "execute", "attempt": 2, "final": True}))
    found = Checkpoint.decode(data)
    assert (FAILURE, None, 2) == (found.kind, found.state, found.attempt)
    assert {"op": "execute", "final": True} == found.extra
    again = found.encode()
    assert b'"state"' not in again
    assert found.extra == Checkpoint.decode(again).extra


def test_a_start_record_keeps_its_input() -> None:
    data = sealed(make_record("r", 0, STAMP, START, state=b'{"n":5}', fields={"flow": "orders"}))
    found = Checkpoint.decode(Checkpoint.decode(data).encode())
    assert (START, "", {"n": 5}, {"flow": "orders"}) == (found.kind, found.node_id, found.state, found.extra)


def test_what_go_writes_for_unset_fields_counts_as_absent() -> None:
    fields, _ = read_envelope(outside(next_node="", attempt=0, timestamp="0001-01-01T00:00:00Z"))
    assert "next_node" not in fields
    assert 1 == fields["attempt"]


@for_each(
    "text, is_read",
    [
        ("2025-12-20T15:30:00Z", True),
        ("2025-12-20T15:30:00.123456Z", True),
        ("2025-12-20T15:30:00.123456789+01:00", True),
        ("2025-12-20T15:30:00", False),
        ("2025-12-20", False),
        ("soon", False),
        (5, False),
        ([], False),
        ("0001-01-01T00:00:00+05:00", False),
    ],
)
def test_a_timestamp_needs_a_zone(text: Any, is_read: bool) -> None:
    data = outside(timestamp=text)
    if is_read:
        found = Checkpoint.decode(data).timestamp
        assert found is not None
        assert UTC == found.tzinfo
    else:
        with pytest.raises(CheckpointCorruptError, match="timestamp"):
            Checkpoint.decode(data)


# -- versions and old forms --------------------------------------------------------------------------------


@for_each("version", ["null", "0", "1", '"1"', '"1.0"', "1.0", '"0"', "0.0", "-0", "1e0", '"1e0"'])
def test_versions_up_to_one_are_read(version: str) -> None:
    data = outside().replace(b"{", b'{"version":' + version.encode() + b",", 1)
    found = Checkpoint.decode(data)
    assert (CHECKPOINT_VERSION, 1, "") == (found.version, found.attempt, found.prev_node_id)


@for_each(
    "version, found",
    [
        ("2", 2),
        ('"2"', "2"),
        ("99", 99),
        ("1.5", 1.5),
        ('"1.5"', "1.5"),
        ("true", True),
        ("false", False),
        ('"abc"', "abc"),
        ("-1", -1),
        ('"-1"', "-1"),
        ('"nan"', "nan"),
        ('"inf"', "inf"),
        ('""', ""),
        ('" 1"', " 1"),
        ('"0_1"', "0_1"),
        ('"\\u0661"', "١"),
        ("[1]", [1]),
        ("{}", {}),
        ("9" * 5000, "9" * 40 + "..."),
        ('"' + "9" * 500 + '"', '"' + "9" * 39 + "..."),
    ],
)
@for_each("read", [Checkpoint.decode, migrate, read_envelope])
def test_other_versions_are_refused(read: Callable[[bytes], Any], version: str, found: Any) -> None:
    data = outside().replace(b"{", b'{"version":' + version.encode() + b",", 1)
    with pytest.raises(CheckpointVersionError) as caught:
        read(data)
    assert (found, 1) == (caught.value.found, caught.value.supported)


@pytest.mark.parametrize("version", ["1e400", "NaN"])
def test_a_version_that_no_number_can_be_is_corrupt(version: str) -> None:
    with pytest.raises(CheckpointCorruptError):
        migrate(outside().replace(b"{", b'{"version":' + version.encode() + b",", 1))


def test_migration_leaves_the_state_as_it_was_written() -> None:
    state = '{"z":12345678901234567890123,"a":0.10,"e":1E5,"u":"\\u00e9\\/","n":' + "7" * 6000 + "}"
    migrated = migrate(outside(state))
    assert migrated.endswith(b',"state":' + state.encode() + b"}")
    assert migrated.startswith(b'{"attempt":1,"prev_node_id":"",')
    assert b'"version":1,' in migrated


def test_migration_gives_a_current_envelope_back_as_it_is() -> None:
    data = outside(version=1)
    assert data is migrate(data)
    assert data is Checkpoint.migrate(data)


def test_migration_puts_the_state_last_and_drops_a_seal_that_no_longer_fits() -> None:
    migrated = migrate(b'{"state":{"n":1},"seal":"sha256:x","digest":"y","node_id":"b","more":1,"version":"1.0"}')
    assert b'{"node_id":"b","more":1,"version":1,"state":{"n":1}}' == migrated


@pytest.mark.parametrize("names", [("RunID", "NodeID", "NextNode", "State"), ("runid", "NODEID", "nextNode", "state")])
def test_go_field_names_are_read_in_any_case(names: tuple[str, ...]) -> None:
    state = base64.b64encode(b'{"n": 1.50}').decode()
    data = json.dumps({**dict(zip(names, ("r", "b", "c", state), strict=True)), "Version": 1}).encode()
    found = Checkpoint.decode(data)
    assert ("r", "b", "c", {"n": 1.5}) == (found.run_id, found.node_id, found.next_node, found.state)
    assert b'{"n":1.50}' == read_envelope(data)[1]
    assert migrate(data).endswith(b',"state":{"n":1.50}}')


def test_a_go_state_that_is_no_text_stands_for_itself() -> None:
    assert {"n": 1} == Checkpoint.decode(b'{"RunID":"r","NodeID":"b","State":{"n":1}}').state
    assert Checkpoint.decode(b'{"RunID":"r","NodeID":"b","State":null}').state is None


def test_a_compressed_go_state_is_read() -> None:
    state = base64.b64encode(compress(b'{"n": 1}')).decode()
    data = json.dumps({"RunID": "r", "NodeID": "b", "Compressed": True, "State": state}).encode()
    assert {"n": 1} == Checkpoint.decode(data).state


@for_each(
    "state",
    ['"e30"', '"%%"', '""', '"\\u00fc"', json.dumps(base64.b64encode(b'{"a":1,"a":2}').decode()), '"bm8ganNvbg=="'],
)
def test_a_go_state_that_is_no_base64_of_json_is_refused(state: str) -> None:
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.decode(b'{"RunID":"r","NodeID":"b","State":' + state.encode() + b"}")


@for_each(
    "data",
    [
        b'{"RunID":"r","run_id":"s","NodeID":"b","State":null}',
        b'{"NodeID":"a","nodeid":"b","State":null}',
        b'{"NodeID":"a","State":null,"state":{}}',
        b'{"checkpoint_id":"a","step_results":[],"state":{}}',
        b'{"checkpoint_id":"a","step_results":[],"saved_at":"2025-12-20T15:30:00Z","timestamp":"2025-12-20T15:30:00Z"}',
    ],
)
def test_one_field_under_two_names_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointCorruptError, match="two names"):
        migrate(data)


@pytest.mark.parametrize(
    "data", [b'{"checkpoint_id":"a"}', b'{"checkpoint_id":"a","step_results":[],"saved_at":"2025-12-20T15:30:00"}']
)
def test_a_step_workflow_file_needs_results_and_a_zone(data: bytes) -> None:
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.decode(data)


# -- refused -------------------------------------------------------------------------------------------------

NO_ENVELOPES = {
    "empty": b"",
    "blank": b"  \n",
    "no json": b"pickle",
    "a list": b"[]",
    "a number": b"1",
    "an object of nothing": b"{}",
    "any object": b'{"count":5}',
    "no state": b'{"run_id":"r","node_id":"b","next_node":"c"}',
    "no node": b'{"run_id":"r","state":{}}',
    "an empty node": b'{"run_id":"r","node_id":"","state":{}}',
    "a byte order mark": b"\xef\xbb\xbf" + outside(),
    "utf-16": outside().decode().encode("utf-16"),
    "latin-1": outside('"\xfc"').decode().encode("latin-1"),
    "two objects": outside() + outside(),
    "bytes after it": outside() + b"x",
    "NaN": outside("NaN"),
    "infinity": outside("[-Infinity]"),
    "a doubled field": b'{"node_id":"a","node_id":"b","state":{}}',
    "a doubled state": b'{"node_id":"a","state":{},"state":{}}',
    "a doubled key in the state": outside('{"a":{"b":1,"b":2}}'),
    "a doubled key under an escape": outside('{"a":1,"\\u0061":2}'),
    "a lone surrogate": outside('"\\ud800"'),
    "a lone low surrogate": outside('["\\udc00x"]'),
    "a lone surrogate as a key": outside('{"\\ud800":1}'),
    "a control character": outside('"\x01"'),
    "a trailing comma": outside("[1,]"),
    "a comment": outside("[1 /* one */]"),
    "deep nesting": outside("[" * 100_000 + "]" * 100_000),
}


@for_each("data", NO_ENVELOPES.values())
def test_what_is_no_envelope_is_corrupt(data: bytes) -> None:
    for read in (Checkpoint.decode, read_envelope):
        with pytest.raises(CheckpointCorruptError):
            read(data)


@pytest.mark.parametrize("number", ["1e400", "-1e999", "7" * 6000])
def test_a_number_beyond_python_is_refused_where_it_would_be_read(number: str) -> None:
    assert number.encode() == read_envelope(outside(number))[1]
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.decode(outside(number))
    with pytest.raises(CheckpointCorruptError):
        read_envelope(outside().replace(b"{", b'{"other":' + number.encode() + b",", 1))


@for_each(
    "name, value",
    [
        ("run_id", 5),
        ("node_id", ["b"]),
        ("next_node", 1),
        ("prev_node_id", {}),
        ("sequence", -1),
        ("sequence", 1.5),
        ("sequence", "1"),
        ("sequence", True),
        ("sequence", 2**63),
        ("sequence", 10**300),
        ("visit", 0),
        ("attempt", -1),
        ("iteration", []),
        ("size", -5),
        ("epoch", "x"),
        ("missed", "a#1"),
        ("missed", [1]),
        ("tags", []),
        ("tags", {"a": 1}),
        ("compressed", "yes"),
        ("encoding", 1),
        ("encoding", "rot13"),
        ("encoding", "aesgcm+base64"),
        ("kind", 1),
        ("duration_ms", True),
        ("duration_ms", "1"),
        ("duration_ms", 10**400),
        ("branch", 1),
        ("outcome", 1),
        ("digest", 1),
        ("seal", 5),
        ("seal", "x"),
    ],
)
def test_a_field_of_another_type_is_corrupt(name: str, value: Any) -> None:
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.decode(outside(**{name: value}))


def test_fields_may_be_null() -> None:
    names = ("run_id", "next_node", "sequence", "visit", "missed", "tags", "compressed", "encoding", "seal", "kind")
    found = Checkpoint.decode(outside(**dict.fromkeys(names)))
    assert ("", None, 0, 1) == (found.run_id, found.next_node, found.sequence, found.visit)


@for_each(
    "state, fields",
    [
        ("{}", {"compressed": True}),
        ('"e30="', {"compressed": True}),
        ('"%"', {"compressed": True}),
        ('"e30"', {"encoding": "zstd+base64"}),
        (json.dumps(base64.b64encode(compress(b'{"a":1,"a":2}')).decode()), {"compressed": True}),
        (json.dumps(base64.b64encode(compress(b"no json")).decode()), {"compressed": True}),
        (json.dumps(base64.b64encode(compress(b"[1]")).decode()), {"compressed": True, "size": 2}),
        (json.dumps(base64.b64encode(compress(b"[1]")).decode()), {"compressed": True, "size": 4}),
        (json.dumps(base64.b64encode(compress(b"[1]")).decode()), {"compressed": True, "size": 2**62}),
        (json.dumps(base64.b64encode(compress(b"[1]")).decode()), {"compressed": True, "encoding": "json"}),
    ],
)
def test_a_compressed_state_that_does_not_unpack_is_corrupt(state: str, fields: dict[str, Any]) -> None:
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.decode(outside(state, **fields))


def test_what_is_encrypted_is_left_to_the_store_with_the_key() -> None:
    with pytest.raises(CheckpointCorruptError, match="key"):
        Checkpoint.decode(outside('"e30="', compressed=True, encoding="zstd+aesgcm+base64"))


def test_a_changed_state_is_told_as_that() -> None:
    data = by_hand({"total": 10}).encode().replace(b'"total":10', b'"total":90')
    with pytest.raises(CheckpointIntegrityError, match="digest") as caught:
        Checkpoint.decode(data)
    assert digest_of(b'{"total":10}') == caught.value.expected
    assert digest_of(b'{"total":90}') == caught.value.found


@for_each(
    "old, new",
    [
        (b'"next_node":"c"', b'"next_node":"d"'),
        (b'"seal":"sha256:', b'"seal":"sha257:'),
        (b'"seal"', b'"sael"'),
        (b'"digest"', b'"digset"'),
        (b'"state"', b'"other":0,"state"'),
        (b',"state":{"n":1}', b""),
    ],
)
def test_a_changed_header_is_told_as_that(old: bytes, new: bytes) -> None:
    data = by_hand({"n": 1}).encode()
    assert 1 == data.count(old)
    with pytest.raises(CheckpointCorruptError):
        Checkpoint.decode(data.replace(old, new))


def test_a_record_without_a_state_that_lost_its_seal_is_refused() -> None:
    data = sealed(make_record("r", 4, STAMP, FAILURE, "work"))
    with pytest.raises(CheckpointIntegrityError, match="its seal is gone"):
        Checkpoint.decode(data.replace(b'"seal"', b'"sael"'))


def test_a_seal_made_with_a_key_is_left_to_the_store_that_has_it() -> None:
    record = make_record("r", 1, STAMP, "checkpoint", "a", state=b"{}")
    assert record.header is not None
    data = record._replace(header=record.header + b',"seal":"hmac-sha256:k1:00"').envelope()
    assert "hmac-sha256:k1:00" == Checkpoint.decode(data).seal


def test_a_copy_with_white_space_is_proven_like_the_original() -> None:
    data = by_hand({"n": 1, "s": "a b"}).encode()
    pretty = json.dumps(json.loads(data), indent=2).encode()
    assert Checkpoint.decode(data) == Checkpoint.decode(pretty)


def test_all_refusals_are_errors_of_decoding() -> None:
    for error in (CheckpointCorruptError, CheckpointIntegrityError, CheckpointVersionError):
        assert issubclass(error, DeserializeStateError)


def test_bytes_may_stand_in_other_buffers() -> None:
    data = outside()
    for buffer in (bytearray(data), memoryview(data)):
        assert {"n": 1} == Checkpoint.decode(buffer).state  # type: ignore[arg-type]


def test_what_is_no_bytes_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        Checkpoint.decode("{}")  # type: ignore[arg-type]
