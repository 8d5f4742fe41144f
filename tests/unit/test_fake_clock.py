"""A clock that a test moves: both hands, and everybody who waits for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from milepost.model.ids import Clock
from milepost.testing import FakeClock


def test_it_is_a_clock_that_starts_in_2026():
    clock = FakeClock()
    assert isinstance(clock, Clock)
    assert datetime(2026, 1, 1, tzinfo=UTC) == clock.now()
    assert 1_767_225_600.0 == clock.time()
    assert 0.0 == clock.monotonic()


def test_it_starts_where_it_is_told():
    assert 3600.0 == FakeClock(datetime(1970, 1, 1, 3, tzinfo=timezone(timedelta(hours=2)))).time()


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="zone"):
        FakeClock(datetime(2026, 1, 1))
    with pytest.raises(ValueError, match="zone"):
        FakeClock().set(datetime(2026, 1, 1))


def test_time_stands_still_until_it_is_advanced():
    clock = FakeClock()
    start = clock.time()
    clock.advance(1.5)
    clock.advance(days=1, minutes=1)
    clock.advance(timedelta(hours=1))
    assert 1.5 + 86_400 + 60 + 3600 == clock.time() - start == clock.monotonic()


def test_small_advances_add_up_exactly():
    clock = FakeClock()
    for _ in range(10):
        clock.advance(0.1)
    assert 1.0 == clock.monotonic()


@pytest.mark.parametrize("back", [-1, -0.001, timedelta(days=-1)])
def test_an_advance_is_never_negative(back):
    clock = FakeClock()
    with pytest.raises(ValueError, match="set"):
        clock.advance(back)
    assert (1_767_225_600.0, 0.0) == (clock.time(), clock.monotonic())


def test_set_puts_the_wall_clock_back_and_nothing_else():
    clock = FakeClock()
    clock.advance(100)
    clock.set(datetime(2025, 12, 31, tzinfo=UTC))
    assert (datetime(2025, 12, 31, tzinfo=UTC), 100.0) == (clock.now(), clock.monotonic())
    clock.advance(1)
    assert (datetime(2025, 12, 31, 0, 0, 1, tzinfo=UTC), 101.0) == (clock.now(), clock.monotonic())


def test_a_thread_waits_until_time_has_passed():
    clock = FakeClock()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clock.wait, threading.Event(), 30.0)
        clock.wait_for_sleepers(1)
        clock.advance(29.9)
        assert 1 == clock.sleepers
        assert not waiting.done()
        clock.advance(0.1)
        assert waiting.result(5) is False
    assert 0 == clock.sleepers


def test_a_thread_wakes_when_its_event_is_set():
    clock, wake = FakeClock(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clock.wait, wake, float("inf"))
        clock.wait_for_sleepers(1)
        wake.set()
        assert waiting.result(5) is True
    assert 0 == clock.sleepers


def test_a_wait_for_nothing_returns_at_once():
    clock, wake = FakeClock(), threading.Event()
    assert clock.wait(wake, 0) is False
    assert clock.wait(wake, -1) is False
    wake.set()
    assert clock.wait(wake, 30) is True


async def test_a_task_sleeps_until_time_has_passed():
    clock, order = FakeClock(), list[float]()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        order.append(seconds)

    tasks = [asyncio.create_task(sleep(seconds)) for seconds in (20.0, 10.0, 30.0)]
    await asyncio.to_thread(clock.wait_for_sleepers, 3)
    clock.advance(25)
    await asyncio.gather(*tasks[:2])
    assert ([10.0, 20.0], 1) == (order, clock.sleepers)
    clock.advance(days=1)
    await tasks[2]
    assert 0 == clock.sleepers


async def test_a_sleep_for_nothing_gives_others_a_turn():
    clock = FakeClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    await clock.sleep(1e-9)
    assert 0 == clock.sleepers


async def test_a_cancelled_sleeper_is_gone():
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(10))
    await asyncio.to_thread(clock.wait_for_sleepers, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 == clock.sleepers
    clock.advance(20)


def test_a_sleeper_whose_loop_is_gone_disturbs_nobody():
    clock, loop = FakeClock(), asyncio.new_event_loop()
    task = loop.create_task(clock.sleep(5))
    loop.run_until_complete(asyncio.sleep(0))
    assert 1 == clock.sleepers
    loop.close()
    clock.advance(10)
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_until_complete(task)
    task._log_destroy_pending = False


def test_sleepers_of_several_loops_are_woken_from_another_thread():
    clock = FakeClock()
    with ThreadPoolExecutor(3) as pool:
        loops = [pool.submit(lambda: asyncio.run(clock.sleep(5))) for _ in range(3)]
        clock.wait_for_sleepers(3)
        clock.advance(5)
        assert [None, None, None] == [loop.result(5) for loop in loops]


def test_hooks_see_the_new_time_before_anybody_wakes():
    clock, seen = FakeClock(), list[tuple[float, bool]]()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clock.wait, threading.Event(), 5.0)
        clock.wait_for_sleepers(1)

        def hook() -> None:
            with pytest.raises(TimeoutError):
                waiting.result(0.03)
            seen.append((clock.monotonic(), waiting.done()))

        clock.on_advance.append(hook)
        clock.advance(10)
        assert waiting.result(5) is False
    clock.set(datetime(2027, 1, 1, tzinfo=UTC))
    assert [(10.0, False)] == seen


def test_a_hook_that_fails_lets_nobody_sleep_on():
    clock = FakeClock()
    clock.on_advance.append(lambda: 1 / 0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clock.wait, threading.Event(), 5.0)
        clock.wait_for_sleepers(1)
        with pytest.raises(ZeroDivisionError):
            clock.advance(10)
        assert waiting.result(5) is False


def test_waiting_for_sleepers_has_an_end():
    with pytest.raises(TimeoutError, match="0 of 1 sleepers"):
        FakeClock().wait_for_sleepers(1, timeout=0.01)


def test_the_clock_needs_no_pytest():
    source = "import sys; import milepost.testing; milepost.testing.FakeClock(); sys.exit('pytest' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", source], check=False).returncode
