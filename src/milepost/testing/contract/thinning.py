"""Pruned visits: what stays when each node keeps its newest visits, and what such a run can still do."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.errors import CheckpointNotFoundError
from milepost.model.info import Pruned
from milepost.model.record import FAILURE, REPLY, ROUTE, format_time, make_record
from milepost.store import Release, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest
from milepost.testing.journals import begin, checkpoint, claim_of, failure, finish, take, work, write

DAY = 86400.0


def end(store: Store, token: Token, status: str = "finished") -> None:
    """Record the end of a run."""
    sequence = store.latest(token.run_id).newest + 1
    record = finish(token.run_id, sequence, status=status, at=store.clock.time())
    assert "written" == write(store, token, record, release=Release(status)).outcome


def loop(store: Store, run_id: str, passes: int, *, status: str = "finished") -> None:
    """Make a run that has gone `passes` times through the nodes a and b and then ended."""
    token = begin(store, run_id)
    work(store, token, *("ab" * passes))
    end(store, token, status)


def owned(store: Store, run_id: str, **changes: Any) -> Token:
    """Claim a run and return the token."""
    token = take(store, run_id, **changes).token
    assert token is not None
    return token


def visits(store: Store, run_id: str) -> list[tuple[str, int]]:
    """Return node and visit of each entry in the history."""
    return [(info.node_id, info.visit) for info in store.history(run_id)]


def ids(store: Store) -> set[str]:
    """Return the ids of all runs."""
    return {info.run_id for info in store.list_runs(limit=10_000)}


class ThinningContract(StoreUnderTest):
    """What is kept stays usable."""

    def test_each_node_keeps_its_newest_visits(self, store: Store, clock: FakeClock) -> None:
        """Each node keeps that many visits, the newest. The start, the end and the time of the last activity stay."""
        loop(store, "r", 10)
        before, data = store.get_run("r"), {n: store.load("r", "a", n) for n in (8, 9, 10)}
        clock.advance(100)
        assert Pruned((), ("r",), 14) == store.prune(keep_last=3)
        assert [(node_id, n) for n in (8, 9, 10) for node_id in "ab"] == visits(store, "r")
        assert [0, *range(15, 22)] == [record.sequence for record in store.read("r")]
        assert data == {n: store.load("r", "a", n) for n in (8, 9, 10)}
        assert data[10] == store.load("r", "a")
        with pytest.raises(CheckpointNotFoundError):
            store.load("r", "a", 7)
        after = store.get_run("r")
        assert (before.info, before.live) == (after.info, after.live)
        assert (True, ()) == (store.verify("r").ok, store.verify("r").problems)
        assert Pruned() == store.prune(keep_last=3)
        assert 4 == store.prune(keep_last=1).records
        assert store.verify("r").ok

    def test_a_thinned_run_goes_on_with_numbers_that_were_never_used(self, store: Store) -> None:
        """The newest record of a node stays, which tells how visits go on counting; so does that of the run."""
        loop(store, "r", 5)
        store.prune(keep_last=1)
        token = owned(store, "r")
        assert "gap" == write(store, token, checkpoint("r", 14, "a")).outcome
        assert "written" == write(store, token, checkpoint("r", 13, "c"), release=Release("interrupted")).outcome
        store.save("r", "a", b"by hand")
        assert [("a", 5), ("b", 5), ("c", 1), ("a", 6)] == visits(store, "r")
        assert [10, 13, 14] == [info.sequence for info in store.list("r")]
        assert store.verify("r").ok

    def test_superseded_visits_go_first(self, store: Store) -> None:
        """Superseded ones only where there are too few others."""
        token = begin(store, "r")
        work(store, token, *"aaaaa", release=Release("interrupted"))
        token = owned(store, "r", live=(("", 0, 2), ("", 6, None)))
        work(store, token, *"aa")
        end(store, token)
        assert 1 == store.prune(keep_last=6).records
        assert [("a", n) for n in (1, 2, 4, 5, 6, 7)] == visits(store, "r")
        assert 2 == store.prune(keep_last=4).records
        assert [("a", n) for n in (1, 2, 6, 7)] == visits(store, "r")
        assert 2 == store.prune(keep_last=2).records
        assert [("a", 6), ("a", 7)] == visits(store, "r")
        assert store.verify("r").ok

    def test_the_newest_record_of_a_node_stays_even_if_it_is_superseded(self, store: Store) -> None:
        """As does the newest record of a node, which tells how visits go on counting."""
        token = begin(store, "r")
        work(store, token, *"aaaaa", release=Release("interrupted"))
        token = owned(store, "r", live=(("", 0, 2), ("", 6, None)))
        work(store, token, "b")
        end(store, token)
        assert 3 == store.prune(keep_last=1).records
        assert [("a", 2, False), ("a", 5, True), ("b", 1, False)] == [
            (info.node_id, info.visit, info.superseded) for info in store.history("r")
        ]
        store.save("r", "a", b"by hand")
        assert ("a", 6) == visits(store, "r")[-1]

    def test_the_records_of_a_visit_go_with_it(self, store: Store, clock: FakeClock) -> None:
        """The records of a visit go with it. Changes of owner and replies stay."""
        token, at = begin(store, "r"), format_time(clock.time())
        for visit in range(1, 5):
            first = 4 * visit - 3
            route = make_record("r", first + 2, at, ROUTE, "a", visit, fields={"next_node": "a"})
            reply = make_record("r", first + 3, at, REPLY, "a", visit, fields={"signal": visit})
            write(store, token, failure("r", first, "a", visit=visit), checkpoint("r", first + 1, "a", visit=visit))
            write(store, token, route, reply)
        write(store, token, failure("r", 17, "a", visit=5), release=Release("interrupted"))
        take(store, "r")
        token = owned(store, "r", takeover=True)
        end(store, token)
        assert 6 == store.prune(keep_last=2).records
        assert [1, 2, 3, 4] == [record.visit for record in store.read("r", kinds=(REPLY,))]
        assert [3, 4, 5] == [record.visit for record in store.read("r", kinds=(FAILURE,))]
        assert [3, 4] == [record.visit for record in store.read("r", kinds=(ROUTE,))]
        assert [18, 19, 20] == [record.sequence for record in store.read("r", after=17)]
        assert store.verify("r").ok

    def test_signals_stay_with_a_thinned_run(self, store: Store) -> None:
        """What is taken out are records of visits."""
        token = begin(store, "r")
        work(store, token, *"aaaa")
        store.put_signal("r", "go", b"1", signal_id="once")
        write(store, token, release=Release("interrupted"))
        before = store.signals("r")
        assert 3 == store.prune(keep_last=1, statuses="interrupted").records
        assert before == store.signals("r")
        assert "duplicate" == store.put_signal("r", "go", b"1", signal_id="once")

    def test_a_claim_that_was_ready_before_the_thinning_fails(self, store: Store) -> None:
        """The row takes a new epoch, so that a verb that has read what is gone begins anew."""
        loop(store, "r", 5)
        wish = claim_of(store.latest("r"))
        store.prune(keep_last=1)
        assert "moved" == store.claim(wish).outcome
        assert "claimed" == take(store, "r").outcome

    def test_an_old_run_is_deleted_and_a_young_one_thinned(self, store: Store, clock: FakeClock) -> None:
        """Of every other run each node keeps that many visits."""
        loop(store, "old", 5)
        loop(store, "old and failed", 5, status="failed")
        clock.advance(days=2)
        loop(store, "young", 5)
        assert Pruned(("old",), ("young",), 8) == store.prune(older_than=DAY, keep_last=1)
        assert {"young", "old and failed"} == ids(store)
        assert (2, 10) == (len(store.history("young")), len(store.history("old and failed")))
