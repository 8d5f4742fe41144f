"""Cancels: done at once if nobody owns the run and nothing is to be rolled back, else a flag that every verdict has."""

from __future__ import annotations

import pytest

from milepost.model.info import Wait
from milepost.model.record import FINISH
from milepost.store import Append, Release, Store
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, take, whole, work, write


class CancelContract(StoreUnderTest):
    """Ask for the end of a run."""

    @pytest.mark.parametrize("status", ["interrupted", "waiting", "ready", "failed", "blocked"])
    def test_a_run_without_an_owner_is_cancelled_at_once(self, store: Store, status: str) -> None:
        """Without a live owner and with no newer record the run is cancelled in the same write."""
        waits = (Wait("w#1", "go"),) if status == "waiting" else ()
        token = begin(store, "r")
        work(store, token, "a", release=Release(status, "why", waiting_for=waits))
        assert "cancelled" == store.request_cancel("r", "not needed", sequence=1)
        row, newest = store.get_run("r"), store.read("r")[-1]
        assert ("cancelled", "not needed", "free", 2) == (row.info.status, row.info.reason, row.lease, row.epoch)
        assert (FINISH, 2, "cancelled") == (newest.kind, newest.sequence, newest.fields()["status"])
        assert 2 == row.info.sequence
        store.seals.check("r", newest)
        assert [] == store.claim_due(["orders"], 5)
        assert store.verify("r").ok

    def test_a_run_that_never_began_is_cancelled_at_once(self, store: Store) -> None:
        """Without a live owner and with no newer record the run is cancelled in the same write."""
        begin(store, "r", status="ready")
        assert "cancelled" == store.request_cancel("r", sequence=0)
        assert "cancelled" == store.get_run("r").info.status
        assert [] == store.claim_due(["orders"], 5)

    def test_a_newer_record_keeps_the_cancel_for_whoever_comes(self, store: Store) -> None:
        """`sequence` is up to where the caller saw that no rollback is open; else the flag is set."""
        work(store, begin(store, "r"), "a", "b", release=Release("interrupted"))
        records = store.read("r")
        assert "requested" == store.request_cancel("r", "stop", sequence=1)
        row = store.get_run("r")
        assert ("interrupted", "stop", 1) == (row.info.status, row.cancel, row.epoch)
        assert records == store.read("r")

    def test_open_rollbacks_keep_the_cancel_for_whoever_comes(self, store: Store) -> None:
        """`sequence` None: some rollbacks are open."""
        work(store, begin(store, "r"), "a", release=Release("interrupted"))
        assert "requested" == store.request_cancel("r", "stop")
        assert ("interrupted", "stop") == (store.get_run("r").info.status, store.get_run("r").cancel)

    def test_a_live_owner_is_told_by_every_append_and_renewal(self, store: Store) -> None:
        """Else the flag is set, and every append and renewal tells it."""
        token = begin(store, "r")
        assert ("written", None) == write(store, token, checkpoint("r", 1))
        assert [("kept", None)] == store.renew([token])
        assert "requested" == store.request_cancel("r", "stop", sequence=1)
        assert ("running", "stop", "ours") == (
            store.get_run("r").info.status,
            store.get_run("r").cancel,
            store.get_run("r").lease,
        )
        assert ("written", "stop") == write(store, token, checkpoint("r", 2))
        assert ("taken", "stop") == write(store, token, checkpoint("r", 2))
        assert ("gap", "stop") == write(store, token, checkpoint("r", 4))
        assert [("kept", "stop")] == store.renew([token])
        assert ("refused", "stop") == store.release(token, Release("finished"))
        assert "written" == store.release(token, Release("cancelled", "stop")).outcome

    def test_only_the_run_that_is_cancelled_is_told(self, store: Store) -> None:
        """A verdict for each, in order; the reason of an open cancel, told with every verdict."""
        tokens = [begin(store, name) for name in ("a", "b", "c")]
        store.request_cancel("b", "stop")
        verdicts = store.append([Append(token, (checkpoint(token.run_id, 1),)) for token in tokens])
        assert [None, "stop", None] == [verdict.cancel for verdict in verdicts]
        assert [None, "stop", None] == [renewal.cancel for renewal in store.renew(tokens)]

    def test_a_cancel_without_a_reason_is_told_too(self, store: Store) -> None:
        """The reason of a cancel that is open, or None: an empty reason is one."""
        token = begin(store, "r")
        assert "requested" == store.request_cancel("r")
        assert "" == store.get_run("r").cancel
        assert ("written", "") == write(store, token, checkpoint("r", 1))
        assert [("kept", "")] == store.renew([token])
        assert "refused" == store.release(token, Release("finished")).outcome

    @pytest.mark.parametrize("status", ["finished", "cancelled"])
    @pytest.mark.parametrize("sequence", [None, 1])
    def test_a_run_that_has_ended_is_left_as_it_is(self, store: Store, status: str, sequence: int | None) -> None:
        """A run that has ended is left as it is ("ended")."""
        work(store, begin(store, "r"), "a", release=Release(status, "why"))
        before = whole(store, "r")
        assert "ended" == store.request_cancel("r", "stop", sequence=sequence)
        assert before == whole(store, "r")

    def test_an_abandoned_run_is_cancelled_at_once(self, store: Store) -> None:
        """Without a live owner the run is cancelled in the same write, with a new epoch."""
        token = begin(store, "r")
        store.abandon(token)
        assert "cancelled" == store.request_cancel("r", "stop", sequence=0)
        before = whole(store, "r")
        assert "lost" == write(store, token, checkpoint("r", 1)).outcome
        assert "lost" == write(store, token, checkpoint("r", 2)).outcome
        assert before == whole(store, "r")

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_dead_run_is_cancelled_at_once_and_its_owner_fenced_off(
        self, store: Store, other: Store, clock: FakeClock
    ) -> None:
        """Without a live owner the run is cancelled in the same write, with a finish record and a new epoch."""
        token = begin(store, "r")
        assert "requested" == other.request_cancel("r", "first", sequence=0)
        clock.advance(60)
        assert "cancelled" == other.request_cancel("r", "stop", sequence=0)
        before = whole(other, "r")
        assert "lost" == write(store, token, checkpoint("r", 1)).outcome
        assert "lost" == write(store, token, checkpoint("r", 2)).outcome
        assert before == whole(other, "r")

    def test_a_claim_after_the_reading_of_a_cancel_wins(self, store: Store) -> None:
        """With no newer record the run is cancelled: a claim is a newer record, and a live owner."""
        work(store, begin(store, "r"), "a", release=Release("interrupted"))
        claimed = take(store, "r")
        assert claimed.token is not None
        assert "requested" == store.request_cancel("r", "stop", sequence=1)
        assert ("written", "stop") == work(store, claimed.token, "b")
