"""The protocols that a user's store must have to be used as a store; see `milepost.adapters.user_stores`."""

from __future__ import annotations

from typing import Any, Protocol

from milepost.store import Store

__all__ = ["AnyStore", "AsyncPoints", "BytesByNode"]


class BytesByNode(Protocol):
    """A store of bytes by run and node. `load` raises if there is nothing. Methods are plain or coroutine functions."""

    def save(self, run_id: str, node_id: str, data: bytes, /) -> Any:
        """Keep `data` as the newest of that node."""

    def load(self, run_id: str, node_id: str, /) -> Any:
        """Return the newest bytes of that node."""

    def list(self, run_id: str, /) -> Any:
        """List what the store has of a run, oldest first: objects with a `node_id`."""

    def delete(self, run_id: str, node_id: str, /) -> Any:
        """Remove a node. A missing one is no error."""

    def delete_run(self, run_id: str, /) -> Any:
        """Remove a run. A missing one is no error."""

    def close(self) -> Any:
        """Release all that the store holds."""


class AsyncPoints(Protocol):
    """A store of `CheckpointData` by workflow. A missing point is None, missing points are an empty list."""

    def save(self, workflow_id: str, data: Any, /) -> Any:
        """Keep a point."""

    def load(self, workflow_id: str, checkpoint_id: str, /) -> Any:
        """Return a point, or None."""

    def load_latest(self, workflow_id: str, /) -> Any:
        """Return the newest point, or None."""

    def clear(self, workflow_id: str, /) -> Any:
        """Remove all of a workflow."""

    def list_checkpoints(self, workflow_id: str, /) -> Any:
        """List the ids of the points, oldest first."""


AnyStore = Store | BytesByNode | AsyncPoints
"""All types that are accepted as a store."""
