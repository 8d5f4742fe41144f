"""Forking a run: its records up to one of them become a run of their own, in this store or in another.

The run that is forked is only read: it may have any status, and may be executed meanwhile. What is copied is whole: the
journal up to the point, superseded records and all, under the same numbers, so that no visit is used again. Everything is
checked before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, cast

from milepost.errors import (
    CheckpointCorruptError,
    DeserializeStateError,
    InvalidResumeNodeError,
    NoCheckpointFoundError,
    OptionError,
    RunExistsError,
    SerializeStateError,
    StateTypeError,
)
from milepost.executor.checks import check_flow, content_of, is_live
from milepost.executor.effects import Call, Routine
from milepost.executor.flow import GraphFlow
from milepost.executor.journal import ask
from milepost.executor.run import Run
from milepost.graph.resume import check_live
from milepost.model.failure import place
from milepost.model.info import VerifyReport
from milepost.model.record import CHECKPOINT, ITEMS, OWNER, REPLY, ROUTE, START, Record
from milepost.store import Latest, Ranges, Signal, Store, check_id, check_run_id
from milepost.stores.base.forked_run import Prefix, lines_of_fork, unexplained_gaps

__all__ = ["fork"]


def fork(
    store: Store,
    run_id: str,
    new_run_id: str,
    *,
    into: Store,
    node_id: str | None = None,
    visit: int | None = None,
    override: Callable[[Any], Any] | None = None,
    run: Run | None = None,
) -> Routine[str]:
    """Copy a run up to a visit of `node_id` (None: its newest point to resume from) into a new run; its id.

    `run` is the run as its flow sees it; without one the flow is not checked, and nothing can be overridden.
    """
    _check(store, into, node_id, visit, override, run)
    check_run_id(run_id)
    check_run_id(new_run_id)
    latest: Latest = yield from ask(store, "latest", run_id)
    if run is not None:
        check_flow(run, latest.row)
        yield from check_live(run, latest)
    if node_id is None and latest.newest < latest.expected:
        raise _cut_short(run_id, latest.expected, f"it ends at record {latest.newest}")
    sequence, point = yield from _end(store, run_id, latest, node_id, visit, run)
    prefix = yield from _prefix(store, run_id, latest, sequence)
    override_with = None
    if override is not None:
        assert run is not None
        data = yield from _overridden(run, prefix, point, override)
        override_with = point.sequence, data
    missed = content_of(point)[0].get("missed") or ()
    lines = lines_of_fork(prefix, store.seals, into.clock.time(), missed, override_with)
    try:
        yield from ask(into, "import_run", lines, run_id=new_run_id)
    except RunExistsError as exc:
        raise RunExistsError(
            f"run {new_run_id!r} exists in {into.place} and is {exc.status}: choose another new_run_id for the fork",
            run_id=new_run_id,
            status=exc.status,
        ) from None
    return new_run_id


def _check(
    store: Store,
    into: Store,
    node_id: str | None,
    visit: int | None,
    override: Callable[[Any], Any] | None,
    run: Run | None,
) -> None:
    """Raise `OptionError` for what cannot be forked so."""
    for given in (store, into):
        if not getattr(given, "can_fork", True):
            raise OptionError(
                f"{given.place} keeps checkpoints and no journals, which a fork is a copy of: use one of Milepost's stores",
                option="store",
            )
    if node_id is not None:
        check_id(node_id)
    if visit is not None and (node_id is None or type(visit) is not int or visit < 1):
        raise OptionError(f"visit is the number of a visit of node_id, from 1, not {visit!r}", option="visit")
    if override is None:
        return
    if not callable(override):
        raise OptionError("state_override must be a function of the state", option="state_override")
    if run is None or run.flow.front != "graph":
        raise OptionError(
            "state_override is for graphs: a workflow has no state but its steps' results", option="state_override"
        )


# -- where the copy ends ---------------------------------------------------------------------------------


def _end(
    store: Store, run_id: str, latest: Latest, node_id: str | None, visit: int | None, run: Run | None
) -> Routine[tuple[int, Record]]:
    """The number of the last record that is copied, and the point that the fork goes on from."""
    if node_id is not None:
        point = yield from _visit(store, run_id, node_id, visit, latest.row.live)
        if point is None:
            raise _unknown(run_id, node_id, visit, run)
        return (yield from _late_route(store, run_id, point)), point
    point = latest.point
    if point is None:
        raise NoCheckpointFoundError(run_id, None, "the run has neither a start record nor a checkpoint")
    # What was decided since is kept, as a resume would keep it; what failed or was begun since is the fork's to do.
    decided = {ROUTE, ITEMS, REPLY}
    amended = [r.sequence for r in latest.tail if r.kind in decided or (r.kind == OWNER and r.payload is not None)]
    return max((point.sequence, *amended)), point


def _visit(store: Store, run_id: str, node_id: str, visit: int | None, live: Ranges) -> Routine[Record | None]:
    """The checkpoint of a node's newest visit that counts, or of `visit`, whether that counts still or not."""
    before: int | None = None
    while True:
        found: list[Record] = yield from ask(
            store, "read", run_id, kinds=(CHECKPOINT,), node_id=node_id, before=before, newest=True, limit=1
        )
        if not found:
            return None
        if found[0].visit == visit or (visit is None and is_live(found[0].sequence, live)):
            return found[0]
        before = found[0].sequence


def _unknown(run_id: str, node_id: str, visit: int | None, run: Run | None) -> Exception:
    known = () if run is None or run.flow.front != "graph" else tuple(cast("GraphFlow", run.flow).units)
    if run is not None and known and node_id not in known:
        return InvalidResumeNodeError(
            f"flow {run.flow.name!r} has no node {node_id!r} to fork at: it has {', '.join(known)}",
            run_id=run_id,
            node_id=node_id,
            known=known,
        )
    which = "none of this node or step that was not superseded" if visit is None else f"no visit {visit} of it"
    return NoCheckpointFoundError(run_id, node_id, f"there is {which}; see history()")


def _late_route(store: Store, run_id: str, point: Record) -> Routine[int]:
    """The number of the late answer of a checkpoint's router, where it gave one about the same state; else the point's."""
    if point.is_foreign or "step_type" in point.fields() or point.fields().get("next_node") is not None:
        return point.sequence
    found: list[Record] = yield from ask(
        store, "read", run_id, kinds=(ROUTE,), node_id=point.node_id, after=point.sequence, limit=8
    )
    route = next((record for record in found if record.visit == point.visit), None)
    if route is None:
        return point.sequence
    owners: list[Record] = yield from ask(
        store, "read", run_id, kinds=(OWNER,), after=point.sequence, before=route.sequence
    )
    is_same = all(owner.payload is None and owner.fields().get("live") is None for owner in owners)
    return route.sequence if is_same else point.sequence


# -- what is copied --------------------------------------------------------------------------------------


def _prefix(store: Store, run_id: str, latest: Latest, sequence: int) -> Routine[Prefix]:
    """The records up to `sequence`, each of them proven."""
    records: list[Record] = yield from ask(store, "read", run_id, before=sequence + 1)
    for record in records:
        store.seals.check(run_id, record)
    has_start = bool(records) and (records[0].kind == START or not latest.row.info.flow)
    if not has_start or records[-1].sequence != sequence:
        raise _cut_short(run_id, sequence, "its start or end is not there")
    signals: list[Signal] = []
    if any(record.kind == REPLY for record in records):
        signals = yield from ask(store, "signals", run_id)
    moments = {}
    if any(record.is_foreign for record in records):
        history = yield from ask(store, "history", run_id)
        saved = {record.sequence for record in records if record.is_foreign}
        moments = {info.sequence: info.timestamp.timestamp() for info in history if info.sequence in saved}
    prefix = Prefix(latest.row, tuple(records), tuple(signals), moments)
    if unexplained_gaps(prefix):
        # Only the store knows how many it has pruned.
        report: VerifyReport = yield from ask(store, "verify", run_id)
        missing = [problem for problem in report.problems if "missing" in problem]
        if missing:
            raise CheckpointCorruptError(f"run {run_id!r} can't be forked: {'; '.join(missing)}", run_id=run_id)
    return prefix


def _cut_short(run_id: str, sequence: int, what: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"the journal of run {run_id!r} is not whole up to record {sequence}, {what}: fork it at a node before that, or "
        f"restore the store from a copy",
        run_id=run_id,
        sequence=sequence,
    )


def _overridden(run: Run, prefix: Prefix, point: Record, override: Callable[[Any], Any]) -> Routine[bytes]:
    """The state at the point as `override` corrects it, encoded; what it raises is raised as it is."""
    fields, data = content_of(point)
    if "trunk" in fields or fields.get("branch"):
        raise OptionError(
            f"record {point.sequence} of run {run.run_id!r} is inside a fork, a map or a graph, which has states of its own: "
            f"fork the run without state_override, and give it to resume_from",
            option="state_override",
        )
    for record in prefix.records:
        if record.sequence > point.sequence and record.kind == OWNER and record.payload is not None:
            data = record.state() or b""
    try:
        before = run.flow.codec.decode(data)
    except DeserializeStateError as exc:
        exc.run_id, exc.node_id = run.run_id, point.node_id or None
        where = f"what record {point.sequence} of run {run.run_id!r} holds is no state of flow {run.flow.name!r}"
        place(exc, where, "lift old states with Graph(..., upgrade=)")
        raise
    state = yield Call(override, (before,), None, iscoroutinefunction(override))
    try:
        made = run.journal.encode(state, run.flow.codec)
        if isinstance(made, SerializeStateError):
            raise made
    except (StateTypeError, SerializeStateError) as exc:
        exc.run_id, exc.node_id, exc.state = run.run_id, point.node_id or None, run.flow.codec.decode(data)
        if isinstance(exc, StateTypeError):
            exc.op = "override"
        where = f"what state_override gave for a fork of run {run.run_id!r} is refused"
        place(exc, where, "return a state of the declared type")
        raise
    return made
