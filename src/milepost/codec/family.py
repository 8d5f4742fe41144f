"""The interface of families, which describe record classes to the codec, and the family of dataclasses.

A family lists the fields of a class, and reads and builds its objects without the class's code: no `__init__`
of a user, no `__post_init__`, no validator. So a recorded value comes back as it was, even if these would
change it. `families.py` has the families of the other kinds of record classes.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, Protocol

import msgspec

from .plan import qualified

_set = object.__setattr__


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

    @cached_property
    def refusal(self) -> str:
        """The reason why no object of the class can be carried; "" if they can."""
        for base in self.cls.__mro__[:-1]:
            if not base.__flags__ & 1 << 9 and base not in _HARMLESS_BASES:  # a class that is written in C
                return f"it is a {qualified(base)} besides its fields"
        return ""

    @cached_property
    def _is_in_dict(self) -> bool:
        """True if the object's dict has all fields: none is in a slot or behind a property."""
        return bool(self.cls.__dictoffset__) and not any(
            hasattr(vars(base).get(name), "__set__") for base in self.cls.__mro__ for name in self.names
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
            return columns_of(self.names, attributes)
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
        if self._is_in_dict:
            vars(made).update(values)
        else:
            for name, value in values.items():
                _set(made, name, value)
        return made

    def sides(self, value: Any) -> dict[str, Any]:
        """Give the values to record beside the fields, by their keys."""
        return {}

    def side_names(self, key: str) -> Collection[str] | None:
        """Give the names that may be recorded beside the fields under a key; None: any name."""
        return ()

    def rebuild(self, value: Any, values: dict[str, Any], changed: Iterable[str]) -> Any:
        """Make an object like `value` with these values; `changed` are the fields that were set anew."""
        return self.build(values)


def columns_of(names: tuple[str, ...], rows: list[Any]) -> list[list[Any]] | None:
    """Turn dicts into one column for each name; None if a dict lacks one or has another key."""
    if {*map(len, rows)} != {len(names)}:
        return None
    try:
        return [list(map(itemgetter(name), rows)) for name in names]
    except KeyError:
        return None


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
