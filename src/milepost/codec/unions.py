"""The plans of unions: they write the bare form if the JSON shows which member it is, else the tagged form."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Optional, Union

from .plan import MARK, Plan, Refusal, Unreadable, json_kind, read_mark
from .scalars import SCALARS, are_exact


class OptionalPlan(Plan):
    """The plan of `X | None`. If X itself may be written as null, its values are wrapped."""

    def __init__(self, inner: Plan) -> None:
        self.inner = inner
        self.expected = f"{inner.expected} | None"

    @property
    def types(self) -> tuple[type, ...]:  # type: ignore[override]
        """The classes of the inner type and of None; empty if the inner type leaves them open."""
        return (*self.inner.types, type(None)) if self.inner.types else ()

    @cached_property
    def _null_is_none(self) -> bool:
        return "null" not in self.inner.bare

    @cached_property
    def twin(self) -> Any:
        """The inner type's twin, or None."""
        return Optional[self.inner.twin]  # noqa: UP045  # it may be no class

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True if the inner type's twins are not the values themselves."""
        return self.inner.revives

    def revive(self, twin: Any) -> Any:
        return None if twin is None else self.inner.revive(twin)

    def are_json(self, values: list[Any], depth: int) -> bool:
        some = [value for value in values if value is not None]
        return self._null_is_none and (not some or self.inner.are_json(some, depth))

    def dump(self, value: Any, depth: int) -> Any:
        if value is None:
            return None
        try:
            return self.inner.dump(value, depth) if self._null_is_none else self.inner.wrap(value, depth)
        except Refusal as refusal:
            self._widen(refusal)
            raise

    wrap = dump

    def _widen(self, refusal: Refusal) -> None:
        """Add `| None` to the expected type in the refusal of a value that is not of the declared type."""
        if not refusal.steps and refusal.expected == self.inner.expected:
            refusal.expected = self.expected

    def load(self, raw: Any, bare: bool) -> Any:
        try:
            return None if raw is None else self.inner.load(raw, bare)
        except Refusal as refusal:
            self._widen(refusal)
            raise


class UnionPlan(Plan):
    """The plan of `X | Y`.

    A member writes its bare form if no other member can be mistaken for it. Values that JSON shows by itself (text, a
    list) are never tagged because another member needs a tag. Members of the same class, such as
    `list[int] | list[str]`, are written as untyped values, and checked against the members in both directions.
    """

    plain = True

    def __init__(self, members: tuple[Plan, ...], untyped: Plan, expected: str) -> None:
        self.members = members
        self.expected = expected
        self._untyped = untyped

    @cached_property
    def bare(self) -> frozenset[str]:  # type: ignore[override]
        """All kinds of JSON of the members, the tagged form among them."""
        return frozenset().union(*(member.bare for member in self.members))

    @cached_property
    def types(self) -> tuple[type, ...]:  # type: ignore[override]
        """The classes of all members; empty if a member leaves them open."""
        if not all(member.types for member in self.members):
            return ()
        return tuple({cls for member in self.members for cls in member.types})

    @cached_property
    def _by_class(self) -> dict[type, list[Plan]]:
        found: dict[type, list[Plan]] = {}
        for member in self.members:
            for cls in member.types:
                found.setdefault(cls, []).append(member)
        return found

    @cached_property
    def _loose(self) -> frozenset[int]:
        """The ids of the members that share a class with another member, or leave their classes open."""
        shared = {id(m) for same in self._by_class.values() if len(same) > 1 for m in same}
        return frozenset(shared | {id(member) for member in self.members if not member.types})

    @cached_property
    def _owners(self) -> dict[str, Plan]:
        """The member that untagged JSON of a kind belongs to, by kind."""
        owners: dict[str, Plan] = {}
        for kind in self.bare - {"tagged"}:
            able = [m for m in self.members if kind in m.bare]
            plain = [m for m in able if m.plain]
            chosen = plain or able
            if len(chosen) == 1 and id(chosen[0]) not in self._loose:
                owners[kind] = chosen[0]
        return owners

    @cached_property
    def _is_bare(self) -> dict[int, bool]:
        return {id(m): bool(m.bare) and all(self._owners.get(kind) is m for kind in m.bare) for m in self.members}

    @cached_property
    def _scalars(self) -> frozenset[type]:
        """The classes of the members if JSON itself shows all of them; else empty."""
        if all(m.plain and m.types and {*m.types} <= SCALARS and id(m) not in self._loose for m in self.members):
            return frozenset(self._by_class)
        return frozenset()

    @cached_property
    def twin(self) -> Any:
        """The union of the members' classes if JSON itself shows all of them, else Any."""
        return Union[tuple(self._scalars)] if self._scalars else Any  # noqa: UP007  # they are known only here

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True if the union has no twin."""
        return not self._scalars

    def are_json(self, values: list[Any], depth: int) -> bool:
        return bool(self._scalars) and {*map(type, values)} <= self._scalars and are_exact(values)

    def dump(self, value: Any, depth: int) -> Any:
        same = self._by_class.get(type(value), ())
        if len(same) == 1 and id(same[0]) not in self._loose:
            member = same[0]
            return member.dump(value, depth) if self._is_bare[id(member)] else member.wrap(value, depth)
        first: Refusal | None = None
        for member in same or self.members:
            try:
                member.dump(value, depth)
            except Refusal as refusal:
                if first is None or len(refusal.steps) > len(first.steps):
                    first = refusal
            else:
                return self._untyped.wrap(value, depth)
        if first is not None and (first.steps or not first.expected):
            raise first
        raise self.contradicted(value)

    def load(self, raw: Any, bare: bool) -> Any:
        if not bare and type(raw) is dict and MARK in raw:
            tag, name = read_mark(raw)
            able = [m for m in self.members if id(m) not in self._loose and m.opens(tag, name)]
            if len(able) == 1:
                return able[0].load(raw, bare)
        else:
            owner = self._owners.get(json_kind(raw))
            if owner is not None:
                return owner.load(raw, bare)
        value = self._untyped.load(raw, bare)
        if not self._admits(value):
            raise self.unreadable(raw)
        return value

    def _admits(self, value: Any) -> bool:
        try:
            self.dump(value, 0)
        except Unreadable:
            raise
        except Refusal:
            return False
        return True
