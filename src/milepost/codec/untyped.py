"""Plans of places whose declared type does not fix the class of a value: unions, Any, unknown classes, aliases.

`UnionPlan` writes the bare form if the JSON shows which member it is, else the tagged form. `UntypedPlan` is the
self-describing form. It finds the plan of a value by its exact class, and of a tagged object by its tag, in tables of
Python's own classes and of those that the codec's annotations, `types=` and `register` name. A name in a record is only
looked up there; nothing is ever imported by it.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from math import isfinite
from pathlib import PurePath
from typing import Any, Optional, Union

import msgspec

from milepost.errors import OptionError, shown

from .containers import DictPlan, ListPlan, SequencePlan, dump_items, load_items
from .families import family_of
from .plan import (
    MARK,
    MAX_DEPTH,
    NotCarried,
    Plan,
    Refusal,
    Unreadable,
    json_kind,
    key_step,
    qualified,
    read_mark,
    too_deep,
)
from .scalars import MAX_INT, MIN_INT, PATHS, SCALARS, NonePlan, PathPlan, are_exact, checked_text, scalar_plans


class Registration(msgspec.Struct, frozen=True):
    """The two functions that turn values of one class into carried values and back."""

    type: type
    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_by_type: dict[type, Registration] = {}
_by_tag: dict[str, Registration] = {}


def register(type: type, tag: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Register a class with the codec, for the whole process.

    `encode` gives a value that the codec carries; `decode` makes an equal object from it. `tag` names the
    class in records for ever; another class may take it over only if it has the same module and name, as
    after a reload. Subclasses are not covered. Register a class before a codec is made whose types name it.

    Raises OptionError if `type` is no class, or `tag` is empty or belongs to another class.
    """
    if not isinstance(type, _class):
        raise OptionError(f"codec.register needs a class, not {shown(type)}", option="type")
    if not isinstance(tag, str) or not tag:
        raise OptionError(
            f"the tag of {qualified(type)} must be a text that is not empty, not {shown(tag)}", option="tag"
        )
    holder = _by_tag.get(tag)
    if holder is not None and qualified(holder.type) != qualified(type):
        raise OptionError(
            f"the tag {shown(tag)} belongs to {qualified(holder.type)}: register {qualified(type)} under another one",
            option="tag",
        )
    if holder is not None:
        _by_type.pop(holder.type, None)
    earlier = _by_type.get(type)
    if earlier is not None:
        _by_tag.pop(earlier.tag, None)
    _by_type[type] = _by_tag[tag] = Registration(type, tag, encode, decode)


def find_by_type(cls: type) -> Registration | None:
    """Give the registration of exactly this class."""
    return _by_type.get(cls)


def find_by_tag(tag: str) -> Registration | None:
    """Give the registration that has this tag."""
    return _by_tag.get(tag)


_class = type


class OptionalPlan(Plan):
    """The plan of `X | None`. If X itself may be written as null, its values are wrapped."""

    def __init__(self, inner: Plan) -> None:
        self.inner = inner
        self.declared = (inner, NonePlan())
        """The members, as those of a union."""
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

    def revive_all(self, twins: Sequence[Any]) -> list[Any]:
        some = iter(self.inner.revive_all([twin for twin in twins if twin is not None]))
        return [None if twin is None else next(some) for twin in twins]

    @cached_property
    def may_be_json(self) -> bool:  # type: ignore[override]
        """True if null is None, and the inner type's values may be JSON as they are."""
        return self._null_is_none and self.inner.may_be_json

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

    def __init__(self, declared: tuple[Plan, ...], untyped: Plan, expected: str) -> None:
        self.declared = declared
        """The members as they are declared: the target of an alias among them may not be known yet."""
        self.expected = expected
        self._untyped = untyped

    @cached_property
    def members(self) -> tuple[Plan, ...]:
        """The members, those of unions behind aliases among them, each once."""
        members: dict[Any, Plan] = {}
        seen: dict[int, Plan] = {}
        left = [*self.declared]
        while left:
            plan = left.pop(0)
            if id(plan) in seen:  # an alias may refer to itself
                continue
            seen[id(plan)] = plan
            if isinstance(plan, LaterPlan):
                left.insert(0, plan.target)
            elif isinstance(plan, (UnionPlan, OptionalPlan)):
                left[:0] = plan.declared
            else:
                members.setdefault(NonePlan if isinstance(plan, NonePlan) else id(plan), plan)
        return tuple(members.values())

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
        members: dict[type, list[Plan]] = {}
        for member in self.members:
            for cls in member.types:
                members.setdefault(cls, []).append(member)
        return members

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

    @cached_property
    def may_be_json(self) -> bool:  # type: ignore[override]
        """True if JSON itself shows the classes of all members."""
        return bool(self._scalars)

    def are_json(self, values: list[Any], depth: int) -> bool:
        return bool(self._scalars) and {*map(type, values)} <= self._scalars and are_exact(values)

    def dump(self, value: Any, depth: int) -> Any:
        same = self._by_class.get(type(value), ())
        if len(same) == 1 and id(same[0]) not in self._loose:
            member = same[0]
            return member.dump(value, depth) if self._is_bare[id(member)] else member.wrap(value, depth)
        with _remembering() as checked:
            place = (id(self), id(value))
            if place not in checked:
                self._check(value, depth)
                checked[place] = value
            return self._untyped.wrap(value, depth)

    def _check(self, value: Any, depth: int) -> None:
        """Raise a refusal unless the value is one of a member."""
        first: Refusal | None = None
        for member in self._by_class.get(type(value)) or self.members:
            try:
                member.dump(value, depth)
                return
            except Refusal as refusal:
                if first is None or len(refusal.steps) > len(first.steps):
                    first = refusal
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
        with _remembering() as checked:
            value = self._untyped.load(raw, bare)
            if not self._admits(value):
                raise self.unreadable(raw)
            checked[id(self), id(value)] = value
        return value

    def _admits(self, value: Any) -> bool:
        try:
            self._check(value, 0)
        except Unreadable:
            raise
        except Refusal:
            return False
        return True


class _Checked(threading.local):
    """For each union and value inside the one that is written or read now, both by id, the value, which was found to be one of
    a member. Without it, each level of a type that contains itself would be checked twice as often as the one around it.
    """

    values: dict[tuple[int, int], Any] | None = None


_checked = _Checked()


@contextmanager
def _remembering() -> Iterator[dict[tuple[int, int], Any]]:
    """Give what is remembered until the outermost of such blocks ends."""
    is_outermost = _checked.values is None
    if is_outermost:
        _checked.values = {}
    assert _checked.values is not None
    try:
        yield _checked.values
    finally:
        if is_outermost:
            _checked.values = None


_PLAIN = SCALARS | {list, dict}
_CONSTANTS = frozenset({type(None), bool})


class UntypedPlan(Plan):
    """The plan of Any, and the table of the classes that a codec knows."""

    plain = True
    revives = False
    keeps_text = True
    may_be_json = True
    bare = frozenset({"null", "bool", "int", "float", "str", "list", "dict"})
    expected = "any carried value"

    def __init__(self) -> None:
        self._classes: dict[str, list[type]] = {}
        self._by_type: dict[type, Plan] = {}
        self._by_tag: dict[str, Plan] = {}
        self._by_name: dict[tuple[str, str], list[Plan]] = {}
        for plan in (*scalar_plans(), *(PathPlan(cls) for cls in PATHS.values())):
            self._by_type[plan.types[0]] = plan
            self._by_tag.setdefault(plan.tag, plan)
        self._by_tag["path"] = _AnyPathPlan()
        for cls in (tuple, set, frozenset, deque):
            self._by_type[cls] = self._by_tag[cls.__name__] = SequencePlan(cls, self)
        for mapping in (dict, OrderedDict, defaultdict, Counter):
            self._by_type[mapping] = self._by_tag[mapping.__name__.lower()] = DictPlan(mapping, self, self)
        self._by_type[list] = ListPlan(self)
        self._by_tag.pop("", None)

    def know(self, cls: type, plan: Plan) -> None:
        """Enter a class with the plan of its values."""
        if cls in self._by_type:
            return
        self._by_type[cls] = plan
        self._classes.setdefault(cls.__name__, []).append(cls)
        for name in {cls.__name__, qualified(cls)}:
            self._by_name.setdefault((plan.tag, name), []).append(plan)

    def knows_subclass(self, cls: type) -> bool:
        """Return whether values of some subclass of `cls` are carried."""
        try:
            return any(issubclass(known, cls) for known in self._by_type)
        except TypeError:
            return False

    def name_of(self, cls: type) -> str:
        """Give the name of a known class in records: the short one, or with its module if two classes share that."""
        same = self._classes.get(cls.__name__, ())
        if len(same) < 2:
            return cls.__name__
        full = qualified(cls)
        if sum(qualified(other) == full for other in same) > 1:
            raise NotCarried(
                f"two known classes are both named {full}, so a record can't tell them apart", type_name=full
            )
        return full

    # -- writing -------------------------------------------------------------------------------------

    def dump(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls is str:
            return value if value.isascii() else checked_text(value)
        if value is None or cls is bool or (cls is int and MIN_INT <= value <= MAX_INT):
            return value
        registration = find_by_type(cls)
        if registration is not None:
            return dump_registered(registration, value, self, depth)
        if cls is list:
            return dump_items(self, value, depth)
        if cls is dict and depth < MAX_DEPTH and MARK not in value:
            return self._dump_dict(value, depth)
        plan = self._by_type.get(cls)
        if plan is None:
            raise refuse_unknown(value)
        return plan.wrap(value, depth)

    def _dump_dict(self, value: dict[Any, Any], depth: int) -> Any:
        out: dict[str, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                if type(key) is not str or not key.isascii():
                    break
                cls = type(item)
                is_json = item.isascii() if cls is str else cls in _CONSTANTS or (cls is float and isfinite(item))
                out[key] = item if is_json else self.dump(item, depth + 1)
            else:
                return out
        except Refusal as refusal:
            refusal.steps.append(key_step(key))
            raise
        return self._by_type[dict].wrap(value, depth)

    def are_json(self, values: list[Any], depth: int) -> bool:
        return are_exact(values)

    # -- reading -------------------------------------------------------------------------------------

    def load(self, raw: Any, bare: bool) -> Any:
        if bare:
            return raw
        cls = type(raw)
        if cls is list:
            return load_items(self, raw, bare)
        if cls is dict:
            if MARK in raw:
                return self._find(raw).load(raw, False)
            return self._load_dict(raw)
        if cls in _PLAIN:
            return raw
        raise self.unreadable(raw)

    def _load_dict(self, raw: dict[Any, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        key: Any = None
        try:
            for key, item in raw.items():
                if type(key) is not str:
                    raise self.unreadable(key)
                out[key] = item if type(item) in SCALARS else self.load(item, False)
        except Refusal as refusal:
            refusal.steps.append(key_step(key))
            raise
        return out

    def _find(self, raw: dict[str, Any]) -> Plan:
        tag, name = read_mark(raw)
        if tag == "custom":
            registration = find_by_tag(name) if name is not None else None
            if registration is None:
                raise self.unreadable(raw, f"no class is registered under the tag {name!r}: call codec.register first")
            return RegisteredPlan(registration, self)
        if name is not None and tag in ("object", "enum"):
            plans = self._by_name.get((tag, name), ())
            if len(plans) == 1:
                return plans[0]
            why = "is not known here: pass types=[...]" if not plans else "names several known classes"
            raise self.unreadable(raw, f"the class {name!r} {why}")
        plan = self._by_tag.get(tag)
        if plan is None:
            raise self.unreadable(raw, "no such kind of value is known")
        return plan


class _AnyPathPlan(PathPlan):
    """A plan that reads a path of any class, by the class that its tag names."""

    def __init__(self) -> None:
        super().__init__(PurePath)


def dump_registered(registration: Registration, value: Any, untyped: Plan, depth: int) -> dict[str, Any]:
    """Write a value of a registered class; the result of its `encode` is written as an untyped value."""
    if depth >= MAX_DEPTH:
        raise too_deep(value)
    try:
        plain = registration.encode(value)
    except Exception as exc:  # user code
        raise NotCarried(
            f"its registered encode failed: {shown(exc, 1000)}", type_name=qualified(registration.type)
        ) from exc
    return {MARK: "custom", "t": registration.tag, "v": untyped.wrap(plain, depth + 1)}


class RegisteredPlan(Plan):
    """The plan of a registered class; its values are always tagged."""

    tag = "custom"

    def __init__(self, registration: Registration, untyped: Plan) -> None:
        self._registration, self._untyped = registration, untyped
        self.types = (registration.type,)
        self.expected = qualified(registration.type)

    def opens(self, tag: Any, name: Any) -> bool:
        return bool(tag == "custom" and name == self._registration.tag)

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not self._registration.type:
            raise self.contradicted(value)
        return dump_registered(self._registration, value, self._untyped, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        if type(raw) is not dict or not self.opens(*read_mark(raw)) or "v" not in raw:
            raise self.unreadable(raw)
        plain = self._untyped.load(raw["v"], False)
        try:
            value = self._registration.decode(plain)
        except Exception as exc:  # user code
            raise self.unreadable(raw, f"its registered decode failed: {shown(exc, 1000)}") from exc
        if type(value) is not self._registration.type:
            raise self.unreadable(raw, f"its registered decode gave a {qualified(type(value))}")
        return value


class OpaquePlan(Plan):
    """The plan of a class that is abstract or can't be carried; values of known subclasses are carried."""

    def __init__(self, cls: Any, expected: str, untyped: UntypedPlan) -> None:
        self.cls, self.expected, self._untyped = cls, expected, untyped

    @property
    def is_carried(self) -> bool:
        """True if some value of the declared type can be carried."""
        if getattr(self.cls, "_is_protocol", False):  # any known class may fit it
            return True
        return isinstance(self.cls, type) and (
            find_by_type(self.cls) is not None or self._untyped.knows_subclass(self.cls)
        )

    def _admits(self, value: Any) -> bool:
        try:
            return isinstance(value, self.cls)
        except TypeError:  # a Protocol that is not checked at runtime, or no class at all
            return True

    def dump(self, value: Any, depth: int) -> Any:
        if not self._admits(value):
            raise self.contradicted(value)
        return self._untyped.wrap(value, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        value = self._untyped.load(raw, bare)
        if not self._admits(value):
            raise self.unreadable(raw)
        return value


class LaterPlan(Plan):
    """A placeholder for a type alias that refers to itself; `target` is set once its plan is known."""

    target: Plan

    def __init__(self, expected: str) -> None:
        self.expected = expected

    @property
    def types(self) -> tuple[type, ...]:  # type: ignore[override]
        """The classes of the alias's type."""
        return self.target.types

    @property
    def bare(self) -> frozenset[str]:  # type: ignore[override]
        """The kinds of JSON of the alias's type."""
        return self.target.bare

    def dump(self, value: Any, depth: int) -> Any:
        return self.target.dump(value, depth)

    def wrap(self, value: Any, depth: int) -> Any:
        return self.target.wrap(value, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        return self.target.load(raw, bare)


def refuse_unknown(value: Any) -> Refusal:
    """Make the refusal of a value whose class is not known, with the hint that fits it."""
    cls = type(value)
    name = qualified(cls)
    if isinstance(value, type):
        return NotCarried(f"the class {qualified(value)} itself is no value that is recorded", type_name=name)
    if advice := advice_for(cls):
        why = advice
    elif family_of(cls) is None and not isinstance(value, Enum):
        why = "no object of that class is carried: give plain values or a dataclass instead, or use codec.register"
    else:
        why = f"its class is not known: pass types=[{cls.__name__}], name it in an annotation, or use codec.register"
    return NotCarried(why, type_name=name)


def advice_for(cls: Any) -> str:
    """Advise on values of a class that should be kept outside of records; "" for any other class."""
    package, name = getattr(cls, "__module__", "").partition(".")[0], getattr(cls, "__name__", "")
    if package == "pydantic" and name.startswith("Secret"):
        return "a masked secret must not be stored: keep it out of the state and pass it by deps="
    if package in ("pandas", "polars", "pyarrow", "modin") and name in _FRAMES:
        return "write it to a file (Parquet, CSV) and return the path"
    return ""


_FRAMES = frozenset({"DataFrame", "Series", "LazyFrame", "Table", "GeoDataFrame"})
