"""Stores of marked points for asynchronous code: save, load, load_latest, clear and list_checkpoints.

They are adapters over the journal of a store. A second save under the same id is a new visit, ids are listed by
sequence, and `load_latest` gives the newest point by `saved_at`. The records of an engine's verbs are visible too: all
checkpoints of a graph, and those of a workflow that `.checkpoint()` marks. A missing point is None, missing points are
an empty list. A failure is a `StoreError`, which is an OSError; damaged data are a ValueError; `RunLockedError` says
that somebody executes the run.

No call blocks an event loop: files are read and written in the store's own thread. If its task is cancelled, a save or
a clear that has begun is awaited.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from milepost.adapters.points import Marked, marked_of, origin_of, point_of
from milepost.drivers import AsyncDriver
from milepost.errors import (
    CheckpointNotFoundError,
    DeserializeStateError,
    RunNotFoundError,
    StoreClosedError,
    StoreError,
)
from milepost.executor.effects import Ask, Routine
from milepost.model.checkpoint_data import CheckpointData
from milepost.model.clock import SYSTEM
from milepost.model.record import CHECKPOINT, Record, parse_time
from milepost.store import Store, check_id, check_run_id
from milepost.stores.base.process_fork import watch
from milepost.stores.memory import MemoryStore

if TYPE_CHECKING:
    from milepost.adapters.folder import FolderStore

__all__ = ["AsyncView", "FileCheckpointStore", "MemoryCheckpointStore"]

_TRIES = 20
"""Number of times that a point's file is written while others save that point at the same time."""


class _Points:
    """The points in the journal of a store. Its methods block, and any thread may call them."""

    is_blocking = False

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        watch(self)

    @property
    def store(self) -> Store:
        """The store. The first caller that needs it opens it."""
        with self._lock:
            if self._store is None:
                if self._is_closed:
                    raise StoreClosedError("the store is closed: open it again to use it")
                self._store = self._open_store()
            return self._store

    def save(self, run_id: str, point: CheckpointData) -> None:
        self.store.save(run_id, point.checkpoint_id, point.encode())

    def load(self, run_id: str, checkpoint_id: str) -> CheckpointData | None:
        marked = self._marked(run_id)
        if marked is not None:
            mark = marked.marks.get(check_id(checkpoint_id))
            if mark is None or not mark.is_foreign:
                return None if mark is None else marked.point(mark)
        try:
            data = self.store.load(run_id, checkpoint_id)
        except CheckpointNotFoundError:
            return None
        return self._point(run_id, checkpoint_id, data)

    def _marked(self, run_id: str) -> Marked | None:
        """Return the marked points of a workflow's run; None for any other run."""
        try:
            return marked_of(self.store, run_id)
        except RunNotFoundError:
            return None

    def _point(self, run_id: str, checkpoint_id: str, data: bytes) -> CheckpointData:
        try:
            return point_of(data, lambda: origin_of(self.store, run_id))
        except DeserializeStateError as exc:
            exc.run_id, exc.node_id = run_id, checkpoint_id
            raise

    def load_latest(self, run_id: str) -> CheckpointData | None:
        marked = self._marked(run_id)
        if marked is not None:
            records = list(marked.marks.values())
        else:
            counting = {info.sequence for info in self.store.list(run_id)}
            records = [r for r in self.store.read(run_id, kinds=(CHECKPOINT,)) if r.sequence in counting]
        newest = max(records, key=lambda record: (self._saved_at(run_id, record), record.sequence), default=None)
        return None if newest is None else self.load(run_id, newest.node_id)

    def _saved_at(self, run_id: str, record: Record) -> datetime:
        """Return the time that a point names. For a save from outside it may differ from its record's time."""
        if record.is_foreign:
            return self._point(run_id, record.node_id, record.envelope()).saved_at
        return parse_time(str(record.fields()["timestamp"]))

    def list_checkpoints(self, run_id: str) -> list[str]:
        marked = self._marked(run_id)
        if marked is not None:
            return list(marked.marks)
        return [info.node_id for info in self.store.list(run_id)]

    def clear(self, run_id: str) -> None:
        self.store.delete_run(run_id)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            store = self._store
        if store is not None:
            store.close()

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            self._lock = threading.Lock()
        else:
            self._lock.release()


class _FilePoints(_Points):
    """The points of a folder, which have files beside the journals."""

    is_blocking = True

    def __init__(self, base: Path) -> None:
        def open_store() -> Store:
            # This import costs time, so only stores with files pay for it.
            from milepost.adapters.folder import FolderStore

            return FolderStore(base)

        super().__init__(open_store)

    @property
    def _folder(self) -> FolderStore:
        return cast("FolderStore", self.store)

    def save(self, run_id: str, point: CheckpointData) -> None:
        super().save(run_id, point)
        self._show(run_id, point.checkpoint_id)

    def load(self, run_id: str, checkpoint_id: str) -> CheckpointData | None:
        if self._has_files_only(run_id):
            return self._folder.points.read(run_id, check_id(checkpoint_id))
        return super().load(run_id, checkpoint_id)

    def load_latest(self, run_id: str) -> CheckpointData | None:
        if self._has_files_only(run_id):
            return next(reversed(self._folder.points.read_all(run_id)), None)
        return super().load_latest(run_id)

    def list_checkpoints(self, run_id: str) -> list[str]:
        if self._has_files_only(run_id):
            newest_first = [point.checkpoint_id for point in reversed(self._folder.points.read_all(run_id))]
            return [*dict.fromkeys(newest_first)][::-1]
        return super().list_checkpoints(run_id)

    def clear(self, run_id: str) -> None:
        if not self._has_files_only(run_id):
            with suppress(RunNotFoundError):
                if self.store.get_run(run_id).lease not in {"live", "ours"}:
                    # Remove the files first: if the process died half-way, files without a
                    # journal would bring the run back.
                    self._folder.points.clear(run_id)
            super().clear(run_id)
        self._folder.points.clear(run_id)

    def _has_files_only(self, run_id: str) -> bool:
        return not self._folder.has(check_run_id(run_id)) and self._folder.points.has_any(run_id)

    def _show(self, run_id: str, checkpoint_id: str) -> None:
        """Write the point's file from the journal, until the journal no longer changes meanwhile."""
        folder = self._folder
        for _ in range(_TRIES):
            told = folder.journaled(run_id, checkpoint_id)
            if told is None:
                folder.points.remove(run_id, checkpoint_id)
            elif not folder.points.write(run_id, self._point(run_id, checkpoint_id, told)):
                continue
            if folder.journaled(run_id, checkpoint_id) == told:
                return
        raise StoreError(
            f"checkpoint {checkpoint_id!r} of run {run_id!r} is recorded, but others saved it {_TRIES} times while its "
            f"file was written: save it again",
            store=self.store.place,
            op="save",
        )


class AsyncView:
    """The points of a store's runs; see `milepost.adapters.checkpoint_view`. Any thread and any event loop may use it."""

    def __init__(self, points: _Points) -> None:
        self._points = points

    @property
    def store(self) -> Store:
        """The store with the journals, which an engine takes as well. Opening it may wait for the disk."""
        return self._points.store

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Record a point, durable on return.

        A point with the same id stays in the history. Raises `RunLockedError` while somebody executes the run,
        `SerializeStateError` if a result is no plain JSON value.
        """
        if not isinstance(data, CheckpointData):
            raise TypeError(f"data to save must be CheckpointData, not {type(data).__name__}")
        await self._ask("save", workflow_id, data)

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData | None:
        """Return the newest point with that id, or None. A damaged one raises a ValueError."""
        return cast("CheckpointData | None", await self._ask("load", workflow_id, checkpoint_id))

    async def load_latest(self, workflow_id: str) -> CheckpointData | None:
        """Return the run's newest point by `saved_at`, or None. Of equal ones the one saved later counts.

        A damaged one raises a ValueError.
        """
        return cast("CheckpointData | None", await self._ask("load_latest", workflow_id))

    async def clear(self, workflow_id: str) -> None:
        """Remove all of a run. An unknown run is no error. Raise `RunLockedError` while somebody executes it."""
        await self._ask("clear", workflow_id)

    async def list_checkpoints(self, workflow_id: str) -> list[str]:
        """List the ids of a run's points by sequence, each at its last save; [] for an unknown run."""
        return cast("list[str]", await self._ask("list_checkpoints", workflow_id))

    def close(self) -> None:
        """Close the store. Another close is no error; other calls raise `StoreClosedError`."""
        self._points.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._ask("close")

    async def _ask(self, method: str, *args: Any) -> Any:
        def routine() -> Routine[Any]:
            # A driver calls the methods of any object in this way; this one is not a complete store.
            return (yield Ask(cast("Store", self._points), method, *args))

        return await AsyncDriver(SYSTEM).run(routine())


class MemoryCheckpointStore(AsyncView):
    """Points in this process's memory, for tests. They end with the process."""

    def __init__(self) -> None:
        super().__init__(_Points(MemoryStore))

    def __repr__(self) -> str:
        return "MemoryCheckpointStore()"


class FileCheckpointStore(AsyncView):
    """Points in a folder, each also as the file `{base_path}/{workflow_id}/{checkpoint_id}.json`, for people.

    `base_path` defaults to `.milepost/checkpoints/` below the current working directory. No file is touched before the
    first call. An id that is no good file name is encoded in it. A run that another program left as files only is read
    from them; the next write records them first, by their `saved_at`, then name.
    """

    def __init__(self, base_path: str | os.PathLike[str] | None = None) -> None:
        self._base = Path(".milepost/checkpoints" if base_path is None else base_path).absolute()
        super().__init__(_FilePoints(self._base))

    def __repr__(self) -> str:
        return f"FileCheckpointStore({str(self._base)!r})"
