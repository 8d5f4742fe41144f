"""Live events: kept for a short time, in the order of their numbers, for every reader of the store."""

from __future__ import annotations

from collections.abc import Callable

from milepost.model.live import KEPT_SECONDS, LiveBatch, LiveEvent
from milepost.store import Store
from milepost.testing.children import Child
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin

__all__ = ["LiveContract"]


def live(clock: FakeClock, number: int, epoch: int = 1, body: bytes = b"{}", node_id: str = "a/\u00e9 b") -> LiveEvent:
    """Make a live event."""
    return LiveEvent(epoch, number, number - 1, clock.time(), node_id, 2, 3, body)


def batch(run_id: str, *events: LiveEvent, forgotten: tuple[int, int] = (0, 0)) -> list[LiveBatch]:
    """Make the argument of `write_live` for one run."""
    return [LiveBatch(run_id, events, forgotten)]


class LiveContract(StoreUnderTest):
    """`write_live` and `read_live`."""

    @requires(keeps_live=True)
    def test_live_events_are_read_in_the_order_of_their_numbers(self, store: Store, clock: FakeClock) -> None:
        """Read live events whose epoch and number are above `after`, in order, at most `limit`."""
        assert store.keeps_live
        first = [live(clock, number, body=b'{"n":%d}' % number) for number in range(1, 13)]
        second = [live(clock, number, epoch=2) for number in (1, 2)]
        other = live(clock, 1, body="é\x00".encode())
        store.write_live([LiveBatch("r", tuple(first[:5])), LiveBatch("other", (other,))])
        store.write_live(batch("r", *first[5:]))
        store.write_live(batch("r", *second))
        assert [*first, *second] == store.read_live("r")
        assert first[2:6] == store.read_live("r", after=(1, 2), limit=4)
        assert second == store.read_live("r", after=(1, 12))
        assert [] == store.read_live("r", after=(2, 2))
        assert [other] == store.read_live("other")
        assert [] == store.read_live("unknown")
        store.write_live([])

    @requires(keeps_live=True)
    def test_forgotten_live_events_may_be_deleted_and_others_stay(self, store: Store, clock: FakeClock) -> None:
        """Delete those that a batch says are forgotten. An event that is there already is replaced."""
        events = [live(clock, number) for number in range(1, 9)]
        store.write_live(batch("r", *events))
        assert events == store.read_live("r")
        again = live(clock, 8, body=b'{"again":1}')
        store.write_live(batch("r", again, forgotten=(1, 6)))
        assert [events[6], again] == store.read_live("r", after=(1, 6))
        assert [events[6], again] == store.read_live("r")[-2:]

    @requires(keeps_live=True)
    def test_live_events_are_gone_after_ten_minutes(self, store: Store, clock: FakeClock) -> None:
        """Events of ten minutes ago are deleted."""
        store.write_live(batch("r", live(clock, 1)))
        clock.advance(KEPT_SECONDS + 1)
        fresh = live(clock, 2)
        store.write_live(batch("s", fresh))
        assert [] == store.read_live("r")
        assert [fresh] == store.read_live("s")

    @requires(keeps_live=True)
    def test_live_events_go_with_their_run(self, store: Store, clock: FakeClock) -> None:
        """Delete a run with all that belongs to it."""
        begin(store, "r")
        store.write_live([LiveBatch("r", (live(clock, 1),)), LiveBatch("s", (live(clock, 1),))])
        store.delete_run("r", force=True)
        assert [] == store.read_live("r")
        assert 1 == len(store.read_live("s"))

    @requires(keeps_live=True, is_shared_between_processes=True)
    def test_live_events_reach_other_processes(self, real_store: Store, spawn: Callable[[], Child]) -> None:
        """Keep live events of several runs for a short time."""
        child = spawn()
        child.tell(
            "from milepost.model.live import LiveBatch, LiveEvent\n"
            "import time\n"
            "def put(*numbers):\n"
            "    events = tuple(LiveEvent(1, n, 0, time.time(), 'a', 1, 1, b'{}') for n in numbers)\n"
            "    store.write_live([LiveBatch('r', events)])"
        )
        assert [] == real_store.read_live("r")
        child.tell("put(1, 2)")
        assert [1, 2] == [event.number for event in real_store.read_live("r")]
        child.tell("put(3)")
        child.kill()
        assert [3] == [event.number for event in real_store.read_live("r", after=(1, 2))]
