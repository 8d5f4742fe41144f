"""The runs that a worker gets: which are due, in which order, and that each is claimed as `claim` does it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from milepost.model.info import Wait
from milepost.model.record import OWNER
from milepost.store import Release, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, take, whole, work, write


class DueContract(StoreUnderTest):
    """Take up to `limit` runs of `flows` that a worker may go on with, oldest first, flows in turn."""

    def test_a_ready_run_is_claimed(self, store: Store) -> None:
        """Each is claimed as by `claim`, with an owner record that the store makes."""
        begin(store, "r", status="ready", tags={"a": "b"})
        ((token, row),) = store.claim_due(["orders"], 5, lease=30.0)
        assert ("r", 2, "running", "ours", 0) == (
            token.run_id,
            token.epoch,
            row.info.status,
            row.lease,
            row.info.crash_count,
        )
        assert row == store.get_run("r")
        newest = store.read("r")[-1]
        assert (1, OWNER, 2) == (newest.sequence, newest.kind, newest.fields()["epoch"])
        store.seals.check("r", newest)
        assert store.verify("r").ok
        assert "written" == write(store, token, checkpoint("r", 2)).outcome
        assert [] == store.claim_due(["orders"], 5)

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_the_lease_of_a_due_run_is_as_long_as_was_asked(self, store: Store, other: Store, clock: FakeClock) -> None:
        """`lease`: seconds for which nobody may take the run over."""
        begin(store, "r", status="ready")
        store.claim_due(["orders"], 1, lease=300.0)
        clock.advance(299)
        assert "live" == other.get_run("r").lease
        clock.advance(2)
        assert "ended" == other.get_run("r").lease

    def test_runs_are_taken_oldest_first(self, store: Store, clock: FakeClock) -> None:
        """Oldest first, up to `limit`."""
        names = [f"r{n}" for n in (7, 3, 9, 1, 5, 8, 2, 6, 4, 0, 11, 10)]
        for name in names:
            begin(store, name, status="ready")
            clock.advance(1)
        taken = [row.info.run_id for limit in (1, 4, 100) for _, row in store.claim_due(["orders"], limit)]
        assert names == taken

    def test_flows_take_turns(self, store: Store, clock: FakeClock) -> None:
        """Oldest first, flows in turn: a long queue of one flow does not starve another."""
        for flow, run_id in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
            begin(store, run_id, flow=flow, status="ready")
            clock.advance(1)
        taken = [row.info.run_id for _, row in store.claim_due(["a", "b"], 2)]
        assert ["a1", "b1"] == taken
        taken = [row.info.run_id for _, row in store.claim_due(["a", "b"], 10)]
        assert ["a2", "b2", "a3"] == taken

    def test_only_runs_of_the_flows_are_taken(self, store: Store) -> None:
        """Runs of `flows`: names are compared exactly."""
        for flow in ("orders", "Orders", "order", "orders ", "o'; --", ""):
            begin(store, f"of {flow}", flow=flow, status="ready")
        assert ["of Orders"] == [row.info.run_id for _, row in store.claim_due({"Orders"}, 10)]
        assert ["of o'; --"] == [row.info.run_id for _, row in store.claim_due(("o'; --", "nobody"), 10)]
        assert [] == store.claim_due([], 10)

    def test_runs_that_the_worker_refused_are_skipped(self, store: Store, clock: FakeClock) -> None:
        """`skip` are run ids that this worker refused."""
        for name in ("r1", "r2", "r3"):
            begin(store, name, status="ready")
            clock.advance(1)
        before = whole(store, "r1")
        assert ["r2"] == [row.info.run_id for _, row in store.claim_due(["orders"], 1, skip={"r1", "x"})]
        assert ["r3"] == [row.info.run_id for _, row in store.claim_due(["orders"], 5, skip=["r1"])]
        assert before == whole(store, "r1")

    def test_a_ready_run_waits_for_its_time(self, store: Store, clock: FakeClock) -> None:
        """`ready` and their time has come."""
        begin(store, "r", status="ready", wake_at=clock.time() + 60)
        clock.advance(59)
        assert [] == store.claim_due(["orders"], 5)
        clock.advance(1)
        assert ["r"] == [row.info.run_id for _, row in store.claim_due(["orders"], 5)]

    def test_a_waiting_run_is_due_when_its_time_is_over(self, store: Store, clock: FakeClock) -> None:
        """`waiting` and their time is over."""
        wait = Wait("w#1", None, None, clock.now())
        store.release(begin(store, "timer"), Release("waiting", wake_at=clock.time() + 60, waiting_for=(wait,)))
        store.release(begin(store, "endless"), Release("waiting", waiting_for=(Wait("w#1", "go"),)))
        clock.advance(59)
        assert [] == store.claim_due(["orders"], 5)
        clock.advance(1)
        assert ["timer"] == [row.info.run_id for _, row in store.claim_due(["orders"], 5)]
        clock.advance(days=3650)
        assert "endless" not in [row.info.run_id for _, row in store.claim_due(["orders"], 5)]

    def test_a_waiting_run_is_due_once_its_signal_is_there(self, store: Store) -> None:
        """`put_signal` makes a run that waits for it `ready`."""
        store.release(begin(store, "r"), Release("waiting", waiting_for=(Wait("w#1", "go"),), signals=0))
        store.put_signal("r", "go", b"1")
        ((_, row),) = store.claim_due(["orders"], 5)
        assert ("r", 1) == (row.info.run_id, row.signals)

    @pytest.mark.parametrize("status", ["waiting", "interrupted", "ready"])
    def test_a_run_to_be_cancelled_is_due(self, store: Store, status: str) -> None:
        """With an open cancel and no live owner."""
        wait = (Wait("w#1", "go"),) if status == "waiting" else ()
        work(store, begin(store, "r"), "a", release=Release(status, waiting_for=wait))
        assert "requested" == store.request_cancel("r", "stop", sequence=None)
        ((token, row),) = store.claim_due(["orders"], 5)
        assert "stop" == row.cancel
        assert ("written", "stop") == work(store, token, "b", release=Release("cancelled", "stop"))
        assert [] == store.claim_due(["orders"], 5)

    @pytest.mark.parametrize("status", ["interrupted", "failed", "cancelled", "finished", "blocked"])
    def test_a_run_that_no_worker_is_meant_to_go_on_with_is_not_due(self, store: Store, status: str) -> None:
        """These are the due ones; a run that a verb gave up, or that has ended, is none of them."""
        work(store, begin(store, "r"), "a", release=Release(status))
        assert [] == store.claim_due(["orders"], 5)

    def test_a_run_with_an_owner_is_not_due(self, store: Store) -> None:
        """`running` with an ended lease, and no other running ones."""
        begin(store, "r")
        store.request_cancel("r", "stop")
        assert [] == store.claim_due(["orders"], 5)

    def test_a_run_interrupted_under_a_worker_is_due(self, store: Store) -> None:
        """`interrupted` while a worker owned them."""
        begin(store, "r", status="ready")
        ((token, _),) = store.claim_due(["orders"], 5)
        work(store, token, "a", release=Release("interrupted", "drained"))
        ((token, _),) = store.claim_due(["orders"], 5)
        assert "written" == work(store, token, "b", release=Release("interrupted")).outcome
        claimed = take(store, "r")
        assert claimed.token is not None
        store.release(claimed.token, Release("interrupted"))
        assert [] == store.claim_due(["orders"], 5)

    def test_a_release_may_count_a_crash(self, store: Store) -> None:
        """`crash_count`: how often in a row the run has crashed; None: it did not now. A checkpoint ends the row."""
        begin(store, "r", status="ready")
        for times in (1, 2):
            ((token, row),) = store.claim_due(["orders"], 5)
            assert times - 1 == row.info.crash_count
            store.release(token, Release("ready", "it crashed", crash_count=times))
            assert times == store.get_run("r").info.crash_count
        ((token, _),) = store.claim_due(["orders"], 5)
        store.release(token, Release("ready"))
        assert 2 == store.get_run("r").info.crash_count
        ((token, _),) = store.claim_due(["orders"], 5)
        work(store, token, "a", release=Release("ready"))
        ((token, row),) = store.claim_due(["orders"], 5)
        assert 0 == row.info.crash_count
        work(store, token, release=Release("blocked", "it crashed", crash_count=1))
        assert ("blocked", 1) == (store.get_run("r").info.status, store.get_run("r").info.crash_count)

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_dead_run_is_due(self, store: Store, other: Store, clock: FakeClock) -> None:
        """`running` with an ended lease; that adds 1 to the crash count."""
        stale = begin(store, "r", lease=30.0)
        clock.advance(29)
        assert [] == other.claim_due(["orders"], 5)
        clock.advance(2)
        ((token, row),) = other.claim_due(["orders"], 5)
        assert 1 == row.info.crash_count
        assert "lost" == work(store, stale, "late").outcome
        assert "written" == work(other, token, "a").outcome

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_due_run_that_dies_too_often_is_blocked(self, store: Store, other: Store, clock: FakeClock) -> None:
        """Each is claimed as by `claim`: at `max_crashes` the run becomes `blocked` instead; other runs go on."""
        for name in ("r", "sound"):
            begin(store, name, status="ready")
            clock.advance(1)
        stores: Iterator[Store] = (store if n % 2 else other for n in count())

        def look() -> dict[str, Token]:
            due = next(stores).claim_due(["orders"], 5, max_crashes=3)
            return {row.info.run_id: token for token, row in due}

        found = look()
        store.release(found.pop("sound"), Release("finished"))
        for n in range(1, 3):
            clock.advance(60)
            begin(store, f"sound {n}", status="ready")
            found = look()
            assert {"r", f"sound {n}"} == set(found)
            store.release(found[f"sound {n}"], Release("finished"))
            assert n == store.get_run("r").info.crash_count
        clock.advance(60)
        begin(store, "sound 3", status="ready")
        assert {"sound 3"} == set(look())
        info = store.get_run("r").info
        assert ("blocked", 3) == (info.status, info.crash_count)
        assert "" != info.reason
        assert {} == look()
