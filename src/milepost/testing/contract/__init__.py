"""The contract of stores as tests, for every store: ours and those that users write.

A test module passes a store to it in a few lines::

    class TestMyStore(StoreContract):
        def make_store(self, tmp_path, clock):
            return MyStore(tmp_path / "runs", clock=clock)

        def child_source(self, tmp_path):
            return f"from my_store import MyStore; store = MyStore({str(tmp_path / 'runs')!r})"

Each test's name is the promise as a sentence, and its docstring quotes the contract.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "subject",
    "seeds",
    "views",
    "ids",
    "journal",
    "fence",
    "claims",
    "leases",
    "due",
    "signals",
    "cancels",
    "latest",
    "listing",
    "statements",
    "thinning",
    "keeping",
    "large",
    "moving",
    "closing",
    "threads",
    "processes",
)
# This precedes the import, so that a failed assert shows its values as in any test module.
pytest.register_assert_rewrite(*(f"milepost.testing.contract.{part}" for part in _PARTS))

from milepost.testing.contract.cancels import CancelContract  # noqa: E402
from milepost.testing.contract.claims import ClaimContract  # noqa: E402
from milepost.testing.contract.closing import ClosingContract  # noqa: E402
from milepost.testing.contract.due import DueContract  # noqa: E402
from milepost.testing.contract.fence import FenceContract  # noqa: E402
from milepost.testing.contract.ids import IDContract  # noqa: E402
from milepost.testing.contract.journal import JournalContract  # noqa: E402
from milepost.testing.contract.keeping import KeepingContract  # noqa: E402
from milepost.testing.contract.large import LargeContract  # noqa: E402
from milepost.testing.contract.latest import LatestContract  # noqa: E402
from milepost.testing.contract.leases import LeaseContract  # noqa: E402
from milepost.testing.contract.listing import ListingContract  # noqa: E402
from milepost.testing.contract.moving import MovingContract  # noqa: E402
from milepost.testing.contract.processes import ProcessContract  # noqa: E402
from milepost.testing.contract.seeds import SeedContract  # noqa: E402
from milepost.testing.contract.signals import SignalContract  # noqa: E402
from milepost.testing.contract.statements import StatementContract  # noqa: E402
from milepost.testing.contract.thinning import ThinningContract  # noqa: E402
from milepost.testing.contract.threads import ThreadContract  # noqa: E402
from milepost.testing.contract.views import ViewContract  # noqa: E402

__all__ = ["StoreContract"]


class StoreContract(
    SeedContract,
    ViewContract,
    IDContract,
    JournalContract,
    FenceContract,
    ClaimContract,
    LeaseContract,
    DueContract,
    SignalContract,
    CancelContract,
    LatestContract,
    ListingContract,
    StatementContract,
    LargeContract,
    ThinningContract,
    KeepingContract,
    MovingContract,
    ClosingContract,
    ThreadContract,
    ProcessContract,
):
    """All promises of `milepost.store`. Name a subclass `Test...`, define `make_store`, and set the flags that differ.

    pytest's `tmp_path` is the place of the store: the same path is the same store.
    """
