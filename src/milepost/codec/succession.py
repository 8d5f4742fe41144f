"""Values that follow each other, such as the states of a run, of which each is mostly what the one before was.

What is written of a long list is kept in parts, with the leaves that its elements were made of then: text, numbers and
whatever else nobody can change. A part counts as long as its elements are made of the very same objects in the same places,
so an element that was changed in place is seen. Else it is written again. What comes out is what the codec itself writes,
byte for byte; and where anything is refused, the codec itself says why.
"""

from __future__ import annotations

import copy
from operator import is_
from typing import Any, NamedTuple, Protocol

import msgspec

from .containers import ListPlan, SequencePlan
from .plan import Plan, Refusal, encode_json
from .records import RecordPlan

__all__ = ["Encoder", "Succession"]

_LARGE = 32 * 1024
"""Bytes of a value from which on parts are kept of what follows it."""
_LARGEST = 16 * 1024 * 1024
"""Bytes above which none are."""
_PART = 32 * 1024
"""Bytes of a part, about."""
_SAMPLE = 16
"""Elements from which it is told whether the others are likely to stay the same, and how many make a part."""
_FEW = 2
"""Parts that are written anew without one that was kept before no other is tried."""
_LONGEST_REST = 63
"""Values that are written without parts after several that had little in common."""


class Encoder(Protocol):
    """What encodes values."""

    def encode(self, value: Any, *, root: str = "state") -> bytes:
        """Encode; `SerializeStateError` or `StateTypeError` where the value cannot come back the same."""
        ...


class Succession:
    """Encodes values of one type, given by its `plan` and its `encoder`, one after another.

    Keeps as much as the newest value, in bytes and in references; `forget` lets go of it. For one thread at a time.
    """

    __slots__ = ("_encoder", "_lists", "_pause", "_plan", "_rest", "_size")

    def __init__(self, plan: Plan, encoder: Encoder) -> None:
        self._plan = plan
        self._encoder = encoder
        self._lists: list[_InParts] | None = None
        self._size = 0
        self._rest = self._pause = 0

    def encode(self, value: Any, *, root: str = "state") -> bytes:
        """Write a value as the encoder does; raises as that does."""
        data = self._encode(value) if _LARGE <= self._size <= _LARGEST else None
        if data is None:
            data = self._encoder.encode(value, root=root)
        self._size = len(data)
        return data

    def forget(self) -> None:
        """Keep nothing."""
        self._size = 0
        for each in self._lists or ():
            each.forget()

    def _encode(self, value: Any) -> bytes | None:
        """What is written of a value, part by part; None where that is not worth while, or where it may be refused."""
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


class _Part(NamedTuple):
    """Elements of a list that were written."""

    leaves: list[list[Any]]
    json: msgspec.Raw
    """Of all its elements, with commas between them."""


class _InParts(Plan):
    """`plan`, of a list or a tuple of any length, whose elements are written in parts."""

    def __init__(self, plan: ListPlan | SequencePlan) -> None:
        self.expected = plan.expected
        self._plan = plan
        self._count = 0
        """How many elements make a part."""
        self._first: list[list[Any]] | None = None
        """The leaves of the first elements."""
        self.parts: list[_Part] = []
        self.kept = self.written = 0
        """How many parts of the last value were kept, and how many were written."""

    def forget(self) -> None:
        """Keep nothing."""
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
            leaves = item.leaves(elements, depth + 1)
            if leaves is None or self.written > self.kept + most:
                self.forget()
                return self._plan.dump(value, depth)
            if number < len(self.parts) and _are_same(self.parts[number].leaves, leaves):
                self.kept += 1
            else:
                json = msgspec.Raw(encode_json(item.dump_all(elements, depth + 1))[1:-1])
                self.parts[number : number + 1] = [_Part(leaves, json)]
                self.written += 1
            out.append(self.parts[number].json)
        del self.parts[end // count :]
        if end < len(value):
            out += item.dump_all(list(value[end:]), depth + 1)
        return out

    def _is_worth_while(self, value: Any, depth: int) -> bool:
        """Whether the first elements are those of the value before, and the list is long enough."""
        first = list(value[:_SAMPLE])
        leaves = self._plan.item.leaves(first, depth + 1) if first else None
        before, self._first = self._first, leaves
        if leaves is None or before is None or not _are_same(before, leaves):
            return False
        size = len(encode_json(self._plan.item.dump_all(first, depth + 1)))
        self._count = max(_PART * len(first) // size, 1)
        return len(value) >= 2 * self._count


def _are_same(before: list[list[Any]], now: list[list[Any]]) -> bool:
    """Whether all columns hold the same objects."""
    return len(before) == len(now) and all(
        len(mine) == len(other) and all(map(is_, mine, other)) for mine, other in zip(before, now, strict=True)
    )


def _in_parts(plan: Plan, found: list[_InParts]) -> Plan:
    """The plan with its lists written in parts, those of records in it too; `found` gets them."""
    if isinstance(plan, ListPlan) or (isinstance(plan, SequencePlan) and plan.cls is tuple):
        found.append(_InParts(plan))
        return found[-1]
    if isinstance(plan, RecordPlan):
        made = copy.copy(plan)
        made.plans = {name: _in_parts(field, found) for name, field in plan.plans.items()}
        return made
    return plan
