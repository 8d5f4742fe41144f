"""Leases: when a run may be taken over, how often owners may die, and the effects of a wrong clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from milepost.store import Release, Store
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, claim_of, failure, take, whole, work, write


class LeaseContract(StoreUnderTest):
    """The lease may be wrong, and nothing breaks."""

    @requires(lease_has_end=False)
    def test_a_lease_without_end_lasts_until_it_is_let_go(self, store: Store, clock: FakeClock) -> None:
        """`abandon` and `takeover` free a run, time does not."""
        token = begin(store, "r", lease=30.0)
        clock.advance(days=365)
        assert ("ours", "running") == (store.get_run("r").lease, store.get_run("r").info.status)
        assert "locked" == take(store, "r").outcome
        store.abandon(token)
        assert "claimed" == take(store, "r").outcome

    @requires(lease_has_end=True)
    def test_a_lease_lasts_as_long_as_was_asked(self, store: Store, clock: FakeClock) -> None:
        """Seconds for which nobody may take the run over, by the store's clock."""
        begin(store, "r", lease=45.0)
        assert clock.now() + timedelta(seconds=45) == store.get_run("r").info.lease_until
        store.release(begin(store, "s"), Release("interrupted"))
        claimed = take(store, "s", lease=90.0)
        assert clock.now() + timedelta(seconds=90) == claimed.row.info.lease_until

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_lease_that_is_over_frees_the_run(self, store: Store, other: Store, clock: FakeClock) -> None:
        """ended: its owner stopped without a release (its time is over); a claim over it adds 1 to the count."""
        token = begin(store, "r", lease=30.0)
        clock.advance(29)
        assert ("live", "running") == (other.get_run("r").lease, other.get_run("r").info.status)
        assert "locked" == take(other, "r").outcome
        clock.advance(2)
        assert ("ended", "dead") == (other.get_run("r").lease, other.get_run("r").info.status)
        claimed = take(other, "r")
        assert ("claimed", 1) == (claimed.outcome, claimed.row.info.crash_count)
        before = whole(other, "r")
        assert "lost" == work(store, token, "late").outcome
        assert "lost" == store.renew([token])[0].outcome
        assert before == whole(other, "r")

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_claim_that_does_not_tell_of_the_crash_has_moved(
        self, store: Store, other: Store, clock: FakeClock
    ) -> None:
        """`crashed` says whether that record tells of a dead owner; if the store sees that otherwise: `moved`."""
        begin(store, "r")
        stale = claim_of(other.latest("r"))
        clock.advance(60)
        before = whole(other, "r")
        assert "moved" == other.claim(stale).outcome
        assert before == whole(other, "r")

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_renewing_extends_a_lease_by_its_length(self, store: Store, other: Store, clock: FakeClock) -> None:
        """Extend the leases of `tokens` by their length from now, in one write; an outcome for each, in order."""
        short, long, gone = begin(store, "short", lease=10.0), begin(store, "long", lease=100.0), begin(store, "gone")
        take(store, "gone", takeover=True)
        clock.advance(8)
        assert ["kept", "lost", "kept"] == [renewal.outcome for renewal in store.renew([short, gone, long])]
        assert [clock.now() + timedelta(seconds=length) for length in (10, 100)] == [
            other.get_run(name).info.lease_until for name in ("short", "long")
        ]
        clock.advance(8)
        assert ["live", "live"] == [other.get_run(name).lease for name in ("short", "long")]
        clock.advance(8)
        assert ["ended", "live"] == [other.get_run(name).lease for name in ("short", "long")]

    def test_renewing_nothing_gives_nothing(self, store: Store) -> None:
        """An outcome for each, in order."""
        assert [] == store.renew([])
        tokens = [begin(store, f"r{n}") for n in range(12)]
        store.release(tokens[5], Release("interrupted"))
        expected = ["lost" if n == 5 else "kept" for n in range(12)]
        assert expected == [renewal.outcome for renewal in store.renew(tokens)]

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_claim_has_the_length_that_renewals_keep(self, store: Store, other: Store, clock: FakeClock) -> None:
        """Extend the leases of `tokens` by their length from now."""
        store.release(begin(store, "r", lease=10.0), Release("interrupted"))
        claimed = take(store, "r", lease=60.0)
        assert claimed.token is not None
        clock.advance(50)
        store.renew([claimed.token])
        clock.advance(50)
        assert "live" == other.get_run("r").lease

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_dead_owners_are_counted_until_the_run_is_blocked(
        self, store: Store, other: Store, clock: FakeClock
    ) -> None:
        """If that reaches `max_crashes` the run becomes `blocked` instead, with the reason."""
        token = begin(store, "r")
        begin(store, "sound")
        for count in (1, 2):
            clock.advance(60)
            claimed = take(other if count % 2 else store, "r", max_crashes=3)
            assert ("claimed", count) == (claimed.outcome, claimed.row.info.crash_count)
        clock.advance(60)
        blocked = take(other, "r", max_crashes=3)
        assert ("blocked", None) == blocked[:2]
        row = other.get_run("r")
        assert row == blocked.row
        assert ("blocked", 3, "free") == (row.info.status, row.info.crash_count, row.lease)
        assert "" != row.info.reason
        assert "lost" == work(store, token, "late").outcome
        assert ["r"] == [info.run_id for info in other.list_runs(status="blocked")]
        assert "dead" == other.get_run("sound").info.status
        assert "claimed" == take(other, "sound").outcome

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_blocked_run_goes_on_when_it_is_reopened(self, store: Store, other: Store, clock: FakeClock) -> None:
        """Go on with a run that is cancelled or blocked: an open cancel and the crash count are cleared."""
        begin(store, "r")
        clock.advance(60)
        assert "blocked" == take(other, "r", max_crashes=1).outcome
        claimed = take(other, "r", reopen=True, max_crashes=1)
        assert claimed.token is not None
        assert ("claimed", 0, "running") == (claimed.outcome, claimed.row.info.crash_count, claimed.row.info.status)
        assert "written" == work(other, claimed.token, "a").outcome

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_without_a_limit_a_run_is_never_blocked(self, store: Store, other: Store, clock: FakeClock) -> None:
        """If that reaches `max_crashes` (None: never) the run becomes `blocked` instead."""
        begin(store, "r")
        for count in range(1, 9):
            clock.advance(60)
            claimed = take(other if count % 2 else store, "r", max_crashes=None)
            assert ("claimed", count) == (claimed.outcome, claimed.row.info.crash_count)

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_checkpoint_lets_the_count_begin_again(self, store: Store, other: Store, clock: FakeClock) -> None:
        """The crash count counts from 0 again once a checkpoint was recorded since."""
        begin(store, "r")
        clock.advance(60)
        claimed = take(other, "r", max_crashes=2)
        assert claimed.token is not None
        assert "written" == work(other, claimed.token, "a").outcome
        clock.advance(60)
        claimed = take(store, "r", max_crashes=2)
        assert ("claimed", 1) == (claimed.outcome, claimed.row.info.crash_count)

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_failed_attempts_are_no_progress(self, store: Store, other: Store, clock: FakeClock) -> None:
        """The crash count counts from 0 again once a checkpoint was recorded since, and by nothing else."""
        begin(store, "r")
        clock.advance(60)
        claimed = take(other, "r", max_crashes=2)
        assert claimed.token is not None
        assert "written" == write(other, claimed.token, failure("r", 2)).outcome
        clock.advance(60)
        assert "blocked" == take(store, "r", max_crashes=2).outcome

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_release_counts_as_no_crash(self, store: Store, clock: FakeClock) -> None:
        """A claim over an ended lease adds 1: a run that was given up is free."""
        store.release(begin(store, "r"), Release("interrupted"))
        for _ in range(6):
            clock.advance(60)
            claimed = take(store, "r", max_crashes=1)
            assert claimed.token is not None
            assert 0 == claimed.row.info.crash_count
            store.release(claimed.token, Release("interrupted"))

    @requires(is_shared_between_processes=True, lease_has_end=True)
    @pytest.mark.parametrize("back", [{"hours": 1}, {"days": 3650}], ids=["an hour", "ten years"])
    def test_a_lease_further_ahead_than_its_length_has_ended(
        self, store: Store, other: Store, clock: FakeClock, back: dict[str, int]
    ) -> None:
        """ended: its owner stopped without a release (or the clock went back)."""
        token = begin(store, "r", lease=30.0)
        clock.set(clock.now() - timedelta(**back))
        assert "ended" == other.get_run("r").lease
        assert ("kept", None) == store.renew([token])[0]
        assert "live" == other.get_run("r").lease
        assert "locked" == take(other, "r").outcome
        assert "written" == work(store, token, "a").outcome

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_clock_that_goes_back_a_little_frees_nothing(self, store: Store, other: Store, clock: FakeClock) -> None:
        """A lease that lies at most its length ahead is live."""
        begin(store, "r", lease=30.0)
        clock.advance(10)
        clock.set(clock.now() - timedelta(seconds=5))
        assert "live" == other.get_run("r").lease
        assert "locked" == take(other, "r").outcome
