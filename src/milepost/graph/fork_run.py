"""Forking a run: its records up to one of them are copied into a new run, in this store or in another.

The run that is forked is only read: it may have any status, and may be executed meanwhile. The copy is complete: it has
the journal up to the point, superseded records included, under the same numbers, so that no number of a visit is used
again. Everything is checked before anything is written.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    InvalidResumeNodeError,
    NoCheckpointFoundError,
    OptionError,
    RunExistsError,
    shown,
)
from milepost.executor.checks import check_flow, content_of
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import GraphFlow, codec_at, find_node
from milepost.executor.history_reader import position_after, read_history
from milepost.executor.resume import amended, check_branch
from milepost.executor.run import Run
from milepost.graph.resume import check_live, newest_live
from milepost.model.ranges import ranges_of
from milepost.model.record import CHECKPOINT, ITEMS, OWNER, REPLY, ROUTE, START, Record
from milepost.store import RunSnapshot, Signal, Store, check_id, check_run_id
from milepost.stores.base.export import Prefix, lines_of_fork, missing_in


def fork(
    store: Store,
    run_id: str,
    new_run_id: str,
    *,
    into: Store,
    node_id: str | None = None,
    visit: int | None = None,
    run: Run | None = None,
    ready: bool = False,
    by: str | None = None,
) -> Routine[str]:
    """Copy a run up to a visit of `node_id` (None: its newest point to resume from) into a new run; return its id.

    The options of `run`, the run with its flow, amend the state there. Without `run` the flow is not checked, and
    nothing is amended. `ready`: the new run is left to the workers. `by` says who forks.
    """
    _check(store, into, node_id, visit, run)
    check_run_id(run_id)
    check_run_id(new_run_id)
    if by is not None:
        check_id(by, "by")
    latest: RunSnapshot = yield from ask(store, "latest", run_id)
    if run is not None:
        check_flow(run, latest.row)
        yield from check_live(run, latest)
    if node_id is None and latest.newest < latest.expected:
        raise _cut_short(run_id, latest.expected, f"it ends at record {latest.newest}")
    sequence, point = yield from _end(store, run_id, latest, node_id, visit, run)
    prefix = yield from _prefix(store, run_id, latest, sequence)
    amendment = None
    if run is not None and run.flow.front == "graph":
        amendment = yield from _amendment(run, prefix, point, node_id)
    missed = content_of(point)[0].get("missed") or ()
    lines = lines_of_fork(
        prefix,
        store.seals,
        store.export_seals,
        into.clock.time(),
        missed,
        amendment,
        ready=ready,
        by=by,
        entropy=into.draw_entropy(),
    )
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
    run: Run | None,
) -> None:
    """Raise `OptionError` for stores and options with which a run cannot be forked."""
    for given in (store, into):
        if not given.can_fork:
            raise OptionError(
                f"{given.place} keeps checkpoints and no journals, which a fork is a copy of: use one of Milepost's stores",
                option="store",
            )
    if node_id is not None:
        check_id(node_id)
    if visit is not None and (node_id is None or type(visit) is not int or visit < 1):
        raise OptionError(f"visit is the number of a visit of node_id, from 1, not {shown(visit)}", option="visit")
    if run is not None and run.options.amends and run.flow.front != "graph":
        option = _given(run)
        raise OptionError(f"{option} is for graphs: a workflow has no state but its steps' results", option=option)


# -- where the copy ends ---------------------------------------------------------------------------------


def _end(
    store: Store, run_id: str, latest: RunSnapshot, node_id: str | None, visit: int | None, run: Run | None
) -> Routine[tuple[int, Record]]:
    """Return the number of the last record to copy, and the point from which the fork goes on."""
    if node_id is not None:
        live = latest.row.live if visit is None else ()
        point = yield from newest_live(store, run_id, CHECKPOINT, node_id, visit, live)
        if point is None:
            raise _unknown(run_id, node_id, visit, run)
        return (yield from _late_route(store, run_id, point)), point
    point = latest.point
    if point is None:
        raise NoCheckpointFoundError(run_id, None, "the run has neither a start record nor a checkpoint")
    is_amended = run is not None and run.options.amends
    decided = [record.sequence for record in latest.tail if is_decision(record, is_amended=is_amended)]
    return max((point.sequence, *decided)), point


def is_decision(record: Record, *, is_amended: bool = False) -> bool:
    """Return whether a record after the point is copied too, as a resume would keep it.

    Decisions about a state that is amended now are not copied. Work that failed or was begun since is left to the fork.
    """
    decided = {ROUTE} if is_amended else {ROUTE, ITEMS, REPLY}
    return record.kind in decided or (record.kind == OWNER and record.payload is not None)


def _unknown(run_id: str, node_id: str, visit: int | None, run: Run | None) -> Exception:
    flow = None if run is None or run.flow.front != "graph" else cast("GraphFlow", run.flow)
    if flow is not None and find_node(flow, node_id) is None:
        known = tuple(flow.units)
        return InvalidResumeNodeError(
            f"flow {flow.name!r} has no node {shown(node_id)} to fork at: it has {', '.join(known)}",
            run_id=run_id,
            node_id=node_id,
            known=known,
        )
    which = "none of this node or step that was not superseded" if visit is None else f"no visit {shown(visit)} of it"
    return NoCheckpointFoundError(run_id, node_id, f"there is {which}; see history()")


def _late_route(store: Store, run_id: str, point: Record) -> Routine[int]:
    """Return the number of a late answer of the point's router about the same state; without one, the point's own."""
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


def _prefix(store: Store, run_id: str, latest: RunSnapshot, sequence: int) -> Routine[Prefix]:
    """Read the records up to `sequence` and verify each."""
    records: list[Record] = yield from ask(store, "read", run_id, before=sequence + 1)
    proofs = [store.seals.check(run_id, record) for record in records]
    has_start = bool(records) and (records[0].kind == START or not latest.row.flow)
    if not has_start or records[-1].sequence != sequence:
        raise _cut_short(run_id, sequence, "its start or end is not there")
    signals: list[Signal] = []
    if any(record.kind == REPLY for record in records):
        signals = yield from ask(store, "signals", run_id)
    prefix = Prefix(latest.row, tuple(records), tuple(signals), all(proofs))
    missing = missing_in(prefix)
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


def _amendment(
    run: Run, prefix: Prefix, point: Record, node_id: str | None
) -> Routine[tuple[dict[str, Any], bytes | None] | None]:
    """Return the fields of the owner record that amends the point, and the amended state; None if nothing is amended."""
    flow, where = cast("GraphFlow", run.flow), f"a fork of run {run.run_id!r}"
    fields, data = content_of(point)
    trunk = fields.get("trunk") if not point.is_foreign else None
    since = entry = None
    graph: GraphFlow | None = flow
    codec, unit, begun = flow.codec, flow.units.get(point.node_id), point
    if trunk is not None:
        if node_id is None:
            if (option := _given(run)) is None:
                return None
            raise OptionError(
                f"run {run.run_id!r} is inside a fork, a map or a graph, where it stands at more than one node, and {option} "
                f"does not say which is meant: name it, such as {point.node_id!r}",
                option=option,
            )
        begun = next(record for record in prefix.records if record.sequence == trunk)
        since = read_history((r for r in prefix.records if r.sequence > trunk), ranges_of(prefix.records))
        entry = since.entry_at(point.sequence)
        data, codec, known = since.state_of(entry), codec_at(flow, point.node_id), find_node(flow, point.node_id)
        graph, unit = (None, None) if known is None or known[2] else known[:2]
    else:
        data = _newest_override(prefix, point) or data
    amendment = yield from amended(run, graph, codec, data, point.node_id or None, where)
    if amendment is not None and graph is not None and since is not None and entry is not None:
        base = _newest_override(prefix, begun) or content_of(begun)[1]
        check_branch(run, graph, since, entry, begun, base, amendment)
    wanted = run.options.reroute
    wanted = amendment is not None if wanted is None else wanted
    reroute = (wanted and unit is not None and unit.router is not None) or None
    if amendment is None and reroute is None:
        return None
    updates = (
        None if since is None or amendment is None or amendment.updates is None else msgspec.Raw(amendment.updates)
    )
    amending = {
        "from": point.sequence if trunk is None else trunk,
        "overrides": None if trunk is None else point.sequence,
        "updates": updates,
        "reroute": reroute,
    }
    return amending, None if amendment is None else amendment.data


def _given(run: Run) -> str | None:
    """Return the name of the option that is to change the point of the fork; None if none is given."""
    options = run.options
    if not options.amends:
        return "reroute" if options.reroute else None
    return "update" if options.state_override is None else "state_override"


def _newest_override(prefix: Prefix, point: Record) -> bytes | None:
    """Return the newest state that replaces that of a point of the run's own graph; None if it was never amended."""
    tail = [record for record in prefix.records if record.sequence > point.sequence]
    owner = position_after(point, None, tail).override
    return None if owner is None else owner.state()
