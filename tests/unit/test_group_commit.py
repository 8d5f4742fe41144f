"""Threads that share a commit: each gets its own verdict, whatever becomes of the others, and none is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from milepost.store import Append, Token, Verdict
from milepost.stores.base import group_commit
from milepost.stores.base.group_commit import GroupCommit


class Stopped(BaseException):
    """What a signal raises in the thread that happens to lead."""


def append_of(thread: int, number: int) -> Append:
    return Append(Token(f"{thread}", number, "nonce", "process"), ())


def told_of(appends: Sequence[Append]) -> list[Verdict]:
    return [Verdict("written", f"{append.token.run_id}/{append.token.epoch}") for append in appends]


def in_threads(count: int, act: Callable[[int], Any]) -> None:
    threads = [threading.Thread(target=act, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [] == [thread for thread in threads if thread.is_alive()]


def test_each_of_many_threads_gets_its_own_verdicts() -> None:
    sizes: list[int] = []

    def commit(appends: Sequence[Append], told: list[Verdict]) -> None:
        sizes.append(len(appends))
        told += told_of(appends)

    group, wrong = GroupCommit(commit, lambda exc: True), list[Any]()

    def act(thread: int) -> None:
        for number in range(100):
            appends = [append_of(thread, number)] * (1 + number % 3)
            if told_of(appends) != group.append(appends):
                wrong.append((thread, number))

    in_threads(32, act)
    assert [] == wrong
    assert 32 * sum(1 + number % 3 for number in range(100)) == sum(sizes)
    assert 0 == len(group)


def test_a_release_of_the_lock_wakes_the_first_in_line() -> None:
    class Job:
        is_awake = False

        def wake(self) -> None:
            self.is_awake = True

    group: Any = GroupCommit(lambda appends, told: None, lambda exc: True)
    first, second = Job(), Job()
    group.queue.extend([first, second])
    group.wake_first()
    assert (True, False) == (first.is_awake, second.is_awake)


def test_nobody_is_forgotten_where_leaders_are_stopped_and_appends_fail() -> None:
    written: list[Append] = []
    turns = iter(range(1 << 30))

    def commit(appends: Sequence[Append], told: list[Verdict]) -> None:
        turn = next(turns)
        if turn % 7 == 3:
            raise Stopped
        if any(append.token.run_id == "5" for append in appends):
            raise ValueError
        written.extend(appends)
        told += told_of(appends)
        if turn % 11 == 4:
            raise Stopped

    group, failed = GroupCommit(commit, lambda exc: False), list[tuple[int, int]]()

    def act(thread: int) -> None:
        for number in range(60):
            try:
                assert told_of([append_of(thread, number)]) == group.append([append_of(thread, number)])
            except (Stopped, ValueError):
                failed.append((thread, number))

    in_threads(16, act)
    places = [(int(append.token.run_id), append.token.epoch) for append in written]
    assert len(set(places)) == len(places)
    assert {(thread, number) for thread in range(16) for number in range(60)} == {*places, *failed}
    assert 0 == len(group)


def test_a_wake_up_that_was_lost_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_LOOK", 0.01)
    monkeypatch.setattr(group_commit._Job, "wake", lambda job: None)
    group = GroupCommit(lambda appends, told: told.extend(told_of(appends)), lambda exc: True)

    def act(thread: int) -> None:
        for number in range(5):
            assert told_of([append_of(thread, number)]) == group.append([append_of(thread, number)])

    in_threads(8, act)
    assert 0 == len(group)
