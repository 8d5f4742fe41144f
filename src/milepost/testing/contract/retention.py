"""What is kept of a run, and what pruning takes."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from milepost.errors import CheckpointNotFoundError, OptionError, RunNotFoundError, StoreClosedError
from milepost.model.checkpoint import Checkpoint
from milepost.model.record import FAILURE, REPLY, ROUTE, format_time, make_record
from milepost.model.upkeep import Pruned, Retention, Stats
from milepost.store import Append, Release, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, claim_of, failure, finish, take, whole, work, write
from milepost.testing.tables import trying

# -- Pruned visits: what stays when each node keeps its newest visits, and what such a run can still do


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
        assert data[9] == store.load("r", "a", 9)
        assert data[10] == store.load("r", "a")
        first, again = json.loads(data[8]), json.loads(store.load("r", "a", 8))
        assert 1 == again.pop("gap")[0]
        assert all(first[name] == again[name] for name in first.keys() - {"seal"})
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
        request = claim_of(store.latest("r"))
        store.prune(keep_last=1)
        assert "moved" == store.claim(request).outcome
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


# -- Pruning and counting: what is pruned and what never is, what a pruned run can still do, retention, and stats


STATUSES = ("ready", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked")


class KeepingContract(StoreUnderTest):
    """Nothing is forgotten unasked, and what is kept stays usable."""

    def test_pruning_by_nothing_or_by_nonsense_is_refused(self, store: Store) -> None:
        """`OptionError` without `older_than` and `keep_last`, and for values that make no sense."""
        loop(store, "r", 3)
        before = whole(store, "r")
        options: list[dict[str, Any]] = [
            {},
            {"older_than": -1},
            {"older_than": "30d"},
            {"older_than": float("nan")},
            {"keep_last": 0},
            {"keep_last": -1},
            {"keep_last": 1.5},
            {"keep_last": True},
            {"older_than": 0, "statuses": ("finshed",)},
            {"older_than": 0, "statuses": "done"},
            {"older_than": 0, "statuses": (None,)},
        ]
        for wrong in options:
            with trying(options=wrong), pytest.raises(OptionError):
                store.prune(**wrong)
            assert before == whole(store, "r")

    # -- by age --------------------------------------------------------------------------------------

    def test_runs_that_ended_long_ago_are_deleted(self, store: Store, clock: FakeClock) -> None:
        """Only runs with one of `statuses`, whose last activity is that long ago."""
        for status in STATUSES:
            loop(store, status, 1, status=status)
        running = begin(store, "running")
        clock.advance(days=30)
        store.renew([running])
        loop(store, "young", 1)
        assert Pruned() == store.prune(older_than=timedelta(days=31))
        pruned = store.prune(older_than=timedelta(days=30))
        assert ({"finished", "cancelled"}, (), 0) == (set(pruned.deleted), pruned.thinned, pruned.records)
        assert {*STATUSES, "running", "young"} - {"finished", "cancelled"} == ids(store)
        assert all(store.verify(run_id).ok for run_id in ids(store))

    @pytest.mark.parametrize("status", STATUSES)
    def test_a_run_of_a_status_that_is_named_is_deleted(self, store: Store, status: str) -> None:
        """Only runs with one of `statuses`."""
        for each in STATUSES:
            loop(store, each, 1, status=each)
        assert (status,) == store.prune(older_than=0, statuses=status).deleted
        assert set(STATUSES) - {status} == ids(store)

    def test_the_last_activity_counts_and_not_the_beginning(self, store: Store, clock: FakeClock) -> None:
        """A run whose last activity is that long ago, however old its first checkpoint is."""
        token = begin(store, "r")
        work(store, token, "a")
        clock.advance(days=100)
        end(store, token)
        clock.advance(days=1)
        assert Pruned() == store.prune(older_than=2 * DAY)
        assert ("r",) == store.prune(older_than=DAY).deleted

    def test_a_run_with_an_owner_is_never_pruned(self, store: Store) -> None:
        """Never one with a live owner."""
        for run_id in ("held", "let go"):
            work(store, token := begin(store, run_id), *"aaaa")
        store.abandon(token)
        every = (*STATUSES, "running", "dead")
        before = whole(store, "held"), whole(store, "let go")
        assert Pruned() == store.prune(older_than=0, keep_last=1, statuses=every)
        assert before == (whole(store, "held"), whole(store, "let go"))
        assert "written" == write(store, token, checkpoint("let go", 5, "b")).outcome

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_a_dead_run_is_pruned_only_by_that_name(self, store: Store, other: Store, clock: FakeClock) -> None:
        """`dead` included."""
        work(store, begin(store, "dead"), *"aaaa")
        clock.advance(50)
        begin(store, "alive")
        assert Pruned() == other.prune(older_than=10, keep_last=1, statuses=("running", "interrupted"))
        assert ("dead",) == other.prune(older_than=10, statuses="dead").deleted
        assert {"alive"} == ids(store)

    def test_nothing_is_left_of_a_deleted_run(self, store: Store, clock: FakeClock) -> None:
        """Deleted with all that belongs to it: its id used again never meets old records."""
        token = begin(store, "r", tags={"a": "b"})
        work(store, token, *"ab")
        store.put_signal("r", "go", b"1", signal_id="once")
        end(store, token)
        assert ("r",) == store.prune(older_than=0).deleted
        with pytest.raises(RunNotFoundError):
            store.get_run("r")
        assert ([], [], []) == (store.read("r"), store.history("r"), store.signals("r"))
        assert "lost" == write(store, token, checkpoint("r", 4, "a")).outcome
        clock.advance(1)
        new = begin(store, "r")
        assert ([0], [], {}) == (
            [record.sequence for record in store.read("r")],
            store.signals("r"),
            store.get_run("r").info.tags,
        )
        assert "kept" == store.put_signal("r", "go", b"2", signal_id="once")
        assert "lost" == write(store, token, checkpoint("r", 1, "a")).outcome
        assert "written" == write(store, new, checkpoint("r", 1, "c")).outcome
        assert [("c", 1)] == visits(store, "r")

    def test_a_dry_run_tells_the_same_and_changes_nothing(self, store: Store, clock: FakeClock) -> None:
        """With `dry_run` nothing is changed."""
        loop(store, "old", 5)
        clock.advance(days=2)
        loop(store, "new", 5)
        before = whole(store, "old"), whole(store, "new")
        outcome = store.prune(older_than=DAY, keep_last=2, dry_run=True)
        assert Pruned(("old",), ("new",), 6) == outcome
        assert before == (whole(store, "old"), whole(store, "new"))
        assert outcome == store.prune(older_than=DAY, keep_last=2)
        assert ({"new"}, 4) == (ids(store), len(store.history("new")))

    def test_more_runs_than_a_page_are_pruned(self, store: Store) -> None:
        """All runs that are meant, however many there are."""
        for n in range(300):
            store.save(f"r{n}", "a", b"1")
        begin(store, "owned")
        assert 300 == len(store.prune(older_than=0, statuses="interrupted").deleted)
        assert {"owned"} == ids(store)

    # -- while others work ---------------------------------------------------------------------------

    def test_a_loop_over_a_listing_may_prune(self, store: Store) -> None:
        """Nothing stays locked or open: a listing is not changed by what is pruned meanwhile."""
        for n in range(8):
            loop(store, f"r{n}", 3)
        for n, info in enumerate(store.list_runs()):
            assert (32 if n == 0 else 0) == store.prune(keep_last=1).records
            assert store.verify(info.run_id).ok
            if n == 5:
                break
        for _ in store.history("r0"):
            store.prune(older_than=0)
            break
        writer = threading.Thread(target=lambda: store.save("r0", "by another thread", b"2"))
        writer.start()
        writer.join(10)
        assert not writer.is_alive()
        assert {"r0"} == ids(store)

    def test_of_two_that_prune_at_once_each_run_has_one(self, store: Store) -> None:
        """Each run goes in a write of its own, all or nothing."""
        for n in range(40):
            loop(store, f"r{n}", 2)
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(store.prune, older_than=0) for _ in range(2)]
            deleted = [run_id for call in calls for run_id in call.result(60).deleted]
        assert sorted(f"r{n}" for n in range(40)) == sorted(deleted)
        assert set() == ids(store)

    def test_runs_go_on_while_others_are_pruned(self, store: Store) -> None:
        """So that others get their turn in between: no error in either, and what is not meant is left alone."""
        long, is_over = begin(store, "long"), threading.Event()

        def execute() -> None:
            try:
                for n in range(30):
                    loop(store, f"short {n}", 3)
                    work(store, long, *"ab")
            finally:
                is_over.set()

        def prune() -> int:
            count = 0
            while not is_over.is_set():
                store.prune(keep_last=1)
                count += len(store.prune(older_than=0).deleted)
            return count + len(store.prune(older_than=0).deleted)

        with ThreadPoolExecutor(2) as pool:
            pruning, executing = pool.submit(prune), pool.submit(execute)
            executing.result(60)
            assert 30 == pruning.result(60)
        assert ({"long"}, 60, True) == (ids(store), len(store.history("long")), store.verify("long").ok)

    # -- retention -----------------------------------------------------------------------------------

    def test_without_retention_nothing_is_tidied(self, store: Store, clock: FakeClock) -> None:
        """Costs nothing without `retention`."""
        loop(store, "r", 5)
        before = whole(store, "r")
        clock.advance(days=1000)
        for retention in (None, Retention()):
            store.retention = retention
            store.tidy("r")
            store.tidy()
        assert before == whole(store, "r")

    def test_the_end_of_a_run_thins_it(self, store: Store) -> None:
        """With a run id, at the end of that run: thin it."""
        store.retention = Retention(keep_last=2)
        for status in ("finished", "failed", "waiting"):
            loop(store, status, 5, status=status)
        loop(store, "another", 5)
        for run_id in ("finished", "failed", "waiting", "no such run"):
            store.tidy(run_id)
        assert [4, 10, 10, 10] == [
            len(store.history(run_id)) for run_id in ("finished", "failed", "waiting", "another")
        ]

    def test_a_live_run_is_thinned_as_its_owner_appends(self, store: Store) -> None:
        """`keep_last` of a live run: by its owner, again after each `keep_last` visits of a node."""
        store.retention = Retention(keep_last=3)
        token = begin(store, "r")
        for lap in range(1, 21):
            text = b'{"lap":%d,"text":"%s"}' % (lap, b"x" * 5000)
            write(store, token, checkpoint("r", 2 * lap - 1, "a", visit=lap, state=text))
            write(store, token, checkpoint("r", 2 * lap, "b", visit=lap))
            for node_id in "ab":
                kept = [info.visit for info in store.history("r") if info.node_id == node_id]
                assert [*range(max(1, lap - 2), lap + 1)] == kept[-3:]
                assert len(kept) <= 5
            assert store.verify("r").ok
        assert [18, 19, 20] == [Checkpoint.decode(store.load("r", "a", visit)).state["lap"] for visit in (18, 19, 20)]
        store.abandon(token)
        again = owned(store, "r")
        assert "written" == write(store, again, checkpoint("r", 42, "a", visit=21)).outcome
        assert [19, 20, 21] == [info.visit for info in store.history("r") if info.node_id == "a"]
        assert store.verify("r").ok

    def test_a_claim_that_was_ready_before_a_live_run_was_thinned_fails(self, store: Store) -> None:
        """In the write of new records, so that a verb that has read what is gone begins anew."""
        store.retention = Retention(keep_last=1)
        token = begin(store, "r")
        write(store, token, checkpoint("r", 1, "a"))
        request = claim_of(store.latest("r"), takeover=True)
        write(store, token, checkpoint("r", 2, "a", visit=2))
        assert [("a", 2)] == visits(store, "r")
        assert "moved" == store.claim(request).outcome
        assert "claimed" == take(store, "r", takeover=True).outcome
        assert "lost" == write(store, token, checkpoint("r", 3, "a", visit=3)).outcome
        assert [("a", 2)] == visits(store, "r")

    def test_runs_that_append_together_are_thinned_each_for_itself(self, store: Store) -> None:
        """One append's fate does not touch another's."""
        store.retention = Retention(keep_last=1)
        tokens = [begin(store, run_id) for run_id in "rst"]
        for lap in range(1, 5):
            if lap == 3:
                owned(store, "t", takeover=True)
            records = [checkpoint(token.run_id, lap, "a", visit=lap) for token in tokens]
            outcome = store.append([Append(token, (record,)) for token, record in zip(tokens, records, strict=True)])
            assert ["written", "written", "lost" if lap > 2 else "written"] == [verdict.outcome for verdict in outcome]
        assert [[("a", 4)], [("a", 4)], [("a", 2)]] == [visits(store, run_id) for run_id in "rst"]
        assert all(store.verify(run_id).ok for run_id in "rst")

    def test_the_end_of_a_run_deletes_old_ones_now_and_then(self, store: Store, clock: FakeClock) -> None:
        """At most once a minute, delete a bounded number of old runs."""
        store.retention = Retention(older_than=timedelta(days=30))
        loop(store, "first", 1)
        clock.advance(30)
        loop(store, "second", 1)
        loop(store, "failed", 1, status="failed")
        clock.advance(30 * DAY - 30)
        loop(store, "new", 1)
        store.tidy("new")
        assert {"second", "failed", "new"} == ids(store)
        clock.advance(30)
        store.tidy("new")
        assert {"second", "failed", "new"} == ids(store)
        clock.advance(30)
        store.tidy("new")
        assert {"failed", "new"} == ids(store)

    def test_a_worker_deletes_and_thins_all_that_has_ended(self, store: Store, clock: FakeClock) -> None:
        """Without a run id, in a worker: delete and thin all."""
        store.retention = Retention(older_than=timedelta(days=30), keep_last=1)
        loop(store, "old", 5)
        loop(store, "old and failed", 5, status="failed")
        clock.advance(days=30)
        loop(store, "young", 5)
        store.tidy()
        assert {"old and failed", "young"} == ids(store)
        assert (10, 2) == (len(store.history("old and failed")), len(store.history("young")))
        clock.advance(3600)
        loop(store, "younger", 5)
        store.tidy()
        assert 2 == len(store.history("younger"))

    def test_tidying_never_raises(self, store: Store, caplog: pytest.LogCaptureFixture) -> None:
        """Never raises: what fails is logged as a warning."""
        store.retention = Retention(older_than=0, keep_last=1)
        loop(store, "r", 2)
        store.close()
        with caplog.at_level(logging.WARNING, "milepost"):
            store.tidy("r")
            store.tidy()
        assert 2 == len(caplog.records)
        assert all("closed" in record.getMessage() for record in caplog.records)

    # -- stats ---------------------------------------------------------------------------------------

    def test_an_empty_store_has_nothing(self, store: Store) -> None:
        """How much the store has."""
        assert Stats({}, 0, 0, None) == store.stats()

    def test_stats_count_runs_and_records(self, store: Store, clock: FakeClock) -> None:
        """Runs by status, records and their bytes, and when the run that was changed least recently was changed."""
        began = clock.now()
        loop(store, "r", 2)
        clock.advance(10)
        loop(store, "s", 1)
        loop(store, "t", 1, status="failed")
        begin(store, "u")
        store.save("v", "a", b"from outside")
        stats = store.stats()
        assert {"failed": 1, "finished": 2, "interrupted": 1, "running": 1} == stats.runs
        assert (6 + 4 + 4 + 1 + 1, began) == (stats.records, stats.oldest)
        assert stats.size > 16 * 60
        store.prune(older_than=0)
        assert (6, began + timedelta(seconds=10)) == (store.stats().records, store.stats().oldest)
        assert store.stats().size < stats.size

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_stats_tell_dead_runs_from_running_ones(self, store: Store, other: Store, clock: FakeClock) -> None:
        """Runs by the status that they are shown with."""
        begin(store, "quick", lease=10.0)
        begin(store, "slow", lease=100.0)
        clock.advance(50)
        assert {"dead": 1, "running": 1} == other.stats().runs
        clock.advance(100)
        assert {"dead": 2} == other.stats().runs

    # -- the end of a store object -------------------------------------------------------------------

    def test_keeping_after_close_is_refused(self, store: Store) -> None:
        """Use after `close()` is `StoreClosedError`."""
        loop(store, "r", 1)
        data = store.export("r")
        store.close()
        for call in (lambda: store.prune(older_than=0), lambda: store.prune(keep_last=1), store.stats):
            with pytest.raises(StoreClosedError):
                call()
        with pytest.raises(StoreClosedError):
            store.import_run(data, run_id="s")
