"""The codecs of functions' arguments and return values, made from their annotations.

An annotation counts if it can be resolved. One without a meaning, or one that names something that exists for type
checkers only, counts as no annotation.
"""

from __future__ import annotations

import inspect
import sys
import typing
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar, get_args, get_origin

from milepost.codec.codec import Codec

_MOST = 1000
"""The number of functions whose codecs are kept."""


class FunctionCodec:
    """The codecs of one function, each made when it is first needed.

    `types` are the classes that its arguments may have.
    """

    def __init__(self, returned: Any, item: Any, types: tuple[Any, ...]) -> None:
        self._returned = returned
        self._item = item
        self.types = types

    @cached_property
    def returned(self) -> Codec[Any]:
        """The codec of the function's return value."""
        return Codec(lenient(self._returned), types=self.types)

    @cached_property
    def items(self) -> Codec[Any]:
        """The codec of a list of the items that the function is called with one by one."""
        return Codec(list[self._item], types=self.types)  # type: ignore[name-defined]


class FunctionCodecs:
    """The codecs of functions, made once for each. `known` are classes of their values, `types` the declared ones."""

    def __init__(self, known: Sequence[Any], types: Sequence[type]) -> None:
        self._known = tuple(known)
        self._types = tuple(types)
        self._made: dict[Any, FunctionCodec] = {}
        self._seen: dict[int, tuple[weakref.ref[FunctionType], FunctionCodec]] = {}
        """The codecs by `id` of their function, because `_key_of` takes as long as encoding a small value."""

    def of(self, fn: Callable[..., Any]) -> FunctionCodec:
        """Give the codecs of `fn`; its item is its first parameter."""
        seen = self._seen.get(id(fn))
        if seen is not None and seen[0]() is fn:
            return seen[1]
        try:
            key = _key_of(fn)
            known = self._made.get(key)
        except (TypeError, NameError):
            # The function cannot be hashed, or its annotations name something that exists for type checkers only.
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
        """Give two codecs: of one item that `fn` gets as the parameter at `position`, and of its return value."""
        inner = fn.func if isinstance(fn, partial) else fn
        hints = hints_of(inner, self._types)
        item = lenient(hints.get(_parameter(fn, position), Any))
        returned = inner if isinstance(inner, type) else hints.get("return", Any)
        known = classes((*self._known, *hints.values()))
        return Codec(item, types=known), Codec(lenient(returned), types=known)

    def _make(self, fn: Callable[..., Any]) -> FunctionCodec:
        inner = fn.func if isinstance(fn, partial) else fn
        hints = hints_of(inner, self._types)
        item = lenient(hints.get(_parameter(fn, 0), Any))
        returned = inner if isinstance(inner, type) else hints.pop("return", Any)
        known = classes((*self._known, *hints.values()))
        return FunctionCodec(returned, item, known)


def hints_of(fn: Any, types: Sequence[type]) -> dict[str, Any]:
    """Return the resolved annotations of a function; those that cannot be resolved are left out."""
    target = fn if inspect.isroutine(fn) or inspect.isfunction(fn) else getattr(type(fn), "__call__", fn)  # noqa: B004
    if isinstance(fn, type):
        target = vars(fn).get("__init__", fn)
    names: dict[str, Any] = {known.__name__: known for known in types if isinstance(known, type)}
    try:
        return typing.get_type_hints(target, localns=names or None, include_extras=True)
    except Exception:
        return _hints_one_by_one(target, names)


def _hints_one_by_one(target: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Resolve the annotations one by one, because one of them cannot be resolved; leave that out."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        annotations = get_annotations(target, format=Format.FORWARDREF)
    else:
        annotations = getattr(target, "__annotations__", None) or {}
    known = {**getattr(inspect.unwrap(target), "__globals__", {}), **names}
    hints: dict[str, Any] = {}
    for name, hint in annotations.items():
        # A class may exist for type checkers only, or inside a function: then its name has no meaning here.
        with suppress(Exception):
            hints |= typing.get_type_hints(SimpleNamespace(__annotations__={name: hint}), known, include_extras=True)
    return hints


def lenient(hint: Any) -> Any:
    """Return the hint itself; Any for a missing hint, a text or a type variable."""
    return Any if hint is inspect.Parameter.empty or isinstance(hint, (str, TypeVar)) else hint


def classes(hints: Sequence[Any]) -> tuple[Any, ...]:
    """List the classes that annotations name, also inside `list[...]` and the like; built-in classes are left out."""
    named: dict[Any, None] = {}
    seen: dict[int, Any] = {}
    left = [*hints]
    while left:
        hint = left.pop(0)
        if id(hint) in seen:  # an alias may refer to itself
            continue
        seen[id(hint)] = hint
        if not isinstance(hint, type) or get_origin(hint) is not None:
            named_in = (getattr(hint, "__supertype__", None), getattr(hint, "__value__", None))
            left[:0] = [*get_args(hint), *[one for one in named_in if one is not None]]
        elif hint.__module__ != "builtins":
            named[hint] = None
    return tuple(named)


def _key_of(fn: Any) -> Any:
    """Return a key of a function: functions with one key have the same code and annotations, and so the same codecs.

    A workflow may define a function anew in each run; the key is the same each time. All functions that a decorator
    makes have the same code, so the key of the wrapped function is part of the key.
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
    """Return the name of the parameter at `position`; "" if it is unknown."""
    try:
        return [*inspect.signature(fn).parameters][position]
    except (TypeError, ValueError, IndexError):
        return ""
