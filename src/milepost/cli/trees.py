"""A run of a workflow as the tree of its steps. The journal alone tells it: nothing of the user's code is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from milepost.cli.journals import failure_text
from milepost.cli.lines import wait_document, wait_text
from milepost.cli.text import clean, iso, plural, short, utc
from milepost.errors import CheckpointCorruptError, DeserializeStateError
from milepost.executor.history import JournalHistory, StepRecord
from milepost.model.info import Wait
from milepost.model.ranges import is_live
from milepost.model.record import CHECKPOINT, Record, parse_time
from milepost.store import ENDED, RunSnapshot

__all__ = ["Tree", "TreeStep", "rows_of", "tree_of"]

_FOLDED = 20
"""How many steps of one step are shown; of more, those that are done are counted instead."""
_PLAIN = frozenset({"done", "skipped"})


@dataclass(slots=True)
class TreeStep:
    """One step, and the steps that it is made of.

    `status` is done, skipped, recovered, failed, rolled back, rollback failed, waiting, in flight (begun and not ended), or
    unfinished: the same where the run itself has ended.
    `outcome` is what its record says, None before its end; `output` is the recorded JSON.
    """

    step_id: str
    step_type: str = ""
    status: str = "in flight"
    outcome: str | None = None
    visit: int = 1
    attempts: int = 0
    failures: int = 0
    duration_ms: float | None = None
    last_at: datetime | None = None
    sequence: int | None = None
    is_marked: bool = False
    reason: str = ""
    """Why it was skipped, or why an answer to its wait was refused."""
    error: str = ""
    """What it, its rollback or its newest attempt failed with."""
    retry_at: datetime | None = None
    output: Any = None
    wait: Wait | None = None
    steps: list[TreeStep] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON, with its steps."""
        told = {found.name: getattr(self, found.name) for found in fields(self)}
        wait = self.wait
        return told | {
            "last_at": iso(self.last_at),
            "retry_at": iso(self.retry_at),
            "wait": None if wait is None else wait_document(wait),
            "steps": [step.to_dict() for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Tree:
    """What a run's journal tells. Of a run that has not finished `output` is None."""

    inputs: Any
    output: Any
    steps: tuple[TreeStep, ...]
    superseded: tuple[Record, ...]
    """The results that do not count any more."""
    damaged: tuple[int, ...]
    """The numbers of records that cannot be read."""

    @property
    def next_step(self) -> str:
        """The step where the run goes on, as far as it is known; "" where it is not."""
        return next((step.step_id for step in self.steps if step.outcome is None), "")


def tree_of(records: Iterable[Record], latest: RunSnapshot) -> Tree:
    """The steps of a run as `records` tell of them, which are all that there were when `latest` was read."""
    recorded, superseded, damaged = JournalHistory(), [], []
    for record in records:
        is_standing = is_live(record.sequence, latest.row.live)
        try:
            recorded.add(record, is_standing)
        except DeserializeStateError:
            damaged.append(record.sequence)
            continue
        if record.kind == CHECKPOINT and not is_standing:
            superseded.append(record)
    is_over = latest.row.info.status in ENDED or recorded.final is not None
    steps = tuple(_step(recorded, step_id, is_over=is_over) for step_id in recorded.children(""))
    return Tree(_json(recorded.start), _json(recorded.finish), steps, tuple(superseded), tuple(damaged))


def _json(entry: StepRecord | None) -> Any:
    """What a record holds, or None where that is nothing, or can't be read here for want of a key."""
    if entry is None:
        return None
    try:
        return json.loads(entry.record.state() or b"null")
    except (CheckpointCorruptError, ValueError):
        return None


# -- one step ------------------------------------------------------------------------------------------------


def _step(recorded: JournalHistory, step_id: str, *, is_over: bool) -> TreeStep:
    step = TreeStep(step_id, steps=[_step(recorded, child, is_over=is_over) for child in recorded.children(step_id)])
    step.failures = len(recorded.failures.get(step_id, ()))
    step.attempts = step.failures
    done = recorded.done.get(step_id)
    if done is None:
        _tell_begun(step, recorded, is_over=is_over)
        return step
    _tell_done(step, done)
    step.steps.sort(key=_given_order(step))
    undone = recorded.undone.get(step_id)
    if undone is not None:
        message = undone.fields.get("message")
        step.status = "rolled back" if message is None else "rollback failed"
        step.error = "" if message is None else str(message)
    return step


def _tell_done(step: TreeStep, done: StepRecord) -> None:
    """What the record of a step's end says, or of a node's in a graph that is a step."""
    told = done.fields
    _place(step, done)
    step.step_type = str(told.get("step_type", "node"))
    step.outcome = str(told.get("outcome", "succeeded"))
    step.status = "done" if step.outcome == "succeeded" else step.outcome
    step.attempts = int(told.get("attempt") or 1)
    step.duration_ms = told.get("duration_ms")
    step.is_marked = bool(told.get("marked"))
    if "step_type" not in told:
        step.output = _json(done)
        return
    try:
        kept = done.kept()
    except DeserializeStateError:
        return
    output = json.loads(bytes(kept.output))
    if step.outcome == "skipped":
        step.reason = str(output.get("reason", "")) if isinstance(output, dict) else ""
    else:
        step.output = output
    if kept.error is not None:
        step.error = f"{kept.error_type}: {kept.error}"


def _given_order(step: TreeStep) -> Callable[[TreeStep], int]:
    """Where the code has each of the steps that a step ran at once: they are recorded as they ended."""
    names = [found.step_id.rpartition("/")[2] for found in step.steps]
    if step.step_type == "map" and all(name.isdecimal() for name in names):
        return lambda found: int(found.step_id.rpartition("/")[2])
    given = step.output if step.step_type == "parallel" and isinstance(step.output, list) else names
    places = {f"{step.step_id}/{name}": place for place, name in enumerate(given)}
    return lambda found: places.get(found.step_id, len(places))


def _tell_begun(step: TreeStep, recorded: JournalHistory, *, is_over: bool) -> None:
    """What is known of a step that has no end yet."""
    step_id = step.step_id
    step.status = "unfinished" if is_over else "in flight"
    waits, reply = recorded.waits.get(step_id), recorded.replies.get(step_id)
    failures = recorded.failures.get(step_id, ())
    begun = [held[step_id] for held in (recorded.choices, recorded.items, recorded.waits) if step_id in held]
    newest = max([*failures, *begun], key=lambda entry: entry.sequence, default=None)
    if newest is not None:
        _place(step, newest)
    if step_id in recorded.items:
        step.step_type = "map"
    elif step_id in recorded.choices and "index" in recorded.choices[step_id].fields:
        step.step_type = "branch"
    if failures:
        told = failures[-1].fields
        step.error = failure_text(told)
        step.retry_at = _time(told.get("retry_at"))
        if is_over and (told.get("given_up") or told.get("final")):
            step.status = "failed"
    if waits is not None:
        step.step_type = "timer" if waits.fields.get("signal") is None else "wait"
        if not is_over and (reply is None or reply.sequence < waits.sequence):
            step.status, step.wait = "waiting", _wait_of(waits)
            refused = recorded.refused.get(step_id)
            if refused is not None and refused.sequence > waits.sequence:
                step.reason = str(refused.fields.get("refused"))


def _place(step: TreeStep, entry: StepRecord) -> None:
    step.sequence, step.visit = entry.sequence, entry.record.visit
    step.last_at = _time(entry.fields.get("timestamp"))


def _time(text: Any) -> datetime | None:
    try:
        return None if text is None else parse_time(str(text))
    except ValueError:
        return None


def _wait_of(entry: StepRecord) -> Wait:
    told = entry.fields
    return Wait(str(told.get("wait_id")), told.get("signal"), _json(entry), _time(told.get("wake_at")))


# -- as a table ----------------------------------------------------------------------------------------------


def rows_of(steps: Sequence[TreeStep], depth: int = 0) -> Iterator[tuple[TreeStep | None, str, str]]:
    """Each step with its name, indented below what it is part of, and what there is to tell of it.

    Without a step: those that were left out.
    """
    shown = list(steps)
    if depth and len(steps) > _FOLDED:
        shown = [step for step in steps if step.status not in _PLAIN]
    for step in shown:
        yield step, "  " * depth + clean(step.step_id.rpartition("/")[2]), told_of(step)
        yield from rows_of(step.steps, depth + 1)
    if len(shown) < len(steps):
        yield None, "  " * depth + f"({len(steps) - len(shown)} done)", ""


def told_of(step: TreeStep) -> str:
    """The one thing that people want to know of a step, in a line."""
    match step.status:
        case "skipped":
            return step.reason + (f": {short(step.error, 100)}" if step.error else "")
        case "recovered":
            return "by its on_error"
        case "failed" | "rollback failed":
            return short(step.error, 160)
        case "waiting":
            return _told_wait(step)
        case "in flight" | "unfinished":
            again = "" if step.retry_at is None else f"; again at {utc(step.retry_at)}"
            return f"attempt {step.attempts} failed: {short(step.error, 100)}{again}" if step.error else ""
        case _:
            return _told_output(step)


def _told_wait(step: TreeStep) -> str:
    refused = f"; {short(step.reason, 100)}" if step.reason else ""
    return "" if step.wait is None else f"for {wait_text(step.wait)}{refused}"


def _told_output(step: TreeStep) -> str:
    """An output, short; of what is made of others what they do not tell."""
    output = step.output
    match step.step_type:
        case "parallel":
            failed = sum(child.outcome == "failed" for child in step.steps)
            return plural(len(step.steps), "step") + (f", {failed} failed" if failed else "")
        case "map" if isinstance(output, dict):
            return plural(int(output.get("count", 0)), "item")
        case "branch" if isinstance(output, dict):
            return f"took {short(output.get('selected_step_name'))}"
        case "subworkflow" if isinstance(output, dict):
            return _value(output.get("final_output"))
        case "wait" | "timer" if isinstance(output, dict):
            return "timed out" if output.get("timed_out") else _value(output.get("payload"))
        case _:
            return _value(output)


def _value(value: Any) -> str:
    return "" if value is None else short(json.dumps(value, ensure_ascii=False), 60)
