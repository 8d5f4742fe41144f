"""This process's hold on the journal of one run: numbers, token, and the meaning of every verdict of the store.

All records of a run that is being executed are made and written here. `write` alone maps each verdict to its
consequence; `give_up` ends the hold. A run without a store has a `NullJournal`, which writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.codec.codec import Data, Encoder
from milepost.errors import (
    CheckpointWriteError,
    LeaseLost,
    MilepostError,
    RunCancelled,
    SerializeStateError,
    StatementError,
    StateTooLargeError,
    StateTypeError,
    StoreError,
)
from milepost.executor.effects import Ask, Drop, LeaseView, Routine, Write, ask
from milepost.executor.flow import StateCodec
from milepost.executor.history_values import PendingRecord, around
from milepost.model.beginning import PAGE, find_start, start_in
from milepost.model.failure import describe, failure_fields, first_line
from milepost.model.ids import this_process
from milepost.model.record import (
    CHECKPOINT,
    DECOMPRESSED_LIMIT,
    FAILURE,
    FINISH,
    OWNER,
    ROUTE,
    Record,
    format_time,
    make_record,
    make_step,
)
from milepost.options import Options
from milepost.store import Append, Claim, NewRun, Release, RunRow, Statement, Store, Token, read_cancel

if TYPE_CHECKING:
    from milepost.model.info import Wait

logger = logging.getLogger("milepost")

T = TypeVar("T")


class Drained(BaseException):
    """The exception that gives the run back at this boundary, for anybody to go on with."""


def read_start(store: Store, run_id: str, check: Callable[[Record], object] | None = None) -> Routine[Record | None]:
    """Return the start record of a run, completed if the run was started by name; None if it has none.

    `check` is called with each record that it is made of.
    """
    search = find_start()
    kind, after = next(search)
    while True:
        page: list[Record] = yield from ask(store, "read", run_id, kinds=(kind,), after=after, limit=PAGE)
        try:
            kind, after = search.send(page)
        except StopIteration as stop:
            return start_in(stop.value, check)


def take(store: Store, method: str, request: NewRun | Claim, epoch: int, was: Release) -> Routine[Any]:
    """Call `create` or `claim` of the store. If it is interrupted or the store fails, give the run up again.

    A store that fails may have taken the run all the same: then the run gets the status of `was` back, once the store
    can write that.
    """
    token = Token(request.run_id, epoch, request.nonce, this_process().key)
    try:
        return (yield from ask(store, method, request))
    except GeneratorExit:
        raise
    except StoreError as exc:
        yield Drop(store, token, was._replace(reason=f"its store failed while it was taken: {first_line(exc)}"))
        raise
    except Exception:
        raise
    except BaseException as exc:
        release = Release("interrupted", f"its verb was interrupted by {describe(exc)}")
        owed: Release | None = None
        try:
            yield Write(store, Append(token, (), release))
        except GeneratorExit:
            raise
        except BaseException:
            owed = release
        yield Drop(store, token, owed)
        raise


class NullJournal:
    """The journal of a run without a store. It numbers what happens, and writes nothing."""

    __slots__ = (
        "_ahead",
        "_given",
        "_sequence",
        "beginnings",
        "degraded",
        "epoch",
        "has_saved",
        "held",
        "is_dropped",
        "is_ending",
        "is_released",
        "live_events",
        "missed",
        "options",
        "owed",
        "run_id",
        "tags",
        "token",
    )

    is_recorded = False
    """True if what happens is recorded."""

    def __init__(self, run_id: str, options: Options) -> None:
        self.run_id = run_id
        self.options = options
        self.token: Token | None = None
        self.epoch = 0
        self._sequence = self._given = -1
        self.held: LeaseView | None = None
        self.degraded = False
        """True if a checkpoint could not be saved and the run goes on all the same."""
        self.missed: tuple[str, ...] = ()
        """The visits without a checkpoint, as `node#visit`."""
        self.has_saved = False
        """True if a checkpoint was written since the run was taken."""
        self.is_released = False
        self.is_dropped = False
        """True if the lease is kept no more."""
        self.is_ending = False
        """True if the run is on its way to its end, so that a cancel changes nothing any more."""
        self.live_events = 0
        """The number of live events of this epoch so far."""
        self.owed: Release | None = None
        """A release that the store could not take yet."""
        self.beginnings: dict[str, PendingRecord] = {}
        """For each step that runs a flow which has recorded nothing yet, the record that goes before its first one."""
        self._ahead: dict[Record, PendingRecord] = {}
        """The records of beginnings that were made for the next write."""
        self.tags: dict[str, str] = {}
        """The tags that the next write adds to the run's. The contexts of a workflow's code share this dict."""

    # -- making records ------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The number of the newest record that is written."""
        return self._sequence

    @sequence.setter
    def sequence(self, newest: int) -> None:
        self._sequence = self._given = newest

    def next_number(self, node_id: str = "") -> int:
        """Draw the number for a record that is made now and handed in before anybody else makes one.

        Branches may make records while an append is under way. These go into the next append, under the numbers after
        it. The beginnings of the flows that the node is in come before it.
        """
        if self.beginnings:
            for step_id in reversed([*around(node_id)]):
                if draft := self.beginnings.pop(step_id, None):
                    self._ahead[self.make_at(format_time(self.options.clock.time()), *draft)] = draft
        self._given += 1
        return self._given

    def encode(self, state: Any, codec: Encoder[Data], root: str = "state") -> Data | SerializeStateError:
        """Encode a state, or another value, which `root` names.

        Returns a `SerializeStateError` if the value cannot be saved. Raises `StateTypeError` if it has another type.
        """
        try:
            data = codec.encode(state, root=root)
        except SerializeStateError as exc:
            return exc
        limit = min(self.options.max_state_size or DECOMPRESSED_LIMIT, DECOMPRESSED_LIMIT)
        if len(data) > limit:
            raising = ", or raise max_state_size" if limit < DECOMPRESSED_LIMIT else ""
            return StateTooLargeError(
                f"the {root} has {len(data)} bytes, and max_state_size is {limit}: keep large data outside it and "
                f"its path in it{raising}",
                size=len(data),
                limit=limit,
                type_name=type(state).__qualname__,
            )
        if len(data) > self.options.warn_size:
            logger.warning("%s of run %r has %d bytes", root, self.run_id, len(data), extra={"run_id": self.run_id})
        return data

    def encode_if_possible(self, state: Any, codec: StateCodec) -> bytes | None:
        """Encode a state; return None if it cannot be encoded."""
        try:
            return codec.encode(state)
        except (SerializeStateError, StateTypeError):
            return None

    def make(
        self,
        kind: str,
        node_id: str = "",
        visit: int = 1,
        *,
        state: bytes | None = None,
        timestamp: str | None = None,
        **fields: Any,
    ) -> Record:
        """Make a record with the next number; `timestamp` None: with the time of now."""
        now = timestamp or format_time(self.options.clock.time())
        return self.make_at(now, kind, node_id, visit, fields, state)

    def make_at(
        self, now: str, kind: str, node_id: str, visit: int, fields: Mapping[str, Any], state: bytes | None
    ) -> Record:
        """Make a record as `make` does, with the time `now`. Those of checkpoints keep the mapping `fields` itself."""
        number = self.next_number(node_id)
        compressing = bool(self.options.compress)
        if kind == CHECKPOINT:
            assert state is not None
            return make_step(
                self.run_id, number, now, node_id, visit, state, fields, self.epoch, compressing, self.live_events
            )
        fields = {**fields, "epoch": self.epoch}
        if self.live_events and kind != OWNER:  # the `live` of an owner record are ranges
            fields["live"] = self.live_events
        return make_record(self.run_id, number, now, kind, node_id, visit, state, fields, compressing)

    def make_release(
        self,
        status: str,
        reason: str = "",
        wake_at: float | None = None,
        waits: tuple[Wait, ...] = (),
        crash_count: int | None = None,
        signals: int | None = None,
        blocked_by: str = "",
    ) -> Release:
        """Make the release of the run, with what could not be saved of it."""
        return Release(status, reason, wake_at, waits, signals, self.degraded, self.missed, crash_count, blocked_by)

    def failure(self, op: str, node_id: str, visit: int, attempt: int, error: BaseException, **fields: Any) -> Record:
        """Make a failure record; it holds the error as text."""
        recorded = failure_fields(error)
        return self.make(FAILURE, node_id, visit, op=op, attempt=attempt, **recorded, **fields)

    # -- writing -------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store of a run that is recorded."""
        raise AttributeError(f"run {self.run_id!r} has no store")

    def write(
        self,
        records: tuple[Record, ...],
        release: Release | None = None,
        tags: dict[str, str] | None = None,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[None]:
        """Write nothing."""
        yield from ()

    def give_up(self, release: Release, records: tuple[Record, ...] = ()) -> Routine[str]:
        """Do nothing: nobody owns the run."""
        yield from ()
        return "written"

    def park(self, release: Release) -> Routine[bool]:
        """Do nothing: a run without a store is never parked."""
        yield from ()
        return False

    def drop(self) -> Routine[None]:
        """Do nothing: there is no lease."""
        yield from ()

    def finish(
        self,
        result: int,
        before: tuple[Record, ...] = (),
        tags: dict[str, str] | None = None,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[None]:
        """Record the end of the run together with the records `before`. Checkpoint number `result` holds its result."""
        finish = self.make(FINISH, status="finished", result=result)
        release = self.make_release("finished")
        yield from self.write((*before, finish), release, tags, statements)

    def finish_failed(
        self,
        before: tuple[Record, ...],
        error: MilepostError,
        original: BaseException | None = None,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[None]:
        """Record together with the records `before` that the run failed with `error`.

        The record describes `original`, if given, and else `error`.
        """
        reason = first_line(error)
        error_fields = failure_fields(original or error)
        finish = self.make(FINISH, status="failed", reason=reason, **error_fields)
        release = self.make_release("failed", reason)
        yield from self.write((*before, finish), release, None, statements)

    def route(self, node_id: str, visit: int, next_node: str, iteration: int, **fields: Any) -> Routine[None]:
        """Record the late answer of a router."""
        yield from self.write((self.make(ROUTE, node_id, visit, next_node=next_node, iteration=iteration, **fields),))

    def let_go(self, giving_up: Routine[T]) -> Routine[T]:
        """Perform `giving_up`, and stop keeping the lease however that ends.

        If it was interrupted before the run was released, the release goes to `owed`.
        """
        try:
            given = yield from giving_up
        except GeneratorExit:
            raise
        except BaseException as exc:
            if self.token is not None and not self.is_dropped:
                if not self.is_released and self.owed is None and not isinstance(exc, LeaseLost):
                    reason = f"it was interrupted by {describe(exc)} as it was given up"
                    self.owed = self.make_release("interrupted", reason)
                yield from self.drop()
            raise
        if self.token is not None and not self.is_dropped:
            yield from self.drop()
        return given

    def owe(self, release: Release, failed: BaseException) -> None:
        """Keep a release that the store could not write in `owed`, and log that."""
        self.owed = release
        logger.warning(
            "run %r could not be released as %s yet: %s",
            self.run_id,
            release.status,
            describe(failed),
            extra={"run_id": self.run_id},
        )

    # -- what ends a hold from outside -----------------------------------------------------------------

    def begin_to_end(self) -> None:
        """Note that the run is on its way to its end.

        From now on only a lost lease keeps it from rolling back its steps.
        """
        self.is_ending = True
        if self.held is not None:
            self.held.is_ending = True

    def check_hold(self) -> None:
        """Raise `LeaseLost`, `RunCancelled` or `Drained` if this owner may not go on with the run."""
        if self.held is None:
            return
        if self.held.is_lost:
            raise self.lost()
        if self.held.cancel is not None and not self.is_ending:
            raise self.cancelled(self.held.cancel)
        if self.held.is_draining and not self.is_ending:
            raise Drained

    def over(self) -> MilepostError:
        """Make the error of a run that was lost or cancelled while user code was running."""
        if self.held is not None and self.held.cancel is not None and not self.held.is_lost:
            return self.cancelled(self.held.cancel)
        return self.lost()

    def lost(self) -> LeaseLost:
        """Make the error of an owner after which another one has taken the run."""
        return LeaseLost(
            f"run {self.run_id!r} has another owner now (this one had epoch {self.epoch}): what was recorded stands, what "
            f"was done here since does not count; see `milepost show {self.run_id}`",
            run_id=self.run_id,
            epoch=self.epoch,
        )

    def cancelled(self, request: str) -> RunCancelled:
        """Make the error of a run that was cancelled by a request, as `read_cancel` reads it."""
        reason, by = read_cancel(request)
        because = f": {reason}" if reason else ""
        return RunCancelled(f"run {self.run_id!r} was cancelled{because}", run_id=self.run_id, reason=reason, by=by)


class Journal(NullJournal):
    """The journal of one run in its store, for its owner to write."""

    __slots__ = ("_generation", "_store", "_taken_back")

    is_recorded = True

    def __init__(self, store: Store, run_id: str, options: Options) -> None:
        super().__init__(run_id, options)
        self._store = store
        self._taken_back = -1
        self._generation = 0

    @property
    def store(self) -> Store:
        """The store that the journal is in."""
        return self._store

    def write(
        self,
        records: tuple[Record, ...],
        release: Release | None = None,
        tags: dict[str, str] | None = None,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[None]:
        """Append records, with `tags` and those that wait, and act on the verdict.

        Raises `CheckpointWriteError`, `LeaseLost` or `RunCancelled`.

        With statements it may also raise `StatementError`. Then nothing is written and the numbers are free again: a
        branch draws them while it is `Alone`.
        """
        assert self.token is not None
        cancel = None
        generation = self._generation
        ahead, self._ahead = self._ahead, {}
        if ahead:
            records = tuple(sorted((*ahead, *records), key=attrgetter("sequence")))
        if records and records[-1].sequence > self._given:
            self._given = records[-1].sequence
        waiting = dict(self.tags) if self.tags else None
        if waiting:
            self.tags.clear()
            tags = {**waiting, **(tags or {})}
        try:
            verdict = yield Write(self._store, Append(self.token, records, release, tags, statements))
        except StatementError:
            self._take_back(generation)
            self._write_later(ahead, waiting)
            raise
        except Exception as exc:
            # This comes first: while the journal is read, no branch may hand in a number after one that was not written.
            self._take_back(generation)
            if not (yield from self._was_written(records)):
                self._write_later(ahead, waiting)
                raise self._unwritten(records, exc) from exc
            self._given = max(self._given, self._taken_back)
        else:
            cancel = verdict.cancel
            if verdict.outcome != "written":
                self._take_back(generation)
            if verdict.outcome == "refused" and release is not None and release.status == "finished":
                # A cancel came before the end: what was done stays, and the run ends as cancelled.
                yield from self.write(records[:-1], None, tags, statements)
                raise self.cancelled(cancel or "")
            if verdict.outcome != "written":
                raise self.lost()
        self._sequence += len(records)
        if not self.has_saved:
            self.has_saved = any(record.kind == CHECKPOINT for record in records)
        self.is_released = release is not None
        if cancel is not None and release is None and not self.is_ending:
            raise self.cancelled(cancel)

    def _take_back(self, generation: int) -> None:
        """Free the numbers of an append that was not written, once for all branches that handed in records to it."""
        if generation == self._generation:
            self._generation += 1
            self._taken_back, self._given = self._given, self._sequence

    def _write_later(self, ahead: Mapping[Record, PendingRecord], waiting: Mapping[str, str] | None) -> None:
        """Keep beginnings that were not written for the next record inside them, and tags for the next write."""
        self.beginnings.update({draft.step_id: draft for draft in ahead.values()})
        if waiting:
            self.tags.update({**waiting, **self.tags})

    def _was_written(self, records: tuple[Record, ...]) -> Routine[bool]:
        """Return whether an append with an unknown outcome took effect.

        The journal is read; nothing is written again.
        """
        if not records or records[0].header is None:
            return False
        first = records[0].sequence
        try:
            found = yield Ask(self._store, "read", self.run_id, after=first - 1, before=first + 1)
            if not found or found[0].header is None:
                return False
            is_ours: bool = found[0].header.startswith(records[0].header)
            return is_ours and found[0].state() == records[0].state()
        except Exception:
            return False

    def _unwritten(self, records: tuple[Record, ...], exc: Exception) -> CheckpointWriteError:
        # Records that could not be written before stand first: this write is about the newest one.
        node_id = next((record.node_id for record in reversed(records) if record.node_id), None)
        return CheckpointWriteError(
            f"the checkpoint of node {node_id!r} of run {self.run_id!r} could not be written to {self._store.place}: "
            f"{describe(exc)}; what was saved before is kept: mend the store, then resume",
            run_id=self.run_id,
            node_id=node_id,
            store=self._store.place,
            op="append",
        )

    def give_up(self, release: Release, records: tuple[Record, ...] = ()) -> Routine[str]:
        """Release the run. If the store fails, the release stays in `owed` and is tried again while the process lives.

        Returns the verdict's outcome, or "owed". An interruption leaves the release in `owed` too.
        """
        assert self.token is not None
        try:
            try:
                verdict = yield Write(self._store, Append(self.token, records, release))
            except Exception as failed:
                if isinstance(failed, (MilepostError, OSError)) or not release.waiting_for:
                    raise
                # A prompt that cannot be encoded must not prevent the release: the records of the waits hold it too.
                release = release._replace(waiting_for=())
                verdict = yield Write(self._store, Append(self.token, records, release))
            if verdict.outcome == "taken":
                # An append with an unknown outcome was written after all: only the release is missing.
                verdict = yield Write(self._store, Append(self.token, (), release))
        except GeneratorExit:
            raise
        except Exception as failed:
            self.owe(release, failed)
            return "owed"
        except BaseException:
            self.owed = release
            raise
        self.is_released = verdict.outcome == "written"
        outcome: str = verdict.outcome
        return outcome

    def park(self, release: Release) -> Routine[bool]:
        """Release a run that has to wait. Return False if the store refuses that, because a signal has come meanwhile.

        Raises `CheckpointWriteError` or `LeaseLost`.
        """
        assert self.token is not None
        try:
            verdict = yield Write(self._store, Append(self.token, (), release))
        except Exception as exc:
            if not (yield from self._is_parked()):
                raise CheckpointWriteError(
                    f"run {self.run_id!r} has to wait and could not be released to {self._store.place}: {describe(exc)}; "
                    f"what was saved before is kept: mend the store, then resume",
                    run_id=self.run_id,
                    node_id=release.waiting_for[0].wait_id.rpartition("#")[0],
                    store=self._store.place,
                    op="park",
                ) from exc
        else:
            if verdict.outcome == "refused":
                return False
            if verdict.outcome != "written":
                raise self.lost()
        self.is_released = True
        return True

    def _is_parked(self) -> Routine[bool]:
        """Return whether a release with an unknown outcome took effect."""
        try:
            row: RunRow = yield from ask(self._store, "get_run", self.run_id)
        except MilepostError:
            return False
        return row.epoch == self.epoch and row.lease == "free" and row.status in {"waiting", "ready"}

    def drop(self) -> Routine[None]:
        """Stop keeping the lease. An interruption is raised only after that is done."""
        assert self.token is not None
        interruption: BaseException | None = None
        while not self.is_dropped:
            try:
                yield Drop(self._store, self.token, self.owed)
                self.is_dropped = True
            except (GeneratorExit, Exception):
                raise
            except BaseException as exc:
                interruption = exc
        if interruption is not None:
            raise interruption
