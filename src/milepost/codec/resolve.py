"""The resolver, which turns declared types into plans and collects the classes that they reach.

The functions at the end read annotations: they resolve names, strip decorations and fill in type variables.
"""

from __future__ import annotations

import builtins
import collections
import collections.abc
import enum
import functools
import inspect
import pathlib
import sys
import types as builtin_types
import typing
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    ForwardRef,
    NotRequired,
    Required,
    Self,
    TypeVar,
    get_args,
    get_origin,
)

from milepost.errors import shown

from .containers import DictPlan, FixedTuplePlan, ListPlan, SequencePlan
from .families import Family, FieldSpec, family_of
from .plan import Plan
from .records import RecordPlan
from .scalars import EnumPlan, IntPlan, LiteralPlan, NonePlan, PathPlan, StrPlan, scalar_plans
from .untyped import (
    LaterPlan,
    OpaquePlan,
    OptionalPlan,
    RegisteredPlan,
    UnionPlan,
    UntypedPlan,
    advice_for,
    find_by_type,
)

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
_MOST_WITHIN = 20
"""Number of times that a generic class may be within itself, each time with other type arguments."""


class Resolver:
    """The maker of one codec's plans, which all share one table of known classes.

    `problems` lists the declared fields that can't be carried: the path of the field, and a sentence.
    """

    def __init__(self, *, known: Iterable[Any] = (), drop_unknown: bool = False) -> None:
        self.untyped = UntypedPlan()
        self._known = tuple(known)
        self._drop_unknown = drop_unknown
        self._simple: dict[type, Plan] = {plan.types[0]: plan for plan in scalar_plans()}
        # Type checkers accept an int for a declared float, and both for a declared complex number.
        numbers = (self._simple[float], self._simple[int])
        self._simple[float] = UnionPlan(numbers, self.untyped, "float")
        self._simple[complex] = UnionPlan((self._simple[complex], *numbers), self.untyped, "complex")
        self._records: dict[Any, RecordPlan] = {}
        self._enums: dict[type, EnumPlan] = {}
        self._aliases: dict[Any, LaterPlan] = {}
        self._namespaces: list[dict[str, Any]] = []
        """The names of the modules of the classes and aliases that are resolved now, the innermost last."""
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
        origin, arguments = get_origin(annotation), get_args(annotation)
        alias = annotation if origin is None else origin  # what has arguments has the attributes of its origin, too
        if hasattr(alias, "__value__") and not isinstance(alias, type):
            return self._alias(annotation, alias, arguments, path, variables)
        if origin is typing.Union or origin is builtin_types.UnionType:
            return self._union([self.plan(a, path, variables) for a in arguments], type_text(annotation))
        if origin is typing.Literal:
            return self._literal(arguments, path)
        if isinstance(annotation, (str, ForwardRef)):
            return self._named(annotation, path)
        if isinstance(annotation, TypeVar):
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
        if _is_no_class_of_values(cls):
            return self.untyped
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
        key = _key_of(cls, filled)
        plan = self._records.get(key)
        if plan is not None:
            if id(plan) in self._unfinished:
                plan.mark_recursive()
            return plan
        if filled and sum(p.cls is cls and id(p) in self._unfinished for p in self._records.values()) > _MOST_WITHIN:
            self._broken.append(
                (path, f"objects of {type_text(cls)} hold others with other type arguments without end")
            )
            return self._record(family, (), cls, path, {})
        plan = RecordPlan(
            family,
            self.untyped,
            self.untyped.name_of,
            expected=type_text(annotation),
            drop_unknown=self._drop_unknown,
        )
        self._records[key] = plan
        if plan.refusal:
            self._refused[path] = type_text(cls)
            self._broken.append((path, f"objects of {type_text(cls)} cannot be recorded: {plan.refusal}"))
        if not filled and not family.is_mapping:
            self.untyped.know(cls, plan)
        self._unfinished.add(id(plan))
        self._set_fields(plan, path, {**variables_of(cls, filled), Self: cls[filled] if filled else cls})
        self._unfinished.discard(id(plan))
        if filled and not family.is_mapping:
            self._record(family, (), cls, path, {})
        return plan

    def _set_fields(self, plan: RecordPlan, path: str, variables: dict[Any, Any]) -> None:
        cls, family = plan.cls, plan.family
        hints, failed = annotations_of(cls, (*family.names, *family.side_fields), self._known)
        self._namespaces.append(_names_of_module(cls))
        plans: dict[str, Plan] = {}
        optional: set[str] = set()
        for field in family.fields:
            place = f"{path}{plan.step(field.name)}"
            if field.name in failed and field.annotation is None:
                self._broken.append(
                    (place, f"{failed[field.name]}: define it at module level, or name it in types=[...]")
                )
            declared = field.annotation if field.annotation is not None else hints.get(field.name, Any)
            plans[field.name] = self.plan(declared, place, variables)
            if may_be_missing(field, declared):
                optional.add(field.name)
        plan.set_fields(plans, optional)
        # What is beside the fields is written as untyped values, for which classes have to be known, and no more.
        problems = len(self._broken), len(self._opaque)
        for name in family.side_fields:
            self.plan(hints.get(name, Any), path, variables)
        del self._broken[problems[0] :], self._opaque[problems[1] :]
        self._namespaces.pop()

    # -- other annotations -----------------------------------------------------------------------------

    def _union(self, members: list[Plan], expected: str) -> Plan:
        flat: list[Plan] = []
        for member in members:
            if isinstance(member, (OptionalPlan, UnionPlan)):
                flat += member.declared
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
        filled = tuple(reveal(insert(argument, variables), variables) for argument in arguments)
        inner = dict(zip(getattr(alias, "__type_params__", ()), filled, strict=False))

        def plan() -> Plan:
            return self.plan(alias.__value__, path, inner)

        self._namespaces.append({**_names_of_module(alias), alias.__name__: alias})
        try:
            return self._once(_key_of(alias, filled), annotation, path, plan)
        finally:
            self._namespaces.pop()

    def _named(self, annotation: str | ForwardRef, path: str) -> Plan:
        """Make the plan of a type that is named within another annotation, in the module of that one."""
        text = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        names = self._namespaces[-1] if self._namespaces else {}
        holder = SimpleNamespace(__annotations__={"named": text})
        try:
            found = typing.get_type_hints(holder, names, include_extras=True)["named"]
        except Exception as exc:  # user code runs when annotations are evaluated
            return self._unresolved(annotation, path, exc)
        return self._once(
            _key_of(text, (names.get("__name__"), found)), annotation, path, lambda: self.plan(found, path)
        )

    def _once(self, key: Any, annotation: Any, path: str, make: Callable[[], Plan]) -> Plan:
        """Return the plan of a name for a type, made once; a placeholder for it while that is being made."""
        later = self._aliases.get(key)
        if later is not None:
            return later if id(later) in self._unfinished else later.target
        later = self._aliases[key] = LaterPlan(type_text(annotation))
        self._unfinished.add(id(later))
        try:
            later.target = make()
        except Exception as exc:  # user code runs when annotations are evaluated
            later.target = self._unresolved(annotation, path, exc)
        self._unfinished.discard(id(later))
        return later.target

    def _unresolved(self, annotation: Any, path: str, exc: Exception) -> Plan:
        self._broken.append((path, f"its type {type_text(annotation)} cannot be resolved ({exc})"))
        return self.untyped


_DECORATIONS = tuple(
    getattr(typing, name)
    for name in ("Required", "NotRequired", "Final", "ClassVar", "ReadOnly")
    if hasattr(typing, name)
)


def may_be_missing(field: FieldSpec, annotation: Any) -> bool:
    """Return whether an object may lack a field.

    `Required` and `NotRequired` decide. Where annotations are texts, a TypedDict itself does not know of them.
    """
    while (origin := get_origin(annotation)) is Annotated or origin in _DECORATIONS:
        if origin in (Required, NotRequired):
            return origin is NotRequired
        annotation = get_args(annotation)[0]
    return field.optional


def _key_of(named: Any, arguments: tuple[Any, ...]) -> Any:
    """Return a key for a class or an alias with these arguments: 1 and True are two."""
    try:
        key = named, tuple((type(argument), argument) for argument in arguments)
        hash(key)
    except TypeError:  # an argument that can't be hashed
        return named, repr(arguments)
    return key


def _names_of_module(cls: Any) -> dict[str, Any]:
    return vars(sys.modules.get(getattr(cls, "__module__", ""), builtins))


def _is_no_class_of_values(cls: Any) -> bool:
    """Return whether a class of pydantic's stands in annotations only, such as `AwareDatetime`: no value is an object of it."""
    return (
        isinstance(cls, type)
        and cls.__module__.partition(".")[0] == "pydantic"
        and hasattr(cls, "__get_pydantic_core_schema__")
        and "__init__" not in vars(cls)
        and cls.__bases__ == (object,)
    )


def annotations_of(cls: Any, names: Iterable[str], known: Iterable[type]) -> tuple[dict[str, Any], dict[str, str]]:
    """Give the resolved annotations of a class's fields, and a reason for each that can't be resolved.

    Names are looked up in the class's module and body, and among the `known` classes.
    """
    if _is_own(cls):
        return _annotations_of_own(cls, tuple(names))
    return _resolved(cls, names, known)


def _is_own(cls: Any) -> bool:
    """Return whether a class is defined in a module of this library, so that its annotations never change."""
    module: str = cls.__module__
    return module.startswith("milepost.") and vars(sys.modules[module]).get(cls.__name__) is cls


@functools.cache
def _annotations_of_own(cls: Any, names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Resolve the annotations of a class of this library once. Each codec of a workflow knows the classes of results."""
    return _resolved(cls, names, ())


def _resolved(cls: Any, names: Iterable[str], known: Iterable[type]) -> tuple[dict[str, Any], dict[str, str]]:
    namespace = _names_for(cls, known)
    try:
        hints = typing.get_type_hints(cls, localns=namespace, include_extras=True)
        return {name: hints[name] for name in names if name in hints}, {}
    except Exception:  # user code runs when annotations are evaluated
        return _one_by_one(cls, names, namespace)


def _one_by_one(cls: Any, names: Iterable[str], namespace: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    resolved: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in names:
        for base in cls.__mro__:
            own = inspect.get_annotations(base)
            if name in own:
                module = vars(sys.modules.get(base.__module__, builtins))
                holder = SimpleNamespace(__annotations__={name: own[name]})
                try:
                    resolved[name] = typing.get_type_hints(holder, module, namespace, include_extras=True)[name]
                except Exception as exc:  # user code runs when annotations are evaluated
                    failed[name] = f"its annotation {own[name]!r} cannot be resolved ({exc})"
                break
    return resolved, failed


def _names_for(cls: Any, known: Iterable[type]) -> dict[str, Any]:
    """Give the classes, by name, that annotations of `cls` refer to before the names of its module.

    Classes in the class's body come first, as they do if annotations are evaluated at once. The `known` classes count
    only for names that the module does not have.
    """
    module = vars(sys.modules.get(cls.__module__, builtins))
    names: dict[str, Any] = {}
    taken = {*vars(builtins)} if "<locals>" in cls.__qualname__ else {*module, *vars(builtins)}
    for other in (cls, *known):
        if isinstance(other, type) and other.__name__ not in taken:
            names.setdefault(other.__name__, other)
    for base in reversed(cls.__mro__):
        names.update({name: value for name, value in vars(base).items() if isinstance(value, type)})
    return names


def variables_of(cls: Any, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Give the types that stand for the type variables of a generic class and of its generic bases."""
    variables: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and hasattr(origin, "__parameters__") and origin is not typing.Generic:
            inner = tuple(variables.get(argument, argument) for argument in get_args(base))
            for variable, argument in variables_of(origin, inner).items():
                variables.setdefault(variable, argument)
    return variables


def reveal(annotation: Any, variables: dict[Any, Any]) -> Any:
    """Strip decorations and aliases that are no types of their own, and fill in a type variable."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated or origin in _DECORATIONS:
            annotation = get_args(annotation)[0]
        elif annotation is Self:
            annotation = variables.get(Self, Any)
        elif hasattr(annotation, "__supertype__"):  # NewType
            annotation = annotation.__supertype__
        elif isinstance(annotation, TypeVar):
            annotation = _fill(annotation, variables)
        elif annotation in (Final, ClassVar):
            return Any
        elif annotation is getattr(typing, "LiteralString", None):
            return str
        else:
            return annotation


def _fill(variable: TypeVar, variables: dict[Any, Any]) -> Any:
    if variable in variables and variables[variable] is not variable:
        return variables[variable]
    if variable.__bound__ is not None and not isinstance(variable.__bound__, ForwardRef):
        return variable.__bound__
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007  # made from a tuple
    return Any


def insert(annotation: Any, variables: dict[Any, Any]) -> Any:
    """Replace the type variables in an annotation such as `list[T]` by their types."""
    inside = getattr(annotation, "__parameters__", ()) if get_origin(annotation) is not None else ()
    if not inside or not all(isinstance(variable, TypeVar) for variable in inside):
        return annotation
    return annotation[tuple(reveal(variable, variables) for variable in inside)]


def strip(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Give an annotation without its outer decorations, and the metadata of all `Annotated` among them."""
    metadata: tuple[Any, ...] = ()
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            metadata = (*metadata, *annotation.__metadata__)
        elif origin not in _DECORATIONS:
            return annotation, metadata
        annotation = get_args(annotation)[0]


def type_text(annotation: Any) -> str:
    """Write a type for people."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        name = annotation.__qualname__
        return name if annotation.__module__ == "builtins" else f"{annotation.__module__}.{name}"
    return shown(annotation, 1000).replace("typing.", "")
