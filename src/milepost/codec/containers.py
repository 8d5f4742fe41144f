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

from .plan import (
    DEEPEST,
    MAX_DEPTH,
    Plan,
    Refusal,
    Tagged,
    chunks,
    parent_row,
    qualified,
    too_deep,
)

encode_sorted: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode


class ListPlan(Plan):
    """The plan of list."""

    types = (list,)
    bare = frozenset({"list"})
    plain = True

    def __init__(self, item: Plan) -> None:
        self.item = item
        self.expected = f"list[{item.expected}]"
        self.keeps_json = item.keeps_json

    @cached_property
    def twin(self) -> Any:
        """The type of a list of the item's twins."""
        return list[self.item.twin]  # type: ignore[name-defined]

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True if the item's twins are not the values themselves."""
        return self.item.revives

    def revive_all(self, twins: list[Any]) -> list[Any]:
        if not self.item.revives:
            return twins
        return list(chunks(self.item.revive_all(list(chain.from_iterable(twins))), twins))

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not list:
            raise self.contradicted(value)
        return dump_items(self.item, value, depth)

    def dump_all(self, values: list[Any], depth: int) -> list[Any]:
        if not values:
            return values
        if depth >= MAX_DEPTH or {*map(type, values)} != {list}:
            return super().dump_all(values, depth)
        flat = list(chain.from_iterable(values))
        try:
            dumped = self.item.dump_all(flat, depth + 1) if flat else flat
        except Refusal as refusal:
            refusal.row, place = parent_row(refusal.row, values)
            refusal.steps.append(f"[{place}]")
            raise
        return values if dumped is flat else list(chunks(dumped, values))

    def leaves(self, values: list[Any], depth: int) -> list[list[Any]] | None:
        return leaves_of_items(list, self.item, values, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        if type(raw) is not list:
            raise self.unreadable(raw)
        return load_items(self.item, raw, bare)

    def load_all(self, raws: list[Any], bare: bool) -> list[Any]:
        if not raws:
            return raws
        if {*map(type, raws)} != {list}:
            return super().load_all(raws, bare)
        flat = list(chain.from_iterable(raws))
        try:
            loaded = self.item.load_all(flat, bare) if flat else flat
        except Refusal as refusal:
            refusal.row, place = parent_row(refusal.row, raws)
            refusal.steps.append(f"[{place}]")
            raise
        return raws if loaded is flat else list(chunks(loaded, raws))


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
        """The type of a tuple of the item's twins if these are the values themselves, else Any."""
        return Any if self.revives else tuple[self.item.twin, ...]  # type: ignore[name-defined]

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True unless the twin is a tuple of the values themselves."""
        return self.cls is not tuple or self.item.revives

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

    def dump_all(self, values: list[Any], depth: int) -> list[Any]:
        if self.cls is not tuple or depth >= MAX_DEPTH or {*map(type, values)} != {tuple}:
            return super().dump_all(values, depth)
        flat = list(chain.from_iterable(values))
        try:
            dumped = self.item.dump_all(flat, depth + 1) if flat else flat
        except Refusal as refusal:
            refusal.row, place = parent_row(refusal.row, values)
            refusal.steps.append(f"[{place}]")
            raise
        return values if dumped is flat else list(chunks(dumped, values))  # msgspec writes a tuple as an array

    def leaves(self, values: list[Any], depth: int) -> list[list[Any]] | None:
        return leaves_of_items(tuple, self.item, values, depth) if self.cls is tuple else None

    def load_all(self, raws: list[Any], bare: bool) -> list[Any]:
        if self.cls is not tuple or {*map(type, raws)} != {list}:
            return super().load_all(raws, bare)
        flat = list(chain.from_iterable(raws))
        try:
            loaded = self.item.load_all(flat, bare) if flat else flat
        except Refusal as refusal:
            refusal.row, place = parent_row(refusal.row, raws)
            refusal.steps.append(f"[{place}]")
            raise
        return list(map(tuple, raws if loaded is flat else chunks(loaded, raws)))


def dump_items(item: Plan, values: list[Any], depth: int) -> list[Any]:
    """Write the elements of a container."""
    if depth >= MAX_DEPTH:
        raise too_deep(values)
    try:
        return item.dump_all(values, depth + 1) if values else values
    except Refusal as refusal:
        refusal.steps.append(f"[{refusal.row}]")
        raise


def leaves_of_items(cls: type, item: Plan, values: list[Any], depth: int) -> list[list[Any]] | None:
    """Give the leaves of a column of containers of class `cls`, which keep their elements in order."""
    if depth > DEEPEST or not {*map(type, values)} <= {cls}:
        return None
    inner = item.leaves(list(chain.from_iterable(values)), depth + 1)
    return None if inner is None else [list(map(len, values)), *inner]


def load_items(item: Plan, raws: list[Any], bare: bool) -> list[Any]:
    """Read the elements of a container."""
    try:
        return item.load_all(raws, bare) if raws else raws
    except Refusal as refusal:
        refusal.steps.append(f"[{refusal.row}]")
        raise
