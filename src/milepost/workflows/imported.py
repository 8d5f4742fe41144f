"""Runs of a workflow that are known by their marked points alone: the contents of such a point, as records.

A store that keeps points has no start record, and a point has no journal: it holds the results of steps, one after the
other. This module makes them into records, from which a replay answers. Results that another program wrote may hold
less: name, kind and perhaps output. Missing fields are not compared. The module is pure, and its records are never
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointMigrationError,
    InputMismatchError,
    OptionError,
    WrongFlowError,
)
from milepost.executor.flow import StepFlow
from milepost.executor.run import Run
from milepost.model.checkpoint import read_envelope
from milepost.model.checkpoint_data import CheckpointData
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import CHECKPOINT, ROUTE, START, Record, format_time, make_record

__all__ = ["as_recorded"]

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
            run_id=run.run_id,
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
                run_id=run.run_id,
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
            run_id=run.run_id,
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
            run_id=run.run_id,
        )
    if not is_same and run.options.compare_inputs:
        raise InputMismatchError(
            inputs_hash,
            actual,
            "give the inputs that it began with, or pass compare_inputs=False where another program made the hash",
            run_id=run.run_id,
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
