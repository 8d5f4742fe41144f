"""A pytest plugin with the tools of `milepost.testing` as fixtures: `pytest_plugins = ["milepost.testing.plugin"]`.

Put that line in the `conftest.py` of a test suite's root. Nothing is registered by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from milepost.stores.memory import MemoryStore
from milepost.testing import crashing, running
from milepost.testing.clock import FakeClock, fake_entropy

__all__ = ["crashtest", "fake_clock", "memory_store", "run_flow"]


@pytest.fixture
def fake_clock() -> FakeClock:
    """Return a clock that stands still until the test advances it."""
    return FakeClock()


@pytest.fixture
def memory_store(fake_clock: FakeClock) -> Iterator[MemoryStore]:
    """Yield an empty store whose time is that of `fake_clock`."""
    with MemoryStore(clock=fake_clock, entropy=fake_entropy) as store:
        yield store


@pytest.fixture
def run_flow(memory_store: MemoryStore) -> Callable[..., Any]:
    """Return `milepost.testing.run_flow` on `memory_store`, where the test can look at the run afterwards."""

    def run(flow: Any, input: Any = None, **options: Any) -> Any:
        return running.run_flow(flow, input, **{"store": memory_store, **options})

    return run


@pytest.fixture
def crashtest() -> Callable[..., crashing.CrashReport]:
    """Return `milepost.testing.crashtest`."""
    return crashing.crashtest
