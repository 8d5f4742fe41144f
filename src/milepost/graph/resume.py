"""Resuming a run of a graph: the point where it goes on is read and examined, and the walk goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    InvalidResumeNodeError,
    NoCheckpointFoundError,
    OptionError,
    shown,
)
from milepost.executor.checks import Amendment, ResumeRequest, check_flow, check_renames, check_seal, recorded_ids
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import END
from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import (
    newest_renames,
    newest_turn,
    position_after,
    read_history,
    renewed_at,
    retried_at,
)
from milepost.executor.history_values import AttemptBudget, parent_of
from milepost.executor.journal import read_start
from milepost.executor.run import Run
from milepost.graph.checks import ExaminedRun, ResumePoint, examine
from milepost.model.beginning import completed_by, is_incomplete
from milepost.model.ranges import Ranges, is_live, ranges_upto
from milepost.model.record import (
    CHECKPOINT,
    CONTINUE,
    FAILURE,
    FINISH,
    OWNER,
    ROUTE,
    START,
    Record,
    segments_of,
)
from milepost.store import RunSnapshot, Store

if TYPE_CHECKING:
    from milepost.graph.run import NodeRun


def find(run: NodeRun, request: ResumeRequest, latest: RunSnapshot) -> Routine[ExaminedRun]:
    """Find and examine the point from which a verb goes on: the newest one, the requested one, or the newest that is whole."""
    check_flow(run, latest.row)
    yield from _know_renames(run, latest)
    spot = ResumePoint(latest.point, latest.tail)
    if request.verb == "resume_from":
        spot = yield from _requested_point(run, request, latest)
    elif request.verb == CONTINUE and latest.row.status != "finished":
        spot = yield from _before_turn(run, latest)
    is_lenient = run.options.on_corrupt == "previous" and request.verb != "resume_from"
    remarks: list[str] = []
    begun = None
    if latest.newest < latest.expected:
        cut = cut_short(run, latest)
        if not is_lenient:
            raise cut
        remarks.append(str(cut))
    yield from check_live(run, latest)
    if spot.point is not None and spot.point.sequence > 0:
        begun = latest.start or (yield from _beginning(run))
        if begun is not None:
            begun = yield from _whole(run, begun, remarks)
    first = begun or spot.point
    if first is not None and first.kind == START:
        with suppress(CheckpointCorruptError):  # what is damaged is told when it is examined
            run.draw_from(first.fields())
    passed_over: list[str] = []
    while True:
        nodes = latest.nodes
        if spot.point is not None and spot.point is not latest.point:
            upto: RunSnapshot = yield from ask(
                run.store, "latest", run.run_id, before=spot.point.sequence + 1, with_nodes=True
            )
            nodes = upto.nodes
        newest = spot.point
        try:
            whole = yield from _from_trunk(run, latest, spot, is_cut=bool(passed_over))
            notes = (*remarks, *passed_over)
            if whole.since is not None and run.origins:
                # What failed in the original run is left to its fork.
                whole = whole._replace(since=renewed_at(whole.since, run.origins[0].sequence))
            examined = examine(run, latest, whole, request, begun, notes, nodes, is_cut=bool(passed_over))
            names = [run.renames.before(name, 0) for name in nodes]
            check_renames(run, examined.since, (*examined.named, *names))
            if request.verb != CONTINUE and (latest.row.cancel is None or run.options.reopen):
                since = examined.since
                if since.done or since.items or since.replies:
                    from milepost.graph.nesting import decode_inside  # most runs stand between two plain nodes

                    decode_inside(run, run.flow, since, examined.decoded)
            return examined
        except CheckpointCorruptError as exc:
            if not is_lenient or newest is None:
                raise
            kept = tuple(record for record in spot.tail if exc.sequence is not None and record.sequence < exc.sequence)
            if len(kept) < len(spot.tail) and exc.sequence != newest.sequence:
                # The point itself is good; a record after it is damaged.
                passed_over.append(f"record {exc.sequence} is damaged and was passed over, with what followed it")
                spot = ResumePoint(newest, kept)
                continue
            bad = exc.sequence if exc.sequence is not None and exc.sequence < newest.sequence else newest.sequence
            passed_over.append(f"record {bad} at node {exc.node_id or newest.node_id!r} is damaged and was passed over")
            older: RunSnapshot = yield from ask(run.store, "latest", run.run_id, before=bad)
            if older.point is None:
                raise
            spot = ResumePoint(older.point, older.tail)


def _know_renames(run: NodeRun, latest: RunSnapshot) -> Routine[None]:
    """Read the renames from the newest owner record that holds some: it holds all.

    Damaged records are ignored here: they are refused, or passed over, when the point is examined.
    """
    owner, point = newest_renames(latest.tail), latest.point
    if owner is None and point is not None and point.kind == CHECKPOINT:
        after = -1 if point.is_foreign else _fields_of(point).get("renamed")
        if after is not None:
            owners: list[Record] = yield from ask(
                run.store, "read", run.run_id, kinds=(OWNER,), after=max(-1, after - 1), before=point.sequence
            )
            for record in owners:
                check_seal(run, record)
            owner = newest_renames(owners)
    run.know_renames(owner)


def _fields_of(record: Record) -> Mapping[str, Any]:
    try:
        return record.fields()
    except CheckpointCorruptError:
        return {}


def _from_trunk(run: NodeRun, latest: RunSnapshot, spot: ResumePoint, *, is_cut: bool) -> Routine[ResumePoint]:
    """Return the newest point of the run's own graph with all records since, even if the newest is inside a fork or a map."""
    point = spot.point
    if point is None or spot.since is not None:
        return spot
    trunk = None if point.is_foreign else point.fields().get("trunk")
    if trunk is None:
        nothing = JournalHistory(renames=run.renames)
        return spot._replace(since=read_history(spot.tail, (), run.renames) if spot.tail else nothing)
    # What an owner has written since the snapshot is not part of it.
    upto = max(record.sequence for record in (point, *spot.tail)) + 1 if is_cut else latest.newest + 1
    return (yield from _since(run, int(trunk), latest.row.live, upto))


def _since(run: NodeRun, trunk: int, live: Ranges, upto: int | None = None) -> Routine[ResumePoint]:
    """Read record number `trunk`, a point of the run's own graph, and all records since; only those in `live` count."""
    records: list[Record] = yield from ask(run.store, "read", run.run_id, after=trunk - 1, before=upto)
    if not records or records[0].sequence != trunk or not is_live(trunk, live):
        raise CheckpointCorruptError(
            f"record {trunk} of run {run.run_id!r}, from which its branches began, is not there: go on from a point before it "
            f"with resume_from, or restore the store from a copy",
            sequence=trunk,
        )
    point, after = records[0], records[1:]
    tail = tuple(record for record in after if is_live(record.sequence, live))
    return ResumePoint(point, tail, read_history(after, live, run.renames))


def cut_short(run: Run, latest: RunSnapshot) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"the journal of run {run.run_id!r} ends at record {latest.newest}, but it had record {latest.expected}: go on from "
        f"what is left with on_corrupt='previous', or restore the store from a copy",
        sequence=latest.expected,
    )


def check_live(run: Run, latest: RunSnapshot) -> Routine[None]:
    """Compare the row's live ranges with those in the owner record that set them, which is sealed.

    Raises `CheckpointCorruptError` if they differ.
    """
    opened = [first for _, first, last in latest.row.live if last is None]
    if not opened:
        return
    records: list[Record] = yield from ask(
        run.store, "read", run.run_id, after=max(opened) - 1, limit=1, kinds=(OWNER,)
    )
    if records and records[0].sequence == max(opened):
        run.store.seals.check(run.run_id, records[0])
        if records[0].fields().get("live") == [list(span) for span in latest.row.live]:
            return
    raise CheckpointCorruptError(
        f"what the row of run {run.run_id!r} tells of superseded records is not what record {max(opened)} says: restore the "
        f"store from a copy",
        sequence=max(opened),
    )


def _beginning(run: Run) -> Routine[Record | None]:
    """Return the start record, or None."""
    records: list[Record] = yield from ask(run.store, "read", run.run_id, limit=1, kinds=(START,))
    return records[0] if records else None


def _whole(run: Run, begun: Record, remarks: list[str]) -> Routine[Record | None]:
    """Verify the start record, which holds the flow's shape, and return it, with what completes it.

    None if it is damaged and passed over.
    """
    try:
        check_seal(run, begun)
        if is_incomplete(begun.fields()):
            begun = (yield from read_start(run.store, run.run_id, partial(check_seal, run))) or begun
    except CheckpointCorruptError:
        if run.options.on_corrupt != "previous":
            raise
        remarks.append("the start record is damaged: how the flow has changed since then is not known")
        return None
    return begun


def _requested_point(run: NodeRun, request: ResumeRequest, latest: RunSnapshot) -> Routine[ResumePoint]:
    """Return the checkpoint after which `resume_from` goes on; with `rerun` the point before it, and its amendments."""
    node_id = request.node_id
    if node_id is None or node_id not in run.flow.units:
        raise InvalidResumeNodeError(
            f"flow {run.flow.name!r} has no node {shown(node_id)} to resume from: it has {', '.join(run.flow.units)}",
            node_id=node_id,
            known=tuple(run.flow.units),
        )
    record: Record | None = None
    for recorded, after, upto in run.renames.sources(node_id):
        found = yield from newest_live(
            run.store, run.run_id, CHECKPOINT, recorded, request.visit, latest.row.live, after, upto
        )
        if found is not None and (record is None or found.sequence > record.sequence):
            record = found
    if record is None:
        visit = f" visit {request.visit} of" if request.visit is not None else ""
        raise NoCheckpointFoundError(
            run.run_id, node_id, f"there is none for{visit} this node that was not superseded; see history()"
        )
    trunk = None if record.is_foreign else record.fields().get("trunk")
    if trunk is not None:
        return (yield from _inside(run, request, record, int(trunk), latest))
    if not request.rerun:
        return ResumePoint(record, (yield from _late_answer(run, record, node_id, latest)))
    older: RunSnapshot = yield from ask(run.store, "latest", run.run_id, before=record.sequence)
    before = older.point
    around = None if before is None or before.is_foreign else before.fields().get("trunk")
    if around is not None:
        # The visit followed a join, or has parts of its own: the records around it stay, and lead to it again.
        spot = yield from _since(run, int(around), latest.row.live, record.sequence)
        is_redone = _redone(record, spot)
        return (yield from _narrowed(run, latest, spot, lambda other: not is_redone(other)))
    if before is None or not _led_to(before, older.tail, record):
        raise NoCheckpointFoundError(
            run.run_id, node_id, "what the node was given was not recorded, or has been pruned or deleted since"
        )
    return ResumePoint(before, older.tail)


def _before_turn(run: NodeRun, latest: RunSnapshot) -> Routine[ResumePoint]:
    """Return the end of the newest turn that finished, or the beginning; all that follows is superseded by a new turn."""
    upto, live = latest.newest + 1, latest.row.live
    while upto > 0:
        ends: list[Record] = yield from ask(
            run.store, "read", run.run_id, kinds=(FINISH,), before=upto, newest=True, limit=1
        )
        upto = ends[0].sequence if ends else 0
        if ends and is_live(upto, live) and ends[0].fields().get("status") == "finished":
            break
    before: RunSnapshot = yield from ask(run.store, "latest", run.run_id, before=upto + 1)
    return ResumePoint(before.point, before.tail, live=ranges_upto(live, upto))


def _inside(
    run: NodeRun, request: ResumeRequest, record: Record, trunk: int, latest: RunSnapshot
) -> Routine[ResumePoint]:
    """Go on inside a branch.

    Records after this one in the branch, and after its fork, are superseded; siblings stay.
    """
    spot = yield from _since(run, trunk, latest.row.live)
    mine = str(record.fields().get("branch") or "")
    last = record.sequence - 1 if request.rerun else record.sequence
    is_redone = _redone(record, spot) if request.rerun else lambda other: False
    beside = {other.sequence for other in spot.tail if _is_beside(mine, str(other.fields().get("branch") or ""))}
    changed = [other.sequence for other in spot.tail if _overridden(other) == record.sequence]

    def stays(other: Record) -> bool:
        # After the end of a run that failed, the failed parts of the other branches are done again.
        if other.sequence in beside or (other.kind == FINISH and other.fields().get("status") != "finished"):
            return True
        if other.sequence <= last:
            return not is_redone(other)
        if other.kind == OWNER:
            amends = _overridden(other)
            return amends in beside or (amends is None and other.payload is None)
        # A late answer of its router counts if it is about the same state.
        is_late = other.kind == ROUTE and (other.node_id, other.visit) == (record.node_id, record.visit)
        return is_late and not request.rerun and not any(number < other.sequence for number in changed)

    narrowed = yield from _narrowed(run, latest, spot, stays)
    if not request.rerun:
        return narrowed._replace(at=record)
    if not run.options.amends:
        return narrowed
    before = _followed(record, spot)
    if before is None:
        fork_id = segments_of(mine)[-1].fork
        raise OptionError(
            f"node {record.node_id!r} of run {run.run_id!r} is the first of its branch, and is given the state before the "
            f"fork, which is that of the other branches too: amend it with resume_from the node before the fork, "
            f"{fork_id!r}, or leave rerun out",
            option="state_override",
            node_id=record.node_id,
        )
    return narrowed._replace(at=before)


def _narrowed(
    run: NodeRun, latest: RunSnapshot, spot: ResumePoint, stays: Callable[[Record], bool]
) -> Routine[ResumePoint]:
    """Make a point with only the records that `stays` accepts.

    The others only count visits: no number is used again.
    """
    assert spot.point is not None
    tail = tuple(other for other in spot.tail if stays(other))
    live = _with_gaps(latest.row.live, spot._replace(tail=tail))
    records: list[Record] = yield from ask(run.store, "read", run.run_id, after=spot.point.sequence)
    return ResumePoint(spot.point, tail, read_history(records, live, run.renames), live)


def _followed(record: Record, spot: ResumePoint) -> Record | None:
    """Return the checkpoint before a visit on its path; None if the visit is the first there."""
    place = record.fields().get("branch"), parent_of(record.node_id)
    before = [
        other
        for other in spot.tail
        if other.kind == CHECKPOINT
        and other.sequence < record.sequence
        and (other.fields().get("branch"), parent_of(other.node_id)) == place
    ]
    return before[-1] if before else None


def _redone(record: Record, spot: ResumePoint) -> Callable[[Record], bool]:
    """Make a function that says whether a record belongs to this visit or to a part of it, and so is done again."""
    before = _followed(record, spot)
    followed = -1 if before is None else before.sequence

    def is_redone(other: Record) -> bool:
        is_its = other.node_id == record.node_id or other.node_id.startswith(f"{record.node_id}/")
        return is_its and followed < other.sequence and other.kind != OWNER

    return is_redone


def _overridden(record: Record) -> int | None:
    """Return the number of the checkpoint inside a branch that an owner record amends; None if it amends none."""
    number = record.fields().get("overrides") if record.kind == OWNER else None
    return number if isinstance(number, int) else None


def _is_beside(mine: str, other: str) -> bool:
    """Return whether the labels `mine` and `other` are in different branches of the same fork."""
    for ours, theirs in zip(segments_of(mine), segments_of(other), strict=False):
        if ours != theirs:
            return (ours.fork, ours.visit) == (theirs.fork, theirs.visit)
    return False


def _with_gaps(live: Ranges, spot: ResumePoint) -> Ranges:
    """Return the live ranges up to a point, followed by ranges of the records in its tail."""
    assert spot.point is not None
    ranges = list(ranges_upto(live, spot.point.sequence))
    for record in spot.tail:
        branch, first, last = ranges[-1]
        if last is not None and record.sequence == last + 1:
            ranges[-1] = (branch, first, record.sequence)
        else:
            ranges.append(("", record.sequence, record.sequence))
    return tuple(ranges)


def _led_to(point: Record, tail: tuple[Record, ...], record: Record) -> bool:
    """Return whether the point leads straight to the checkpoint `record`, as far as their node counts say.

    If a node ran in between, the point does not hold the state that the checkpoint's node was given.
    """
    try:
        count, before = record.fields().get("iteration"), point.fields().get("iteration") or 0
        if newest_turn(tail)[0] is not None:
            before = 0
    except CheckpointCorruptError:  # running the node again does not need the record
        return True
    return count is None or point.is_foreign or count in {1, before + 1}  # the count begins anew after a wait


def newest_live(
    store: Store,
    run_id: str,
    kind: str,
    node_id: str,
    visit: int | None,
    live: Ranges,
    after: int = -1,
    before: int | None = None,
) -> Routine[Record | None]:
    """Return the newest record of this kind, node and visit (None: any) in the ranges `live` (empty: all); None: none."""
    while True:
        records: list[Record] = yield from ask(
            store, "read", run_id, kinds=(kind,), node_id=node_id, after=after, before=before, newest=True, limit=1
        )
        if not records or (is_live(records[0].sequence, live) and visit in {None, records[0].visit}):
            return records[0] if records else None
        before = records[0].sequence


def _late_answer(run: NodeRun, record: Record, node_id: str, latest: RunSnapshot) -> Routine[tuple[Record, ...]]:
    """Return the record of a late answer of a checkpoint's router about the same state; () if there is none."""
    if record.is_foreign or record.fields().get("next_node") is not None:
        return ()
    for asked in {record.node_id, node_id}:
        route = yield from newest_live(
            run.store, run.run_id, ROUTE, asked, record.visit, latest.row.live, record.sequence
        )
        if route is None:
            continue
        owners: list[Record] = yield from ask(
            run.store, "read", run.run_id, kinds=(OWNER,), after=record.sequence, before=route.sequence
        )
        if all(owner.payload is None for owner in owners):
            return (route,)
    return ()


def in_flight(run: NodeRun, latest: RunSnapshot) -> Routine[tuple[str, int]]:
    """Return the node that the run may have entered last, and the number of that visit; "" for an unknown node."""
    assert latest.point is not None
    is_start = latest.point.kind == START
    try:
        fields = completed_by(latest.point, latest.tail).fields() if is_start else latest.point.fields()
        next_node = fields.get("entry" if is_start else "next_node")
        position = position_after(latest.point, next_node, latest.tail)
    except CheckpointCorruptError:
        # The damaged record was passed over: the node after it is not known.
        return "", 1
    node_id = position.next_node
    if position.turn is None and "trunk" in fields and node_id not in run.flow.units:
        return "", 1
    if not isinstance(node_id, str) or node_id == END:
        return "", 1
    failed = [record for record in position.tail if record.kind == FAILURE and record.node_id == node_id]
    if failed:
        return node_id, failed[-1].visit
    return node_id, (yield from run.walker.last_visit(node_id)) + 1


def last_visit(run: NodeRun, node_id: str) -> Routine[int]:
    """Return the number of a node's last visit, also under ids that it was renamed from; 0 if there is none."""
    last = 0
    for recorded in {node_id, *recorded_ids(run, node_id)}:
        last = max(last, (yield from run.walker.last_visit(recorded)))
    return last


def _last_visit_at(run: NodeRun, examined: ExaminedRun, node_id: str) -> Routine[int]:
    """Return the number of the last visit of the node where the run goes on; nothing of a later visit is recorded."""
    if run.walker.tally.knows_visits:
        return 0
    point = examined.point
    if point.node_id == node_id and not (point.is_foreign or run.live_ranges or run.renames):
        return point.visit  # the newest checkpoint is of this node, and nothing was superseded
    return (yield from last_visit(run, node_id))


# -- going on --------------------------------------------------------------------------------------------


def go_on(run: NodeRun, request: ResumeRequest, examined: ExaminedRun, amendment: Amendment | None) -> Routine[Any]:
    """Go on from the point, with its state or the amended one, and return the final state."""
    state, data = examined.state, examined.data
    walker = run.walker
    number = run.journal.sequence
    recorded = examined.since.crashed_at(number) if examined.row.lease == "ended" else examined.since
    recorded = retried_at(recorded, number) if request.verb == "retry" else recorded
    if amendment is not None and examined.at is not None:
        updates = None if amendment.updates is None else msgspec.json.decode(amendment.updates)
        recorded = recorded.overridden(examined.at.sequence, amendment.data, updates)
        examined.decoded.pop(examined.at.sequence, None)
    elif amendment is not None:
        # A decoded copy is used, so that the object that was given stays the caller's own.
        data = amendment.data
        state = run.flow.codec.decode(data)
    run.know(recorded)
    run.progress.decoded, run.knows_signals = examined.decoded, False
    walker.given = data
    # A turn that begins uses no recorded outcome.
    walker.is_resuming = request.verb != CONTINUE
    walker.sequence = examined.point.sequence
    walker.iteration = examined.iteration
    walker.prev_node_id = "" if examined.is_turn else examined.point.node_id
    walker.at = (recorded.renamed(examined.point.node_id, examined.point.sequence), examined.point.visit)
    walker.followed_at = str(examined.fields.get("timestamp") or run.followed_at)
    # If only claims follow the start, no node was ever entered, and the store need not be asked about visits.
    run.live_ranges = examined.row.live if examined.live is None else (*examined.live, ("", run.journal.sequence, None))
    walker.tally.knows_visits = examined.point.sequence == 0 and examined.newest == run.claims and not run.live_ranges
    run.journal.missed = tuple(examined.fields.get("missed", ()))
    run.journal.degraded = bool(run.journal.missed)
    if request.verb == "retry":
        examined.spent.failures = 0
        examined.spent.pause = 0.0
    for node_id in run.renames.targets:
        # The core counts the visits of a node under the id that it has now.
        walker.tally.visits[node_id] = yield from last_visit(run, node_id)
    next_node = examined.next_node
    if examined.is_split:
        return (yield from walker.walk(state, walker.at[0], is_split=True))
    if next_node is None:
        next_node = yield from walker.ask_again(state)
        if next_node != examined.way:
            examined.spent = AttemptBudget(visit=0)
    if next_node == END:
        yield from run.journal.finish(examined.point.sequence)
        return state
    if examined.spent.visit == 0:
        examined.spent.visit = (yield from _last_visit_at(run, examined, next_node)) + 1
    walker.spent = examined.spent
    return (yield from walker.walk(state, next_node))
