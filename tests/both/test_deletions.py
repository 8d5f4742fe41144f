"""Deletions: the record after one names the records that went, so that nobody else can take one away unnoticed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from attacker import Attacker
from test_chain import KEYS, SIGNED, large, reopened

from milepost import END, Graph, MemoryStore, SQLiteStore, step, workflow
from milepost.errors import CheckpointCorruptError, CheckpointIntegrityError
from milepost.model.record import Record
from milepost.model.seal import NumberGap, gap_of, link_of, prev_of, with_gap
from milepost.model.upkeep import Retention
from milepost.store import Release
from milepost.testing.journals import begin, checkpoint, failure, finish, take, write

ENDED = ("finished", "interrupted")


@pytest.fixture
def attacker(medium) -> Attacker:
    return Attacker(medium.kind, medium.path)


@pytest.fixture(params=KEYS)
def keys(request) -> dict[str, Any]:
    return KEYS[request.param]


def filled(store: Any, run_id: str = "r", visits: int = 8) -> None:
    """A run with the visits 1 to 8 of a node, some of them large, and a failure after the fourth."""
    token = begin(store, run_id)
    number = 0
    for visit in range(1, visits + 1):
        number += 1
        record = large(number) if visit in (3, 4, 7) else checkpoint(run_id, number, "a", visit=visit)
        write(store, token, record._replace(node_id="a", visit=visit, header=named(record, visit)))
        if visit == 4:
            number += 1
            write(store, token, failure(run_id, number, "b"))
    write(store, token, finish(run_id, number + 1), release=Release("finished"))


def named(record: Record, visit: int) -> bytes:
    fields = msgspec.json.decode((record.header or b"") + b"}") | {"node_id": "a", "visit": visit}
    return msgspec.json.encode(fields)[:-1]


def numbers(store: Any, run_id: str = "r") -> list[int]:
    return [record.sequence for record in store.read(run_id)]


def gaps(store: Any, run_id: str = "r") -> dict[int, NumberGap]:
    found = {record.sequence: gap_of(record.header) for record in store.read(run_id)}
    return {sequence: gap for sequence, gap in found.items() if gap is not None}


def links(store: Any, run_id: str = "r") -> dict[int, str]:
    with store._read("look") as tx:
        return {record.sequence: link_of(record.header) for record in tx.records(run_id)}


def missing(store: Any, run_id: str = "r") -> list[str]:
    return [
        text.split(",")[0] for text in store.verify(run_id).problems if "is missing" in text or "are missing" in text
    ]


# -- deletions of ours ----------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_deletion_is_named_by_the_record_after_it_with_the_links_at_both_ends(medium, keys):
    store = medium.open(**keys)
    filled(store)
    whole = links(store)
    store.prune(keep_last=3)
    assert [0, 5, 7, 8, 9, 10] == numbers(store)
    assert {5: NumberGap(1, whole[0]), 7: NumberGap(6, whole[5])} == gaps(store)
    assert {n: link for n, link in whole.items() if n in numbers(store)} == links(store)
    for record in store.read("r"):
        store.seals.check("r", record)
        if record.sequence:
            assert whole[record.sequence - 1] == prev_of(record.header)
    assert store.verify("r").ok
    store.prune(keep_last=1)
    assert {5: NumberGap(1, whole[0]), 9: NumberGap(6, whole[5])} == gaps(store), "both deletions are one gap"
    assert reopened(medium, store, keys).verify("r").ok
    store.delete("r", "a")
    assert {5: NumberGap(1, whole[0]), 10: NumberGap(6, whole[5])} == gaps(store)
    assert store.verify("r").ok


@pytest.mark.every_store
def test_the_newest_record_goes_only_where_another_one_follows_it(medium, keys):
    store = medium.open(**keys)
    filled(store, visits=3)
    token = take(store, "r").token
    assert token is not None
    write(store, token, checkpoint("r", 6, "a", visit=4), release=Release("interrupted"))
    whole = links(store)
    store.delete("r", "a")
    assert [0, 4, 5, 7] == numbers(store)
    assert {4: NumberGap(1, whole[0]), 7: NumberGap(6, whole[5])} == gaps(store)
    assert store.verify("r").ok


@pytest.mark.every_store
def test_a_run_with_gaps_is_exported_imported_and_sealed_anew(medium, keys):
    store = medium.open(**keys)
    filled(store)
    store.save("r", "c", b"from outside")
    store.save("r", "a", b"from outside")
    store.prune(keep_last=1, statuses=ENDED)
    store.delete("r", "b")
    data = store.export("r")
    for name, other in (("copy", store), ("r", MemoryStore(**keys))):
        other.import_run(data, run_id=name)
        chain = links(other, name)
        assert gaps(store).keys() == gaps(other, name).keys()
        for number, gap in gaps(other, name).items():
            assert (gaps(store)[number].first, chain[gap.first - 1]) == gap
        assert other.verify(name).ok
        assert numbers(store) == numbers(other, name)
    if keys:
        store.seal_run("r")
        assert store.verify("r").ok


@pytest.mark.every_store
def test_an_import_refuses_a_gap_that_no_record_names(medium):
    store = medium.open()
    filled(store)
    store.prune(keep_last=2)
    lines = store.export("r").split(b"\n")
    for left_out in (2, 3):
        cut = b"\n".join(line for number, line in enumerate(lines) if number != left_out)
        with pytest.raises(CheckpointCorruptError, match="missing"):
            store.import_run(cut, run_id="cut")


def test_an_owner_that_prunes_its_run_names_what_went(medium, keys, clock):
    store = medium.open(clock=clock, retention=Retention(keep_last=1), **keys)
    token = begin(store, "r")
    for visit in range(1, 30):
        record = large(visit) if visit % 4 == 0 else checkpoint("r", visit, "a", visit=visit)
        assert "written" == write(store, token, record._replace(node_id="a", header=named(record, visit))).outcome
        clock.advance(5)
        assert store.verify("r").ok
    assert len(numbers(store)) < 6
    (gap,) = gaps(store).values()
    assert NumberGap(1, links(store)[0]) == gap
    store.release(token, Release("interrupted"))
    assert reopened(medium, store, keys).verify("r").ok


def test_a_run_with_gaps_goes_on_and_is_forked_and_replayed(verbs, medium, clock, keys, log):
    def work(name: str) -> str:
        log.append(name)
        if log.count(name) == 1 and name == "last":
            raise verbs.Killed
        return name

    @workflow("parts")
    def parts():
        first = yield step("first").python(verbs.node(work), args=("first",))
        second = yield step("second").python(verbs.node(work), args=("second",))
        return [first, second, (yield step("last").python(verbs.node(work), args=("last",)))]

    store = medium.open(clock=clock, **keys)
    verbs.crash(parts, store, "w", {})
    store.delete("w", "second")
    assert ["first", "second", "last"] == verbs.resume(parts, store, "w")
    assert ["first", "second", "last", "second", "last"] == log
    graph = Graph(int).add_node("a", verbs.node(lambda n: n + 1))
    graph.add_conditional_edge("a", lambda n: END if n % 6 == 0 else "a", ["a", END])
    flow = graph.set_entry("a").compile("loop")
    verbs.run(flow, 0, store=store, run_id="g")
    store.prune(keep_last=2)
    fork = verbs.call(flow, "fork_run", store, "g", "a", 5)
    assert 6 == verbs.resume(flow, store, fork)
    assert 6 == verbs.resume_from(flow, store, "g", "a", visit=5)
    for run_id in ("w", "g", fork):
        assert store.verify(run_id).ok


# -- somebody takes records away ------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_record_that_was_taken_away_is_missing(medium, keys, attacker):
    store = medium.open(**keys)
    filled(store)
    attacker.remove(store, "r", 4)
    assert ["record 4 is missing"] == missing(reopened(medium, store, keys))


@pytest.mark.every_store
@pytest.mark.parametrize("taken", [5, 7, 8])
def test_a_record_beside_a_deletion_is_missing_if_it_was_taken_away_later(medium, keys, attacker, taken):
    store = medium.open(**keys)
    filled(store)
    store.prune(keep_last=3)
    attacker.remove(store, "r", taken)
    reader = reopened(medium, store, keys)
    expected = {5: "records 1 to 5 are missing", 7: "records 6 to 7 are missing", 8: "record 8 is missing"}
    assert [expected[taken]] == missing(reader)
    with pytest.raises(CheckpointCorruptError, match="missing"):
        MemoryStore(**keys).import_run(reader.export("r"))


@pytest.mark.every_store
@pytest.mark.parametrize("taken", [1, 3, 5, 6])
def test_a_deletion_hides_no_record_that_was_taken_away_before(medium, keys, attacker, taken):
    """Neither at the edges of what is deleted nor in the middle of it."""
    store = medium.open(**keys)
    filled(store)
    attacker.remove(store, "r", taken)
    reader = reopened(medium, store, keys)
    reader.prune(keep_last=3)
    reader.prune(keep_last=1)
    reader.delete("r", "a")
    expected = {1: "record 1 is", 3: "records 1 to 3 are", 5: "records 1 to 5 are", 6: "record 6 is"}
    assert [f"{expected[taken]} missing"] == missing(reader)


@pytest.mark.every_store
def test_a_gap_that_somebody_writes_into_a_record_counts_for_no_deletion(medium, attacker):
    """Not even once the record that says so is deleted."""
    keys = SIGNED
    store = medium.open(**keys)
    filled(store)

    def lying(record: Record) -> Record:
        header = (record.header or b"").replace(b',"life"', b',"gap":[2,"x"],"life"')
        return record._replace(header=header)

    attacker.remove(store, "r", 2)
    attacker.change(store, "r", 3, lying)
    assert ["record 2 is missing"] == missing(reopened(medium, store, keys))
    reader = reopened(medium, store, keys)
    reader.prune(keep_last=1)
    assert missing(reader)


@pytest.mark.every_store
def test_what_follows_a_gap_follows_the_record_before_it(medium, keys, attacker):
    """A record before a gap is that one which stood there when the others were deleted."""
    store = medium.open(**keys)
    filled(store)
    store.prune(keep_last=1)
    (record,) = (record for record in store.read("r") if record.sequence == 5)
    other = record.fields() | {"message": "another"}
    for name in ("seal", "prev", "gap", "life", "link"):
        other.pop(name, None)
    again = record._replace(header=msgspec.json.encode(other)[:-1])
    with store._read("look") as tx:
        life, (old,) = tx.life("r"), tx.records("r", after=4, before=6)
    forged = store._sealed("r", life, with_gap(again, gap_of(record.header)), "", prev_of(record.header))
    assert link_of(forged.header) != link_of(old.header)
    attacker.change(store, "r", 5, lambda _: forged)
    reader = reopened(medium, store, keys)
    assert any("does not follow the record before it" in text for text in reader.verify("r").problems)


def test_a_store_without_the_key_deletes_nothing_of_a_sealed_run(medium):
    store = medium.open(**SIGNED)
    filled(store)
    before = numbers(store)
    other = reopened(medium, store, {})
    assert () == other.prune(keep_last=1).thinned
    with pytest.raises(CheckpointIntegrityError):
        other.delete("r", "a")
    assert before == numbers(store)
    assert store.verify("r").ok


def test_the_damage_of_a_record_is_told_beside_the_gap_that_it_named(medium, attacker):
    store = medium.open()
    filled(store)
    attacker.change(store, "r", 7, lambda record: record._replace(payload=b"{}"))
    store.prune(keep_last=3)
    problems = store.verify("r").problems
    assert any("record 7 of" in text for text in problems), problems
    assert any("record 6 is missing" in text for text in problems), problems


def test_a_memory_of_links_does_not_outlive_a_deletion(tmp_path):
    with SQLiteStore(tmp_path / "runs.db") as store, SQLiteStore(tmp_path / "runs.db") as other:
        filled(store)
        assert store.verify("r").ok
        other.prune(keep_last=1)
        token = take(store, "r").token
        assert token is not None
        write(store, token, checkpoint("r", 12, "a", visit=9), release=Release("interrupted"))
        assert store.verify("r").ok
        assert other.verify("r").ok
