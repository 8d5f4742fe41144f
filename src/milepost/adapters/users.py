"""Two small protocols of stores that users write, behind one interface: list a run's
checkpoints, keep one, remove them.

The older protocol stores bytes by run and node, and blocks; the other stores `CheckpointData` and is
awaited. Coroutine functions in the first and plain functions in the second are served too. All exceptions of
a user's store become `StoreError`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from milepost.adapters.loop_thread import LoopThread
from milepost.adapters.points import NO_ORIGIN, Origin, envelope_of, point_of
from milepost.errors import StoreError
from milepost.model.checkpoint_data import CheckpointData
from milepost.model.failure import describe

__all__ = ["BY_NODE", "BY_POINT", "NodeStore", "PointStore", "StoredCheckpoint", "UserStore"]

BY_NODE = ("save", "load", "list", "delete", "delete_run", "close")
_FORGOTTEN = "forgotten"
BY_POINT = ("save", "load", "load_latest", "clear", "list_checkpoints")


class StoredCheckpoint(NamedTuple):
    """A node's newest checkpoint in the user's store: an envelope, whose numbers are those that it had in its run."""

    node_id: str
    data: bytes
    sequence: int = 0
    visit: int = 1
    is_of_steps: bool = False
    """True if it belongs to a workflow, not to a graph."""
    point: CheckpointData | None = None
    """The point that the store is to keep, if it is known already; `data` is empty then."""


class UserStore(Protocol):
    """The interface to a user's store. All methods but `kept_as` may raise `StoreError`."""

    place: str
    by_point: bool
    """True if the store keeps points. For a workflow these are the points that it marks, not the records of all steps."""

    def entries(self, run_id: str) -> tuple[list[StoredCheckpoint], Origin | None]:
        """Return all checkpoints of a run, the newest last, and the run's origin if the store knows it."""

    def kept_as(self, run_id: str, kept: StoredCheckpoint, origin: Origin) -> bytes:
        """Return what `entries` will give for a checkpoint once it is kept."""

    def keep(self, run_id: str, kept: StoredCheckpoint, origin: Origin) -> None:
        """Keep a checkpoint, in place of the one that the node had."""

    def forget(self, run_id: str, node_id: str) -> None:
        """Remove a node's checkpoint."""

    def forget_run(self, run_id: str) -> None:
        """Remove all of a run."""

    def close(self) -> None:
        """Release all that the store holds."""


class _Caller:
    """A caller of one user's store, which awaits what has to be awaited."""

    def __init__(self, given: Any, loop: LoopThread) -> None:
        self.given = given
        self.place = f"{type(given).__module__}.{type(given).__qualname__}"
        self._loop = loop

    def _call(self, op: str, *args: Any) -> Any:
        try:
            answer = getattr(self.given, op)(*args)
            return self._loop.wait(answer) if inspect.isawaitable(answer) else answer
        except StoreError:
            raise
        except Exception as exc:
            raise StoreError(
                f"the store {self.place} failed at {op}: {describe(exc)}: mend the store, then try again",
                store=self.place,
                op=op,
            ) from exc

    def _odd(self, op: str, answer: Any, wanted: str) -> StoreError:
        return StoreError(
            f"the store {self.place} gave {type(answer).__name__} at {op}, and not {wanted}: mend its {op}",
            store=self.place,
            op=op,
        )


class NodeStore(_Caller):
    """A store of bytes by run and node: `save load list delete delete_run close`."""

    by_point = False

    def entries(self, run_id: str) -> tuple[list[StoredCheckpoint], Origin | None]:
        found = []
        for info in self._call("list", run_id) or ():
            node_id = getattr(info, "node_id", None)
            if not isinstance(node_id, str):
                raise self._odd("list", info, "infos with a node_id")
            data = self._call("load", run_id, node_id)
            if not isinstance(data, bytes | bytearray | memoryview):
                raise self._odd("load", data, "bytes")
            found.append(_placed(node_id, bytes(data)))
        return _in_order(found), None

    def kept_as(self, run_id: str, kept: StoredCheckpoint, origin: Origin) -> bytes:
        return kept.data

    def keep(self, run_id: str, kept: StoredCheckpoint, origin: Origin) -> None:
        self._call("save", run_id, kept.node_id, kept.data)

    def forget(self, run_id: str, node_id: str) -> None:
        self._call("delete", run_id, node_id)

    def forget_run(self, run_id: str) -> None:
        self._call("delete_run", run_id)

    def close(self) -> None:
        self._call("close")


class PointStore(_Caller):
    """A store of `CheckpointData` by run, awaited: `save load load_latest clear list_checkpoints`."""

    by_point = True

    def entries(self, run_id: str) -> tuple[list[StoredCheckpoint], Origin | None]:
        points = []
        for checkpoint_id in self._call("list_checkpoints", run_id) or ():
            point = self._call("load", run_id, checkpoint_id)
            if point is not None:  # else it was removed meanwhile
                points.append(self._read(point))
        points = [point for point in points if not _is_forgotten(point)]
        points.sort(key=lambda point: point.saved_at)
        found = [_placed(point.checkpoint_id, envelope_of(run_id, point)) for point in points]
        origin = (points[-1].workflow_name, points[-1].inputs_hash) if points else None
        return _in_order(found), origin

    def _read(self, given: Any) -> CheckpointData:
        if isinstance(given, CheckpointData):
            return given
        fields = given.to_dict() if hasattr(given, "to_dict") else given
        if not isinstance(fields, Mapping):
            raise self._odd("load", given, "CheckpointData")
        return CheckpointData.from_dict(fields)

    def kept_as(self, run_id: str, kept: StoredCheckpoint, origin: Origin) -> bytes:
        return envelope_of(run_id, self._point(kept, origin))

    def keep(self, run_id: str, kept: StoredCheckpoint, origin: Origin) -> None:
        self._call("save", run_id, self._point(kept, origin))

    def _point(self, kept: StoredCheckpoint, origin: Origin) -> CheckpointData:
        point = point_of(kept.data, lambda: origin) if kept.point is None else kept.point
        # A checkpoint that was saved from outside may name another place than the one it was saved under.
        return point if point.checkpoint_id == kept.node_id else replace(point, checkpoint_id=kept.node_id)

    def forget(self, run_id: str, node_id: str) -> None:
        # The protocol cannot delete one point. A note that says so overwrites it, which is never the newest.
        note = {"name": node_id, "step_type": _FORGOTTEN, "success": False, "output": None, "error": "superseded"}
        self._call("save", run_id, CheckpointData(node_id, *NO_ORIGIN, (note,), datetime.fromtimestamp(0, UTC)))

    def forget_run(self, run_id: str) -> None:
        self._call("clear", run_id)

    def close(self) -> None:
        if callable(getattr(self.given, "close", None)):
            self._call("close")


def _is_forgotten(point: CheckpointData) -> bool:
    return [_FORGOTTEN] == [result.get("step_type") for result in point.step_results]


class _Place(msgspec.Struct):
    sequence: int = 0
    visit: int = 1


class _Told(_Place):
    workflow_name: str | None = None
    step_type: str | None = None
    step_results: list[_Place] = []


_decode_told = msgspec.json.Decoder(_Told).decode


def _placed(node_id: str, data: bytes) -> StoredCheckpoint:
    """Build a checkpoint with the numbers that its envelope, or its point's last result,
    names. Other bytes may name none."""
    try:
        told = _decode_told(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        told = _Told()
    place = told.step_results[-1] if told.workflow_name is not None and told.step_results else told
    is_of_steps = told.workflow_name is not None or told.step_type is not None
    return StoredCheckpoint(node_id, data, max(0, place.sequence), max(1, place.visit), is_of_steps)


def _in_order(found: list[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Sort checkpoints by their numbers in the run if all have one. Otherwise keep the store's order."""
    places = [kept.sequence for kept in found]
    is_told = 0 not in places and len(set(places)) == len(places)
    return sorted(found, key=lambda kept: kept.sequence) if is_told else found
