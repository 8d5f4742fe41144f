"""Beats of workers, and schedules that are paused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from milepost.errors import InvalidIDError, StoreError
from milepost.model.workers import ScheduleInfo, SchedulePause, WorkerInfo
from milepost.store import Store
from milepost.testing.children import Child
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires

__all__ = ["WorkerContract"]


def worker(clock: FakeClock, name: str, running: int = 0) -> WorkerInfo:
    """Make what a worker tells of itself."""
    now = clock.now()
    schedule = ScheduleInfo("nightly é", "orders", "0 3 * * *", "UTC", now + timedelta(hours=3), "nightly é@2026")
    flows, refused = {"orders": "sha256:1", "ключ": "sha256:2"}, {"r'1": "the code\nis another"}
    return WorkerInfo(name, "host", 123, now, now, flows, 10, running, refused, (schedule,))


class WorkerContract(StoreUnderTest):
    """`beat`, `workers`, `pause_schedule`, `resume_schedule` and `paused_schedules`."""

    @requires(keeps_beats=True)
    def test_workers_are_known_by_their_last_beat(self, store: Store, clock: FakeClock) -> None:
        """Keep what a worker tells of itself in place of what it told before, with the store's time."""
        assert () == store.workers()
        first, second = worker(clock, "a:1"), worker(clock, "host:123:b/../é")
        store.beat(first)
        store.beat(second)
        assert (first, second) == store.workers()
        clock.advance(15)
        again = worker(clock, "a:1", running=3)
        store.beat(again)
        found = store.workers()
        assert found is not None
        assert [second, again] == [*found]
        assert clock.now() == found[1].beat

    @requires(keeps_beats=True)
    def test_workers_are_forgotten_a_day_after_their_last_beat(self, store: Store, clock: FakeClock) -> None:
        """The workers that have beaten in the last 24 hours."""
        store.beat(worker(clock, "old"))
        clock.advance(hours=23)
        store.beat(new := worker(clock, "new"))
        assert ["old", "new"] == [info.name for info in store.workers() or ()]
        clock.advance(hours=2)
        assert (new,) == store.workers()
        store.beat(new)
        assert ["new"] == [info.name for info in store.workers() or ()]

    @requires(keeps_beats=True)
    def test_a_schedule_is_paused_until_it_is_resumed(self, store: Store, clock: FakeClock) -> None:
        """Have no worker start runs by a schedule until it is resumed; nothing if it is not paused."""
        assert {} == store.paused_schedules()
        store.pause_schedule("nightly", by="ann é")
        store.pause_schedule("a/../b")
        pauses = {name: SchedulePause(name, clock.now(), by) for name, by in (("a/../b", None), ("nightly", "ann é"))}
        assert pauses == store.paused_schedules()
        clock.advance(5)
        store.pause_schedule("nightly")
        assert SchedulePause("nightly", clock.now()) == store.paused_schedules()["nightly"]
        store.resume_schedule("nightly", by="bea")
        store.resume_schedule("nightly")
        store.resume_schedule("never paused")
        assert ["a/../b"] == [*store.paused_schedules()]
        for wrong in ("", "a\nb", "x" * 600):
            with pytest.raises(InvalidIDError):
                store.pause_schedule(wrong)
            with pytest.raises(InvalidIDError):
                store.pause_schedule("nightly", by=wrong)

    @requires(keeps_beats=True, is_shared_between_processes=True)
    def test_beats_and_pauses_are_shared(self, store: Store, other: Store, clock: FakeClock) -> None:
        """Another store object over the same runs tells the same."""
        store.beat(info := worker(clock, "a"))
        other.pause_schedule("nightly")
        assert ((info,), ["nightly"]) == (other.workers(), [*store.paused_schedules()])

    @requires(keeps_beats=True, is_shared_between_processes=True)
    def test_a_pause_survives_the_death_of_its_process(self, real_store: Store, spawn: Callable[[], Child]) -> None:
        """Have no worker start runs by the schedule until it is resumed."""
        child = spawn()
        child.tell("store.pause_schedule('nightly', by='ann')")
        child.kill()
        assert "ann" == real_store.paused_schedules()["nightly"].by

    def test_a_store_need_not_keep_beats(self, store: Store, clock: FakeClock) -> None:
        """None: nobody can tell. `StoreError`: the store keeps no pauses."""
        Store.beat(store, worker(clock, "a"))
        assert (None, {}) == (Store.workers(store), Store.paused_schedules(store))
        for verb in (Store.pause_schedule, Store.resume_schedule):
            with pytest.raises(StoreError, match="keeps no pauses"):
                verb(store, "nightly")
