"""Tools for tests of flows and of stores.

* `run_flow` runs a flow with stubs for nodes or steps, stricter than in production; waits and pauses pass at once.
  `context` serves a node, a step or a predicate alone.
* `replay` plays a recorded run again, and compares it with its record.
* `crashtest` stops a flow at every effect and checks that it goes on; `Stepper` performs its effects one at a time.
* `FakeClock` is a clock that the test moves.
* `StoreContract` is the contract that every store keeps.

Each name is imported when it is first used: a process that a test starts needs few of them, and only `StoreContract`,
which is a pytest class, needs pytest. pytest has the same tools as fixtures, see `milepost.testing.plugin`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.testing.clock import FakeClock
    from milepost.testing.contexts import context
    from milepost.testing.contract import StoreContract
    from milepost.testing.crashing import Crash, CrashReport, NodeReport, NonDeterministicNode, crashtest
    from milepost.testing.replaying import Replay, ReplayDifference, UnrecordedCall, replay
    from milepost.testing.running import arun_flow, run_flow
    from milepost.testing.stepping import Stepper

__all__ = [
    "Crash",
    "CrashReport",
    "FakeClock",
    "NodeReport",
    "NonDeterministicNode",
    "Replay",
    "ReplayDifference",
    "Stepper",
    "StoreContract",
    "UnrecordedCall",
    "arun_flow",
    "context",
    "crashtest",
    "replay",
    "run_flow",
]
_names = __all__
if not TYPE_CHECKING:
    # `__getattr__` gives it like any other name, so that pytest is looked for only then.
    del __all__

_HOMES = {
    "clock": "FakeClock",
    "contexts": "context",
    "contract": "StoreContract",
    "crashing": "Crash CrashReport NodeReport NonDeterministicNode crashtest",
    "replaying": "Replay ReplayDifference UnrecordedCall replay",
    "running": "arun_flow run_flow",
    "stepping": "Stepper",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [name for name in _names if name != "StoreContract" or hasattr(sys.modules[__name__], name)]
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    except ModuleNotFoundError as exc:
        if name != "StoreContract" or exc.name != "pytest":
            raise
        from milepost.errors import MissingExtraError

        missing = MissingExtraError("StoreContract needs the package pytest: pip install pytest", extra="test")
        raise missing.as_attribute() from exc
    globals()[name] = value
    return value
