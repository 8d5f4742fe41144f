"""Amendments: `state_override` or `update` changes a recorded state before a run goes on.

This module makes and checks the amendment, and writes nothing: whoever takes the run records it in the owner record.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import Any

from milepost.errors import OptionError, SerializeStateError, StateTypeError
from milepost.executor.checks import Amendment
from milepost.executor.effects import Call, Routine
from milepost.executor.flow import GraphFlow, Part, StateCodec, Whole
from milepost.executor.history import JournalHistory, StepRecord
from milepost.executor.run import Run
from milepost.model.failure import place
from milepost.model.record import Record

__all__ = ["amended", "check_branch"]


def amended(
    run: Run, flow: GraphFlow | None, codec: StateCodec, data: bytes, node_id: str | None, where: str
) -> Routine[Amendment | None]:
    """Amend the state in `data`, recorded at `node_id`, as the call's options say; return None if they say nothing.

    `flow` is the graph of that state, None for the result of an item. Errors of the override or of a reducer pass
    through. Raises `StateTypeError` or `SerializeStateError` for an amended state that is refused; `where` names the
    run in their texts. Raises `OptionError` for an `update` of a state that takes no parts.
    """
    override, part = run.options.state_override, run.options.update
    if override is not None:
        state = yield Call(override, (codec.decode(data),), None, iscoroutinefunction(override))
    elif part is None:
        return None
    if part is not None and (flow is None or not flow.takes_parts):
        what = (
            "no graph's state" if flow is None else f"the state of graph {flow.name!r}, whose nodes return whole states"
        )
        raise OptionError(
            f"update= of {where} is for {what}: give state_override=, or let nodes return parts with Graph(..., partial=True)",
            option="update",
            run_id=run.run_id,
            node_id=node_id,
        )
    updates: bytes | None = None
    try:
        if part is not None and flow is not None:
            state = flow.taken_up(codec.decode(data), part)
            if flow.update_codec is not None:
                given = Part(part) if isinstance(part, Mapping) else Whole(part)
                updates = _encoded(run, flow.updates(given) or {}, flow.update_codec)
        encoded = _encoded(run, state, codec)
    except (StateTypeError, SerializeStateError) as exc:
        # The override may have changed its argument in place, so the state is decoded anew.
        exc.run_id, exc.node_id, exc.state = run.run_id, node_id, codec.decode(data)
        if isinstance(exc, StateTypeError):
            exc.op = "override"
        what, act = "what state_override gave", "return a state of the declared type"
        if part is not None:
            what, act = "what update= makes of the state", "give some of its fields, with values of the declared types"
        place(exc, f"{what} for {where} is refused", act)
        raise
    return Amendment(state if part is None else codec.decode(encoded), encoded, updates)


def _encoded(run: Run, value: Any, codec: StateCodec) -> bytes:
    encoded = run.journal.encode(value, codec)
    if isinstance(encoded, SerializeStateError):
        raise encoded
    return encoded


def check_branch(
    run: Run,
    flow: GraphFlow,
    since: JournalHistory,
    entry: StepRecord,
    point: Record,
    data: bytes,
    amendment: Amendment,
) -> None:
    """Raise `OptionError` if the join could not derive what an amended state of a branch adds to that before the fork.

    `entry` is the amended checkpoint, of a node of `flow`; `point` is the record that the run's own graph had come to,
    with its state in `data`.
    """
    around = since.fork_around(entry, point)
    if around is None or flow.update_codec is None or amendment.updates is not None:
        return
    turning, began = around
    fork_id = turning.fork
    fork = flow.splits.get(fork_id.rpartition("/")[2])
    if fork is None or fork.merge is not None:
        return
    decode = flow.codec.decode
    base = decode(data if began is None else since.state_of(began))
    others = since.beside(turning, fork.branches, point.sequence)
    # A field that only one branch changed needs no reducer: the join takes its value as it is.
    reduced = {name for other in others for name in flow.replaced(base, decode(since.state_of(other)))}
    changed = flow.replaced(decode(since.state_of(entry)), amendment.state)
    for name in flow.untold(fork, base, amendment.state, [name for name in changed if name in reduced]):
        raise OptionError(
            f"state_override changed field {name!r} in a branch of the fork after node {fork_id!r} of run {run.run_id!r}, and "
            f"its reducer does not tell what that adds to the value before the fork: give what is to be reduced instead, as "
            f"update={{{name!r}: ...}}",
            option="state_override",
            run_id=run.run_id,
            node_id=entry.record.node_id,
        )
