"""Plans of containers whose elements are of one type: list, tuple, the sets and deque.

A container is matched by its exact class; the plan of its elements writes its content. If the declared type names the
container, a JSON array is written. Sets are sorted by the encoding of their elements, so that equal sets have equal
bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec

from milepost.errors import shown

from .plan import MAX_DEPTH, Plan, Refusal, Tagged, qualified, too_deep

encode_sorted: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode


class ListPlan(Plan):
    """The plan of list."""

    types = (list,)
    bare = frozenset({"list"})
    plain = True

    def __init__(self, item: Plan) -> None:
        self.item = item
        self.expected = f"list[{item.expected}]"

    @cached_property
    def twin(self) -> Any:
        """The type of a list of the item's twins."""
        return list[self.item.twin]  # type: ignore[name-defined]

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True if the item's twins are not the values themselves."""
        return self.item.revives

    def revive(self, twin: Any) -> Any:
        return list(map(self.item.revive, twin))

    def are_json(self, values: list[Any], depth: int) -> bool:
        return are_containers(list, self.item, values, depth)

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not list:
            raise self.contradicted(value)
        return dump_items(self.item, value, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        if type(raw) is not list:
            raise self.unreadable(raw)
        return load_items(self.item, raw, bare)


class SequencePlan(Tagged):
    """The plan of tuple (of any length), set, frozenset and deque."""

    bare = frozenset({"list"})

    def __init__(self, cls: Any, item: Plan) -> None:
        self.cls, self.item = cls, item
        self.tag = cls.__name__
        self.types = (cls,)
        self.expected = f"{cls.__name__}[{item.expected}{', ...' if cls is tuple else ''}]"
        self._is_set = cls in (set, frozenset)

    @cached_property
    def twin(self) -> Any:
        """The type of a tuple of the item's twins; Any for the other classes."""
        return tuple[self.item.twin, ...] if self.cls is tuple else Any  # type: ignore[name-defined]

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True unless the twin is a tuple of the values themselves."""
        return self.cls is not tuple or self.item.revives

    def revive(self, twin: Any) -> Any:
        return tuple(map(self.item.revive, twin)) if self.cls is tuple else super().revive(twin)

    def are_json(self, values: list[Any], depth: int) -> bool:
        return self.cls is tuple and are_containers(tuple, self.item, values, depth)  # msgspec writes it as an array

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not self.cls:
            raise self.contradicted(value)
        values = list(value)
        try:
            items = dump_items(self.item, values, depth)
        except Refusal as refusal:
            if self._is_set and refusal.steps:  # the elements of a set have no places
                refusal.steps[-1] = f"{{{qualified(type(values[refusal.row]))}}}"
            raise
        if self._is_set:
            items = sorted(items, key=encode_sorted)
        maxlen = value.maxlen if self.cls is deque else None
        return items, None if maxlen is None else {"n": maxlen}

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        if type(v) is not list:
            raise self.unreadable(v)
        items = load_items(self.item, v, bare)
        if self.cls is deque and "n" in extra:
            maxlen = extra["n"]
            if type(maxlen) is not int or not len(items) <= maxlen < 2**63:
                raise self.unreadable(maxlen)
            return deque(items, maxlen)
        try:
            made = self.cls(items)
        except Exception as exc:  # `__hash__` and `__eq__` of a user
            raise self.unreadable(v, f"an element of the set cannot be hashed: {shown(exc, 1000)}") from exc
        if self._is_set and len(made) != len(items):
            raise self.unreadable(v, "two elements of the set are equal")
        return made


def dump_items(item: Plan, values: list[Any], depth: int) -> list[Any]:
    """Write the elements of a container."""
    if depth >= MAX_DEPTH:
        raise too_deep(values)
    try:
        return item.dump_all(values, depth + 1) if values else values
    except Refusal as refusal:
        refusal.steps.append(f"[{refusal.row}]")
        raise


def are_containers(cls: type, item: Plan, values: list[Any], depth: int) -> bool:
    """Return whether a column has containers of exactly this class, whose elements are JSON as they are."""
    if depth >= MAX_DEPTH or {*map(type, values)} != {cls}:
        return False
    elements = list(chain.from_iterable(values))
    return not elements or item.are_json(elements, depth + 1)


def load_items(item: Plan, raws: list[Any], bare: bool) -> list[Any]:
    """Read the elements of a container."""
    loaded: list[Any] = []
    try:
        for raw in raws:
            loaded.append(item.load(raw, bare))  # noqa: PERF401  # its length is the place
    except Refusal as refusal:
        refusal.steps.append(f"[{len(loaded)}]")
        raise
    return loaded
