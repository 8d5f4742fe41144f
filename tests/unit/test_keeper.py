"""What a store with keys makes of records, signals and texts, and undoes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from milepost.errors import CheckpointIntegrityError
from milepost.model.info import RefusedAnswer, Wait
from milepost.model.record import CHECKPOINT, ENCRYPTED, FAILURE, VERBATIM, Record, make_record
from milepost.model.seal import Seals, with_digests
from milepost.store import Signal
from milepost.stores.base.encryption import RecordCipher, keeper_of
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import saved_record
from milepost.testing.tables import for_each

STAMP = "2026-01-01T00:00:00.000000Z"
MARKER = "a text that must stay secret"
SIGN, OTHER_SIGN = {"s": b"signing key, 24 bytes..."}, {"t": b"another signing key, 28 byte"}
LOCK, OTHER_LOCK = {"e": b"encryption key, exactly 32 bytes"}, {"f": b"another key of exactly 32 bytes."}


def keeper(
    sign: Any = None, lock: Any = None, *, allow_unsealed: bool = False, allow_plain: bool = False
) -> RecordCipher:
    seals = Seals(sign, allow_unsealed=allow_unsealed, encryption_ids=tuple(lock or ()))
    made = keeper_of(seals, lock, allow_plain=allow_plain)
    assert made is not None
    return made


KEEPERS = {"signed": keeper(SIGN), "encrypted": keeper(None, LOCK), "both": keeper(SIGN, LOCK)}
ENCRYPTING = {"encrypted": KEEPERS["encrypted"], "both": KEEPERS["both"]}


def seals_of(kept_by: RecordCipher) -> Seals:
    return kept_by._seals


def failure(sequence: int = 4) -> Record:
    fields = {"op": "execute", "error_type": "ValueError", "message": MARKER, "traceback": MARKER, "note": MARKER}
    return make_record("r", sequence, STAMP, FAILURE, "work", 2, fields=fields)


def checkpoint(sequence: int = 3, state: bytes = json.dumps(MARKER).encode(), *, compressing: bool = False) -> Record:
    fields = {"next_node": "later", "attempt": 1, "updates": {"a": MARKER}}
    record = make_record("r", sequence, STAMP, CHECKPOINT, "work", 2, state, fields, compressing)
    return with_digests(record, record)


def outside(data: bytes = MARKER.encode()) -> Record:
    record = saved_record("r", 3, "work", 2, data, 1.5)
    return with_digests(record, record)


def test_a_store_without_keys_has_no_keeper():
    assert keeper_of(Seals(), None, allow_plain=False) is None


@for_each("name", KEEPERS)
@for_each("record", [failure(), checkpoint(), checkpoint(state=b'"' + b"x" * 5000 + b'"', compressing=True)])
def test_what_was_kept_comes_out_as_it_was_and_proven(name: str, record: Record):
    kept_by = KEEPERS[name]
    kept = kept_by.keep("r", record)
    opened = kept_by.opened("r", kept)
    seals = seals_of(kept_by)
    assert record.header is not None
    assert record._replace(header=seals.seal(record.header)) == opened
    assert seals.check("r", opened)
    assert record.state() == opened.state()


@given(st.binary(max_size=300), st.sampled_from(sorted(KEEPERS)))
def test_bytes_from_outside_come_back_exactly(data: bytes, name: str):
    kept_by = KEEPERS[name]
    opened = kept_by.opened("r", kept_by.keep("r", outside(data)))
    assert (True, data, {}) == (opened.is_foreign, opened.envelope(), opened.fields())
    assert ("1970-01-01T00:00:01.500000Z", VERBATIM) == (opened.header_fields()["timestamp"], opened.packing)
    assert seals_of(kept_by).check("r", opened)


@given(st.binary(max_size=50), st.one_of(st.none(), st.binary(max_size=50)), st.sampled_from(["", "zstd", "any"]))
def test_any_record_comes_out_as_it_went_in(header: bytes, payload: bytes | None, packing: str):
    """A store keeps what it is given, damaged or not: whoever reads it is told."""
    record = Record(7, CHECKPOINT, "work", 1, 5, header, payload, packing)
    for kept_by in ENCRYPTING.values():
        opened = kept_by.opened("r", kept_by.keep("r", record))
        assert record._replace(header=seals_of(kept_by).seal(header)) == opened


@for_each("record", [failure(), checkpoint(), outside()])
@for_each("name", ENCRYPTING)
def test_what_a_record_says_is_in_no_byte_that_is_kept(name: str, record: Record):
    kept = ENCRYPTING[name].keep("r", record)
    assert MARKER.encode() in (record.header or b"") + (record.payload or b"")
    assert MARKER.encode() not in (kept.header or b"") + (kept.payload or b"")
    fields = kept.header_fields()
    assert ("r", "work", record.sequence, 2) == tuple(fields[n] for n in ("run_id", "node_id", "sequence", "visit"))
    assert (ENCRYPTED, "aesgcm+base64", "e") == (kept.packing, fields["encoding"], fields["encryption_key"])
    assert fields["digest"].startswith("hmac-sha256:")
    assert {"message", "traceback", "note", "updates"}.isdisjoint(fields)
    envelope = json.loads(kept.envelope())
    assert (fields["seal"], str) == (envelope["seal"], type(envelope["state"]))


def test_equal_records_are_kept_as_different_bytes():
    kept_by = ENCRYPTING["both"]
    first, second = kept_by.keep("r", checkpoint(3)), kept_by.keep("r", checkpoint(4))
    again = kept_by.keep("r", checkpoint(3))
    assert 3 == len({first.payload, second.payload, again.payload})
    assert first.header_fields()["digest"] != second.header_fields()["digest"]


def refused(kept_by: RecordCipher, run_id: str, kept: Record, match: str) -> None:
    with pytest.raises(CheckpointIntegrityError, match=match):
        seals_of(kept_by).check(run_id, kept_by.opened(run_id, kept))


@pytest.mark.parametrize("name", ENCRYPTING)
def test_what_is_encrypted_cannot_stand_at_another_place(name: str):
    kept_by = ENCRYPTING[name]
    kept, other = kept_by.keep("r", checkpoint(3)), kept_by.keep("r", checkpoint(4))
    refused(kept_by, "r", other._replace(sequence=3), "place")
    refused(kept_by, "r", kept._replace(payload=other.payload), "decrypts")
    refused(kept_by, "r", kept._replace(header=other.header), "decrypts|place")
    refused(kept_by, "s", kept, "place|decrypts")
    header = (kept.header or b"").replace(b'"run_id":"r"', b'"run_id":"s"').rpartition(b',"seal"')[0]
    refused(keeper(None, LOCK), "s", kept._replace(header=Seals().seal(header)), "decrypts")


@pytest.mark.parametrize("name", ENCRYPTING)
def test_no_byte_of_what_is_encrypted_can_be_changed(name: str):
    kept_by = ENCRYPTING[name]
    kept = kept_by.keep("r", checkpoint())
    assert kept.payload is not None
    for at in range(len(kept.payload)):
        changed = bytearray(kept.payload)
        changed[at] ^= 1
        refused(kept_by, "r", kept._replace(payload=bytes(changed)), "decrypts")
    for payload in (None, b"", kept.payload[:11], kept.payload[:-1], kept.payload + b"\0"):
        refused(kept_by, "r", kept._replace(payload=payload), "decrypts")


def test_a_readable_field_cannot_be_changed_even_where_seals_have_no_key():
    kept = ENCRYPTING["encrypted"].keep("r", checkpoint())
    header = (kept.header or b"").replace(b"later", b"never").rpartition(b',"seal"')[0]
    refused(ENCRYPTING["encrypted"], "r", kept._replace(header=Seals().seal(header)), "decrypts")


def test_who_encrypts_cannot_seal_and_who_seals_cannot_encrypt():
    forged = keeper(OTHER_SIGN, LOCK).keep("r", checkpoint())
    refused(keeper(SIGN, LOCK), "r", forged, "'t'")
    planted = keeper(SIGN).keep("r", checkpoint())
    refused(keeper(SIGN, LOCK), "r", planted, "without encryption")
    # With the key of the seals alone, a record is put together of one's own header and another's payload.
    kept = keeper(SIGN, LOCK).keep("r", checkpoint())
    header = (kept.header or b"").replace(b"later", b"never").rpartition(b',"seal"')[0]
    refused(keeper(SIGN, LOCK), "r", kept._replace(header=Seals(SIGN).seal(header)), "decrypts")


def test_keys_are_rotated():
    old, new = keeper(SIGN, LOCK), keeper({**OTHER_SIGN, **SIGN}, {**OTHER_LOCK, **LOCK})
    kept = old.keep("r", checkpoint())
    assert seals_of(new).check("r", new.opened("r", kept))
    assert "f" == new.keep("r", checkpoint()).header_fields()["encryption_key"]
    refused(keeper(SIGN, OTHER_LOCK), "r", kept, "encrypted with key 'e', which this store does not have: add it")
    refused(keeper(OTHER_SIGN, LOCK), "r", kept, "sealed with key 's', which this store does not have: add it")
    refused(keeper(SIGN), "r", kept, "encrypted with key 'e'.*open the store with encryption_key")
    wrong = keeper(SIGN, {"e": OTHER_LOCK["f"]})
    refused(wrong, "r", kept, "was changed after it was written")


@for_each("key_id", ["7", "null", '["e"]', '{"e":1}', '"' + "e" * 5000 + '"'])
def test_a_key_id_may_be_anything_in_a_damaged_record(key_id: str):
    kept_by = ENCRYPTING["encrypted"]
    kept = kept_by.keep("r", checkpoint())
    header = (kept.header or b"").replace(b'"encryption_key":"e"', b'"encryption_key":' + key_id.encode())
    header = Seals().seal(header.rpartition(b',"seal"')[0])
    refused(kept_by, "r", kept._replace(header=header), "encrypted with key")


def test_what_is_plain_is_taken_where_that_is_asked_for():
    plain = checkpoint()
    sealed = plain._replace(header=Seals().seal(plain.header or b""))
    refused(keeper(None, LOCK), "r", sealed, "without encryption: pass allow_plain=True")
    lenient = keeper(None, LOCK, allow_plain=True)
    assert sealed == lenient.opened("r", sealed)
    refused(keeper(SIGN, LOCK, allow_plain=True), "r", sealed, "without a key: pass allow_unsealed=True")
    unproven = keeper(SIGN, LOCK, allow_plain=True, allow_unsealed=True)
    assert not seals_of(unproven).check("r", unproven.opened("r", sealed))
    saved = outside()._replace(header=Seals().seal(outside().header or b""))
    refused(keeper(None, LOCK), "r", saved, "without encryption")
    refused(keeper(SIGN), "r", saved, "without a key")


# -- signals -----------------------------------------------------------------------------------------------


LIFE = "0123456789abcdef"
SIGNAL = Signal(2, "approval", json.dumps(MARKER).encode(), "id", "ask#1", 5.0)


@for_each("name", KEEPERS)
@for_each("payload", [None, b"", b"null", b"=", b"\0milepost x", b"\xff", json.dumps(MARKER).encode()])
def test_a_signal_comes_out_as_it_was_sent(name: str, payload: bytes | None):
    signal = SIGNAL._replace(payload=payload)
    kept = KEEPERS[name].keep_signal("r", LIFE, signal)
    assert signal == KEEPERS[name].opened_signal("r", LIFE, kept)
    assert (MARKER in repr(kept)) == (name == "signed" and MARKER in repr(signal))


@pytest.mark.parametrize("name", KEEPERS)
def test_a_signal_that_nobody_with_the_key_sent_is_refused(name: str):
    kept_by = KEEPERS[name]
    kept = kept_by.keep_signal("r", LIFE, SIGNAL)
    assert kept.payload is not None
    planted = [SIGNAL, SIGNAL._replace(payload=None), keeper(OTHER_SIGN, OTHER_LOCK).keep_signal("r", LIFE, SIGNAL)]
    moved = [
        kept._replace(number=3),
        kept._replace(name="other"),
        kept._replace(to=None),
        kept._replace(signal_id=None),
    ]
    changed = []
    for at in range(len(kept.payload)):
        payload = bytearray(kept.payload)
        payload[at] ^= 1
        changed.append(kept._replace(payload=bytes(payload)))
    for signal in (*planted, *moved, *changed):
        with pytest.raises(CheckpointIntegrityError, match=r"signal \d .* of run 'r'"):
            kept_by.opened_signal("r", LIFE, signal)
    with pytest.raises(CheckpointIntegrityError, match="of run 's'"):
        kept_by.opened_signal("s", LIFE, kept)


def test_a_signal_without_a_key_is_taken_where_that_is_asked_for():
    for lenient in (
        keeper(SIGN, allow_unsealed=True),
        keeper(None, LOCK, allow_plain=True),
        keeper(SIGN, LOCK, allow_unsealed=True, allow_plain=True),
    ):
        assert SIGNAL == lenient.opened_signal("r", LIFE, SIGNAL)
    signed = keeper(SIGN).keep_signal("r", LIFE, SIGNAL)
    assert SIGNAL == keeper(SIGN, LOCK, allow_plain=True).opened_signal("r", LIFE, signed)
    with pytest.raises(CheckpointIntegrityError, match="without encryption"):
        keeper(SIGN, LOCK).opened_signal("r", LIFE, signed)
    with pytest.raises(CheckpointIntegrityError, match="'e', which this store does not have"):
        keeper(SIGN).opened_signal("r", LIFE, keeper(SIGN, LOCK).keep_signal("r", LIFE, SIGNAL))


# -- the row -----------------------------------------------------------------------------------------------


def row(**changes: Any) -> Row:
    waits = (Wait("ask#1", "approval", {"text": MARKER, "n": [1]}), Wait("nap#1", None), Wait("b#1", "b", MARKER))
    texts = {"reason": MARKER, "cancel": MARKER, "waiting": waits, "tags": {"team": "billing"}, **changes}
    return Row("r", "flow", "waiting", 1.0, 2.0, 3, **texts)


@pytest.mark.parametrize("name", ENCRYPTING)
def test_the_texts_of_a_row_are_encrypted_and_come_back(name: str):
    kept_by = ENCRYPTING[name]
    kept = kept_by.keep_row(row())
    assert MARKER not in repr(kept)
    assert row() == kept_by.opened_row(kept)
    assert replace(row(), reason="", cancel=None, waiting=()) == replace(kept, reason="", cancel=None, waiting=())
    assert row() == KEEPERS["signed"].keep_row(row())


@for_each("text", ["", "aesgcm:", "aesgcm:e:AAAA", "aesgcm:e:" + "A" * 41, "aesgcm:x:" + "A" * 40, "\ud800"])
def test_any_reason_comes_back(text: str):
    kept_by = ENCRYPTING["encrypted"]
    given_row = row(reason=text, cancel=text, waiting=(Wait("a#1", "a", text.replace("\ud800", "?")),))
    opened = kept_by.opened_row(kept_by.keep_row(given_row))
    shown = text.encode("utf-8", "replace").decode()
    assert (shown, shown, shown) == (opened.reason, opened.cancel, opened.waiting[0].prompt)


@pytest.mark.parametrize("by", [None, MARKER])
@pytest.mark.parametrize("prompt", [None, MARKER, "aesgcm:e:" + "A" * 40])
def test_the_texts_of_a_wait_are_encrypted_together(prompt: str | None, by: str | None):
    kept_by, time = ENCRYPTING["encrypted"], datetime(2026, 11, 29, tzinfo=UTC)
    asked = Wait("a#1", "a", prompt, schema={"title": MARKER}, refused=RefusedAnswer(MARKER, time, by), since=time)
    (kept,) = kept_by.keep_row(row(waiting=(asked,))).waiting
    assert MARKER not in repr((kept.prompt, kept.schema, kept.refused))
    assert ("a#1", "a", time, time) == (kept.wait_id, kept.signal, kept.since, kept.refused and kept.refused.time)
    (opened,) = kept_by.opened_row(row(waiting=(kept,))).waiting
    assert (prompt, asked.schema, asked.refused) == (opened.prompt, opened.schema, opened.refused)


def test_texts_that_do_not_decrypt_are_shown_and_kept_as_they_are():
    kept = ENCRYPTING["both"].keep_row(row())
    stranger = keeper(SIGN, OTHER_LOCK)
    seen = stranger.opened_row(kept)
    assert kept == seen
    again = stranger.keep_row(replace(seen, updated_at=9.0))
    assert replace(row(), updated_at=9.0) == ENCRYPTING["both"].opened_row(again)


def test_the_texts_of_one_row_do_not_decrypt_in_another():
    kept_by = ENCRYPTING["both"]
    kept = kept_by.keep_row(row())
    moved = kept_by.opened_row(replace(kept, run_id="s"))
    assert (kept.reason, kept.cancel) == (moved.reason, moved.cancel)
    swapped = kept_by.opened_row(replace(kept, reason=kept.cancel or "", cancel=kept.reason))
    assert (kept.cancel, kept.reason) == (swapped.reason, swapped.cancel)
