"""A look at a run without the code of its flow: what it gave is plain JSON.

A value that JSON cannot tell apart stays an object with the mark of the codec.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from milepost.adapters.points import results_of
from milepost.errors import MilepostError
from milepost.executor.checks import ResumeRequest
from milepost.executor.chronicle import Undecoded
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import Flow, StepFlow
from milepost.executor.history_reader import position_after, read_history
from milepost.executor.journal import read_start
from milepost.graph.run import NodeRun
from milepost.model.checkpoint import Checkpoint
from milepost.model.record import FINISH, Record
from milepost.options import Options
from milepost.store import RunSnapshot, Store
from milepost.workflows.run import StepRun


class RawFlow(Undecoded):
    """A flow of which only the name is known. Its runs are looked at as those of workflows are."""

    version = 1

    def __init__(self, name: str) -> None:
        super().__init__(name, "workflow")

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> RawRun:
        """Make a run to look at."""
        return RawRun(cast("StepFlow", self), store, run_id, options, is_listening=is_listening)


def raw_flow(name: str) -> Flow:
    """Return the flow with this name as far as a look without its code needs one."""
    return cast("Flow", RawFlow(name))


class RawState(NamedTuple):
    """The result of a look, as plain JSON: a run's output, its newest state, or the inputs of a workflow."""

    state: Any

    @property
    def output(self) -> Any:
        """The same."""
        return self.state


class RawRun(StepRun):
    """A run of either front end that is looked at without its flow's code."""

    __slots__ = ()
    is_replayed = False

    def find(self, request: ResumeRequest, latest: RunSnapshot) -> Routine[Any]:
        """Find what the run has come to."""
        begun = yield from read_start(self.store, self.run_id)
        point, ends = latest.point, [record for record in latest.tail if record.kind == FINISH]
        if latest.row.status == "finished" and ends and "result" not in ends[-1].fields():
            return RawState(self._plain(ends[-1]))
        if begun is not None and (point is None or begun.fields().get("front") == "workflow"):
            return RawState(Undecoded.decode(begun.state() or b"null"))
        if point is None:
            return RawState(None)
        override = position_after(point, None, latest.tail).override
        return RawState(self._plain(point if override is None else override))

    def stored(self, found: Any) -> Routine[Any]:
        """Return what the run ended with."""
        yield from ()
        return found

    def recorded_end(self, failure: Record, end: Record) -> Routine[MilepostError]:
        """Make the error that the run failed with."""
        begun = yield from read_start(self.store, self.run_id)
        if begun is not None and begun.fields().get("front") == "workflow":
            return (yield from super().recorded_end(failure, end))
        return (yield from NodeRun.recorded_end(cast("NodeRun", self), failure, end))

    def output_in(self, record: Record) -> Routine[Any]:
        """Return the state after a node, or the output of a step, by its record."""
        if record.is_foreign or "step_type" not in record.fields():
            return self._plain(record)
        records: list[Record] = yield from ask(self.store, "read", self.run_id, before=record.sequence + 1)
        parts = [part for part in records if f"{part.node_id}/".startswith(f"{record.node_id}/")]
        for part in parts:
            self.store.seals.check(self.run_id, part)
        row = yield from ask(self.store, "get_run", self.run_id)
        return results_of(read_history(parts, row.live))[record.node_id]["output"]

    def _plain(self, record: Record) -> Any:
        self.store.seals.check(self.run_id, record)
        return None if record.payload is None else Checkpoint.decode(record.envelope()).state
