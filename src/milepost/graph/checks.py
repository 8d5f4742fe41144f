"""The examination of the point where a run of a graph goes on, and of all records after it, forks and maps included.

These functions are pure: they only use the records that were read, and they write nothing. The only user code that they
run is the code that decodes a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from milepost.errors import (
    CheckpointCorruptError,
    CheckpointMigrationError,
    DeserializeStateError,
    FlowChangedError,
    MaxIterationsError,
    MilepostError,
    NoCheckpointFoundError,
    OptionError,
    ResumeNodeCompletedError,
)
from milepost.executor.beginning import whole_start
from milepost.executor.checks import (
    ResumeRequest,
    check_seal,
    check_waits,
    content_of,
    not_resumable,
    recorded_ids,
)
from milepost.executor.flow import END, Fork, GraphFlow, GraphWork, MapWork, Unit, find_node, is_of_item
from milepost.executor.history_reader import position_after, spent_at
from milepost.executor.history_values import AttemptBudget
from milepost.executor.run import Run
from milepost.model.beginning import is_incomplete
from milepost.model.failure import place
from milepost.model.ranges import Ranges, ranges_upto
from milepost.model.record import (
    CHECKPOINT,
    CONTINUE,
    FINISH,
    ITEMS,
    OWNER,
    ROUTE,
    START,
    WAIT,
    Record,
)
from milepost.model.reports import ResumeInfo
from milepost.store import RunRow, RunSnapshot

if TYPE_CHECKING:
    from milepost.executor.history import JournalHistory
    from milepost.executor.history_values import StepRecord
    from milepost.graph.run import NodeRun


class ResumePoint(NamedTuple):
    """The record of a run's own graph (not of an inner one) from which a verb goes on, with the valid records after it."""

    point: Record | None
    tail: tuple[Record, ...]
    since: JournalHistory | None = None
    """The records since the point, by node; None: not read yet."""
    live: Ranges | None = None
    """The live ranges up to the claim; None if they are those up to the point."""
    at: Record | None = None
    """The checkpoint inside a branch after which the verb goes on; None if it goes on after `point`."""


class ExaminedRun(msgspec.Struct):
    """The result of `examine`: everything that is known of the point where a run goes on before user code runs."""

    row: RunRow
    newest: int
    point: Record
    fields: Mapping[str, Any]
    state: Any
    data: bytes
    next_node: str | None
    """The node where the run goes on; None if the router of the point's node is asked first."""
    spent: AttemptBudget
    live: Ranges | None
    """The new live ranges, up to the claim; None if they stay as they were."""
    info: ResumeInfo
    iteration: int
    since: JournalHistory
    """The records since the point, by node."""
    decoded: dict[int, Any]
    """The states after the point that were decoded already, by the number of their record."""
    named: tuple[str, ...] = ()
    """The recorded id of the next node, before any rename; () if there is none."""
    is_split: bool = False
    """True if the point is a fork whose branches are open."""
    at: Record | None = None
    """The checkpoint inside a branch after which the verb goes on, and to which an override applies; else None."""
    way: str | None = None
    """The next node according to the records, even if the router is asked again."""
    reroute: bool | None = None
    """True or False: the run shall, or shall not, ask the router again from now on; None: no change."""
    is_turn: bool = False
    """True if a turn of the run begins here, or has begun without a checkpoint so far."""
    again: str | None = None
    """Always None: the code of a graph is given no failure. See `ExaminedWorkflow`."""

    @property
    def data_seen(self) -> bytes:
        """The encoded state to which an override applies, and which `revalidate` checks."""
        return self.data if self.at is None else self.since.state_of(self.since.entry_at(self.at.sequence))

    @property
    def plan(self) -> str:
        """One sentence that says how the run goes on from here."""
        if self.is_split:
            return f"goes on in the branches after node {self.point.node_id!r} that have not ended, then at {self.next_node!r}"
        if self.next_node is None:
            return f"the router after node {self.point.node_id!r} is asked, then the run goes on where it says"
        if self.next_node == END:
            return "nothing is left to run; the end is recorded"
        attempt = self.spent.attempts + 1 + (self.row.lease == "ended")
        return f"goes on at node {self.next_node!r}, attempt {attempt}"


def refusal_of(run: NodeRun, request: ResumeRequest, examined: ExaminedRun) -> MilepostError | None:
    """Return the error if the verb cannot go on at the examined point; else None."""
    row, options = examined.row, run.options
    status = row.status
    target = examined.way if options.reroute is None else examined.next_node
    if request.verb == "resume" and status == "failed" and target is not None and target in run.flow.units:
        policy = run.flow.units[target].retry or options.retry
        if policy is not None and examined.spent.failures >= policy.max_attempts:
            return not_resumable(
                run,
                status,
                row.reason,
                f"node {target!r} has used up its {policy.max_attempts} attempts; mend the cause and use retry",
                node_id=target,
                state=examined.state,
            )
        for node_id, most in _used_up(run, examined.since):
            hint = f"node {node_id!r} has used up its {most} attempts; mend the cause and use retry"
            return not_resumable(run, status, row.reason, hint, node_id=node_id, state=examined.state)
    if options.strict and examined.info.differences:
        return FlowChangedError(
            f"the flow of run {run.run_id!r} has changed ({'; '.join(examined.info.differences)}): resume without strict "
            f"to go on",
            state=examined.state,
            differences=examined.info.differences,
        )
    if examined.next_node not in {None, END}:
        try:
            run.walker.check_limit(str(examined.next_node), examined.iteration, examined.point.node_id)
        except MaxIterationsError as exc:
            exc.state = examined.state
            return exc
    return None


def _used_up(run: NodeRun, since: JournalHistory) -> Iterator[tuple[str, int]]:
    """Yield the nodes inside forks, maps and inner graphs that have used up their attempts, with their limits."""
    for node_id in since.failures:
        known = find_node(run.flow, node_id)
        if known is None or since.given_up(node_id) is None:
            continue
        _, unit, is_item = known
        each = unit.work.each if is_item and isinstance(unit.work, MapWork) else unit
        policy = (each.retry if isinstance(each, Unit) else None) or run.options.retry
        if policy is not None and since.spent(node_id, 0, run.options.clock.time()).failures >= policy.max_attempts:
            yield node_id, policy.max_attempts


def examine(
    run: NodeRun,
    latest: RunSnapshot,
    spot: ResumePoint,
    request: ResumeRequest,
    start: Record | None,
    remarks: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    *,
    is_cut: bool = False,
) -> ExaminedRun:
    """Verify and decode a point, and find where it leads in the present flow.

    `start` is the start record, which is verified already. `remarks` are notes about damage that was found before. `nodes`
    are the ids of recorded nodes. `is_cut` is true if damaged records were passed over; these no longer count.
    """
    point, since = spot.point, spot.since
    if point is None or since is None:
        raise NoCheckpointFoundError(run.run_id, None, "the run has neither a start record nor a checkpoint")
    are_proven = [check_seal(run, record) for record in (point, *spot.tail)]
    whole = whole_start(run, point, spot.tail) if point.kind == START else point
    stand = _recorded_stand(run, whole, spot.tail, since)
    if run.completion is not None:
        run.completion = run.completion._replace(state=stand.data)
    state = decoded(run, point, stand.data)
    node_id = run.renames.now(point.node_id, point.sequence)
    differences = (*remarks, *_differences(run, whole if point.kind == START else start))
    is_alone = request.rerun and spot.live is None
    way = request.node_id if is_alone else stand.next_node
    is_split = stand.turn is None and check_fork(run, point, stand.fields, node_id, way, differences) and not is_alone
    if is_split:
        way = run.flow.splits[node_id].join
    next_node, reroute = way, None
    if spot.at is not None:
        reroute = _reroute_in_branch(run, request, spot)
        if reroute is not None:
            # The claim, which is the next record, will say so.
            since = since.rerouted(spot.at.sequence, latest.newest + 1 if reroute else None)
            spot = spot._replace(since=since)
    elif not is_alone and not is_split and stand.turn is None and point.kind == CHECKPOINT:
        reroute, is_asked = _reroute_at(run, latest, request, stand, node_id, way)
        next_node = None if is_asked else way
    if run.options.amends and request.verb != "resume_from":
        _check_override(run, spot, node_id, way, next_node, is_split=is_split)
    _check_nodes(run, node_id, next_node, differences, state)
    states: dict[int, Any] = {}
    check_inside(run, spot, states, differences)
    unit = run.flow.units.get(node_id)
    leads_to = unit.next_node if next_node is None and unit is not None else next_node
    if request.verb == "resume_from" and leads_to == END and not request.rerun:
        raise ResumeNodeCompletedError(
            f"nothing is left to run after node {request.node_id!r} of run {run.run_id!r}: pass rerun=True to run it again, or "
            f"resume the run, which amends its result where a state_override or an update is given",
            node_id=request.node_id,
            state=state,
        )
    # If the result itself is damaged, there is none to return: the run goes on from the records that are whole.
    is_finished = latest.row.status == "finished" and request.verb in {"resume", CONTINUE} and not is_cut
    if is_finished or (request.verb == CONTINUE and point.kind == CHECKPOINT):
        _check_result(run, point, stand.tail)
    is_continued = request.verb != "resume_from" and not is_cut and _is_newest(latest, point)
    tail, is_late = stand.tail if is_continued else (), stand.fields.get("next_node") is None
    spent = spent_at(way, tail, run.renames, run.options.clock.time(), is_late=is_late)
    source: Literal["finished", "start", "latest"]
    source = "finished" if is_finished else "start" if point.kind == START else "latest"
    at, known = spot.at or point, set(nodes)
    info = ResumeInfo(
        run_id=run.run_id,
        source="node" if request.verb == "resume_from" else source,
        from_node=at.node_id or None,
        sequence=at.sequence,
        visit=at.visit if at.kind == CHECKPOINT else 0,
        next_node=next_node,
        skipped=tuple(
            unit for unit in run.flow.units if stand.turn is None and not known.isdisjoint(recorded_ids(run, unit))
        ),
        repeated=() if is_finished else _repeated(run, since, point, node_id, next_node, is_split),
        missed=tuple(node for node in latest.row.missed if node not in stand.fields.get("missed", ())),
        differences=differences,
        verified=all(are_proven),
        already_completed=is_finished,
    )
    live = spot.live
    if live is None and (request.verb == "resume_from" or is_cut):
        valid = (record.sequence for record in stand.tail if is_cut or record.kind in {ROUTE, OWNER})
        live = ranges_upto(latest.row.live, max((point.sequence, *valid)))
    return ExaminedRun(
        latest.row, latest.newest, point, stand.fields, state, stand.data, next_node, spent, live, info, stand.iteration,
        since, states, stand.named, is_split, spot.at, way, reroute, stand.turn is not None,
    )  # fmt: skip


class _Stand(NamedTuple):
    """A point with what the records after it say of it."""

    fields: Mapping[str, Any]
    data: bytes
    """The encoded state, amended if it was."""
    next_node: str | None
    """The next node by the names of now; None if the point's router has not answered yet."""
    named: tuple[str, ...]
    """The recorded id of the next node; () if there is none."""
    iteration: int
    is_rerouted: bool
    turn: Record | None
    tail: tuple[Record, ...]
    """The records that count after the point, or from the newest turn on."""


def _recorded_stand(run: NodeRun, point: Record, tail: tuple[Record, ...], since: JournalHistory) -> _Stand:
    """Read where a run stands by its records, whatever the flow is now and the verb asks for."""
    fields, data = content_of(point)
    next_node, iteration = _recorded_route(run, point, fields)
    position = position_after(point, next_node, tail)
    next_node = position.next_node
    if position.override is not None:
        data = position.override.state() or b""
    if position.turn is not None:
        fields = {**fields, "timestamp": position.turn.fields().get("timestamp")}
        next_node, iteration = next_node or run.flow.entry, 0
    for record in position.tail:
        if record.kind == CHECKPOINT and not is_of_item(run.flow, since.renamed(record.node_id, record.sequence)):
            iteration = int(record.fields().get("iteration", iteration))
    named: tuple[str, ...] = ()
    if next_node is not None:
        named = (run.renames.before(next_node, position.route_at),)
        next_node = run.renames.now(next_node, position.route_at)
    return _Stand(fields, data, next_node, named, iteration, position.is_rerouted, position.turn, position.tail)


def _reroute_at(
    run: NodeRun, latest: RunSnapshot, request: ResumeRequest, stand: _Stand, node_id: str, way: str | None
) -> tuple[bool | None, bool]:
    """Answer `_reroute` for the point, and whether its router is asked before the run goes on."""
    if latest.row.status == "finished" and request.verb == "resume":
        return None, False
    if any(record.kind == WAIT and record.node_id == way for record in stand.tail):
        return None, False
    unit = run.flow.units.get(node_id)
    reroute = _reroute(run, stand.is_rerouted, has_router=unit is not None and unit.router is not None)
    return reroute, stand.is_rerouted if reroute is None else reroute


def _check_override(
    run: NodeRun, spot: ResumePoint, node_id: str, way: str | None, next_node: str | None, *, is_split: bool
) -> None:
    """Raise `OptionError` if work that followed from the recorded state is half done where another state is given."""
    if is_split:
        raise OptionError(
            f"run {run.run_id!r} is inside the fork after node {node_id!r}, where state_override does not say which branch it "
            f"is for: use resume_from with a node of that branch, or with node {node_id!r}, which all of them follow",
            option="state_override",
            node_id=node_id,
        )
    if _has_begun(run, spot, way if run.options.reroute is None else next_node):
        raise OptionError(
            f"run {run.run_id!r} is inside node {next_node!r}, and what was done there came of the state as it is recorded: "
            f"use resume_from with the node before it, or begin another run with the corrected state where there is none",
            option="state_override",
            node_id=next_node,
        )


def _reroute(run: NodeRun, is_rerouted: bool, *, has_router: bool) -> bool | None:
    """Return whether the run shall ask the router of a checkpoint again from now on; None: no change.

    `is_rerouted` is true if an earlier call asked for that, and the router has not answered since.
    """
    wanted = run.options.reroute
    if wanted is None:
        return True if run.options.amends and has_router else None
    return True if wanted else False if is_rerouted else None


def _reroute_in_branch(run: NodeRun, request: ResumeRequest, spot: ResumePoint) -> bool | None:
    """Answer `_reroute` for the checkpoint inside a branch after which a verb goes on."""
    assert spot.since is not None
    assert spot.at is not None
    node_id = spot.since.renamed(spot.at.node_id, spot.at.sequence)
    unit = run.flow.units.get(node_id)
    if unit is None or unit.router is None or request.rerun:
        return None
    return _reroute(run, spot.since.is_rerouted(spot.at.sequence), has_router=True)


def decoded(run: NodeRun, record: Record, data: bytes) -> Any:
    """Decode the state in a record.

    Raises a `DeserializeStateError` that says what to do if the present flow cannot read it.
    """
    try:
        return run.flow.codec.decode(data)
    except DeserializeStateError as exc:
        exc.run_id, exc.node_id = run.run_id, record.node_id or None
        place(
            exc,
            f"what record {record.sequence} of run {run.run_id!r} holds is no state of flow {run.flow.name!r} as it is now",
            "lift old states with Graph(..., upgrade=) or let fields go with Graph(..., unknown_fields='drop')",
        )
        raise


def check_fork(
    run: NodeRun,
    point: Record,
    fields: Mapping[str, Any],
    node_id: str,
    next_node: str | None,
    differences: tuple[str, ...],
) -> bool:
    """Return whether the point is a fork with open branches. Raises `FlowChangedError` if the fork has changed since.

    Raises `CheckpointMigrationError` for a checkpoint saved from outside at a node that is inside a branch or another node.
    """
    recorded = fields.get("fork")
    fork = run.flow.splits.get(node_id) if point.kind == CHECKPOINT else None
    if recorded is None:
        if point.is_foreign:
            _check_saved_outside(run, node_id)
        forks_around = [other for other in run.flow.splits.values() if next_node in other.nodes]
        if forks_around and point.kind == CHECKPOINT:
            changes = differences or (f"node {next_node!r} is inside the fork after {forks_around[0].node_id!r} now",)
            raise _changed(run, f"would go on at node {next_node!r}, which is inside a fork now", next_node, changes)
        # Either the checkpoint was saved from outside, or this fork has replaced a router. In both cases no branch has run.
        return fork is not None and (next_node is None or (point.is_foreign and next_node == fork.join))
    names = [run.renames.now(name, point.sequence) for name in recorded]
    _check_same_fork(run, fork, node_id, next_node, names, differences)
    return True


def _check_saved_outside(run: NodeRun, node_id: str) -> None:
    """Raise `CheckpointMigrationError` for a checkpoint saved from outside at a node in a branch or inside another node."""
    around = next((fork for fork in run.flow.splits.values() if node_id in fork.nodes), None)
    if around is not None:
        where = (
            f"in a branch of the fork after node {around.node_id!r}, and does not say what the other branches have done"
        )
        hint = f"save one at node {around.node_id!r}, after which all branches run, or at node {around.join!r}, where they meet"
    elif node_id not in run.flow.units and find_node(run.flow, node_id) is not None:
        outer = node_id.partition("/")[0]
        where, hint = f"inside node {outer!r}, and does not say what that was given", f"save one at node {outer!r}"
    else:
        return
    raise CheckpointMigrationError(
        f"the checkpoint of run {run.run_id!r} at node {node_id!r} was saved from outside {where}: {hint}",
        node_id=node_id,
        found="no branch",
    )


def _check_same_fork(
    run: NodeRun,
    fork: Fork | None,
    node_id: str,
    next_node: str | None,
    names: list[str],
    differences: tuple[str, ...],
) -> None:
    """Raise `FlowChangedError` unless an open fork still has its join and all branches that were recorded."""
    if fork is None or next_node != fork.join:
        changes = differences or (f"the fork after {node_id!r} is gone, or joins elsewhere",)
        raise _changed(
            run, f"is inside the fork after node {node_id!r}, which meets at {next_node!r}", node_id, changes
        )
    gone = [name for name in names if name not in fork.branches]
    if gone:
        changes = differences or tuple(f"branch {name!r} of the fork after {node_id!r} is gone" for name in gone)
        raise _changed(run, f"has branch {gone[0]!r} of the fork after node {node_id!r}", gone[0], changes)


def _check_position(
    run: NodeRun,
    spot: ResumePoint,
    entry: StepRecord,
    node_id: str,
    flow: GraphFlow,
    leads_to: str | None,
    differences: tuple[str, ...],
) -> None:
    """Check the newest node of a branch or an inner graph.

    A fork after it must still be the same, and its next node must be the join or in the same branch. Raises
    `FlowChangedError` otherwise.
    """
    assert spot.since is not None
    assert spot.point is not None
    since, after = spot.since, spot.point.sequence
    prefix = node_id[: len(node_id) - len(node_id.rpartition("/")[2])]
    label = since.label_of(entry)
    if since.newest_in(prefix, label, after) is not entry:
        return
    local = node_id[len(prefix) :]
    if "fork" in entry.fields:
        recorded = entry.record.node_id
        above = recorded[: len(recorded) - len(recorded.rpartition("/")[2])]
        names = [since.renamed(above + name, entry.sequence).rpartition("/")[2] for name in entry.fields["fork"]]
        _check_same_fork(run, flow.splits.get(local), node_id, leads_to, names, differences)
    around = since.open_fork(label, prefix, spot.point)
    if around is None or leads_to is None:
        return
    fork_id, branch = around
    fork = flow.splits.get(fork_id[len(prefix) :])
    if fork is not None and leads_to != fork.join and leads_to not in fork.inside.get(branch, ()):
        changes = differences or (f"node {leads_to!r} is not in branch {branch!r} any more",)
        what = f"would go on at node {leads_to!r} after {node_id!r}, outside its branch of the fork after {fork_id!r}"
        raise _changed(run, what, leads_to, changes)


def _changed(run: NodeRun, what: str, node_id: str | None, changes: tuple[str, ...]) -> FlowChangedError:
    return FlowChangedError(
        f"run {run.run_id!r} {what}, and flow {run.flow.name!r} has changed there ({'; '.join(changes)}): if a node was "
        f"renamed, pass rename={{old: new}}; else resume_from a node before it",
        node_id=node_id,
        differences=changes,
    )


def check_inside(run: NodeRun, spot: ResumePoint, states: dict[int, Any], differences: tuple[str, ...]) -> None:
    """Check the records since the point against the flow, its waits included, and decode their states.

    The states from which branches and inner graphs will go on are added to `states`, by the number of their record.
    """
    assert spot.since is not None
    assert spot.point is not None
    for node_id, entry in spot.since.done.items():
        if "trunk" not in entry.fields:
            continue
        record = entry.record
        known = find_node(run.flow, node_id)
        if known is None:
            changes = differences or (f"node {node_id!r} is gone",)
            raise _changed(run, f"has a checkpoint of node {node_id!r} in what it was in", node_id, changes)
        flow, _, is_item = known
        if is_item:
            continue
        data, leads_to = spot.since.content(entry)
        if leads_to is not None and leads_to != END and leads_to not in flow.units:
            changes = differences or (f"node {leads_to!r} is gone",)
            raise _changed(run, f"would go on at node {leads_to!r} after {node_id!r}", leads_to, changes)
        _check_position(run, spot, entry, node_id, flow, leads_to, differences)
        try:
            state = flow.codec.decode(data)
        except DeserializeStateError as exc:
            exc.run_id, exc.node_id = run.run_id, node_id
            place(
                exc,
                f"what record {record.sequence} of run {run.run_id!r} holds of {node_id!r} is no state of its graph now",
                "lift old states with Graph(..., upgrade=)",
            )
            raise
        prefix = node_id[: len(node_id) - len(node_id.rpartition("/")[2])]
        if spot.since.newest_in(prefix, spot.since.label_of(entry), spot.point.sequence) is entry:
            states[record.sequence] = state
    check_waits(run, run.flow, spot.since, differences)


def _has_begun(run: NodeRun, spot: ResumePoint, node_id: str | None) -> bool:
    """Return whether the run has begun a node that is a map or a graph: its items or its inner nodes are recorded."""
    assert spot.since is not None
    unit = run.flow.units.get(str(node_id))
    if unit is None or not isinstance(unit.work, (MapWork, GraphWork)):
        return False
    recorded = ((record.kind, spot.since.renamed(record.node_id, record.sequence)) for record in spot.tail)
    return any(
        (kind == ITEMS and at == node_id) or (kind == CHECKPOINT and at.startswith(f"{node_id}/"))
        for kind, at in recorded
    )


def _is_newest(latest: RunSnapshot, point: Record) -> bool:
    """Return whether the point is the newest checkpoint of the run's own graph. Later ones inside other nodes do not count."""
    newest = latest.point
    if newest is point or newest is None or newest.is_foreign:
        return newest is point
    trunk: int | None = newest.fields().get("trunk")
    return trunk == point.sequence


def _repeated(
    run: NodeRun, since: JournalHistory, point: Record, node_id: str, next_node: str | None, is_split: bool
) -> tuple[str, ...]:
    """Return the nodes that a resume runs first: the next node or, in an open fork, the next node of each open branch."""
    if not is_split:
        return (next_node,) if next_node is not None and next_node != END else ()
    fork = run.flow.splits[node_id]
    return _next_in(run.flow, since, fork, f"{node_id}#{point.visit}", "", point.sequence) or (fork.join,)


def _next_in(flow: GraphFlow, since: JournalHistory, fork: Fork, way: str, label: str, after: int) -> tuple[str, ...]:
    """Return the next node of each branch of an open fork; () if all branches have reached the join."""
    next_nodes: list[str] = []
    for branch in fork.branches:
        inside = f"{label}/{way}/{branch}".lstrip("/")
        entry = since.newest_in("", inside, after)
        if entry is None:
            next_nodes += [branch] if branch != fork.join else []
            continue
        leads_to, node_id = since.content(entry)[1], since.renamed(entry.record.node_id, entry.sequence)
        inner = flow.splits.get(node_id)
        if inner is not None and leads_to == inner.join:
            inner_way = f"{node_id}#{entry.record.visit}"
            inner_nodes = _next_in(flow, since, inner, inner_way, inside, entry.sequence)
            next_nodes += inner_nodes or ([inner.join] if inner.join != fork.join else [])
        elif leads_to != fork.join:
            next_nodes.append(leads_to or node_id)
    return tuple(dict.fromkeys(next_nodes))


def _check_result(run: Run, point: Record, tail: tuple[Record, ...]) -> None:
    """Raise `CheckpointCorruptError` unless the newest checkpoint is the one that the run finished with."""
    ends = [record.fields().get("result") for record in tail if record.kind == FINISH]
    if ends and ends[-1] == point.sequence:
        return
    result = ends[-1] if ends and isinstance(ends[-1], int) else point.sequence + 1
    raise CheckpointCorruptError(
        f"run {run.run_id!r} has finished, but record {result}, which has its result, is not there: go on from the record "
        f"before it with on_corrupt='previous', or restore the store from a copy",
        sequence=result,
    )


def _recorded_route(run: NodeRun, point: Record, fields: Mapping[str, Any]) -> tuple[str | None, int]:
    """Return the next node that a record names (None: ask the router), and the number of nodes that had run by then."""
    if point.kind == START:
        return str(fields.get("entry") or run.flow.entry), 0
    next_node = fields.get("next_node")
    if next_node is None and point.is_foreign and "next_node" not in fields:
        next_node = _successor(run, point)
    return (None if next_node is None else str(next_node)), int(fields.get("iteration") or 0)


def _successor(run: NodeRun, point: Record) -> str | None:
    """Return the next node after an old record that does not name it: the only edge leads there. None: ask the router.

    Raises `CheckpointMigrationError` if the node has a router, unless `reroute` is set.
    """
    unit = run.flow.units.get(run.renames.now(point.node_id, point.sequence))
    if unit is None or unit.next_node is not None:
        return unit.next_node if unit is not None else point.node_id
    if run.options.reroute:
        return None
    raise CheckpointMigrationError(
        f"the checkpoint of run {run.run_id!r} at node {point.node_id!r} does not say where to go on, and the node has a "
        f"router: pass reroute=True to ask it",
        node_id=point.node_id,
        found="no next_node",
    )


def _differences(run: Run, start: Record | None) -> tuple[str, ...]:
    fields = start.fields() if start is not None else {}
    if not fields or is_incomplete(fields) or fields.get("fingerprint") == run.flow.fingerprint:
        return ()
    return run.flow.differences(fields.get("shape") or {})


def _check_nodes(run: NodeRun, node_id: str, next_node: str | None, differences: tuple[str, ...], state: Any) -> None:
    """Raise `FlowChangedError` if the flow no longer has the node at which the run would go on."""
    gone = node_id if next_node is None else next_node
    if gone == END or gone in run.flow.units:
        return
    changes = differences or (f"node {gone!r} is gone",)
    raise FlowChangedError(
        f"run {run.run_id!r} would go on at node {gone!r}, which flow {run.flow.name!r} does not have "
        f"({'; '.join(changes)}): if it was renamed, pass rename={{{gone!r}: new name}}; else resume_from a node before it",
        node_id=gone,
        state=state,
        differences=changes,
    )
