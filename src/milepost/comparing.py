"""What a replay compares: the step that the code asks for now, with the one that it asked for when it was recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from milepost.codec import canonical
from milepost.errors import NonDeterminismError, SerializeStateError, StateTypeError
from milepost.failures import shown

__all__ = ["Arguments", "arguments_of", "described", "differs", "hash_of", "non_determinism", "plain_arguments"]

Arguments = dict[str, str]
"""A digest and a text of at most 200 characters, as records keep them; {} for what the codec cannot carry."""

LONGEST = 200
_PLAIN = frozenset({str, int, bool, type(None)})
_UNCARRIED = (SerializeStateError, StateTypeError, UnicodeEncodeError, msgspec.MsgspecError, OverflowError)
_encode = msgspec.json.Encoder().encode


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], types: Iterable[type] = ()) -> Arguments:
    """What a step is called with, to be compared: equal for equal values of equal types, in every process."""
    plain = None if kwargs else plain_arguments(args)
    if plain is not None:
        return plain
    known = tuple(types)
    try:
        # A list, then an object where there are keywords: no mapping as the last argument looks like that.
        data = canonical([*args], known) if args or not kwargs else b""
        if kwargs:
            data += canonical(dict(kwargs), known)
    except _UNCARRIED:
        return {}
    return _told(data)


def plain_arguments(args: tuple[Any, ...]) -> Arguments | None:
    """`arguments_of` of texts and whole numbers, which most are and which need no types; None for anything else."""
    if not _PLAIN.issuperset(map(type, args)):
        return None
    try:
        return _told(_encode(args))  # these can't be mistaken for each other
    except _UNCARRIED:
        return {}


def _told(data: bytes) -> Arguments:
    text = data.decode()
    if len(text) <= LONGEST:
        return {"text": text}
    return {"text": text[:LONGEST], "digest": hashlib.sha256(data).hexdigest()}


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
