"""The comparison of a step that the code asks for on a replay with the step that is recorded."""

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
"""A step's arguments as a record has them; {} if they are not compared.

`text` is their JSON, cut to 200 characters; `digest` is its SHA-256 if it was longer. `unlike` is the type of a value that
cannot be compared, so that these arguments equal no others.
"""

LONGEST = 200
MAX_EFFORT = 2_000_000
"""Limit for the effort of comparing objects that the codec cannot record.

The effort is the sum of the squares of the depths of all parts; a part counts again for each path that leads to it. A list
of a hundred thousand clients stays below the limit, and so does a chain of objects; a graph of objects does not.
"""
_PLAIN = frozenset({str, int, bool, type(None)})
_UNORDERED = (set, frozenset, KeysView, ItemsView)
_SEVERAL = (list, tuple, deque, *_UNORDERED, ValuesView)
_encode = msgspec.json.Encoder().encode


class _Incomparable(Exception):
    """The error of a value that cannot be compared; its text is the type of the value."""


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], types: Iterable[type] = ()) -> Arguments:
    """Return a step's arguments in a form that can be compared: it is the same in every process for equal values.

    Of an object that the codec cannot record and that equals only itself, such as a client, only the class counts. All
    values around it are compared, however deep it is nested.
    """
    plain = None if kwargs else plain_arguments(args)
    if plain is not None:
        return plain
    known: tuple[Any, ...] = tuple(types)
    try:
        return _shortened(_together(canonical, args, kwargs, known))
    except Exception:  # objects of users may raise anything where they are read
        known = (*known, *dict.fromkeys(_classes([*args, *kwargs.values()])))
    try:
        return _shortened(_together(_as_far_as_carried, args, kwargs, known))
    except (_Incomparable, RecursionError) as exc:
        return {"text": "…", "unlike": str(exc)}


def plain_arguments(args: tuple[Any, ...]) -> Arguments | None:
    """Do `arguments_of` for texts and whole numbers, the usual case, which needs no types; return None for others."""
    if not _PLAIN.issuperset(map(type, args)):
        return None
    try:
        return _shortened(_encode(args))  # no two of these have the same JSON
    except (ValueError, OverflowError, msgspec.MsgspecError):  # a lone surrogate, a number of thousands of digits
        return None


def _shortened(data: bytes) -> Arguments:
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
    """Write a list and, if there are keywords, an object after it, which no mapping among the arguments can imitate."""
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
    """Write a value as `canonical` does, and put a mark that is not JSON before parts that the codec cannot record.

    `above` has the ids of the objects that contain the value, and `left` is the effort that is left. `is_state` is true if
    one of these objects defines its own equality. Raises _Incomparable for data that can't be read.
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
    # Only the class is shown, because the object may hold secrets.
    return _mark(f"{cls.__qualname__}:{hashlib.sha256(data).hexdigest()[:32]}")


def _mark(text: str) -> bytes:
    return b"\xe2\x80\xa6" + (text if text.isascii() else json.dumps(text)).encode()


def _is_service(value: Any, *, is_state: bool) -> bool:
    """Return whether an object stands for something outside the process, as a client does, so that only its class counts.

    Such an object does not define its own equality. But inside an object that defines one, an object that defines how it
    is copied counts as data.
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
    """Return the parts of a value that `copy.copy` would copy; for an error only its arguments."""
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
    """Yield the classes of the records and enums in a value.

    The codec may know them all here, since a value that is only compared is never decoded.
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
    """Return advice on what to do about arguments that differ."""
    unlike = now.get("unlike") or (recorded or {}).get("unlike")
    if unlike:
        return (
            f"a {unlike} among its arguments equals no other, since it can be neither carried nor copied: call codec.register "
            f"for its class, give plain values, or leave its arguments out of it with .compare_args(False)"
        )
    return "call it as before, branch on ctx.version, or leave its arguments out of it with .compare_args(False)"


def hash_of(values: Mapping[str, Any], types: Iterable[type] = ()) -> tuple[str, dict[str, str]]:
    """Return one digest (64 hex digits) of all inputs, and the digest of each input.

    Raises the codec's error for inputs that it cannot record.
    """
    known = tuple(types)
    digests = {name: hashlib.sha256(canonical(values[name], known)).hexdigest() for name in sorted(values)}
    return hashlib.sha256(_encode(digests)).hexdigest(), digests


def non_determinism(run_id: str, index: int, recorded: str, found: str, hint: str = "") -> NonDeterminismError:
    """Make the error for code that asks for another step than the recorded one; it names both."""
    advice = hint or (
        "bring the code back that the run began with, branch on ctx.version, or map a renamed step with rename="
    )
    text = f"step {index + 1} of run {run_id!r} was recorded as {recorded}, and the code now asks for {found}: {advice}"
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
    arguments = arguments or {}
    text = arguments.get("text")
    words = f"{kind} step {step_id!r}" + (f" of {count} items" if count is not None else "")
    if text is None:
        return words
    # The texts of two long arguments may begin alike; their digests differ.
    return f"{words} with {shown(plain_text(text))[1:-1]}" + (
        f"… (digest {arguments['digest'][:8]})" if "digest" in arguments else ""
    )
