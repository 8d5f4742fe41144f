"""The families of record classes besides dataclasses, and the search for the family of a class.

They are attrs classes, NamedTuples, TypedDicts, pydantic models and msgspec structs. Of these libraries only
msgspec is imported; classes of the others are recognised by the attributes that the libraries add.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, get_origin, is_typeddict

import msgspec

from .family import (
    ATTRS_HASH,
    Family,
    FieldSpec,
    OfOthers,
    columns_of,
    constant,
    pydantic_default,
)
from .plan import NotCarried, qualified

# Keys beside the fields of a pydantic model; no field can have such a name.
FIELDS_SET, EXTRA, PRIVATE = "$set", "$extra", "$private"

_set = object.__setattr__


class AttrsFamily(Family):
    """attrs classes, which have `__attrs_attrs__`."""

    def list_fields(self) -> Iterable[FieldSpec]:
        for attribute in self.cls.__attrs_attrs__:
            default: Callable[[], Any] | None
            if attribute.default is sys.modules["attr"].NOTHING:
                default = None
            elif hasattr(attribute.default, "factory"):
                factory = attribute.default.factory
                default = constant(OfOthers(factory)) if attribute.default.takes_self else factory
            else:
                default = constant(attribute.default)
            yield FieldSpec(attribute.name, default=default)

    @cached_property
    def _attributes(self) -> dict[str, Any]:
        return {attribute.name: attribute for attribute in self.cls.__attrs_attrs__}

    def finish_default(self, name: str, values: dict[str, Any]) -> Any:
        made = self.build({other: value for other, value in values.items() if type(value) is not OfOthers})
        attribute, value = self._attributes[name], values[name]
        if type(value) is OfOthers:
            value = value.factory(made)
        converter = attribute.converter
        if converter is None:
            return value
        if not hasattr(converter, "takes_self"):  # a plain function
            return converter(value)
        more = (made,) if converter.takes_self else ()
        return converter.converter(value, *more, *((attribute,) if converter.takes_field else ()))

    def check_default(self, name: str, values: dict[str, Any]) -> None:
        attribute = self._attributes[name]
        if attribute.validator is not None and not sys.modules["attr"].validators.get_disabled():
            attribute.validator(self.build(values), attribute, values[name])

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        made = super().build(values)
        if self._keeps_hash:
            _set(made, ATTRS_HASH, None)
        return made

    @cached_property
    def _keeps_hash(self) -> bool:
        return hasattr(self.cls, ATTRS_HASH) or ATTRS_HASH in getattr(self.cls, "__slots__", ())


class NamedTupleFamily(Family):
    """NamedTuples: tuples whose class has `_fields`."""

    refusal = ""

    def list_fields(self) -> Iterable[FieldSpec]:
        for name in self.cls._fields:
            defaults = self.cls._field_defaults
            yield FieldSpec(name, default=constant(defaults[name]) if name in defaults else None)

    def read(self, value: Any) -> Iterable[Any]:
        return tuple.__iter__(value)

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        if self.cls.__dictoffset__ and any(map(vars, values)):
            return None
        return [list(column) for column in zip(*map(tuple, values), strict=True)]

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        return tuple.__new__(self.cls, [values[name] for name in self.names])


class StructFamily(Family):
    """msgspec structs."""

    refusal = ""

    def list_fields(self) -> Iterable[FieldSpec]:
        for field in msgspec.structs.fields(self.cls):
            default: Callable[[], Any] | None = None
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory
            elif field.default is not msgspec.NODEFAULT:
                default = constant(field.default)
            yield FieldSpec(field.name, default=default)

    @cached_property
    def _make(self) -> Callable[..., Any]:
        if not hasattr(self.cls, "__post_init__"):
            return self.cls  # type: ignore[no-any-return]
        # A struct can't be made without `__post_init__`. So one of a subclass whose `__post_init__` does nothing is made,
        # and then its class is changed.
        quiet = type(self.cls)(self.cls.__name__, (self.cls,), {"__post_init__": lambda self: None})

        def make(**values: Any) -> Any:
            made = quiet(**values)
            msgspec.structs.force_setattr(made, "__class__", self.cls)
            return made

        return make

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        if self.cls.__dictoffset__ and any(map(vars, values)):
            return None
        return [list(map(attrgetter(name), values)) for name in self.names]

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        return self._make(**values)


class TypedDictFamily(Family):
    """TypedDicts, whose values are plain dicts."""

    is_mapping = True
    refusal = ""

    def list_fields(self) -> Iterable[FieldSpec]:
        for name in self.cls.__annotations__:
            yield FieldSpec(name, optional=name in self.cls.__optional_keys__)

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        # No dict has a key twice, so if the keys of all rows repeat the names, each row has each name once, in order.
        in_order = [*chain.from_iterable(values)] == [*self.names] * len(values)
        return columns_of(self.names, values) if in_order else None

    def attribute_beyond(self, value: Any) -> str | None:
        return None

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        return values


class PydanticFamily(Family):
    """pydantic models. The names of the fields that were set, extra fields and private attributes are recorded too."""

    has_sides = True
    refusal = ""

    def list_fields(self) -> Iterable[FieldSpec]:
        for name, field in self.cls.__pydantic_fields__.items():
            default = pydantic_default(self.cls, name, field)
            yield FieldSpec(name, field.annotation, default, metadata=tuple(field.metadata))

    def read(self, value: Any) -> Iterable[Any]:
        attributes = vars(value)
        try:
            return [attributes[name] for name in self.names]
        except KeyError as exc:
            raise AttributeError(name=exc.args[0]) from exc

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        try:
            return None if any(map(self.sides, values)) else super().read_columns(values)
        except NotCarried:  # writing row by row tells of which object
            return None

    def sides(self, value: Any) -> dict[str, Any]:
        sides: dict[str, Any] = {}
        fields_set = value.__pydantic_fields_set__
        if len(fields_set) != len(self.names) or not fields_set.issuperset(self.names):
            sides[FIELDS_SET] = sorted(fields_set)
        if value.__pydantic_extra__:
            sides[EXTRA] = value.__pydantic_extra__
        private = value.__pydantic_private__
        if private is not None and private.keys() != self._private_defaults.keys():
            self._check_private(private)
        if private:
            sides[PRIVATE] = private
        return sides

    def _check_private(self, private: dict[str, Any]) -> None:
        """Refuse private attributes that would not come back, or would come back although they were deleted."""
        for name in private:
            if name not in self.cls.__private_attributes__:
                raise NotCarried(
                    f"it has a private attribute {name!r} that its class does not have", type_name=qualified(self.cls)
                )
        for name in self._private_defaults:
            if name not in private:
                raise NotCarried(f"its private attribute {name!r} has no value", type_name=qualified(self.cls))

    @cached_property
    def _private_defaults(self) -> dict[str, Any]:
        """The private attributes that have a default."""
        undefined = sys.modules["pydantic_core"].PydanticUndefined
        attributes = self.cls.__private_attributes__.items()
        return {
            name: attribute
            for name, attribute in attributes
            if attribute.default is not undefined or attribute.default_factory is not None
        }

    def side_names(self, key: str) -> Collection[str] | None:
        if key == PRIVATE:
            return self.cls.__private_attributes__  # type: ignore[no-any-return]
        return None if self._takes_extra else ()

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        made = object.__new__(self.cls)
        private, extra, fields_set = None, None, self.names
        if sides:
            private, extra, fields_set = sides.get(PRIVATE), sides.get(EXTRA), sides.get(FIELDS_SET, self.names)
        if self._has_private:
            private = self._whole_private(values, private or {})
        if extra is None and self._takes_extra:
            extra = {}
        if (*values,) != self.names:  # pydantic writes the fields in the order of `__dict__`
            values = {name: values[name] for name in self.names}
        _set(made, "__dict__", values)
        _set(made, "__pydantic_fields_set__", {*fields_set})
        if not self._is_root:
            _set(made, "__pydantic_extra__", extra)
        if private is not None or not self._is_root:
            _set(made, "__pydantic_private__", private)
        return made

    def _whole_private(self, values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Give the private attributes; those that a record lacks have their defaults."""
        private: dict[str, Any] = {}
        for name, attribute in self._private_defaults.items():
            factory = attribute.default_factory
            if name in given:
                private[name] = given[name]
            elif factory is None:
                private[name] = copy.deepcopy(attribute.default)
            elif getattr(attribute, "default_factory_takes_validated_data", False):
                private[name] = factory({**values, **private})
            else:
                private[name] = factory()
        return private | given

    @cached_property
    def _has_private(self) -> bool:
        return bool(self.cls.__private_attributes__)

    @cached_property
    def _takes_extra(self) -> bool:
        return bool(self.cls.model_config.get("extra") == "allow")

    @cached_property
    def _is_root(self) -> bool:
        """True if the model is a root model: it has a single value and nothing beside it."""
        return bool(getattr(self.cls, "__pydantic_root_model__", False))

    def rebuild(self, value: Any, values: dict[str, Any], changed: Iterable[str]) -> Any:
        private, extra = value.__pydantic_private__, value.__pydantic_extra__
        sides: dict[str, Any] = {FIELDS_SET: {*value.__pydantic_fields_set__, *changed}}
        if private is not None:
            sides[PRIVATE] = dict(private)
        if extra is not None:
            sides[EXTRA] = dict(extra)
        return self.build(values, sides)


def family_of(cls: Any) -> Family | None:
    """Find the family of a record class; None for any other class."""
    if not isinstance(cls, type) or get_origin(cls) is not None:
        return None
    if is_typeddict(cls) or type(cls).__name__ == "_TypedDictMeta":
        return TypedDictFamily(cls)
    if issubclass(cls, tuple):
        return NamedTupleFamily(cls) if hasattr(cls, "_fields") and hasattr(cls, "_field_defaults") else None
    if issubclass(cls, msgspec.Struct):
        return StructFamily(cls)
    if hasattr(cls, "__pydantic_private__") and hasattr(cls, "__pydantic_fields__"):
        return PydanticFamily(cls)
    if dataclasses.is_dataclass(cls):
        # An undecorated subclass inherits the marker. Its own annotations are no fields, but its objects are carried.
        return Family(cls)
    if "__attrs_attrs__" in cls.__dict__ or hasattr(cls, "__attrs_attrs__"):
        return AttrsFamily(cls)
    return None
