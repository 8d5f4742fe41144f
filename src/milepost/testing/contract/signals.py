"""Signals: each is stored once, numbered, and wakes the run that waits for it, in one write."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from milepost.errors import RunNotFoundError, RunNotResumableError, SignalRefusedError
from milepost.model.info import Wait
from milepost.store import Release, Signal, Store
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, take, whole, work

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
        told = store.get_run("r").info
        for number, name in enumerate(("another", "Approval", "nap", "ask#1", "late"), 1):
            assert "kept" == store.put_signal("r", name, b"1")
            row = store.get_run("r")
            assert ("waiting", waits, told.wake_at, number) == (
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
