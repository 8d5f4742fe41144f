"""Bytes by run and node: what `save`, `load`, `list`, `history`, `delete` and `delete_run` promise."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from milepost.errors import CheckpointNotFoundError, RunLockedError, RunNotFoundError
from milepost.model.record import OWNER
from milepost.store import Release, Store
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, take, whole, work, write

BYTES = {
    "empty": b"",
    "every byte": bytes(range(256)),
    "json": b'{"a": 1,\n "b": [1.50, "\\u00e9"]}',
    "an envelope of nobody": b'{"version":99,"run_id":"x","node_id":"y","sequence":7,"state":null}',
    "cut json": b'{"version":1,"state":',
    "text": "straße\n\x00".encode(),
    "zeros": b"\x00" * 4096,
    "large": b"0123456789abcdef" * 100_000,
}


class ViewContract(StoreUnderTest):
    """Checkpoints from outside a run, and what is seen of those from inside."""

    @pytest.mark.parametrize("data", BYTES.values(), ids=BYTES.keys())
    def test_load_gives_the_bytes_that_were_saved(self, store: Store, data: bytes) -> None:
        """`load` gives the same bytes, whatever they are."""
        store.save("r", "node", data)
        loaded = store.load("r", "node")
        assert data == loaded
        assert bytes is type(loaded)
        assert [len(data)] == [info.size for info in store.list("r")]

    def test_save_takes_the_next_number_and_the_next_epoch(self, store: Store) -> None:
        """The record takes the next number and the next epoch in one write."""
        token = begin(store, "r")
        work(store, token, "a", release=Release("interrupted"))
        store.save("r", "b", b"outside")
        row = store.get_run("r")
        assert (2, 2) == (row.info.sequence, row.epoch)
        assert [0, 1, 2] == [record.sequence for record in store.read("r")]
        assert store.read("r")[-1].is_foreign

    def test_save_makes_an_unknown_run_interrupted(self, store: Store) -> None:
        """An unknown run is made, with status `interrupted`."""
        store.save("r", "a", b"1")
        row = store.get_run("r")
        assert ("interrupted", "free") == (row.info.status, row.lease)

    @pytest.mark.parametrize("status", ["finished", "failed", "cancelled", "blocked"])
    def test_save_over_an_ended_run_interrupts_it(self, store: Store, status: str) -> None:
        """An unknown run is made, with status `interrupted`, as is one that had ended."""
        work(store, begin(store, "r"), "a", release=Release(status, "why"))
        store.save("r", "a", b"1")
        assert "interrupted" == store.get_run("r").info.status

    def test_save_is_refused_while_a_lease_is_live(self, store: Store) -> None:
        """Raises `RunLockedError` while a lease is live, from inside a node of the run as well."""
        begin(store, "r")
        before = whole(store, "r")
        with pytest.raises(RunLockedError) as caught:
            store.save("r", "a", b"1")
        assert "r" == caught.value.run_id
        assert before == whole(store, "r")

    @requires(is_shared_between_processes=True)
    def test_save_is_refused_while_another_store_object_owns_the_run(self, store: Store, other: Store) -> None:
        """Raises `RunLockedError` while a lease is live: it names the owner and the end of the lease."""
        begin(store, "r")
        before = whole(other, "r")
        with pytest.raises(RunLockedError) as caught:
            other.save("r", "a", b"1")
        info = other.get_run("r").info
        assert (info.owner, info.lease_until) == (caught.value.owner, caught.value.lease_until)
        assert before == whole(other, "r")

    def test_save_fences_off_an_owner_that_has_let_go(self, store: Store) -> None:
        """The record takes the next epoch in one write, so that a frozen owner is fenced off."""
        token = begin(store, "r")
        store.abandon(token)
        store.save("r", "a", b"1")
        before = whole(store, "r")
        assert "lost" == work(store, token, "late").outcome
        assert before == whole(store, "r")

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_save_fences_off_a_frozen_owner(self, store: Store, other: Store, clock: FakeClock) -> None:
        """The record takes the next epoch in one write, so that a frozen owner is fenced off."""
        token = begin(store, "r", lease=30.0)
        clock.advance(31)
        other.save("r", "a", b"1")
        before = whole(other, "r")
        assert "lost" == work(store, token, "late").outcome
        assert before == whole(other, "r")

    def test_an_info_tells_place_time_size_visit_and_attempt(self, store: Store, clock: FakeClock) -> None:
        """One checkpoint without its state. `size` is that of the uncompressed state in bytes."""
        clock.advance(hours=3)
        store.save("r", "a", b"12345")
        (info,) = store.list("r")
        assert ("r", "a", 1, 5, 1, 1, False) == (
            info.run_id,
            info.node_id,
            info.sequence,
            info.size,
            info.visit,
            info.attempt,
            info.superseded,
        )
        assert clock.now() == info.timestamp
        assert timedelta(0) == info.timestamp.utcoffset()

    def test_size_is_that_of_the_uncompressed_state(self, store: Store) -> None:
        """`size` is that of the uncompressed state in bytes."""
        state = b'"' + b"a" * 2_000_000 + b'"'
        token = begin(store, "r")
        assert "written" == write(store, token, checkpoint("r", 1, "big", state=state, attempt=3)).outcome
        assert [(len(state), 3)] == [(info.size, info.attempt) for info in store.list("r")]
        assert len(state) == store.get_run("r").info.size
        assert state == store.read("r")[-1].state()

    def test_load_gives_the_envelope_of_a_visit_from_inside(self, store: Store) -> None:
        """The envelope of a node's newest visit that is not superseded, or of `visit`."""
        work(store, begin(store, "r"), "a", "b", "a")
        newest, first = json.loads(store.load("r", "a")), json.loads(store.load("r", "a", visit=1))
        assert ("r", "a", 3, 2, {"n": 3}) == (
            newest["run_id"],
            newest["node_id"],
            newest["sequence"],
            newest["visit"],
            newest["state"],
        )
        assert (1, 1, {"n": 1}) == (first["sequence"], first["visit"], first["state"])
        assert store.read("r")[3].envelope() == store.load("r", "a")

    def test_load_of_a_visit_that_was_never_made_is_not_found(self, store: Store) -> None:
        """Raises `CheckpointNotFoundError`, which names the store's place."""
        work(store, begin(store, "r"), "a")
        with pytest.raises(CheckpointNotFoundError) as caught:
            store.load("r", "a", visit=2)
        assert store.place in str(caught.value)

    def test_a_loop_keeps_every_visit(self, store: Store) -> None:
        """`list` gives the newest live visit of each node; `history` every visit, ordered by sequence."""
        token = begin(store, "r")
        work(store, token, "a", "b", "c", "b")
        store.abandon(token)
        claimed = take(store, "r")
        assert claimed.token is not None
        work(store, claimed.token, "b", "c", "d", "e", "f", "g", "h", "i", "j")
        visits = [(info.sequence, info.visit) for info in store.history("r") if info.node_id == "b"]
        assert [(2, 1), (4, 2), (6, 3)] == visits
        assert {"n": 6} == json.loads(store.load("r", "b"))["state"]
        assert ["a", "b", "c", *"defghij"] == [info.node_id for info in store.list("r")]
        assert 13 == len(store.history("r"))

    def test_history_of_an_unknown_run_is_empty(self, store: Store) -> None:
        """Every visit, ordered by sequence, superseded ones marked; [] for an unknown run."""
        assert [] == store.history("nobody")

    def test_delete_takes_all_visits_of_a_node(self, store: Store) -> None:
        """Delete all visits of a node, with an owner record (and a new epoch) that says so."""
        for node in ("a", "b", "a", "c", "a"):
            store.save("r", node, b"data")
        before = store.get_run("r")
        store.delete("r", "a")
        after = store.get_run("r")
        assert ["b", "c"] == [info.node_id for info in store.history("r")]
        for visit in (1, 2, 3):
            with pytest.raises(CheckpointNotFoundError):
                store.load("r", "a", visit)
        newest = store.read("r")[-1]
        assert (OWNER, before.info.sequence + 1) == (newest.kind, newest.sequence)
        assert (before.epoch + 1, before.info.sequence + 1) == (after.epoch, after.info.sequence)

    def test_delete_of_what_is_absent_changes_nothing(self, store: Store) -> None:
        """Absent: no error."""
        store.delete("nobody", "a")
        store.delete_run("nobody")
        with pytest.raises(RunNotFoundError):
            store.get_run("nobody")
        store.save("r", "a", b"1")
        before = store.list("r")
        store.delete("r", "never")
        assert before == store.list("r")

    def test_a_number_is_never_used_again_after_a_delete(self, store: Store) -> None:
        """The owner numbers its records, last + 1, dense: a deletion is itself a record."""
        store.save("r", "a", b"1")
        store.save("r", "b", b"2")
        used = {record.sequence for record in store.read("r")}
        store.delete("r", "b")
        store.delete("r", "a")
        deletions = {record.sequence for record in store.read("r")}
        store.save("r", "a", b"3")
        (info,) = store.list("r")
        assert info.sequence not in used | deletions
        assert info.sequence == store.get_run("r").info.sequence

    def test_delete_is_refused_while_a_lease_is_live(self, store: Store) -> None:
        """Raises `RunLockedError` while a lease is live, unless `force`."""
        work(store, begin(store, "r"), "a")
        before = whole(store, "r")
        with pytest.raises(RunLockedError):
            store.delete("r", "a")
        with pytest.raises(RunLockedError):
            store.delete_run("r")
        assert before == whole(store, "r")

    def test_a_forced_delete_fences_off_the_owner(self, store: Store) -> None:
        """Delete all visits of a node, with an owner record (and a new epoch) that says so."""
        token = begin(store, "r")
        work(store, token, "a", "b")
        store.delete("r", "a", force=True)
        before = whole(store, "r")
        assert "lost" == work(store, token, "late").outcome
        assert before == whole(store, "r")
        assert ["b"] == [info.node_id for info in store.list("r")]

    def test_a_forced_delete_run_fences_off_the_owner(self, store: Store) -> None:
        """Delete everything of a run; `RunLockedError` while a lease is live, unless `force`."""
        token = begin(store, "r")
        store.delete_run("r", force=True)
        assert "lost" == write(store, token, checkpoint("r", 1)).outcome
        assert [] == store.read("r")

    def test_a_run_of_the_same_id_never_meets_the_deleted_one(self, store: Store) -> None:
        """Delete everything of a run: records, signals, tags and flags."""
        token = begin(store, "r", tags={"old": "yes"})
        work(store, token, "a", "b")
        store.put_signal("r", "go", b"1", signal_id="once")
        store.request_cancel("r", "old")
        store.delete_run("r", force=True)
        assert ([], [], [], []) == (store.list("r"), store.history("r"), store.read("r"), store.signals("r"))
        assert [] == store.list_runs()
        begin(store, "r")
        row = store.get_run("r")
        assert (1, None, 0, {}) == (row.epoch, row.cancel, row.signals, dict(row.info.tags))
        assert "lost" == write(store, token, checkpoint("r", 1)).outcome
        assert "kept" == store.put_signal("r", "go", b"2", signal_id="once")
        assert [1] == [kept.number for kept in store.signals("r")]
        assert [0] == [record.sequence for record in store.read("r")]
        with pytest.raises(CheckpointNotFoundError):
            store.load("r", "a")
