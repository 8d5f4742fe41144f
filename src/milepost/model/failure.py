"""Errors of user code: which of them end a run, and their text for records and messages.

An exception may have a `__str__` that raises, hold a lock, or need arguments to be made again. Therefore a record has
only what any reader can show: the type's name, the message, the traceback.
"""

from __future__ import annotations

import os.path
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.errors import (
    AttemptTimedOut,
    BranchError,
    DuplicateStepNameError,
    MilepostError,
    NoBranchMatchedError,
    NodeError,
    NodeTimeoutError,
    PredicateTypeError,
    SerializeStateError,
    StateTooLargeError,
    StepError,
    WorkflowError,
    class_name,
    cut,
    printable,
)
from milepost.model.record import Segment, segments_of

if TYPE_CHECKING:
    from milepost.model.record import Record

# Exceptions of user code with a meaning for Python, and the rule which of them are errors of that code.
#
# A `CancelledError` is an error like any other if nobody cancels the task, and so are a `GeneratorExit` where no
# generator is closed and a `StopIteration`: retries, handlers and logs see a `RuntimeError`. Ctrl-C, `SystemExit` and all
# else that is no `Exception` keep their meaning.


T = TypeVar("T")


def is_cancellation(end: BaseException) -> bool:
    """Return whether `end` is the `CancelledError` of asyncio, without importing asyncio."""
    asyncio = sys.modules.get("asyncio.exceptions")
    return asyncio is not None and isinstance(end, asyncio.CancelledError)


def cancels_of_task() -> int:
    """Return how many cancels of the asyncio task around the caller stand; 0 outside a task. It imports no asyncio."""
    tasks = sys.modules.get("asyncio.tasks")
    try:
        task = None if tasks is None else tasks.current_task()
    except RuntimeError:  # no loop runs here
        return 0
    return 0 if task is None else task.cancelling()


def error_of(end: BaseException) -> RuntimeError | None:
    """Make the error that stands for an `end` that user code raised by itself; None if `end` keeps its own meaning."""
    if isinstance(end, GeneratorExit):
        error = RuntimeError("user code raised GeneratorExit outside a generator")
    elif isinstance(end, StopIteration):
        # Python itself turns one that leaves a coroutine or a generator into a RuntimeError, so every driver does.
        error = RuntimeError("user code raised StopIteration outside an iterator")
    elif is_cancellation(end):
        ending = f": {end}" if str(end) else ""
        error = RuntimeError(f"user code raised CancelledError, and nobody has cancelled its run{ending}")
    else:
        return None
    error.__cause__ = end
    return error


def contained(fn: Callable[..., T], *args: Any) -> T:
    """Call a plain function of a user. Where `error_of` makes an error of what it raises, raise that error instead."""
    try:
        return fn(*args)
    except BaseException as end:
        error = error_of(end)
        if error is None:
            raise
        raise error from end


# Errors as text, for records and messages. Every error of user code has a text, and no method of it is trusted.


MAX_TEXT = 20_000
MAX_LINE = 500
_HOW_TO_CATCH = "; to go on in the workflow's code instead, catch it there: except StepError"
_MAX_PART = 2_000
"""Largest length in characters of a frame or a message in a traceback."""
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def type_name(error: BaseException) -> str:
    """Return the qualified name of an error's type; built-in types come without their module."""
    if isinstance(error, AttemptTimedOut):
        return "TimeoutError"
    kind: type[BaseException] = type(error)
    return printable(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")


def message_of(error: BaseException) -> str:
    """Return the error's message, or a text that says that asking for it failed."""
    try:
        return printable(str(error)[:MAX_TEXT])[:MAX_TEXT]
    except Exception as exc:
        return f"<its message cannot be shown: {type(exc).__qualname__}>"


def place(error: MilepostError, where: str, act: str) -> None:
    """Put the place `where` before the message of `error` and the advice `act` after it; its attributes stay."""
    error.args = (f"{where}: {error.args[0] if error.args else ''}; {act}", *error.args[1:])


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut at a length that a table can show."""
    return cut(message_of(error).partition("\n")[0], MAX_LINE)


def describe(error: BaseException) -> str:
    """Return type and message of an error in one line."""
    message = first_line(error)
    return f"{type_name(error)}: {message}" if message else type_name(error)


def failure_fields(error: BaseException) -> dict[str, Any]:
    """Return the fields that a record has for an error: its type, message and traceback."""
    return {"error_type": type_name(error), "message": message_of(error), "traceback": _traceback_of(error)}


def causes_of(error: BaseException, *, with_contexts: bool = False) -> Iterator[BaseException]:
    """Yield an error and its causes, each once, even where they are the causes of each other.

    `with_contexts`: for an error without a cause, go on with the one that was handled when it was raised.
    """
    seen: set[int] = set()
    part: BaseException | None = error
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        yield part
        part = part.__cause__ or (part.__context__ if with_contexts else None)


def raised_here(error: BaseException) -> bool:
    """Return whether this library itself raised an error to the code of a user that called it."""
    frames, is_ours, has_caller = error.__traceback__, True, False
    while frames is not None:
        is_ours = frames.tb_frame.f_code.co_filename.startswith(_PACKAGE)
        has_caller = has_caller or not is_ours
        frames = frames.tb_next
    return is_ours and has_caller


def bases_of(error: BaseException) -> tuple[str, ...]:
    """Return the names of an error's class and of its bases, at most 32.

    Those of the part that failed follow where the error is that of a step made of others.
    """
    names: dict[str, None] = {}
    for part in causes_of(error):
        kinds = (kind for kind in type(part).__mro__ if kind not in (object, BaseException))
        names.update(dict.fromkeys(printable(class_name(kind)) for kind in kinds))
        known = part.error_bases if isinstance(part, StepError) else ()
        names.update(dict.fromkeys(known))
        if known or not isinstance(part, MilepostError):
            break
    return tuple(names)[:32]


def recorded_error(run_id: str, fields: Mapping[str, Any], node_id: str) -> MilepostError:
    """Make the error of a run that another process ran, from its failure or finish record.

    The error has no `__cause__`; its text has type, message and traceback of the original.
    """
    where = f" at node {node_id!r}" if node_id else ""
    text = f"run {run_id!r} failed{where}: {_ending_text(fields)}, then resume or retry it{_traced(fields)}"
    kind = NodeTimeoutError if fields.get("op") == "timeout" else NodeError
    return kind(
        text,
        run_id=run_id,
        node_id=node_id or None,
        op=fields.get("op", "execute"),
        attempt=fields.get("attempt", 1),
    )


def is_branch_error(fields: Mapping[str, Any]) -> bool:
    """Return whether a finish record is that of a graph whose branches or items failed."""
    return fields.get("error_type") == type_name(BranchError())


def recorded_branch_error(run_id: str, fields: Mapping[str, Any], failures: Sequence[Record]) -> BranchError:
    """Make the error of a graph whose branches or items failed, from its finish record and the run's failure records.

    Failures of several branches may be recorded one after another. Those of an earlier owner do not count.
    """
    text = f"run {run_id!r} failed: {_ending_text(fields)}, then resume or retry it{_traced(fields)}"
    found = []
    for record in failures:
        failed = record.fields()
        if failed.get("given_up") and failed.get("epoch") == fields.get("epoch"):
            found.append((segments_of(failed.get("branch") or ""), record))
    return _branch_error(run_id, text, [(way, record) for way, record in found if way], 0)


def _branch_error(
    run_id: str, text: str, failures: Sequence[tuple[Sequence[Segment], Record]], depth: int
) -> BranchError:
    branches: dict[str, list[tuple[Sequence[Segment], Record]]] = {}
    for way, record in failures:
        segment = way[depth]
        item = f"{segment.fork}/{segment.branch}"
        is_item = f"{record.node_id}/".startswith(f"{item}/")
        branches.setdefault(item if is_item else segment.branch, []).append((way, record))
    errors: dict[str, BaseException] = {}
    for name, inside in branches.items():
        ends = [record for way, record in inside if len(way) == depth + 1]
        if ends:
            errors[name] = recorded_error(run_id, ends[-1].fields(), ends[-1].node_id)
            errors[name].visit = ends[-1].visit  # type: ignore[attr-defined]
        else:
            errors[name] = _branch_error(run_id, f"branch {name!r} of run {run_id!r} failed", inside, depth + 1)
    fork, visit = (failures[0][0][depth].fork, failures[0][0][depth].visit) if failures else ("", 1)
    return BranchError(text, run_id=run_id, node_id=fork or None, visit=visit, fork=fork, errors=errors)


def recorded_step_error(run_id: str, fields: Mapping[str, Any], step_id: str, step_type: str = "") -> MilepostError:
    """Make the error of a workflow from a failure record of one of its steps; with `step_id` "", of its own code."""
    if fields.get("of") and fields.get("op") == "execute":
        step_id = str(fields["of"])  # the error of a step left the code later
    what = f"step {step_id!r} of run {run_id!r}" if step_id else f"the workflow of run {run_id!r}"
    text = f"{what} failed: {_ending_text(fields)}, then resume or retry{_traced(fields)}"
    usual: type[MilepostError] = StepError if step_id else WorkflowError
    kind = _OURS.get(str(fields.get("error_type")), usual)
    if step_id and fields.get("op") != "save" and not issubclass(kind, StepError):
        kind = usual  # a step's own function raised it
    error = kind(text, run_id=run_id, node_id=step_id or None)
    if isinstance(error, WorkflowError):
        error.reason = str(fields.get("message") or "")
    if isinstance(error, StepError):
        error.step_name, error.step_type = step_id, step_type
        error.attempt = int(fields.get("attempt") or 1)
        error.error_type, error.message = str(fields.get("error_type")), str(fields.get("message") or "")[:MAX_LINE]
        error.error_bases = tuple(fields.get("error_bases") or (error.error_type,))
    return error


def with_way_to_catch(error: BaseException) -> None:
    """Add to the text of a step's error that has ended a run how the workflow's code can go on instead."""
    if isinstance(error, StepError) and _HOW_TO_CATCH not in str(error):
        line, newline, rest = str(error).partition("\n")
        error.args = (f"{line}{_HOW_TO_CATCH}{newline}{rest}",)


def thrown_again(run_id: str, fields: Mapping[str, Any], step_id: str) -> MilepostError:
    """Make the error of a step that its workflow was given, as it was given: the same class, text and attributes."""
    error = recorded_step_error(run_id, fields, step_id, str(fields.get("step_type") or ""))
    kind = _OURS.get(f"milepost.errors.{fields.get('class')}", StepError)
    if type(error) is not kind:
        made = kind()
        vars(made).update(vars(error))
        error = made
    if "text" in fields:
        error.args = (str(fields["text"]),)
    return error


_OURS = {
    f"milepost.errors.{kind.__name__}": kind
    for kind in (
        DuplicateStepNameError, NoBranchMatchedError, PredicateTypeError, SerializeStateError, StateTooLargeError,
    )
}  # fmt: skip


def _ending_text(fields: Mapping[str, Any]) -> str:
    return f"{fields.get('error_type', 'error')}: {fields.get('message') or ''}; mend the cause"


def _traced(fields: Mapping[str, Any]) -> str:
    return f"\nas recorded where it ran:\n{fields['traceback']}" if fields.get("traceback") else ""


def _traceback_of(error: BaseException) -> str:
    try:
        # Each part is cut on its own, so that a long message leaves room for the frames. If all parts together are too
        # long, the end stays, because it has the innermost call and the message.
        parts = traceback.format_exception(type(error), error, _users_part(error.__traceback__))
        return printable("".join(map(_cut, parts))[-MAX_TEXT:])[-MAX_TEXT:]
    except Exception as exc:
        return f"<its traceback cannot be shown: {type(exc).__qualname__}>"


def _users_part(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame outside this library on, so that people see their own code first."""
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        first = first.tb_next
    return first or frames


def _cut(part: str) -> str:
    if len(part) <= _MAX_PART:
        return part
    return f"{part[: _MAX_PART // 2]}… ({len(part) - _MAX_PART} characters are left out) …{part[-_MAX_PART // 2 :]}"
