"""What is known of a run before anything is done with it: pure functions of what was read.

`refused_by_status` tells why the run's status does not let a verb go on, `examine` verifies and decodes a point and
finds where it leads in the flow as it is now, and `refusal_of` tells what of that is in the verb's way. None of them
runs user code or touches the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from milepost.checkpoint import read_envelope
from milepost.errors import (
    CheckpointCorruptError,
    CheckpointMigrationError,
    DeserializeStateError,
    FlowChangedError,
    MaxIterationsError,
    MilepostError,
    NoCheckpointFoundError,
    ResumeNodeCompletedError,
    RunLockedError,
    RunNotResumableError,
    RunSuspended,
    WrongFlowError,
)
from milepost.events import ResumeInfo
from milepost.failures import place
from milepost.flow import END
from milepost.process import describe_owner
from milepost.record import (
    CHECKPOINT,
    FAILURE,
    OWNER,
    ROUTE,
    START,
    Record,
    parse_time,
)
from milepost.runtime import Run, Spent
from milepost.store import Latest, Ranges, RunRow

__all__ = [
    "Found",
    "Wish",
    "check_flow",
    "examine",
    "is_live",
    "locked",
    "not_resumable",
    "recorded_ids",
    "refusal_of",
    "refused_by_status",
]

COUNTED_FAILURES = frozenset({"execute", "timeout", "commit"})
"""Operations whose failure uses up an attempt of the policy."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a verb wants of a run that exists."""

    verb: Literal["resume", "resume_from", "retry"] = "resume"
    node_id: str | None = None
    visit: int | None = None
    rerun: bool = False

    @classmethod
    def of(cls, node_id: str | None, visit: int | None, rerun: bool) -> Wish:
        """`resume`, or `resume_from` where a node is named."""
        return cls() if node_id is None else cls("resume_from", node_id, visit, rerun)


@dataclass(slots=True)
class Found:
    """Where a run goes on, as examined: everything before user code, and nothing that needs the store."""

    row: RunRow
    newest: int
    point: Record
    fields: dict[str, Any]
    state: Any
    data: bytes
    next_node: str | None
    """None: the router of the point's node is asked first."""
    spent: Spent
    live: Ranges | None
    """New live ranges, up to the claim; None: as they were."""
    info: ResumeInfo
    iteration: int


def refused_by_status(run: Run, wish: Wish, row: RunRow) -> MilepostError | None:
    """Why the run's status does not let the verb go on, or None."""
    info, options = row.info, run.options
    status = info.status
    if status in {"cancelled", "blocked"} and not options.reopen:
        return not_resumable(run, status, info.reason, "pass reopen=True to go on with it all the same")
    if wish.verb == "retry" and status != "failed":
        return not_resumable(run, status, info.reason, "retry is for a run that failed; use resume or resume_from")
    if wish.verb == "resume" and status == "finished" and options.state_override is not None:
        return not_resumable(
            run, status, info.reason, "its result stands; use resume_from with the override to run a part of it again"
        )
    if status == "waiting" and wish.verb == "resume":
        return RunSuspended(
            f"run {run.run_id!r} waits for {', '.join(w.wait_id for w in info.waiting_for) or 'its time'}: send the "
            f"signal, or resume when its time has come",
            run_id=run.run_id,
            waiting_for=info.waiting_for,
            wake_at=info.wake_at,
        )
    return None


def refusal_of(run: Run, wish: Wish, found: Found) -> MilepostError | None:
    """Why the verb does not go on at the point that was found, or None."""
    info, options = found.row.info, run.options
    status = info.status
    if wish.verb == "resume" and status == "failed" and found.next_node not in {None, END}:
        policy = run.flow.units[str(found.next_node)].retry or options.retry
        if policy is not None and found.spent.failures >= policy.max_attempts:
            return not_resumable(
                run,
                status,
                info.reason,
                f"node {found.next_node!r} has used up its {policy.max_attempts} attempts; mend the cause and use retry",
                node_id=found.next_node,
                state=found.state,
            )
    if options.strict and found.info.differences:
        return FlowChangedError(
            f"the flow of run {run.run_id!r} has changed ({'; '.join(found.info.differences)}): resume without strict "
            f"to go on",
            run_id=run.run_id,
            state=found.state,
            differences=found.info.differences,
        )
    if found.next_node not in {None, END}:
        try:
            run.check_limit(str(found.next_node), found.iteration, found.point.node_id)
        except MaxIterationsError as exc:
            exc.state = found.state
            return exc
    return None


def recorded_ids(run: Run, node_id: str) -> tuple[str, ...]:
    """The ids under which a node's records stand: its own, and those that it was renamed from."""
    renames = run.options.rename or {}
    own = () if node_id in renames else (node_id,)
    return (*own, *(old for old, new in renames.items() if new == node_id))


def check_flow(run: Run, row: RunRow) -> None:
    """Raise `WrongFlowError` unless the run is one of this flow."""
    if row.info.flow and row.info.flow != run.flow.name:
        raise WrongFlowError(
            f"run {run.run_id!r} is one of flow {row.info.flow!r}, not of {run.flow.name!r}: resume it with that flow, "
            f"or compile this one under its name",
            run_id=run.run_id,
            expected=row.info.flow,
            found=run.flow.name,
            differences=(f"the flow is {run.flow.name!r} instead of {row.info.flow!r}",),
        )


def locked(run: Run, row: RunRow) -> RunLockedError:
    """The error of a run that another owner has, or another verb of this process."""
    until = row.info.lease_until
    told = f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until is not None else ""
    who = "another verb of this process" if row.lease == "ours" else describe_owner(row.info.owner)
    return RunLockedError(
        f"run {run.run_id!r} is being executed by {who}{told}: wait for it with on_locked='wait', or fence it off with "
        f"takeover=True",
        run_id=run.run_id,
        owner=row.info.owner,
        lease_until=until,
    )


def not_resumable(run: Run, status: str, reason: str, hint: str, **facts: Any) -> RunNotResumableError:
    """The error of a run that the verb does not go on with; `hint` says what does."""
    told = f" ({reason})" if reason else ""
    return RunNotResumableError(
        f"run {run.run_id!r} is {status}{told}: {hint}", run_id=run.run_id, status=status, reason=reason, **facts
    )


# -- the point and where it leads ------------------------------------------------------------------------


def examine(
    run: Run,
    latest: Latest,
    point: Record | None,
    tail: tuple[Record, ...],
    wish: Wish,
    begun: Record | None,
    remarks: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    *,
    is_cut: bool = False,
) -> Found:
    """Verify and decode a point, and find where it leads in the flow as it is now.

    `tail` is what was recorded after it and still counts, `begun` the start record, `remarks` what was noticed on the
    way here. `is_cut`: damaged records were passed over, and count no more.
    """
    assert run.store is not None
    if point is None:
        raise NoCheckpointFoundError(run.run_id, None, "the run has neither a start record nor a checkpoint")
    for record in (point, *tail, *((begun,) if begun is not None else ())):
        _check_seal(run, record)
    fields, data = _content(run, point)
    next_node, iteration = _recorded_route(run, point, fields)
    for record in tail:
        if record.kind == ROUTE:
            next_node = record.fields().get("next_node")
        elif record.kind == OWNER and record.payload is not None:
            data = record.state() or b""
    try:
        state = run.flow.codec.decode(data)
    except DeserializeStateError as exc:
        exc.run_id, exc.node_id = run.run_id, point.node_id or None
        place(
            exc,
            f"what record {point.sequence} of run {run.run_id!r} holds is no state of flow {run.flow.name!r} as it is now",
            "lift old states with Graph(..., upgrade=) or let fields go with Graph(..., unknown_fields='drop')",
        )
        raise
    renames = run.options.rename or {}
    if next_node is not None:
        next_node = renames.get(next_node, next_node)
    if wish.rerun:
        next_node = wish.node_id
    elif run.options.reroute and point.kind == CHECKPOINT:
        next_node = None
    node_id = renames.get(point.node_id, point.node_id)
    differences = (*remarks, *_differences(run, point if point.kind == START else begun))
    _check_nodes(run, node_id, next_node, differences, state)
    unit = run.flow.units.get(node_id)
    leads_to = unit.next_node if next_node is None and unit is not None else next_node
    if wish.verb == "resume_from" and leads_to == END and not wish.rerun:
        raise ResumeNodeCompletedError(
            f"nothing is left to run after node {wish.node_id!r} of run {run.run_id!r}: pass rerun=True to run it again",
            run_id=run.run_id,
            node_id=wish.node_id,
            state=state,
        )
    spent = _spent(run, tail, point is latest.point and wish.verb != "resume_from" and not is_cut)
    missed = tuple(m for m in latest.row.info.missed if m not in fields.get("missed", ()))
    amended = [record.sequence for record in tail if record.kind in {ROUTE, OWNER}]
    cut = max((point.sequence, *amended))
    # Where the result itself is damaged there is none that could be given: the run goes on from what is whole.
    finished = latest.row.info.status == "finished" and wish.verb == "resume" and not is_cut
    source: Any = "finished" if finished else "start" if point.kind == START else "latest"
    if wish.verb == "resume_from":
        source = "node"
    known = set(nodes)
    info = ResumeInfo(
        run_id=run.run_id,
        source=source,
        from_node=point.node_id or None,
        sequence=point.sequence,
        visit=point.visit if point.kind == CHECKPOINT else 0,
        next_node=next_node,
        skipped=tuple(unit for unit in run.flow.units if not known.isdisjoint(recorded_ids(run, unit))),
        repeated=(next_node,) if next_node not in {None, END} and not finished else (),
        missed=missed,
        differences=differences,
        verified=point.header is not None,
        already_completed=finished,
    )
    is_superseding = wish.verb == "resume_from" or is_cut
    live = _cut(latest.row.live, cut) if is_superseding else None
    return Found(latest.row, latest.newest, point, fields, state, data, next_node, spent, live, info, iteration)


def _check_seal(run: Run, record: Record) -> None:
    assert run.store is not None
    try:
        run.store.seals.check(run.run_id, record)
    except CheckpointCorruptError as exc:
        exc.run_id, exc.node_id, exc.sequence = run.run_id, record.node_id or None, record.sequence
        raise


def _content(run: Run, point: Record) -> tuple[dict[str, Any], bytes]:
    """The header fields and the plain encoded state of a record, whoever wrote it."""
    if point.header is not None:
        return point.fields(), point.state() or b""
    return read_envelope(point.state() or b"")


def _recorded_route(run: Run, point: Record, fields: Mapping[str, Any]) -> tuple[str | None, int]:
    """Where the record says to go on (None: ask the router), and how many nodes had run then."""
    if point.kind == START:
        return str(fields.get("entry") or run.flow.entry), 0
    next_node = fields.get("next_node")
    if next_node is None and point.header is None and "next_node" not in fields:
        next_node = _successor(run, point)
    return (None if next_node is None else str(next_node)), int(fields.get("iteration") or 0)


def _successor(run: Run, point: Record) -> str | None:
    """Where an old record without `next_node` leads: along the only edge, or, if so asked, where the router says."""
    unit = run.flow.units.get((run.options.rename or {}).get(point.node_id, point.node_id))
    if unit is None or unit.next_node is not None:
        return unit.next_node if unit is not None else point.node_id
    if run.options.reroute:
        return None
    raise CheckpointMigrationError(
        f"the checkpoint of run {run.run_id!r} at node {point.node_id!r} does not say where to go on, and the node has a "
        f"router: pass reroute=True to ask it",
        run_id=run.run_id,
        node_id=point.node_id,
        found="no next_node",
    )


def _differences(run: Run, begun: Record | None) -> tuple[str, ...]:
    fields = begun.fields() if begun is not None else {}
    if not fields or fields.get("fingerprint") == run.flow.fingerprint:
        return ()
    return run.flow.differences(fields.get("shape") or {})


def _check_nodes(run: Run, node_id: str, next_node: str | None, differences: tuple[str, ...], state: Any) -> None:
    """Refuse to go on where the flow has no such node any more."""
    gone = node_id if next_node is None else next_node
    if gone == END or gone in run.flow.units:
        return
    told = differences or (f"node {gone!r} is gone",)
    raise FlowChangedError(
        f"run {run.run_id!r} would go on at node {gone!r}, which flow {run.flow.name!r} does not have "
        f"({'; '.join(told)}): if it was renamed, pass rename={{{gone!r}: new name}}; else resume_from a node before it",
        run_id=run.run_id,
        node_id=gone,
        state=state,
        differences=told,
    )


def _spent(run: Run, tail: tuple[Record, ...], is_continued: bool) -> Spent:
    """What the visit that was in flight has used up: failures of the policy's budget, and all attempts."""
    spent = Spent(visit=0)
    if not is_continued:
        return spent
    for record in tail:
        fields = record.fields()
        if record.kind == FAILURE and fields.get("op") != "route":
            spent.failures += fields.get("op") in COUNTED_FAILURES
            spent.attempts += 1
            spent.visit = record.visit
            spent.pause = 0.0
            if "retry_at" in fields:
                spent.pause = _left_of_pause(fields, run.options.clock.time())
        elif record.kind == OWNER:
            if fields.get("crashed"):
                spent.attempts += 1
            if fields.get("verb") == "retry":
                spent.failures = 0
                spent.pause = 0.0
    return spent


def _left_of_pause(fields: Mapping[str, Any], now: float) -> float:
    """Seconds left of the back-off after a failure: never more than the policy chose, whatever clocks say."""
    ends = parse_time(fields["retry_at"]).timestamp()
    chosen = ends - parse_time(fields["timestamp"]).timestamp()
    return max(0.0, min(ends - now, chosen))


def _cut(live: Ranges, upto: int) -> Ranges:
    """The live ranges with everything after `upto` taken out."""
    kept = [(branch, first, upto if last is None else min(last, upto)) for branch, first, last in live if first <= upto]
    return tuple(kept) if live else (("", 0, upto),)


def is_live(sequence: int, live: Ranges) -> bool:
    """Whether a record stands, given the live ranges of its journal."""
    return not live or any(first <= sequence and (last is None or sequence <= last) for _, first, last in live)
