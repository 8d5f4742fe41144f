"""The close of a store object: what it waits for, and the error of every verb afterwards."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from milepost.errors import StoreClosedError
from milepost.store import Append, Release, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.ids import VERBS
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, claim_of, work, write

FENCED: dict[str, Callable[[Store, Token], object]] = {
    "append": lambda store, token: store.append([Append(token, (checkpoint("r", 1),))]),
    "renew": lambda store, token: store.renew([token]),
    "release": lambda store, token: store.release(token, Release("finished")),
    "claim_due": lambda store, token: store.claim_due(["orders"], 1),
    "list_runs": lambda store, token: store.list_runs(),
}


class ClosingContract(StoreUnderTest):
    """Use after `close()` is `StoreClosedError`."""

    @pytest.mark.parametrize("call", VERBS.values(), ids=VERBS.keys())
    def test_a_verb_after_close_is_refused(self, store: Store, call: Callable[[Store, str], object]) -> None:
        """Use after `close()` is `StoreClosedError`."""
        store.save("r", "a", b"1")
        store.close()
        with pytest.raises(StoreClosedError):
            call(store, "r")

    @pytest.mark.parametrize("call", FENCED.values(), ids=FENCED.keys())
    def test_a_fenced_verb_after_close_is_refused(self, store: Store, call: Callable[[Store, Token], object]) -> None:
        """Use after `close()` is `StoreClosedError`."""
        token = begin(store, "r")
        store.close()
        with pytest.raises(StoreClosedError):
            call(store, token)

    def test_a_claim_after_close_is_refused(self, store: Store) -> None:
        """Use after `close()` is `StoreClosedError`."""
        begin(store, "r")
        wish = claim_of(store.latest("r"))
        store.close()
        with pytest.raises(StoreClosedError):
            store.claim(wish)

    def test_abandon_after_close_does_not_fail(self, store: Store) -> None:
        """Note that the verb which held `token` has ended without a release. Never fails."""
        token = begin(store, "r")
        store.close()
        store.abandon(token)

    def test_closing_again_is_no_error(self, store: Store) -> None:
        """Wait for writes that have begun, then release everything. Again: no error."""
        begin(store, "r")
        store.close()
        store.close()

    def test_close_amid_writes_ends_them_with_a_clear_answer(self, store: Store) -> None:
        """Wait for writes that have begun; use after `close()` is `StoreClosedError`, and nothing else."""
        assert all(count > 0 for count in written_until_closed(store))

    @requires(is_shared_between_processes=True)
    def test_what_was_told_written_before_a_close_is_there(self, store: Store, other: Store) -> None:
        """Wait for writes that have begun: what was written was told, and what was told is there."""
        counts = written_until_closed(store)
        assert counts == [other.get_run(f"r{n}").info.sequence for n in range(len(counts))]

    def test_a_store_that_was_never_used_is_closed(self, store: Store) -> None:
        """Release everything. Again: no error."""
        store.close()
        store.close()

    def test_a_with_block_closes_the_store(self, tmp_path: Path, clock: FakeClock) -> None:
        """Stores are context managers, sync and async."""
        with self.make_store(tmp_path, clock) as store:
            store.save("r", "a", b"1")
        with pytest.raises(StoreClosedError):
            store.load("r", "a")
        with pytest.raises(ZeroDivisionError), self.make_store(tmp_path, clock) as store:
            raise ZeroDivisionError
        with pytest.raises(StoreClosedError):
            store.list_runs()

    def test_an_async_with_block_closes_the_store(self, tmp_path: Path, clock: FakeClock) -> None:
        """Stores are context managers, sync and async."""

        async def use() -> Store:
            async with self.make_store(tmp_path, clock) as store:
                store.save("r", "a", b"1")
            return store

        store = asyncio.run(use())
        with pytest.raises(StoreClosedError):
            store.load("r", "a")

    @requires(is_shared_between_processes=True)
    def test_closing_one_store_object_leaves_the_others_alone(self, store: Store, other: Store) -> None:
        """Release everything: of this object only."""
        token = begin(store, "r")
        store.close()
        assert "written" == work(other, token, "a").outcome
        other.save("s", "a", b"1")

    def test_a_store_has_an_absolute_place(self, store: Store) -> None:
        """The store's absolute place, for messages; without passwords."""
        assert isinstance(store.place, str)
        assert "" != store.place

    def test_a_store_says_whether_a_call_may_wait(self, store: Store) -> None:
        """Whether a call may wait for a disk or a network."""
        assert isinstance(store.is_blocking, bool)


def written_until_closed(store: Store, threads: int = 6) -> list[int]:
    """Close a store while each thread appends to a run. Return the number of written appends for each."""
    tokens = [begin(store, f"r{n}") for n in range(threads)]
    has_begun = threading.Barrier(threads + 1)

    def append(token: Token) -> int:
        for sequence in itertools.count(1):
            try:
                assert "written" == write(store, token, checkpoint(token.run_id, sequence)).outcome
            except StoreClosedError:
                return sequence - 1
            if sequence == 1:
                has_begun.wait(30)
        raise AssertionError

    with ThreadPoolExecutor(threads) as pool:
        counts = [pool.submit(append, token) for token in tokens]
        has_begun.wait(30)
        store.close()
        return [count.result(30) for count in counts]
