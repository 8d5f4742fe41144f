"""The point where a run of a workflow goes on: its journal is read, checked, and answered from as far as it goes.

The code is played over the record until it asks for something new. An obstacle to going on, such as a difference or
damage, is found here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from milepost.errors import (
    CheckpointCorruptError,
    DeserializeStateError,
    FlowChangedError,
    MilepostError,
    NoCheckpointFoundError,
    RunNotResumableError,
)
from milepost.executor.attempt import AttemptBudget
from milepost.executor.checks import ResumeRequest, check_flow, check_renames, input_mismatch, not_resumable
from milepost.executor.effects import Ready, Routine
from milepost.executor.flow import Renames
from milepost.executor.history import JournalHistory, StepRecord
from milepost.executor.journal import ask
from milepost.graph.resume import check_live, cut_short
from milepost.model.failure import place
from milepost.model.ranges import Ranges, is_live, ranges_upto
from milepost.model.record import OWNER, ROLLBACK, START, Record, StepHead
from milepost.model.reports import ResumeInfo
from milepost.store import RunRow, RunSnapshot
from milepost.workflows.imported import as_recorded

if TYPE_CHECKING:
    from milepost.workflows.run import StepRun

__all__ = ["ExaminedWorkflow", "find", "inputs_of", "know_renames", "primed", "primed_or_over", "read", "refusal"]


class ExaminedWorkflow:
    """The point where a run of a workflow goes on; see `milepost.graph.checks.ExaminedRun`."""

    def __init__(
        self, row: RunRow, newest: int, point: Record, state: Any, info: ResumeInfo, live: Ranges | None
    ) -> None:
        self.row = row
        self.newest = newest
        self.point = point
        self.state = state
        """The inputs or, for a run that has finished, its output."""
        self.info = info
        self.live = live
        self.spent = AttemptBudget()
        self.next_node = info.next_node

    @property
    def plan(self) -> str:
        """A sentence that says what happens if the run goes on from here."""
        if self.next_node is None:
            return "no step is left to do: the workflow's code goes on to its end"
        return f"goes on at step {self.next_node!r}"


def find(run: StepRun, wish: ResumeRequest, latest: RunSnapshot) -> Routine[ExaminedWorkflow]:
    """Play the recorded part, up to the first thing that is new."""
    check_flow(run, latest.row)
    _refuse_states(run)
    if run.main is not None:
        run.main.close()
    run.forget()
    remarks: list[str] = []
    everything, records, parsed = yield from read(run, latest, remarks)
    live = _live_ranges(run, wish, latest, records)
    standing = latest.row.live if live is None else live
    know_renames(run, everything)
    run.recorded = JournalHistory(everything, standing, run.renames, parsed)
    check_renames(run, run.recorded)
    recorded = run.recorded
    if recorded.start is None:
        raise NoCheckpointFoundError(run.run_id, None, "the run has no start record")
    if wish.verb == "retry":
        recorded.retry(latest.newest + 1)
    inputs = inputs_of(run, recorded.start)
    run.version = int(recorded.start.fields.get("flow_version") or 1)
    is_finished = latest.row.info.status == "finished" and wish.verb == "resume"
    differences = _differences(run, recorded.start)
    newest = max(recorded.done.values(), key=attrgetter("sequence"), default=None)
    point = records[0] if newest is None else newest.record
    if is_finished:
        if run.wants_results:
            run.main = run.whole(inputs)
            run.is_live = False
            yield from primed(run.main)
            run.main.close()
        info = _info(run, latest, point, None, (*remarks, *differences), is_finished=True)
        return ExaminedWorkflow(latest.row, latest.newest, point, output_of(run), info, None)
    run.is_live = False
    run.main = run.whole(inputs)
    yield from primed(run.main)
    info = _info(run, latest, point, _next(run), (*remarks, *differences), is_finished=False)
    return ExaminedWorkflow(latest.row, latest.newest, point, inputs, info, live)


def refusal(run: StepRun, wish: ResumeRequest, found: ExaminedWorkflow) -> MilepostError | None:
    """Return the reason why the verb does not go on from the end of the replay, or None."""
    info = found.row.info
    if wish.verb == "resume" and info.status == "failed" and run.recorded.first_undone() is None:
        for step_id, step in run.pending:
            policy = step.modifiers.retry or run.options.retry
            spent = run.recorded.spent(step_id, 0, run.options.clock.time())
            if policy is not None and spent.failures >= policy.max_attempts:
                hint = f"step {step_id!r} has used up its {policy.max_attempts} attempts; mend the cause and use retry"
                return not_resumable(run, info.status, info.reason, hint, node_id=step_id)
    if run.options.strict and found.info.differences:
        return FlowChangedError(
            f"the flow of run {run.run_id!r} has changed ({'; '.join(found.info.differences)}): resume without strict "
            f"to go on",
            run_id=run.run_id,
            differences=found.info.differences,
        )
    return None


def _next(run: StepRun) -> str | None:
    return run.pending[0][0] if run.pending else None


def _info(
    run: StepRun,
    latest: RunSnapshot,
    point: Record,
    next_step: str | None,
    differences: tuple[str, ...],
    *,
    is_finished: bool,
) -> ResumeInfo:
    is_start = point.kind == START
    return ResumeInfo(
        run_id=run.run_id,
        source="finished" if is_finished else "start" if is_start else "latest",
        from_node=point.node_id or None,
        sequence=point.sequence,
        visit=0 if is_start else point.visit,
        next_node=next_step,
        skipped=run.recorded.steps,
        repeated=() if next_step is None else (next_step,),
        missed=latest.row.info.missed,
        differences=differences,
        already_completed=is_finished,
    )


def read(
    run: StepRun, latest: RunSnapshot, remarks: list[str]
) -> Routine[tuple[list[Record], list[Record], dict[int, Mapping[str, Any] | StepHead]]]:
    """Read all records, check them, and return all of them, those that may count, and the parsed headers by number.

    All may count or, with on_corrupt='previous', those before the first damaged one. Superseded records are not
    checked, and their headers are not parsed.
    """
    is_lenient = run.options.on_corrupt == "previous"
    if latest.newest < latest.expected:
        cut = cut_short(run, latest)
        if not is_lenient:
            raise cut
        remarks.append(str(cut))
    yield from check_live(run, latest)
    records: list[Record] = yield from ask(run.store, "read", run.run_id, before=latest.newest + 1)
    seals, run_id, live = run.store.seals, run.run_id, latest.row.live
    parsed: dict[int, Mapping[str, Any] | StepHead] = {}
    for place_, record in enumerate(records):
        if live and not is_live(record.sequence, live):
            continue
        try:
            head = seals.checked_step(run_id, record)
            if head is not None:
                parsed[record.sequence] = head
                continue
            _, fields = seals.checked_fields(run_id, record)
            if not record.is_foreign:
                parsed[record.sequence] = fields
        except CheckpointCorruptError as exc:
            exc.run_id, exc.node_id, exc.sequence = run.run_id, record.node_id or None, record.sequence
            if not is_lenient or place_ == 0:
                raise
            remarks.append(f"record {record.sequence} is damaged and was passed over, with what followed it")
            return records, as_recorded(run, records[:place_], latest.row.live, run.given), {}
    made = records
    if len(parsed) < len(records):
        made = as_recorded(run, records, live, run.given)
    # Records made from points may have the same numbers as other records.
    return made, made, parsed if made is records else {}


def know_renames(run: StepRun, records: list[Record]) -> None:
    """Learn the present names of recorded ids. The newest owner record with renames has all of them."""
    told = next((r for r in reversed(records) if r.kind == OWNER and r.fields().get("renames")), None)
    run.renamed_at = None if told is None else told.sequence
    run.renames = Renames.told_by(None if told is None else told.fields(), run.options.rename)


def _live_ranges(run: StepRun, wish: ResumeRequest, latest: RunSnapshot, records: list[Record]) -> Ranges | None:
    """Return new live ranges up to the claim if a part of the record no longer counts. None: they stay as they are."""
    live = latest.row.live
    if wish.verb == "resume_from":
        return ranges_upto(live, _wished(run, wish, live, records))
    standing = JournalHistory(records, live) if _may_cut(run, wish, latest) else None
    cut = None
    if standing is not None:
        undone = standing.first_undone()
        if undone is not None and (standing.final is None or standing.finish is not None):
            cut = undone - 1
        elif wish.verb == "retry" and standing.final is not None and not standing.final.record.node_id:
            cut = standing.failed_root()
    if records and records[-1].sequence < latest.newest:
        cut = records[-1].sequence if cut is None else min(cut, records[-1].sequence)
    return None if cut is None else ranges_upto(live, cut)


def _may_cut(run: StepRun, wish: ResumeRequest, latest: RunSnapshot) -> bool:
    is_reopened = latest.row.cancel is not None and run.options.reopen
    return wish.verb == "retry" or is_reopened or latest.row.info.status in {"failed", "cancelled", "blocked"}


def _wished(run: StepRun, wish: ResumeRequest, live: Ranges, records: list[Record]) -> int:
    """Return the number of the last record that still counts for `resume_from`."""
    know_renames(run, records)
    standing = JournalHistory(records, live, run.renames)
    entry = standing.done.get(wish.node_id or "")
    if entry is None or wish.visit not in {None, entry.record.visit}:
        raise NoCheckpointFoundError(
            run.run_id, wish.node_id, "there is none of this step that was not superseded; see history()"
        )
    if not wish.rerun:
        return entry.sequence
    step_id = entry.record.node_id
    mine = (
        record.sequence
        for record in records
        if record.kind not in {OWNER, ROLLBACK}
        and is_live(record.sequence, live)
        and (record.node_id == step_id or record.node_id.startswith(f"{step_id}/"))
    )
    return min(mine) - 1


def inputs_of(run: StepRun, begun: StepRecord) -> dict[str, Any]:
    """Return the recorded inputs, after a comparison with the inputs of the call if it has some."""
    try:
        inputs: dict[str, Any] = run.flow.completed(run.flow.codec.decode(begun.record.state() or b"{}", root="input"))
    except DeserializeStateError as exc:
        exc.run_id = run.run_id
        place(exc, f"the inputs of run {run.run_id!r} do not fit workflow {run.flow.name!r} as it is now", "bring "
              "back the parameters that it began with")  # fmt: skip
        raise
    if run.given is not None and run.options.compare_inputs:
        mismatch = input_mismatch(run, begun.fields, begun.record.state() or b"", run.given)
        if mismatch is not None:
            raise mismatch
    return inputs


def _differences(run: StepRun, begun: StepRecord) -> tuple[str, ...]:
    if begun.fields.get("fingerprint") == run.flow.fingerprint:
        return ()
    return run.flow.differences(begun.fields.get("shape") or {})


def output_of(run: StepRun) -> Any:
    """Return the output of a finished run."""
    finish = run.recorded.finish
    if finish is None:
        raise CheckpointCorruptError(
            f"run {run.run_id!r} has finished, and the record that has its output is not there: restore the store from "
            f"a copy",
            run_id=run.run_id,
        )
    return run.flow.output_codec.decode(finish.record.state() or b"null", root="output")


def _refuse_states(run: StepRun) -> None:
    for name in ("state_override", "update", "revalidate"):
        if getattr(run.options, name) is not None:
            raise RunNotResumableError(
                f"{name} is for graphs: run {run.run_id!r} is one of workflow {run.flow.name!r}, which has no state "
                f"but its steps' results",
                run_id=run.run_id,
            )


def primed(routine: Routine[Any]) -> Routine[None]:
    """Let a routine come to its `Ready`. A routine that ends before that is a bug."""
    is_over, _ = yield from primed_or_over(routine)
    assert not is_over


def primed_or_over(routine: Routine[Any]) -> Routine[tuple[bool, Any]]:
    """Play a routine up to its `Ready`. Returns whether it ended before that, with nothing new, and its value."""
    try:
        effect = next(routine)
        while not isinstance(effect, Ready):
            try:
                answer = yield effect
            except BaseException as exc:
                effect = routine.throw(exc)
            else:
                effect = routine.send(answer)
    except StopIteration as stop:
        return True, stop.value
    return False, None
