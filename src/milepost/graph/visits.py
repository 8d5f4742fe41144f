"""The visits of a walker: its position, the records of each visit, and the events about it.

`_failed` alone decides what follows from a failed attempt, and `unsaved` alone what follows from a failed save.
`milepost.graph.walker` decides which node is visited.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import (
    AttemptTimedOut,
    MilepostError,
    NodeError,
    NodeTimeoutError,
    RunStopped,
    SerializeStateError,
    StatementError,
    StateTypeError,
    StoreError,
)
from milepost.executor.attempt import AttemptBudget, cause_of
from milepost.executor.context import Context
from milepost.executor.effects import OVERDUE_GRACE, Routine
from milepost.executor.flow import END, GraphFlow, StateCodec, Unit
from milepost.executor.recorded import JournalHistory
from milepost.executor.recording import announce_checkpoint, announce_failure, go_on_without, keep_unrecorded
from milepost.executor.run import Run, complete
from milepost.model.digests import Digests
from milepost.model.events import NodeCompleted, NodeStarted
from milepost.model.failure import describe, place
from milepost.model.record import Record, format_time, make_checkpoint
from milepost.model.retry import Retry
from milepost.store import Statement

if TYPE_CHECKING:
    from milepost.graph.parallel import Stop
__all__ = ["Commit", "NodeOutcome", "RunCounters", "Visits"]


class NodeOutcome(msgspec.Struct, eq=False):
    """The outcome of a node: the state after it, its bytes or the error of encoding it, and the updates if needed."""

    state: Any
    data: bytes | SerializeStateError | None = None
    updates: Mapping[str, Any] | None = None


Commit = Callable[[Context[Any], NodeOutcome, float, tuple[Statement, ...]], Routine[None]]


class RunCounters:
    """The counters that all walkers of a run share. The walkers of an item of a map have counters of their own."""

    __slots__ = ("is_of_item", "iteration", "knows_visits", "open", "visits")

    def __init__(self, *, is_of_item: bool = False) -> None:
        self.iteration = 0
        """The number of nodes that were executed."""
        self.open = 0
        """The number of nodes that are being executed."""
        self.is_of_item = is_of_item
        self.visits: dict[str, int] = {}
        """The number of the last visit of each node that this process knows, by whole id."""
        self.knows_visits = True
        """True if a node that is not in `visits` was never visited."""


class Visits:
    """The visits of one graph's nodes.

    `prefix` is "" for the run's own graph, and `label` is "" for nodes that are in no branch.
    """

    __slots__ = (
        "at",
        "digests",
        "encoder",
        "flow",
        "followed_at",
        "given",
        "is_next",
        "is_open",
        "is_resuming",
        "is_untold",
        "item_codec",
        "journal",
        "label",
        "options",
        "prefix",
        "prev_node_id",
        "run",
        "sequence",
        "since",
        "spent",
        "state",
        "stops",
        "store",
        "tally",
        "trunk",
        "updates",
    )

    def __init__(self, run: Run, flow: GraphFlow, prefix: str = "", tally: RunCounters | None = None) -> None:
        self.run = run
        self.flow = flow
        self.prefix = prefix
        self.label = ""
        self.store = run.store
        self.options = run.options
        self.journal = run.journal
        self.tally = RunCounters() if tally is None else tally
        self.prev_node_id = ""
        self.followed_at = run.followed_at
        self.encoder = flow.codec.in_succession()
        self.digests = Digests()
        """The digests of the states that this walker records."""
        self.sequence = 0
        """The number of the newest record on this walker's path."""
        self.trunk: int | None = None
        """For a walker inside a fork, map or graph: the number of the record that the run's own graph had come to."""
        self.at: tuple[str, int] = ("", 0)
        """The node that completed last, and the number of its visit."""
        self.given: bytes | None = None
        """The encoded state for the next node; None if there is none."""
        self.state: Any = None
        """The state for the next node, for errors of a run without a store."""
        self.spent: AttemptBudget | None = None
        """The attempts that the first node has used up; None if they are not known."""
        self.since: JournalHistory | None = None
        """The records since the point where the run goes on; None for a run that begins."""
        self.is_resuming = False
        """True if the next node may have been entered before."""
        self.is_next = True
        """True if the resume begins with the next node."""
        self.item_codec: StateCodec | None = None
        """The codec of a map's item, which is no state; None for a walker of nodes."""
        self.stops: tuple[Stop, ...] = ()
        self.updates: list[Mapping[str, Any]] | None = None
        """The values that a branch's nodes returned for fields with a reducer; None if no join will need them."""
        self.is_open = False
        """True while a node of this walker is being executed."""
        self.is_untold = False
        """True if the next record has to hold all updates again, because earlier records do not hold them."""

    @property
    def is_root(self) -> bool:
        """True if the run ends with this walk."""
        return not self.prefix and not self.label

    @property
    def iteration(self) -> int:
        """The number of nodes that the run has executed."""
        return self.tally.iteration

    @iteration.setter
    def iteration(self, count: int) -> None:
        self.tally.iteration = count

    def encode(self, state: Any) -> bytes | SerializeStateError:
        """Encode a state of the graph, or the result of an item; see `Journal.encode`."""
        return self.journal.encode(state, self.encoder, "state" if self.item_codec is None else "output")

    def forget(self) -> None:
        """Forget the encoder's and the digests' memory of the last state.

        The walk has ended: no later state shares parts with it.
        """
        self.encoder.forget()
        self.digests.forget()

    @property
    def _given_codec(self) -> StateCodec:
        """The codec of the value that a node is given."""
        return self.flow.codec if self.item_codec is None else self.item_codec

    def keep(self, state: Any) -> Any:
        """Keep the bytes of a state, or a copy if it cannot be encoded, so that `fresh` can give it again.

        Returns the state, or the copy.
        """
        if self.given is None:
            self.given = self.journal.encode_if_possible(state, self._given_codec)
        return state if self.given is not None else copy.deepcopy(state)

    def fresh(self, state: Any) -> Any:
        """Return a new state equal to the one that was kept: it shares nothing with `state`, and has no later changes."""
        return self._given_codec.decode(self.given) if self.given is not None else copy.deepcopy(state)

    def last_good(self) -> Any:
        """Return the state that the newest node was given, as far as it is known."""
        return self._given_codec.decode(self.given) if self.given is not None else self.state

    # -- attempts that failed ------------------------------------------------------------------------

    def _failed(
        self,
        unit: Unit,
        context: Context[Any],
        spent: AttemptBudget,
        exc: Exception,
        pause: float | None,
        state: Any,
        *,
        is_ours: bool,
    ) -> Routine[None]:
        """Record a failed attempt. Raise the node's error if the policy allows no further attempt."""
        policy = unit.retry or self.options.retry
        op = "timeout" if isinstance(exc, AttemptTimedOut) else "execute"
        if isinstance(exc, StatementError):
            op, exc = "commit", cause_of(exc)
        error: MilepostError | None = None
        if pause is None and is_ours and isinstance(exc, StateTypeError):
            error = self._no_state(context, exc, spent, state)
        elif pause is None:
            error = self._node_error(context, op, exc, spent, state, policy)
        if self.store is not None:
            yield from self.record_failure(context, op, exc, error, pause)
        yield announce_failure(self.run, context, exc, pause)
        if error is not None:
            raise error from (exc if error is not exc else exc.__cause__)
        spent.notes.append(f"attempt {context.attempt} failed: {describe(exc)}")

    def record_failure(
        self, context: Context[Any], op: str, exc: Exception, error: MilepostError | None, pause: float | None
    ) -> Routine[None]:
        """Record a failed attempt. The last one and the end of the run are one append."""
        journal = self.journal
        retry_at = None if pause is None else format_time(self.options.clock.time() + pause)
        last = {} if error is None else self._for_good()
        failure = self._failure(op, context, exc, retry_at=retry_at, **last)
        try:
            if error is None:
                yield from journal.write((failure,))
            else:
                yield from self._end_failed((failure,), error, exc)
        except StoreError as failed:
            if error is not None:
                keep_unrecorded(self.run, error, failed, is_end=self.is_root)
            elif self.options.checkpoint_failure_fatal:
                raise

    def _node_error(
        self, context: Context[Any], op: str, exc: Exception, spent: AttemptBudget, state: Any, policy: Retry | None
    ) -> MilepostError:
        node_id, facts = context.node_id, self._facts(context, state)
        error: NodeError
        if isinstance(exc, AttemptTimedOut):
            more = f", and still runs {OVERDUE_GRACE:g} s later" if exc.is_running else ""
            error = NodeTimeoutError(
                f"node {node_id!r} of run {self.run.run_id!r} took longer than its timeout of {exc.timeout:g} s{more}: give it "
                f"more time, or resume to try again",
                timeout=exc.timeout,
                **facts,
            )
        else:
            times = f" after {spent.failures} failed attempts" if spent.failures > 1 else ""
            is_used_up = policy is not None and spent.failures >= policy.max_attempts
            verb = "retry to run it again with fresh attempts" if is_used_up else "resume to run it again"
            advice = f"; mend the cause, then {verb}" if self.store is not None else ""
            error = NodeError(
                f"node {node_id!r} of run {self.run.run_id!r} failed{times}: {describe(exc)}{advice}", op=op, **facts
            )
        for note in spent.notes:
            error.add_note(note)
        return error

    def _no_state(self, context: Context[Any], exc: StateTypeError, spent: AttemptBudget, state: Any) -> StateTypeError:
        """Complete `exc`, the error of a node that returned no state of its graph, with the place and an advice."""
        complete(exc, **self._facts(context, state))
        act = "return a state of the declared type" if exc.path.startswith("state") else "give that"
        act += "" if self.store is None else ", then resume"
        place(exc, f"node {context.node_id!r} of run {self.run.run_id!r}", act)
        for note in spent.notes:
            exc.add_note(note)
        return exc

    def _facts(self, context: Context[Any], state: Any) -> dict[str, Any]:
        return {
            "run_id": self.run.run_id,
            "node_id": context.node_id,
            "visit": context.visit,
            "attempt": context.attempt,
            "state": self.last_good() if self.given is not None else state,
        }

    # -- saving --------------------------------------------------------------------------------------

    def _save(
        self,
        context: Context[Any],
        data: bytes,
        updates: Mapping[str, Any] | None,
        next_node: str,
        duration: float,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[None]:
        """Record a completed node. The last one and the end of the run are one append."""
        try:
            checkpoint = self._checkpoint(context, data, updates, next_node, duration)
            if next_node == END and self.is_root:
                yield from self.journal.finish(checkpoint.sequence, (checkpoint,), context._tags, statements)
            else:
                yield from self.journal.write((checkpoint,), None, context._tags, statements)
        except SerializeStateError as exc:
            yield from self.unsaved(context, "encode", exc, is_fatal=bool(statements))
            return
        except StoreError as exc:
            yield from self.unsaved(context, "append", exc, is_fatal=bool(statements))
            return
        self.sequence, self.is_untold = checkpoint.sequence, False
        if self.run.is_listening:
            yield announce_checkpoint(self.run, checkpoint)

    def _checkpoint(
        self,
        context: Context[Any],
        data: bytes,
        updates: Mapping[str, Any] | None,
        next_node: str | None,
        duration: float,
    ) -> Record:
        told: bytes | None = None
        codec = self.flow.update_codec
        if codec is not None and self.is_untold:
            told = b"[" + b",".join(codec.encode(update, root="state") for update in self.updates or ()) + b"]"
        elif codec is not None and updates:
            told = codec.encode(updates, root="state")
        journal, options = self.journal, self.options
        self.followed_at = format_time(options.clock.time())
        fork = self.flow.splits.get(self.at[0])
        prev_node_id = self.prefix + self.prev_node_id if self.prev_node_id else ""
        data, digest = self.digests.of(data)
        return make_checkpoint(
            journal.run_id,
            journal.next_number(),
            self.followed_at,
            context._node_id,
            context._visit,
            data,
            next_node,
            context._attempt,
            prev_node_id,
            self.tally.iteration if self.item_codec is None else None,
            round(duration * 1000) / 1000,
            journal.epoch,
            journal.missed,
            context._tags,
            bool(options.compress),
            None if fork is None else fork.branches,
            self.label,
            self.trunk,
            told,
            digest,
            self.run.renamed_at,
        )

    def place(self) -> dict[str, Any]:
        """Return the fields that say in which branch a record of this walker is; {} outside branches."""
        return {} if not self.label else {"branch": self.label}

    def _failure(self, op: str, context: Context[Any], exc: BaseException, **fields: Any) -> Record:
        """Make a failure record of one of this walker's nodes."""
        return self.journal.failure(op, context.node_id, context.visit, context.attempt, exc, **self.place(), **fields)

    def _for_good(self) -> dict[str, bool]:
        """Return the field for the record of a last failure: the run ends with it, or only something inside it does."""
        return {"final": True} if self.is_root else {"given_up": True}

    def _end_failed(
        self,
        records: tuple[Record, ...],
        error: MilepostError,
        original: BaseException | None = None,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[None]:
        """Write the records of a final failure. In the run's own graph they include the failure of the run."""
        if self.is_root:
            yield from self.journal.finish_failed(records, error, original, statements)
        else:
            yield from self.journal.write(records, None, None, statements)

    def unsaved(self, context: Context[Any], op: str, exc: MilepostError, *, is_fatal: bool = False) -> Routine[None]:
        """Handle a checkpoint that could not be saved: end the run, or go on degraded.

        The run goes on only if `checkpoint_failure_fatal` is off and `is_fatal` is False.
        """
        node_id = context.node_id
        complete(exc, run_id=self.run.run_id, node_id=node_id, state=self.last_good())
        if op == "encode":
            where = f"the state after node {node_id!r} of run {self.run.run_id!r} cannot be recorded"
            place(exc, where, "what was saved before is kept: mend the node, then resume")
        if (yield from go_on_without(self.run, op, node_id, exc, is_fatal=is_fatal)):
            self.journal.missed = (*self.journal.missed, f"{node_id}#{context.visit}")
            self.is_untold = self.updates is not None
            return
        if op == "encode":
            last = self._for_good() if self.is_root else {}  # in its own graph the run ends with this failure
            failure = self._failure("save", context, exc, **last)
            try:
                yield from self._end_failed((failure,), exc)
            except StoreError as failed:
                keep_unrecorded(self.run, exc, failed, is_end=False)
        raise exc

    # -- what a visit tells --------------------------------------------------------------------------

    def announced(self, context: Context[Any]) -> NodeStarted:
        return NodeStarted(
            run_id=self.run.run_id,
            timestamp=self.options.clock.time(),
            node_id=context.node_id,
            visit=context.visit,
            attempt=context.attempt,
        )

    def _told(
        self, context: Context[Any], after: Any, data: bytes | None, next_node: str, duration: float
    ) -> NodeCompleted:
        decode = self.flow.codec.decode
        return NodeCompleted(
            run_id=self.run.run_id,
            timestamp=self.options.clock.time(),
            node_id=context.node_id,
            visit=context.visit,
            attempt=context.attempt,
            next_node=next_node,
            duration_ms=duration,
            _load=(lambda: after) if data is None else (lambda: decode(data)),
        )

    def _stopped(self, where: str, node_id: str) -> RunStopped:
        return RunStopped(
            f"run {self.run.run_id!r} stopped {where} node {node_id!r}, as asked: resume to go on",
            run_id=self.run.run_id,
            node_id=node_id,
            state=self.last_good(),
        )
