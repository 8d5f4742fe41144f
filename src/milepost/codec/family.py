"""The interface of families, which describe record classes to the codec, and the family of dataclasses.

A family lists the fields of a class, and reads and builds its objects without the class's code: no `__init__`
of a user, no `__post_init__`, no validator. So a recorded value comes back as it was, even if these would
change it. `families.py` has the families of the other kinds of record classes.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Generic, NamedTuple, Protocol, TypedDict

import msgspec

from .plan import qualified

_set = object.__setattr__
_DESCRIPTORS = frozenset({MemberDescriptorType, GetSetDescriptorType})


ATTRS_HASH = "_attrs_cached_hash"  # the attribute in which attrs caches a hash; a fresh object has none


class FieldSpec(msgspec.Struct, frozen=True):
    """One field: its name, its annotation if the class knows it better than its hints, and its default.

    `default` makes the value of a field that a record lacks; None: the field is required. An `optional`
    field may be missing in the value itself.
    """

    name: str
    annotation: Any = None
    default: Callable[[], Any] | None = None
    optional: bool = False
    metadata: tuple[Any, ...] = ()


class OfOthers(NamedTuple):
    """A placeholder for a default that is computed from the other fields, once these are read."""

    factory: Callable[[Any], Any]


class Family:
    """The reader and builder of one record class's objects. This class serves dataclasses."""

    is_mapping = False
    has_sides = False
    keeps_rows = False  # its objects are, or hold, dicts of their fields: `take_rows` instead of `build_all`

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.fields = tuple(self.list_fields())
        self.names = tuple(field.name for field in self.fields)

    def list_fields(self) -> Iterable[FieldSpec]:
        known = self.cls.__dict__.get("__pydantic_fields__", {})  # of a pydantic dataclass
        for field in dataclasses.fields(self.cls):
            default: Callable[[], Any] | None = None
            if field.name in known:
                default = pydantic_default(self.cls, field.name, known[field.name])
            elif field.default_factory is not dataclasses.MISSING:
                default = field.default_factory
            elif field.default is not dataclasses.MISSING:
                default = constant(field.default)
            yield FieldSpec(field.name, default=default)

    @property
    def class_defaults(self) -> dict[str, Any]:
        """The defaults that are attributes of the class, so that an object need not have its own."""
        if not dataclasses.is_dataclass(self.cls):
            return {}
        fields = dataclasses.fields(self.cls)
        return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}

    @cached_property
    def refusal(self) -> str:
        """The reason why no object of the class can be carried; "" if they can."""
        for base in self.cls.__mro__[:-1]:
            if not base.__flags__ & 1 << 9 and base not in _HARMLESS_BASES:  # a class that is written in C
                return f"it is a {qualified(base)} besides its fields"
        return ""

    @cached_property
    def is_native(self) -> bool:
        """True if msgspec finds the same fields of the same types, and writes all of them in their order."""
        return not any(name.startswith("_") for name in self.names) and self._has_plain_names

    @property
    def is_read_natively(self) -> bool:
        """True if msgspec's typed decoder makes the same objects, and runs no code of a user for it."""
        return self.is_native and self.has_generated_init

    @cached_property
    def _has_plain_names(self) -> bool:
        """True if names in annotations can refer only to names of the module."""
        inner = [value for base in self.cls.__mro__[:-1] for name, value in vars(base).items() if name[:2] != "__"]
        return "<locals>" not in self.cls.__qualname__ and not any(isinstance(value, type) for value in inner)

    @cached_property
    def _is_in_dict(self) -> bool:
        """True if the object's dict has all fields: none is in a slot or behind a property."""
        return bool(self.cls.__dictoffset__) and not any(
            hasattr(getattr(self.cls, name, None), "__set__") for name in self.names
        )

    @cached_property
    def has_generated_init(self) -> bool:
        """True if calling the class with the fields' values sets them and does nothing else.

        This is so if its `__init__` has the same code that `dataclass` writes for such fields, and no other code
        of a user runs when an object is made.
        """
        fields = dataclasses.fields(self.cls)
        init = self.cls.__init__
        if (
            type(self.cls).__call__ is not type.__call__
            or self.cls.__new__ is not object.__new__
            or hasattr(self.cls, "__post_init__")
            or not all(field.init and not field.kw_only for field in fields)
            or not hasattr(init, "__code__")
        ):
            return False
        is_frozen = self.cls.__dataclass_params__.frozen
        if not is_frozen and self.cls.__setattr__ is not object.__setattr__:
            return False
        given = [(f.name, Any, dataclasses.field(**_default_of(f))) for f in fields]
        twin = dataclasses.make_dataclass("Twin", given, frozen=is_frozen).__init__.__code__  # type: ignore[misc]
        code = init.__code__
        return all(
            getattr(code, part) == getattr(twin, part)
            for part in ("co_code", "co_names", "co_varnames", "co_freevars", "co_consts")
        )

    @cached_property
    def _name_set(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _slots_beyond(self) -> tuple[str, ...]:
        slots: list[str] = []
        for base in self.cls.__mro__:
            own = base.__dict__.get("__slots__", ())
            for slot in (own,) if isinstance(own, str) else tuple(own):
                mangled = slot.startswith("__") and not slot.endswith("__")
                slots.append(f"_{base.__name__.lstrip('_')}{slot}" if mangled else slot)
        return tuple(s for s in slots if s not in self.names and s not in _HARMLESS_ATTRIBUTES)

    def read(self, value: Any) -> Iterable[Any]:
        """Give the values of the fields. Raises AttributeError if one has none."""
        return [getattr(value, name) for name in self.names]

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        """Give one column for each field; None if an object may lack one, or has attributes beyond them."""
        if self._slots_beyond or not self.names:
            return None
        if self._is_in_dict:
            attributes = list(map(vars, values))
            if {*map(len, attributes)} != {len(self.names)}:
                return None
            try:
                return columns_of(self.names, attributes)
            except KeyError:
                return None
        if self.cls.__dictoffset__:
            return None
        try:
            return [list(map(attrgetter(name), values)) for name in self.names]
        except Exception:  # a property of a user: reading row by row finds out which
            return None

    def attribute_beyond(self, value: Any) -> str | None:
        """Name an attribute of an object that is no field; caches, which can be computed again, do not count."""
        attributes = getattr(value, "__dict__", None)
        if attributes and attributes.keys() != self._name_set:
            for name in attributes:
                if name not in self.names and name not in _HARMLESS_ATTRIBUTES and not _is_cache(self.cls, name):
                    return str(name)
        for name in self._slots_beyond:
            try:
                object.__getattribute__(value, name)
            except AttributeError:
                continue
            return name
        return None

    def finish_default(self, name: str, values: dict[str, Any]) -> Any:
        """Give the default of a field that a record lacks, as its class makes it; `values` has the values of all fields."""
        value = values[name]
        return value.factory(_without_open(values)) if type(value) is OfOthers else value

    def check_default(self, name: str, values: dict[str, Any]) -> None:
        """Raise the class's own error for a default that its validators refuse."""

    def settle_defaults(self, made: Any, missing: Sequence[str]) -> dict[str, Any]:
        """Give the values of the fields that a record lacks as validators of the whole object leave them; {}: as they are.

        The object stays as it is: what it has from the record must not change.
        """
        validator = _after_validator(self.cls) if hasattr(self.cls, "__pydantic_core_schema__") else None
        if validator is None:
            return {}
        settled = validator.validate_python(copy.deepcopy(made))
        return {name: getattr(settled, name) for name in missing}

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        """Make an object that has exactly these values of all its fields."""
        made = object.__new__(self.cls)
        for name, value in values.items():
            _set(made, name, value)
        return made

    def build_all(self, columns: Sequence[Iterable[Any]], count: int) -> list[Any]:
        """Make one object for each row of the columns."""
        if self.has_generated_init and not self.cls.__dataclass_params__.frozen:
            return list(map(self.cls, *columns))
        return build_blank(self.cls, count, zip(self.names, columns, strict=True))

    def take_rows(self, rows: list[dict[str, Any]]) -> list[Any]:
        """Make one object of each dict, which has a value for each field and nothing else; the object owns it then."""
        raise NotImplementedError

    def sides(self, value: Any) -> dict[str, Any]:
        """Give the values to record beside the fields, by their keys."""
        return {}

    def have_no_sides(self, values: list[Any]) -> bool:
        """Return whether none of these objects has values to record beside its fields."""
        return True

    def side_names(self, key: str) -> Collection[str] | None:
        """Give the names that may be recorded beside the fields under a key; None: any name."""
        return ()

    def rebuild(self, value: Any, values: dict[str, Any], changed: Iterable[str]) -> Any:
        """Make an object like `value` with these values; `changed` are the fields that were set anew."""
        return self.build(values)


def build_blank(cls: Any, count: int, columns: Iterable[tuple[str, Iterable[Any]]]) -> list[Any]:
    """Make objects without the code of their class, and set the attributes that the columns name."""
    made = list(map(object.__new__, repeat(cls, count)))
    for name, column in columns:
        attribute = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if type(attribute) in _DESCRIPTORS:  # `object.__setattr__` would look it up each time
            deque(map(attribute.__set__, made, column), maxlen=0)  # type: ignore[union-attr]
        else:
            deque(map(_set, made, repeat(name), column), maxlen=0)
    return made


def columns_of(names: tuple[str, ...], rows: list[Any]) -> list[list[Any]]:
    """Turn dicts into one column for each name. Raises KeyError if a dict lacks one."""
    return [list(map(itemgetter(name), rows)) for name in names]


def have_keys(rows: list[Any], names: tuple[str, ...]) -> bool:
    """Return whether each dict has exactly these keys, in this order."""
    # No dict has a key twice, so if the keys of all rows repeat the names, each row has each name once.
    keys = [*rows[0]]
    return keys == [*names] and [*chain.from_iterable(rows)] == keys * len(rows)


def rows_of(names: tuple[str, ...], columns: Sequence[Iterable[Any]]) -> list[dict[str, Any]]:
    """Turn columns into one dict for each row."""
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


_FEW_ROWS, _MANY_NAMES = 100, 100


class FieldValues(msgspec.Struct):
    """The fields' values of an object, in its written form; msgspec makes and writes this faster than a dict of them."""


def row_maker(names: tuple[str, ...]) -> Callable[..., Any]:
    """Give a function that makes a row with these names from their values, in that order."""
    places = [f"f{number}" for number in range(len(names))]
    renames = dict(zip(places, names, strict=True))
    try:
        return msgspec.defstruct("FieldValues", places, bases=(FieldValues,), rename=renames, gc=False)
    except ValueError:  # a key of a TypedDict that needs escapes in JSON
        return lambda *row: dict(zip(names, row, strict=True))


def twin_of(family: Family, types: tuple[Any, ...]) -> Any:
    """Make a class of only a family's fields, of these types: a TypedDict if `keeps_rows`, else a struct."""
    if family.keeps_rows:
        make: Any = TypedDict  # for type checkers it is no function
        return make("Twin", dict(zip(family.names, types, strict=True)))
    places = [f"f{number}" for number in range(len(types))]
    renames = dict(zip(places, family.names, strict=True))
    return msgspec.defstruct("Twin", [*zip(places, types, strict=True)], rename=renames, gc=False)


_known_maker = lru_cache(maxsize=256)(row_maker)


def written_rows(names: tuple[str, ...], columns: list[list[Any]]) -> list[Any]:
    """Turn columns into written rows; few rows, or rows of many names, become dicts, for which no class is made."""
    if len(columns[0]) < _FEW_ROWS or len(names) > _MANY_NAMES:
        return rows_of(names, columns)
    return list(map(_known_maker(names), *columns))


def _default_of(field: Any) -> dict[str, Any]:
    if field.default_factory is not dataclasses.MISSING:
        return {"default_factory": field.default_factory}
    return {} if field.default is dataclasses.MISSING else {"default": None}


_HARMLESS_ATTRIBUTES = frozenset(
    {"__dict__", "__weakref__", "__orig_class__", ATTRS_HASH, "__pydantic_extra__", "__pydantic_fields_set__"}
    | {"__pydantic_private__", "__slots__"}
)
_HARMLESS_BASES: tuple[Any, ...] = (Generic, Protocol, object)


def constant(value: Any) -> Callable[[], Any]:
    """Make a default that always gives the same value."""
    return lambda: value


def _without_open(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if type(value) is not OfOthers}


def pydantic_default(cls: Any, name: str, field: Any) -> Callable[[], Any] | None:
    """Give the default of a field of pydantic, validated where pydantic validates it; None if it is required."""
    if field.is_required():
        return None
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", {})
    if config.get("validate_default") if field.validate_default is None else field.validate_default:
        return constant(OfOthers(partial(_validated_default, cls, name)))
    if getattr(field, "default_factory_takes_validated_data", False):
        return constant(OfOthers(field.default_factory))
    return lambda: field.get_default(call_default_factory=True)


def _validated_default(cls: Any, name: str, values: dict[str, Any]) -> Any:
    """Have pydantic make and validate the default of one field; its validators see the fields before it."""
    validator, before = _default_validator(cls, name)
    return validator.validate_python({other: values[other] for other in before})[0][name]


@lru_cache(maxsize=256)
def _default_validator(cls: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Make a validator of one field that takes the fields before it as they are; return it with their names.

    The model's own validator cannot do that: it would run the model's validators and those of recorded fields.
    """
    schema, config, definitions = cls.__pydantic_core_schema__, None, []
    while schema["type"] not in ("model-fields", "dataclass-args"):
        definitions += schema.get("definitions", ())
        config = schema.get("config", config)
        if schema["type"] == "definition-ref":
            schema = next(each for each in definitions if each["ref"] == schema["schema_ref"])
        else:
            schema = schema["schema"]
    found = schema["fields"]
    schemas = (
        {other: each["schema"] for other, each in found.items()}
        if schema["type"] == "model-fields"
        else {each["name"]: each["schema"] for each in found}
    )
    before = tuple(schemas)[: tuple(schemas).index(name)]
    fields = {**{other: {"type": "any"} for other in before}, name: schemas[name]}
    whole: Any = {
        "type": "model-fields",
        "fields": {each: {"type": "model-field", "schema": inner} for each, inner in fields.items()},
    }
    if definitions:
        whole = {"type": "definitions", "schema": whole, "definitions": definitions}
    return sys.modules["pydantic_core"].SchemaValidator(whole, config), before


@lru_cache(maxsize=256)
def _after_validator(cls: Any) -> Any:
    """Make a validator of the class's own `model_validator(mode="after")` alone, for an object; None if it has none."""
    schema, definitions, functions = cls.__pydantic_core_schema__, [], []
    while schema["type"] not in ("model", "dataclass"):
        definitions += schema.get("definitions", ())
        if schema["type"] == "definition-ref":
            schema = next(each for each in definitions if each["ref"] == schema["schema_ref"])
            continue
        if schema["type"] == "function-after":
            functions.append(schema["function"])
        schema = schema["schema"]
    whole: Any = {"type": "any"}
    for function in reversed(functions):
        whole = {"type": "function-after", "function": function, "schema": whole}
    return sys.modules["pydantic_core"].SchemaValidator(whole) if functions else None


def _is_cache(cls: type, name: str) -> bool:
    attribute = getattr(cls, name, None)
    return type(attribute).__name__ == "cached_property" or name.startswith("_attrs_cached")
