"""Values that can't change in place, so that what was written of the same object once is true for good."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from operator import attrgetter
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import msgspec

_SCALARS = frozenset({type(None), bool, int, float, str, bytes, complex, Decimal, date, datetime, time, timedelta})
"""Classes whose objects never change; a zone that could is refused when it is written."""


def is_unchangeable(value: Any) -> bool:
    """Return whether a value can't change in place, nor anything in it, except by tricks such as `object.__setattr__`.

    These are scalars, tuples, and frozen dataclasses and msgspec structs. An object of a subclass of a scalar or tuple
    may have attributes, so it does not count.
    """
    cls: type = type(value)
    if cls in _SCALARS:
        return True
    if cls is tuple:
        return all(map(is_unchangeable, value))
    read = _reader_of(cls)
    try:
        return read is not None and all(map(is_unchangeable, read(value)))
    except AttributeError:  # a field has no value
        return False


@lru_cache(maxsize=256)
def _reader_of(cls: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return a function that reads the fields of a frozen class's object; None if its objects may change."""
    struct = getattr(cls, "__struct_config__", None)
    if issubclass(cls, msgspec.Struct) and struct is not None:
        is_frozen, names = struct.frozen and not struct.dict, cls.__struct_fields__
    else:
        # A plain subclass has the marks of the dataclass that it inherits from, but may have attributes of its own.
        params = vars(cls).get("__dataclass_params__")
        is_frozen, names = getattr(params, "frozen", False), tuple(vars(cls).get("__dataclass_fields__", ()))
    if not is_frozen or getattr(cls, "__getattribute__", None) is not object.__getattribute__:
        return None
    if any(isinstance(each, cached_property) for base in cls.__mro__ for each in vars(base).values()):
        return None  # it puts an attribute into the object, which is no field
    for name in names:
        place = inspect.getattr_static(cls, name, None)
        if hasattr(type(place), "__get__") and not isinstance(place, (MemberDescriptorType, GetSetDescriptorType)):
            return None  # a property, or a method as a default: what it gives may change
    if len(names) < 2:
        return lambda value: tuple([getattr(value, name) for name in names])
    return attrgetter(*names)
