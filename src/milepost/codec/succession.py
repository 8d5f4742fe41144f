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
_LARGEST = 64 * 1024 * 1024
"""Bytes above which none are."""
_PART = 32 * 1024
"""Bytes of a part, about."""
_SAMPLE = 16
"""Elements from which it is told how many make a part."""
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
            each.parts.clear()

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
        for each in self._lists:
            each.kept = each.written = 0
        try:
            data = encode_json(self._plan.dump(value, 0))
        except (Refusal, UnicodeEncodeError, RecursionError):
            self.forget()
            return None
        kept, written = (sum(getattr(each, of) for each in self._lists) for of in ("kept", "written"))
        if kept > written:
            self._pause = 0
        elif not (is_new and written):
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
        self.parts: list[_Part] = []
        self.kept = self.written = 0
        """How many parts of the last value were kept, and how many were written."""

    def dump(self, value: Any, depth: int) -> Any:
        plan, count = self._plan, self._count
        if type(value) not in plan.types:
            raise plan.contradicted(value)
        if not self.parts:
            count = self._count = self._count_for(value, depth)
        if len(value) < 2 * count or not count:
            self.parts.clear()
            return plan.dump(value, depth)
        out: list[Any] = []
        end = len(value) - len(value) % count
        for number, start in enumerate(range(0, end, count)):
            items = list(value[start : start + count])
            leaves = plan.item.leaves(items, depth + 1)
            if leaves is None:
                self.parts.clear()
                return plan.dump(value, depth)
            if number < len(self.parts) and _are_same(self.parts[number].leaves, leaves):
                self.kept += 1
            else:
                json = msgspec.Raw(encode_json(plan.item.dump_all(items, depth + 1))[1:-1])
                self.parts[number : number + 1] = [_Part(leaves, json)]
                self.written += 1
            out.append(self.parts[number].json)
        del self.parts[end // count :]
        if end < len(value):
            out += plan.item.dump_all(list(value[end:]), depth + 1)
        return out

    def _count_for(self, value: Any, depth: int) -> int:
        """How many elements make a part; 0 for a list that has none."""
        sample = list(value[:_SAMPLE])
        if not sample:
            return 0
        return max(_PART * len(sample) // len(encode_json(self._plan.item.dump_all(sample, depth + 1))), 1)


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
