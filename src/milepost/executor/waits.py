"""Waits and timers: a run that waits is released, and holds no thread, lease or connection.

One record says that a step waits, another one how the wait ended: with a signal, or because its time was over. A step
that has to wait raises `Parked`; steps beside it go on to their ends, and then the run is parked with all its open
waits. If a signal has come meanwhile, the store refuses to park the run, and its code is played again from the record.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.codec import Codec
from milepost.codec.families import family_of
from milepost.errors import (
    DeserializeStateError,
    MilepostError,
    OptionError,
    RunSuspended,
    SerializeStateError,
    StateTypeError,
)
from milepost.executor.effects import Emit, Routine, Sleep, ask
from milepost.executor.flow import WaitWork
from milepost.executor.history_values import OpenWait, PendingRecord, refused_answer, wait_of
from milepost.model.failure import contained, describe
from milepost.model.failure import place as say_where
from milepost.model.record import NOT_JSON, REPLY, WAIT, as_posix, format_time, parse_time
from milepost.store import RunRow, Signal, flaw_of_prompt, shortened

if TYPE_CHECKING:
    from milepost.executor.run import Run
    from milepost.model.info import Wait
    from milepost.model.results import Reply, StepType

_encode = msgspec.json.Encoder().encode


class Waits:
    """A wait that parks the run until a signal comes or a time is over. A timer has no signal."""

    __slots__ = ("early", "payload", "prompt", "seconds", "signal", "until")

    def __init__(
        self,
        signal: str | None,
        seconds: float | None,
        until: datetime | None = None,
        prompt: Any = None,
        payload: Any = None,
        early: bool = True,
    ) -> None:
        self.signal = signal
        self.seconds = seconds
        self.until = until
        self.prompt = prompt
        self.payload = payload
        self.early = early

    def within(self, seconds: float | None) -> Waits:
        """Limit this wait to at most `seconds` (None: no limit). A timer, which has no signal, stays as it is."""
        if seconds is None or self.signal is None:
            return self
        limit = seconds if self.seconds is None else min(self.seconds, seconds)
        return Waits(self.signal, limit, None, self.prompt, self.payload, self.early)

    @property
    def step_type(self) -> StepType:
        """The type of the step: WAIT, or TIMER if there is no signal."""
        from milepost.model.results import StepType  # imported here: graphs, which have no steps, do not need it

        return StepType.TIMER if self.signal is None else StepType.WAIT


class Parked(Exception):
    """The exception of a branch in which steps wait and nothing else can go on before that."""

    def __init__(self, waits: tuple[OpenWait, ...]) -> None:
        super().__init__("the run waits")
        self.waits = waits


class _Reply(msgspec.Struct):
    payload: msgspec.Raw = msgspec.Raw(b"null")
    sent_at: str | None = None
    timed_out: bool = False


def now_of(run: Run) -> float:
    """Return the time that counts for waits: the store's, which decides when a worker may go on with the run.

    Without a store it is that of the options' clock.
    """
    return run.store.clock.time() if run.is_recorded else run.options.clock.time()


def wait(
    run: Run, work: Waits, step_id: str, visit: int, place: Mapping[str, Any] | None = None
) -> Routine[tuple[Any, bytes]]:
    """Return the reply that a step waits for, and its JSON; raise `Parked` while there is none.

    `place` holds further fields for the records: they say where in the run the step is.
    """
    if not run.is_recorded:
        return (yield from _wait_here(run, work, step_id))
    recorded = run.recorded.replies.get(step_id)
    if recorded is not None and (recorded.record.visit == visit or run.recorded.is_in_flight(step_id, recorded)):
        data = recorded.record.state() or b"{}"
        try:
            return reply_of(work, data), data
        except DeserializeStateError as exc:
            exc.run_id, exc.node_id = run.run_id, step_id
            say_where(
                exc,
                f"the recorded reply of {_named(run, step_id)} of run {run.run_id!r} cannot be read",
                "bring the payload's type back that it was recorded with",
            )
            raise
    yield from run.live()
    at = dict(place or {})
    mine = yield from _opened(run, work, step_id, visit, at)
    while True:
        signal = (yield from _matched(run)).get(mine.wait.wait_id)
        now = now_of(run)
        if signal is None:
            break
        reply, flaw = reply_with(work, signal)
        fields: dict[str, Any] = {"signal": signal.number, "wait_id": mine.wait.wait_id, "by": signal.by, **at}
        run.progress.used_signals.add(signal.number)
        if reply is not None:
            yield from _answer(run, step_id, visit, fields, reply)
            return reply_of(work, reply), reply
        fields["refused"] = shortened(flaw)  # it quotes the payload, and every list of runs reads it
        _, moment = yield from run.record((PendingRecord(REPLY, step_id, visit, fields),), is_fatal=True)
        refused = refused_answer({**fields, "timestamp": moment})
        mine = run.progress.open_waits[step_id] = mine._replace(wait=replace(mine.wait, refused=refused))
    if mine.wait.wake_at is not None and mine.wait.wake_at.timestamp() <= now:
        reply = _encode(_Reply(timed_out=work.signal is not None))
        yield from _answer(run, step_id, visit, {"timed_out": True, "wait_id": mine.wait.wait_id, **at}, reply)
        return reply_of(work, reply), reply
    raise Parked((mine,))


def is_waiting(run: Run, step_id: str, visit: int) -> bool:
    """Return whether a visit has begun to wait or has its reply, so that its wait is settled."""
    if step_id in run.progress.open_waits:
        return True
    wait = None if step_id in run.progress.answered else run.recorded.waits.get(step_id)
    known = (wait, run.recorded.replies.get(step_id))
    return any(entry is not None and entry.record.visit == visit for entry in known)


def _named(run: Run, step_id: str) -> str:
    return f"{run.unit} {step_id!r}"


def _answer(run: Run, step_id: str, visit: int, fields: dict[str, Any], reply: bytes) -> Routine[None]:
    # From here on the wait is closed: the next signal cannot be for it.
    run.progress.open_waits.pop(step_id, None)
    run.progress.answered.add(step_id)
    yield from run.record((PendingRecord(REPLY, step_id, visit, fields, reply),), is_fatal=True)


def _wait_here(run: Run, work: Waits, step_id: str) -> Routine[tuple[Any, bytes]]:
    """Wait in a run without a store: sleep for a timer. Raise `OptionError` for a signal, which nobody can send."""
    if work.signal is not None:
        raise OptionError(
            f"{_named(run, step_id)} waits for signal {work.signal!r}, which nobody can send to a run without a store: give "
            f"store=",
            option="store",
            run_id=run.run_id,
            node_id=step_id,
        )
    ends = _end_of(work, now_of(run))
    assert ends is not None
    yield Sleep(max(0.0, ends - now_of(run)), run.journal.held)
    from milepost.model.results import Reply

    return Reply(None, None), b"{}"


def _end_of(work: Waits, now: float) -> float | None:
    if work.until is not None:
        return as_posix(work.until)
    return None if work.seconds is None else now + work.seconds


def _opened(run: Run, work: Waits, step_id: str, visit: int, at: Mapping[str, Any]) -> Routine[OpenWait]:
    """Return the recorded wait of a step; record it first if it is not recorded yet."""
    if not run.store.can_park:
        raise OptionError(
            f"{_named(run, step_id)} has to wait, and {run.store.place} can't keep a run that waits: use one of "
            f"Milepost's stores",
            option="store",
            run_id=run.run_id,
            node_id=step_id,
        )
    known = _open_waits(run).get(step_id)
    schema = None
    if work.payload is not None:
        from milepost.codec.schema import schema_of  # few waits declare the type of their payload

        schema = schema_of(work.payload) or None
    if known is not None:
        known = known._replace(wait=replace(known.wait, schema=schema))
        run.progress.open_waits[step_id] = known
        return known
    run.enter(step_id)
    yield from run.know_signals()
    ends = _end_of(work, now_of(run))
    data = run.journal.encode(work.prompt, MessageCodec(), "prompt")
    if isinstance(data, SerializeStateError):
        say_where(
            data,
            f"the prompt of {_named(run, step_id)} of run {run.run_id!r} cannot be recorded",
            "give what the codec carries",
        )
        raise data
    if (flaw := flaw_of_prompt(data)) is not None:
        raise SerializeStateError(
            f"the prompt of {_named(run, step_id)} of run {run.run_id!r} {flaw}", run_id=run.run_id, node_id=step_id
        )
    seen = 0
    if not work.early:
        row: RunRow = yield from ask(run.store, "get_run", run.run_id)
        seen = row.signals
    wait_id = f"{step_id}#{visit}"
    fields = {
        "wait_id": wait_id,
        "signal": work.signal,
        "wake_at": None if ends is None else format_time(ends),
        "seen": seen or None,
        "early": None if work.early else False,
        "schema": schema,
        **run.known_before(),
        **at,
    }
    sequence, moment = yield from run.record((PendingRecord(WAIT, step_id, visit, fields, data),), is_fatal=True)
    opened = OpenWait(wait_of({**fields, "timestamp": moment}, data), sequence, seen, work.early)
    run.progress.open_waits[step_id] = opened
    return opened


def _open_waits(run: Run) -> dict[str, OpenWait]:
    """Return the open waits of a run, by step: those that are recorded, and those that this process has opened."""
    progress = run.progress
    known = {step_id: wait for step_id, wait in run.recorded.open_waits().items() if step_id not in progress.answered}
    return {**known, **progress.open_waits}


# -- signals -----------------------------------------------------------------------------------------------


def _matched(run: Run) -> Routine[dict[str, Signal]]:
    """Return the signal for each wait that has one, by wait id; see `matched`."""
    yield from run.know_signals()
    used = run.progress.used_signals
    # All signals before the first unused one are used: they need not be read.
    first = next(number for number in itertools.count(1) if number not in used)
    signals: list[Signal] = yield from ask(run.store, "signals", run.run_id, after=first - 1)
    return matched(signals, _open_waits(run).values(), used)


def unanswered(run: Run) -> Routine[tuple[Wait, ...]]:
    """Return the open waits of a run that ends in another way than by parking. They stay open, and take signals."""
    if not run.is_recorded or not run.progress.open_waits:
        return ()
    try:
        answered = yield from _matched(run)
    except MilepostError:
        answered = {}
    ordered = sorted(_open_waits(run).values(), key=lambda wait: wait.sequence)
    return tuple(wait.wait for wait in ordered if wait.wait.wait_id not in answered)


def matched(signals: Iterable[Signal], opened: Iterable[OpenWait], used: set[int]) -> dict[str, Signal]:
    """Assign each unused signal to the oldest wait of its name that may have it. A wait gets one signal at most.

    A wait gets no signal that was sent after its time was over, however late the run goes on.
    """
    waiting = sorted(opened, key=lambda wait: wait.sequence)
    found: dict[str, Signal] = {}
    for signal in sorted(signals, key=lambda signal: signal.number):
        if signal.number in used:
            continue
        for candidate in waiting:
            wait_id = candidate.wait.wait_id
            if wait_id in found or candidate.wait.signal != signal.name:
                continue
            if signal.to is not None and signal.to != wait_id:
                continue
            wake_at = candidate.wait.wake_at
            if wake_at is not None and wake_at.timestamp() <= signal.sent_at:
                continue
            if not candidate.is_early and signal.number <= candidate.seen:
                continue
            found[wait_id] = signal
            break
    return found


class MessageCodec:
    """The codec of prompts and signals, which have no declared type and are read as plain JSON.

    An object of a class with fields, or a member of an enum, is written as its class writes it, also in lists and dicts.
    """

    @staticmethod
    def encode(value: Any, *, root: str = "payload") -> bytes:
        """Write the value as JSON; `root` names it in errors. Raises `SerializeStateError`."""
        if _is_object(value):
            return Codec(type(value)).encode(value, root=root)
        untyped: Codec[Any] = Codec(Any)
        try:
            return untyped.encode(value, root=root)
        except SerializeStateError as exc:
            try:
                plain = _without_objects(value, root)
            except RecursionError:
                raise exc from None
        return untyped.encode(plain, root=root)


def _is_object(value: Any) -> bool:
    return isinstance(value, Enum) or family_of(type(value)) is not None


def _without_objects(value: Any, path: str) -> Any:
    """Return the value with plain JSON in place of the objects in its lists, tuples and dicts; `path` is its place."""
    if _is_object(value):
        return msgspec.json.decode(Codec(type(value)).encode(value, root=path))
    if type(value) in (list, tuple):
        return type(value)(_without_objects(item, f"{path}[{index}]") for index, item in enumerate(value))
    if type(value) is dict:
        return {
            key: _without_objects(item, f"{path}[{_encode(key).decode() if type(key) is str else repr(key)}]")
            for key, item in value.items()
        }
    return value


def reply_with(work: Waits, signal: Signal) -> tuple[bytes | None, str]:
    """Make the reply of a signal, as JSON; None and the reason if the wait refuses the payload."""
    payload = signal.payload or b"null"
    if work.payload is not None:
        try:
            payload = contained(_typed, payload, work.payload)
        except Exception as exc:  # a model's own validators are user code
            reason = exc.args[0] if isinstance(exc, MilepostError) and exc.args else describe(exc)
            return None, f"the payload of signal {signal.name!r} is refused: {reason}"
    return _encode(_Reply(msgspec.Raw(payload), format_time(signal.sent_at))), ""


def _typed(payload: bytes, type_: Any) -> bytes:
    """Encode a payload in the form of its type. It may have been sent as a value of the type, or as its plain JSON."""
    codec: Codec[Any] = Codec(type_)
    if hasattr(type_, "model_validate_json"):
        return codec.encode(_validated(payload, codec, type_), root="payload")
    try:
        return codec.encode(Codec(Any).decode(payload, root="payload"), root="payload")
    except (DeserializeStateError, SerializeStateError, StateTypeError):
        return codec.encode(codec.decode(payload, root="payload"), root="payload")


def _validated(payload: bytes, codec: Codec[Any], model: Any) -> Any:
    """Make a pydantic model of a payload and validate it: records are trusted, but this payload is in no record yet."""
    if not isinstance(msgspec.json.decode(payload), dict):
        return model.model_validate_json(payload)
    try:
        value = codec.decode(payload, root="payload")
    except DeserializeStateError:
        return model.model_validate_json(payload)
    checked = model.model_validate(value.model_dump(by_alias=True, warnings=False))
    return value if checked == value else checked


def reply_of(work: Waits, data: bytes) -> Reply[Any]:
    """Decode the reply of a step that waited. Raises DeserializeStateError."""
    from milepost.model.results import Reply

    try:
        reply = msgspec.json.decode(data, type=_Reply)
    except NOT_JSON as exc:
        raise DeserializeStateError(f"the reply of a wait is damaged: {exc}") from exc
    codec: Codec[Any] = Codec(Any if work.payload is None else work.payload)
    is_empty = reply.timed_out or work.signal is None
    payload = None if is_empty else codec.decode(bytes(reply.payload), root="payload")
    return Reply(payload, None if reply.sent_at is None else parse_time(reply.sent_at), reply.timed_out)


def waits_of(work: WaitWork, until: datetime | None = None, prompt: Any = None) -> Waits:
    """Make the wait of a node. `until` and `prompt` are the values that its functions gave."""
    return Waits(work.signal, work.seconds, until, prompt, work.payload, work.early)


# -- parking the run -------------------------------------------------------------------------------------


def park(run: Run, waits: tuple[OpenWait, ...]) -> Routine[bool]:
    """Release the run until one of its waits can end. Return False, and release nothing, if one can end already.

    A signal for a wait that is not among `waits` does not count: no code would take it, and the run would never be released.
    """
    row: RunRow = yield from ask(run.store, "get_run", run.run_id)
    answered = yield from _matched(run)
    if any(opened.wait.wait_id in answered for opened in waits):
        return False
    ordered = sorted(waits, key=lambda wait: wait.sequence)
    ends = [wait.wait.wake_at.timestamp() for wait in ordered if wait.wait.wake_at is not None]
    if ends and min(ends) <= now_of(run):
        return False
    refused = [opened.wait.refused.text for opened in ordered if opened.wait.refused is not None]
    release = run.journal.make_release(
        "waiting",
        refused[-1] if refused else "",
        min(ends, default=None),
        tuple(wait.wait for wait in ordered),
        signals=row.signals,
    )
    if run.unsaved:
        yield from run.record((), is_fatal=True)
    if not (yield from run.journal.park(release)):
        return False
    run.status = "waiting"
    run.progress.open_waits = {wait.wait.wait_id: wait for wait in ordered}
    if run.is_listening:
        from milepost.model.lifecycle import RunWaiting

        for wait, *_ in ordered:
            yield Emit(
                RunWaiting(
                    run_id=run.run_id,
                    timestamp=run.options.clock.time(),
                    node_id=wait.wait_id.rpartition("#")[0],
                    wait=wait,
                    reason="" if wait.refused is None else wait.refused.text,
                )
            )
    return True


def suspended(run: Run) -> RunSuspended:
    """Make the error for a run that was parked."""
    waits = tuple(opened.wait for opened in run.progress.open_waits.values())
    ends = [wait.wake_at for wait in waits if wait.wake_at is not None]
    ids = ", ".join(wait.wait_id for wait in waits)
    return RunSuspended(
        f"run {run.run_id!r} waits for {ids}: send the signal, or resume when its time has come; a worker does that by itself",
        run_id=run.run_id,
        waiting_for=waits,
        wake_at=min(ends, default=None),
    )
