"""Values that count as unable to change in place."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import pytest

from milepost.codec.unchangeable import is_unchangeable


@dataclass(frozen=True)
class Frozen:
    a: Any = 1
    b: Any = "x"


@dataclass(frozen=True, slots=True)
class Slotted:
    a: Any


@dataclass(frozen=True)
class Empty:
    pass


class FrozenStruct(msgspec.Struct, frozen=True):
    a: Any = 1
    b: Any = 2


class Child(Frozen):
    """It may have attributes of its own."""


@dataclass
class Open:
    a: Any = 1


class OpenStruct(msgspec.Struct):
    a: Any = 1


class StructWithDict(msgspec.Struct, frozen=True, dict=True):
    a: Any = 1


@dataclass(frozen=True)
class Caching:
    a: Any = 1

    @cached_property
    def length(self) -> int:
        return 1


@dataclass(frozen=True)
class Computed:
    a: Any = 1
    b: Any = field(default=1, init=False)


computed = Computed()
Computed.b = property(lambda self: [])  # type: ignore[assignment,method-assign,misc]


@dataclass(frozen=True)
class Watching:
    a: Any = 1

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class Text(str):
    __slots__ = ("mark",)


class Pair(NamedTuple):
    a: Any


class Level(Enum):
    LOW = 1


class Row(tuple[int, ...]):
    __slots__ = ()


Point = namedtuple("Point", "x")
unset = Frozen()
object.__delattr__(unset, "a")
del Frozen.a


UNCHANGEABLE = (None, True, 1, 1.5, "x", b"x", Decimal(1), date(2026, 1, 1), (), (1, ("x", None)), Frozen(), Slotted(1))
CHANGEABLE = (
    [],
    {},
    set(),
    bytearray(),
    ([],),
    (1, ({},)),
    Frozen([]),
    Frozen(1, (1, [])),
    Slotted({}),
    Open(),
    object(),
)


@pytest.mark.parametrize(
    "value",
    [*UNCHANGEABLE, Frozen((1, 2), Frozen()), Empty(), FrozenStruct(), FrozenStruct(Frozen(), (1,))],
)
def test_values_that_cannot_change(value: Any) -> None:
    assert is_unchangeable(value)


@pytest.mark.parametrize(
    "value",
    [
        *CHANGEABLE,
        *(
            Child(),
            OpenStruct(),
            FrozenStruct(1, Open()),
            StructWithDict(),
            Caching(),
            computed,
            Watching(),
            Frozen,
            unset,
        ),
        *(Text("x"), (Text("x"),), Pair(1), Level.LOW, Row((1,)), Point(1), Frozen(Text("x"))),
    ],
)
def test_values_that_may_change(value: Any) -> None:
    assert not is_unchangeable(value)
