"""The parts of the contract that only `pytest --all` runs on PostgreSQL, because they take longest there."""

from __future__ import annotations

import pytest

from milepost.testing.contract.moving import MovingContract
from milepost.testing.contract.processes import ProcessContract, ThreadContract
from milepost.testing.contract.records import LargeContract
from milepost.testing.contract.retention import KeepingContract

LONG = (KeepingContract, LargeContract, MovingContract, ProcessContract, ThreadContract)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None and item.cls.__name__ == "TestPostgresStore":
            name = item.originalname
            if any(name in vars(part) for part in LONG):
                item.add_marker(pytest.mark.wide)
