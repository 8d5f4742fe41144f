"""An adapter that makes a store of runs from a store that a user wrote: it puts a journal in memory in front of it.

The journal has what an engine needs and the user's store lacks: the start record, the fence, failures, the history.
Each checkpoint goes to the user's store in the write that appends it. If that fails, nothing is appended, and the run
stops. A verb may read a run that nobody executes here, and find another newest checkpoint in the user's store than in
the journal. Then the store counts, and its checkpoints are recorded as saves from outside.

The user's methods are called one at a time. The journal lives as long as the user's object, in this process.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from milepost.adapters.checkpoint_view import AsyncView, LooksOutside
from milepost.adapters.points import (
    NO_ORIGIN,
    TOLD_BY,
    Marked,
    Origin,
    envelope_of,
    is_marked,
    origin_in,
    point_of,
)
from milepost.errors import OptionError, RunExistsError, StoreError, shown
from milepost.model.checkpoint_data import CheckpointData
from milepost.model.failure import describe
from milepost.model.ids import SYSTEM, Clock, in_forked_child
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import CHECKPOINT, NOT_JSON, ROLLBACK, START, Record
from milepost.model.seal import as_first_written
from milepost.store import (
    Append,
    Claim,
    Claimed,
    NewRun,
    Renewal,
    Store,
    Token,
    Verdict,
    check_id,
    check_run_id,
)
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.stores.base.fence import Row
from milepost.stores.base.process_fork import watch
from milepost.stores.base.store import Runs
from milepost.stores.base.transaction import Transaction, saved_record
from milepost.stores.memory import MemoryStore

logger = logging.getLogger("milepost")

T = TypeVar("T")

# -- the protocols ------------------------------------------------------------------------------------------


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


AnyStore = Store | BytesByNode | AsyncPoints | str
"""All types that are accepted as a store; a text is a store's URL."""


# -- calls of a user's store -------------------------------------------------------------------------------


class LoopThread:
    """An event loop in a daemon thread of its own, for coroutines whose results blocking code waits for.

    It begins with the first call and ends with this object. A fork's child begins its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        watch(self)

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Await `awaitable` in the loop and return its result."""

        async def awaited() -> T:
            return await awaitable

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name="milepost-loop", daemon=True).start()
                # The thread ends by itself when the interpreter exits.
                weakref.finalize(self, _stop, self._loop).atexit = False
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(awaited(), loop).result()

    def _before_fork(self) -> None:
        self._lock.acquire()

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            self._lock = threading.Lock()
            # Its thread does not exist in this process, so the loop can be neither used nor closed.
            _inherited.append(self._loop)
            self._loop = None
        else:
            self._lock.release()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)


_inherited: list[Any] = []


BY_NODE = ("save", "load", "list", "delete", "delete_run", "close")
BY_POINT = ("save", "load", "load_latest", "clear", "list_checkpoints")
_FORGOTTEN = "forgotten"


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


class _Caller:
    """A caller of one user's store, which awaits what has to be awaited. All exceptions become `StoreError`."""

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
        return point if point.checkpoint_id == kept.node_id else replaced(point, checkpoint_id=kept.node_id)

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


class _Envelope(_Place):
    workflow_name: str | None = None
    step_type: str | None = None
    step_results: list[_Place] = []


_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def _placed(node_id: str, data: bytes) -> StoredCheckpoint:
    """Build a checkpoint with the numbers that its envelope, or its point's last result,
    names. Other bytes may name none."""
    try:
        envelope = _decode_envelope(data)
    except NOT_JSON:
        envelope = _Envelope()
    place = envelope.step_results[-1] if envelope.workflow_name is not None and envelope.step_results else envelope
    is_of_steps = envelope.workflow_name is not None or envelope.step_type is not None
    return StoredCheckpoint(node_id, data, max(0, place.sequence), max(1, place.visit), is_of_steps)


def _in_order(found: list[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Sort checkpoints by their numbers in the run if all have one. Otherwise keep the store's order."""
    places = [kept.sequence for kept in found]
    is_told = 0 not in places and len(set(places)) == len(places)
    return sorted(found, key=lambda kept: kept.sequence) if is_told else found


# -- the adapter -------------------------------------------------------------------------------------------


_PATIENCE = 0.5
"""Seconds that a renewal waits for its turn."""


def adapted(store: object, *, clock: Clock = SYSTEM) -> Store:
    """Return `store` itself if it is one of ours. Put a journal before a user's object with the
    methods of a small protocol.

    Within a process the same object gets the same journal each time, and one warning. Raise `OptionError`, which names
    the missing methods, for anything else.
    """
    if isinstance(store, Store):
        return store
    if isinstance(store, AsyncView):
        return store.store
    kind = _kind_of(store)
    with _lock:
        known = _known.get(id(store))
        if known is None or known.given() is not store:
            known = _Known(_reference(store), _Front(clock=clock), lambda: None)
        wrapper = known.wrapper()
        if wrapper is None:
            wrapper = Adapted(kind(store, known.front.loop), known.front, clock)
            if id(store) not in _known:
                _warn(wrapper.place, kind.by_point)
            _known[id(store)] = known._replace(wrapper=weakref.ref(wrapper))
        return wrapper


def _kind_of(store: object) -> type[NodeStore] | type[PointStore]:
    lacking = {
        methods: [name for name in methods if not callable(getattr(store, name, None))]
        for methods in (BY_NODE, BY_POINT)
    }
    if isinstance(store, type) or all(lacking.values()):
        nearest = min(lacking, key=lambda methods: len(lacking[methods]) / len(methods))
        problem = "which is a class" if isinstance(store, type) else f"which lacks {_listed(lacking[nearest])}"
        raise OptionError(
            f"store must be a store, such as SQLiteStore('runs.db') or open_store(url), or an object with the methods "
            f"{_listed(nearest)}, not {shown(store)}, {problem}",
            option="store",
        )
    return PointStore if lacking[BY_NODE] else NodeStore


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _warn(place: str, by_point: bool) -> None:
    of_workflows = (
        "what a workflow did after the newest point that it marked with .checkpoint() (another process does it again)"
        if by_point
        else "a comparison of a workflow's inputs in another process (it goes on with those that it is given)"
    )
    logger.warning(
        "store %s keeps checkpoints only, and the journal of its runs is in this process's memory. It cannot promise: a "
        "start record (a run that dies before its first checkpoint is gone), a fence (two processes may execute one run "
        "at once), a history (of each node the newest checkpoint is kept), waits (a workflow that has to wait is refused "
        "there), %s",
        place,
        of_workflows,
    )


class _Front(MemoryStore):
    """The journal in memory. It does not know the user's store, but lives as long."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.origins: dict[str, Origin] = {}
        self.of_steps: set[str] = set()
        """The runs of workflows."""
        self.loop = LoopThread()
        """The thread where all coroutines of the user's store run: what they keep open may be bound to its loop."""

    def know(self, run_id: str, begun: Record) -> None:
        """Note the facts that a run's start record gives."""
        self.origins[run_id] = origin_in(begun)
        if begun.fields().get("front") == "workflow":
            self.of_steps.add(run_id)

    def forget(self, run_id: str) -> None:
        """Forget the facts about a run."""
        self.origins.pop(run_id, None)
        self.of_steps.discard(run_id)


class _Known(NamedTuple):
    """A living user's object with its journal, and the wrapper of the two while somebody uses it."""

    given: Callable[[], object | None]
    front: _Front
    wrapper: Callable[[], Adapted | None]


_known: dict[int, _Known] = {}
_lock = threading.Lock()


def _reference(store: object) -> Callable[[], object | None]:
    key = id(store)
    try:
        return weakref.ref(store, lambda _: _known.pop(key, None))
    except TypeError:  # it has slots without one for weak references: it stays
        return lambda: store


@in_forked_child
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


class Adapted(LooksOutside):
    """A user's store behind its journal; see `adapted`."""

    can_park = False
    can_fork = False

    def __init__(self, user: NodeStore | PointStore, front: _Front, clock: Clock = SYSTEM) -> None:
        super().__init__(clock=clock, entropy=None)  # the start record is lost with the process
        self.place = front.place = user.place
        self._user = user
        self._front = front
        # Tokens live as long as the journal, because they belong to its runs.
        self._held = front._held
        self._turn = threading.RLock()
        """The lock of all changes. The user's methods are called one at a time, and each change is one unit."""

    def __repr__(self) -> str:
        return f"<{self.place} behind a journal in memory>"

    def close(self) -> None:
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            self._front.close()
            for key, known in list(_known.items()):
                if known.front is self._front:
                    _known.pop(key, None)
            self._user.close()

    # -- the backend ---------------------------------------------------------------------------------

    @contextmanager
    def _write(self, op: str) -> Iterator[Transaction]:
        with self._turn, self._front._write(op) as tx:
            yield tx

    @contextmanager
    def _read(self, op: str) -> Iterator[Transaction]:
        with self._front._read(op) as tx:
            yield tx

    def _lease_end(self, now: float, lease: float) -> float | None:
        return None

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            self._turn = threading.RLock()

    # -- what the user's store has ---------------------------------------------------------------------

    def _look(self, run_id: str) -> None:
        with self._turn:
            self._check_open()
            with self._front._read("look") as tx:
                row = tx.row(run_id)
                if row is not None and self._state(row, self.clock.time()) in {"live", "ours"}:
                    return  # its owner in this process has sent the user's store everything
                expected = None if row is None else self._expected(tx, run_id, row.live)
            entries, origin = self._user.entries(run_id)
            if not self._is_same(run_id, expected, entries):
                self._take_in(run_id, entries, origin)

    def _expected(self, tx: Transaction, run_id: str, live: Ranges, before: int | None = None) -> _Expected:
        """Return what the user's store should have of a run, from the records below `before`."""
        is_marked = self._user.by_point and run_id in self._front.of_steps
        return _Expected(tx, run_id, live, self._origin(run_id), before, is_marked=is_marked)

    def _expected_now(self, run_id: str) -> _Expected:
        with self._front._read("look") as tx:
            return self._expected(tx, run_id, self._ranges(tx, run_id))

    def _is_same(self, run_id: str, expected: _Expected | None, entries: Sequence[StoredCheckpoint]) -> bool:
        """Return whether the newest checkpoint is the same on both sides, or all are: then the
        journal's order is the better one."""
        theirs = {entry.node_id: entry.data for entry in entries}
        mine = {} if expected is None else expected.records

        def is_kept(record: Record) -> bool:
            assert expected is not None
            kept = theirs.get(record.node_id)
            return kept is not None and kept == self._user.kept_as(run_id, expected.kept(record), self._origin(run_id))

        if not mine or not entries:
            return not mine and not entries
        newest = max(mine.values(), key=lambda record: record.sequence)
        if newest.node_id == entries[-1].node_id:
            return is_kept(newest)
        return mine.keys() == theirs.keys() and all(is_kept(record) for record in mine.values())

    def _take_in(self, run_id: str, entries: Sequence[StoredCheckpoint], origin: Origin | None) -> None:
        """Replace the journal's run by what the user's store has. Numbers and visits stay, and the run goes on from
        them."""
        self._front.forget(run_id)
        if origin is not None:
            self._front.origins[run_id] = origin
        if entries and entries[-1].is_of_steps:
            self._front.of_steps.add(run_id)
        with self._front._write("look") as tx:
            old = tx.row(run_id)
            if old is not None:
                tx.remove_run(run_id)
            if not entries:
                return
            now = self.clock.time()
            epoch = 1 if old is None else old.epoch + 1
            flow = "" if origin is None else origin[0]
            row = Row(run_id, flow, "interrupted", now, now, epoch, life=self._front.draw_life())
            tx.add_row(row)
            # Skipped numbers were never in this journal, nor was the start record of a run whose flow is known.
            sequence, unused = 0, 0 if flow else 1
            for entry in entries:
                sequence = max(sequence + 1, entry.sequence)
                record = saved_record(run_id, sequence, entry.node_id, entry.visit, entry.data, now)
                tx.insert(run_id, (self._front._following(tx, row, record, unused),))
                unused = sequence + 1
            tx.put_row(replace(row, sequence=sequence))

    def _origin(self, run_id: str) -> Origin:
        return self._front.origins.get(run_id, NO_ORIGIN)

    # -- verbs -----------------------------------------------------------------------------------------

    def create(self, new: NewRun) -> Token:
        token = super().create(new)
        self._front.know(new.run_id, new.record)
        return token

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        """Append one by one, so that a checkpoint that the user's store refuses stops only its own run.

        After a `StoreError` some of the batch may be written; the caller finds out from the journal.
        """
        verdicts: list[Verdict] = []
        failed: StoreError | None = None
        for append in batch:
            try:
                verdicts += super().append([append])
            except StoreError as exc:
                failed = failed or exc
        if failed is not None:
            raise failed
        return verdicts

    def _append(self, tx: Transaction, append: Append) -> Verdict:
        verdict = super()._append(tx, append)
        if verdict.outcome == "written":
            for record in append.records:
                self._tell(tx, append.token.run_id, record)
        return verdict

    def _tell(self, tx: Transaction, run_id: str, record: Record) -> None:
        """Let the user's store keep a checkpoint of its kind, and remove those that a rollback has undone."""
        if record.kind == CHECKPOINT:
            if not self._user.by_point or run_id not in self._front.of_steps:
                self._keep(run_id, StoredCheckpoint(record.node_id, record.envelope()))
            elif is_marked(record):
                expected = self._expected(tx, run_id, self._ranges(tx, run_id), record.sequence + 1)
                self._keep(run_id, expected.kept(record))
        elif record.kind == ROLLBACK:
            live = self._ranges(tx, run_id)
            before = self._expected(tx, run_id, live, record.sequence)
            self._update(run_id, before, self._expected(tx, run_id, live, record.sequence + 1))

    def _ranges(self, tx: Transaction, run_id: str) -> Ranges:
        row = tx.row(run_id)
        return () if row is None else row.live

    def _keep(self, run_id: str, kept: StoredCheckpoint) -> None:
        self._user.keep(run_id, kept, self._origin(run_id))

    def renew(self, tokens: Sequence[Token]) -> list[Renewal]:
        # A slow save must not delay the thread that renews all leases of the process. These leases have no end.
        if not self._turn.acquire(timeout=_PATIENCE):
            return [Renewal("unknown") for _ in tokens]
        try:
            return super().renew(tokens)
        finally:
            self._turn.release()

    def _claim(self, tx: DecodingTransaction, row: Row, request: Claim, **how: Any) -> Claimed:
        claimed = super()._claim(tx, row, request, **how)
        if claimed.token is not None and request.live is not None:
            run_id = row.run_id
            self._update(run_id, self._expected(tx, run_id, row.live), self._expected(tx, run_id, request.live))
        return claimed

    def _update(self, run_id: str, old: _Expected, new: _Expected) -> None:
        """Let the user's store keep the checkpoints that count from now on, and remove those that do not."""
        before, now = old.records, new.records
        changed = [node_id for node_id, record in before.items() if now.get(node_id) != record]
        # The newest first: in this order the newest one in the store is valid at any time.
        for node_id in sorted(changed, key=lambda node_id: -before[node_id].sequence):
            counting = now.get(node_id)
            if counting is None:
                self._user.forget(run_id, node_id)
            else:
                self._keep(run_id, new.kept(counting))
        for node_id in sorted(now.keys() - before.keys(), key=lambda node_id: now[node_id].sequence):
            self._keep(run_id, new.kept(now[node_id]))

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        kept = StoredCheckpoint(check_id(node_id), bytes(memoryview(data)))
        with self._turn:
            self._look(check_run_id(run_id))
            self._check_free(run_id, "saved to")
            self._keep(run_id, kept)
            Runs.save(self, run_id, node_id, data)

    def delete(self, run_id: str, node_id: str, *, force: bool = False) -> None:
        with self._turn:
            if run_id in self._front.of_steps:
                # All that no longer counts without the step goes with it.
                before = self._expected_now(run_id)
                Runs.delete(self, run_id, node_id, force=force)
                self._update(run_id, before, self._expected_now(run_id))
                return
            if any(info.node_id == node_id for info in self.history(run_id)):
                self._check_free(run_id, "deleted from", force)
                self._user.forget(run_id, node_id)
            Runs.delete(self, run_id, node_id, force=force)

    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        with self._turn:
            self._look(check_run_id(run_id))
            self._check_free(run_id, "deleted", force)
            self._user.forget_run(run_id)
            Runs.delete_run(self, run_id, force=force)
            self._front.forget(run_id)

    def _forget(self, run_id: str, removal: Any) -> bool:
        with self._turn:
            was_meant = super()._forget(run_id, removal)
            if was_meant and not removal.is_dry:
                self._user.forget_run(run_id)
        return was_meant

    def import_run(self, data: bytes, *, run_id: str | None = None) -> str:
        with self._turn:
            name = super().import_run(data, run_id=run_id)
            try:
                self._keep_imported(name)
            except BaseException:
                Runs.delete_run(self, name)
                raise
        return name

    def _keep_imported(self, run_id: str) -> None:
        if self._user.entries(run_id)[0]:
            raise RunExistsError(
                f"run {run_id!r} exists in {self.place}: give another run_id", run_id=run_id, status="interrupted"
            )
        for begun in self.read(run_id, kinds=(START,), limit=1):
            self._front.know(run_id, begun)
        expected = self._expected_now(run_id)
        for record in sorted(expected.records.values(), key=lambda record: record.sequence):
            self._keep(run_id, expected.kept(record))

    def _check_free(self, run_id: str, deed: str, force: bool = False) -> None:
        """Raise `RunLockedError` if somebody executes the run, unless `force` is set."""
        with self._front._read("look") as tx:
            row = tx.row(run_id)
        if row is not None and not force:
            self._refuse_live(row, self._state(row, self.clock.time()), deed)


class _Expected:
    """The checkpoints that a user's store should have of a run: each node's live one, or each
    point that a workflow marked."""

    def __init__(
        self, tx: Transaction, run_id: str, live: Ranges, origin: Origin, before: int | None, *, is_marked: bool
    ) -> None:
        self._marked: Marked | None = None
        self.records: dict[str, Record]
        """The records by node."""
        if is_marked:
            self._marked = Marked(tx.records(run_id, before=before, kinds=TOLD_BY), live, origin)
            self.records = dict(self._marked.marks)
        else:
            found = {
                node_id: tx.live_checkpoint(run_id, live, before=before, node_id=node_id)
                for node_id in tx.node_ids(run_id)
            }
            self.records = {node_id: record for node_id, record in found.items() if record is not None}
        for undone in tx.records(run_id, before=before, kinds=(ROLLBACK,)):
            # A run that went on from a checkpoint with the undone step would take the step for done.
            since = self._since(tx, run_id, live, undone)
            if since is not None and is_live(undone.sequence, live):
                spoilt = range(since, undone.sequence)
                self.records = {n: record for n, record in self.records.items() if record.sequence not in spoilt}

    def _since(self, tx: Transaction, run_id: str, live: Ranges, undone: Record) -> int | None:
        if self._marked is not None:
            return self._marked.since(undone.node_id, undone.sequence)
        done = tx.live_checkpoint(run_id, live, before=undone.sequence, node_id=undone.node_id)
        return None if done is None else done.sequence

    def kept(self, record: Record) -> StoredCheckpoint:
        """Return the checkpoint to keep for one of the records."""
        if self._marked is None:
            # A deletion before it changes nothing in the user's store.
            return StoredCheckpoint(record.node_id, as_first_written(record).envelope())
        return StoredCheckpoint(record.node_id, b"", point=self._marked.point(record))
