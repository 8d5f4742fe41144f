"""How the contract meets a store: what a store's author fills in, and which promises apply to that store.

A promise that a kind of store cannot make (a lease that ends, other processes) is not skipped when the tests
run: by its flag the test is not there, and a test of the opposite takes its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from milepost.model.clock import SYSTEM, Clock
from milepost.store import Store
from milepost.testing.children import Child
from milepost.testing.clock import FakeClock

__all__ = ["StoreUnderTest", "requires"]

Test = TypeVar("Test", bound=Callable[..., Any])


def requires(**flags: bool) -> Callable[[Test], Test]:
    """Keep a test of the contract to stores whose class flags have these values."""

    def mark(test: Test) -> Test:
        test.required_flags = flags  # type: ignore[attr-defined]
        return test

    return mark


class StoreUnderTest:
    """What the tests know of the store that they test."""

    is_shared_between_processes: ClassVar[bool] = True
    """Whether `make_store` called again, or in another process, opens the same runs."""

    lease_has_end: ClassVar[bool] = True
    """Whether a lease that nobody renews ends. If not, only `abandon` and `takeover` free a run."""

    has_fork: ClassVar[bool] = hasattr(os, "fork")
    """Whether this system forks processes and freezes them."""

    sees_dead_processes: ClassVar[bool] = sys.platform == "linux"
    """Whether the end of an owner's process is noticed before its lease ends; see `milepost.model.process`."""

    runs_statements: ClassVar[bool] = False
    """Whether an append may have statements: then `query` says how to look at what they did."""

    placeholder: ClassVar[str] = "?"
    """What stands for a bound value in a statement."""

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        """Open the store that belongs to `tmp_path` (empty at first), with `clock` as its time."""
        raise NotImplementedError

    def child_source(self, tmp_path: Path) -> str:
        """Python source that binds `store` to the store of `tmp_path`, with the machine's clock.

        Another process runs it. Not asked for unless the store is shared between processes.
        """
        raise NotImplementedError

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        """Run a statement in the database of the store of `tmp_path`, over a connection of its own; its rows.

        Not asked for unless the store runs statements.
        """
        raise NotImplementedError

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.make_store is StoreUnderTest.make_store:
            return  # a part of the contract, which keeps its tests for every kind of store
        for name in dir(cls):
            flags = getattr(getattr(cls, name), "required_flags", {})
            if any(getattr(cls, flag) != value for flag, value in flags.items()):
                setattr(cls, name, None)  # pytest collects no test that is not callable

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The time of `store` and `other`."""
        return FakeClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
        """A store without runs."""
        with self.make_store(tmp_path, clock) as store:
            yield store

    @pytest.fixture
    def other(self, store: Store, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
        """Another store object over the runs of `store`."""
        with self.make_store(tmp_path, clock) as other:
            yield other

    @pytest.fixture
    def real_store(self, tmp_path: Path) -> Iterator[Store]:
        """A store without runs on the machine's clock, for tests with several processes."""
        with self.make_store(tmp_path, SYSTEM) as store:
            yield store

    @pytest.fixture
    def spawn(self, real_store: Store, tmp_path: Path) -> Iterator[Callable[[], Child]]:
        """Start processes that have `store`, the runs of `real_store`; they are killed at the end."""
        children = list[Child]()

        def spawn() -> Child:
            children.append(Child())
            children[-1].tell(self.child_source(tmp_path))
            return children[-1]

        yield spawn
        for child in children:
            child.kill()
