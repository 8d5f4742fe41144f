"""What is kept of a state that changed a little, and that the state comes back from it."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import CheckpointCorruptError
from milepost.model.record import CHECKPOINT, DIFFERENCE, UNPACKED, Record, compress, is_compressed, make_record, packed
from milepost.model.rope import Rope
from milepost.model.seal import Seals, link_of, with_digests
from milepost.store import Token
from milepost.stores.base.deltas import (
    Base,
    Bases,
    Difference,
    LinkedRecord,
    chained,
    difference,
    lessened,
    read_difference,
    whole_of,
)
from milepost.testing.tables import for_each

STAMP = "2026-01-01T00:00:00.000000Z"


def applied(old: bytes, edits: list[tuple[int, int, str]]) -> bytes:
    for at, count, text in reversed(edits):
        old = old[:at] + text.encode() + old[at + count :]
    return old


def record(sequence: int, state: bytes, *, compressing: bool = False) -> Record:
    return make_record("r", sequence, STAMP, CHECKPOINT, "a", sequence, state, compressing=compressing)


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [{"id": n, "name": f"ñame {n}", "value": chance.random()} for n in range(count)]


SEALS = Seals()


def sealed(given: Record, base: str = "") -> Record:
    """A record as a store keeps it."""
    stored = with_digests(given, packed(given), base)
    return stored if stored.header is None else stored._replace(header=SEALS.seal(stored.header))


def linked(stored: Record) -> LinkedRecord:
    return stored, stored.header


def based(given: Record, since: int, kept: int, length: int) -> Base:
    return Base(given, link_of(sealed(given).header), since, kept, length, True)


def whole(kept: Mapping[int, Record], sequence: int) -> Base | None:
    def base_of(said: Difference) -> LinkedRecord | None:
        return linked(kept[said.base]) if said.base in kept else None

    last = kept[sequence]
    if last.packing != DIFFERENCE:
        return Base(last, link_of(last.header), sequence, last.size, 0)
    return whole_of("r", linked(last), base_of, {}, SEALS)


def encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


TEXTS = st.text(st.sampled_from('ab",{}é漢🎈\\0'), max_size=40)


@given(st.lists(TEXTS, min_size=1, max_size=30), st.data())
def test_edits_make_the_new_text_of_the_old_one(parts, data):
    """Whatever is put in, taken out, replaced, moved or said twice."""
    old = "".join(parts).encode() * data.draw(st.integers(1, 40))
    text = old.decode()
    for _ in range(data.draw(st.integers(0, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 60)))
        text = text[:begin] + data.draw(TEXTS | st.just(text[begin:end] * 2)) + text[end:]
    new = text.encode()
    edits = difference(old, new)
    if edits is not None:
        assert new == applied(old, edits)
        assert all(at + count <= later for (at, count, _), (later, _, _) in itertools.pairwise(edits))


@given(st.lists(TEXTS, min_size=1, max_size=12), st.data())
def test_edits_between_ropes_make_the_new_text_of_the_old_one(parts, data):
    """Whatever pieces are shared, replaced by equal ones, put in or taken out."""
    pieces = [(text * data.draw(st.sampled_from([1, 40]))).encode() for text in parts]
    new = [bytes(bytearray(piece)) if data.draw(st.booleans()) else piece for piece in pieces]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(new)))
        new[at : at + data.draw(st.integers(0, 2))] = [text.encode() for text in data.draw(st.lists(TEXTS, max_size=2))]
    old_rope, new_rope = (Rope(each, sum(map(len, each))) for each in (pieces, new))
    edits = difference(old_rope, new_rope)
    if edits is not None:
        assert bytes(new_rope) == applied(bytes(old_rope), edits)
        assert all(at + count <= later for (at, count, _), (later, _, _) in itertools.pairwise(edits))
    assert difference(old_rope, old_rope) == []


def test_what_two_ropes_share_is_not_looked_at():
    class Unread(bytes):
        def __len__(self):
            return 100_000

    shared = [Unread() for _ in range(100)]
    old, new = ([b'{"n":%d,"items":[' % n, *shared, *[b',"x"'] * n, b"]}"] for n in (1, 2))
    edits = difference(Rope(old, 10_000_023), Rope(new, 10_000_027))
    assert edits == [(5, 1, "2"), (10_000_021, 0, ',"x"')]


def test_a_piece_that_changed_all_over_is_replaced_as_a_whole():
    shared, before, after = b"x" * 100_000, encoded(rows(300)), encoded(rows(300, 1))
    old, new = Rope((b"[", shared, before), 100_001 + len(before)), Rope((b"[", shared, after), 100_001 + len(after))
    assert difference(old, new) == [(100_001, len(before), after.decode())]


def test_an_appended_message_costs_the_message():
    old = {"n": 9, "messages": [{"text": f"message {n} " * 40} for n in range(500)], "cost": 0.9}
    new = {**old, "n": 10, "messages": [*old["messages"], {"text": "the next " * 40}], "cost": 0.95}
    edits = difference(encoded(old), encoded(new))
    assert edits is not None
    assert encoded(new) == applied(encoded(old), edits)
    assert sum(len(text) for _, _, text in edits) < 500


def test_changes_here_and_there_cost_the_changes():
    table = rows(5000)
    old = encoded(table)
    for n in range(0, 5000, 250):
        table[n]["value"] = 0.5
    edits = difference(old, encoded(table))
    assert edits is not None
    assert encoded(table) == applied(old, edits)
    assert len(encoded(edits)) < 2000


def test_much_that_comes_in_in_the_middle_is_one_edit():
    table = rows(2000)
    old, new = encoded([0, *table]), encoded([1, *table[:1000], *rows(800, 7), *table[1000:]])
    edits = difference(old, new)
    assert edits is not None
    assert new == applied(old, edits)
    assert len(edits) <= 3


@pytest.mark.parametrize("other", [rows(3000, 1), [n * 7919 % 10007 for n in range(20_000)], "x" * 100_000])
def test_a_state_that_was_replaced_is_no_difference(other):
    assert difference(encoded(rows(3000)), encoded(other)) is None


def test_bytes_that_are_no_text_are_kept_whole():
    assert difference(b"a" * 5000, b"a" * 2500 + b"\xff\xfe" + b"a" * 2500) is None


@given(st.lists(st.sampled_from(["append", "edit", "replace", "same", "front"]), max_size=25), *[st.booleans()] * 2)
def test_a_chain_gives_back_every_state(deeds, compressing, compressing_differences):
    table, states = rows(120), [encoded(rows(120))]
    for n, deed in enumerate(deeds):
        if deed == "append":
            table.append({"id": n, "name": "ä" * 1000, "value": n})
        elif deed == "edit":
            table[n % len(table)]["value"] = n
        elif deed == "replace":
            table = rows(110, n + 1)
        elif deed == "front":
            table = [{"id": -n}, *table]
        states.append(encoded(table))
    given_records = [record(n, state, compressing=compressing) for n, state in enumerate(states)]
    records, bases = chained(given_records, {}, sealed, compressing=compressing_differences)
    base = bases[b""]
    kept = {found.sequence: found for found in records}
    for n, state in enumerate(states):
        again = whole(kept, n)
        assert again is not None
        assert state == again.record.state()
        if kept[n].packing == DIFFERENCE:
            assert SEALS.sealed(record(n, state, compressing=compressing)).envelope() == again.record.envelope()
    last = whole(kept, len(states) - 1)
    assert last is not None
    assert (base.link, base.is_verified) == (last.link, last.checked("r", SEALS).is_verified)
    if not compressing or last.length:  # a whole one that is packed is told by its size
        assert (base.since, base.length, base.kept) == (last.since, last.length, last.kept)


def test_a_long_chain_ends_when_it_holds_more_than_twice_the_state():
    """A rule by count alone would write wholes of a list that grows, whose chain never holds more than it does."""
    texts = ["x" * 2000 for _ in range(400)]
    growing, _ = chained([record(n, encoded(texts[: n + 3])) for n in range(300)], {}, sealed)
    assert [0] == [found.sequence for found in growing if found.packing != DIFFERENCE]
    table, states = rows(200), []
    for n in range(400):
        table[n % 200]["name"] = f"{n:0500}"
        states.append(encoded(table))
    steady, _ = chained([record(n, state) for n, state in enumerate(states)], {}, sealed)
    wholes = [found.sequence for found in steady if found.packing != DIFFERENCE]
    assert 1 < len(wholes) < 10
    assert min(second - first for first, second in itertools.pairwise(wholes)) > 64


def test_small_and_foreign_records_are_kept_as_they_are():
    small = [record(n, b'{"n":%d}' % n) for n in range(5)]
    foreign = Record(5, CHECKPOINT, "a", 1, 9000, None, b"x" * 9000)
    bare = make_record("r", 6, STAMP, "route")
    kept = tuple(map(sealed, [*small, foreign, bare]))
    assert (kept, {}) == chained([*small, foreign, bare], {}, sealed)


def lost(changes: dict[str, object]) -> Record:
    states = [encoded(rows(100 + n)) for n in range(4)]
    records, _ = chained([record(n, state) for n, state in enumerate(states)], {}, sealed)
    kept = {found.sequence: found for found in records}
    assert DIFFERENCE == kept[3].packing
    assert whole(kept, 3) is not None
    for name, value in changes.items():
        if name == "gone":
            del kept[value]
        elif name == "said":
            hostile = record(2, states[2])._replace(payload=value, packing=DIFFERENCE)
            kept[2] = sealed(hostile, link_of(kept[1].header))
            assert whole(kept, 2) is None
        else:
            kept[0] = kept[0]._replace(**{name: value})
    assert whole(kept, 3) is None
    assert (whole(kept, 1) is None) == ("said" not in changes and changes.get("gone") != 2)
    return kept[3]


@for_each(
    "changes",
    [
        {"gone": 0},
        {"gone": 2},
        {"payload": b"no zstd", "packing": "zstd"},
        {"payload": b"[]"},
        {"packing": "aesgcm"},
        {"payload": encoded(rows(99)) + b" "},
        {"said": b""},
        {"said": compress(b"[]")},
        {"said": compress(b"[]")[:-1]},
        {"said": compress(b'{"base":1,"since":0,"edits":[],"more":"%s"}' % (b"x" * 5_000_000))},
        {"said": b"null"},
        {"said": b'{"base":3,"since":0,"edits":[]}'},
        {"said": b'{"base":2,"since":0,"edits":[]}'},
        {"said": b'{"base":1,"since":2,"edits":[]}'},
        {"said": b'{"base":-1,"since":-1,"edits":[]}'},
        {"said": b'{"base":1,"since":0,"edits":[[0,999999999,""]]}'},
        {"said": b'{"base":1,"since":0,"edits":[[-5,1,"x"]]}'},
        {"said": b'{"base":1,"since":0,"edits":[[9,-1,"x"]]}'},
        {"said": b'{"base":1,"since":0,"edits":[[9,1,"xx"],[3,1,"yyy"]]}'},
        {"said": b'{"base":1,"since":0,"edits":[]}'},
        {"said": b'{"base":1,"since":0,"edits":[%s[0,0,""]]}' % (5000 * b'[0,0,""],')},
    ],
)
def test_a_record_whose_base_is_lost_or_damaged_says_so(changes):
    record = lost(changes)
    with pytest.raises(CheckpointCorruptError, match="record 3 at node 'a' says what changed since an earlier record"):
        record.state()


def test_what_a_record_builds_on_is_told():
    less, base = lessened(record(5, encoded(rows(101))), based(record(3, encoded(rows(100))), 1, 9000, 2), sealed)
    said = read_difference(less)
    assert said is not None
    assert (3, 1) == (said.base, said.since)
    assert (1, 3, 5) == (base.since, base.length, base.record.sequence)
    assert UNPACKED == record(1, encoded(rows(100)), compressing=True).packing


def test_each_branch_builds_on_its_own_records():
    """Their states differ in the same place: each would have to say all that its sister did not."""
    texts = {branch: encoded(rows(100)) for branch in ("left", "right")}
    records = []
    for n in range(40):
        branch = ("left", "right")[n % 2]
        texts[branch] = texts[branch][:-1] + b',"%s of the %s"]' % (b"said " * 60, branch.encode())
        fields = {"branch": branch}
        records.append(make_record("r", n, STAMP, CHECKPOINT, "a", n, texts[branch], fields))
    less, bases = chained(records, {}, sealed)
    assert {b"left", b"right"} == bases.keys()
    assert max(len(found.payload or b"") for found in less[2:]) < 500
    kept = {found.sequence: found for found in less}
    assert all(whole(kept, n).record.state() == records[n].state() for n in range(40))


def test_what_was_not_written_is_no_base_whatever_is_written_in_its_place():
    token = Token("r", 1, "nonce", "process")
    bases = Bases()
    bases.know("r", token, based(record(0, encoded(rows(100))), 0, 9000, 0))
    bases.lessened(token, [record(1, encoded(rows(101)))], sealed)  # and the backend fails
    small = [record(1, b'{"n":1}')]
    assert tuple(map(sealed, small)) == bases.lessened(token, small, sealed)
    bases.settle(token, small)
    (less,) = bases.lessened(token, [record(2, encoded(rows(102)))], sealed)
    said = read_difference(less)
    assert said is not None
    assert said.base == 0


def test_another_owner_builds_on_nothing_that_this_one_wrote():
    bases = Bases()
    bases.know("r", Token("r", 1, "nonce", "process"), based(record(0, encoded(rows(100))), 0, 9000, 0))
    for other in (Token("r", 1, "another", "process"), Token("r", 2, "nonce", "process")):
        (less,) = bases.lessened(other, [record(1, encoded(rows(101)))], sealed)
        assert less.packing == ""


def test_many_edits_move_a_large_state_once():
    """Where each edit moved the state behind it, 64 KB could cost half a minute."""
    old, edits = bytes(4 << 20), [(place, 0, "a") for place in range(4096)]
    base = record(1, old)
    payload = json.dumps({"base": 1, "since": 1, "edits": edits}).encode()
    for size, is_whole in ((len(old) + 4096, True), (len(old), False)):
        hostile = record(2, b"")._replace(size=size, payload=payload, packing=DIFFERENCE)
        restored = whole({1: sealed(base), 2: sealed(hostile, link_of(sealed(base).header))}, 2)
        assert (restored is not None) is is_whole
        assert restored is None or b"a\0" * 4096 + old[4096:] == restored.record.payload


def test_a_difference_of_few_bytes_takes_little_memory():
    edits = b",".join(b'[%d,0,"\xc3\xa9"]' % (n % 1000) for n in range(2_000_000))
    payload = compress(b'{"base":0,"since":0,"edits":[%s]}' % edits)
    less = record(1, b"1")._replace(payload=payload, packing=DIFFERENCE, size=1 << 29)
    tracemalloc.start()
    try:
        assert read_difference(less) is None
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_difference_that_would_not_be_read_is_not_compressed(monkeypatch):
    monkeypatch.setattr("milepost.stores.base.deltas._MOST_UNPACKED", 4000)
    old = rows(500)
    base = based(sealed(record(0, encoded(old))), 0, 0, 0)
    for more, is_packed in ((3000, True), (5000, False)):
        less, _ = lessened(record(1, encoded([*old, "é" * (more // 2)])), base, sealed, compressing=True)
        assert (DIFFERENCE, is_packed) == (less.packing, is_compressed(less.payload))
        assert read_difference(less) is not None


def test_few_edits_and_many_are_applied_alike():
    old = b"0123456789" * 500
    base = record(0, old)
    for count in (0, 1, 8, 9, 40):
        edits = [(n * 100, n % 7, "é" * (n % 5)) for n in range(count)]
        new = applied(old, edits)
        payload = json.dumps({"base": 0, "since": 0, "edits": edits}).encode()
        less = record(1, new)._replace(payload=payload, packing=DIFFERENCE)
        restored = whole({0: sealed(base), 1: sealed(less, link_of(sealed(base).header))}, 1)
        assert restored is not None
        assert restored.record.payload == new


def test_a_difference_on_another_base_is_refused():
    """Records of one size and place, so that its edits would fit."""
    first, second = (record(0, encoded(rows(100, seed))) for seed in (1, 2))
    less, _ = lessened(record(1, encoded(rows(101, 1))), based(first, 0, 9000, 0), sealed)
    assert whole({0: sealed(first), 1: less}, 1) is not None
    assert whole({0: sealed(second), 1: less}, 1) is None


def test_nothing_is_applied_before_it_is_proven(monkeypatch):
    base, edits = record(0, encoded(rows(100))), []
    less, _ = lessened(record(1, encoded(rows(101))), based(base, 0, 9000, 0), sealed)
    monkeypatch.setattr("milepost.stores.base.deltas._edit", lambda *given: edits.append(given))
    changed = less._replace(payload=(less.payload or b"").replace(b'"since":0', b'"since": 0'))
    damaged = sealed(base)._replace(payload=encoded(rows(100)) + b" ")
    for kept in ({0: sealed(base), 1: changed}, {0: damaged, 1: less}):
        assert whole(kept, 1) is None
    assert not edits
