"""Stores of marked points for asynchronous code: save, load, load_latest, clear and list_checkpoints.

They are adapters over the journal of a store. A second save under the same id is a new visit, ids are listed by
sequence, and `load_latest` gives the newest point by `saved_at`. The records of an engine's verbs are visible too: all
checkpoints of a graph, and those of a workflow that `.checkpoint()` marks. A missing point is None, missing points are
an empty list. A failure is a `StoreError`, which is an OSError; damaged data are a ValueError; `RunLockedError` says
that somebody executes the run.

No call blocks an event loop: files are read and written in the store's own thread. If its task is cancelled, a save or
a clear that has begun is awaited.

In a folder marked points are JSON files for people, one for each point: `{base}/{run id}/{checkpoint id}.json`. The
journal beside them is what counts; only a run without a journal is read from its files. Of a workflow that an engine
runs there only the newest marked point has a file, so that a run takes no more room than its journal does. Files of
direct saves stay. Another program may have left a run as files without a journal. When a verb of the store first reads
such a run, its files become saves from outside, by their time, then name.
"""

from __future__ import annotations

import abc
import builtins
import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from milepost.adapters.points import Marked, is_marked, marked_of, origin_of, point_of
from milepost.drivers import AsyncDriver
from milepost.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    DeserializeStateError,
    MilepostError,
    RunNotFoundError,
    StoreClosedError,
    StoreError,
)
from milepost.executor.effects import Ask, Routine
from milepost.model.checkpoint_data import CheckpointData
from milepost.model.ids import SYSTEM
from milepost.model.record import CHECKPOINT, Record, parse_time
from milepost.store import Append, Claim, Claimed, NewRun, RunSnapshot, Store, Token, Verdict, check_id, check_run_id
from milepost.stores.base.fence import Row, intruded
from milepost.stores.base.folders import make_folder, sync_folder
from milepost.stores.base.process_fork import watch
from milepost.stores.base.store import Runs
from milepost.stores.base.transaction import Transaction, saved_record
from milepost.stores.file.fs import LARGEST, Files, below, place_of, read_regular
from milepost.stores.file.store import FileStore
from milepost.stores.memory import MemoryStore

logger = logging.getLogger("milepost")

Verb = TypeVar("Verb", bound=Callable[..., Any])

_SUFFIX = ".json"
_TRIES = 20
"""Number of times that a point's file is written while others save that point at the same time."""


def _after_a_look(verb: Verb) -> Verb:
    """Wrap a verb so that it looks outside before it does its work."""

    @functools.wraps(verb)
    def looked(self: LooksOutside, run_id: str, *args: Any, **kwargs: Any) -> Any:
        self._look(check_run_id(run_id))
        # Call the method of the backend's own class, which may have overridden it.
        return getattr(super(LooksOutside, self), verb.__name__)(run_id, *args, **kwargs)

    return cast("Verb", looked)


class LooksOutside(Runs):
    """A mixin for stores whose journal is incomplete: something outside of it may know more about a run.

    It looks there before each verb that begins something, and records what the journal lacks, as saves from outside.
    The verbs of a run's owner do not look: the journal belongs to them. Put it before the backend's class.
    """

    @abc.abstractmethod
    def _look(self, run_id: str) -> None:
        """Record what is known outside about a run that nobody here executes. Raise what reading it raises."""

    def create(self, new: NewRun) -> Token:
        self._look(check_run_id(new.run_id))
        return super().create(new)

    def latest(self, run_id: str, *, before: int | None = None, with_nodes: bool = False) -> RunSnapshot:
        if before is None:
            self._look(check_run_id(run_id))
        return super().latest(run_id, before=before, with_nodes=with_nodes)

    get_run = _after_a_look(Runs.get_run)
    put_signal = _after_a_look(Runs.put_signal)
    request_cancel = _after_a_look(Runs.request_cancel)
    save = _after_a_look(Runs.save)
    load = _after_a_look(Runs.load)
    list = _after_a_look(Runs.list)
    history = _after_a_look(Runs.history)
    delete = _after_a_look(Runs.delete)
    delete_run = _after_a_look(Runs.delete_run)
    export = _after_a_look(Runs.export)
    verify = _after_a_look(Runs.verify)


# -- a folder with files -----------------------------------------------------------------------------------


class PointFiles:
    """The files of all runs below `base`, written through `files`. Raises `StoreError` if the disk fails."""

    def __init__(self, base: Path, files: Files) -> None:
        self.base = base
        self._files = files

    def write(self, run_id: str, point: CheckpointData) -> bool:
        """Write the file of `point`, in place of the old one. Return False if the run's folder was removed meanwhile."""
        data = point.encode(indent=2)
        folder = self._folder(run_id)
        with self._failing_as("save"):
            if make_folder(str(folder)):
                sync_folder(str(self.base))
            made = self._files.write(data)
            try:
                os.replace(made, self._file(run_id, point.checkpoint_id))
            except BaseException as exc:
                self._files.discard(made)
                if isinstance(exc, FileNotFoundError):
                    return False
                raise
            sync_folder(str(folder))
        return True

    def read(self, run_id: str, checkpoint_id: str) -> CheckpointData | None:
        """Read the point from its file; None if it has none. Raise `CheckpointCorruptError` if
        the file holds no such point."""
        # Another program names its files by the ids themselves. The folder is listed because some file systems also
        # find a file under other names.
        for path in self._paths(run_id):
            if path.name in _names(checkpoint_id):
                return self._parsed(path)
        return None

    def read_all(self, run_id: str) -> list[CheckpointData]:
        """Read all points of a run that have files, by `saved_at`, then name. Raise
        `CheckpointCorruptError` as `read` does."""
        points = [(path.name, self._parsed(path)) for path in self._paths(run_id)]
        found = [(point.saved_at, name, point) for name, point in points if point is not None]
        return [point for _, _, point in sorted(found, key=lambda entry: entry[:2])]

    def has_any(self, run_id: str) -> bool:
        """Return whether a run has files."""
        return bool(self._paths(run_id))

    def remove(self, run_id: str, checkpoint_ids: Collection[str] | None = None) -> None:
        """Remove the files of these points, or of all, and the run's folder once it is empty. A missing one is no error."""
        names = (
            None if checkpoint_ids is None else {place_of(checkpoint_id) + _SUFFIX for checkpoint_id in checkpoint_ids}
        )
        with self._failing_as("clear" if names is None else "save"):
            for path in self._paths(run_id):
                if names is None or path.name in names:
                    path.unlink(missing_ok=True)
            # A journal, if there is one, is in the folder.
            with suppress(OSError):
                self._folder(run_id).rmdir()
                sync_folder(str(self.base))

    # -- below ---------------------------------------------------------------------------------------

    def _folder(self, run_id: str) -> Path:
        return below(self.base, place_of(run_id))

    def _file(self, run_id: str, checkpoint_id: str) -> Path:
        return below(self.base, place_of(run_id), place_of(checkpoint_id) + _SUFFIX)

    def _paths(self, run_id: str) -> list[Path]:
        with self._failing_as("list"):
            try:
                with os.scandir(self._folder(run_id)) as entries:
                    return sorted(Path(e.path) for e in entries if e.name.endswith(_SUFFIX) and e.is_file())
            except FileNotFoundError:
                return []

    def _parsed(self, path: Path) -> CheckpointData | None:
        with self._failing_as("load"):
            try:
                data = read_regular(str(path), LARGEST)
            except FileNotFoundError:
                return None
        try:
            point = CheckpointData.decode(data)
        except DeserializeStateError as exc:
            raise CheckpointCorruptError(
                f"{path} is no checkpoint: {exc}: mend the file, or move it out of the folder", found=str(path)
            ) from exc
        if path.name not in _names(point.checkpoint_id):
            raise CheckpointCorruptError(
                f"{path} holds checkpoint {point.checkpoint_id!r}: name the file as the checkpoint, or move it out of the "
                f"folder",
                found=point.checkpoint_id,
            )
        return point

    @contextmanager
    def _failing_as(self, op: str) -> Iterator[None]:
        """Convert errors of the disk to `StoreError`."""
        try:
            yield
        except StoreError:
            raise
        except OSError as exc:
            raise StoreError(
                f"the folder {self.base} failed at {op}: {exc}: look at the disk and the folder's "
                f"rights, then try again",
                store=str(self.base),
                op=op,
            ) from exc


def _names(checkpoint_id: str) -> set[str]:
    return {place_of(checkpoint_id) + _SUFFIX, checkpoint_id + _SUFFIX}


class FolderStore(LooksOutside, FileStore):
    """The store below a `FileCheckpointStore`, in the folder `base`."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.points = PointFiles(base, self._files)

    def has(self, run_id: str) -> bool:
        """Return whether the run has a journal."""
        with self._reading("get_run") as tx:
            return tx.row(run_id) is not None

    def journaled(self, run_id: str, node_id: str) -> bytes | None:
        """Return what `load` returns, from the journal alone; None if there is no such checkpoint."""
        try:
            return FileStore.load(self, run_id, node_id)
        except CheckpointNotFoundError:
            return None

    # -- the file of the newest marked point -----------------------------------------------------------

    def append(self, batch: Sequence[Append]) -> builtins.list[Verdict]:
        verdicts = super().append(batch)
        for append, verdict in zip(batch, verdicts, strict=True):
            if verdict.outcome == "written" and any(map(is_marked, append.records)):
                self._show_newest(append.token.run_id)
        return verdicts

    def claim(self, claim: Claim) -> Claimed:
        claimed = super().claim(claim)
        if claimed.token is not None and claim.live is not None:
            self._show_newest(claim.run_id)  # the point that has a file may be superseded now
        return claimed

    def _show_newest(self, run_id: str) -> None:
        """Write a file for the newest point that the run itself marked, and remove those of its older ones.

        The journal has the point, so a file that cannot be written stops nothing.
        """
        try:
            marked = marked_of(self, run_id)
            if marked is None:
                return
            own = [step_id for step_id, mark in marked.marks.items() if not mark.is_foreign]
            if own:
                self.points.write(run_id, marked.point(marked.marks[own[-1]]))
            self.points.remove(run_id, marked.own - marked.saved - {*own[-1:]})
        except MilepostError as exc:
            logger.warning(
                "the newest marked point of run %r has no file in %s: %s; the journal has it",
                run_id,
                self.place,
                exc,
                extra={"run_id": run_id},
            )

    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        with suppress(RunNotFoundError):
            if force or self.get_run(run_id).lease not in {"live", "ours"}:
                # Remove the files first: if the process died half-way, files without a journal would bring the run back.
                self.points.remove(run_id)
        super().delete_run(run_id, force=force)

    def _forget(self, run_id: str, removal: Any) -> bool:
        if not removal.is_dry:
            self.points.remove(run_id)
        return super()._forget(run_id, removal)

    # -- what other programs left ----------------------------------------------------------------------

    def _look(self, run_id: str) -> None:
        if self.has(run_id):
            return
        points = self.points.read_all(run_id)
        if not points:
            return

        def body(tx: Transaction) -> None:
            if tx.row(run_id) is not None:
                return  # somebody else was faster
            flow = points[-1].workflow_name
            moment = points[0].saved_at.timestamp()
            row = Row(run_id, flow, "interrupted", moment, moment, epoch=0, life=self.draw_life())
            tx.add_row(row)
            # Skipped numbers were never in this journal, nor was the start record of a flow that is known.
            sequence = unused = 0
            for point in points:
                # One number for each of its results: a replay turns them into records.
                sequence = max(sequence + 1, len(point.step_results))
                data, moment = point.encode(), point.saved_at.timestamp()
                visit = tx.last_visit(run_id, point.checkpoint_id) + 1
                record = saved_record(run_id, sequence, point.checkpoint_id, visit, data, moment)
                row = intruded(row, sequence, moment)
                tx.insert(run_id, (self._following(tx, row, record, unused),))
                unused = sequence + 1
            tx.put_row(row)

        self._change("save", body)


# -- the views ---------------------------------------------------------------------------------------------


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
        super().__init__(lambda: FolderStore(base))

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
            super().clear(run_id)
        self._folder.points.remove(run_id)

    def _has_files_only(self, run_id: str) -> bool:
        return not self._folder.has(check_run_id(run_id)) and self._folder.points.has_any(run_id)

    def _show(self, run_id: str, checkpoint_id: str) -> None:
        """Write the point's file from the journal, until the journal no longer changes meanwhile."""
        folder = self._folder
        for _ in range(_TRIES):
            state = folder.journaled(run_id, checkpoint_id)
            if state is None:
                folder.points.remove(run_id, {checkpoint_id})
            elif not folder.points.write(run_id, self._point(run_id, checkpoint_id, state)):
                continue
            if folder.journaled(run_id, checkpoint_id) == state:
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
