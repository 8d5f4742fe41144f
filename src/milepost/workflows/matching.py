"""The comparison of a replay: the step that the code asks for now, and the step that is recorded."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import suppress
from enum import Enum
from types import BuiltinFunctionType, MappingProxyType, MethodType, MethodWrapperType
from typing import Any

import msgspec

from milepost.codec import canonical
from milepost.codec.families import family_of
from milepost.codec.plain import plain_text
from milepost.codec.plan import MAX_DEPTH
from milepost.errors import NonDeterminismError, shown

Arguments = dict[str, str]
"""A step's arguments as records keep them: a text cut to 200 characters, with a digest if it was longer.

Arguments that are not compared are {}. `unlike` names the type of a value in them that equals no other, because it cannot
be compared.
"""

LONGEST = 200
MAX_EFFORT = 2_000_000
"""The effort of taking apart what the codec cannot carry: of each part, on every way to it, the square of its depth.

A list of a hundred thousand clients stays below it, and so does one chain of objects; a net of objects does not.
"""
_PLAIN = frozenset({str, int, bool, type(None)})
_UNORDERED = (set, frozenset, KeysView, ItemsView)
_SEVERAL = (list, tuple, deque, *_UNORDERED, ValuesView)
_encode = msgspec.json.Encoder().encode


class _Incomparable(Exception):
    """A value that can't be compared with any other; the text names its type."""


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], types: Iterable[type] = ()) -> Arguments:
    """Return a step's arguments in a form to compare: equal for equal values of equal types, in every process.

    If the codec cannot carry an object and the object equals only itself, as a client does, its class alone counts. All
    values beside it are compared, however it is nested.
    """
    plain = None if kwargs else plain_arguments(args)
    if plain is not None:
        return plain
    known: tuple[Any, ...] = tuple(types)
    try:
        return _told(_together(canonical, args, kwargs, known))
    except Exception:  # objects of users may raise anything where they are read
        known = (*known, *dict.fromkeys(_classes([*args, *kwargs.values()])))
    try:
        return _told(_together(_as_far_as_carried, args, kwargs, known))
    except (_Incomparable, RecursionError) as exc:
        return {"text": "…", "unlike": str(exc)}


def plain_arguments(args: tuple[Any, ...]) -> Arguments | None:
    """Return `arguments_of` texts and whole numbers, the usual case, which needs no types; None for anything else."""
    if not _PLAIN.issuperset(map(type, args)):
        return None
    try:
        return _told(_encode(args))  # these can't be mistaken for each other
    except (ValueError, OverflowError, msgspec.MsgspecError):  # a lone surrogate, a number of thousands of digits
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
    """Write a list and, if there are keywords, an object after it. No mapping as the last argument looks like that."""
    data = write([*args], known) if args or not kwargs else b""
    return data + write(dict(kwargs), known) if kwargs else data


def _as_far_as_carried(
    value: Any,
    known: tuple[Any, ...],
    above: tuple[int, ...] = (),
    left: list[int] | None = None,
    *,
    is_state: bool = False,
) -> bytes:
    """Write a value as `canonical` does, with a mark, which no JSON has, before parts that the codec cannot carry.

    `above` are the objects that contain the value, `left` is the effort that is left. `is_state`: one of them has an
    equality of its own. Raises _Incomparable for data that can't be read.
    """
    try:
        return canonical(value, known)
    except Exception:  # objects of users may raise anything where they are read
        if id(value) in above:
            return _mark(f"^{above[::-1].index(id(value))}")
    left = [MAX_EFFORT] if left is None else left
    left[0] -= len(above) ** 2
    if len(above) > MAX_DEPTH:
        raise _Incomparable("value that is nested too deep")
    if left[0] < 0:
        raise _Incomparable("value whose parts lead to one another on too many ways")
    above = (*above, id(value))
    write = functools.partial(_as_far_as_carried, known=known, above=above, left=left, is_state=is_state)
    cls = type(value)
    if cls is str:
        return _mark(json.dumps(value))
    if cls is int:
        return _mark(hex(value))
    if cls is dict and all(type(key) is str for key in value):
        return b"{" + b",".join(write(key) + b":" + write(value[key]) for key in sorted(value)) + b"}"
    if cls in {dict, OrderedDict, MappingProxyType}:
        pairs = [write(key) + b":" + write(item) for key, item in value.items()]
        return _mark(cls.__name__) + b"{" + b",".join(pairs if cls is OrderedDict else sorted(pairs)) + b"}"
    if isinstance(value, _UNORDERED) or cls in _SEVERAL or isinstance(value, ValuesView):
        items = [write(item) for item in value]
        data = b"[" + b",".join(sorted(items) if isinstance(value, _UNORDERED) else items) + b"]"
        if cls is list:
            return data
        return _mark(cls.__qualname__) + data + (write(vars(value)) if getattr(value, "__dict__", None) else b"")
    if isinstance(value, Enum):
        return _mark(f"{cls.__qualname__}.{value.name}")
    if _is_service(value, is_state=is_state):
        return _mark(getattr(value, "__qualname__", None) or cls.__qualname__)
    is_state = is_state or not (isinstance(value, (*_SEVERAL, dict)) or family_of(cls) is not None)
    data = _as_far_as_carried(_parts(value), known, above, left, is_state=is_state)
    # The class alone is shown: an object that is no plain data may hold data that nobody should read.
    return _mark(f"{cls.__qualname__}:{hashlib.sha256(data).hexdigest()[:32]}")


def _mark(text: str) -> bytes:
    return b"\xe2\x80\xa6" + (text if text.isascii() else json.dumps(text)).encode()


def _is_service(value: Any, *, is_state: bool) -> bool:
    """Return whether an object stands for something outside, as a client does, so that its class alone counts.

    Such an object has no equality of its own. Inside the state of an object that has one, an object that defines how it
    is copied is data instead.
    """
    cls = type(value)
    if isinstance(value, (functools.partial, MethodType, BaseException)) or family_of(cls) is not None:
        return False
    if isinstance(value, Iterator) and cls.__module__ in {"builtins", "itertools"}:
        return False  # it stands for its elements
    if any(base.__module__ == "unittest.mock" or _is_secret(base) for base in cls.__mro__):
        return True
    if not _inherits(cls, "__eq__") and not isinstance(value, (BuiltinFunctionType, MethodWrapperType)):
        return False
    return not is_state or _inherits(cls, "__reduce__", "__reduce_ex__", "__getstate__")


def _inherits(cls: type, *names: str) -> bool:
    """Return whether a class inherits all attributes with these names from `object`."""
    return all(getattr(cls, name, None) is getattr(object, name, None) for name in names)


def _is_secret(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "pydantic" and cls.__name__.startswith("Secret")


def _parts(value: Any) -> list[Any]:
    """Take a value apart as `copy.copy` does; of an error take its arguments only."""
    if isinstance(value, BaseException):
        return [value.args]
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(2) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return [reduced]
        make, args, state, items, pairs = (*reduced, None, None, None)[:5]
        return [make, args, state, None if items is None else [*items], None if pairs is None else dict(pairs)]
    except Exception as exc:
        raise _Incomparable(type(value).__qualname__) from exc


def _classes(value: Any) -> Iterator[type]:
    """Iterate over the classes of the records and enums in a value.

    A value that is only compared is never read by a name.
    """
    seen: dict[int, Any] = {}
    left = [value]
    while left:
        value = left.pop()
        cls = type(value)
        if cls in _PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value
        family = family_of(cls)
        if isinstance(value, Enum) or family is not None:
            yield cls
        with suppress(Exception):  # objects of users may raise anything where they are read
            if isinstance(value, Mapping):
                left += [*value.keys(), *value.values()]
            elif isinstance(value, _SEVERAL):
                left += value
            elif family is not None:
                left += [getattr(value, name, None) for name in family.names]


def differs(recorded: Mapping[str, Any] | None, now: Arguments) -> bool:
    """Return whether a step's arguments differ from the recorded ones. If none were recorded, they do not differ."""
    return bool(recorded) and (recorded != now or "unlike" in now)


def how_to_agree(recorded: Mapping[str, Any] | None, now: Arguments) -> str:
    """Advise what to do about arguments that differ."""
    unlike = now.get("unlike") or (recorded or {}).get("unlike")
    if unlike:
        return (
            f"a {unlike} among its arguments equals no other, since it can be neither carried nor copied: call codec.register "
            f"for its class, give plain values, or leave its arguments out of it with .compare_args(False)"
        )
    return "call it as before, branch on ctx.version, or leave its arguments out of it with .compare_args(False)"


def hash_of(values: Mapping[str, Any], types: Iterable[type] = ()) -> tuple[str, dict[str, str]]:
    """Return the digest of inputs, 64 hex digits, and one for each.

    Raises the codec's error for inputs that it cannot carry.
    """
    known = tuple(types)
    digests = {name: hashlib.sha256(canonical(values[name], known)).hexdigest() for name in sorted(values)}
    return hashlib.sha256(_encode(digests)).hexdigest(), digests


def non_determinism(run_id: str, index: int, recorded: str, found: str, hint: str = "") -> NonDeterminismError:
    """Make the error for code that asks for another step than the recorded one; it names both."""
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


def described(step_id: str, kind: str, arguments: Mapping[str, Any] | None = None, *, count: int | None = None) -> str:
    """Describe a step in words: its kind and id and, if known, the number of a map's items and the arguments."""
    told, text = arguments or {}, (arguments or {}).get("text")
    words = f"{kind} step {step_id!r}" + (f" of {count} items" if count is not None else "")
    if text is None:
        return words
    # Long arguments may begin alike, so the digest tells them apart.
    return f"{words} with {shown(plain_text(text))[1:-1]}" + (
        f"… (digest {told['digest'][:8]})" if "digest" in told else ""
    )
