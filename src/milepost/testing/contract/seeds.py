"""The rows of the table in the first description of a checkpoint store, and what that description says in words."""

from __future__ import annotations

import pytest

from milepost.errors import CheckpointNotFoundError
from milepost.store import Store
from milepost.testing.contract.subject import StoreUnderTest

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
