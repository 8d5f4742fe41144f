"""A run as a tree: the steps of a workflow, or the visits of a graph's nodes. Only the journal is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from milepost.errors import DeserializeStateError
from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import read_history
from milepost.executor.history_values import StepRecord
from milepost.graph.status import RunStatus, Visit, json_of, time_of
from milepost.model.info import Wait
from milepost.model.record import END, Record
from milepost.store import ENDED, RunSnapshot
from milepost.views.journal import failure_text
from milepost.views.text import (
    attempt_of,
    clean,
    duration,
    iso,
    json_text,
    plural,
    short,
    utc,
    wait_document,
    wait_text,
)

_FOLDED = 20
"""The number of rows that are shown for the steps of one step, the visits of one path, or the items of one map."""

_PLAIN = frozenset({"done", "skipped"})


@dataclass(slots=True)
class TreeStep:
    """One step, and the steps that it is made of.

    `status` is done, skipped, recovered, failed, rolled back, rollback failed, waiting, in flight (it has begun and not
    ended) or unfinished (it had not ended when the run ended). `outcome` is the recorded outcome; None before its end.
    `output` is the recorded JSON.
    """

    step_id: str
    step_type: str = ""
    status: str = "in flight"
    outcome: str | None = None
    visit: int = 1
    attempts: int = 0
    max_attempts: int | None = None
    """The number of attempts that its policy allows, while the newest has failed; None without a policy."""
    failures: int = 0
    duration_ms: float | None = None
    """Milliseconds of the step, or of its newest attempt if that has failed."""
    last_at: datetime | None = None
    sequence: int | None = None
    is_marked: bool = False
    reason: str = ""
    """The reason why it was skipped, or why an answer to its wait was refused."""
    error: str = ""
    """The error of the step, its rollback or its newest attempt."""
    retry_at: datetime | None = None
    output: Any = None
    wait: Wait | None = None
    steps: list[TreeStep] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON, with its steps."""
        document = {known.name: getattr(self, known.name) for known in fields(self)}
        wait = self.wait
        return document | {
            "last_at": iso(self.last_at),
            "retry_at": iso(self.retry_at),
            "wait": None if wait is None else wait_document(wait),
            "steps": [step.to_dict() for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Tree:
    """The steps of a run, from its journal. `output` is None unless the run has finished."""

    inputs: Any
    output: Any
    steps: tuple[TreeStep, ...]
    superseded: tuple[Record, ...]
    """The records of superseded results."""
    damaged: tuple[int, ...]
    """The numbers of records that cannot be read."""

    @property
    def next_step(self) -> str:
        """The step where the run goes on; "" if it is unknown."""
        return next((step.step_id for step in self.steps if step.outcome is None), "")


def tree_of(records: Iterable[Record], latest: RunSnapshot) -> Tree:
    """Make the tree of a run from all records that it had when `latest` was read."""
    recorded = read_history(records, latest.row.live, is_lenient=True)
    is_over = latest.row.info.status in ENDED or recorded.final is not None
    steps = tuple(_step(recorded, step_id, is_over=is_over) for step_id in recorded.children(""))
    return Tree(
        _json(recorded.start), _json(recorded.finish), steps, tuple(recorded.superseded), tuple(recorded.damaged)
    )


def _json(entry: StepRecord | None) -> Any:
    return None if entry is None else json_of(entry.record)


# -- one step ------------------------------------------------------------------------------------------------


def _step(recorded: JournalHistory, step_id: str, *, is_over: bool) -> TreeStep:
    step = TreeStep(step_id, steps=[_step(recorded, child, is_over=is_over) for child in recorded.children(step_id)])
    step.failures = len(recorded.failures.get(step_id, ()))
    step.attempts = step.failures
    done = recorded.done.get(step_id)
    if done is None:
        _fill_open(step, recorded, is_over=is_over)
        return step
    _fill_ended(step, done)
    step.steps.sort(key=_code_order(step))
    undone = recorded.undone.get(step_id)
    if undone is not None:
        message = undone.fields.get("message")
        step.status = "rolled back" if message is None else "rollback failed"
        step.error = "" if message is None else str(message)
    return step


def _fill_ended(step: TreeStep, done: StepRecord) -> None:
    """Set the fields of a step that has ended, or of a node in a graph that is a step."""
    recorded = done.fields
    _place(step, done)
    step.step_type = str(recorded.get("step_type", "node"))
    step.outcome = str(recorded.get("outcome", "succeeded"))
    step.status = "done" if step.outcome == "succeeded" else step.outcome
    step.attempts = int(recorded.get("attempt") or 1)
    step.duration_ms = recorded.get("duration_ms")
    step.is_marked = bool(recorded.get("marked"))
    if "step_type" not in recorded:
        step.output = _json(done)
        return
    try:
        outcome = done.outcome()
    except DeserializeStateError:
        return
    output = json.loads(bytes(outcome.output))
    if step.outcome == "skipped":
        step.reason = str(output.get("reason", "")) if isinstance(output, dict) else ""
    else:
        step.output = output
    if outcome.error is not None:
        step.error = f"{outcome.error_type}: {outcome.error}"


def _code_order(step: TreeStep) -> Callable[[TreeStep], int]:
    """Return a sort key that puts parallel steps in the order of the code. They were recorded in the order of their ends."""
    names = [part.step_id.rpartition("/")[2] for part in step.steps]
    if step.step_type == "map" and all(name.isdecimal() for name in names):
        return lambda part: int(part.step_id.rpartition("/")[2])
    in_order = step.output if step.step_type == "parallel" and isinstance(step.output, list) else names
    places = {f"{step.step_id}/{name}": place for place, name in enumerate(in_order)}
    return lambda part: places.get(part.step_id, len(places))


def _fill_open(step: TreeStep, recorded: JournalHistory, *, is_over: bool) -> None:
    """Set the fields of a step that has not ended."""
    step_id = step.step_id
    step.status = "unfinished" if is_over else "in flight"
    wait = recorded.waits.get(step_id)
    failures = recorded.failures.get(step_id, ())
    in_flight = [
        entries[step_id] for entries in (recorded.choices, recorded.items, recorded.waits) if step_id in entries
    ]
    newest = max([*failures, *in_flight], key=lambda entry: entry.sequence, default=None)
    if newest is not None:
        _place(step, newest)
    if step_id in recorded.items:
        step.step_type = "map" if recorded.has_map(step_id) else "subworkflow"
    elif step_id in recorded.choices and "index" in recorded.choices[step_id].fields:
        step.step_type = "branch"
    if failures:
        failure = failures[-1].fields
        step.error = failure_text(failure)
        step.retry_at = time_of(failure.get("retry_at"))
        step.duration_ms, step.max_attempts = failure.get("duration_ms"), failure.get("max_attempts")
        if is_over and (failure.get("given_up") or failure.get("final")):
            step.status = "failed"
    if wait is not None:
        step.step_type = "timer" if wait.fields.get("signal") is None else "wait"
        if not is_over and recorded.open_wait(step_id) is not None:
            step.status, step.wait = "waiting", _wait_of(wait)
            refused = recorded.refusal_of(wait, step_id)
            step.reason = "" if refused is None else str(refused.fields.get("refused"))


def _place(step: TreeStep, entry: StepRecord) -> None:
    step.sequence, step.visit = entry.sequence, entry.record.visit
    step.last_at = time_of(entry.fields.get("timestamp"))


def _wait_of(entry: StepRecord) -> Wait:
    recorded = entry.fields
    return Wait(str(recorded.get("wait_id")), recorded.get("signal"), _json(entry), time_of(recorded.get("wake_at")))


# -- as a table ----------------------------------------------------------------------------------------------


def parts_of(content: Tree | RunStatus) -> Iterator[TreeStep | Visit]:
    """Yield all steps of a workflow's run, or all visits of a graph's run, each before those inside it."""
    parts: Sequence[TreeStep | Visit] = content.steps if isinstance(content, Tree) else content.visits
    pending = [*reversed(parts)]
    while pending:
        part = pending.pop()
        yield part
        pending += reversed(part.steps)


def rows_of(steps: Sequence[TreeStep], depth: int = 0) -> Iterator[tuple[TreeStep | None, str, str]]:
    """Yield each step with its name, indented below the step that contains it, and a remark.

    A row without a step says how many steps were left out.
    """
    shown = list(steps)
    if depth and len(steps) > _FOLDED:
        shown = [step for step in steps if step.status not in _PLAIN]
    for step in shown:
        yield step, "  " * depth + clean(step.step_id.rpartition("/")[2]), remark_on(step)
        yield from rows_of(step.steps, depth + 1)
    if len(shown) < len(steps):
        yield None, "  " * depth + f"({len(steps) - len(shown)} done)", ""


def remark_on(step: TreeStep) -> str:
    """Return the most important fact about a step, in one line."""
    match step.status:
        case "skipped":
            return step.reason + (f": {short(step.error, 100)}" if step.error else "")
        case "recovered":
            return "by its on_error"
        case "failed" | "rollback failed":
            return short(step.error, 160)
        case "waiting":
            return _wait_remark(step)
        case "in flight" | "unfinished":
            if step.error:
                return _failed_attempt(step, short(step.error, 100))
            if step.status == "unfinished" or step.steps or step.last_at is None:
                return ""
            return f"since {utc(step.last_at)} at the earliest"
        case _:
            return _output_remark(step)


def _failed_attempt(part: TreeStep | Visit, error: str) -> str:
    """Return how the newest attempt ended, and when the next one begins."""
    took = "" if part.duration_ms is None else f" after {duration(part.duration_ms)}"
    failed = f"attempt {attempt_of(part.attempts, part.max_attempts)} failed{took}: {error}"
    if part.retry_at is None:
        return failed
    begins = "began" if part.retry_at <= datetime.now(UTC) else "begins"
    return f"{failed}; attempt {attempt_of(part.attempts + 1, part.max_attempts)} {begins} at {utc(part.retry_at)}"


def _wait_remark(step: TreeStep) -> str:
    refused = f"; {short(step.reason, 100)}" if step.reason else ""
    return "" if step.wait is None else f"for {wait_text(step.wait)}{refused}"


def _output_remark(step: TreeStep) -> str:
    """Return the output in short; for a step made of others, only what those do not show."""
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
    return "" if value is None else short(json_text(value), 60)


_INSIDE = frozenset({"is_done", "failed_at", "fork"})
"""The fields of a visit that are left out of JSON, because its status and its parts show them."""


def following(status: RunStatus, known: str | None) -> tuple[str | None, ...]:
    """Return the node where a run goes on, for each open branch. `known` is the node that the newest record names.

    A node may also be END; None: a router has not answered yet; "": unknown.
    """
    nodes = status.next_nodes
    return nodes if len(nodes) > 1 or (nodes and known is not None) else (known,)


def graph_rows(
    visits: Sequence[Visit], depth: int = 0, since: datetime | None = None
) -> Iterator[tuple[Visit | None, str, str]]:
    """Yield each visit with its name, indented below the visit that contains it, and a remark.

    A row without a visit says how many visits were left out. `since` is the earliest time at which the first visit can
    have begun.
    """
    shown, left_out = _visits_to_show(visits)
    margin = "  " * depth
    is_cut_before = bool(shown) and shown[0] is not visits[0] and visits[0].kind != "item"
    if is_cut_before:
        yield None, f"{margin}({left_out})", ""
    is_path = bool(visits) and visits[0].kind not in {"item", "branch"}
    for visit in shown:
        number = f"#{visit.visit}" if visit.visit is not None and visit.kind != "item" else ""
        begun = max(filter(None, (visit.last_at, since)), default=None)
        yield visit, margin + clean(visit.name) + number, _visit_text(visit, begun)
        yield from graph_rows(visit.steps, depth + 1, begun if is_path else since)
        since = begun if is_path else since
    if left_out and not is_cut_before:
        yield None, f"{margin}({left_out})", ""


def _visits_to_show(visits: Sequence[Visit]) -> tuple[Sequence[Visit], str]:
    """Return the visits to show, and a text that counts the others."""
    if len(visits) <= _FOLDED or visits[0].kind == "branch":
        return visits, ""
    if visits[0].kind != "item":
        return visits[-_FOLDED:], f"{plural(len(visits) - _FOLDED, 'visit')} before"
    open_items = [visit for visit in visits if visit.status != "done"]
    done, more = len(visits) - len(open_items), len(open_items) - _FOLDED
    left_out = ([f"{done} done"] if done else []) + ([f"{more} more"] if more > 0 else [])
    return open_items[:_FOLDED], ", ".join(left_out)


def _visit_text(visit: Visit, begun: datetime | None) -> str:
    """Return the most important fact about a visit, in one line. `begun` is the time since which it runs, if it runs."""
    if visit.wait is not None:
        refused = f"; {short(visit.reason, 100)}" if visit.reason else ""
        return f"for {wait_text(visit.wait)}{refused}"
    if visit.error:
        error = short(visit.error, 160)
        return error if visit.status == "failed" else _failed_attempt(visit, error)
    if visit.is_counted:
        return _progress(visit.progress)
    if visit.kind == "branch" and not visit.is_done:
        newest = next((inner for inner in reversed(visit.steps) if inner.status != "done"), None)
        return "" if newest is None else f"at {clean(newest.name)}"
    if visit.status == "running" and begun is not None and not visit.steps:
        return f"since {utc(begun)} at the earliest"
    if visit.fork:
        return plural(len(visit.fork), "branch").replace("branchs", "branches")
    return ""


def _progress(progress: tuple[int, int, int]) -> str:
    done, failed, total = progress
    return f"{done} of {plural(total, 'item')}" + (f", {failed} failed" if failed else "")


def notes_of(status: RunStatus) -> dict[str, str]:
    """Return the notes on the nodes of a picture: the progress of maps, and the prompts of waits."""
    notes = {node_id: _progress(progress) for node_id, progress in status.maps.items()}
    return notes | {node_id: _question(wait) for node_id, wait in status.waits.items()}


def _question(wait: Wait) -> str:
    until = "" if wait.wake_at is None else f"until {utc(wait.wake_at)}"
    prompt = wait.prompt if isinstance(wait.prompt, str) else "" if wait.prompt is None else json_text(wait.prompt)
    return ": ".join(filter(None, (until, prompt))) or "waiting"


def status_document(status: RunStatus) -> dict[str, Any]:
    """Return the status of a run of a graph as JSON."""
    return {
        "statuses": status.statuses,
        "next_nodes": [node for node in status.next_nodes if node != END],
        "maps": {
            node_id: {"done": done, "failed": failed, "total": total}
            for node_id, (done, failed, total) in status.maps.items()
        },
        "tree": [_visit_document(visit) for visit in status.visits],
        "superseded": [
            {"node_id": record.node_id, "visit": record.visit, "sequence": record.sequence}
            for record in status.superseded
        ],
        "damaged": list(status.damaged),
    }


def _visit_document(visit: Visit) -> dict[str, Any]:
    document = {known.name: getattr(visit, known.name) for known in fields(visit) if known.name not in _INSIDE}
    return document | {
        "last_at": iso(visit.last_at),
        "retry_at": iso(visit.retry_at),
        "wait": None if visit.wait is None else wait_document(visit.wait),
        "steps": [_visit_document(inner) for inner in visit.steps],
    }
