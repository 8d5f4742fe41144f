"""Plans of Enum members and of Literal.

If the declared type names the enum, a member is written as its value; elsewhere as its name, or as its number for
a combination of flags. A member is looked up in the class, which is never called with recorded data, except for
combinations of flags.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, Flag
from functools import cached_property
from typing import Any

from .containers import encode_sorted
from .plan import MARK, NotCarried, Plan, Refusal, json_kind, qualified, read_mark
from .scalars import MAX_INT, MIN_INT


class EnumPlan(Plan):
    """The plan of the members of an Enum class. `untyped` writes their values, `name_of` gives the class's tag."""

    tag = "enum"

    def __init__(self, cls: type[Enum], untyped: Plan, name_of: Callable[[type], str]) -> None:
        self.cls = cls
        self.types = (cls,)
        self.expected = qualified(cls)
        self._untyped, self._name_of = untyped, name_of

    @cached_property
    def _written(self) -> dict[str, Any]:
        """The JSON of each member by name, without members whose value can't be carried."""
        written = {}
        for member in self.cls:
            try:
                form = self._untyped.wrap(member._value_, 0)
                encode_sorted(form)
            except (Refusal, RecursionError):
                continue
            written[member._name_ or ""] = form
        return written

    @cached_property
    def _by_form(self) -> dict[bytes, Enum]:
        """The members by their value's JSON, without members that share their value's JSON with another."""
        found: dict[bytes, list[str]] = {}
        for name, form in self._written.items():
            found.setdefault(encode_sorted(form), []).append(name)
        return {form: self.cls[names[0]] for form, names in found.items() if len(names) == 1 and names[0]}

    @cached_property
    def bare(self) -> frozenset[str]:  # type: ignore[override]
        """The kinds of JSON of the members' values."""
        if issubclass(self.cls, Flag):
            return frozenset({"int"})
        forms = self._written.values()
        return frozenset("tagged" if type(form) is dict and MARK in form else json_kind(form) for form in forms)

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not self.cls:
            raise self.contradicted(value)
        name = value._name_ or ""
        if name in self._written and self._by_form.get(encode_sorted(self._written[name])) is value:
            return self._written[name]
        if isinstance(value, Flag) and type(value._value_) is int:
            return self._untyped.wrap(value._value_, depth)
        return self.wrap(value, depth)

    def wrap(self, value: Any, depth: int) -> Any:
        if type(value) is not self.cls:
            raise self.contradicted(value)
        name = value._name_
        if name in self.cls.__members__ and self.cls.__members__[name] is value:
            return {MARK: "enum", "t": self._name_of(self.cls), "v": name}
        if isinstance(value, Flag) and type(value._value_) is int:
            return {MARK: "enum", "t": self._name_of(self.cls), "v": self._untyped.wrap(value._value_, depth)}
        raise NotCarried("it is no member that its class lists", type_name=qualified(self.cls))

    def opens(self, tag: Any, name: Any) -> bool:
        return tag == "enum" and name is not None and name in (self.cls.__name__, qualified(self.cls))

    def load(self, raw: Any, bare: bool) -> Any:
        if not bare and type(raw) is dict and self.opens(*read_mark(raw)):
            return self._open(raw.get("v"))
        try:
            member = self._by_form.get(encode_sorted(raw))
        except (TypeError, ValueError, RecursionError) as exc:
            raise self.unreadable(raw) from exc
        return self._combination(raw) if member is None else member

    def _open(self, v: Any) -> Any:
        if type(v) is str and v in self.cls.__members__:
            return self.cls.__members__[v]
        return self._combination(v)

    def _combination(self, raw: Any) -> Any:
        if issubclass(self.cls, Flag):
            try:
                value = self._untyped.load(raw, False)
                if type(value) is int and (member := self.cls(value))._value_ == value:
                    return member
            except (Refusal, ValueError, TypeError) as exc:
                raise self.unreadable(raw, "the class has no such member") from exc
        raise self.unreadable(raw, "the class has no such member")


class LiteralPlan(Plan):
    """The plan of `Literal[...]`, which takes one of the listed values, of exactly the same type."""

    plain = True

    def __init__(self, values: tuple[Any, ...], untyped: Plan) -> None:
        self.values = values
        self.types = tuple({type(value) for value in values})
        self.expected = f"Literal[{', '.join(map(repr, values))}]"
        self._untyped = untyped

    @cached_property
    def bare(self) -> frozenset[str]:  # type: ignore[override]
        """The kinds of JSON of the listed values."""
        return frozenset(json_kind(value) for value in self.values) - {""}

    def _is_listed(self, value: Any) -> bool:
        return any(type(value) is type(listed) and value == listed for listed in self.values)

    def dump(self, value: Any, depth: int) -> Any:
        if not self._is_listed(value):
            refusal = self.contradicted(value)
            if type(value) in (str, bool) or (type(value) is int and MIN_INT <= value <= MAX_INT):
                refusal.found = repr(value)
            raise refusal
        return self._untyped.wrap(value, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        value = self._untyped.load(raw, bare)
        if not self._is_listed(value):
            raise self.unreadable(raw)
        return value
