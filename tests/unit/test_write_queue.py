"""The queue of processes before a SQLite file. Each queue here has a descriptor of its own, as each process has."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.stores.sqlite import write_queue
from milepost.stores.sqlite.write_queue import WriteQueue

fcntl = pytest.importorskip("fcntl")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def queues(path: Path) -> Iterator[list[WriteQueue]]:
    queues = [WriteQueue(os.open(path, os.O_RDONLY)) for _ in range(3)]
    yield queues
    for queue in queues:
        queue.close()


def is_free(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def is_free_soon(path: Path, waiting: WriteQueue) -> bool:
    """Return whether the lock is free once a queue that was waiting for it has had it and given it back."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not waiting._is_asking and is_free(path):
            return True
        time.sleep(0.005)
    return False


def test_each_waits_until_the_one_before_it_leaves(queues: list[WriteQueue], path: Path) -> None:
    order: list[int] = []

    def write(number: int) -> None:
        for _ in range(50):
            queues[number].enter()
            assert not is_free(path)
            order.append(number)
            time.sleep(0.0005)
            assert order[-1] == number
            queues[number].leave()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(order) == [0] * 50 + [1] * 50 + [2] * 50
    assert is_free(path)


def test_who_waits_for_long_goes_ahead_and_keeps_no_turn_that_comes_later(
    queues: list[WriteQueue], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "LONGEST_WAIT", 0.05)
    first, second, _ = queues
    first.enter()
    second.enter()
    second.leave()
    began = time.monotonic()
    for _ in range(100):  # it waits once, not each time
        second.enter()
        second.leave()
    assert time.monotonic() - began < 1
    assert not is_free(path)
    first.leave()
    assert is_free_soon(path, second)
    monkeypatch.undo()
    second.enter()
    assert not is_free(path)
    second.leave()
    assert is_free(path)


def test_a_wait_that_a_signal_ends_keeps_no_turn(
    queues: list[WriteQueue], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = queues
    first.enter()

    class Interrupted:
        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if blocking:
                raise KeyboardInterrupt
            return False

    monkeypatch.setattr(second, "_granted", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        second.enter()
    second.leave()
    first.leave()
    assert is_free_soon(path, second)


def leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:  # it is closed
        return False


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_closed_queue_keeps_neither_turn_nor_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_waiting: bool
) -> None:
    monkeypatch.setattr(write_queue, "LONGEST_WAIT", 0.05)
    opened = [os.open(path, os.O_RDONLY) for _ in range(2)]
    first, second = map(WriteQueue, opened)
    first.enter()
    if is_waiting:
        second.enter()
        second.leave()
    second.close()
    first.close()
    assert is_free_soon(path, second)
    end = time.monotonic() + 10
    while any(leads_to(path, descriptor) for descriptor in opened) and time.monotonic() < end:
        time.sleep(0.005)
    assert not any(leads_to(path, descriptor) for descriptor in opened)
    second.enter()  # does nothing


def test_without_such_locks_nobody_waits(queues: list[WriteQueue], path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    first, second, third = queues
    first.enter()
    monkeypatch.setattr(write_queue.fcntl, "flock", refuse)
    second.enter()
    second.leave()
    monkeypatch.undo()
    second.enter()  # it asks no more
    first.leave()
    monkeypatch.setattr(write_queue, "fcntl", None)
    windows = WriteQueue(os.open(path, os.O_RDONLY))
    windows.enter()
    windows.leave()
    windows.close()
    monkeypatch.undo()
    third.enter()
    assert not is_free(path)
