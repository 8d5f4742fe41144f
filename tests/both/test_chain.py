"""The chain of a journal: each record covers the one before it, so that none can be exchanged, left out or moved."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from attacker import Attacker

from milepost import MemoryStore
from milepost.errors import CheckpointCorruptError, CheckpointIntegrityError
from milepost.model.record import Record, digest_of, make_record
from milepost.model.seal import Seals, link_of, prev_of
from milepost.store import Append, Release, Store
from milepost.testing.journals import begin, checkpoint, failure, new_run, take, write

SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}}
ENCRYPTED = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}}
KEYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "signed": SIGNED,
    "encrypted": ENCRYPTED,
    "both": {**SIGNED, **ENCRYPTED},
}


@pytest.fixture
def attacker(medium) -> Attacker:
    return Attacker(medium.kind, medium.path)


def reopened(medium, store: Any, keys: dict[str, Any]) -> Any:
    """Another store object on the medium, which has read nothing yet."""
    if medium.kind != "memory":
        return medium.open(**keys)
    other = MemoryStore(**keys)
    other._runs = store._runs
    return other


@pytest.fixture(params=KEYS)
def keys(request) -> dict[str, Any]:
    return KEYS[request.param]


def large(sequence: int) -> Record:
    state = b'{"text":"%s","n":%d}' % (b" ".join(b"word %d" % n for n in range(1200)), sequence)
    return make_record("r", sequence, "2026-01-01T00:00:00.000000Z", "checkpoint", "large", sequence, state)


def kept(store: Any, run_id: str = "r") -> list[tuple[Record, str]]:
    """The records as they are stored, but decrypted, and their links."""
    with store._read("look") as tx:
        stored = tx.records(run_id)
    opened = [record if store._keeper is None else store._keeper.opened(run_id, record) for record in stored]
    return [(record, link_of(each.header)) for record, each in zip(opened, stored, strict=True)]


def lived(store: Store) -> None:
    """A run with records of every way in."""
    token = begin(store, "r")
    write(store, token, checkpoint("r", 1))
    write(store, token, large(2), large(3), checkpoint("r", 4, "b"))
    assert "taken" == write(store, token, checkpoint("r", 4, "c")).outcome
    write(store, token, failure("r", 5))
    batch = [Append(token, (checkpoint("r", number, "b", visit=number),)) for number in (6, 7, 8)]
    assert ["written"] * 3 == [verdict.outcome for verdict in store.append(batch)]
    write(store, token, large(9), release=Release("interrupted"))
    store.save("r", "b", b"from outside")
    token = take(store, "r").token
    assert token is not None
    write(store, token, large(12))
    store.release(token, Release("interrupted"))
    store.delete("r", "b")
    assert "cancelled" == store.request_cancel("r", "", 13)


@pytest.mark.every_store
def test_each_record_has_the_link_of_the_one_before_it(medium, keys):
    store = medium.open(**keys)
    lived(store)
    store.save("saved", "a", b"first")
    store.save("saved", "a", b"second")
    store.import_run(store.export("saved"), run_id="copy")
    for run_id, gaps in (("r", {4, 6, 7, 8, 10}), ("saved", {0}), ("copy", {0})):
        chain = kept(store, run_id)
        first, *_ = chain[0]
        assert ("" if first.sequence else None) == prev_of(first.header or b"")
        assert gaps == {*range(chain[-1][0].sequence)} - {record.sequence for record, _ in chain}
        for (before, link), (record, _) in itertools.pairwise(chain):
            if record.sequence == before.sequence + 1:
                assert link == prev_of(record.header or b""), record
        assert store.verify(run_id).ok


@pytest.mark.every_store
def test_threads_that_share_a_commit_keep_their_chains(medium):
    store = medium.open()
    tokens = [begin(store, f"r{number}") for number in range(6)]

    def work(token) -> None:
        for number in range(1, 6):
            write(store, token, checkpoint(token.run_id, number))

    threads = [threading.Thread(target=work, args=(token,)) for token in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for token in tokens:
        chain = kept(store, token.run_id)
        assert [link for _, link in chain[:-1]] == [prev_of(record.header or b"") for record, _ in chain[1:]]
        assert 6 == len(chain)


def test_a_token_of_another_store_object_goes_on_with_the_chain():
    store, other = MemoryStore(), MemoryStore()
    other._runs = store._runs
    token = begin(store, "r")
    write(store, token, checkpoint("r", 1))
    write(other, token, checkpoint("r", 2))
    write(store, token, checkpoint("r", 3))
    chain = kept(store)
    assert [link for _, link in chain[:-1]] == [prev_of(record.header or b"") for record, _ in chain[1:]]


# -- what is not in the chain any more ------------------------------------------------------------------------------


def filled(store: Any, run_id: str, seed: int) -> None:
    token = store.create(new_run(run_id, state=b'{"n":%d}' % seed))
    for number in range(1, 6):
        write(store, token, checkpoint(run_id, number, "a", visit=number, state=b'{"n":%d}' % (seed + number)))
    store.release(token, Release("interrupted"))


@pytest.mark.every_store
def test_a_record_of_another_life_is_refused(medium, keys, attacker):
    """Swapped for one of an earlier life of the id, or of another store with the same keys; both are sound in themselves."""
    store = medium.open(**keys)
    filled(store, "r", 10)
    earlier = [attacker.kept(store, "r", number) for number in range(6)]
    store.delete_run("r")
    filled(store, "r", 20)
    whole = [attacker.kept(store, "r", number) for number in range(6)]
    elsewhere = MemoryStore(**keys)
    filled(elsewhere, "r", 30)
    others = elsewhere._runs["r"].records
    for number, planted in itertools.product((2, 5), (earlier, others)):
        attacker.change(store, "r", number, lambda _, n=number, p=planted: p[n])
        for reader in (store, reopened(medium, store, keys)):
            assert any(f"record {number} of" in problem for problem in reader.verify("r").problems)
            (alone,) = reader.read("r", after=number - 1, before=number + 1)
            with pytest.raises(CheckpointIntegrityError, match="belongs to another run"):
                reader.seals.check("r", alone)
            with pytest.raises(CheckpointIntegrityError):
                for record in reader.read("r"):
                    reader.seals.check("r", record)
            with pytest.raises(CheckpointIntegrityError):
                reader.export("r")
        attacker.change(store, "r", number, lambda _, n=number: whole[n])
        assert store.verify("r").ok


@pytest.mark.every_store
def test_records_that_were_swapped_or_doubled_are_found(medium, keys, attacker):
    store = medium.open(**keys)
    filled(store, "r", 10)
    whole = [attacker.kept(store, "r", number) for number in range(6)]
    for number, other in ((2, 3), (3, 2), (4, 3)):
        attacker.change(store, "r", number, lambda _, n=other: whole[n])
        assert not reopened(medium, store, keys).verify("r").ok
        attacker.change(store, "r", number, lambda _, n=number: whole[n])


@pytest.mark.every_store
def test_a_damaged_record_costs_no_other(medium, keys, attacker):
    """Not even where its seal, which is its link, can't be read any more."""
    store = medium.open(**keys)
    filled(store, "r", 10)
    attacker.change(store, "r", 3, lambda record: record._replace(header=(record.header or b"")[:-40]))
    reader = reopened(medium, store, keys)
    assert 1 == len(reader.verify("r").problems)
    sound = []
    for record in reader.read("r"):
        with suppress(CheckpointCorruptError):
            reader.seals.check("r", record)
            sound.append(record.sequence)
    assert [0, 1, 2, 4, 5] == sound


def forged(record: Record) -> Record:
    """The same record with another state, sealed as anybody can seal where there is no key."""
    fields = {name: value for name, value in record.header_fields().items() if name not in {"seal", "digest"}}
    header = msgspec.json.encode(fields | {"digest": digest_of(b"{}")})[:-1]
    return record._replace(header=Seals().seal(header), payload=b"{}")


def test_a_link_between_two_pages_is_proven_too(medium, attacker):
    store = medium.open()
    filled(store, "r", 10)
    attacker.change(store, "r", 3, forged)
    first, second = store.read("r", after=1, before=4), store.read("r", after=3)
    for record in first:
        store.seals.check("r", record)
    with pytest.raises(CheckpointIntegrityError, match="does not follow the record before it"):
        store.seals.check("r", second[0])


@pytest.mark.every_store
def test_a_claim_after_damage_covers_the_last_proven_record_and_names_the_others(medium, keys, attacker):
    store = medium.open(**keys)
    filled(store, "r", 10)
    whole = [attacker.kept(store, "r", number) for number in range(6)]
    for number in (4, 5):
        attacker.change(store, "r", number, lambda record: record._replace(header=(record.header or b"")[:-40]))
    reader = reopened(medium, store, keys)
    token = take(reader, "r").token
    assert token is not None
    write(reader, token, checkpoint("r", 7, "a", visit=6))
    chain = {record.sequence: (record, link) for record, link in kept(reader)}
    claim, link = chain[6]
    assert ([4, 5], chain[3][1]) == (claim.header_fields()["passed"], prev_of(claim.header))
    assert link == prev_of(chain[7][0].header)
    assert 2 == len(reader.verify("r").problems)
    # What was passed over counts no more, whatever stands there later.
    for number in (4, 5):
        attacker.change(reader, "r", number, lambda _, n=number: whole[n])
    later = reopened(medium, reader, keys)
    (problem,) = later.verify("r").problems
    assert "record 5 of run 'r'" in problem
    for record in later.read("r", after=5):
        later.seals.check("r", record)
