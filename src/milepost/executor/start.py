"""The begin of a run: the routine behind the verb run, and the handling of a run that exists already.

The start record is written before anything runs; only a failure to write this record is always fatal. If the run
exists, `if_exists` says whether to refuse it, to go on with it, or to wait for it. Only going on with it changes
anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from milepost.codec.plain import JsonCodec
from milepost.codec.plan import encode_sorted
from milepost.errors import (
    CheckpointWriteError,
    DeserializeStateError,
    InputMismatchError,
    MilepostError,
    RunExistsError,
    RunNotResumableError,
    SerializeStateError,
    StateTypeError,
    StoreError,
)
from milepost.executor.beginning import facts_of, read_input
from milepost.executor.checks import (
    CHOOSE_ANOTHER,
    ResumeRequest,
    both_inputs,
    check_flow,
    check_name,
    input_mismatch,
    not_resumable,
)
from milepost.executor.continuation import is_known
from milepost.executor.effects import Routine, ask
from milepost.executor.journal import Journal, read_start, take
from milepost.executor.resume import await_change, make_ready, resume
from milepost.executor.run import Run
from milepost.model.beginning import completed, is_incomplete
from milepost.model.failure import (
    describe,
    place,
)
from milepost.model.record import CONTINUE, FAILURE, FINISH, START, Record, format_time, make_record
from milepost.options import Options, without_amendments
from milepost.store import ENDED, GOES_ON, NewRun, Release, RunRow, RunSnapshot, Store, Token

logger = logging.getLogger("milepost")


def start(run: Run, state: Any, nonces: Callable[[], str]) -> Routine[Any]:
    """Begin a run; `if_exists` says what to do with a run that exists."""
    if not run.is_recorded:
        _check_input(run, state)
        run.scope.entropy = nonces()
        return (yield from run.hold(run.begin(state, None), state))
    if run.options.if_exists == CONTINUE and (yield from is_known(run)):
        return (yield from resume(run, ResumeRequest(CONTINUE, state=state), nonces))
    data, inputs_hash = _input(run, state)
    try:
        run.journal.token = yield from _create(run, data, inputs_hash, nonces, state)
    except RunExistsError as exists:
        return (yield from _existing(run, exists, state, nonces))
    run.journal.sequence, run.journal.epoch = 0, 1
    run.scope.tag_names |= (run.options.tags or {}).keys()
    return (yield from run.hold(_begin(run, data), state))


def _begin(run: Run, data: bytes) -> Routine[Any]:
    """Begin with a copy of the input, decoded from its record, so that no node or step changes the caller's object."""
    return (yield from run.begin(run.flow.codec.decode(data, root="input"), data))


def enqueue(run: Run, state: Any, nonces: Callable[[], str], at: float = 0.0) -> Routine[None]:
    """Record a run for a worker to take up from `at` (POSIX seconds, 0: at once) on. Nothing of it runs here.

    `if_exists` says what to do with a run that exists, as for `start`; instead of going on with the run it is made
    ready.
    """
    if run.options.if_exists == CONTINUE and (yield from is_known(run)):
        yield from make_ready(run, ResumeRequest(CONTINUE, state=state), nonces, at)
        return
    data, inputs_hash = _input(run, state)
    try:
        yield from _create(run, data, inputs_hash, nonces, state, at)
    except RunExistsError as exists:
        request = yield from _request_for(run, exists, state)
        if request is not None:
            yield from make_ready(run, request, nonces, at)


def _check_input(run: Run, state: Any) -> None:
    """Raise `StateTypeError` if the input of a run that is not recorded is of another type than the declared one."""
    with _naming_input(run, state, "is of another type"):
        run.flow.codec.check(state)


def _input(run: Run, state: Any) -> tuple[bytes, str]:
    """Encode the input, and return it with its hash. Raises `SerializeStateError` or `StateTypeError`."""
    with _naming_input(run, state, "cannot be recorded"):
        data = run.journal.encode(state, run.flow.codec)
        if isinstance(data, SerializeStateError):
            raise data
    return data, run.flow.inputs_hash(state)


@contextlib.contextmanager
def _naming_input(run: Run, state: Any, problem: str) -> Iterator[None]:
    """Say of the errors of the codec that they are about the input of the run."""
    try:
        yield
    except (SerializeStateError, StateTypeError) as exc:
        exc.run_id, exc.state = run.run_id, state
        act = f"begin with {run.input_example} of the declared type"
        place(exc, f"the input of run {run.run_id!r} {problem}", act)
        raise


def _create(
    run: Run, data: bytes, inputs_hash: str, nonces: Callable[[], str], state: Any, at: float | None = None
) -> Routine[Token]:
    """Write the run's row and its start record. This call owns the run, or with `at` (0: at once) nobody does yet."""
    flow, options, store = run.flow, run.options, run.store
    entropy = store.draw_entropy()
    record = make_record(
        run.run_id,
        0,
        run.followed_at,
        START,
        state=data,
        fields={
            "flow": flow.name,
            **facts_of(flow, state, inputs_hash),
            "turn": options.turn_id,
            "epoch": 1,
            "entropy": entropy,
        },
        compressing=bool(options.compress),
    )
    new = NewRun(run.run_id, flow.name, nonces(), record, options.lease, options.tags or {})
    if at is not None:
        new = new._replace(status="ready", wake_at=at or None)
    token = yield from _written(store, new, state)
    run.scope.entropy = entropy
    return token


def _written(store: Store, new: NewRun, state: Any) -> Routine[Token]:
    """Have the store make the run. Raises `CheckpointWriteError`, with the `state` that the run begins with."""
    try:
        token: Token = yield from take(store, "create", new, 1, Release("interrupted"))
    except StoreError as exc:
        raise CheckpointWriteError(
            f"the start of run {new.run_id!r} could not be written to {store.place}: {describe(exc)}; nothing has run: "
            f"mend the store, then run again",
            run_id=new.run_id,
            store=store.place,
            op="create",
            is_of_one_run=exc.is_of_one_run,
            state=state,
        ) from exc
    return token


def enqueue_by_name(
    store: Store, run_id: str, flow: str, given: Any, options: Options, nonces: Callable[[], str], at: float = 0.0
) -> Routine[None]:
    """Record a run of a flow whose code is not at hand, for a worker to take up from `at` (POSIX seconds) on.

    `given` is its input as plain JSON. If the run exists, `if_exists` refuses it ("error") or leaves it as it is
    ("return"): then flow and input must be the same. Raises `SerializeStateError` for an input that is no plain JSON.
    """
    data = Journal(store, run_id, options).encode(given, JsonCodec(), "input")
    if isinstance(data, SerializeStateError):
        data.run_id = run_id
        raise data
    now = format_time(options.clock.time())
    fields = {"flow": flow, "epoch": 1, "entropy": store.draw_entropy()}
    record = make_record(run_id, 0, now, START, state=data, fields=fields, compressing=bool(options.compress))
    tags = options.tags or {}
    new = NewRun(run_id, flow, nonces(), record, options.lease, tags, status="ready", wake_at=at or None)
    try:
        yield from _written(store, new, given)
    except RunExistsError:
        if options.if_exists == "error":
            raise
        yield from _check_same(store, run_id, flow, data, options)


def _check_same(store: Store, run_id: str, flow: str, given: bytes, options: Options) -> Routine[None]:
    """Raise an error unless a run that exists is one of `flow`, with an input that is `given`, compared as JSON."""
    row: RunRow = yield from ask(store, "get_run", run_id)
    check_name(run_id, row, flow)
    begun: list[Record] = yield from ask(store, "read", run_id, limit=1, kinds=(START,))
    recorded = begun[0].state() or b"null" if begun else given
    before, now = (hashlib.sha256(encode_sorted(msgspec.json.decode(text))).hexdigest() for text in (recorded, given))
    if options.compare_inputs and before != now:
        shown = both_inputs(recorded, given) or "the inputs are too long to show"
        raise InputMismatchError(before, now, f"{shown}: {CHOOSE_ANOTHER}", run_id=run_id)


def _existing(run: Run, exists: RunExistsError, state: Any, nonces: Callable[[], str]) -> Routine[Any]:
    """Handle a run that exists as `if_exists` says."""
    request = yield from _request_for(run, exists, state)
    if request is None:
        return (yield from attach(run))
    return (yield from resume(run, request, nonces))


def _request_for(run: Run, exists: RunExistsError, state: Any) -> Routine[ResumeRequest | None]:
    """Return the request with which `if_exists` goes on with an existing run; None: wait for its end.

    Raises an error if `if_exists` refuses the run.
    """
    mode = run.options.if_exists
    if mode == CONTINUE:
        return ResumeRequest(CONTINUE, state=state)
    row: RunRow = yield from ask(run.store, "get_run", run.run_id)
    begun = yield from read_start(run.store, run.run_id)
    mismatch = None if begun is None else _mismatch(run, begun, state)
    if mode == "error":
        raise RunExistsError(
            str(exists) + (f"; {mismatch.args[0]}" if mismatch is not None else ""),
            run_id=run.run_id,
            status=exists.status,
        ) from None
    check_flow(run, row)
    if mismatch is not None and run.options.compare_inputs:
        raise mismatch from None
    if mode == "return":
        return None
    return ResumeRequest("retry") if mode == "retry" and row.status == "failed" else ResumeRequest()


def _mismatch(run: Run, begun: Record, state: Any) -> InputMismatchError | None:
    """Return the error if the run began with another input; also if its input was never read and does not fit the flow."""
    data = begun.state() or b""
    if is_incomplete(begun.fields()):
        try:
            begun = completed(begun, read_input(run, begun).fields, None)
        except DeserializeStateError as exc:
            return InputMismatchError(
                hashlib.sha256(data).hexdigest(), run.flow.inputs_hash(state), str(exc), run_id=run.run_id
            )
    return input_mismatch(run, begun.fields(), data, state)


def attach(run: Run) -> Routine[Any]:
    """Wait for the end of a run that somebody executes. Nothing is changed."""
    run.options = without_amendments(run.options)
    is_told = False
    while True:
        latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
        row = latest.row
        if row.lease != "live" and row.lease != "ours" and row.status not in ENDED and not is_told:
            is_told = True
            logger.warning(
                "run %r is %s and nobody executes it: this call waits until somebody resumes it, or its run_timeout",
                run.run_id,
                row.status,
                extra={"run_id": run.run_id},
            )
        if row.status == "finished":
            return (yield from run.stored((yield from run.find(ResumeRequest(), latest))))
        if row.status == "failed":
            error = yield from _recorded_end(run, latest)
            with contextlib.suppress(MilepostError):
                # If the last good state cannot be read, the error must still say why the run failed.
                error.state = (yield from run.find(ResumeRequest(), latest)).state
            raise error
        if row.status == "cancelled":
            raise run.journal.cancelled("" if row.reason == "cancelled" else row.reason)
        if row.status == "blocked":
            how = "mend the cause, then resume" if row.blocked_by in GOES_ON else "pass reopen=True to resume()"
            raise not_resumable(run, row.status, row.reason, how)
        yield from await_change(run)


def _recorded_end(run: Run, latest: RunSnapshot) -> Routine[MilepostError]:
    records = [record for record in latest.tail if record.kind in {FAILURE, FINISH}]
    failure = next((record for record in reversed(records) if record.kind == FAILURE), records[-1] if records else None)
    if failure is None:
        return RunNotResumableError(
            f"run {run.run_id!r} failed: {latest.row.reason}",
            run_id=run.run_id,
            status="failed",
            reason=latest.row.reason,
        )
    return (yield from run.recorded_end(failure, records[-1]))
