"""Checks of a run before anything is done with it: pure functions of what was read.

`refused_by_status` gives the error if the run's status does not let a verb go on; the other functions check flow,
inputs, renames and seals. None of them runs user code or touches the store. `milepost.graph.checks` examines the point
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from milepost.codec.plain import plain_text
from milepost.errors import (
    CheckpointCorruptError,
    FlowChangedError,
    InputMismatchError,
    MilepostError,
    OptionError,
    RunLockedError,
    RunNotResumableError,
    RunSuspended,
    SerializeStateError,
    WrongFlowError,
)
from milepost.executor.continuation import refused
from milepost.executor.flow import Flow, GraphFlow, GraphWork, MapWork, StepFlow, Unit, WaitWork, find_node
from milepost.executor.journal import Journal
from milepost.executor.run import Run
from milepost.model.ids import describe_owner
from milepost.model.record import (
    CONTINUE,
    Record,
)
from milepost.store import GOES_ON, RunRow

if TYPE_CHECKING:
    from milepost.executor.history import JournalHistory

CHOOSE_ANOTHER = "choose another run_id, resume() the run as it is, or pass compare_inputs=False"
"""What to do about an input that a run did not begin with."""
MAX_SHOWN = 200
"""The largest number of bytes of an input that an error shows."""


class ResumeRequest(msgspec.Struct, frozen=True):
    """A verb's request to go on with a run that exists."""

    verb: Literal["resume", "resume_from", "retry", "continue"] = "resume"
    node_id: str | None = None
    visit: int | None = None
    rerun: bool = False
    state: Any = None
    """The value that a new turn begins with."""

    @classmethod
    def of(cls, node_id: str | None, visit: int | None, rerun: bool) -> ResumeRequest:
        """Make a request to `resume`, or to `resume_from` if a node is named."""
        return cls() if node_id is None else cls("resume_from", node_id, visit, rerun)


class Amendment(msgspec.Struct, frozen=True):
    """A state that takes the place of a recorded one, and its bytes."""

    state: Any
    data: bytes
    updates: bytes | None = None
    """The values of an update for fields with a reducer, as JSON, if the graph forks; None for a whole state."""


def refused_by_status(run: Run | Journal, request: ResumeRequest, row: RunRow) -> MilepostError | None:
    """Return the error if the run's status does not let the verb go on; else None."""
    status, options = row.status, run.options
    if request.verb == CONTINUE:
        return refused(run, row)
    is_closed = status == "cancelled" or (status == "blocked" and row.blocked_by not in GOES_ON)
    if request.verb == "retry" and status != "failed":
        how = ", with reopen=True" if is_closed else ""
        return not_resumable(run, status, row.reason, f"retry is for a run that failed; use resume or resume_from{how}")
    if is_closed and not options.reopen:
        return not_resumable(run, status, row.reason, "pass reopen=True to go on with it all the same")
    is_due = row.wake_at is not None and run.is_recorded and row.wake_at.timestamp() <= run.store.clock.time()
    is_ending = row.cancel is not None and not options.reopen
    if status == "waiting" and request.verb == "resume" and not is_due and not is_ending:
        return RunSuspended(
            f"run {run.run_id!r} waits for {', '.join(w.wait_id for w in row.waiting_for) or 'its time'}: send the "
            f"signal, or resume when its time has come",
            waiting_for=row.waiting_for,
            wake_at=row.wake_at,
        )
    return None


def recorded_ids(run: Run, node_id: str) -> tuple[str, ...]:
    """Return the ids under which a node is recorded: its own, and those that it was renamed from."""
    return tuple({name: None for name, _, _ in run.renames.sources(node_id)}) if run.renames else (node_id,)


def check_renames(run: Run, recorded: JournalHistory, names: Iterable[str] = ()) -> None:
    """Raise `OptionError` if the renames that are given now turn two recorded ids into one.

    `names` are further ids, as they are before these renames.
    """
    clash = recorded.clash_with(names) if run.renames.given else None
    if clash is None:
        return
    one, other, both = *sorted(clash[:2]), clash[2]  # branches are recorded in any order
    raise OptionError(
        f"rename would make {both!r} of both {one!r} and {other!r}, which are recorded in run {run.run_id!r}: give each a name "
        f"of its own",
        option="rename",
        node_id=both,
    )


def check_waits(
    run: Run, flow: GraphFlow, recorded: JournalHistory, differences: tuple[str, ...] = (), prefix: str = ""
) -> None:
    """Raise `FlowChangedError` unless each recorded wait of `flow`, below `prefix`, is a wait in it still.

    Nobody would take the answer of such a wait otherwise. Waits whose nodes have completed do not count.
    """
    for node_id, entry in recorded.waits.items():
        if not node_id.startswith(prefix) or recorded.is_over(node_id, entry):
            continue
        known = find_node(flow, node_id[len(prefix) :])
        work = None if known is None else known[1].work
        kind = "timer" if entry.fields.get("signal") is None else "wait"
        if isinstance(work, WaitWork) and kind == ("timer" if work.signal is None else "wait"):
            continue
        changes = differences or (f"{node_id!r} is no {kind} any more",)
        raise FlowChangedError(
            f"run {run.run_id!r} is at {kind} {node_id!r}, and flow {run.flow.name!r} has no such {kind} now "
            f"({'; '.join(changes)}): if it was renamed, pass rename={{{node_id!r}: new id}}; else bring it back, or "
            f"resume_from a {run.unit} before it",
            run_id=run.run_id,
            node_id=node_id,
            differences=changes,
        )


def check_recordable(run: Run) -> None:
    """Raise an error if no run of the flow can be kept in its store.

    Raises `SerializeStateError` for a type that cannot be recorded, `OptionError` for a wait that the store cannot
    keep.
    """
    flow = run.flow
    problem = next(_problems(flow), None) if run.is_recorded else None
    if problem is not None:
        path, text, type_name = problem
        raise SerializeStateError(
            f"the {run.input_name} of flow {flow.name!r} cannot be recorded: {path}: {text}",
            path=path,
            type_name=type_name,
            run_id=run.run_id,
        )
    if not run.is_recorded and getattr(flow, "has_waits", False):
        obstacle = "waits for signals, which nobody can send to a run without a store"
    elif (
        run.is_recorded
        and not run.store.can_park
        and (getattr(flow, "has_waits", False) or getattr(flow, "has_timers", False))
    ):
        obstacle = f"has to wait, and {run.store.place} can't keep a run that waits"
    else:
        return
    raise OptionError(
        f"flow {flow.name!r} {obstacle}: give store= with one of Milepost's stores", option="store", run_id=run.run_id
    )


def _problems(flow: Flow) -> Iterator[tuple[str, str, str]]:
    """Yield what cannot be recorded of the states of a flow and the graphs in it: path, sentence and type of each."""
    types = getattr(flow.codec, "problem_types", {})
    yield from ((path, text, types.get(path, "")) for path, text in getattr(flow.codec, "problems", ()))
    units: Mapping[str, Unit] = getattr(flow, "units", {})
    for unit in units.values():
        work = unit.work
        inner = work.graph if isinstance(work, GraphWork) else work.each if isinstance(work, MapWork) else None
        if inner is not None and not isinstance(inner, Unit):
            yield from _problems(inner)


def check_flow(run: Run, row: RunRow) -> None:
    """Raise `WrongFlowError` unless the run is one of this flow, and the errors of `check_recordable`."""
    check_recordable(run)
    check_name(run.run_id, row, run.flow.name)


def check_name(run_id: str, row: RunRow, flow: str) -> None:
    """Raise `WrongFlowError` unless the run is one of the flow with this name."""
    if row.flow and row.flow != flow:
        raise WrongFlowError(
            f"run {run_id!r} is one of flow {row.flow!r}, not of {flow!r}: resume it with that flow, "
            f"or compile this one under its name",
            expected=row.flow,
            found=flow,
            differences=(f"the flow is {flow!r} instead of {row.flow!r}",),
        )


def input_mismatch(run: Run, begun: Mapping[str, Any], recorded: bytes, given: Any) -> InputMismatchError | None:
    """Return the error if a run began with another input than `given`; else None.

    `begun` are the fields of its start record, `recorded` is the input in that. A new input that is left at its default
    is no difference, a changed default is.
    """
    before = str(begun.get("inputs_hash") or "")
    now = run.flow.inputs_hash(given)
    if not before or before == now or (len(before) == 16 and now.startswith(before)):
        return None
    names, detail = _other_inputs(run, begun.get("inputs") or {}, recorded, given)
    if not names:
        return None
    return InputMismatchError(
        before,
        now,
        f"{detail}: {CHOOSE_ANOTHER}",
        names=names,
    )


def _other_inputs(run: Run, digests: Mapping[str, str], recorded: bytes, given: Any) -> tuple[tuple[str, ...], str]:
    """Return the names of the inputs that differ, and a description of the differences."""
    if not digests:
        return ("state",), both_inputs(recorded, run.flow.codec.encode(given)) or "the states are too long to show"
    flow = cast("StepFlow", run.flow)
    now, usual = flow.digests(given), flow.digests(flow.defaults())
    names = [name for name in digests if digests[name] != now.get(name)]
    names += [name for name in now if name not in digests and now[name] != usual.get(name)]
    parts: Mapping[str, Any] = msgspec.json.decode(recorded or b"{}", type=dict[str, msgspec.Raw])
    new = msgspec.json.decode(flow.codec.encode(given), type=dict[str, msgspec.Raw])
    changes = []
    for name in names:
        shown = both_inputs(bytes(parts.get(name, b"nothing")), bytes(new.get(name, b"nothing")))
        changes.append(f"input {name!r}" + (f" ({shown})" if shown else ""))
    return tuple(names), ", ".join(changes)


def both_inputs(recorded: bytes, given: bytes) -> str:
    """Return a text that shows two inputs, recorded as JSON; "" if they are too long."""
    shown = [plain_text(text.decode("utf-8", "replace")) for text in (recorded, given)]
    return "" if max(map(len, shown)) > MAX_SHOWN else f"recorded {shown[0]}, given {shown[1]}"


def locked(
    run: Run | Journal,
    row: RunRow,
    hint: str = "wait for it with on_locked='wait', or fence it off with takeover=True",
) -> RunLockedError:
    """Make the error of a run that another owner has, or another verb of this process; `hint` says what to do."""
    until = row.lease_until
    ending = f" until {until:%Y-%m-%d %H:%M:%S} UTC" if until is not None else ""
    who = "another verb of this process" if row.lease == "ours" else describe_owner(row.owner)
    return RunLockedError(
        f"run {run.run_id!r} is being executed by {who}{ending}: {hint}",
        owner=row.owner,
        lease_until=until,
    )


def not_resumable(run: Run | Journal, status: str, reason: str, hint: str, **facts: Any) -> RunNotResumableError:
    """Make the error of a run that the verb does not go on with; `hint` says what to do instead."""
    because = f" ({reason})" if reason else ""
    return RunNotResumableError(
        f"run {run.run_id!r} is {status}{because}: {hint}", status=status, reason=reason, **facts
    )


def check_seal(run: Run, record: Record) -> bool:
    """Return whether the seal proves the record; False if the record is only accepted.

    Raises `CheckpointCorruptError` for a record that its seal refutes.
    """
    try:
        return run.store.seals.check(run.run_id, record)
    except CheckpointCorruptError as exc:
        exc.run_id, exc.node_id, exc.sequence = run.run_id, record.node_id or None, record.sequence
        raise


def content_of(point: Record) -> tuple[Mapping[str, Any], bytes]:
    """Return the header fields and the plain encoded state of a record, even one that other software wrote."""
    if not point.is_foreign:
        return point.fields(), point.state() or b""
    from milepost.model.checkpoint import read_envelope  # only a save from outside needs the old forms

    return read_envelope(point.state() or b"")
