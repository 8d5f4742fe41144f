"""The families of record classes: dataclasses, attrs classes, NamedTuples, TypedDicts, pydantic models, msgspec structs.

A family lists the fields of a class, and reads and builds its objects without running the class's code: no `__init__`,
no `__post_init__`, no validator. So a recorded value comes back as it was, even if that code would change it. Of the
libraries only msgspec is imported. Classes of the others are recognised by the attributes that these libraries add.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from types import MemberDescriptorType
from typing import Any, Generic, Protocol, get_origin, is_typeddict
from uuid import UUID

import msgspec

from .plan import MARK, NotCarried, qualified

_set = object.__setattr__


ATTRS_HASH = "_attrs_cached_hash"  # the attribute in which attrs caches a hash; a fresh object has none


class FieldSpec(msgspec.Struct, frozen=True):
    """One field of a record class.

    `annotation` is None if the type hints of the class have it. `default` makes the value if a record lacks the field;
    None: the field is required. An object may lack a field that is `optional`.
    """

    name: str
    annotation: Any = None
    default: Callable[[], Any] | None = None
    optional: bool = False
    metadata: tuple[Any, ...] = ()


class OfOthers(msgspec.Struct, frozen=True):
    """A placeholder for a default that is computed from the other fields after these are read."""

    factory: Callable[[Any], Any]


class Family:
    """The reader and builder of one record class's objects. This class serves dataclasses."""

    is_mapping = False
    has_sides = False
    reserved = frozenset({MARK})
    """Keys of an object in JSON that are no fields."""
    side_fields: Collection[str] = ()
    """Names of annotations of the class that say what is recorded beside the fields."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.fields = tuple(self.list_fields())
        self.names = tuple(field.name for field in self.fields)

    def list_fields(self) -> Iterable[FieldSpec]:
        known = self.cls.__dict__.get("__pydantic_fields__", {})  # this is a pydantic dataclass
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
        """The reason why objects of the class cannot be recorded; "" if they can."""
        for base in self.cls.__mro__[:-1]:
            if not base.__flags__ & 1 << 9 and base not in _HARMLESS_BASES:  # a class that is written in C
                return f"it is a {qualified(base)} besides its fields"
        return ""

    @cached_property
    def is_known_to_msgspec(self) -> bool:
        """True if msgspec writes an object that `read_columns` accepts as the JSON object of its fields in order."""
        return self._is_stored

    @cached_property
    def _is_stored(self) -> bool:
        """True if what is read as a field is what the object's dict or a slot of its own has, which is what msgspec writes."""
        if not self._is_read_as_usual or not {*map(type, self.names)} <= {str} or issubclass(self.cls, UUID):
            return False
        places = (inspect.getattr_static(self.cls, name, None) for name in self.names)
        return self._is_in_dict or all(type(place) is MemberDescriptorType for place in places)

    @cached_property
    def _is_read_as_usual(self) -> bool:
        return self.cls.__getattribute__ is object.__getattribute__

    @cached_property
    def _is_in_dict(self) -> bool:
        """True if the dict of an object has all fields, so that none is in a slot or behind a property."""
        places = [vars(base).get(name) for base in self.cls.__mro__ for name in self.names]
        return bool(self.cls.__dictoffset__) and not any(
            hasattr(place, "__set__") or hasattr(place, "__delete__") for place in places
        )

    @cached_property
    def _name_set(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _slots_beyond(self) -> tuple[str, ...]:
        slots: list[str] = []
        for base in self.cls.__mro__:
            # attrs makes the slots of its classes: of the fields, and of cached properties, which are computed again.
            own = () if "__attrs_attrs__" in base.__dict__ else base.__dict__.get("__slots__", ())
            for slot in (own,) if isinstance(own, str) else tuple(own):
                mangled = slot.startswith("__") and not slot.endswith("__")
                slots.append(f"_{base.__name__.lstrip('_')}{slot}" if mangled else slot)
        return tuple(s for s in slots if s not in self.names and s not in _HARMLESS_ATTRIBUTES)

    def read(self, value: Any) -> Iterable[Any]:
        """Return the values of the fields. Raises AttributeError if a field has no value."""
        return [getattr(value, name) for name in self.names]

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        """Return a list of values for each field; None if an object may lack a field or has attributes that are no fields."""
        if self._slots_beyond or not self._is_read_as_usual:
            return None
        if self._is_in_dict:
            attributes = list(map(vars, values))
            return columns_of(self.names, attributes)
        if self.cls.__dictoffset__:
            return None
        try:
            return [list(map(attrgetter(name), values)) for name in self.names]
        except Exception:  # a property raised: reading row by row finds out which
            return None

    def attribute_beyond(self, value: Any) -> str | None:
        """Return the name of an attribute that is not a field; None if there is none. Caches can be computed again: they do not
        count."""
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
        """Return the default of a field that a record lacks, as its class makes it. `values` has the values of all fields."""
        value = values[name]
        return value.factory(_without_open(values)) if type(value) is OfOthers else value

    def check_default(self, name: str, values: dict[str, Any]) -> None:
        """Raise the class's own error for a default that its validators refuse."""

    def settle_defaults(self, obj: Any, missing: Sequence[str]) -> dict[str, Any]:
        """Return the values of `missing` fields after the validators of the whole object; {} if there are no validators.

        The object itself stays as it is: what it has from the record must not change.
        """
        validator = _after_validator(self.cls) if hasattr(self.cls, "__pydantic_core_schema__") else None
        if validator is None:
            return {}
        validated = validator.validate_python(copy.deepcopy(obj))
        return {name: getattr(validated, name) for name in missing}

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        """Make an object whose fields have exactly these values."""
        obj = object.__new__(self.cls)
        if self._is_in_dict:
            vars(obj).update(values)
        else:
            for name, value in values.items():
                _set(obj, name, value)
        return obj

    def sides(self, value: Any) -> dict[str, Any]:
        """Return what to record of an object beside its fields, by key."""
        return {}

    def side_names(self, key: str) -> Collection[str] | None:
        """Return the names that a record may have under a key of `sides`; None: any name."""
        return ()

    def parts(self, value: Any) -> dict[Any, Any]:
        """Take an object apart: the values of its fields, by name, and by a pair what `sides` has under a key and a name."""
        return {name: getattr(value, name) for name in self.names if hasattr(value, name)}

    def assemble(self, parts: Mapping[Any, Any]) -> Any:
        """Make an object of its parts. Other parts, which it cannot have, are left out."""
        return self.build({name: parts[name] for name in self.names if name in parts})


def columns_of(names: tuple[str, ...], rows: list[Any]) -> list[list[Any]] | None:
    """Turn dicts into one list of values for each name; None if a dict lacks a name or has another key."""
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
    """Return the default of a pydantic field, validated if pydantic does so; None if the field is required."""
    if field.is_required():
        return None
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", {})
    if config.get("validate_default") if field.validate_default is None else field.validate_default:
        return constant(OfOthers(partial(_validated_default, cls, name)))
    if getattr(field, "default_factory_takes_validated_data", False):
        return constant(OfOthers(field.default_factory))
    return lambda: field.get_default(call_default_factory=True)


def _validated_default(cls: Any, name: str, values: dict[str, Any]) -> Any:
    """Let pydantic make and validate the default of one field. Its validators see the fields before it."""
    validator, before = _default_validator(cls, name)
    return validator.validate_python({other: values[other] for other in before})[0][name]


@lru_cache(maxsize=256)
def _default_validator(cls: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Make a validator of one field that accepts the fields before it as they are; return it with their names.

    The model's own validator would also run the model's validators and those of recorded fields.
    """
    schema, config, definitions = cls.__pydantic_core_schema__, None, []
    while schema["type"] not in ("model-fields", "dataclass-args"):
        definitions += schema.get("definitions", ())
        config = schema.get("config", config)
        if schema["type"] == "definition-ref":
            schema = next(each for each in definitions if each["ref"] == schema["schema_ref"])
        else:
            schema = schema["schema"]
    parts = schema["fields"]
    schemas = (
        {other: each["schema"] for other, each in parts.items()}
        if schema["type"] == "model-fields"
        else {each["name"]: each["schema"] for each in parts}
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
    """Make a validator that only runs the `model_validator(mode="after")` functions of a class; None if it has none."""
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


# Keys beside the fields of a pydantic model.
FIELDS_SET, EXTRA, PRIVATE = "$set", "$extra", "$private"


class AttrsFamily(Family):
    """attrs classes, which have `__attrs_attrs__`."""

    is_known_to_msgspec = False  # it writes the fields in another order, and leaves out those that begin with `_`

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
        obj = self.build({other: value for other, value in values.items() if type(value) is not OfOthers})
        attribute, value = self._attributes[name], values[name]
        if type(value) is OfOthers:
            value = value.factory(obj)
        converter = attribute.converter
        if converter is None:
            return value
        if not hasattr(converter, "takes_self"):  # a plain function
            return converter(value)
        more = (obj,) if converter.takes_self else ()
        return converter.converter(value, *more, *((attribute,) if converter.takes_field else ()))

    def check_default(self, name: str, values: dict[str, Any]) -> None:
        attribute = self._attributes[name]
        if attribute.validator is not None and not sys.modules["attr"].validators.get_disabled():
            attribute.validator(self.build(values), attribute, values[name])

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        obj = super().build(values)
        if self._keeps_hash:
            _set(obj, ATTRS_HASH, None)
        return obj

    @cached_property
    def _keeps_hash(self) -> bool:
        return hasattr(self.cls, ATTRS_HASH) or ATTRS_HASH in getattr(self.cls, "__slots__", ())


class NamedTupleFamily(Family):
    """NamedTuples: tuples whose class has `_fields`."""

    refusal = ""
    is_known_to_msgspec = False  # it writes an array

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


class _Unannounced:
    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        pass


class StructFamily(Family):
    """msgspec structs."""

    refusal = ""

    @cached_property
    def is_known_to_msgspec(self) -> bool:
        config = self.cls.__struct_config__
        is_changed = config.tag is not None or config.array_like or config.omit_defaults
        return self._is_stored and not is_changed and self.cls.__struct_encode_fields__ == self.names

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
        # msgspec always calls `__post_init__`. So an object of a subclass is made, whose `__post_init__` does nothing, and
        # then its class is changed. The class's own hook for subclasses does not hear of it.
        quiet = type(self.cls)(self.cls.__name__, (_Unannounced, self.cls), {"__post_init__": lambda self: None})

        def make(**values: Any) -> Any:
            obj = quiet(**values)
            msgspec.structs.force_setattr(obj, "__class__", self.cls)
            return obj

        return make

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        if self._slots_beyond or (self.cls.__dictoffset__ and any(map(vars, values))):
            return None
        try:
            return [list(map(attrgetter(name), values)) for name in self.names]
        except Exception:  # a field was deleted, or a property raised: reading one by one finds out which
            return None

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        return self._make(**values)


class TypedDictFamily(Family):
    """TypedDicts, whose values are plain dicts."""

    is_mapping = True
    refusal = ""
    is_known_to_msgspec = True

    def list_fields(self) -> Iterable[FieldSpec]:
        for name in map(str.__str__, self.cls.__annotations__):  # they may be members of an enum
            yield FieldSpec(name, optional=name in self.cls.__optional_keys__)

    def read_columns(self, values: list[Any]) -> list[list[Any]] | None:
        # A dict has no key twice. So if all keys together are the names again and again, each row has all names in order.
        keys = [*chain.from_iterable(values)]
        in_order = keys == [*self.names] * len(values) and {*map(type, keys)} <= {str}
        return columns_of(self.names, values) if in_order else None

    def attribute_beyond(self, value: Any) -> str | None:
        return None

    def build(self, values: dict[str, Any], sides: dict[str, Any] | None = None) -> Any:
        return values


class PydanticFamily(Family):
    """pydantic models. Extra fields, private attributes and the names of the fields that were set are recorded too."""

    has_sides = True
    reserved = Family.reserved | {FIELDS_SET, EXTRA, PRIVATE}
    refusal = ""
    is_known_to_msgspec = False

    @cached_property
    def side_fields(self) -> Collection[str]:  # type: ignore[override]
        """The private attributes, and the name under which a model says of what type its extra fields are."""
        return (*self.cls.__private_attributes__, "__pydantic_extra__")

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
        except NotCarried:  # writing row by row reports the object
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
        """Raise NotCarried for private attributes that would not be restored, or that were deleted and would be."""
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
        obj = object.__new__(self.cls)
        private, extra, fields_set = None, None, self.names
        if sides:
            private, extra, fields_set = sides.get(PRIVATE), sides.get(EXTRA), sides.get(FIELDS_SET, self.names)
        if self._has_private:
            private = self._whole_private(values, private or {})
        if extra is None and self._takes_extra:
            extra = {}
        if (*values,) != self.names:  # pydantic writes the fields in the order of `__dict__`
            values = {name: values[name] for name in self.names}
        _set(obj, "__dict__", values)
        _set(obj, "__pydantic_fields_set__", {*fields_set})
        if not self._is_root:
            _set(obj, "__pydantic_extra__", extra)
        if private is not None or not self._is_root:
            _set(obj, "__pydantic_private__", private)
        return obj

    def _whole_private(self, values: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
        """Return all private attributes. Those that a record lacks have their defaults."""
        private: dict[str, Any] = {}
        for name, attribute in self._private_defaults.items():
            factory = attribute.default_factory
            if name in recorded:
                private[name] = recorded[name]
            elif factory is None:
                private[name] = copy.deepcopy(attribute.default)
            elif getattr(attribute, "default_factory_takes_validated_data", False):
                private[name] = factory({**values, **private})
            else:
                private[name] = factory()
        return private | recorded

    @cached_property
    def _has_private(self) -> bool:
        return bool(self.cls.__private_attributes__)

    @cached_property
    def _takes_extra(self) -> bool:
        return bool(self.cls.model_config.get("extra") == "allow")

    @cached_property
    def _is_root(self) -> bool:
        """True if this is a root model, which has a single value and nothing else."""
        return bool(getattr(self.cls, "__pydantic_root_model__", False))

    def parts(self, value: Any) -> dict[Any, Any]:
        parts = super().parts(value)
        parts |= {(FIELDS_SET, name): True for name in value.__pydantic_fields_set__}
        for key, side in ((EXTRA, value.__pydantic_extra__), (PRIVATE, value.__pydantic_private__)):
            parts |= {(key, name): item for name, item in (side or {}).items()}
        return parts

    def assemble(self, parts: Mapping[Any, Any]) -> Any:
        sides: dict[str, Any] = {FIELDS_SET: {}}
        for part, item in parts.items():
            if type(part) is tuple:
                sides.setdefault(part[0], {})[part[1]] = item
        return self.build({name: parts[name] for name in self.names}, sides)


def family_of(cls: Any) -> Family | None:
    """Return the family of a record class; None for any other class."""
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
        # A subclass without the decorator is one too. Its own annotations are not fields, but its objects can be recorded.
        return Family(cls)
    if "__attrs_attrs__" in cls.__dict__ or hasattr(cls, "__attrs_attrs__"):
        return AttrsFamily(cls)
    return None
