"""A run of a graph: the walk over it, from its beginning or from where its records end.

A run that has to wait is parked. If an answer comes while it is about to be parked, it goes on from its records at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from milepost.errors import MilepostError, NodeError
from milepost.executor import waits as parking
from milepost.executor.checks import Amendment, ResumeRequest
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import GraphFlow
from milepost.executor.history_values import PendingRecord
from milepost.executor.run import Run
from milepost.graph import resume as finding
from milepost.graph.checks import ExaminedRun, refusal_of
from milepost.graph.walker import Walker
from milepost.model.failure import is_branch_error, recorded_branch_error, recorded_error
from milepost.model.record import FAILURE, OWNER, REPLY, WAIT, Record, format_time
from milepost.model.reports import RunResult
from milepost.options import Options, without_amendments
from milepost.store import Release, RunRow, RunSnapshot, Store

if TYPE_CHECKING:
    from milepost.model.info import Wait
    from milepost.model.lifecycle import RunCompleted, RunStarted


class NodeRun(Run):
    """A run of a graph."""

    __slots__ = ("_known_upto", "_used_before", "knows_signals", "walker")
    flow: GraphFlow
    unit = "node"
    input_name = "state"
    input_example = "a state"

    def __init__(
        self, flow: GraphFlow, store: Store | None, run_id: str, options: Options, *, is_listening: bool
    ) -> None:
        super().__init__(flow, store, run_id, options, is_listening=is_listening)
        self.walker = Walker(self, flow)
        self.knows_signals = True
        """True if `progress` holds all signals that were used."""
        self._known_upto = 0
        """The number of the newest record when the used signals were read. `_used_before` are these signals, as ranges.
        """
        self._used_before: list[list[int]] = []

    def begin(self, given: Any, data: bytes | None) -> Routine[Any]:
        """Walk from the entry on."""
        self.walker.given = data
        self.walker.followed_at = self.followed_at
        return self._unless_parked(self.walker.walk(given, self.flow.entry))

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
        """Copy the run up to a visit into a new one."""
        from milepost.graph.fork_run import fork  # imported here: most programs never need it

        return fork(
            self.store, self.run_id, new_run_id, into=into or self.store, node_id=node_id, visit=visit, run=self,
            ready=ready, by=by,
        )  # fmt: skip

    def find(self, request: ResumeRequest, latest: RunSnapshot) -> Routine[ExaminedRun]:
        """Examine the point that the verb goes on from."""
        return finding.find(self, request, latest)

    def refusal(self, request: ResumeRequest, examined: Any) -> MilepostError | None:
        """Return the error if the verb cannot go on at the point `examined`; else None."""
        return refusal_of(self, request, examined)

    def in_flight(self, latest: RunSnapshot) -> Routine[tuple[str, int]]:
        """Return the node that may have been entered last, and the number of that visit."""
        return finding.in_flight(self, latest)

    def end(self, found: Any, row: RunRow) -> Routine[Any]:
        """Carry out an open cancel."""
        if found is not None:
            self.walker.given = found.data
        return super().end(found, row)

    def stored(self, found: Any) -> Routine[Any]:
        """Return the result of a finished run."""
        self.walker.iteration = found.iteration
        return super().stored(found)

    def go_on(self, request: ResumeRequest, examined: Any, amendment: Amendment | None) -> Routine[Any]:
        """Walk on from the point `examined`."""
        return self._unless_parked(finding.go_on(self, request, examined, amendment))

    def recorded_end(self, failure: Record, end: Record) -> Routine[MilepostError]:
        """Make the error that a run failed with: that of a node, or of all branches of a fork that failed."""
        fields = end.fields()
        if is_branch_error(fields):
            failures: list[Record] = yield from ask(self.store, "read", self.run_id, kinds=(FAILURE,))
            return recorded_branch_error(self.run_id, fields, failures)
        error = recorded_error(self.run_id, failure.fields(), failure.node_id)
        if isinstance(error, NodeError):
            error.visit = failure.visit
        return error

    def _unless_parked(self, walk: Routine[Any]) -> Routine[Any]:
        """Walk to the end. Park a run that has to wait, or go on from its records if an answer came meanwhile."""
        while True:
            try:
                return (yield from walk)
            except parking.Parked as parked:
                if (yield from parking.park(self, parked.waits)):
                    raise parking.suspended(self) from None
            latest: RunSnapshot = yield from ask(self.store, "latest", self.run_id)
            # The call's amendment is recorded by now, and must not be applied again.
            self.options = without_amendments(self.options)
            found = yield from finding.find(self, ResumeRequest(), latest)
            self.walker = Walker(self, self.flow)
            walk = finding.go_on(self, ResumeRequest(), found, None)

    # -- what waits need -------------------------------------------------

    def enter(self, step_id: str) -> None:
        """Do nothing: the walker has checked already that the run may go on."""

    def record(
        self, drafts: tuple[PendingRecord, ...], *, is_fatal: bool = False, release: Release | None = None
    ) -> Routine[tuple[int, str]]:
        """Write records of waits, and return the number and the time of the last one."""
        now = format_time(self.options.clock.time())
        if not self.is_recorded:
            return self.journal.sequence, now
        records = tuple([self.journal.make_at(now, *draft) for draft in drafts])
        yield from self.journal.write(records, release)
        return (records[-1].sequence if records else self.journal.sequence), now

    def know_signals(self) -> Routine[None]:
        """Read the numbers of the used signals: from the newest wait's record, and from the records after its list."""
        if self.knows_signals or not self.is_recorded:
            return
        newest, after = self.journal.sequence, -1
        used: set[int] = set()
        waits: list[Record] = yield from ask(self.store, "read", self.run_id, kinds=(WAIT,), newest=True, limit=1)
        for used_before in (record.fields().get("used_before") for record in waits):
            if used_before is not None:
                after = int(used_before["upto"])
                used.update(*(range(first, last + 1) for first, last in used_before["numbers"]))
        records: list[Record] = yield from ask(self.store, "read", self.run_id, kinds=(REPLY, OWNER), after=after)
        for record in records:
            fields = record.fields()
            if isinstance(fields.get("signal"), int):
                used.add(fields["signal"])
            used.update(fields.get("used") or ())
        self.progress.used_signals |= used
        self._known_upto, self._used_before = newest, _ranges(used)
        self.knows_signals = True

    def known_before(self) -> dict[str, Any]:
        """Return the used signals that were recorded when this process read them.

        Those that it has used itself are left out: their records may still be in flight.
        """
        if not self._used_before:
            return {}
        return {"used_before": {"upto": self._known_upto, "numbers": self._used_before}}

    def still_waiting(self) -> Routine[tuple[Wait, ...]]:
        """Return the waits that are still open while the run ends in another way."""
        return parking.unanswered(self)

    def last_good(self) -> Any:
        """Return the last good state."""
        return self.walker.last_good()

    def result(self, value: Any) -> RunResult[Any]:
        """Make the value that a verb returns with `full=True`."""
        return RunResult(
            state=value,
            run_id=self.run_id,
            status=self.status,
            degraded=self.journal.degraded,
            missed=self.journal.missed,
            iterations=self.walker.iteration,
            resumed=self.info,
        )

    def _started(self, began_with: Any) -> RunStarted:
        from milepost.model.lifecycle import RunStarted

        return RunStarted(
            run_id=self.run_id,
            timestamp=self.options.clock.time(),
            flow=self.flow.name,
            input=began_with,
            resumed=self.info,
        )

    def _completed(self, result: RunResult[Any] | None, error: BaseException | None) -> RunCompleted:
        from milepost.model.lifecycle import RunCompleted

        clock = self.options.clock
        return RunCompleted(
            run_id=self.run_id,
            timestamp=clock.time(),
            flow=self.flow.name,
            status=self.status,
            result=result,
            total_duration_ms=(clock.monotonic() - self.started_at) * 1000,
            degraded=self.journal.degraded,
            missed=self.journal.missed,
            error=error,
        )


def _ranges(numbers: set[int]) -> list[list[int]]:
    """Turn numbers into ranges: the first and last number of each, in order."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
