"""The link between the contract and a store: what a store's author defines, and which promises apply to that store.

A promise that a kind of store cannot make (a lease that ends, other processes) is not skipped when the tests run: its
flag removes the test, and a test of the opposite takes its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from milepost.model.ids import SYSTEM, Clock
from milepost.store import Store
from milepost.testing.children import Child
from milepost.testing.clock import FakeClock

__all__ = ["StoreUnderTest", "requires"]

Test = TypeVar("Test", bound=Callable[..., Any])


def requires(**flags: bool) -> Callable[[Test], Test]:
    """Restrict a test of the contract to stores whose class flags have these values."""

    def mark(test: Test) -> Test:
        test.required_flags = flags  # type: ignore[attr-defined]
        return test

    return mark


class StoreUnderTest:
    """The facts about a store that its tests need."""

    is_shared_between_processes: ClassVar[bool] = True
    """True if `make_store` called again, or in another process, opens the same runs."""

    lease_has_end: ClassVar[bool] = True
    """True if a lease that nobody renews ends. If not, only `abandon` and `takeover` free a run."""

    has_fork: ClassVar[bool] = hasattr(os, "fork")
    """True if this system forks processes and freezes them."""

    sees_dead_processes: ClassVar[bool] = sys.platform == "linux"
    """True if the end of an owner's process is noticed before its lease ends; see `milepost.model.ids`."""

    keeps_live: ClassVar[bool] = False
    """True if `write_live` keeps live events for other processes."""

    keeps_beats: ClassVar[bool] = False
    """True if `beat` keeps what workers tell, and schedules can be paused."""

    runs_statements: ClassVar[bool] = False
    """True if an append may have statements. Then `query` reads what they wrote."""

    placeholder: ClassVar[str] = "?"
    """The placeholder for a bound value in a statement."""

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        """Open the store that belongs to `tmp_path` (empty at first), with `clock` as its time."""
        raise NotImplementedError

    def child_source(self, tmp_path: Path) -> str:
        """Return Python source that binds `store` to the store of `tmp_path`, with the machine's clock.

        Another process runs it. It is called only if processes share the store.
        """
        raise NotImplementedError

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        """Run a statement in the database of the store of `tmp_path`, over a connection of its own. Return its rows.

        It is called only if the store runs statements.
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
        """Return the clock of `store` and `other`."""
        return FakeClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
        """Yield a store without runs."""
        with self.make_store(tmp_path, clock) as store:
            yield store

    @pytest.fixture
    def other(self, store: Store, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
        """Yield another store object over the runs of `store`."""
        with self.make_store(tmp_path, clock) as other:
            yield other

    @pytest.fixture
    def real_store(self, tmp_path: Path) -> Iterator[Store]:
        """Yield a store without runs on the machine's clock, for tests with several processes."""
        with self.make_store(tmp_path, SYSTEM) as store:
            yield store

    @pytest.fixture
    def spawn(self, real_store: Store, tmp_path: Path) -> Iterator[Callable[[], Child]]:
        """Yield a function that starts processes with `store`, the runs of `real_store`. They are killed at the end."""
        children = list[Child]()

        def spawn() -> Child:
            children.append(Child())
            children[-1].tell(self.child_source(tmp_path))
            return children[-1]

        yield spawn
        for child in children:
            child.kill()
