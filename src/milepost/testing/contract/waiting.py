"""Runs that wait: which of them are due, and the signals and cancels that reach them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from milepost.errors import InvalidIDError, OptionError, RunNotFoundError, RunNotResumableError, SignalRefusedError
from milepost.model.info import Wait
from milepost.model.record import FINISH, OWNER
from milepost.store import Append, Release, Signal, Store, Token, read_cancel
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, take, whole, work, write

# -- The runs that a worker gets: which are due, in which order, and that each is claimed as `claim` does it


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
        run_ids = [row.info.run_id for limit in (1, 4, 100) for _, row in store.claim_due(["orders"], limit)]
        assert names == run_ids

    def test_flows_take_turns(self, store: Store, clock: FakeClock) -> None:
        """Oldest first, flows in turn: a long queue of one flow does not starve another."""
        for flow, run_id in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
            begin(store, run_id, flow=flow, status="ready")
            clock.advance(1)
        run_ids = [row.info.run_id for _, row in store.claim_due(["a", "b"], 2)]
        assert ["a1", "b1"] == run_ids
        run_ids = [row.info.run_id for _, row in store.claim_due(["a", "b"], 10)]
        assert ["a2", "b2", "a3"] == run_ids

    def test_only_runs_of_the_flows_are_taken(self, store: Store) -> None:
        """Runs of `flows`: names are compared exactly."""
        for flow in ("orders", "Orders", "order", "orders ", "o'; --", ""):
            begin(store, f"of {flow}", flow=flow, status="ready")
        assert ["of Orders"] == [row.info.run_id for _, row in store.claim_due({"Orders"}, 10)]
        assert ["of o'; --"] == [row.info.run_id for _, row in store.claim_due(("o'; --", "nobody"), 10)]
        assert [] == store.claim_due([], 10)

    def test_arguments_that_make_no_sense_are_refused_before_anything_is_done(self, store: Store) -> None:
        """TypeError for a number that is no int, ValueError for a `limit` below 1, whether there are flows or not."""
        begin(store, "r", status="ready")
        before = whole(store, "r")
        wrong: dict[type[Exception], list[dict[str, Any]]] = {
            TypeError: [
                *({"limit": limit} for limit in (True, 1.5, "1", None)),
                *({"skip": skip} for skip in ("orders", [1], None)),
                *({"max_crashes": most} for most in ("5", 2.5)),
            ],
            ValueError: [{"limit": 0}, {"limit": -1}, {"max_crashes": 0}],
            OptionError: [{"lease": lease} for lease in ("30", None, -1, float("nan"))],
        }
        for error, option in [(error, option) for error, options in wrong.items() for option in options]:
            for flows in (["orders"], []):
                with pytest.raises(error, match=next(iter(option))):
                    store.claim_due(**{"flows": flows, "limit": 1, **option})
        for names in ("orders", ["orders", 1], None, 5):
            with pytest.raises(TypeError, match="flows"):
                store.claim_due(names, 1)  # type: ignore[arg-type]
        assert before == whole(store, "r")
        assert ["r"] == [token.run_id for token, _ in store.claim_due(["orders"], 10**30)]

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

    def test_a_run_that_was_claimed_and_never_released_is_counted_and_blocked(self, store: Store) -> None:
        """A claim after a token that is `abandoned` counts as a crash here."""
        begin(store, "r", status="ready")
        for crashes in (0, 1, 2):
            ((token, row),) = store.claim_due(["orders"], 5, max_crashes=3)
            assert crashes == row.info.crash_count
            store.abandon(token)
        assert [] == store.claim_due(["orders"], 5, max_crashes=3)
        assert ("blocked", 3, 3) == (
            store.get_run("r").info.status,
            store.get_run("r").info.crash_count,
            len(store.read("r", kinds=(OWNER,))),
        )

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


# -- Signals: each is stored once, numbered, and wakes the run that waits for it, in one write -----


FORM = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
WAITS = (Wait("ask#1", "approval"), Wait("ask#2", "approval"), Wait("nap#1", None))


def park(store: Store, run_id: str = "r", *waits: Wait) -> None:
    """Let a run wait for `waits`."""
    store.release(begin(store, run_id), Release("waiting", waiting_for=waits or WAITS, signals=0))


class SignalContract(StoreUnderTest):
    """Keep a signal and raise the run's count, in one write; a run that waits for it becomes `ready` in it."""

    def test_a_signal_that_is_waited_for_is_taken(self, store: Store) -> None:
        """taken: a visit waits for it; the run becomes `ready`."""
        park(store)
        assert "taken" == store.put_signal("r", "approval", b'{"ok":true}')
        row = store.get_run("r")
        assert ("ready", 1, "free") == (row.info.status, row.signals, row.lease)

    def test_a_signal_that_nobody_waits_for_yet_is_kept(self, store: Store) -> None:
        """kept: none does yet."""
        token = begin(store, "running")
        store.release(begin(store, "interrupted"), Release("interrupted"))
        for run_id in ("running", "interrupted"):
            assert "kept" == store.put_signal(run_id, "approval", b"1")
            assert 1 == store.get_run(run_id).signals
            assert run_id == store.get_run(run_id).info.status
        assert "written" == work(store, token, "a").outcome

    def test_a_waiting_run_waits_on_where_nobody_waits_for_the_signal(self, store: Store, clock: FakeClock) -> None:
        """kept: none does yet, and the run waits on."""
        over = Wait("over#1", "late", None, clock.now())
        waits = (Wait("ask#1", "approval"), Wait("nap#1", None, None, clock.now() + timedelta(minutes=1)), over)
        ends = clock.time() + 60
        store.release(begin(store, "r"), Release("waiting", wake_at=ends, waiting_for=waits, signals=0))
        waiting = store.get_run("r").info
        for number, name in enumerate(("another", "Approval", "nap", "ask#1", "late"), 1):
            assert "kept" == store.put_signal("r", name, b"1")
            row = store.get_run("r")
            assert ("waiting", waits, waiting.wake_at, number) == (
                row.info.status,
                row.info.waiting_for,
                row.info.wake_at,
                row.signals,
            )
        assert ["r"] == [info.run_id for info in store.list_runs(status="waiting")]
        assert [] == store.claim_due(["orders"], 5)
        assert "taken" == store.put_signal("r", "approval", b"1")
        assert ["r"] == [row.info.run_id for _, row in store.claim_due(["orders"], 5)]

    def test_a_second_signal_before_the_first_was_consumed_is_kept(self, store: Store) -> None:
        """kept: no visit waits for it any more, since the run is ready for the first."""
        park(store, "r", Wait("ask#1", "approval"))
        assert "taken" == store.put_signal("r", "approval", b"1")
        assert "kept" == store.put_signal("r", "approval", b"2")
        assert ("ready", 2) == (store.get_run("r").info.status, store.get_run("r").signals)

    def test_signals_are_numbered_from_1_and_come_back_as_sent(self, store: Store, clock: FakeClock) -> None:
        """A signal that was kept for a run, numbered from 1. `payload` is encoded JSON or None."""
        begin(store, "r")
        begin(store, "s")
        expected = list[Signal]()
        for number, (name, payload, signal_id) in enumerate(
            [("a", b"1", None), ("b", None, "id"), ("a", b'"\xc3\xbc"', "ID"), ("ä / b", b"[]", None)] * 3, 1
        ):
            clock.advance(1.5)
            seen = signal_id and f"{signal_id}{number}"
            assert "kept" == store.put_signal("r", name, payload, signal_id=seen)
            expected.append(Signal(number, name, payload, seen, None, clock.time()))
        assert expected == store.signals("r")
        assert expected[5:] == store.signals("r", after=5)
        assert [] == store.signals("r", after=12)
        assert [] == store.signals("s")
        assert 12 == store.get_run("r").signals

    def test_a_signal_keeps_who_sent_it(self, store: Store) -> None:
        """`by` says who sends it, in 512 bytes at most, and is stored with it."""
        begin(store, "r")
        store.put_signal("r", "go", b"1", by="ann \u00fc")
        store.put_signal("r", "go", None, by="b" * 512)
        store.put_signal("r", "go", b"3")
        assert ["ann \u00fc", "b" * 512, None] == [signal.by for signal in store.signals("r")]
        assert [b"1", None, b"3"] == [signal.payload for signal in store.signals("r")]
        for wrong in ("", "b" * 513, "a\x1fb"):
            with pytest.raises(InvalidIDError):
                store.put_signal("r", "go", None, by=wrong)
        copy = store.import_run(store.export("r"), run_id="copy")
        assert store.signals("r") == store.signals(copy)

    def test_a_cancel_keeps_who_asked_for_it(self, store: Store) -> None:
        """`by` says who asks: in the finish record, and while the cancel is open in its request."""
        token = begin(store, "r")
        assert "requested" == store.request_cancel("r", "stop\x1fnow", by="ann")
        store.request_cancel("r", "again", by="bob")
        row = store.get_run("r")
        assert ("stop\\x1fnow", "ann") == (row.cancel, row.cancel_by) == read_cancel(store.cancels(["r"])["r"])
        verdict = store.append([Append(token, (checkpoint("r", 1, "a"),))])[0]
        assert ("stop\\x1fnow", "ann") == read_cancel(verdict.cancel or "")
        store.release(begin(store, "s"), Release("interrupted"))
        assert "cancelled" == store.request_cancel("s", "stop", 0, by="ann")
        assert ("stop", "ann") == (store.get_run("s").info.reason, store.read("s")[-1].fields()["by"])
        store.release(begin(store, "t"), Release("interrupted"))
        store.request_cancel("t", "stop", 0)
        assert "by" not in store.read("t")[-1].fields()
        for wrong in ("", "b" * 513):
            with pytest.raises(InvalidIDError):
                store.request_cancel("r", "stop", by=wrong)

    def test_a_payload_belongs_to_the_store_once_it_is_given(self, store: Store) -> None:
        """Values that go in are copied or immutable."""
        begin(store, "r")
        payload = bytearray(b'"before"')
        store.put_signal("r", "go", payload)  # type: ignore[arg-type]  # it is bytes to its caller
        payload[:] = b'"after_"'
        assert [b'"before"'] == [signal.payload for signal in store.signals("r")]

    def test_signals_of_an_unknown_run_are_none(self, store: Store) -> None:
        """Signals numbered above `after`, in order; [] for an unknown run."""
        assert [] == store.signals("nobody")

    def test_a_signal_to_an_unknown_run_is_refused(self, store: Store) -> None:
        """Raises `RunNotFoundError`."""
        with pytest.raises(RunNotFoundError):
            store.put_signal("nobody", "go", None)
        assert [] == store.signals("nobody")

    def test_a_signal_id_that_was_seen_before_is_a_duplicate(self, store: Store) -> None:
        """duplicate: that `signal_id` was seen before, and nothing is kept."""
        park(store, "r", Wait("ask#1", "approval"))
        begin(store, "s")
        assert "taken" == store.put_signal("r", "approval", b"1", signal_id="once")
        before = whole(store, "r"), store.signals("r")
        assert "duplicate" == store.put_signal("r", "approval", b"2", signal_id="once")
        assert "duplicate" == store.put_signal("r", "another", b"2", signal_id="once")
        assert before == (whole(store, "r"), store.signals("r"))
        assert "kept" == store.put_signal("r", "approval", b"2", signal_id="ONCE")
        assert "kept" == store.put_signal("s", "approval", b"2", signal_id="once")

    def test_a_duplicate_is_known_after_its_signal_was_consumed(self, store: Store) -> None:
        """duplicate: that `signal_id` was seen before, whatever the run does since."""
        park(store)
        store.put_signal("r", "approval", b"1", signal_id="once")
        claimed = take(store, "r")
        assert claimed.token is not None
        store.release(claimed.token, Release("waiting", waiting_for=WAITS, signals=1))
        assert "duplicate" == store.put_signal("r", "approval", b"1", signal_id="once")
        assert "waiting" == store.get_run("r").info.status

    def test_a_signal_may_be_sent_to_one_wait(self, store: Store) -> None:
        """`to` names one wait."""
        park(store)
        assert "taken" == store.put_signal("r", "approval", b"1", to="ask#2")
        assert ["ask#2"] == [signal.to for signal in store.signals("r")]
        assert "ready" == store.get_run("r").info.status

    @pytest.mark.parametrize("to", ["ask#3", "nap#2", ""])
    def test_a_signal_to_a_wait_that_no_longer_waits_is_refused(self, store: Store, to: str) -> None:
        """If the run does not wait there: `SignalRefusedError`; nothing is kept."""
        park(store)
        begin(store, "running")
        before = whole(store, "r")
        for run_id in ("r", "running"):
            with pytest.raises(SignalRefusedError) as caught:
                store.put_signal(run_id, "approval", b"1", signal_id="once", to=to)
            assert to == caught.value.wait_id
            assert [] == store.signals(run_id)
        assert before == whole(store, "r")
        assert "taken" == store.put_signal("r", "approval", b"1", signal_id="once")

    def test_a_payload_that_does_not_fit_the_wait_is_refused(self, store: Store) -> None:
        """Raises `SignalRefusedError`, and stores nothing, if the payload does not fit the `schema` of the wait."""
        park(store, "r", Wait("ask#1", "approval", schema=FORM))
        assert [FORM] == [wait.schema for wait in store.get_run("r").info.waiting_for]
        before = whole(store, "r")
        for payload in (None, b"{}", b'{"ok":1}', b"[true]"):
            with pytest.raises(SignalRefusedError) as caught:
                store.put_signal("r", "approval", payload)
            assert "ask#1" == caught.value.wait_id
        assert ([], before) == (store.signals("r"), whole(store, "r"))
        assert "kept" == store.put_signal("r", "another", b"{}")
        assert "taken" == store.put_signal("r", "approval", b'{"ok":true,"by":"anna"}')
        assert "kept" == store.put_signal("r", "approval", b"{}")

    def test_a_run_whose_cancel_is_open_takes_no_signal(self, store: Store) -> None:
        """Raises `SignalRefusedError`, and stores nothing, while a cancel is open."""
        park(store)
        assert "requested" == store.request_cancel("r", "no money")
        for name, to in (("approval", None), ("another", None), ("approval", "ask#1")):
            with pytest.raises(SignalRefusedError, match="no money"):
                store.put_signal("r", name, b"1", to=to)
        assert [] == store.signals("r")

    @pytest.mark.parametrize("status", ["finished", "cancelled"])
    def test_a_signal_to_a_run_that_is_over_is_refused(self, store: Store, status: str) -> None:
        """A run that is finished or cancelled: `RunNotResumableError`."""
        store.release(begin(store, "r"), Release(status, "why"))
        with pytest.raises(RunNotResumableError) as caught:
            store.put_signal("r", "go", None)
        assert status == caught.value.status
        assert [] == store.signals("r")
        assert 0 == store.get_run("r").signals

    def test_a_failed_run_keeps_signals_for_its_retry(self, store: Store) -> None:
        """kept: none waits yet; only a run that is finished or cancelled refuses."""
        store.release(begin(store, "r"), Release("failed"))
        assert "kept" == store.put_signal("r", "go", None)
        assert "failed" == store.get_run("r").info.status

    def test_a_count_that_was_read_is_the_one_a_wait_is_parked_with(self, store: Store) -> None:
        """For `waiting`: the count of signals that was read. If it has grown the release is refused."""
        token = begin(store, "r")
        store.put_signal("r", "approval", b"1")
        assert "refused" == store.release(token, Release("waiting", waiting_for=WAITS, signals=0)).outcome
        assert "running" == store.get_run("r").info.status
        assert "written" == store.release(token, Release("waiting", waiting_for=WAITS, signals=1)).outcome
        assert "taken" == store.put_signal("r", "approval", b"2")

    @requires(is_shared_between_processes=True)
    def test_a_signal_through_another_store_object_wakes_the_run(self, store: Store, other: Store) -> None:
        """A run that waits for it becomes `ready`, whoever sends the signal."""
        park(store)
        assert "taken" == other.put_signal("r", "approval", json.dumps({"ok": 1}).encode())
        assert ["r"] == [row.info.run_id for _, row in store.claim_due(["orders"], 1)]


# -- Cancels: done at once if nobody owns the run and nothing is to be rolled back, else a flag that every verdict has


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
