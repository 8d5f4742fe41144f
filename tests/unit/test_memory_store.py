"""What is the memory store's own: its size, and that a write which fails half-way leaves nothing behind."""

from __future__ import annotations

import pytest

from milepost import MemoryStore
from milepost.testing.journals import checkpoint


def test_its_length_is_the_number_of_runs_and_an_empty_store_is_one_all_the_same() -> None:
    store = MemoryStore()
    assert store
    assert 0 == len(store)
    store.save("r", "a", b"1")
    store.save("r", "b", b"2")
    store.save("s", "a", b"3")
    assert 2 == len(store)


def test_a_write_that_raises_leaves_everything_as_it_was() -> None:
    store = MemoryStore()
    store.save("r", "a", b"1")
    store.save("r", "b", b"2")
    before = store.history("r"), store.export("r")

    def fail_after(change: str) -> None:
        with store._write("test") as tx:
            row = tx.row("r")
            assert row is not None
            if change == "insert":
                tx.insert("r", [checkpoint("r", 3, "c")])
            elif change == "remove_node":
                tx.remove_node("r", "a")
            else:
                tx.remove_run("r")
            raise RuntimeError("half-way")

    for change in ("insert", "remove_node", "remove_run"):
        with pytest.raises(RuntimeError, match="half-way"):
            fail_after(change)
        assert before == (store.history("r"), store.export("r"))
