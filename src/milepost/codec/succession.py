"""The encoder of successive values, such as the states of a run, where each value is mostly equal to the last one.

The JSON of a long list whose elements cannot change, such as texts, is kept in parts. A part is used again as long as
it has the very same elements. The bytes are the same that the codec itself writes; if a value is refused, the codec
itself raises the error.
"""

from __future__ import annotations

import copy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import is_
from typing import Any, NamedTuple, Protocol

import msgspec

from .containers import ListPlan, SequencePlan
from .plan import Plan, Refusal, encode_json
from .records import RecordPlan

_LARGE = 32 * 1024
"""Size of a value in bytes from which on parts of the next value are kept."""
_LARGEST = 16 * 1024 * 1024
"""Size of a value in bytes above which no parts are kept."""
_PART = 32 * 1024
"""Size of a part in bytes, roughly."""
_SAMPLE = 16
"""Number of first elements that show whether the others have probably stayed the same, and how many make a part."""
_FEW = 2
"""By how many the parts written anew may exceed the reused ones; beyond it the whole list is written without parts."""
_LONGEST_REST = 63
"""Largest number of values that are written without parts, after several values that had little in common."""


class Encoder(Protocol):
    """An encoder of values."""

    def encode(self, value: Any, *, root: str = "state") -> bytes:
        """Encode a value; `SerializeStateError` or `StateTypeError` if it cannot come back the same."""
        ...


class Succession:
    """An encoder of successive values of one type, which has this `plan` and this `encoder`.

    It keeps as much as the newest value, in bytes and in references, until `forget`. Only one thread at a time may use
    it.
    """

    __slots__ = ("_encoder", "_lists", "_pause", "_plan", "_rest", "_size")

    def __init__(self, plan: Plan, encoder: Encoder) -> None:
        self._plan = plan
        self._encoder = encoder
        self._lists: list[_InParts] | None = None
        self._size = 0
        self._rest = self._pause = 0

    def encode(self, value: Any, *, root: str = "state") -> bytes:
        """Write a value as the encoder does, and raise the same errors."""
        data = self._encode(value) if _LARGE <= self._size <= _LARGEST else None
        if data is None:
            data = self._encoder.encode(value, root=root)
        self._size = len(data)
        return data

    def forget(self) -> None:
        """Forget the last value."""
        self._size = 0
        for each in self._lists or ():
            each.forget()

    def _encode(self, value: Any) -> bytes | None:
        """Write a value part by part; return None if that is not worth while, or if the value may be refused."""
        if self._rest:
            self._rest -= 1
            return None
        if self._lists is None:
            self._lists = []
            self._plan = _in_parts(self._plan, self._lists)
        if not self._lists:
            return None
        is_new = not any(each.parts for each in self._lists)
        try:
            data = encode_json(self._plan.dump(value, 0))
        except (Refusal, UnicodeEncodeError, RecursionError):
            self.forget()
            return None
        kept, written = sum(each.kept for each in self._lists), sum(each.written for each in self._lists)
        if kept > written:
            self._pause = 0
        elif not is_new:
            self._pause = self._rest = min(2 * self._pause + 1, _LONGEST_REST)
            self.forget()
        return data


_UNCHANGEABLE = frozenset({type(None), bool, int, float, str, bytes, complex, Decimal, date, datetime, time, timedelta})
"""Classes whose objects never change; a zone that could is refused when it is written."""


class _Part(NamedTuple):
    """The JSON of some successive elements of a list, and these elements."""

    elements: list[Any]
    json: msgspec.Raw
    """The JSON of all elements, with commas between them."""


class _InParts(Plan):
    """The plan of a list, or of a tuple of any length, that writes the elements in parts as `plan` would."""

    def __init__(self, plan: ListPlan | SequencePlan) -> None:
        self.expected = plan.expected
        self._plan = plan
        self._count = 0
        """The number of elements in a part."""
        self._first: list[Any] | None = None
        """The first elements."""
        self.parts: list[_Part] = []
        self.kept = self.written = 0
        """The numbers of the last value's parts that were reused, and that were written."""

    def forget(self) -> None:
        """Forget all parts."""
        self.parts.clear()
        self._first = None

    def dump(self, value: Any, depth: int) -> Any:
        self.kept = self.written = 0
        if type(value) not in self._plan.types:
            raise self._plan.contradicted(value)
        if not self.parts and not self._is_worth_while(value, depth):
            return self._plan.dump(value, depth)
        item, count = self._plan.item, self._count
        end = len(value) - len(value) % count
        out: list[Any] = []
        most = _FEW if self.parts else end
        for number, start in enumerate(range(0, end, count)):
            elements = list(value[start : start + count])
            if not {*map(type, elements)} <= _UNCHANGEABLE or self.written > self.kept + most:
                self.forget()
                return self._plan.dump(value, depth)
            if number < len(self.parts) and _are_same(self.parts[number].elements, elements):
                self.kept += 1
            else:
                json = msgspec.Raw(encode_json(item.dump_all(elements, depth + 1))[1:-1])
                self.parts[number : number + 1] = [_Part(elements, json)]
                self.written += 1
            out.append(self.parts[number].json)
        del self.parts[end // count :]
        if end < len(value):
            out += item.dump_all(list(value[end:]), depth + 1)
        return out

    def _is_worth_while(self, value: Any, depth: int) -> bool:
        """Return whether the first elements are those of the last value, and the list is long enough."""
        first = list(value[:_SAMPLE])
        before, self._first = self._first, first
        if not first or before is None or not {*map(type, first)} <= _UNCHANGEABLE or not _are_same(before, first):
            return False
        size = len(encode_json(self._plan.item.dump_all(first, depth + 1)))
        self._count = max(_PART * len(first) // size, 1)
        return len(value) >= 2 * self._count


def _are_same(before: list[Any], now: list[Any]) -> bool:
    """Return whether both lists have the same objects."""
    return len(before) == len(now) and all(map(is_, before, now))


def _in_parts(plan: Plan, found: list[_InParts]) -> Plan:
    """Return the plan with its lists written in parts, also those of its records; append these lists to `found`."""
    if isinstance(plan, ListPlan) or (isinstance(plan, SequencePlan) and plan.cls is tuple):
        found.append(_InParts(plan))
        return found[-1]
    if isinstance(plan, RecordPlan):
        made = copy.copy(plan)
        made.plans = {name: _in_parts(field, found) for name, field in plan.plans.items()}
        return made
    return plan
