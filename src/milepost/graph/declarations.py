"""Checks of the arguments of a builder's calls: node ids, functions, the targets of a router.

A wrong argument raises `GraphError` at that call, so that the traceback ends at the line to change. What is read here
once need not be read again by a run.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, get_origin

from milepost.errors import GraphError, GraphProblem, InvalidIDError, OptionError, SerializeStateError, shown
from milepost.executor.flow import END, START, Function
from milepost.model.durations import as_seconds
from milepost.model.retry import Retry
from milepost.store import check_id, flaw_of_prompt

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # Annotations are evaluated on access; a name that only type checkers know must not fail here.
    _signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _signature = inspect.signature

_RESERVED = frozenset({"end", END, START})


def refuse(code: str, where: str, text: str) -> NoReturn:
    """Raise a `GraphError` with one problem."""
    raise GraphError([GraphProblem(code, where, text)])


def exact_id(value: Any) -> str:
    """Return an id as a plain str, also for a member of a StrEnum. Raises `GraphError` unless it is a str."""
    if not isinstance(value, str):
        refuse("bad_id", "", f"{shown(value)} is no node id: give a str")
    return str.__str__(value)


def new_node_id(value: Any) -> str:
    """Return the id of a new node as a plain str. Raises `GraphError` for an id that no node can have."""
    node_id = exact_id(value)
    if node_id.lower() in _RESERVED:
        refuse("reserved_id", node_id, f"the node id {node_id!r} is reserved: choose another id")
    try:
        check_id(node_id)
    except InvalidIDError as exc:
        raise GraphError([GraphProblem("bad_id", node_id, str(exc))]) from exc
    if "/" in node_id or any(map(str.isspace, node_id)):
        refuse("bad_id", node_id, f"the node id {node_id!r} has whitespace or a '/': choose another id")
    return node_id


def read_prompt(node_id: str, prompt: Any) -> Any:
    """Return a prompt that is no function. Raises `GraphError` if it can't be recorded."""
    from milepost.executor.waits import MessageCodec  # few graphs wait

    try:
        flaw = flaw_of_prompt(MessageCodec.encode(prompt, root="prompt"))
    except SerializeStateError as exc:
        flaw = f"cannot be recorded: {exc}"
    if flaw is not None:
        refuse("bad_prompt", node_id, f"the prompt of wait {node_id!r} {flaw}")
    return prompt


def read_targets(source: str, targets: Any) -> Mapping[Any, str] | None:
    """Return the answers that a router may give, each with the id that it means; None if none are declared.

    Raises `GraphError` unless `targets` is None, a mapping of answers to ids, or a collection of ids, and not empty.
    """
    if targets is None:
        return None
    if isinstance(targets, (str, bytes)) or not isinstance(targets, Collection):
        text = (
            f"targets of {source!r} is {shown(targets)}: give a collection of node ids, or a mapping of answers to them"
        )
        refuse("bad_targets", source, text)
    if not targets:
        refuse("bad_targets", source, f"targets of {source!r} is empty: leave it out, or say where the router may go")
    if isinstance(targets, Mapping):
        return {answer: exact_id(target) for answer, target in targets.items()}
    return {target: target for target in map(exact_id, targets)}


class Signature(NamedTuple):
    """The way to call a node or router: with or without the context, awaited or not."""

    takes_context: bool
    is_async: bool


def read_function(fn: Callable[..., Any], what: str, where: str, state_type: Any) -> Signature:
    """Return how to call `fn`: with context and state or with the state alone, awaited or not.

    `what` names it in messages, as in `node 'a'`. Raises `GraphError` at `where` if it cannot be called, is a generator
    function, requires another number of positional arguments than one or two, or requires keyword arguments.
    """
    if not callable(fn):
        refuse("not_callable", where, f"{what} is {shown(fn)}, which cannot be called: give a function")
    body = body_of(fn)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        refuse("generator_function", where, f"{what} is a generator function: use return, not yield")
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(body)
    return Signature(_takes_context(fn, what, where, state_type), is_async)


def read_callable(fn: Any, what: str, where: str, count: int) -> bool:
    """Return whether to await `fn`. Raises `GraphError` if it cannot be called with `count` arguments."""
    if not callable(fn):
        refuse("not_callable", where, f"{what} is {shown(fn)}, which cannot be called: give a function")
    body = body_of(fn)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        refuse("generator_function", where, f"{what} is a generator function: use return, not yield")
    try:
        _signature(fn).bind(*range(count))
    except TypeError:
        refuse("wrong_signature", where, f"{what} cannot be called with {count} argument{'s' if count > 1 else ''}")
    except ValueError:
        return False  # some functions written in C have no readable signature
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(body)


def read_merge(merge: Any, what: str, node_id: str) -> Function | Mapping[str, Any]:
    """Return the checked `merge` for the states of branches: a function, or a mapping of fields to reducers."""
    if not isinstance(merge, Mapping):
        return Function(merge, read_callable(merge, what, node_id, 2))
    for name, reducer in merge.items():
        if not callable(reducer):
            text = f"the reducer of field {shown(name)} at {node_id!r} is {shown(reducer)}: give a function of two arguments"
            refuse("bad_reducer", node_id, text)
    return dict(merge)


def read_tries(retry: Any, timeout: float | timedelta | None, what: str) -> tuple[Retry | None, float | None]:
    """Return the retry policy, and the timeout of an attempt in seconds. Raises `OptionError` for wrong values."""
    if retry is not None and not isinstance(retry, Retry):
        raise OptionError(f"retry of {what} must be a Retry or None, not {shown(retry)}", option="retry")
    seconds = None if timeout is None else as_seconds(timeout, "timeout")
    if seconds == 0:
        text = f"timeout of {what} must be more than 0 seconds: leave it out for no limit"
        raise OptionError(text, option="timeout")
    return retry, seconds


def positive(value: Any, name: str) -> int | None:
    """Return a limit: None, or a whole number of 1 or more. Raises `OptionError` for anything else."""
    if value is not None and (type(value) is not int or value < 1):
        raise OptionError(f"{name} must be a whole number, 1 or more, or None, not {shown(value)}", option=name)
    return value


def body_of(fn: Any) -> Any:
    """Return the function that runs when `fn` is called, inside partials and callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    call = type(fn).__call__
    # A __call__ may be a partial or a callable object itself.
    return call if inspect.isroutine(call) else body_of(call)


def _takes_context(fn: Callable[..., Any], what: str, where: str, state_type: Any) -> bool:
    try:
        parameters = _signature(fn).parameters.values()
    except (TypeError, ValueError):
        # Some functions written in C have no readable signature; they know nothing of contexts.
        return False
    missing = [p for p in parameters if p.default is p.empty]
    required = [p for p in missing if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    named = [p.name for p in missing if p.kind is p.KEYWORD_ONLY]
    if named:
        text = (
            f"{what} requires the keyword argument {named[0]!r}, which nothing gives it: bind it with functools.partial"
        )
    elif len(required) not in {1, 2}:
        text = f"{what} requires {len(required)} positional arguments: it must take (ctx, state) or (state)"
        if any(p.kind is p.VAR_POSITIONAL for p in missing):
            text += "; a decorator keeps the signature of what it wraps with functools.wraps"
    elif len(required) == 2 and (required[0].name == "state" or _is_annotated(required[0], state_type)):
        text = f"{what} takes the state as the first of two arguments: the context comes first, as in (ctx, state)"
    else:
        return len(required) == 2
    refuse("wrong_signature", where, text)


def _is_annotated(parameter: inspect.Parameter, state_type: Any) -> bool:
    found = parameter.annotation
    if isinstance(found, str):
        # The text is not evaluated: the last name of the annotation is enough to recognise the state's class.
        return found.strip("\"'").rpartition(".")[2] == getattr(state_type, "__name__", None)
    return found is not parameter.empty and (found == state_type or get_origin(found) == state_type)
