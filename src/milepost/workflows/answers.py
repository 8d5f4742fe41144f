"""Answers to steps from the record, after a check that the step is the one that was recorded.

A step that is made of others is answered from the records of its parts. All steps below it are compared too, and their
rollbacks are registered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import (
    AsyncNodeError,
    DeserializeStateError,
    DuplicateStepNameError,
    StepError,
    shown,
)
from milepost.executor import waits as parking
from milepost.executor.effects import Call, Routine
from milepost.executor.history_values import StepOutcome, StepRecord
from milepost.executor.waits import Waits
from milepost.model.failure import describe, message_of, place, type_name
from milepost.model.record import StepHead
from milepost.model.results import (
    BranchResult,
    ParallelResult,
    SkipMarker,
    StepResult,
    step_result,
)
from milepost.workflows.groups import check_items, graph_invoked, invoked, item_ids
from milepost.workflows.matching import described, differs, how_to_agree, non_determinism
from milepost.workflows.rollback import register
from milepost.workflows.steps import Calls, Chooses, Invokes, Maps, Spreads, Step, is_async
from milepost.workflows.visiting import StepFailed, answer_of, asked_with, refuse_async

if TYPE_CHECKING:
    from milepost.workflows.run import Frame, StepRun


class _Mapped(msgspec.Struct):
    """The recorded output of a map."""

    count: int


class _Selected(msgspec.Struct):
    """The recorded output of a branch."""

    selected_index: int


class _Invoked(msgspec.Struct):
    """The recorded output of a flow inside."""

    final_output: msgspec.Raw


class _Walked(_Invoked):
    """The recorded output of a graph inside."""

    iterations: int


def matching(run: StepRun, step: Step[Any], step_id: str, frame: Frame) -> StepResult | None:
    """Return the recorded result of a call that is asked for as it was recorded, as nearly all are.

    None: no such call is recorded, and `answered` decides what follows from that.
    """
    entry, work = run.recorded.done.get(step_id), step.work
    if entry is None or type(work) is not Calls:
        return None
    head = entry.header
    if type(head) is not StepHead or head.outcome != "succeeded" or head.step_type != work.step_type:
        return None
    if head.args and step.modifiers.compare_args is not False and differs(head.args, asked_with(run, step)):
        return None
    call = entry.call_result()
    if call is None:
        return None
    try:
        output = run.flow.codec_of(work.fn).decode(bytes(call.output), root="output")
    except DeserializeStateError:
        return None
    result = step_result(
        step.name, work.step_type, True, output, call.duration_ms, None, None, "succeeded", call.attempts
    )
    if head.rollback:
        register(run, step, step_id, entry.sequence, output, frame)
    frame.has_replayed(result, entry.sequence, head.timestamp)
    return result


def answered(run: StepRun, step: Step[Any], step_id: str, entry: StepRecord, frame: Frame) -> Routine[StepResult]:
    """Return the recorded result, after a check that it belongs to the step that is asked for now."""
    fields, mods, work = entry.fields, step.modifiers, step.work
    kind = work.step_type.value
    outcome = entry.outcome()
    if fields.get("step_type") != kind:
        raise non_determinism(
            run.run_id, frame.position - 1, described(step_id, str(fields.get("step_type"))), described(step_id, kind)
        )
    if mods.compare_args is not False:
        now = asked_with(run, step)
        if isinstance(work, Maps) and outcome.outcome == "succeeded" and fields.get("args"):
            begun = {"args": fields.get("args"), "count": _count_of(outcome)}
            check_items(run, step, step_id, frame, begun, now)
        if differs(fields.get("args"), now):
            raise non_determinism(
                run.run_id,
                frame.position - 1,
                described(step_id, kind, fields.get("args")),
                described(step_id, kind, now),
                how_to_agree(fields.get("args"), now),
            )
    output: Any = None
    if outcome.outcome == "skipped":
        output = SkipMarker(str(msgspec.json.decode(outcome.output).get("reason", "")))
    elif outcome.outcome == "recovered":
        try:
            before = _failed_before(run, step, step_id, outcome)
            output = yield from fallback(run, step, step_id, frame, before, None)
        except StepFailed as exc:
            raise non_determinism(
                run.run_id, frame.position - 1, f"step {step_id!r} whose on_error succeeded", exc.result.error or ""
            ) from exc
    elif outcome.success:
        output = yield from _recorded_output(run, step, step_id, outcome, frame)
    if outcome.outcome != "succeeded":
        yield from register_parts(run, step, step_id, frame)
    result = outcome.result(output, step.name, step.step_type)
    if fields.get("rollback"):
        register(run, step, step_id, entry.sequence, output, frame)
    if step_id == frame.prefix + step.name:
        frame.has_replayed(result, entry.sequence, str(fields.get("timestamp")))
    return result


def register_parts(run: StepRun, step: Step[Any], step_id: str, frame: Frame) -> Routine[None]:
    """Register the rollbacks below a step that failed or was recovered: of its parts, and of what its on_error gave."""
    yield from register_own_parts(run, step, step_id, frame)
    below = f"{step_id}/"
    if step.modifiers.on_error and any(
        part_id.startswith(below) and part_id not in run.undos for part_id in run.recorded.rollbacks_due
    ):
        # They belong to the step that its on_error gave, which failed too.
        with suppress(StepFailed):
            other = yield from _ask_on_error(run, step, step_id, frame, _failed_before(run, step, step_id))
            yield from register_parts(run, other, f"{step_id}/{other.name}", frame)


def register_own_parts(run: StepRun, step: Step[Any], step_id: str, frame: Frame) -> Routine[None]:
    """Register the rollbacks of a group's steps that succeeded although the group, or a branch that chose it, failed.

    They are still undone if the run fails later.
    """
    work = step.work
    if isinstance(work, Chooses):
        chosen = run.recorded.choices.get(step_id)
        index = None if chosen is None else chosen.fields.get("index")
        if index is not None and 0 <= index < len(work.options):
            option = work.options[index][1]
            yield from register_parts(run, option, f"{step_id}/{option.name}", frame)
    for child in work.children if isinstance(work, Spreads) else ():
        if f"{step_id}/{child.name}" in run.recorded.done:
            yield from _part_of(run, step_id, child, frame)


def _failed_before(run: StepRun, step: Step[Any], step_id: str, outcome: StepOutcome | None = None) -> StepResult:
    """Return the failure of a step as its on_error got it. `outcome` is the step's recorded outcome, if it has one."""
    failures = [entry.fields for entry in run.recorded.failures.get(step_id, ())]
    failure: Mapping[str, Any] = next((fields for fields in reversed(failures) if fields.get("op") != "on_error"), {})
    kind = str(failure.get("error_type") or (outcome.error_type if outcome is not None else ""))
    text = str(failure.get("message") or kind)
    attempts = outcome.attempts if outcome is not None else int(failure.get("attempt") or 1)
    return StepResult(step.name, step.step_type, False, None, 0.0, text, kind, "failed", attempts)


def _recorded_output(run: StepRun, step: Step[Any], step_id: str, outcome: StepOutcome, frame: Frame) -> Routine[Any]:
    work = step.work
    try:
        if isinstance(work, Calls):
            return run.flow.codec_of(work.fn).decode(bytes(outcome.output), root="output")
        if isinstance(work, Waits):
            return parking.reply_of(work, bytes(outcome.output))
        if isinstance(work, Maps):
            codec = run.flow.codec_of(work.fn)
            ids = item_ids(run, step, step_id)
            other = [item_id for item_id in ids if item_id not in run.recorded.done]
            if other or (work.key is None and _count_of(outcome) != len(ids)):
                named = f" ({', '.join(map(repr, other[:5]))} among them)" if other else ""
                raise non_determinism(
                    run.run_id,
                    frame.position - 1,
                    described(step_id, step.step_type.value, count=_count_of(outcome)),
                    described(step_id, step.step_type.value, count=len(ids)) + named,
                    "map over the items that it began with, or branch on ctx.version",
                )
            return [
                codec.decode(bytes(run.recorded.done[item_id].outcome().output), root=f"output[{index}]")
                for index, item_id in enumerate(ids)
            ]
        if isinstance(work, Chooses):
            index = msgspec.json.decode(outcome.output, type=_Selected).selected_index
            if not 0 <= index < len(work.options):
                raise non_determinism(
                    run.run_id, frame.position - 1, f"option {index} of branch {step_id!r}", repr(step)
                )
            chosen = work.options[index][1]
            inner = yield from _part_of(run, step_id, chosen, frame)
            chosen_id = f"{step_id}/{chosen.name}"
            return BranchResult(index, chosen.name, answer_of(run, chosen, chosen_id, inner, frame))
        if isinstance(work, Spreads):
            count = len(msgspec.json.decode(outcome.output, type=list[Any]))
            if count != len(work.children):
                raise non_determinism(
                    run.run_id, frame.position - 1, f"parallel step {step_id!r} of {count} steps",
                    f"one of {len(work.children)}",
                )  # fmt: skip
            results: list[StepResult] = []
            for child in work.children:
                result = yield from _part_of(run, step_id, child, frame)
                results.append(result)
            return ParallelResult(tuple(results))
        return (yield from _recorded_invocation(run, work, step_id, outcome, frame))
    except DeserializeStateError as exc:
        if exc.node_id is None:  # else a step inside this one has named itself
            exc.run_id, exc.node_id = run.run_id, step_id
            place(
                exc,
                f"the recorded output of step {step_id!r} of run {run.run_id!r} cannot be read",
                "bring the step's return type back, or tell @workflow(types=...) which classes it may give",
            )
        raise
    except msgspec.ValidationError as exc:
        raise non_determinism(run.run_id, frame.position - 1, f"another step {step_id!r}", repr(step)) from exc


def _count_of(outcome: StepOutcome) -> int:
    """Return the number of items of a map that succeeded."""
    return msgspec.json.decode(outcome.output, type=_Mapped).count


def _part_of(run: StepRun, step_id: str, part: Step[Any], frame: Frame) -> Routine[StepResult]:
    """Return the recorded result of a part of a step that has ended."""
    part_id = f"{step_id}/{part.name}"
    if part_id not in run.recorded.done:
        known = ", ".join(repr(child.rpartition("/")[2]) for child in run.recorded.children(step_id)) or "none"
        raise non_determinism(
            run.run_id,
            frame.position - 1,
            f"step {step_id!r} made of {known}",
            described(part_id, part.work.step_type.value),
        )
    return (yield from run.do(part, part_id, frame, is_child=True))


def _recorded_invocation(run: StepRun, work: Invokes, step_id: str, outcome: StepOutcome, frame: Frame) -> Routine[Any]:
    flow = work.flow
    if flow.front == "graph":
        walked = msgspec.json.decode(outcome.output, type=_Walked)
        return graph_invoked(run, flow.codec.decode(bytes(walked.final_output)), walked.iterations)
    ended = msgspec.json.decode(outcome.output, type=_Invoked)
    inner = run.frame(flow, step_id, work.given, frame.ends_at, frame.followed)
    yield from run.play(inner)
    output = flow.output_codec.decode(bytes(ended.final_output), root="output")
    return invoked(run, inner, output, outcome.duration_ms)


def _ask_on_error(run: StepRun, step: Step[Any], step_id: str, frame: Frame, failed: StepResult) -> Routine[Step[Any]]:
    """Ask a step's on_error for another step. Raises `StepFailed` if it gives none."""
    handler = step.modifiers.on_error
    if handler is None:
        raise non_determinism(run.run_id, frame.position - 1, f"step {step_id!r} with an on_error", repr(step))
    refuse_async(run, handler, step_id)
    try:
        view = frame.context.view_for("on_error", step_id)
        other = yield Call(handler, (view, failed), view, is_async(handler), is_quick=not is_async(handler))
        if not isinstance(other, Step):
            raise TypeError(f"on_error of step {step_id!r} gave {shown(other)} instead of a step")
    except AsyncNodeError:
        raise
    except Exception as exc:
        error = StepError(
            f"the on_error of step {step_id!r} of run {run.run_id!r} failed: {describe(exc)}", run_id=run.run_id,
            node_id=step_id, step_name=step_id, step_type=step.step_type.value,
        )  # fmt: skip
        error.__cause__ = exc
        result = StepResult(step.name, step.step_type, False, None, 0.0, message_of(exc) or type_name(exc), type_name(exc),
                            "failed")  # fmt: skip
        raise StepFailed(error, result, None) from exc
    return other


def fallback(
    run: StepRun, step: Step[Any], step_id: str, frame: Frame, failed: StepResult, parts: Iterable[str] | None
) -> Routine[Any]:
    """Ask a step's on_error for another step, do that, and return its answer. Raises `StepFailed` if either fails.

    `parts` are the ids of the step's own parts, which the other step must not use. None: the other step is recorded,
    and is answered.
    """
    other = yield from _ask_on_error(run, step, step_id, frame, failed)
    other_id = f"{step_id}/{other.name}"
    if parts is not None and other_id in parts:
        raise DuplicateStepNameError(
            f"the on_error of step {step_id!r} of run {run.run_id!r} gave a step called {other.name!r}, as a part of "
            f"the step itself is called: give it a name of its own",
            run_id=run.run_id,
            node_id=other_id,
            step_name=other.name,
        )
    if parts is None:
        result = yield from _part_of(run, step_id, other, frame)
    else:
        result = yield from run.do(other, other_id, frame)
    return answer_of(run, other, other_id, result, frame)
