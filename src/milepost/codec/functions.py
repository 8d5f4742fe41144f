"""What functions take and return, as their annotations say it, and the codecs for that.

Annotations are taken as far as they can be resolved: what says nothing, or names what is there for type checkers only,
is as good as none.
"""

from __future__ import annotations

import inspect
import sys
import typing
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from milepost.codec.state import Codec

__all__ = ["FunctionCodec", "FunctionCodecs", "classes", "hints_of", "lenient"]

_MOST = 1000
"""Functions whose codecs are kept."""


class FunctionCodec(NamedTuple):
    """Of one function: what it `returned`, a list of the `items` that it is called with one by one, and what classes
    its arguments may be of."""

    returned: Codec[Any]
    items: Codec[Any]
    types: tuple[Any, ...]


class FunctionCodecs:
    """Codecs of functions, made once for each. `known` are classes that their values may be of, `types` what was declared."""

    def __init__(self, known: Sequence[Any], types: Sequence[type]) -> None:
        self._known = tuple(known)
        self._types = tuple(types)
        self._made: dict[Any, FunctionCodec] = {}
        self._seen: dict[int, tuple[weakref.ref[FunctionType], FunctionCodec]] = {}
        """By `id`, functions that were asked for: `_key_of` takes as long as a small value."""

    def of(self, fn: Callable[..., Any]) -> FunctionCodec:
        """The codecs of `fn`, whose item is its first parameter."""
        seen = self._seen.get(id(fn))
        if seen is not None and seen[0]() is fn:
            return seen[1]
        try:
            key = _key_of(fn)
            known = self._made.get(key)
        except (TypeError, NameError):
            # It cannot be hashed, or its annotations name what is there for type checkers only.
            return self._make(fn)
        if known is None:
            if len(self._made) > _MOST:
                self._made.clear()
            known = self._made[key] = self._make(fn)
        if type(fn) is FunctionType:
            if len(self._seen) > _MOST:
                self._seen.clear()
            self._seen[id(fn)] = weakref.ref(fn), known
        return known

    def pair(self, fn: Callable[..., Any], position: int) -> tuple[Codec[Any], Codec[Any]]:
        """Of one item that `fn` is called with, as the parameter at `position`, and of what it returns."""
        inner = fn.func if isinstance(fn, partial) else fn
        hints = hints_of(inner, self._types)
        item = lenient(hints.get(_parameter(fn, position), Any))
        returned = inner if isinstance(inner, type) else hints.get("return", Any)
        found = classes((*self._known, *hints.values()))
        return Codec(item, types=found), Codec(lenient(returned), types=found)

    def _make(self, fn: Callable[..., Any]) -> FunctionCodec:
        inner = fn.func if isinstance(fn, partial) else fn
        hints = hints_of(inner, self._types)
        item = lenient(hints.get(_parameter(fn, 0), Any))
        returned = inner if isinstance(inner, type) else hints.pop("return", Any)
        found = classes((*self._known, *hints.values()))
        items: Any = list[item]  # type: ignore[valid-type]
        return FunctionCodec(Codec(lenient(returned), types=found), Codec(items, types=found), found)


def hints_of(fn: Any, types: Sequence[type]) -> dict[str, Any]:
    """The annotations of a function, resolved; those that cannot be are left out."""
    target = fn if inspect.isroutine(fn) or inspect.isfunction(fn) else getattr(type(fn), "__call__", fn)  # noqa: B004
    if isinstance(fn, type):
        target = vars(fn).get("__init__", fn)
    names: dict[str, Any] = {known.__name__: known for known in types if isinstance(known, type)}
    try:
        return typing.get_type_hints(target, localns=names or None, include_extras=True)
    except Exception:
        return _hints_one_by_one(target, names)


def _hints_one_by_one(target: Any, names: dict[str, Any]) -> dict[str, Any]:
    """The annotations that can be resolved, where one cannot."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        found = get_annotations(target, format=Format.FORWARDREF)
    else:
        found = getattr(target, "__annotations__", None) or {}
    known = {**getattr(inspect.unwrap(target), "__globals__", {}), **names}
    hints: dict[str, Any] = {}
    for name, hint in found.items():
        # A class may be there for type checkers only, or inside a function: its name says nothing here.
        with suppress(Exception):
            hints |= typing.get_type_hints(SimpleNamespace(__annotations__={name: hint}), known, include_extras=True)
    return hints


def lenient(hint: Any) -> Any:
    """The hint itself; Any for what says nothing."""
    return Any if hint is inspect.Parameter.empty or isinstance(hint, (str, TypeVar)) else hint


def classes(hints: Sequence[Any]) -> tuple[Any, ...]:
    """The classes that annotations name, also inside `list[...]` and the like; built-in ones need not be named."""
    found: dict[Any, None] = {}
    for hint in hints:
        if isinstance(hint, type) and get_origin(hint) is None:
            if hint.__module__ != "builtins":
                found[hint] = None
        else:
            inside = get_args(hint) or (getattr(hint, "__supertype__", None), getattr(hint, "__value__", None))
            found |= dict.fromkeys(classes([one for one in inside if one is not None]))
    return tuple(found)


def _key_of(fn: Any) -> Any:
    """What functions of one key have in common: the code and the annotations, and so what their values are.

    A function that a workflow makes anew each time is known again by it. What a decorator made has the code of all that it
    made, so what is below counts too.
    """
    if isinstance(fn, partial):
        return partial, _key_of(fn.func), len(fn.args), frozenset(fn.keywords)
    code = getattr(fn, "__code__", None)
    if code is None:
        return fn
    inner = getattr(fn, "__wrapped__", None)
    below = None if inner is None else _key_of(inner)
    return code, code.co_filename, tuple(fn.__annotations__.items()), below


def _parameter(fn: Any, position: int) -> str:
    """The name of the parameter at that position; "" where it cannot be told."""
    try:
        return [*inspect.signature(fn).parameters][position]
    except (TypeError, ValueError, IndexError):
        return ""
