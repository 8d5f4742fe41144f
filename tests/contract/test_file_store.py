"""The file store under the contract that all stores keep."""

from __future__ import annotations

from pathlib import Path

from milepost.model.ids import Clock
from milepost.store import Store
from milepost.stores.file.store import FileStore
from milepost.testing import StoreContract


class TestFileStore(StoreContract):
    keeps_live = True
    keeps_beats = True

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return FileStore(tmp_path / "runs", clock=clock)

    def child_source(self, tmp_path: Path) -> str:
        place = str(tmp_path / "runs")
        return f"from milepost.stores.file.store import FileStore; store = FileStore({place!r})"
