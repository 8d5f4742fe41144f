"""What a replay compares: the step that the code asks for now, with the one that it asked for when it was recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from typing import Any

import msgspec

from milepost.codec import canonical
from milepost.codec.families import family_of
from milepost.errors import NonDeterminismError, SerializeStateError, StateTypeError
from milepost.model.failure import shown

__all__ = ["Arguments", "arguments_of", "described", "differs", "hash_of", "non_determinism", "plain_arguments"]

Arguments = dict[str, str]
"""A digest and a text of at most 200 characters, as records keep them; {} for what is not compared."""

LONGEST = 200
FEW = 100
"""Of so many elements it is told which of them cannot be carried,"""
DEEP = 8
"""and within so many containers."""
_PLAIN = frozenset({str, int, bool, type(None)})
_encode = msgspec.json.Encoder().encode
_NOT_CARRIED = (SerializeStateError, StateTypeError, UnicodeEncodeError, msgspec.MsgspecError, OverflowError)


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], types: Iterable[type] = ()) -> Arguments:
    """What a step is called with, to be compared: equal for equal values of equal types, in every process.

    What the codec cannot carry, a client say, is left out of it, and what stands beside that is not.
    """
    plain = None if kwargs else plain_arguments(args)
    if plain is not None:
        return plain
    known: tuple[Any, ...] = tuple(types)
    try:
        return _told(_together(canonical, args, kwargs, known))
    except _NOT_CARRIED:
        known = (*known, *dict.fromkeys(_classes([*args, *kwargs.values()], DEEP)))
        return _told(_together(_as_far_as_carried, args, kwargs, known))


def plain_arguments(args: tuple[Any, ...]) -> Arguments | None:
    """`arguments_of` of texts and whole numbers, which most are and which need no types; None for anything else."""
    if not _PLAIN.issuperset(map(type, args)):
        return None
    try:
        return _told(_encode(args))  # these can't be mistaken for each other
    except _NOT_CARRIED:
        return None


def _told(data: bytes) -> Arguments:
    text = data.decode()
    if len(text) <= LONGEST:
        return {"text": text}
    return {"text": text[:LONGEST], "digest": hashlib.sha256(data).hexdigest()}


def _together(
    write: Callable[[Any, tuple[Any, ...]], bytes],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    known: tuple[Any, ...],
) -> bytes:
    """A list, then an object where there are keywords: no mapping as the last argument looks like that."""
    data = write([*args], known) if args or not kwargs else b""
    return data + write(dict(kwargs), known) if kwargs else data


def _as_far_as_carried(value: Any, known: tuple[Any, ...], depth: int = DEEP) -> bytes:
    """A value as `canonical` writes it, with a mark, which no JSON has, for whatever in it the codec cannot carry."""
    try:
        return canonical(value, known)
    except Exception:  # objects of users may raise anything where they are read
        if depth and type(value) is list and len(value) <= FEW:
            return b"[" + b",".join(_as_far_as_carried(item, known, depth - 1) for item in value) + b"]"
        if (
            depth
            and type(value) is dict
            and len(value) <= FEW
            and all(type(key) is str and key.isprintable() for key in value)
        ):
            items = (canonical(key) + b":" + _as_far_as_carried(value[key], known, depth - 1) for key in sorted(value))
            return b"{" + b",".join(items) + b"}"
        return "…".encode()


def _classes(value: Any, depth: int) -> Iterator[type]:
    """The classes of the records and enums in a value: what is only compared has no need to be read again by a name."""
    cls = type(value)
    if issubclass(cls, dict):
        value = [*value.keys(), *value.values()]
    if depth and issubclass(cls, (dict, list, tuple, set, frozenset)):
        for item in islice(value, FEW):
            yield from _classes(item, depth - 1)
    if issubclass(cls, Enum) or family_of(cls) is not None:
        yield cls


def differs(recorded: Mapping[str, Any] | None, now: Arguments) -> bool:
    """Whether a step is called with something else than recorded; what was not recorded does not differ."""
    return bool(recorded) and recorded != now


def hash_of(values: Mapping[str, Any], types: Iterable[type] = ()) -> tuple[str, dict[str, str]]:
    """The digest of inputs, 64 hex digits, and one for each. Raises what the codec raises for what it cannot carry."""
    known = tuple(types)
    digests = {name: hashlib.sha256(canonical(values[name], known)).hexdigest() for name in sorted(values)}
    return hashlib.sha256(_encode(digests)).hexdigest(), digests


def non_determinism(run_id: str, index: int, recorded: str, found: str, hint: str = "") -> NonDeterminismError:
    """The error of code that asks for another step than recorded, both sides named."""
    act = hint or (
        "bring the code back that the run began with, branch on ctx.version, or map a renamed step with rename="
    )
    text = f"step {index + 1} of run {run_id!r} was recorded as {recorded}, and the code now asks for {found}: {act}"
    return NonDeterminismError(
        text,
        run_id=run_id,
        index=index,
        recorded=recorded,
        found=found,
        differences=(f"step {index + 1} is {found} instead of {recorded}",),
    )


def described(step_id: str, kind: str, arguments: Mapping[str, Any] | None = None) -> str:
    """A step in words: id, kind and, where they are known, its arguments."""
    text = (arguments or {}).get("text")
    return f"{kind} step {step_id!r}" + (f" with {shown(text)[1:-1]}" if text is not None else "")
