"""A run as a tree: the steps of a workflow, or the visits of a graph's nodes. The journal alone tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from milepost.errors import CheckpointCorruptError, DeserializeStateError
from milepost.executor.flow import END
from milepost.executor.history import JournalHistory, StepRecord, read_history
from milepost.graph.status import RunStatus, Visit
from milepost.model.info import Wait
from milepost.model.record import Record, parse_time
from milepost.store import ENDED, RunSnapshot
from milepost.views.journal import failure_text
from milepost.views.text import clean, elapsed, iso, json_text, plural, short, utc, wait_document, wait_text

_FOLDED = 20
"""The number of rows that are shown of the steps of one step, the visits of one path, or the items of one map."""


_PLAIN = frozenset({"done", "skipped"})


@dataclass(slots=True)
class TreeStep:
    """One step, and the steps that it is made of.

    `status` is done, skipped, recovered, failed, rolled back, rollback failed, waiting, in flight (begun and not ended), or
    unfinished: the same where the run itself has ended.
    `outcome` is the recorded one, None before its end; `output` is the recorded JSON.
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
    """The reason for which it was skipped, or an answer to its wait was refused."""
    error: str = ""
    """The error of the step, its rollback or its newest attempt."""
    retry_at: datetime | None = None
    output: Any = None
    wait: Wait | None = None
    steps: list[TreeStep] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON, with its steps."""
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
    """The steps of a run, from its journal. `output` is None unless the run has finished."""

    inputs: Any
    output: Any
    steps: tuple[TreeStep, ...]
    superseded: tuple[Record, ...]
    """The results that are superseded."""
    damaged: tuple[int, ...]
    """The numbers of records that cannot be read."""

    @property
    def next_step(self) -> str:
        """The step where the run goes on; "" if it is not known."""
        return next((step.step_id for step in self.steps if step.outcome is None), "")


def tree_of(records: Iterable[Record], latest: RunSnapshot) -> Tree:
    """Make the tree of a run from its records, which are all that there were when `latest` was read."""
    recorded = read_history(records, latest.row.live, is_lenient=True)
    is_over = latest.row.info.status in ENDED or recorded.final is not None
    steps = tuple(_step(recorded, step_id, is_over=is_over) for step_id in recorded.children(""))
    return Tree(
        _json(recorded.start), _json(recorded.finish), steps, tuple(recorded.superseded), tuple(recorded.damaged)
    )


def _json(entry: StepRecord | None) -> Any:
    """Return the JSON in a record; None if it has none, or if the key to read it is missing."""
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
    """Fill in the fields of a step that has ended, or of a node in a graph that is a step."""
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
    """Return a sort key that puts parallel steps in the order of the code: they are recorded in the order of their ends."""
    names = [found.step_id.rpartition("/")[2] for found in step.steps]
    if step.step_type == "map" and all(name.isdecimal() for name in names):
        return lambda found: int(found.step_id.rpartition("/")[2])
    given = step.output if step.step_type == "parallel" and isinstance(step.output, list) else names
    places = {f"{step.step_id}/{name}": place for place, name in enumerate(given)}
    return lambda found: places.get(found.step_id, len(places))


def _tell_begun(step: TreeStep, recorded: JournalHistory, *, is_over: bool) -> None:
    """Fill in the fields of a step that has not ended."""
    step_id = step.step_id
    step.status = "unfinished" if is_over else "in flight"
    waits = recorded.waits.get(step_id)
    failures = recorded.failures.get(step_id, ())
    begun = [held[step_id] for held in (recorded.choices, recorded.items, recorded.waits) if step_id in held]
    newest = max([*failures, *begun], key=lambda entry: entry.sequence, default=None)
    if newest is not None:
        _place(step, newest)
    if step_id in recorded.items:
        step.step_type = "map" if recorded.has_map(step_id) else "subworkflow"
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
        if not is_over and recorded.open_wait(step_id) is not None:
            step.status, step.wait = "waiting", _wait_of(waits)
            step.reason = recorded.refusal_of(waits, step_id)


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
    """Yield each step with its name, indented below the step that it is a part of, and a remark.

    A row without a step counts those that were left out.
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
    """Return the one thing about a step that people want to know, in a line."""
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
            return _failed_attempt(step.attempts, short(step.error, 100), step.retry_at) if step.error else ""
        case _:
            return _told_output(step)


def _failed_attempt(attempts: int, error: str, retry_at: datetime | None) -> str:
    """Say how the newest attempt ended, and when the next one begins."""
    if retry_at is None:
        return f"attempt {attempts} failed: {error}"
    begins = "began" if retry_at <= datetime.now(UTC) else "begins"
    return f"attempt {attempts} failed: {error}; attempt {attempts + 1} {begins} at {utc(retry_at)}"


def _told_wait(step: TreeStep) -> str:
    refused = f"; {short(step.reason, 100)}" if step.reason else ""
    return "" if step.wait is None else f"for {wait_text(step.wait)}{refused}"


def _told_output(step: TreeStep) -> str:
    """Return an output, shortened; for a step made of others, only what they do not show."""
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
"""The fields of a visit that its status and its parts already show."""


def following(standing: RunStatus, known: str | None) -> tuple[str | None, ...]:
    """Return the node where a run goes on, for each open branch; `known` is the node that its newest record names.

    None: a router has not answered yet, END, or "" for not known.
    """
    nodes = standing.next_nodes
    return nodes if len(nodes) > 1 or (nodes and known is not None) else (known,)


def graph_rows(
    visits: Sequence[Visit], depth: int = 0, since: datetime | None = None
) -> Iterator[tuple[Visit | None, str, str]]:
    """Yield each visit with its name, indented below the visit that it is a part of, and a remark.

    A row without a visit counts those that were left out. `since` is the time at which the first visit can have begun.
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
    """Return the visits to show, and a text about the others."""
    if len(visits) <= _FOLDED or visits[0].kind == "branch":
        return visits, ""
    if visits[0].kind != "item":
        return visits[-_FOLDED:], f"{plural(len(visits) - _FOLDED, 'visit')} before"
    open_items = [visit for visit in visits if visit.status != "done"]
    done, more = len(visits) - len(open_items), len(open_items) - _FOLDED
    told = ([f"{done} done"] if done else []) + ([f"{more} more"] if more > 0 else [])
    return open_items[:_FOLDED], ", ".join(told)


def _visit_text(visit: Visit, begun: datetime | None) -> str:
    """Return the one thing about a visit that people want to know, in a line.

    `begun` is the time of the record before it, if it is not done.
    """
    if visit.wait is not None:
        refused = f"; {short(visit.reason, 100)}" if visit.reason else ""
        return f"for {wait_text(visit.wait)}{refused}"
    if visit.error:
        told = short(visit.error, 160)
        return told if visit.status == "failed" else _failed_attempt(visit.attempts, told, visit.retry_at)
    if visit.is_counted:
        return _progress(visit.progress)
    if visit.kind == "branch" and not visit.is_done:
        standing = next((row for row in reversed(visit.steps) if row.status != "done"), None)
        return "" if standing is None else f"at {clean(standing.name)}"
    if visit.status == "running" and begun is not None and not visit.steps:
        return f"for {elapsed(begun)}"
    if visit.fork:
        return plural(len(visit.fork), "branch").replace("branchs", "branches")
    return ""


def _progress(progress: tuple[int, int, int]) -> str:
    done, failed, total = progress
    return f"{done} of {plural(total, 'item')}" + (f", {failed} failed" if failed else "")


def notes_of(standing: RunStatus) -> dict[str, str]:
    """Return the notes on the nodes of a picture: the progress of maps, and the prompts of waits."""
    notes = {node_id: _progress(progress) for node_id, progress in standing.maps.items()}
    return notes | {node_id: _question(wait) for node_id, wait in standing.waits.items()}


def _question(wait: Wait) -> str:
    until = "" if wait.wake_at is None else f"until {utc(wait.wake_at)}"
    asked = wait.prompt if isinstance(wait.prompt, str) else "" if wait.prompt is None else json_text(wait.prompt)
    return ": ".join(filter(None, (until, asked))) or "waiting"


def standing_document(standing: RunStatus) -> dict[str, Any]:
    """Return the status of a run of a graph as JSON."""
    return {
        "statuses": standing.statuses,
        "next_nodes": [node for node in standing.next_nodes if node != END],
        "maps": {
            node_id: {"done": done, "failed": failed, "total": total}
            for node_id, (done, failed, total) in standing.maps.items()
        },
        "tree": [_visit_document(visit) for visit in standing.visits],
        "superseded": [
            {"node_id": record.node_id, "visit": record.visit, "sequence": record.sequence}
            for record in standing.superseded
        ],
        "damaged": list(standing.damaged),
    }


def _visit_document(visit: Visit) -> dict[str, Any]:
    told = {found.name: getattr(visit, found.name) for found in fields(visit) if found.name not in _INSIDE}
    return told | {
        "last_at": iso(visit.last_at),
        "retry_at": iso(visit.retry_at),
        "wait": None if visit.wait is None else wait_document(visit.wait),
        "steps": [_visit_document(inner) for inner in visit.steps],
    }
