"""The executor: one generator of effects for everything that runs.

A `Run` is one run as this process executes it, from taking it to giving it up. `hold` alone decides how a hold ends. A
front end does the work in between: `milepost.graph.run` for graphs, `milepost.workflows.run` for workflows.

No I/O, no clock and no randomness of its own: time comes from the options' clock, nonces and ids are passed in.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from milepost.errors import (
    AsyncNodeError,
    LeaseLost,
    MilepostError,
    MilepostInterrupt,
    RunCancelled,
    RunStopped,
    RunSuspended,
    RunTimeoutError,
    StoreError,
    WorkflowHeldError,
)
from milepost.executor.context import Keep, LiveOutlet, RunScope
from milepost.executor.effects import Ask, Emit, Gather, Hold, HoldOver, Outcome, Routine
from milepost.executor.flow import Flow
from milepost.executor.history import JournalHistory, RunProgress
from milepost.executor.history_values import AttemptBudget, PendingRecord
from milepost.executor.journal import Drained, Journal, NullJournal
from milepost.executor.renames import Renames
from milepost.model.events import Progress
from milepost.model.failure import describe, failure_fields, first_line, is_cancellation
from milepost.model.ranges import Ranges
from milepost.model.record import FAILURE, FINISH, Origin, Record, format_time, origins_of
from milepost.model.reports import ResumeInfo
from milepost.options import Options
from milepost.store import ENDED, Release, RunRow, RunSnapshot, Store, cancel_text

if TYPE_CHECKING:
    from milepost.executor.beginning import Completion
    from milepost.executor.checks import Amendment, ResumeRequest
    from milepost.model.events import Event
    from milepost.model.info import Wait

logger = logging.getLogger("milepost")

OUTAGES = 5
"""A number of times in a row, without a checkpoint in between. Where no limit is set, workers take a run that its
failing store stopped this often. After so many crashes a worker pauses before it takes the run again."""
LONGEST_PAUSE = 300.0
"""The longest such pause, in seconds."""


class Run(ABC):
    """One run as this process executes it. A front end says what its flow does in it."""

    __slots__ = (
        "checked",
        "claims",
        "completion",
        "crashes",
        "flow",
        "followed_at",
        "given",
        "info",
        "is_awaited",
        "is_blocking",
        "is_draining",
        "is_listening",
        "is_recorded",
        "journal",
        "live_ranges",
        "options",
        "origins",
        "progress",
        "recorded",
        "renamed_at",
        "renames",
        "run_id",
        "scope",
        "started_at",
        "status",
        "unsaved",
        "wants_results",
    )

    def __init__(self, flow: Flow, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> None:
        self.flow = flow
        self.run_id = run_id
        self.options = options
        self.is_listening = is_listening
        self.is_awaited = True
        """True if the driver can await coroutines."""
        self.is_blocking = False
        """True if the driver blocks its thread while the call waits for another run."""
        self.is_draining = False
        self.checked = -1
        """The number up to which a call that waits for the run has checked the records that a replay needs."""
        self.claims = 0
        """For a run that a worker has: the number of claims since its newest checkpoint, this one included."""
        self.crashes = 0
        """The number of crashes in a row, without a checkpoint in between, at the time when a worker took the run."""
        self.completion: Completion | None = None
        """The facts that the owner record of this call adds to the start record; None unless it is the first reader."""
        self.journal = NullJournal(run_id, options) if store is None else Journal(store, run_id, options)
        self.is_recorded = self.journal.is_recorded
        """True if the run has a store."""
        self.scope = RunScope(run_id, clock=options.clock, store=store, deps=options.deps, logger=options.logger)
        self.started_at = options.clock.monotonic()
        self.followed_at = format_time(options.clock.time())
        self.info: ResumeInfo | None = None
        self.origins: tuple[Origin, ...] = ()
        """The runs that this one was forked from."""
        self.live_ranges: Ranges = ()
        """The live ranges with which a run of a graph goes on; empty: none of it was ever superseded."""
        self.renames = Renames()
        """The maps from recorded ids to those of now, as far as they are known."""
        self.renamed_at: int | None = None
        """The number of the owner record that holds these maps; None if nothing was renamed."""
        self.status = "running"
        self.given: Mapping[str, Any] | None = None
        """The inputs of a resume, to be compared with the recorded ones. None: the resume was given none."""
        self.wants_results = False
        """True if a caller wants the recorded results of a finished run's steps too. A graph has none."""
        self.unsaved: tuple[PendingRecord, ...] = ()
        """Records that could not be written, and join the next write."""
        self.know(JournalHistory())

    def renewed(self, options: Options) -> Run:
        """Make another run of the same call, of which nothing is read yet. The call's own time goes on."""
        other = self.flow.new_run(self.scope.store, self.run_id, options, is_listening=self.is_listening)
        other.started_at, other.scope.publish = self.started_at, self.scope.publish
        if self.scope.live is not None:
            other.send_live(self.scope.live.keep)
        other.is_draining, other.is_awaited = self.is_draining, self.is_awaited
        other.is_blocking = self.is_blocking
        return other

    def draw_from(self, begun: Mapping[str, Any]) -> None:
        """Draw random numbers as the start record with these fields says, those of copied visits as in their own run."""
        entropy = begun.get("entropy")
        self.scope.entropy = None if entropy is None else str(entropy)
        self.origins = origins_of(begun)

    def send_live(self, keep: Keep) -> None:
        """Hand live events to the run's store from now on, by `keep`."""
        self.scope.live = LiveOutlet(self.journal, keep)

    def know(self, recorded: JournalHistory) -> None:
        """Take up the history of the run as it was read; nothing has been done since."""
        self.recorded = recorded
        self.progress = RunProgress(recorded)

    def know_renames(self, owner: Record | None) -> None:
        """Take up the renames in this owner record (None: there are none), and those of the call."""
        self.renamed_at = None if owner is None else owner.sequence
        self.renames = Renames.read(None if owner is None else owner.fields(), self.options.rename)

    def spent(self, node_id: str, followed: int) -> AttemptBudget:
        """Return the attempts that a visit in flight has used up; `followed` is the number of the record before it."""
        return self.recorded.spent(node_id, followed, self.options.clock.time(), self.progress)

    @property
    def store(self) -> Store:
        """The store of a run that has one."""
        return self.journal.store

    # -- what a front end does -----------------------------------------------------------------------

    front: ClassVar[str | None] = None
    """The name of the front end in a start record; None for graphs."""
    unit: ClassVar[str]
    """The word for a unit of work of the flow."""
    input_name: ClassVar[str]
    """The word for what a run begins with, and `input_example`, with an article if it needs one."""
    input_example: ClassVar[str]

    @abstractmethod
    def begin(self, given: Any, data: bytes | None) -> Routine[Any]:
        """Run the flow from its beginning on `given`, and return what it ends with.

        `data` is the encoded `given`; None without a store.
        """

    is_replayed = False
    """True if the flow's code runs again up to the point where the run goes on. It has to, even only to end the run."""

    @abstractmethod
    def fork(
        self,
        new_run_id: str,
        into: Store | None,
        node_id: str | None,
        visit: int | None,
        *,
        ready: bool,
        by: str | None,
    ) -> Routine[str]:
        """Copy the run up to a visit into a new run, in the store `into` or (None) in its own; return the new id.

        `ready`: the new run is left to the workers. `by` says who forks.
        """

    @abstractmethod
    def find(self, request: ResumeRequest, latest: RunSnapshot) -> Routine[Any]:
        """Find and examine the point where the verb goes on, as a value of the front end's own type.

        Runs nothing new and writes nothing.
        """

    @abstractmethod
    def refusal(self, request: ResumeRequest, examined: Any) -> MilepostError | None:
        """Return the error if the verb cannot go on at the point that `find` returned; else None."""

    @abstractmethod
    def in_flight(self, latest: RunSnapshot) -> Routine[tuple[str, int]]:
        """Return the node that may have been entered last, and the number of that visit; "" for no node."""

    def stood_at(self, node_id: str) -> bool:
        """Return whether a replay ended at this step or inside it.

        The run does not stop before such a step once more.
        """
        return False

    @abstractmethod
    def go_on(self, request: ResumeRequest, examined: Any, amendment: Amendment | None) -> Routine[Any]:
        """Go on from the point `examined`, and return what the flow ends with."""

    @abstractmethod
    def recorded_end(self, failure: Record, end: Record) -> Routine[MilepostError]:
        """Make the error that a run failed with, from the record of the failure and the newest one of its end."""

    def end(self, found: Any, row: RunRow) -> Routine[Any]:
        """Carry out an open cancel. Raises `RunCancelled`."""
        yield from ()
        raise self.journal.cancelled(cancel_text(row.cancel or "", row.cancel_by))

    def stored(self, found: Any) -> Routine[Any]:
        """Return the result of a finished run. Nothing runs and nothing is written."""
        self.info = found.info
        self.journal.degraded = found.row.degraded
        self.journal.missed = found.row.missed
        self.status = found.row.status
        return (yield from self.tell_stored(found.state))

    @abstractmethod
    def result(self, value: Any) -> Any:
        """Make the value that a verb returns with `full=True`."""

    def so_far(self, stopped: MilepostError) -> Any:
        """Make the value that a verb returns with `full=True` if the run did not come to its end."""
        return self.result(getattr(stopped, "state", None))

    def last_good(self) -> Any:
        """Return the last good state, for errors; None if there is none."""
        return None

    @abstractmethod
    def _started(self, began_with: Any) -> Event:
        """Make the event of the run's beginning."""

    @abstractmethod
    def _completed(self, result: Any, error: BaseException | None) -> Event:
        """Make the event of the run's end."""

    @abstractmethod
    def record(
        self, drafts: tuple[PendingRecord, ...], *, is_fatal: bool = False, release: Release | None = None
    ) -> Routine[tuple[int, str]]:
        """Write records, and return the number and the time of the last one."""

    @abstractmethod
    def enter(self, step_id: str) -> None:
        """Raise an error if the run may not begin a new step."""

    def live(self) -> Routine[None]:
        """Wait until this call owns the run. All that follows is new."""
        yield from ()

    def know_signals(self) -> Routine[None]:
        """Load into `progress` the numbers of the signals that were used, if they are not known yet."""
        yield from ()

    def known_before(self) -> dict[str, Any]:
        """Return the fields for a wait's record that list the signals used before: nobody has to look for them again.

        A replay reads all records anyway, and needs none.
        """
        return {}

    @abstractmethod
    def still_waiting(self) -> Routine[tuple[Wait, ...]]:
        """Return the waits that are still open while the run ends in another way."""

    def gather(
        self,
        routines: Mapping[str, Routine[Any]],
        max_parallel: int | None = None,
        is_stopped: Callable[[], bool] | None = None,
    ) -> Routine[dict[str, Outcome]]:
        """Perform routines at once, and return an outcome for each, in order."""
        outcomes: dict[str, Outcome] = yield Gather(routines, max_parallel, is_stopped)
        return outcomes

    # -- the hold: from taking the run to giving it up -----------------------------------------------

    def hold(self, body: Routine[Any], began_with: Any) -> Routine[Any]:
        """Run `body` while the lease is kept.

        On every way out give the run up, and emit an event that says how it ended.
        """
        return self.journal.let_go(self._hold(body, began_with))

    def _hold(self, body: Routine[Any], began_with: Any) -> Routine[Any]:
        journal = self.journal
        try:
            if journal.token is not None:
                journal.held = self.scope.held = yield Hold(self.store, journal.token, self.options.lease)
                journal.held.is_draining = self.is_draining
            if self.is_listening:
                yield Emit(self._started(began_with))
            state = yield from body
        except GeneratorExit:
            # Nobody performs effects any more, as if the process had died here.
            raise
        except BaseException as exc:
            if isinstance(exc, MilepostInterrupt):
                what: BaseException = exc.error
            else:
                what = journal.over() if isinstance(exc, HoldOver) else exc
            error = yield from self._end_badly(what)
            if isinstance(error, MilepostError):
                complete(error, run_id=self.run_id, state=self.last_good())
            yield from self._leave(None, error)
            if error is exc:
                raise
            raise error from (exc.__cause__ if isinstance(exc, MilepostInterrupt) else exc)
        self.status = "finished"
        if journal.token is not None and not journal.is_released:
            reason = f"it ran to its end, but its last state could not be saved (missed: {', '.join(journal.missed)})"
            yield from journal.give_up(Release("interrupted", reason, degraded=True, missed=journal.missed))
        result = self.result(state)
        yield from self._leave(result, None)
        return result

    def drain(self) -> None:
        """Ask the run to give itself back at its next boundary. Any thread may call this."""
        self.is_draining = True
        if self.journal.held is not None:
            self.journal.held.is_draining = True

    def tell_stored(self, state: Any) -> Routine[Any]:
        """Return the result of a run that had finished before, with the events of any other run. Nothing is held."""
        result = self.result(state)
        if self.is_listening:
            yield Emit(self._started(state))
            yield Emit(self._completed(result, None))
        return result

    def _leave(self, result: Any | None, error: BaseException | None) -> Routine[None]:
        if self.journal.token is not None:
            yield from self.journal.drop()
            if self.store.retention is not None and self.status in ENDED:
                yield Ask(self.store, "tidy", self.run_id)
        if self.is_listening:
            yield Emit(self._completed(result, error))

    def announce_progress(self, node_id: str, done: int, total: int) -> Routine[None]:
        """Announce how many items of a map are done."""
        if self.is_listening or self.scope.live is not None:
            event = self.scope.send(Progress, node_id, done=done, total=total)
            if self.is_listening:
                yield Emit(event)

    def _end_badly(self, exc: BaseException) -> Routine[BaseException]:
        """Give the run up with the status that follows from `exc`; return the error for the verb to raise."""
        journal = self.journal
        if isinstance(exc, LeaseLost):
            return exc
        records: tuple[Record, ...] = ()
        wake_at: float | None = None
        crash_count: int | None = None
        blocked_by = ""
        if isinstance(exc, RunCancelled):
            self.status, reason = "cancelled", exc.reason or "cancelled"
            records = (journal.make(FINISH, status="cancelled", reason=reason, by=exc.by),)
        elif self.is_stopped_by(exc):
            self.status, reason = "ready", "the worker that had it was stopped"
        elif isinstance(exc, StoreError) and 0 < self.claims < (self.options.max_crashes or OUTAGES):
            # The store, not the run, is at fault: a worker tries again, a little later each time.
            self.status, reason = "ready", first_line(exc)
            wake_at = self.options.clock.time() + pause_after(self.claims)
        elif isinstance(exc, StoreError) and self.claims and exc.op == "park":
            self.status, reason, blocked_by = "blocked", first_line(exc), "value"
        elif self.claims and not isinstance(exc, Exception):
            crash = self.crash(f"its code raised {describe(exc)}")
            self.status, reason, wake_at, crash_count = crash.status, crash.reason, crash.wake_at, crash.crash_count
            blocked_by = crash.blocked_by
        elif isinstance(exc, WorkflowHeldError):
            self.status, reason, blocked_by = "blocked", first_line(exc), "bug"
            fields = failure_fields(exc.__cause__ or exc)
            records = (journal.make(FAILURE, op="workflow", attempt=1, held=True, **fields),)
        elif isinstance(exc, RunSuspended):
            self.status, reason = "waiting", ""
        elif isinstance(exc, RunTimeoutError) and self.claims and not journal.has_saved:
            # A claim at once would most likely bring it no further, and workers would do the same work in a loop.
            self.status, reason = "ready", str(exc)
            wake_at = self.options.clock.time() + pause_after(self.claims)
        elif isinstance(exc, (RunStopped, RunTimeoutError, AsyncNodeError)):
            self.status, reason = "interrupted", str(exc)
        elif not isinstance(exc, Exception):
            self.status, reason = "interrupted", f"its verb was interrupted by {describe(exc)}"
        else:
            self.status = "failed"
            reason = first_line(exc) if isinstance(exc, MilepostError) else describe(exc)
            records = (journal.make(FINISH, status="failed", reason=reason, **failure_fields(exc)),)
        if journal.is_released or journal.token is None or journal.owed is not None:
            return exc
        waits = () if self.status == "cancelled" else (yield from self.still_waiting())
        release = journal.make_release(self.status, reason, wake_at, waits, crash_count, blocked_by=blocked_by)
        if (yield from journal.give_up(release, records)) == "lost":
            if isinstance(exc, Exception):
                return journal.lost()
            # The exception that interrupted the verb still reaches the caller; that the run was lost is its context.
            exc.__context__ = journal.lost()
        return exc

    def held_by(self) -> MilepostError | None:
        """Return the error with which a resume would hold the run, if its code is known to come to a bug."""
        return None

    def is_stopped_by(self, exc: BaseException) -> bool:
        """Return whether `exc` is the exception with which a worker that stops takes its runs back."""
        is_interruption = is_cancellation(exc) or isinstance(exc, KeyboardInterrupt)
        return isinstance(exc, Drained) or (self.is_draining and is_interruption)

    def crash(self, cause: str, free_crashes: int = OUTAGES) -> Release:
        """Count as a crash of the run something that would have ended its worker, or that keeps all workers from going
        on with it. Return the release.

        As after the death of a process, the run is taken again, up to `max_crashes` times without a checkpoint in
        between. The first `free_crashes` times it is taken at once, and then only after pauses, which grow.
        """
        count = (0 if self.journal.has_saved else self.crashes) + 1
        limit = self.options.max_crashes
        if limit is not None and count >= limit:
            reason = (
                f"it crashed {count} time{'s in a row' if count > 1 else ''} without a checkpoint in between, the last "
                f"time because {cause}: mend it, then resume it with reopen=True"
            )
            return Release("blocked", reason, crash_count=count, blocked_by="crashes")
        pauses = count - free_crashes
        wake_at = self.options.clock.time() + pause_after(pauses) if pauses > 0 else None
        return Release("ready", f"it crashed: {cause}", wake_at, crash_count=count)

    # -- the call's own time -------------------------------------------------------------------------

    def time_left(self, timeout: float | None) -> float:
        """Return the shorter of `timeout` and the rest of the call's own time.

        Raises `RunTimeoutError` if none is left.
        """
        assert self.options.run_timeout is not None
        left = self.options.run_timeout - (self.options.clock.monotonic() - self.started_at)
        if left <= 0:
            raise self.out_of_time()
        return left if timeout is None else min(left, timeout)

    def out_of_time(self) -> RunTimeoutError:
        """Make the error for a call whose own time is over."""
        return RunTimeoutError(
            f"run {self.run_id!r} took longer than its run_timeout of {self.options.run_timeout:g} s: resume to go on",
            run_id=self.run_id,
            timeout=self.options.run_timeout,
            state=self.last_good(),
        )


def pause_after(count: int) -> float:
    """Return the seconds for which workers leave a run alone after so many claims that brought it no further."""
    return min(2.0 ** min(count, 10), LONGEST_PAUSE)


def complete(error: MilepostError, **facts: Any) -> None:
    """Set the attributes of `error` that were unknown where it was raised; `visit` and `attempt` are always set."""
    for name, value in facts.items():
        if getattr(error, name, None) is None or name in {"visit", "attempt"}:
            setattr(error, name, value)


def bounded_gather(run: Run, routines: Mapping[str, Routine[Any]], limit: int | None) -> Routine[dict[str, Outcome]]:
    """Perform routines at once, at most `limit` of them, and return an outcome for each that was begun, in order.

    The routines may have branches inside; the run's own limit counts the calls in all of them together. Only an
    interruption leaves routines that were not begun.
    """
    most_calls = run.options.max_parallel
    if limit is None or limit >= len(routines):
        return (yield from run.gather(routines, most_calls))
    outcomes: dict[str, Outcome] = {}
    queue = iter(routines.items())
    lanes = {str(number): _lane(queue, outcomes) for number in range(limit)}
    for lane in (yield from run.gather(lanes, most_calls)).values():
        if lane.error is not None:
            raise lane.error
    return {name: outcomes[name] for name in routines if name in outcomes}


def _lane(queue: Iterator[tuple[str, Routine[Any]]], outcomes: dict[str, Outcome]) -> Routine[None]:
    """Take routines from the queue and perform one after the other, until the queue is empty."""
    for name, routine in queue:
        try:
            value = yield from routine
        except GeneratorExit:
            raise
        except BaseException as exc:
            outcomes[name] = Outcome(error=exc)
            if not isinstance(exc, Exception):
                # The run is interrupted: nothing more begins, in no lane.
                for _, waiting in queue:
                    waiting.close()
        else:
            outcomes[name] = Outcome(value)
