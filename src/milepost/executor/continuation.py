"""Turns: a graph's run goes on with a new state, at its entry, in the same journal.

A turn is recorded as an owner record with the verb "continue", which holds the state that the turn begins with, and the
entry. Until the turn has a checkpoint of its own, it goes on from that record, as a new run does from its start record.
Of the records before it only the numbers of visits matter to the turn.

A turn follows the newest one that finished, or the start record if none did. What was recorded since then, by a turn
that failed or was dropped, is superseded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from milepost.errors import (
    OptionError,
    RunNotFoundError,
    RunNotResumableError,
    SerializeStateError,
    StateTypeError,
)
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import GraphFlow
from milepost.executor.journal import Journal
from milepost.executor.run import Run
from milepost.model.failure import contained, place
from milepost.model.ranges import is_live
from milepost.model.record import CONTINUE, OWNER, START, Record
from milepost.options import Options
from milepost.store import GOES_ON, RunRow, RunSnapshot

_MEANINGLESS = {
    "state_override": "the state that is given is the one that the turn begins with",
    "update": "the state that is given is the one that the turn begins with, and may be a part itself",
    "reroute": "a turn begins at the entry, and no router is asked",
    "reopen": "a turn follows a run that has finished; reopen one that was cancelled or blocked with resume",
    "takeover": "a run that somebody executes has not finished; on_locked='wait' waits for its end",
}
_PAGE = 16
"""The number of records that are read at once to find a turn."""
_HINTS = {
    "waiting": "send what it waits for, or resume it when its time has come",
    "failed": "retry or resume it first, or leave out unfinished='refuse'",
    "ready": "a worker takes it up, or resume it first",
    "cancelled": "go on with it by resume and reopen=True, or begin another run",
    "blocked": "go on with it by resume and reopen=True, or begin another run",
}


def check_options(options: Options, *, has_state: bool) -> None:
    """Raise `OptionError` for a flow that has no state, and for options that say nothing about a turn."""
    if not has_state:
        text = "if_exists='continue' is for graphs: a workflow has no state that a turn could begin with"
        raise OptionError(text, option="if_exists")
    for name, why in _MEANINGLESS.items():
        if getattr(options, name):
            raise OptionError(f"{name} does not go with if_exists='continue': {why}", option=name)
    if options.on_corrupt != "error":
        text = "on_corrupt does not go with if_exists='continue': resume the run with it first, then continue it"
        raise OptionError(text, option="on_corrupt")


def refuse_turn_options(given: Mapping[str, Any]) -> None:
    """Raise `OptionError` for an option of turns in a call that begins none."""
    for name in ("unfinished", "turn_id"):
        if name in given:
            raise OptionError(f"{name} needs if_exists='continue': only that begins a turn", option=name)


def is_known(run: Run) -> Routine[bool]:
    """Return whether the store has the run."""
    try:
        yield from ask(run.store, "get_run", run.run_id)
    except RunNotFoundError:
        return False
    return True


def refused(run: Run | Journal, row: RunRow) -> RunNotResumableError | None:
    """Return the error if no turn can begin, because the turn before or the run itself has not finished; else None."""
    mode = run.options.unfinished
    if row.status == "finished" or (row.status == "failed" and mode != "refuse"):
        return None
    if mode == "drop" and row.status != "cancelled":
        return None
    hint = _HINTS.get(row.status, "resume it first")
    return RunNotResumableError(
        f"run {run.run_id!r} {_standing(row)}, and a new turn begins only when it has finished: {hint}",
        run_id=run.run_id,
        status=row.status,
        reason=row.reason,
    )


def _standing(row: RunRow) -> str:
    """Describe how a run stands, with its reason or with what it waits for."""
    waits = ", ".join(wait.wait_id for wait in row.waiting_for)
    what = f"waits for {waits or 'its time'}" if row.status == "waiting" else f"is {row.status}"
    return what + (f" ({row.reason})" if row.reason else "")


def is_to_be_finished(run: Run, row: RunRow) -> bool:
    """Return whether the turn before has to be finished, or its open cancel carried out, before a new one begins."""
    mode = run.options.unfinished
    is_open = row.status not in {"finished", "failed", "cancelled", "blocked"} or row.blocked_by in GOES_ON
    return is_open and (mode == "finish" or (mode == "drop" and row.cancel is not None))


def end_of_turn(run: Run, latest: RunSnapshot) -> Routine[int | None]:
    """Find the turn that is recorded under the call's `turn_id`, and return the number that all its records are below.

    That is the number of the record that began the next turn, or the next number. None: there is no such turn that
    counts, or the call gives no id.
    """
    before = end = latest.newest + 1
    while run.options.turn_id is not None:
        found: list[Record] = yield from ask(
            run.store, "read", run.run_id, kinds=(START, OWNER), before=before, newest=True, limit=_PAGE
        )
        for record in found:
            fields = record.fields()
            if is_live(record.sequence, latest.row.live) and (record.kind == START or fields.get("verb") == CONTINUE):
                run.store.seals.check(run.run_id, record)
                if fields.get("turn") == run.options.turn_id:
                    return end
                end = record.sequence
        if not found:
            break
        before = found[-1].sequence
    return None


def open_turn(run: Run, found: Any, given: Any) -> tuple[Any, bytes]:
    """Make the state that a new turn begins with; return it and its encoding.

    Changes `found`, the end of the run, so that it leads to the entry. Raises `StateTypeError` or `SerializeStateError`
    if `given` is neither a state nor a part of one. Errors of a reducer pass through.
    """
    flow, entry = cast("GraphFlow", run.flow), run.flow.entry
    is_first = found.point.kind == START
    try:
        state = given if is_first else contained(flow.taken_up, found.state, given)
        data = run.journal.encode(state, flow.codec)
        if isinstance(data, SerializeStateError):
            raise data
    except (StateTypeError, SerializeStateError) as exc:
        exc.run_id, exc.state = run.run_id, None if is_first else flow.codec.decode(found.data)
        act = "continue it with a state of the declared type or, in a partial graph, a mapping of some of its fields"
        place(exc, f"what run {run.run_id!r} is to be continued with cannot be recorded", act)
        raise
    found.next_node, found.iteration, found.is_turn = entry, 0, True
    found.spent.visit = found.spent.failures = found.spent.attempts = 0
    found.spent.pause = 0.0
    found.info = replace(
        found.info,
        source="start" if is_first else "latest",
        next_node=entry,
        skipped=(),
        repeated=(),
        already_completed=False,
        superseded="" if found.live is None else f"the turn before {_standing(found.row)}",
    )
    return state, data
