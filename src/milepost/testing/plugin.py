"""A pytest plugin with the tools of `milepost.testing` as fixtures.

pytest loads it by the entry point of the installed package, in every test run of a project that uses Milepost. So
it imports nothing of the library before a test asks for a fixture. A suite that has the line
`pytest_plugins = ["milepost.testing.plugin"]` works too: the entry point has the module's name, and pytest loads a
plugin once by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from milepost.stores.memory import MemoryStore
    from milepost.testing.clock import FakeClock
    from milepost.testing.crashing import CrashReport
    from milepost.testing.replaying import Replay

__all__ = ["crashtest", "fake_clock", "memory_store", "replay", "run_flow"]


@pytest.fixture
def fake_clock() -> FakeClock:
    """Return a clock that stands still until the test advances it."""
    from milepost.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def memory_store(fake_clock: FakeClock) -> Iterator[MemoryStore]:
    """Yield an empty store whose time is that of `fake_clock`."""
    from milepost.stores.memory import MemoryStore
    from milepost.testing.clock import fake_entropy

    with MemoryStore(clock=fake_clock, entropy=fake_entropy) as store:
        yield store


@pytest.fixture
def run_flow(memory_store: MemoryStore) -> Callable[..., Any]:
    """Return `milepost.testing.run_flow` on `memory_store`, where the test can look at the run afterwards."""
    from milepost.testing import running

    def run(flow: Any, input: Any = None, **options: Any) -> Any:
        return running.run_flow(flow, input, **{"store": memory_store, **options})

    return run


@pytest.fixture
def crashtest() -> Callable[..., CrashReport]:
    """Return `milepost.testing.crashtest`."""
    from milepost.testing import crashing

    return crashing.crashtest


@pytest.fixture
def replay(request: pytest.FixtureRequest) -> Callable[..., Replay]:
    """Return `milepost.testing.replay`, which looks for a file beside the test."""
    from milepost.testing import replaying

    def play(file: str | Path, flow: Any, **options: Any) -> Replay:
        return replaying.replay(request.path.parent / file, flow, **options)

    return play
