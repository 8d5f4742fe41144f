"""The owners of a run: the fence, claims and leases."""

from __future__ import annotations

from datetime import timedelta

import pytest

from milepost.errors import RunNotFoundError
from milepost.model.ids import this_process
from milepost.model.record import FINISH, OWNER
from milepost.store import Append, Release, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, claim_of, failure, finish, owner, take, whole, work, write

# -- The fence: appends count only with a current token, decided inside the write; every other verdict changes nothing


class FenceContract(StoreUnderTest):
    """Every write of a run takes effect only if its token is current."""

    def test_an_append_of_the_owner_is_written(self, store: Store) -> None:
        """Records of one run are written if the token is current."""
        token = begin(store, "r")
        assert ("written", None) == write(store, token, checkpoint("r", 1))
        assert ("written", None) == write(store, token, checkpoint("r", 2))

    def test_a_token_is_stale_once_another_owner_has_claimed(self, store: Store) -> None:
        """lost: the token is not current."""
        token = begin(store, "r")
        late = Append(token, (checkpoint("r", 1, "late"),))  # built before the claim, sent after it
        newer = take(store, "r", takeover=True).token
        assert newer is not None
        before = whole(store, "r")
        assert ["lost"] == [verdict.outcome for verdict in store.append([late])]
        assert "lost" == write(store, token, checkpoint("r", 2, "late")).outcome
        assert "lost" == write(store, token, checkpoint("r", 2, "late"), release=Release("finished")).outcome
        assert "lost" == write(store, token, tags={"late": "yes"}).outcome
        assert "lost" == store.release(token, Release("finished")).outcome
        assert "lost" == store.renew([token])[0].outcome
        assert before == whole(store, "r")
        assert "written" == write(store, newer, checkpoint("r", 2)).outcome

    @pytest.mark.parametrize(
        "forge",
        [
            lambda token: token._replace(nonce="0" * 16),
            lambda token: token._replace(nonce=""),
            lambda token: token._replace(nonce=token.nonce.upper() + "x"),
            lambda token: token._replace(epoch=token.epoch + 1),
            lambda token: token._replace(epoch=token.epoch - 1),
            lambda token: token._replace(process="0" * 16),
            lambda token: token._replace(process=""),
            lambda token: token._replace(run_id="nobody"),
        ],
        ids=["nonce", "no nonce", "longer nonce", "later epoch", "earlier epoch", "process", "no process", "run"],
    )
    def test_only_the_whole_token_counts(self, store: Store, forge: object) -> None:
        """lost: the token is not current, or not this process's."""
        assert callable(forge)
        token = begin(store, "r")
        work(store, token, "a")
        forged: Token = forge(token)
        before = whole(store, "r")
        assert "lost" == write(store, forged, checkpoint("r", 2, "forged")).outcome
        assert "lost" == store.release(forged, Release("finished")).outcome
        assert "lost" == store.renew([forged])[0].outcome
        assert before == whole(store, "r")
        assert [] == store.read("nobody")
        assert "written" == write(store, token, checkpoint("r", 2)).outcome

    def test_a_token_of_one_run_is_none_of_another(self, store: Store) -> None:
        """What proves ownership of a run."""
        mine, yours = begin(store, "mine"), begin(store, "yours")
        before = whole(store, "yours")
        forged = mine._replace(run_id="yours")
        assert "lost" == write(store, forged, checkpoint("yours", 1)).outcome
        assert before == whole(store, "yours")
        assert "written" == write(store, yours, checkpoint("yours", 1)).outcome

    def test_a_number_in_use_is_taken(self, store: Store) -> None:
        """taken: a number is in use. Only `written` has changed anything."""
        token = begin(store, "r")
        work(store, token, "a", "b")
        before = whole(store, "r")
        for sequence in (0, 1, 2):
            late = checkpoint("r", sequence, "again")
            assert "taken" == write(store, token, late, release=Release("finished"), tags={"x": "y"}).outcome
        both = (checkpoint("r", 2, "again"), checkpoint("r", 3, "new"))
        assert "taken" == write(store, token, *both).outcome
        assert before == whole(store, "r")

    def test_a_number_after_a_hole_is_a_gap(self, store: Store) -> None:
        """gap: the number before the first is not there. Only `written` has changed anything."""
        token = begin(store, "r")
        work(store, token, "a")
        before = whole(store, "r")
        for sequence in (3, 4, 1000):
            late = checkpoint("r", sequence, "far")
            assert "gap" == write(store, token, late, release=Release("finished"), tags={"x": "y"}).outcome
        assert before == whole(store, "r")
        assert "written" == write(store, token, checkpoint("r", 2)).outcome

    def test_numbers_are_dense_over_owners(self, store: Store) -> None:
        """The owner numbers its records, last + 1, dense; taking over is itself a record at the next number."""
        token = begin(store, "r")
        for _ in range(5):
            work(store, token, "a", "b")
            store.abandon(token)
            claimed = take(store, "r")
            assert claimed.token is not None
            token = claimed.token
        assert list(range(16)) == [record.sequence for record in store.read("r")]

    def test_one_appends_fate_does_not_touch_anothers(self, store: Store) -> None:
        """One append's fate does not touch another's; a verdict for each, in order."""
        tokens = {name: begin(store, name) for name in ("good", "lost", "taken", "gap", "refused", "last")}
        take(store, "lost", takeover=True)
        store.request_cancel("refused", "stop")
        before = {name: whole(store, name) for name in ("lost", "taken", "gap", "refused")}
        batch = [
            Append(tokens["good"], (checkpoint("good", 1), checkpoint("good", 2))),
            Append(tokens["lost"], (checkpoint("lost", 2),)),
            Append(tokens["taken"], (checkpoint("taken", 0),)),
            Append(tokens["gap"], (checkpoint("gap", 2),)),
            Append(tokens["refused"], (finish("refused", 1),), Release("finished")),
            Append(tokens["last"], (finish("last", 1),), Release("finished")),
        ]
        verdicts = store.append(batch)
        assert ["written", "lost", "taken", "gap", "refused", "written"] == [verdict.outcome for verdict in verdicts]
        assert before == {name: whole(store, name) for name in before}
        assert [0, 1, 2] == [record.sequence for record in store.read("good")]
        assert "finished" == store.get_run("last").info.status

    def test_all_records_of_an_append_are_written_or_none(self, store: Store) -> None:
        """Records of one run that are written together, all or none, if the token is current."""
        token = begin(store, "r")
        take(store, "r", takeover=True)
        before = whole(store, "r")
        assert "lost" == write(store, token, *(checkpoint("r", n) for n in range(2, 12))).outcome
        assert before == whole(store, "r")

    def test_what_is_told_of_a_batch_is_what_is_there(self, store: Store) -> None:
        """A batch that fails is not written, whatever it fails with, and the store goes on."""
        tokens = [begin(store, name) for name in ("a", "b", "c")]
        records = [checkpoint(token.run_id, 1) for token in tokens]
        records[1] = records[1]._replace(visit=2**80)  # no backend has to accept such a number
        outcomes = outcomes_of(store, [Append(token, (record,)) for token, record in zip(tokens, records, strict=True)])
        assert [outcome == "written" for outcome in outcomes] == [
            store.get_run(token.run_id).info.sequence == 1 for token in tokens
        ]
        assert "written" == work(store, tokens[2], "after").outcome

    def test_a_finished_release_is_refused_when_it_meets_a_cancel(self, store: Store) -> None:
        """refused: a `finished` release met an open cancel. Only `written` has changed anything."""
        token = begin(store, "r")
        store.request_cancel("r", "too late")
        before = whole(store, "r")
        assert ("refused", "too late") == write(store, token, finish("r", 1), release=Release("finished"))
        assert ("refused", "too late") == store.release(token, Release("finished"))
        assert before == whole(store, "r")
        ending = write(store, token, finish("r", 1, status="cancelled"), release=Release("cancelled", "too late"))
        assert "written" == ending.outcome
        assert "cancelled" == store.get_run("r").info.status

    def test_a_waiting_release_is_refused_when_a_signal_has_come(self, store: Store) -> None:
        """refused: a `waiting` release met a new signal. Only `written` has changed anything."""
        token = begin(store, "r")
        store.put_signal("r", "go", None)
        before = whole(store, "r")
        assert "refused" == write(store, token, checkpoint("r", 1), release=Release("waiting", signals=0)).outcome
        assert before == whole(store, "r")
        assert "written" == write(store, token, checkpoint("r", 1), release=Release("waiting", signals=1)).outcome
        assert "waiting" == store.get_run("r").info.status

    def test_a_lease_that_is_over_does_not_lose_the_token(self, store: Store, clock: FakeClock) -> None:
        """Leases decide when somebody may try to take a run over; the token decides whose writes count."""
        token = begin(store, "r", lease=30.0)
        clock.advance(days=1)
        assert "written" == work(store, token, "a").outcome
        assert "kept" == store.renew([token])[0].outcome

    @requires(is_shared_between_processes=True)
    def test_the_token_counts_in_every_store_object_of_its_process(self, store: Store, other: Store) -> None:
        """Valid in the process that made it and in no other."""
        token = begin(store, "r")
        assert "written" == work(other, token, "a").outcome
        assert "written" == work(store, token, "b").outcome


def outcomes_of(store: Store, batch: list[Append]) -> list[str]:
    """Return the outcome of each append; "failed" for all if the batch fails."""
    try:
        return [verdict.outcome for verdict in store.append(batch)]
    except Exception:
        return ["failed"] * len(batch)


# -- Claims: the conditions under which a run can be owned, the writes of a claim, and the refusal of late claims


class ClaimContract(StoreUnderTest):
    """Change the owner and insert the owner record, in one write."""

    @pytest.mark.parametrize("status", ["interrupted", "waiting", "ready", "failed"])
    def test_a_free_run_is_claimed(self, store: Store, status: str) -> None:
        """A claim succeeds if the run is free."""
        work(store, begin(store, "r"), "a", release=Release(status, "why", missed=("x#1",)))
        request = claim_of(store.latest("r"))
        claimed = store.claim(request)
        assert "claimed" == claimed.outcome
        assert ("r", 2, request.nonce, this_process().key) == claimed.token
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
        request = claim_of(store.latest("r"))
        with pytest.raises(RunNotFoundError):
            store.claim(request._replace(run_id="nobody"))
        assert [] == store.read("nobody")

    def test_a_finished_run_is_amended_in_one_write_and_has_no_owner(self, store: Store) -> None:
        """The end comes after the owner record in the same write, and the run has finished again."""
        release = Release("finished", degraded=True, missed=("x#1",))
        work(store, begin(store, "r"), "a", release=release)
        latest = store.latest("r")
        amendment = owner("r", 2, 2, state=b'{"n":9}')
        request = claim_of(latest, record=amendment, finish=finish("r", 3))
        claimed = store.claim(request)
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
        assert "moved" == store.claim(request).outcome
        with pytest.raises(ValueError, match="number 5"):
            store.claim(request._replace(finish=finish("r", 5)))

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
        request = claim_of(store.latest("r"))
        assert "moved" == store.claim(request._replace(epoch=request.epoch + shift)).outcome
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


# -- Leases: when a run may be taken over, how often owners may die, and the effects of a wrong clock


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
