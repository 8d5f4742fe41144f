"""Claims: the conditions under which a run can be owned, the writes of a claim, and the refusal of late claims."""

from __future__ import annotations

import pytest

from milepost.errors import RunNotFoundError
from milepost.model.process import this_process
from milepost.model.record import FINISH, OWNER
from milepost.store import Release, Store
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, claim_of, finish, owner, take, whole, work


class ClaimContract(StoreUnderTest):
    """Change the owner and insert the owner record, in one write."""

    @pytest.mark.parametrize("status", ["interrupted", "waiting", "ready", "failed"])
    def test_a_free_run_is_claimed(self, store: Store, status: str) -> None:
        """A claim succeeds if the run is free."""
        work(store, begin(store, "r"), "a", release=Release(status, "why", missed=("x#1",)))
        wish = claim_of(store.latest("r"))
        claimed = store.claim(wish)
        assert "claimed" == claimed.outcome
        assert ("r", 2, wish.nonce, this_process().key) == claimed.token
        row = store.get_run("r")
        assert row == claimed.row
        assert ("running", "ours", 2, 2, 0) == (
            row.info.status,
            row.lease,
            row.epoch,
            row.info.sequence,
            row.info.crash_count,
        )
        newest = store.read("r")[-1]
        assert (OWNER, 2) == (newest.kind, newest.fields()["epoch"])
        store.seals.check("r", newest)

    def test_a_run_saved_from_outside_is_claimed(self, store: Store) -> None:
        """A claim succeeds if the run is free."""
        store.save("r", "a", b"1")
        claimed = take(store, "r")
        assert claimed.token is not None
        assert "written" == work(store, claimed.token, "b").outcome

    def test_a_claim_of_an_unknown_run(self, store: Store) -> None:
        """Raises `RunNotFoundError`."""
        begin(store, "r")
        wish = claim_of(store.latest("r"))
        with pytest.raises(RunNotFoundError):
            store.claim(wish._replace(run_id="nobody"))
        assert [] == store.read("nobody")

    def test_a_finished_run_is_amended_in_one_write_and_has_no_owner(self, store: Store) -> None:
        """The end comes after the owner record in the same write, and the run has finished again."""
        release = Release("finished", degraded=True, missed=("x#1",))
        work(store, begin(store, "r"), "a", release=release)
        latest = store.latest("r")
        amendment = owner("r", 2, 2, state=b'{"n":9}')
        wish = claim_of(latest, record=amendment, finish=finish("r", 3))
        claimed = store.claim(wish)
        assert ("claimed", None) == (claimed.outcome, claimed.token)
        row = store.get_run("r")
        assert row == claimed.row
        assert ("finished", "free", 2, 3, True) == (
            row.info.status,
            row.lease,
            row.epoch,
            row.info.sequence,
            row.info.degraded,
        )
        assert [(OWNER, b'{"n":9}'), (FINISH, None)] == [(r.kind, r.state()) for r in store.latest("r").tail]
        assert store.verify("r").ok
        assert "moved" == store.claim(wish).outcome
        with pytest.raises(ValueError, match="number 5"):
            store.claim(wish._replace(finish=finish("r", 5)))

    def test_a_run_with_a_live_owner_is_locked(self, store: Store) -> None:
        """A claim succeeds if the run is free or its lease has ended; else it is locked and changes nothing."""
        token = begin(store, "r")
        before = whole(store, "r")
        claimed = take(store, "r")
        assert ("locked", None, before[0]) == claimed
        assert before == whole(store, "r")
        assert "written" == work(store, token, "a").outcome

    @requires(is_shared_between_processes=True)
    def test_a_run_of_another_store_object_is_locked(self, store: Store, other: Store) -> None:
        """live: another store object's owner does."""
        begin(store, "r")
        before = whole(other, "r")
        assert "live" == before[0].lease
        assert "locked" == take(other, "r").outcome
        assert before == whole(other, "r")

    def test_a_takeover_fences_off_a_live_owner(self, store: Store) -> None:
        """Fence off an owner whose lease is live; that counts as no crash."""
        token = begin(store, "r")
        claimed = take(store, "r", takeover=True)
        assert "claimed" == claimed.outcome
        assert claimed.token is not None
        assert (0, 2) == (claimed.row.info.crash_count, claimed.row.epoch)
        assert "lost" == work(store, token, "a").outcome
        assert "written" == work(store, claimed.token, "a").outcome

    @pytest.mark.parametrize("behind", [1, 2])
    def test_a_claim_from_a_stale_journal_has_moved(self, store: Store, behind: int) -> None:
        """The claimer read the journal up to `sequence`; if it has moved the claim is `moved`."""
        token = begin(store, "r")
        work(store, token, "a")
        stale = claim_of(store.latest("r"))
        work(store, token, *"bc"[:behind], release=Release("interrupted"))
        before = whole(store, "r")
        assert ("moved", None, before[0]) == store.claim(stale)
        assert before == whole(store, "r")

    @pytest.mark.parametrize("shift", [-1, 1])
    def test_a_claim_from_a_stale_row_has_moved(self, store: Store, shift: int) -> None:
        """The claimer read the row with `epoch - 1`; if it has moved the claim is `moved` and changes nothing."""
        work(store, begin(store, "r"), "a", release=Release("interrupted"))
        before = whole(store, "r")
        wish = claim_of(store.latest("r"))
        assert "moved" == store.claim(wish._replace(epoch=wish.epoch + shift)).outcome
        assert before == whole(store, "r")

    def test_a_claim_ahead_of_the_journal_has_moved(self, store: Store) -> None:
        """The claimer read the journal up to `sequence`: no claim leaves a gap."""
        work(store, begin(store, "r"), "a", release=Release("interrupted"))
        before = whole(store, "r")
        latest = store.latest("r")
        assert "moved" == store.claim(claim_of(latest._replace(newest=latest.newest + 1))).outcome
        assert before == whole(store, "r")

    def test_a_claim_that_tells_of_a_crash_that_was_none_has_moved(self, store: Store) -> None:
        """`crashed` says whether that record tells of a dead owner; if the store sees that otherwise: `moved`."""
        work(store, begin(store, "r"), "a", release=Release("interrupted"))
        before = whole(store, "r")
        assert "moved" == take(store, "r", crashed=True).outcome
        assert before == whole(store, "r")

    def test_of_two_claims_from_one_reading_one_wins(self, store: Store) -> None:
        """A reader with a stale view fails by the key."""
        work(store, begin(store, "r"), "a", release=Release("interrupted"))
        latest = store.latest("r")
        assert "claimed" == store.claim(claim_of(latest)).outcome
        before = whole(store, "r")
        assert store.claim(claim_of(latest)).outcome in {"moved", "locked"}
        assert "moved" == store.claim(claim_of(latest, takeover=True)).outcome
        assert before == whole(store, "r")

    def test_a_claim_may_give_new_live_ranges(self, store: Store) -> None:
        """New live ranges, also in `record`; None keeps those there are."""
        work(store, begin(store, "r"), "a", "b", "c", release=Release("interrupted"))
        live = (("", 0, 1), ("", 4, None))
        claimed = take(store, "r", live=live)
        assert claimed.token is not None
        assert live == claimed.row.live == store.get_run("r").live == store.latest("r").row.live
        store.release(claimed.token, Release("interrupted"))
        assert live == take(store, "r").row.live

    def test_an_abandoned_run_is_claimed_through_the_same_store(self, store: Store) -> None:
        """The token is one that this store object holds for a verb that has ended; counted as no crash."""
        token = begin(store, "r")
        store.abandon(token)
        assert "abandoned" == store.get_run("r").lease
        claimed = take(store, "r")
        assert ("claimed", 0) == (claimed.outcome, claimed.row.info.crash_count)
        assert "lost" == work(store, token, "a").outcome

    def test_abandon_never_fails(self, store: Store) -> None:
        """Note that the verb which held `token` has ended without a release. Never fails."""
        token = begin(store, "r")
        released = begin(store, "s")
        store.release(released, Release("finished"))
        for gone in (token, token, released, token._replace(run_id="nobody"), token._replace(process="x")):
            store.abandon(gone)
        assert ("abandoned", "free") == (store.get_run("r").lease, store.get_run("s").lease)

    def test_abandoning_a_stale_token_leaves_the_new_owner_alone(self, store: Store) -> None:
        """ours: a verb that runs in this store object does."""
        token = begin(store, "r")
        claimed = take(store, "r", takeover=True)
        assert claimed.token is not None
        store.abandon(token)
        assert "ours" == store.get_run("r").lease
        assert "locked" == take(store, "r").outcome

    @requires(is_shared_between_processes=True)
    def test_what_one_store_object_abandons_is_live_for_another(self, store: Store, other: Store) -> None:
        """abandoned: a verb of this store object did, and has ended without a release."""
        token = begin(store, "r")
        store.abandon(token)
        assert "live" == other.get_run("r").lease
        assert "locked" == take(other, "r").outcome

    def test_a_cancelled_run_is_reopened(self, store: Store) -> None:
        """Go on with a run that is cancelled or blocked: an open cancel and the crash count are cleared."""
        store.release(begin(store, "r"), Release("interrupted"))
        assert "cancelled" == store.request_cancel("r", "stop", sequence=0)
        claimed = take(store, "r", reopen=True)
        assert claimed.token is not None
        row = store.get_run("r")
        assert ("claimed", "running", None, 0) == (claimed.outcome, row.info.status, row.cancel, row.info.crash_count)
        assert ("written", None) == work(store, claimed.token, "a", release=Release("finished"))

    @pytest.mark.parametrize("status", ["cancelled", "interrupted"])
    def test_reopening_clears_a_cancel_that_is_open(self, store: Store, status: str) -> None:
        """An open cancel and the crash count are cleared."""
        token = begin(store, "r")
        store.request_cancel("r", "stop")
        store.release(token, Release(status, "stop"))
        claimed = take(store, "r", reopen=True)
        assert claimed.token is not None
        assert claimed.row.cancel is None
        assert ("kept", None) == store.renew([claimed.token])[0]
        assert ("written", None) == work(store, claimed.token, "a", release=Release("finished"))

    def test_a_claim_keeps_a_cancel_that_is_open(self, store: Store) -> None:
        """An open cancel is cleared by `reopen` only."""
        token = begin(store, "r")
        store.request_cancel("r", "stop")
        store.release(token, Release("interrupted"))
        claimed = take(store, "r")
        assert claimed.token is not None
        assert "stop" == claimed.row.cancel
        assert ("refused", "stop") == store.release(claimed.token, Release("finished"))

    def test_claims_in_a_row_raise_the_epoch_by_one(self, store: Store, clock: FakeClock) -> None:
        """An epoch, raised at each change of owner."""
        token = begin(store, "r")
        for epoch in range(2, 12):
            clock.advance(1)
            claimed = take(store, "r", takeover=True)
            assert claimed.token is not None
            assert epoch == claimed.token.epoch == claimed.row.epoch
            assert token.nonce != claimed.token.nonce
            token = claimed.token
