"""A `Gather` under both drivers: branches are stepped by the driver itself, and only calls leave it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from milepost.drivers import AsyncDriver, SyncDriver
from milepost.drivers.branches import Branches, merged
from milepost.events import Emitted, Event
from milepost.executor.context import Context, RunScope
from milepost.executor.effects import Call, Emit, Gather, HoldOver, Outcome, Routine, Sleep, Write
from milepost.model.ids import SYSTEM
from milepost.model.record import make_record
from milepost.store import Append, NewRun
from milepost.stores.memory import MemoryStore
from milepost.testing import FakeClock
from milepost.testing.stepping import Lease

Drive = Callable[[Routine[Any]], Any]


def drive_sync(routine: Routine[Any]) -> Any:
    return SyncDriver(SYSTEM).run(routine)


def drive_async(routine: Routine[Any]) -> Any:
    async def main() -> Any:
        return await AsyncDriver(SYSTEM).run(routine)

    return asyncio.run(main())


@pytest.fixture(params=[drive_sync, drive_async], ids=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    found: Drive = request.param
    return found


def calling(fn: Callable[[], Any]) -> Routine[Any]:
    return (yield Call(fn, ()))


def gathering(**branches: Routine[Any]) -> Routine[dict[str, Outcome]]:
    return (yield Gather(branches))


def values(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    return {name: outcome.value for name, outcome in outcomes.items()}


def test_branches_run_at_once(drive: Drive) -> None:
    both = threading.Barrier(2, timeout=10)
    found = drive(gathering(a=calling(both.wait), b=calling(both.wait)))
    assert [0, 1] == sorted(values(found).values())


def test_outcomes_keep_the_order_in_which_branches_were_given(drive: Drive) -> None:
    first_may_end = threading.Event()

    def last() -> str:
        first_may_end.set()
        return "b"

    found = drive(gathering(a=calling(lambda: first_may_end.wait(10)), b=calling(last)))
    assert ["a", "b"] == list(found)
    assert {"a": True, "b": "b"} == values(found)


def test_an_error_of_one_branch_does_not_stop_the_others(drive: Drive) -> None:
    def fail() -> None:
        raise ValueError("no")

    found = drive(gathering(bad=calling(fail), good=calling(lambda: 1)))
    assert isinstance(found["bad"].error, ValueError)
    assert found["good"].value == 1


def test_ctrl_c_while_a_branch_is_stepped_waits_for_none_beside_it(drive: Drive) -> None:
    never = threading.Event()

    def interrupted() -> Routine[None]:
        yield Call(int, ())
        raise KeyboardInterrupt

    def waiting() -> Routine[None]:
        yield Call(never.wait, (60,))

    def both() -> Routine[Any]:
        return (yield Gather({"a": waiting(), "b": interrupted()}))

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        drive(both())
    assert time.monotonic() - began < 30
    never.set()


def test_nested_gathers_need_no_threads_of_their_own(drive: Drive) -> None:
    def nested(depth: int) -> Routine[Any]:
        if depth == 0:
            return (yield from calling(lambda: 1))
        found = yield Gather({"left": nested(depth - 1), "right": nested(depth - 1)}, max_parallel=1)
        return sum(outcome.value for outcome in found.values())

    def root() -> Routine[Any]:
        return (yield Gather({"only": nested(6)}, max_parallel=1))

    assert drive(root())["only"].value == 64


def test_no_more_calls_run_at_once_than_allowed(drive: Drive) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1

    def root() -> Routine[Any]:
        return (yield Gather({str(n): calling(work) for n in range(8)}, max_parallel=2))

    drive(root())
    assert most == 2


def test_a_sleeping_branch_lets_the_others_go_on(drive: Drive) -> None:
    order: list[str] = []

    def sleeper() -> Routine[None]:
        yield Sleep(0.05)
        order.append("sleeper")

    def worker() -> Routine[None]:
        yield Call(lambda: order.append("worker"), ())

    drive(gathering(a=sleeper(), b=worker()))
    assert ["worker", "sleeper"] == order


def test_an_empty_gather_gives_an_empty_answer(drive: Drive) -> None:
    assert drive(gathering()) == {}


def test_what_branches_of_one_run_hand_in_is_one_append(drive: Drive) -> None:
    batches: list[int] = []

    class Counting(MemoryStore):
        def append(self, batch: Any) -> Any:
            batches.append(len(batch))
            return super().append(batch)

    store = Counting()
    start = make_record("r", 0, "2026-01-01T00:00:00.000000Z", "start", state=b"1", fields={"epoch": 1})
    token = store.create(NewRun("r", "f", "n", start, 30.0, {}))

    def writing(sequence: int) -> Routine[Any]:
        record = make_record("r", sequence, "2026-01-01T00:00:00.000000Z", "checkpoint", f"n{sequence}", state=b"1")
        return (yield Write(store, Append(token, (record,))))

    found = drive(gathering(a=writing(1), b=writing(2), c=writing(3)))
    assert ["written"] * 3 == [outcome.value.outcome for outcome in found.values()]
    assert [1] == batches
    assert [0, 1, 2, 3] == [record.sequence for record in store.read("r")]


def test_branches_are_stepped_without_any_driver() -> None:
    branches = Branches(Gather({"a": calling(lambda: 1), "b": calling(lambda: 2)}))
    asked = [branches.step(), branches.step(), branches.step()]
    assert asked[2] is None
    for item in reversed(asked[:2]):
        assert item is not None
        branches.answer(item[0], item[0].name.upper())
    assert branches.step() is None
    assert branches.is_over
    assert {"a": "A", "b": "B"} == values(branches.outcomes)
    assert merged([]) == []


def told(number: int) -> Event:
    return Emitted(run_id="r", timestamp=0.0, node_id="a", name=str(number))


def test_a_stream_tells_what_a_branch_does_while_another_one_goes_on() -> None:
    may_end = threading.Event()

    def routine() -> Routine[None]:
        yield Gather({"slow": calling(lambda: may_end.wait(10)), "quick": telling()})

    def telling() -> Routine[None]:
        yield Emit(told(1))
        yield Sleep(0.0)

    for event in SyncDriver(SYSTEM).stream(routine()):
        assert told(1) == event
        assert not may_end.is_set()
        may_end.set()
    assert may_end.is_set()


def test_a_call_of_a_cancelled_run_that_goes_on_is_left_to_its_thread() -> None:
    clock, may_end = FakeClock(), threading.Event()
    scope = RunScope("r", clock=clock)
    scope.held = Lease()

    def stubborn() -> Routine[None]:
        yield Call(lambda: may_end.wait(10), (), Context(scope, "a"))

    def cancelling() -> None:
        scope.held.cancel = "enough"
        for _ in range(3):
            time.sleep(0.6)  # real time: the driver looks at the lease twice a second
            clock.advance(31)

    threading.Thread(target=cancelling).start()
    outcome = SyncDriver(clock).run(gathering(a=stubborn()))["a"]
    may_end.set()
    assert isinstance(outcome.error, HoldOver)
