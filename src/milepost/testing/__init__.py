"""What tests of flows and of stores need: a clock that the test moves, and the contract that every store keeps.

`FakeClock` needs nothing but the library. `StoreContract` is a pytest class, so pytest is imported only when
that name is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.testing.clock import FakeClock

if TYPE_CHECKING:
    from milepost.testing.contract import StoreContract

__all__ = ["FakeClock", "StoreContract"]


def __getattr__(name: str) -> Any:
    if name == "StoreContract":
        from milepost.testing.contract import StoreContract

        return StoreContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
