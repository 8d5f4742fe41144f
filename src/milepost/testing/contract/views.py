"""Bytes by run and node, the first checkpoint stores' promises, and ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from milepost.errors import (
    CheckpointNotFoundError,
    InvalidIDError,
    RunExistsError,
    RunIDRequiredError,
    RunLockedError,
    RunNotFoundError,
)
from milepost.model.record import OWNER
from milepost.store import Release, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, new_run, take, whole, work, write
from milepost.testing.tables import for_each

# -- Bytes by run and node: what `save`, `load`, `list`, `history`, `delete` and `delete_run` promise


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


# -- The rows of the table in the first description of a checkpoint store, and what that description says in words


NODES = tuple(f"node-{letter}" for letter in "jihgfedcba")


class SeedContract(StoreUnderTest):
    """Save, load, not found, list, delete and delete run, by run and node, with bytes."""

    def test_seed_contract_save(self, store: Store) -> None:
        """Save stores a checkpoint for a run at a specific node."""
        for node in NODES:
            store.save("run-1", node, f"data of {node}".encode())
        assert [f"data of {node}".encode() for node in NODES] == [store.load("run-1", node) for node in NODES]

    def test_seed_contract_save_overwrites(self, store: Store) -> None:
        """Overwrites if a checkpoint for (run, node) already exists; what was there stays in the history."""
        store.save("run-1", "node-a", b"first")
        store.save("run-1", "node-a", b"second")
        assert b"second" == store.load("run-1", "node-a")
        assert b"first" == store.load("run-1", "node-a", visit=1)
        assert [1, 2] == [info.visit for info in store.history("run-1")]

    def test_seed_contract_save_copies(self, store: Store) -> None:
        """Make a copy to avoid retaining the caller's bytes."""
        data = bytearray(b"data-a")
        store.save("run-1", "node-a", data)  # type: ignore[arg-type]  # it is bytes to its caller
        data[:] = b"xxxxxx"
        assert b"data-a" == store.load("run-1", "node-a")

    def test_seed_contract_load(self, store: Store) -> None:
        """Load gives the bytes that were saved."""
        store.save("run-1", "node-a", b"data-a")
        assert b"data-a" == store.load("run-1", "node-a")

    def test_seed_contract_not_found(self, store: Store) -> None:
        """Load of a run or node that is not there fails with not found, which names the place."""
        store.save("run-1", "node-a", b"data-a")
        for run_id, node_id in (("run-1", "node-x"), ("run-x", "node-a")):
            with pytest.raises(CheckpointNotFoundError) as caught:
                store.load(run_id, node_id)
            assert (run_id, node_id) == (caught.value.run_id, caught.value.node_id)
            assert store.place in str(caught.value)

    def test_seed_contract_list(self, store: Store) -> None:
        """List returns all checkpoints for a run, ordered by sequence."""
        for node in NODES:
            store.save("run-1", node, node.encode() * 3)
        store.save("run-2", "node-z", b"of another run")
        infos = store.list("run-1")
        assert list(NODES) == [info.node_id for info in infos]
        assert list(range(1, len(NODES) + 1)) == [info.sequence for info in infos]
        assert {"run-1"} == {info.run_id for info in infos}
        assert [len(node) * 3 for node in NODES] == [info.size for info in infos]

    def test_seed_contract_list_moves_a_node_visited_again_to_the_end(self, store: Store) -> None:
        """The next sequence is the highest of the run plus one, also for an overwrite."""
        for node in (*NODES, NODES[2]):
            store.save("run-1", node, b"data")
        infos = store.list("run-1")
        assert [*NODES[:2], *NODES[3:], NODES[2]] == [info.node_id for info in infos]
        assert len(NODES) + 1 == infos[-1].sequence

    def test_seed_contract_list_of_an_unknown_run(self, store: Store) -> None:
        """List of a run that is not there is empty, not an error."""
        assert [] == store.list("run-x")

    def test_seed_contract_delete(self, store: Store) -> None:
        """Delete removes a specific checkpoint."""
        for node in NODES:
            store.save("run-1", node, b"data")
        store.delete("run-1", "node-a")
        with pytest.raises(CheckpointNotFoundError):
            store.load("run-1", "node-a")
        assert set(NODES) - {"node-a"} == {info.node_id for info in store.list("run-1")}

    def test_seed_contract_delete_of_an_absent_checkpoint(self, store: Store) -> None:
        """Delete of what is not there is no error."""
        store.delete("run-x", "node-a")
        store.save("run-1", "node-a", b"data-a")
        store.delete("run-1", "node-x")
        assert b"data-a" == store.load("run-1", "node-a")

    def test_seed_contract_delete_run(self, store: Store) -> None:
        """DeleteRun removes all checkpoints for a run, and of that run only."""
        for run_id in ("run-1", "run-2"):
            for node in NODES:
                store.save(run_id, node, b"data")
        store.delete_run("run-1")
        store.delete_run("run-x")
        assert [] == store.list("run-1")
        assert len(NODES) == len(store.list("run-2"))

    def test_seed_contract_close(self, store: Store) -> None:
        """Close releases any resources; closing again is no error."""
        store.save("run-1", "node-a", b"data-a")
        store.close()
        store.close()


# -- Ids: the same verdict on every store, before anything is stored, and no two ids in one place --


REFUSED = {
    "dot": ".",
    "two dots": "..",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "delete": "a\x7f",
    "C1 control": "a\x85",
    "lone surrogate": "a\ud800",
    "513 bytes": "a" * 513,
    "514 bytes in 257 characters": "é" * 257,
    "5000 bytes": "a" * 5000,
}
BLANK = {"empty": "", "blanks": "   ", "wide blank": "\u3000"}
KEPT_APART = (
    "R1", "r1", "1", "01", "../up", "in/voice", "in", "in%2Fvoice", "in\\voice", "/abs", "~", "a.", "a", "a ", " a",
    "con", "CON", "nul.json", "a:b", "a*b?", "k') OR 2>1 --", '"', "%", "_", "é", "e\u0301", "straße", "strasse",
    "ß" * 256, "日本", "🚀", "x" * 320, "x" * 319, "x" * 512,
)  # fmt: skip
VERBS: dict[str, Callable[[Store, Any], object]] = {
    "create": lambda store, run_id: store.create(new_run("r")._replace(run_id=run_id)),
    "save": lambda store, run_id: store.save(run_id, "a", b""),
    "load": lambda store, run_id: store.load(run_id, "a"),
    "list": lambda store, run_id: store.list(run_id),
    "history": lambda store, run_id: store.history(run_id),
    "delete": lambda store, run_id: store.delete(run_id, "a"),
    "delete_run": lambda store, run_id: store.delete_run(run_id),
    "read": lambda store, run_id: store.read(run_id),
    "latest": lambda store, run_id: store.latest(run_id),
    "get_run": lambda store, run_id: store.get_run(run_id),
    "put_signal": lambda store, run_id: store.put_signal(run_id, "go", None),
    "signals": lambda store, run_id: store.signals(run_id),
    "request_cancel": lambda store, run_id: store.request_cancel(run_id),
    "export": lambda store, run_id: store.export(run_id),
    "verify": lambda store, run_id: store.verify(run_id),
}


class IDContract(StoreUnderTest):
    """`check_id` and `check_run_id` speak for every store."""

    @for_each("value", REFUSED.values())
    def test_an_id_that_no_store_accepts_is_refused_before_anything_is_stored(self, store: Store, value: str) -> None:
        """The id itself, if every store accepts it; else `InvalidIDError`."""
        with pytest.raises(InvalidIDError) as caught:
            store.save(value, "a", b"1")
        assert value == caught.value.value
        with pytest.raises(InvalidIDError):
            begin_as(store, value)
        with pytest.raises(InvalidIDError):
            store.save("r", value, b"1")
        assert [] == store.list_runs()

    @for_each("value", BLANK.values())
    def test_a_blank_run_id_asks_for_one(self, store: Store, value: str) -> None:
        """`check_id` for a run id; `RunIDRequiredError` if it is empty or blank."""
        with pytest.raises(RunIDRequiredError):
            store.save(value, "a", b"1")
        with pytest.raises(RunIDRequiredError):
            begin_as(store, value)
        with pytest.raises(InvalidIDError):
            store.save("r", value, b"1")
        assert [] == store.list_runs()

    @for_each("call", VERBS.values())
    @for_each("value", [1, None, b"r"])
    def test_a_run_id_that_is_no_str_is_a_type_error(
        self, store: Store, call: Callable[[Store, Any], object], value: object
    ) -> None:
        """TypeError if it is no str."""
        store.save("1", "a", b"1")
        with pytest.raises(TypeError):
            call(store, value)
        assert ["1"] == [info.run_id for info in store.list_runs()]

    @for_each("value", [1, None, b"a"])
    def test_a_node_id_that_is_no_str_is_a_type_error(self, store: Store, value: Any) -> None:
        """TypeError if it is no str."""
        with pytest.raises(TypeError):
            store.save("r", value, b"1")
        with pytest.raises(TypeError):
            store.load("r", value)
        with pytest.raises(TypeError):
            store.delete("r", value)
        assert [] == store.list_runs()

    def test_run_ids_are_kept_apart_exactly(self, store: Store) -> None:
        """Ids are compared exactly and case-sensitively; all that is not refused is allowed."""
        for run_id in KEPT_APART:
            store.save(run_id, "a", run_id.encode())
        assert [run_id.encode() for run_id in KEPT_APART] == [store.load(run_id, "a") for run_id in KEPT_APART]
        assert set(KEPT_APART) == {info.run_id for info in store.list_runs()}
        assert [[run_id] for run_id in KEPT_APART] == [
            [info.run_id for info in store.list(run_id)] for run_id in KEPT_APART
        ]
        store.delete_run("r1")
        assert set(KEPT_APART) - {"r1"} == {info.run_id for info in store.list_runs()}

    def test_node_ids_are_kept_apart_exactly(self, store: Store) -> None:
        """Ids are compared exactly and case-sensitively; all that is not refused is allowed."""
        for node_id in KEPT_APART:
            store.save("r", node_id, node_id.encode())
        assert list(KEPT_APART) == [info.node_id for info in store.list("r")]
        assert [node_id.encode() for node_id in KEPT_APART] == [store.load("r", node_id) for node_id in KEPT_APART]

    def test_created_run_ids_are_kept_apart_exactly(self, store: Store) -> None:
        """Raises `RunExistsError` if the id is taken: no other id takes it."""
        for run_id in KEPT_APART:
            begin(store, run_id)
        for run_id in KEPT_APART:
            assert run_id == store.get_run(run_id).info.run_id
            with pytest.raises(RunExistsError):
                begin(store, run_id)


def begin_as(store: Store, run_id: str) -> Token:
    """Create a run under an id for which no record can be made."""
    return store.create(new_run("r")._replace(run_id=run_id))
