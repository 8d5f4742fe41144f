"""The record in its two parts: header and payload, sizes, seals and times."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointVersionError,
    StateTooLargeError,
)
from milepost.model import record as record_module
from milepost.model.checkpoint import Checkpoint
from milepost.model.record import (
    CHECKPOINT,
    FAILURE,
    START,
    Record,
    branch_path,
    compress,
    decompress,
    digest_of,
    format_time,
    make_record,
    packed,
    parse_time,
    segments_of,
)
from milepost.model.seal import Seals
from milepost.testing.tables import for_each

STAMP = "2026-01-01T00:00:00.000000Z"


def state_of(size: int) -> bytes:
    """A JSON text of exactly `size` bytes."""
    return b'"' + b"x" * (size - 2) + b'"'


def sealed(record: Record) -> Record:
    assert record.header is not None
    return Seals().sealed(record)


def checkpoint(state: bytes = b'{"n":6}', **fields: object) -> Record:
    return sealed(make_record("r", 3, STAMP, CHECKPOINT, "work", 2, state, {"next_node": "later", **fields}))


@for_each(
    "size, compressing, is_compressed",
    [
        (1023, True, False),
        (1024, True, True),
        (1024, False, False),
        (1_048_576, False, False),
        (1_048_576, True, True),
        (1_048_577, False, True),
    ],
)
def test_whether_a_state_is_compressed_follows_from_its_size(size: int, compressing: bool, is_compressed: bool) -> None:
    state = state_of(size)
    record = make_record("r", 1, STAMP, CHECKPOINT, "a", state=state, compressing=compressing)
    fields = record.fields()
    assert is_compressed == (record.packing == "unpacked") == fields.get("compressed", False)
    assert is_compressed == (packed(record).packing == "zstd")
    assert packed(record).envelope() == record.envelope()
    assert ("zstd+base64" if is_compressed else "json") == fields["encoding"]
    assert (size if is_compressed else None) == fields.get("size")
    assert size == record.size
    assert state == record.state()
    envelope = json.loads(record.envelope())
    text = decompress(base64.b64decode(envelope["state"]), size) if is_compressed else state
    assert json.loads(state) == json.loads(text)


def test_two_megabytes_come_back_exactly_and_smaller() -> None:
    state = state_of(2 * 1024 * 1024)
    record = make_record("r", 1, STAMP, CHECKPOINT, "a", state=state)
    assert state == record.state()
    assert len(record.envelope()) < len(state) / 10
    Seals().check("r", sealed(record))


def test_the_header_stands_before_the_state_and_names_kinds_but_checkpoints() -> None:
    fields = {"next_node": None, "attempt": 2, "missed": None, "epoch": 1}
    record = make_record("r", 3, STAMP, CHECKPOINT, "work", 2, b"[]", fields)
    assert (
        '{"version":1,"run_id":"r","node_id":"work","sequence":3,"timestamp":"'
        + STAMP
        + '","visit":2,"next_node":null,'
        '"attempt":2,"epoch":1,"encoding":"json","state":[]}'
    ) == record.envelope().decode()
    failed = make_record("r", 4, STAMP, FAILURE, "work", fields={"op": "execute", "cause": None})
    assert (
        '{"version":1,"run_id":"r","node_id":"work","sequence":4,"timestamp":"' + STAMP + '","kind":"failure",'
        '"visit":1,"op":"execute"}'
    ) == failed.envelope().decode()


def test_fields_given_to_a_record_are_not_changed() -> None:
    fields = {"next_node": None, "missed": None}
    make_record("r", 3, STAMP, CHECKPOINT, "work", 2, b"[]", fields)
    assert {"next_node": None, "missed": None} == fields


def test_a_record_from_outside_has_its_bytes_and_no_fields() -> None:
    record = Record(1, CHECKPOINT, "a", 1, 5, None, b"\x00any\xff")
    assert (True, {}, b"\x00any\xff") == (record.is_foreign, record.fields(), record.envelope())
    assert b"" == record._replace(payload=None).envelope()


def test_a_record_of_ours_is_not_from_outside() -> None:
    assert not checkpoint().is_foreign


def test_an_envelope_is_the_same_whichever_way_a_store_keeps_the_payload() -> None:
    state = state_of(5000)
    plain = make_record("r", 1, STAMP, CHECKPOINT, "a", state=state)
    packed = plain._replace(payload=compress(state), packing="zstd")
    assert plain.envelope() == packed.envelope()
    assert state == packed.state()
    compressed = make_record("r", 1, STAMP, CHECKPOINT, "a", state=state, compressing=True)
    assert compressed.envelope() == compressed._replace(payload=state, packing="").envelope()


def test_a_tag_that_reads_like_the_mark_of_compression_compresses_nothing() -> None:
    record = make_record("r", 1, STAMP, CHECKPOINT, "a", state=b"{}", fields={"shape": {"compressed": True}})
    assert record.envelope().endswith(b',"state":{}}')


@for_each("header", [b"", b'{"a":', b"[1", b'{"a":"\xff"', b'{"a":' + b"[" * 100_000])
def test_a_damaged_header_is_told_as_that(header: bytes) -> None:
    with pytest.raises(CheckpointCorruptError, match="record 3 at node 'work'") as caught:
        checkpoint()._replace(header=header).fields()
    assert (3, "work") == (caught.value.sequence, caught.value.node_id)


def test_a_damaged_header_is_told_by_the_envelope_too() -> None:
    record = checkpoint(state_of(2000))
    with pytest.raises(CheckpointCorruptError):
        record._replace(header=b'{"compressed":true,').envelope()


def test_a_damaged_payload_is_told_with_its_place() -> None:
    record = make_record("r", 3, STAMP, CHECKPOINT, "work", state=state_of(2000), compressing=True)
    with pytest.raises(CheckpointCorruptError, match="record 3 at node 'work'"):
        packed(record)._replace(payload=b"no zstd").state()


@for_each("size", [0, 1, 99, 101, 2**63 - 1, 2**63, 10**30])
def test_a_size_that_lies_is_found_out(size: int) -> None:
    with pytest.raises(CheckpointCorruptError, match="does not unpack to the"):
        decompress(compress(b"x" * 100), size)


def test_no_more_is_unpacked_than_the_size_allows() -> None:
    bomb = compress(bytes(64 * 1024 * 1024))
    assert len(bomb) < 10_000
    with pytest.raises(CheckpointCorruptError, match="to the 1000 bytes"):
        decompress(bomb, 1000)


def test_a_size_that_is_not_known_is_taken_from_the_frame() -> None:
    assert b"x" * 5000 == decompress(compress(b"x" * 5000), None)


MUCH = 48 * 1024 * 1024


@pytest.mark.parametrize(
    ("content", "padding", "size", "header"),
    [
        (bytes(MUCH), b"", -5, {}),
        (bytes(MUCH), bytes(60_000), MUCH, {}),
        (bytes(MUCH - 1) + os.urandom(60_000), b"", MUCH, {}),
        (bytes(MUCH) + os.urandom(60_000), b"", MUCH + 60_000, {"digest": digest_of(b"another")}),
        (bytes(MUCH) + os.urandom(60_000), b"", None, {"digest": digest_of(b"another")}),
    ],
    ids=["negative size", "padding", "more than the size", "another digest", "another digest and no size"],
)
def test_what_is_refused_fills_no_memory(
    content: bytes, padding: bytes, size: int | None, header: dict[str, Any]
) -> None:
    bomb = compress(content) + padding
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointCorruptError, match="does not unpack"):
            decompress(bomb, size, header=lambda: header)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_dense_state_with_its_digest_is_unpacked() -> None:
    content = bytes(MUCH) + os.urandom(60_000)
    header = {"digest": digest_of(content)}
    assert content == decompress(compress(content), len(content), header=lambda: header)


@pytest.mark.parametrize("size", [None, 256 * 1024 * 1024])
def test_little_that_unpacks_to_much_fills_no_memory(size: int | None) -> None:
    """More than 1 GiB, or beyond 16 MB more than a thousand times the bytes of `data`, is refused."""
    bomb = compress(bytes(256 * 1024 * 1024))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointCorruptError, match="at most"):
            decompress(bomb, size)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [None, 16 * 1024 * 1024])
def test_little_may_unpack_to_16_megabytes(size: int | None) -> None:
    assert 16 * 1024 * 1024 == len(decompress(compress(bytes(16 * 1024 * 1024)), size))


@pytest.mark.parametrize("text", [b"x" * 17_000_000, os.urandom(8_500_000).hex().encode()], ids=["dense", "random"])
def test_what_a_reader_would_refuse_is_not_written_compressed(text: bytes) -> None:
    record = make_record("r", 1, STAMP, CHECKPOINT, "a", state=b'"%s"' % text)
    is_dense = text[:2] == b"xx"
    assert is_dense is not record.says_compressed
    envelope = Seals().sealed(record).envelope()
    assert text.decode() == Checkpoint.decode(envelope).state
    assert packed(record).state() == b'"%s"' % text


def test_a_state_beyond_the_limit_of_reading_is_not_written() -> None:
    with pytest.raises(StateTooLargeError, match="no state may have more") as caught:
        make_record("r", 1, STAMP, CHECKPOINT, "a", state=bytes(2**30 + 1))
    assert (2**30 + 1, 2**30) == (caught.value.size, caught.value.limit)


@for_each("cut", [0, 1, 4, 10, -1])
def test_a_frame_that_is_cut_is_refused(cut: int) -> None:
    frame = compress(os.urandom(200))
    with pytest.raises(CheckpointCorruptError):
        decompress(frame[:cut], 200)
    with pytest.raises(CheckpointCorruptError):
        decompress(frame[:cut], None)


def test_bytes_after_the_frame_are_refused() -> None:
    with pytest.raises(CheckpointCorruptError):
        decompress(compress(b"abc") + b"x", 3)


def test_a_flipped_byte_in_a_frame_never_gives_other_data() -> None:
    data = b"some text that is compressed, " * 20
    frame = compress(data)
    for place in range(len(frame)):
        flipped = bytearray(frame)
        flipped[place] ^= 0x10
        try:
            found = decompress(bytes(flipped), len(data))
        except CheckpointCorruptError:
            continue
        assert data == found


def test_a_whole_record_passes_the_check() -> None:
    Seals().check("r", checkpoint())
    Seals().check("r", sealed(make_record("r", 0, STAMP, START, state=b"{}")))
    Seals().check("r", sealed(make_record("r", 4, STAMP, FAILURE, "work")))
    Seals().check("r", checkpoint(state_of(2_000_000)))


@for_each(
    "change",
    [
        {"sequence": 4},
        {"node_id": "other"},
        {"kind": FAILURE},
        {"visit": 3},
        {"payload": b'{"n":7}'},
        {"payload": None},
        {"header": checkpoint().header[:-1]},  # type: ignore[index]
        {"header": checkpoint().header.replace(b"later", b"lat3r")},  # type: ignore[union-attr]
        {"header": checkpoint().header.partition(b',"seal"')[0]},  # type: ignore[union-attr]
    ],
)
def test_a_record_that_was_changed_or_moved_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CheckpointCorruptError):
        Seals().check("r", checkpoint()._replace(**change))  # type: ignore[arg-type]


def test_a_record_of_another_run_is_refused_with_what_is_known() -> None:
    with pytest.raises(CheckpointIntegrityError, match="on_corrupt='previous'") as caught:
        Seals().check("s", checkpoint())
    error = caught.value
    assert ("s", "work", 3) == (error.run_id, error.node_id, error.sequence)
    assert "'s'" in error.expected
    assert "'r'" in error.found


def test_a_state_without_its_digest_is_refused() -> None:
    record = sealed(make_record("r", 4, STAMP, FAILURE, "work"))
    with pytest.raises(CheckpointIntegrityError, match="a state with its digest"):
        Seals().check("r", record._replace(payload=b"{}"))


def test_a_record_of_a_newer_release_is_told_as_that() -> None:
    header = b'{"version":99,"run_id":"r","node_id":"work"'
    with pytest.raises(CheckpointVersionError, match="99") as caught:
        Seals().check("r", checkpoint()._replace(header=header))
    assert (99, 1) == (caught.value.found, caught.value.supported)


def test_a_digest_is_that_of_the_state_as_it_is() -> None:
    assert "sha256:" + hashlib.sha256(b"{}").hexdigest() == digest_of(b"{}")


def test_times_are_written_in_utc_with_six_digits() -> None:
    assert "2025-12-20T15:30:00.000000Z" == format_time(datetime(2025, 12, 20, 15, 30, tzinfo=UTC).timestamp())
    assert "1970-01-01T00:00:00.250000Z" == format_time(0.25)


@for_each(
    "text, expected",
    [
        ("2025-12-20T15:30:00.000000Z", datetime(2025, 12, 20, 15, 30, tzinfo=UTC)),
        ("2025-12-20T15:30:00Z", datetime(2025, 12, 20, 15, 30, tzinfo=UTC)),
        ("2025-12-20T17:30:00.5+02:00", datetime(2025, 12, 20, 15, 30, 0, 500_000, UTC)),
        ("2025-01-19T10:20:30.123456789Z", datetime(2025, 1, 19, 10, 20, 30, 123456, UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_are_read_in_any_zone(text: str, expected: datetime) -> None:
    found = parse_time(text)
    assert (expected, UTC) == (found, found.tzinfo)


@for_each("text", ["2025-12-20T15:30:00", "2025-12-20", "yesterday", "", "0001-01-01T00:00:00+05:00"])
def test_a_time_without_a_zone_or_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


def test_compressors_are_used_again_and_make_the_same_frames() -> None:
    chance = random.Random(3)
    texts = [chance.randbytes(chance.choice([10, 2000, 70_000])) * chance.choice([1, 9]) for _ in range(60)]
    alone = [record_module._compress(record_module._compressor(), text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert alone == [*pool.map(compress, texts)]
    assert all(text == decompress(frame, len(text)) for text, frame in zip(texts, alone, strict=True))
    idle = len(record_module._idle_compressors)
    assert 1 <= idle <= 5
    compress(b"x" * 100_000)
    assert idle == len(record_module._idle_compressors)


def test_a_path_of_any_length_is_read_at_once() -> None:
    path = branch_path(branch_path("", "a#1", 2, "b"), "g/#c", 3, "#4")
    assert [("a#1", 2, "b", ""), ("g/#c", 3, "#4", "a#1#2/b")] == segments_of(path)
    for text in ("a/" * 500_000, "a#1/b/" * 200_000, "#" * 1_000_000, "a#" + "9" * 1_000_000, "#1/" * 300_000):
        assert [] == segments_of(text)
