"""The fence: appends count only with a current token, decided inside the write; every other verdict changes nothing."""

from __future__ import annotations

import pytest

from milepost.store import Append, Release, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, finish, take, whole, work, write


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
        told = outcomes_of(store, [Append(token, (record,)) for token, record in zip(tokens, records, strict=True)])
        assert [outcome == "written" for outcome in told] == [
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
