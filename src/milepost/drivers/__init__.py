"""The drivers of effects that the core yields: one that blocks, one that awaits. Neither holds any logic.

Both keep the protocol of `milepost.executor.effects`. They differ in how they wait, and in where user code runs:

| effect | `SyncDriver` | `AsyncDriver` |
|---|---|---|
| `Call` of a sync function | in the caller's thread; with a timeout or while streaming in a daemon thread | a daemon thread |
| the same with an executor | there; the caller's thread waits | there; no thread waits |
| `Call` of a coroutine function | refused before anything runs | awaited in the caller's task |
| `Write`, `Ask` | in the caller's thread | in the store's queue, `milepost.drivers.awaiting` |
| `Gather` | branches are stepped here, their calls go to threads | stepped here, their calls become tasks |

Contextvars are copied into threads that run user code. A stream goes in step with its consumer: the run goes on only when
the consumer asks for the next event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.drivers.base import is_logged
from milepost.drivers.blocking import SyncDriver

if TYPE_CHECKING:
    from milepost.drivers.awaiting import AsyncDriver

__all__ = ["AsyncDriver", "SyncDriver", "is_logged"]


def __getattr__(name: str) -> Any:
    # It needs asyncio, a third of the imports of a program that awaits nothing.
    if name == "AsyncDriver":
        from milepost.drivers.awaiting import AsyncDriver

        return AsyncDriver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
