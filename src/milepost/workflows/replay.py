"""Replay: the records of a run, answered to the workflow's code again.

The code is played over the record until it asks for something new. An obstacle to going on, such as a difference or
damage, is found here, before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointMigrationError,
    DeserializeStateError,
    FlowChangedError,
    InputMismatchError,
    MilepostError,
    NoCheckpointFoundError,
    OptionError,
    RunNotResumableError,
    WrongFlowError,
)
from milepost.executor.beginning import whole_start
from milepost.executor.checks import ResumeRequest, check_flow, check_renames, input_mismatch, not_resumable
from milepost.executor.effects import Ready, Routine, ask
from milepost.executor.flow import StepFlow
from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import newest_renames, read_history, renewed_at, reopened_at, retried_at
from milepost.executor.history_values import AttemptBudget, StepRecord
from milepost.executor.run import Run
from milepost.graph.resume import check_live, cut_short
from milepost.model.beginning import is_incomplete
from milepost.model.checkpoint import read_envelope
from milepost.model.checkpoint_data import CheckpointData
from milepost.model.failure import place
from milepost.model.ranges import Ranges, is_live, ranges_upto
from milepost.model.record import CHECKPOINT, OWNER, ROLLBACK, ROUTE, START, Record, StepHead, format_time, make_record
from milepost.model.reports import ResumeInfo
from milepost.store import RunRow, RunSnapshot

if TYPE_CHECKING:
    from milepost.workflows.run import StepRun

# Runs of a workflow that are known by their marked points alone: the contents of such a point, as records.
#
# A store that keeps points has no start record, and a point has no journal: it holds the results of steps, one after the
# other. This module makes them into records, from which a replay answers. Results that another program wrote may hold
# less: name, kind and perhaps output. Missing fields are not compared. The module is pure, and its records are never
# written.


_UNKNOWN_HASH = "0" * 16
_NODE = "node"
_MADE_OF_STEPS = frozenset({"parallel", "map", "branch", "subworkflow"})


class _Begun(msgspec.Struct):
    """The facts about the run that the last result of a point holds."""

    begun_at: str | None = None
    version: int | None = None
    choices: dict[str, dict[str, Any]] = {}


class _Result(msgspec.Struct):
    """A result in a point; everything but the name may be missing."""

    name: str
    step_type: str = "python"
    success: bool = True
    output: Any = None
    duration_ms: float | None = None
    error: str | None = None
    error_type: str | None = None
    outcome: str | None = None
    attempts: int = 1
    args: dict[str, str] | None = None
    rollback: bool | None = None
    visit: int = 1
    sequence: int | None = None
    timestamp: str | None = None
    next_node: str | None = None
    iteration: int | None = None
    run: _Begun | None = None


def as_recorded(run: Run, records: list[Record], live: Ranges, given: Mapping[str, Any] | None) -> list[Record]:
    """Return the records of a run, and turn those that were saved from outside into records for a replay.

    If the run has a start record, its own records are the truth, and the saved ones count for nothing. If it has none,
    it goes on from the newest point that counts, with the inputs that are `given`.

    Raises `InputMismatchError`, `WrongFlowError`, `OptionError` if there are no inputs, and `CheckpointCorruptError` or
    `CheckpointMigrationError` for a point that nothing can go on from.
    """
    if not any(record.is_foreign for record in records):
        return records
    if records[0].kind == START:
        return [_passed_over(record) for record in records]
    for at in range(len(records) - 1, -1, -1):
        if not records[at].is_foreign:
            continue
        fields, state = _opened(run, records[at])
        if "workflow_name" not in fields:
            if "step_type" in fields:
                return _from_steps(run, records, given)
            continue
        made = _from_point(run, records[at], fields, state, given)
        if any(is_live(record.sequence, live) for record in made[1:]) or at == 0:
            return [*made, *map(_passed_over, records[at + 1 :])]
    return records


def _passed_over(record: Record) -> Record:
    """Return the record or, for one that was saved from outside, a placeholder of no step with its number.

    The placeholder keeps the number from seeming to be missing.
    """
    return record._replace(kind="saved", node_id="", header=None) if record.is_foreign else record


def _opened(run: Run, record: Record) -> tuple[dict[str, Any], bytes]:
    try:
        return read_envelope(record.state() or b"")
    except CheckpointCorruptError as exc:
        exc.run_id, exc.node_id, exc.sequence = run.run_id, record.node_id, record.sequence
        raise


def _from_steps(run: Run, records: list[Record], given: Mapping[str, Any] | None) -> list[Record]:
    """Make records from the records of single steps, which a store by run and node has.

    They hold everything except how the run began.
    """
    made = [_begun(run, 0, given, flow=run.flow.name)]
    for record in records:
        if record.is_foreign:
            fields, state = _opened(run, record)
            known = {name: value for name, value in fields.items() if name not in _OF_ENVELOPES}
            moment = str(fields.get("timestamp") or made[0].fields()["timestamp"])
            record = make_record(
                run.run_id, record.sequence, moment, CHECKPOINT, record.node_id, record.visit, state, known
            )
        made.append(record)
    return made


_OF_ENVELOPES = frozenset(
    {
        "version",
        "run_id",
        "node_id",
        "sequence",
        "timestamp",
        "visit",
        "digest",
        "seal",
        "encoding",
        "compressed",
        "size",
    }
)


def _from_point(
    run: Run, record: Record, fields: Mapping[str, Any], state: bytes, given: Mapping[str, Any] | None
) -> list[Record]:
    """Make the start record of the point's run, and one record for each result in the point."""
    point = CheckpointData.decode(record.state() or b"")
    try:
        results = msgspec.convert(point.step_results, list[_Result])
    except msgspec.ValidationError as exc:
        raise CheckpointCorruptError(
            f"point {record.node_id!r} of run {run.run_id!r} holds results that are none of steps: {exc}",
            node_id=record.node_id,
            sequence=record.sequence,
        ) from exc
    begun = (results[-1].run if results else None) or _Begun()
    saved_at = format_time(point.saved_at.timestamp())
    made = [
        _begun(
            run,
            record.sequence if not results else 0,
            given,
            flow=point.workflow_name,
            inputs_hash=point.inputs_hash,
            timestamp=begun.begun_at or saved_at,
            version=begun.version,
        )
    ]
    # The last result has the point's own number, and the others have the numbers before it, as far as there are any.
    first = record.sequence - len(results) + 1
    for number, result in enumerate(_checked(run, record, results), first):
        made.append(_of_result(run, max(0, number), result, result.timestamp or saved_at))
    for step_id, choice in begun.choices.items():
        made.append(make_record(run.run_id, record.sequence, saved_at, ROUTE, step_id, fields=choice))
    return made


def _checked(run: Run, record: Record, results: Sequence[_Result]) -> Iterator[_Result]:
    """Iterate over the results. Raises `CheckpointMigrationError` for one that a replay cannot answer from."""
    inside = {result.name.rpartition("/")[0] for result in results}
    for result in results:
        if result.step_type in _MADE_OF_STEPS and result.outcome is None and result.name not in inside:
            raise CheckpointMigrationError(
                f"point {record.node_id!r} of run {run.run_id!r} has the result of {result.step_type} step "
                f"{result.name!r}, and not of the steps in it, from which it would be answered: begin the run again",
                node_id=record.node_id,
                found=result.step_type,
            )
        yield result


def _of_result(run: Run, sequence: int, result: _Result, timestamp: str) -> Record:
    duration = result.duration_ms or 0.0
    if result.step_type == _NODE:
        fields = {"next_node": result.next_node, "iteration": result.iteration, "duration_ms": duration}
        state = _encoded(result.output)
        return make_record(run.run_id, sequence, timestamp, CHECKPOINT, result.name, result.visit, state, fields)
    outcome = result.outcome or ("succeeded" if result.success else "failed")
    kept = {
        "name": result.name.rpartition("/")[2],
        "step_type": result.step_type,
        "success": result.success,
        "output": _as_recorded_output(result) if outcome == "succeeded" else result.output,
        "duration_ms": duration,
        "error": result.error,
        "error_type": result.error_type,
        "outcome": outcome,
        "attempts": result.attempts,
    }
    if not result.success and not result.error:
        kept["error"] = "it failed; how is not recorded"
    header = {
        "attempt": result.attempts,
        "duration_ms": duration,
        "step_type": result.step_type,
        "outcome": outcome,
        "args": result.args,
        "rollback": result.rollback,
    }
    state = _encoded(kept)
    return make_record(run.run_id, sequence, timestamp, CHECKPOINT, result.name, result.visit, state, header)


def _as_recorded_output(result: _Result) -> Any:
    """Return a step's output as a record holds it. For a step made of others a point repeats the parts' outputs."""
    output = result.output
    if result.step_type == "parallel" and isinstance(output, dict):
        children = output.get("child_results") or []
        return [str(child.get("name")).rpartition("/")[2] for child in children if isinstance(child, dict)]
    if result.step_type == "map" and isinstance(output, (list, dict)):
        return {"count": len(output)}
    return output


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _begun(
    run: Run,
    sequence: int,
    given: Mapping[str, Any] | None,
    *,
    flow: str,
    inputs_hash: str = _UNKNOWN_HASH,
    timestamp: str = "",
    version: int | None = None,
) -> Record:
    """Make the start record that the run would have."""
    mine = cast("StepFlow", run.flow)
    if flow != mine.name:
        raise WrongFlowError(
            f"run {run.run_id!r} is one of flow {flow!r}, not of {mine.name!r}: resume it with that flow",
            expected=flow,
            found=mine.name,
            differences=(f"the flow is {mine.name!r} instead of {flow!r}",),
        )
    inputs = mine.defaults() if given is None else given
    actual = mine.inputs_hash(inputs)
    is_same = inputs_hash == _UNKNOWN_HASH or (
        # A shorter part of a hash could belong to other inputs too.
        len(inputs_hash) >= len(_UNKNOWN_HASH) and actual.startswith(inputs_hash.lower())
    )
    if given is None and (not is_same or not _is_whole(mine, inputs)):
        raise OptionError(
            f"run {run.run_id!r} is known by its checkpoints alone, which do not have its inputs: give them to resume, as "
            f"in engine.resume(wf, {run.run_id!r}, name=value)",
            option="inputs",
        )
    if not is_same and run.options.compare_inputs:
        raise InputMismatchError(
            inputs_hash,
            actual,
            "give the inputs that it began with, or pass compare_inputs=False where another program made the hash",
        )
    fields = {
        "flow": mine.name,
        # If the point has no version, the run most likely began with that of the present code.
        "flow_version": version or mine.version,
        "front": mine.front,
        "fingerprint": mine.fingerprint,
        "inputs_hash": actual,
    }
    return make_record(
        run.run_id, sequence, timestamp or run.followed_at, START, state=mine.codec.encode(inputs), fields=fields
    )


def _is_whole(flow: StepFlow, inputs: Mapping[str, Any]) -> bool:
    """Return whether the workflow needs no other inputs."""
    return all(name in inputs for name in flow.shape.get("parameters", ()))


# The point where a run of a workflow goes on: its journal is read, checked, and answered from as far as it
# goes.


class ExaminedWorkflow:
    """The point where a run of a workflow goes on; see `milepost.graph.checks.ExaminedRun`."""

    at = reroute = None
    """Nothing: a workflow has no checkpoints inside branches, and no routers."""

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
        self.again: str | None = None
        """The step that is tried again although the code was given its failure, because that failure ended the run."""
        self.next_node = info.next_node

    @property
    def plan(self) -> str:
        """A sentence that says what happens if the run goes on from here."""
        if self.next_node is None:
            return "no step is left to do: the workflow's code goes on to its end"
        return f"goes on at step {self.next_node!r}"


def find(run: StepRun, request: ResumeRequest, latest: RunSnapshot) -> Routine[ExaminedWorkflow]:
    """Play the recorded part, up to the first thing that is new."""
    check_flow(run, latest.row)
    _refuse_states(run)
    if run.main is not None:
        run.main.close()
    run.forget()
    remarks: list[str] = []
    everything, records, parsed = yield from read(run, latest, remarks)
    live, again = _live_ranges(run, request, latest, records)
    standing = latest.row.live if live is None else live
    run.know_renames(newest_renames(everything))
    recorded = read_history(everything, standing, run.renames, parsed)
    check_renames(run, recorded)
    begun = recorded.start
    if begun is None:
        raise NoCheckpointFoundError(run.run_id, None, "the run has no start record")
    if request.verb == "retry":
        recorded = retried_at(recorded, latest.newest + 1)
    elif latest.row.status == "failed":
        recorded = renewed_at(recorded, latest.newest + 1)
    if again is not None:
        recorded = reopened_at(recorded, again, latest.newest + 1)
    run.know(recorded)
    begun = _with_input(run, begun)
    inputs = inputs_of(run, begun)
    run.version = int(begun.fields.get("flow_version") or 1)
    is_finished = latest.row.status == "finished" and request.verb == "resume"
    differences = _differences(run, begun)
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
    found = ExaminedWorkflow(latest.row, latest.newest, point, inputs, info, live)
    found.again = again
    return found


def _with_input(run: StepRun, begun: StepRecord) -> StepRecord:
    """Return the beginning of the run. If the run was started by name and its input was never read, that is done here."""
    if not is_incomplete(begun.fields):
        return begun
    whole = whole_start(run, begun.record, ())
    return StepRecord(begun.sequence, whole.fields(), whole)


def refusal(run: StepRun, request: ResumeRequest, examined: ExaminedWorkflow) -> MilepostError | None:
    """Return the reason why the verb does not go on from the end of the replay, or None."""
    row = examined.row
    if run.held is not None and row.status == "blocked":
        return not_resumable(run, row.status, row.reason, "its code still has the bug: mend it, then resume")
    if request.verb == "resume" and row.status == "failed" and run.recorded.first_undone() is None:
        for step_id, step in run.pending:
            policy = step.modifiers.retry or run.options.retry
            spent = run.spent(step_id, 0)
            if policy is not None and spent.failures >= policy.max_attempts:
                hint = f"step {step_id!r} has used up its {policy.max_attempts} attempts; mend the cause and use retry"
                return not_resumable(run, row.status, row.reason, hint, node_id=step_id)
    if run.options.strict and examined.info.differences:
        return FlowChangedError(
            f"the flow of run {run.run_id!r} has changed ({'; '.join(examined.info.differences)}): resume without strict "
            f"to go on",
            differences=examined.info.differences,
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
        missed=latest.row.missed,
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


def _live_ranges(
    run: StepRun, request: ResumeRequest, latest: RunSnapshot, records: list[Record]
) -> tuple[Ranges | None, str | None]:
    """Do `ranges_to_go_on`, also for the visit that `resume_from` names."""
    if request.verb == "resume_from":
        return ranges_upto(latest.row.live, _last_to_keep(run, request, latest.row.live, records)), None
    return ranges_to_go_on(request, latest, records, reopen=run.options.reopen)


def ranges_to_go_on(
    request: ResumeRequest, latest: RunSnapshot, records: list[Record], *, reopen: bool
) -> tuple[Ranges | None, str | None]:
    """Return new live ranges up to the claim if a part of the record no longer counts. None: they stay as they are.

    The second value is the step whose failure ended the run after its code had been given it, if that is tried again.
    """
    live = latest.row.live
    standing = read_history(records, live) if _may_cut(request, latest, reopen=reopen) else None
    cuts = []
    again: str | None = None
    if standing is not None and (standing.final is None or standing.finish is not None or request.verb == "retry"):
        undone = standing.first_undone()
        if undone is not None and (standing.final is None or standing.finish is not None):
            cuts.append(undone - 1)
        at = _tried_again(standing, request)
        if at is not None and (at[0] or not cuts):
            again = at[0] or None
            cuts.append(at[1])
    if records and records[-1].sequence < latest.newest:
        cuts.append(records[-1].sequence)
    return (ranges_upto(live, min(cuts)), again) if cuts else (None, None)


def _tried_again(standing: JournalHistory, request: ResumeRequest) -> tuple[str, int] | None:
    """Return the step whose failure left the code later than it was thrown, and the last number that still counts."""
    final = standing.final
    if final is None or final.record.node_id:
        return None
    of = final.fields.get("of")
    failure = standing.standing_failure(of) if of else None
    if failure is not None:
        return str(of), failure.sequence
    return standing.failed_root() if request.verb == "retry" else None


def _may_cut(request: ResumeRequest, latest: RunSnapshot, *, reopen: bool) -> bool:
    is_reopened = latest.row.cancel is not None and reopen
    return request.verb == "retry" or is_reopened or latest.row.status in {"failed", "cancelled", "blocked"}


def _last_to_keep(run: StepRun, request: ResumeRequest, live: Ranges, records: list[Record]) -> int:
    """Return the number of the last record that still counts for `resume_from`."""
    run.know_renames(newest_renames(records))
    standing = read_history(records, live, run.renames)
    entry = standing.done.get(request.node_id or "")
    if entry is None or request.visit not in {None, entry.record.visit}:
        raise NoCheckpointFoundError(
            run.run_id, request.node_id, "there is none of this step that was not superseded; see history()"
        )
    if not request.rerun:
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
        inputs: dict[str, Any] = run.flow.input_of(begun.record.state() or b"{}")
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
        )
    return run.flow.output_codec.decode(finish.record.state() or b"null", root="output")


def _refuse_states(run: StepRun) -> None:
    for name in ("state_override", "update", "revalidate"):
        if getattr(run.options, name) is not None:
            raise RunNotResumableError(
                f"{name} is for graphs: run {run.run_id!r} is one of workflow {run.flow.name!r}, which has no state "
                f"but its steps' results",
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
