"""This process's hold on the journal of one run: numbers, token, and what every verdict of the store means.

All records of a run that is being executed are made and written here. `write` maps each verdict to what follows in
one place; `give_up` ends the hold. With no store nothing is written and nothing costs anything.
"""

from __future__ import annotations

import logging
from typing import Any

from milepost.effects import Ask, Held, Routine, Write
from milepost.errors import (
    CheckpointWriteError,
    LeaseLost,
    MilepostError,
    RunCancelled,
    SerializeStateError,
    StateTooLargeError,
    StateTypeError,
    StoreError,
)
from milepost.failures import describe, failure_fields, first_line
from milepost.flow import Codec
from milepost.options import Options
from milepost.record import FAILURE, FINISH, ROUTE, Record, format_time, make_record
from milepost.store import Append, Release, Store, Token

__all__ = ["Journal", "ask"]

logger = logging.getLogger("milepost")


def ask(store: Store, method: str, *args: Any, **kwargs: Any) -> Routine[Any]:
    """What a method of the store gives; whatever else than our own errors comes out of it is a `StoreError`."""
    try:
        return (yield Ask(store, method, *args, **kwargs))
    except MilepostError:
        raise
    except Exception as exc:
        raise StoreError(
            f"the store {store.place} failed at {method}: {describe(exc)}; mend the store, then resume",
            store=store.place,
            op=method,
        ) from exc


class Journal:
    """The journal of one run, as its owner writes it."""

    __slots__ = (
        "_codec",
        "_options",
        "degraded",
        "epoch",
        "held",
        "is_released",
        "missed",
        "owed",
        "run_id",
        "sequence",
        "store",
        "token",
    )

    def __init__(self, store: Store | None, run_id: str, codec: Codec, options: Options) -> None:
        self.store = store
        self.run_id = run_id
        self._codec = codec
        self._options = options
        self.token: Token | None = None
        self.epoch = 0
        self.sequence = -1
        """Of the newest record."""
        self.held: Held | None = None
        self.degraded = False
        """Whether a checkpoint could not be saved and the run goes on all the same."""
        self.missed: tuple[str, ...] = ()
        """The visits without a checkpoint, as `node#visit`."""
        self.is_released = False
        self.owed: Release | None = None
        """A release that the store could not take yet."""

    # -- making records ------------------------------------------------------------------------------

    def encode(self, state: Any) -> bytes | SerializeStateError:
        """Encode a state. That it cannot be saved is an answer; that it is no such state (`StateTypeError`) is raised."""
        try:
            data = self._codec.encode(state)
        except SerializeStateError as exc:
            return exc
        limit = self._options.max_state_size
        if limit is not None and len(data) > limit:
            return StateTooLargeError(
                f"the state has {len(data)} bytes, and max_state_size is {limit}: keep large data outside the state and "
                f"its path in it, or raise max_state_size",
                size=len(data),
                limit=limit,
                type_name=type(state).__qualname__,
            )
        if len(data) > self._options.warn_size:
            logger.warning("state of run %r has %d bytes", self.run_id, len(data), extra={"run_id": self.run_id})
        return data

    def encode_if_possible(self, state: Any) -> bytes | None:
        """Encode a state, or None where it cannot be."""
        try:
            return self._codec.encode(state)
        except (SerializeStateError, StateTypeError):
            return None

    def make(
        self,
        kind: str,
        node_id: str = "",
        visit: int = 1,
        *,
        ahead: int = 1,
        state: bytes | None = None,
        timestamp: str | None = None,
        **fields: Any,
    ) -> Record:
        """A record for the number that is `ahead` of the newest one."""
        fields["epoch"] = self.epoch
        return make_record(
            self.run_id,
            self.sequence + ahead,
            timestamp or format_time(self._options.clock.time()),
            kind,
            node_id,
            visit,
            state,
            fields,
            bool(self._options.compress),
        )

    def failure(
        self, op: str, node_id: str, visit: int, attempt: int, error: BaseException, *, ahead: int = 1, **fields: Any
    ) -> Record:
        """A failure record; the error as text."""
        told = failure_fields(error)
        return self.make(FAILURE, node_id, visit, ahead=ahead, op=op, attempt=attempt, **told, **fields)

    # -- writing -------------------------------------------------------------------------------------

    def write(
        self, records: tuple[Record, ...], release: Release | None = None, tags: dict[str, str] | None = None
    ) -> Routine[None]:
        """Append; every verdict is mapped here. Raises `CheckpointWriteError`, `LeaseLost` or `RunCancelled`."""
        assert self.store is not None
        assert self.token is not None
        cancel = None
        try:
            verdict = yield Write(self.store, Append(self.token, records, release, tags))
        except Exception as exc:
            if not (yield from self._was_written(records)):
                raise self._unwritten(records, exc) from exc
        else:
            cancel = verdict.cancel
            if verdict.outcome == "refused" and release is not None and release.status == "finished":
                # A cancel came before the end: what was done stays, and the run ends as cancelled.
                yield from self.write(records[:-1], None, tags)
                raise self.cancelled(cancel or "")
            if verdict.outcome != "written":
                raise self.lost()
        self.sequence += len(records)
        self.is_released = release is not None
        if cancel is not None and release is None:
            raise self.cancelled(cancel)

    def _was_written(self, records: tuple[Record, ...]) -> Routine[bool]:
        """Whether an append with an unknown outcome took effect: asked of the journal, never written again blindly."""
        if self.store is None or not records or records[0].header is None:
            return False
        first = records[0].sequence
        try:
            found = yield Ask(self.store, "read", self.run_id, after=first - 1, before=first + 1)
        except Exception:
            return False
        if not found or found[0].header is None:
            return False
        is_ours: bool = found[0].header.startswith(records[0].header)
        return is_ours

    def _unwritten(self, records: tuple[Record, ...], exc: Exception) -> CheckpointWriteError:
        assert self.store is not None
        node_id = records[0].node_id if records else None
        return CheckpointWriteError(
            f"the checkpoint of node {node_id!r} of run {self.run_id!r} could not be written to {self.store.place}: "
            f"{describe(exc)}; what was saved before is kept: mend the store, then resume",
            run_id=self.run_id,
            node_id=node_id,
            store=self.store.place,
            op="append",
        )

    def finish(self, result: int, before: tuple[Record, ...] = (), tags: dict[str, str] | None = None) -> Routine[None]:
        """Record the end of the run, whose result is checkpoint number `result`, together with `before`."""
        finish = self.make(FINISH, ahead=len(before) + 1, status="finished", result=result)
        yield from self.write((*before, finish), Release("finished", degraded=self.degraded, missed=self.missed), tags)

    def finish_failed(
        self, before: tuple[Record, ...], error: MilepostError, original: BaseException | None = None
    ) -> Routine[None]:
        """Record that the run failed with `error`, together with `before`."""
        reason = first_line(error)
        told = failure_fields(original or error)
        finish = self.make(FINISH, ahead=len(before) + 1, status="failed", reason=reason, **told)
        release = Release("failed", reason, degraded=self.degraded, missed=self.missed)
        yield from self.write((*before, finish), release)

    def route(self, node_id: str, visit: int, next_node: str, iteration: int) -> Routine[None]:
        """Record the late answer of a router."""
        yield from self.write((self.make(ROUTE, node_id, visit, next_node=next_node, iteration=iteration),))

    def give_up(self, release: Release, records: tuple[Record, ...] = ()) -> Routine[str]:
        """Release the run. Where the store fails the release is owed, and tried again while the process lives.

        Gives the verdict's outcome, or "owed".
        """
        assert self.store is not None
        assert self.token is not None
        try:
            verdict = yield Write(self.store, Append(self.token, records, release))
            if verdict.outcome == "taken":
                # An append whose outcome nobody could learn was written after all: the release alone is missing.
                verdict = yield Write(self.store, Append(self.token, (), release))
        except Exception as failed:
            self.owe(release, failed)
            return "owed"
        self.is_released = verdict.outcome == "written"
        outcome: str = verdict.outcome
        return outcome

    def owe(self, release: Release, failed: BaseException) -> None:
        """Note a release that the store could not take."""
        self.owed = release
        logger.warning(
            "run %r could not be released as %s yet: %s",
            self.run_id,
            release.status,
            describe(failed),
            extra={"run_id": self.run_id},
        )

    # -- what ends a hold from outside -----------------------------------------------------------------

    def check_hold(self) -> None:
        """Raise `LeaseLost` or `RunCancelled` where the run is not this owner's to go on with."""
        if self.held is None:
            return
        if self.held.is_lost:
            raise self.lost()
        if self.held.cancel is not None:
            raise self.cancelled(self.held.cancel)

    def lost(self) -> LeaseLost:
        """The error of an owner that was overtaken."""
        return LeaseLost(
            f"run {self.run_id!r} has another owner now (this one had epoch {self.epoch}): what was recorded stands, what "
            f"was done here since does not count; see `milepost show {self.run_id}`",
            run_id=self.run_id,
            epoch=self.epoch,
        )

    def cancelled(self, reason: str) -> RunCancelled:
        """The error of a run that was cancelled."""
        told = f": {reason}" if reason else ""
        return RunCancelled(f"run {self.run_id!r} was cancelled{told}", run_id=self.run_id, reason=reason)
