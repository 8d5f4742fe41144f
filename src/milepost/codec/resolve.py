"""The resolver, which turns declared types into plans and collects the classes that they reach."""

from __future__ import annotations

import collections
import collections.abc
import enum
import pathlib
import types as builtin_types
import typing
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from .containers import ListPlan, SequencePlan
from .enums import EnumPlan, LiteralPlan
from .families import family_of
from .family import Family
from .hints import annotations_of, insert, reveal, type_text, variables_of
from .mappings import DictPlan
from .plan import MARK, Plan
from .records import RecordPlan
from .registry import find_by_type
from .scalars import IntPlan, NonePlan, PathPlan, StrPlan, scalar_plans
from .times import time_plans
from .tuples import FixedTuplePlan
from .unions import OptionalPlan, UnionPlan
from .untyped import LaterPlan, OpaquePlan, RegisteredPlan, UntypedPlan, advice_for

_ADVICE = "use codec.register, or keep them out of the state"
_SEQUENCES = (tuple, list, collections.deque)
_ABSTRACT: dict[Any, tuple[type, ...]] = {
    collections.abc.Sequence: _SEQUENCES,
    collections.abc.MutableSequence: (list, collections.deque),
    collections.abc.Set: (set, frozenset),
    collections.abc.MutableSet: (set,),
    collections.abc.Collection: (*_SEQUENCES, set, frozenset),
    collections.abc.Iterable: (*_SEQUENCES, set, frozenset),
    collections.abc.Container: (*_SEQUENCES, set, frozenset),
    collections.abc.Reversible: _SEQUENCES,
}
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_ABSTRACT_MAPPINGS = (collections.abc.Mapping, collections.abc.MutableMapping)
_BASE_ENUMS = (enum.Enum, enum.IntEnum, enum.StrEnum, enum.Flag, enum.IntFlag)
_BUILTIN_SEQUENCES = (tuple, set, frozenset, collections.deque)


class Resolver:
    """The maker of one codec's plans, which all share one table of known classes.

    `problems` lists the declared fields that can't be carried: the path of the field, and a sentence.
    """

    def __init__(self, *, known: Iterable[Any] = (), drop_unknown: bool = False) -> None:
        self.untyped = UntypedPlan()
        self._known = tuple(known)
        self._drop_unknown = drop_unknown
        self._simple: dict[type, Plan] = {plan.types[0]: plan for plan in (*scalar_plans(), *time_plans())}
        # Type checkers accept an int for a declared float, and both for a declared complex number.
        numbers = (self._simple[float], self._simple[int])
        self._simple[float] = UnionPlan(numbers, self.untyped, "float")
        self._simple[complex] = UnionPlan((self._simple[complex], *numbers), self.untyped, "complex")
        self._records: dict[Any, RecordPlan] = {}
        self._enums: dict[type, EnumPlan] = {}
        self._aliases: dict[int, LaterPlan] = {}
        self._unfinished: set[int] = set()
        self._opaque: list[tuple[str, OpaquePlan]] = []
        self._broken: list[tuple[str, str]] = []
        self._refused: dict[str, str] = {}

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """The declared fields that can't be carried: path and sentence."""
        opaque = [
            (path, f"values of {plan.expected} cannot be recorded: {advice_for(plan.cls) or _ADVICE}")
            for path, plan in self._opaque
            if not plan.is_carried
        ]
        return tuple(self._broken + opaque)

    @property
    def problem_types(self) -> dict[str, str]:
        """The declared types of the places in `problems`, if they are classes."""
        return self._refused | {path: plan.expected for path, plan in self._opaque}

    def plan(self, annotation: Any, path: str, variables: dict[Any, Any] | None = None) -> Plan:
        """Make the plan of a declared type; `path` is where it is declared, for `problems`."""
        variables = variables or {}
        annotation = reveal(annotation, variables)
        if annotation is Any or annotation is object:
            return self.untyped
        if annotation is None:
            return NonePlan()
        if hasattr(annotation, "__value__") and not isinstance(annotation, type):
            return self._alias(annotation, annotation, (), path, variables)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if hasattr(origin, "__value__"):
            return self._alias(annotation, origin, arguments, path, variables)
        if origin is typing.Union or origin is builtin_types.UnionType:
            return self._union([self.plan(a, path, variables) for a in arguments], type_text(annotation))
        if origin is typing.Literal:
            return self._literal(arguments, path)
        if isinstance(annotation, (str, typing.ForwardRef, typing.TypeVar)):
            self._broken.append((path, f"its type {annotation!r} cannot be resolved"))
            return self.untyped
        return self._class(origin or annotation, arguments, annotation, path, variables)

    # -- classes -------------------------------------------------------------------------------------

    def _class(
        self, cls: Any, arguments: tuple[Any, ...], annotation: Any, path: str, variables: dict[Any, Any]
    ) -> Plan:
        registration = find_by_type(cls) if isinstance(cls, type) else None
        if registration is not None:
            return RegisteredPlan(registration, self.untyped)
        if cls in self._simple:
            return self._simple[cls]
        container = self._container(cls, arguments, annotation, path, variables)
        if container is not None:
            return container
        if isinstance(cls, type):
            if issubclass(cls, enum.Enum) and cls not in _BASE_ENUMS:
                return self._enum(cls)
            if issubclass(cls, pathlib.PurePath) and cls.__module__.startswith("pathlib"):
                return PathPlan(cls)
            family = family_of(cls)
            if family is not None:
                return self._record(family, arguments, annotation, path, variables)
        plan = OpaquePlan(cls, type_text(annotation), self.untyped)
        self._opaque.append((path, plan))
        return plan

    def _container(
        self, cls: Any, arguments: tuple[Any, ...], annotation: Any, path: str, variables: dict[Any, Any]
    ) -> Plan | None:
        def inner(index: int, step: str) -> Plan:
            return self.plan(arguments[index], path + step, variables) if index < len(arguments) else self.untyped

        if cls is list:
            return ListPlan(inner(0, "[*]"))
        if cls is tuple and arguments != () and not (len(arguments) == 2 and arguments[1] is Ellipsis):
            return self._tuple(arguments, path, variables)
        if cls is tuple and arguments == () and annotation is not tuple and annotation is not typing.Tuple:  # noqa: UP006
            return FixedTuplePlan(())
        if cls in _BUILTIN_SEQUENCES:
            return SequencePlan(cls, inner(0, "[*]"))
        if cls in _MAPPINGS:
            value = self._simple[int] if cls is collections.Counter and arguments else inner(1, "[*]")
            return DictPlan(cls, inner(0, "[*]"), value)
        if cls in _ABSTRACT_MAPPINGS:
            key, value = inner(0, "[*]"), inner(1, "[*]")
            return self._union([DictPlan(mapping, key, value) for mapping in _MAPPINGS], type_text(annotation))
        if cls in _ABSTRACT:
            item = inner(0, "[*]")
            members: list[Plan] = [ListPlan(item) if c is list else SequencePlan(c, item) for c in _ABSTRACT[cls]]
            if list in _ABSTRACT[cls] and cls is not collections.abc.MutableSequence:
                members += [self._simple[str]] if item is self.untyped or isinstance(item, StrPlan) else []
                members += [self._simple[bytes]] if item is self.untyped or isinstance(item, IntPlan) else []
            return self._union(members, type_text(annotation))
        return None

    def _tuple(self, arguments: tuple[Any, ...], path: str, variables: dict[Any, Any]) -> Plan:
        items: list[Plan] = []
        repeated: tuple[int, Plan] | None = None
        for argument in arguments:
            unpacked = get_args(argument)[0] if get_origin(argument) is typing.Unpack else argument
            if unpacked is argument and not getattr(argument, "__unpacked__", False):
                items.append(self.plan(argument, f"{path}[{len(items)}]", variables))
                continue
            parts = get_args(unpacked)
            if get_origin(unpacked) is not tuple:  # a TypeVarTuple: anything
                return SequencePlan(tuple, self.untyped)
            if len(parts) == 2 and parts[1] is Ellipsis:
                repeated = len(items), self.plan(parts[0], f"{path}[*]", variables)
                continue
            inner = self._tuple(parts, path, variables)
            if not isinstance(inner, FixedTuplePlan):
                return inner
            if inner.repeated is not None:
                repeated = len(items) + inner.repeated[0], inner.repeated[1]
            items += inner.items
        return FixedTuplePlan(tuple(items), repeated)

    def _enum(self, cls: type[enum.Enum]) -> EnumPlan:
        plan = self._enums.get(cls)
        if plan is None:
            plan = self._enums[cls] = EnumPlan(cls, self.untyped, self.untyped.name_of)
            self.untyped.know(cls, plan)
        return plan

    def _record(
        self, family: Family, arguments: tuple[Any, ...], annotation: Any, path: str, variables: dict[Any, Any]
    ) -> RecordPlan:
        cls = family.cls
        filled = tuple(reveal(insert(argument, variables), variables) for argument in arguments)
        try:
            key: Any = (cls, tuple((type(a), a) for a in filled))
            plan = self._records.get(key)
        except TypeError:  # an argument that can't be hashed
            key, plan = (cls, repr(filled)), self._records.get((cls, repr(filled)))
        if plan is not None:
            if id(plan) in self._unfinished:
                plan.mark_recursive()
            return plan
        plan = RecordPlan(
            family,
            self.untyped,
            self.untyped.name_of,
            expected=type_text(annotation),
            drop_unknown=self._drop_unknown,
        )
        self._records[key] = plan
        if family.refusal:
            self._refused[path] = type_text(cls)
            self._broken.append((path, f"objects of {type_text(cls)} cannot be recorded: {family.refusal}"))
        if not filled and not family.is_mapping:
            self.untyped.know(cls, plan)
        self._unfinished.add(id(plan))
        self._set_fields(plan, path, variables_of(cls, filled))
        self._unfinished.discard(id(plan))
        if filled and not family.is_mapping:
            self._record(family, (), cls, path, {})
        return plan

    def _set_fields(self, plan: RecordPlan, path: str, variables: dict[Any, Any]) -> None:
        cls, family = plan.cls, plan.family
        hints, failed = annotations_of(cls, family.names, self._known)
        plans: dict[str, Plan] = {}
        for field in family.fields:
            place = f"{path}{plan.step(field.name)}"
            if field.name in failed and field.annotation is None:
                self._broken.append(
                    (place, f"{failed[field.name]}: define it at module level, or name it in types=[...]")
                )
            if field.name == MARK:
                self._broken.append((place, f"a field cannot be named {MARK!r}, which marks tagged values"))
            declared = field.annotation if field.annotation is not None else hints.get(field.name, Any)
            plans[field.name] = self.plan(declared, place, variables)
        plan.set_fields(plans)

    # -- other annotations -----------------------------------------------------------------------------

    def _union(self, members: list[Plan], expected: str) -> Plan:
        flat: list[Plan] = []
        for member in members:
            if isinstance(member, OptionalPlan):
                flat += [member.inner, NonePlan()]
            elif isinstance(member, UnionPlan):
                flat += member.members
            else:
                flat.append(member)
        if self.untyped in flat:
            return self.untyped
        distinct = {id(member) if not isinstance(member, NonePlan) else 0: member for member in flat}
        flat = list(distinct.values())
        some = [member for member in flat if not isinstance(member, NonePlan)]
        if len(some) == 1:
            return some[0] if len(flat) == 1 else OptionalPlan(some[0])
        return UnionPlan(tuple(flat), self.untyped, expected)

    def _literal(self, arguments: tuple[Any, ...], path: str) -> Plan:
        for value in arguments:
            if isinstance(value, enum.Enum):
                self._enum(type(value))
        return LiteralPlan(arguments, self.untyped)

    def _alias(
        self, annotation: Any, alias: Any, arguments: tuple[Any, ...], path: str, variables: dict[Any, Any]
    ) -> Plan:
        later = self._aliases.get(id(alias)) if not arguments else None
        if later is not None:
            return getattr(later, "target", later) if id(later) not in self._unfinished else later
        later = LaterPlan(type_text(annotation))
        if not arguments:
            self._aliases[id(alias)] = later
        self._unfinished.add(id(later))
        filled = [reveal(argument, variables) for argument in arguments]
        try:
            inner = dict(zip(getattr(alias, "__type_params__", ()), filled, strict=False))
            later.target = self.plan(alias.__value__, path, inner)
        except (NameError, RecursionError) as exc:
            self._broken.append((path, f"the alias {alias} cannot be resolved ({exc})"))
            later.target = self.untyped
        self._unfinished.discard(id(later))
        return later.target
