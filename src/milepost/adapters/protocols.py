"""What a store that a user wrote must have to be taken where a store is; see `milepost.adapters.user_stores`."""

from __future__ import annotations

from typing import Any, Protocol

from milepost.store import Store

__all__ = ["AnyStore", "AsyncPoints", "BytesByNode"]


class BytesByNode(Protocol):
    """Keeps bytes by run and node. `load` raises where there is nothing; plain functions or coroutine functions."""

    def save(self, run_id: str, node_id: str, data: bytes, /) -> Any:
        """Keep `data` as the newest of that node."""

    def load(self, run_id: str, node_id: str, /) -> Any:
        """The newest bytes of that node."""

    def list(self, run_id: str, /) -> Any:
        """What is kept of a run, oldest first: objects with a `node_id`."""

    def delete(self, run_id: str, node_id: str, /) -> Any:
        """Take a node away; absent: no error."""

    def delete_run(self, run_id: str, /) -> Any:
        """Take a run away; absent: no error."""

    def close(self) -> Any:
        """Let go of everything."""


class AsyncPoints(Protocol):
    """Keeps `CheckpointData` by workflow; missing is None or an empty list."""

    def save(self, workflow_id: str, data: Any, /) -> Any:
        """Keep a point."""

    def load(self, workflow_id: str, checkpoint_id: str, /) -> Any:
        """A point, or None."""

    def load_latest(self, workflow_id: str, /) -> Any:
        """The newest point, or None."""

    def clear(self, workflow_id: str, /) -> Any:
        """Take all of a workflow away."""

    def list_checkpoints(self, workflow_id: str, /) -> Any:
        """The ids of the points, oldest first."""


AnyStore = Store | BytesByNode | AsyncPoints
"""Whatever is taken as a store."""
