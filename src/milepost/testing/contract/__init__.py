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

_CHAPTERS = (
    "subject",
    "views",
    "records",
    "ownership",
    "waiting",
    "listing",
    "retention",
    "moving",
    "live",
    "workers",
    "processes",
)
# This precedes the import, so that a failed assert shows its values as in any test module.
pytest.register_assert_rewrite(*(f"{__name__}.{chapter}" for chapter in _CHAPTERS))

from milepost.testing.contract.listing import ListingContract, StatementContract  # noqa: E402
from milepost.testing.contract.live import LiveContract  # noqa: E402
from milepost.testing.contract.moving import MovingContract  # noqa: E402
from milepost.testing.contract.ownership import ClaimContract, FenceContract, LeaseContract  # noqa: E402
from milepost.testing.contract.processes import ClosingContract, ProcessContract, ThreadContract  # noqa: E402
from milepost.testing.contract.records import JournalContract, LargeContract, LatestContract  # noqa: E402
from milepost.testing.contract.retention import KeepingContract, ThinningContract  # noqa: E402
from milepost.testing.contract.views import IDContract, SeedContract, ViewContract  # noqa: E402
from milepost.testing.contract.waiting import CancelContract, DueContract, SignalContract  # noqa: E402
from milepost.testing.contract.workers import WorkerContract  # noqa: E402

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
    LiveContract,
    WorkerContract,
    ClosingContract,
    ThreadContract,
    ProcessContract,
):
    """All promises of `milepost.store`. Name a subclass `Test...`, define `make_store`, and set the flags that differ.

    pytest's `tmp_path` is the place of the store: the same path is the same store.
    """
