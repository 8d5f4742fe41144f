"""The plan of record classes: dataclasses and their relatives, written as JSON objects of their fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from operator import is_, itemgetter
from typing import Any, TypedDict

import msgspec

from milepost.errors import shown

from .families import EXTRA, FIELDS_SET, PRIVATE, Family, FieldSpec
from .plan import (
    MARK,
    MAX_DEPTH,
    Contradicted,
    NotCarried,
    Plan,
    Refusal,
    Unreadable,
    describe_json,
    key_step,
    qualified,
    read_mark,
    too_deep,
)

_ABSENT: Any = object()


class RecordPlan(Plan):
    """The plan of one record class. `set_fields` completes it, so that classes may refer to each other.

    A value of a subclass is carried if the subclass itself is known, and is tagged with its name.
    """

    bare = frozenset({"dict"})
    tag = "object"

    def __init__(
        self,
        family: Family,
        untyped: Plan,
        name_of: Callable[[type], str],
        *,
        expected: str = "",
        drop_unknown: bool = False,
    ) -> None:
        self.family, self.cls = family, family.cls
        self.refusal = family.refusal
        """The reason why objects of the class cannot be recorded; "" if they can."""
        reserved = next((name for name in family.names if name in family.reserved), None)
        if reserved is not None:
            self.refusal = f"a field cannot be named {reserved!r}, which means something else in a record: rename it"
        self.types = (dict,) if family.is_mapping else (family.cls,)
        self.plain = family.is_mapping
        self.expected = expected or qualified(family.cls)
        self.plans: dict[str, Plan] = {}
        self._recursive = False
        self._untyped, self._name_of, self._drop_unknown = untyped, name_of, drop_unknown
        self._specs: dict[str, FieldSpec] = {}

    def set_fields(self, plans: dict[str, Plan], optional: Collection[str]) -> None:
        """Set the plans of the fields, by name, in the order of the family's fields, and which an object may lack."""
        self.plans = plans
        self._specs = {
            field.name: msgspec.structs.replace(field, optional=field.name in optional) for field in self.family.fields
        }

    def allow_missing_keys(self) -> None:
        """Treat a TypedDict as if it were declared with `total=False`."""
        if self.family.is_mapping:
            self._specs = {name: msgspec.structs.replace(spec, optional=True) for name, spec in self._specs.items()}

    def mark_recursive(self) -> None:
        """Note that objects of the class may contain objects of the class."""
        self._recursive = True

    def step(self, name: str) -> str:
        """Give the step of a path that leads to a field."""
        return key_step(name) if self.family.is_mapping else f".{name}"

    # -- writing -------------------------------------------------------------------------------------

    def dump(self, value: Any, depth: int) -> Any:
        if self.family.is_mapping:
            return self._dump_mapping(value, depth)
        if type(value) is not self.cls:
            if isinstance(value, self.cls):
                return self._wrap_subclass(value, depth)
            raise self.contradicted(value)
        if depth >= MAX_DEPTH:
            raise too_deep(value)
        self._check_attributes(value)
        try:
            values = self.family.read(value)
        except AttributeError as exc:
            raise self._unset(value) from exc
        except Exception as exc:  # a property of a user
            raise NotCarried(f"its fields cannot be read: {shown(exc, 1000)}", type_name=qualified(self.cls)) from exc
        out: dict[str, Any] = {}
        name = ""
        try:
            for (name, plan), item in zip(self.plans.items(), values, strict=True):
                out[name] = plan.dump(item, depth + 1)
        except Refusal as refusal:
            refusal.steps.append(self.step(name))
            raise
        if self.family.has_sides:
            self._dump_sides(value, out, depth)
        return out

    def _check_attributes(self, value: Any) -> None:
        if self.refusal:
            raise NotCarried(self.refusal, type_name=qualified(self.cls))
        beyond = self.family.attribute_beyond(value)
        if beyond is not None:
            raise NotCarried(
                f"it has an attribute {beyond!r} that is no field of its class", type_name=qualified(self.cls)
            )

    def _unset(self, value: Any) -> NotCarried:
        for name in self.family.names:
            if not hasattr(value, name):
                refusal = NotCarried("the field has no value", type_name=qualified(self.cls))
                refusal.steps.append(self.step(name))
                return refusal
        return NotCarried("a field has no value", type_name=qualified(self.cls))

    def _wrap_subclass(self, value: Any, depth: int) -> Any:
        try:
            return self._untyped.wrap(value, depth)
        except NotCarried as exc:
            if exc.steps or exc.type_name != qualified(type(value)):
                raise
            refusal = self.contradicted(value)
            raise Contradicted(
                f"it is a subclass that is not declared: pass types=[{type(value).__name__}]",
                expected=refusal.expected,
                found=refusal.found,
                type_name=refusal.type_name,
            ) from exc

    def _dump_mapping(self, value: Any, depth: int) -> dict[str, Any]:
        if type(value) is not dict:
            raise self.contradicted(value)
        if depth >= MAX_DEPTH:
            raise too_deep(value)
        if self.refusal:
            raise NotCarried(self.refusal, type_name=self.expected)
        out: dict[str, Any] = {}
        for key, item in value.items():
            plan = self.plans.get(key) if type(key) is str else None
            if plan is None:
                refusal = Contradicted("its type has no such key", expected="no such key", found=qualified(type(item)))
                refusal.steps.append(key_step(key))
                raise refusal
            try:
                out[key] = plan.dump(item, depth + 1)
            except Refusal as exc:
                exc.steps.append(key_step(key))
                raise
        for name, plan in self.plans.items():
            if name not in out and not self._specs[name].optional:
                missing = Contradicted("the key is missing", expected=plan.expected, found="nothing")
                missing.steps.append(key_step(name))
                raise missing
        return out

    def _dump_sides(self, value: Any, out: dict[str, Any], depth: int) -> None:
        for key, side in self.family.sides(value).items():
            if key == FIELDS_SET:
                out[key] = side
                continue
            out[key] = {}
            for name, item in side.items():
                try:
                    out[key][name] = self._untyped.wrap(item, depth + 2)
                except Refusal as refusal:
                    refusal.steps.append(self.step(name))
                    raise

    def wrap(self, value: Any, depth: int) -> Any:
        if self.family.is_mapping:
            return self._dump_mapping(value, depth)
        if type(value) is not self.cls:
            return self.dump(value, depth)
        return {MARK: "object", "t": self._name_of(self.cls), "v": self.dump(value, depth)}

    def _columns_of(self, values: list[Any], depth: int) -> list[list[Any]] | None:
        """Return a list of values for each field; None if the objects have to be looked at one by one."""
        if not values or not self.plans or self._recursive or self.refusal or depth >= MAX_DEPTH:
            return None
        return self.family.read_columns(values) if {*map(type, values)} == {*self.types} else None

    @cached_property
    def may_be_json(self) -> bool:  # type: ignore[override]
        """True if msgspec writes the objects as `dump` does, and all fields may be JSON as they are."""
        if self._recursive or self.refusal or not self.family.is_known_to_msgspec:
            return False
        return all(plan.may_be_json for plan in self.plans.values())

    def are_json(self, values: list[Any], depth: int) -> bool:
        columns = self._columns_of(values, depth) if self.may_be_json else None
        if columns is None:
            return False
        plans = self.plans.values()
        return all(plan.are_json(column, depth + 1) for plan, column in zip(plans, columns, strict=True))

    def dump_all(self, values: list[Any], depth: int) -> list[Any]:
        columns = self._columns_of(values, depth)
        if columns is None:
            return self._dump_each(values, depth)
        dumped: list[list[Any]] = []
        try:
            for plan, column in zip(self.plans.values(), columns, strict=True):
                dumped.append(plan.dump_all(column, depth + 1))  # its length is the path
        except Refusal as refusal:
            refusal.steps.append(self.step(self.family.names[len(dumped)]))
            raise
        if self.may_be_json and all(map(is_, dumped, columns)):
            return values
        return [dict(zip(self.family.names, row, strict=True)) for row in zip(*dumped, strict=True)]

    # -- reading -------------------------------------------------------------------------------------

    def opens(self, tag: Any, name: Any) -> bool:
        return tag == "object" and name is not None and name in (self.cls.__name__, qualified(self.cls))

    def load(self, raw: Any, bare: bool) -> Any:
        if type(raw) is not dict:
            raise self.unreadable(raw)
        if bare or MARK not in raw:
            return self._load_fields(raw, bare)
        tag, name = read_mark(raw)
        if self.opens(tag, name):
            if type(raw.get("v")) is not dict:
                raise self.unreadable(raw)
            return self._load_fields(raw["v"], bare)
        if self.family.is_mapping:
            raise self.unreadable(raw)
        value = self._untyped.load(raw, bare)
        if not isinstance(value, self.cls):
            raise self.unreadable(raw)
        return value

    def _load_fields(self, raw: dict[str, Any], bare: bool) -> Any:
        values: dict[str, Any] = {}
        missing: list[str] = []
        for name, plan in self.plans.items():
            item = raw.get(name, _ABSENT)
            try:
                if item is not _ABSENT:
                    values[name] = plan.load(item, bare)
                elif not self._specs[name].optional:
                    values[name] = self._default(name, plan)
                    missing.append(name)
            except Refusal as refusal:
                refusal.steps.append(self.step(name))
                raise
        if missing:
            self._finish_defaults(values, missing)
        sides = None
        if missing or len(values) != len(raw) or self.family.is_mapping:
            unknown = [name for name in raw if name not in self.plans]
            if self.family.has_sides:
                sides, unknown = self._load_sides(raw, unknown)
            if unknown and not self._drop_unknown:
                stray = Unreadable(
                    f"{qualified(self.cls)} has no field of that name: pass unknown_fields='drop', or turn old records "
                    "into new ones with upgrade=",
                    expected="no such field",
                    found=describe_json(raw[unknown[0]]),
                )
                stray.steps.append(self.step(unknown[0]))
                raise stray
            if self.family.is_mapping:
                values = {name: values[name] for name in raw if name in values}
        try:
            made = self.family.build(values, sides)
            settled = self.family.settle_defaults(made, missing) if missing else None
        except Exception as exc:  # a property's setter, a validator, a default that looks at the object: code of a user
            defaults = f", with the default of {', '.join(missing)}" if missing else ""
            raise self.unreadable(raw, f"the object cannot be built{defaults}: {shown(exc, 1000)}") from exc
        if not settled:
            return made
        self._check_defaults(settled, missing)
        return self.family.build({**values, **settled}, sides)

    def _default(self, name: str, plan: Plan) -> Any:
        default = self._specs[name].default
        if default is None:
            raise Unreadable("the field is missing and has no default", expected=plan.expected, found="nothing")
        try:
            return default()
        except Exception as exc:  # user code
            raise Unreadable(
                f"its default failed: {shown(exc, 1000)}", expected=plan.expected, found="nothing"
            ) from exc

    def _finish_defaults(self, values: dict[str, Any], missing: list[str]) -> None:
        """Have the class convert and validate the defaults of the fields that a record lacks."""
        name = ""
        try:
            for name in missing:
                values[name] = self.family.finish_default(name, values)
            for name in missing:
                self.family.check_default(name, values)
        except Exception as exc:  # user code
            raise self._failed_default(name, exc) from exc
        self._check_defaults(values, missing)

    def _check_defaults(self, values: dict[str, Any], missing: list[str]) -> None:
        """Check the types of the values that fields have which a record lacks."""
        for name in missing:
            try:
                self.plans[name].dump(values[name], 0)
            except Refusal as exc:
                what = f"{exc.found or exc.type_name} where {exc.expected or 'a carried value'} is declared"
                refusal = Unreadable(
                    f"the field is missing, and its default has {what}",
                    expected=self.plans[name].expected,
                    found="nothing",
                )
                refusal.steps += [*exc.steps, self.step(name)]
                raise refusal from exc.__cause__
            except Exception as exc:  # user code
                raise self._failed_default(name, exc) from exc

    def _failed_default(self, name: str, exc: Exception) -> Unreadable:
        refusal = Unreadable(
            f"its default failed: {shown(exc, 1000)}", expected=self.plans[name].expected, found="nothing"
        )
        refusal.steps.append(self.step(name))
        return refusal

    def _load_sides(self, raw: dict[str, Any], unknown: list[str]) -> tuple[dict[str, Any], list[str]]:
        """Read the values beside the fields; return them with the names of those that the class no longer has."""
        sides: dict[str, Any] = {}
        for key in (EXTRA, PRIVATE):
            if key not in unknown:
                continue
            unknown.remove(key)
            side = raw[key]
            if type(side) is not dict:
                raise self.unreadable(side)
            places = self.family.side_names(key)
            strays = [] if places is None else [name for name in side if name not in places]
            if key == EXTRA:
                strays += [name for name in side if name in self.plans and name not in raw]
            unknown += [key] if strays else []
            sides[key] = {name: self._untyped.load(item, False) for name, item in side.items() if name not in strays}
        fields_set = [name for name in self.family.names if name in raw]
        if FIELDS_SET in unknown:
            unknown.remove(FIELDS_SET)
            fields_set = raw[FIELDS_SET]
            if type(fields_set) is not list or not all(type(name) is str for name in fields_set):
                raise self.unreadable(fields_set)
            if self._drop_unknown:
                fields_set = [name for name in fields_set if name in self.plans or name in sides.get(EXTRA, ())]
        sides[FIELDS_SET] = fields_set
        return sides, unknown

    # -- reading in one go -------------------------------------------------------------------------------

    @cached_property
    def revives(self) -> bool:  # type: ignore[override]
        """True unless the twin, a dict, is the value itself."""
        return not self.family.is_mapping or self.twin is Any or bool(self._reviving)

    @cached_property
    def _reviving(self) -> dict[str, Plan]:
        """The plans of the fields whose twins are not the values themselves."""
        return {name: plan for name, plan in self.plans.items() if plan.revives}

    @cached_property
    def twin(self) -> Any:
        """A TypedDict of the fields' twins if all fields are required, else Any."""
        if self._recursive or self.refusal or any(spec.optional for spec in self._specs.values()):
            return Any
        make: Any = TypedDict  # for type checkers it is no function
        return make("Twin", {name: plan.twin for name, plan in self.plans.items()})

    def revive(self, twin: Any) -> Any:
        return super().revive(twin) if self.twin is Any else self.revive_all([twin])[0]

    def revive_all(self, twins: Sequence[Any]) -> list[Any]:
        if self.twin is Any:
            return super().revive_all(twins)
        for name, plan in self._reviving.items():
            for twin, value in zip(twins, plan.revive_all(list(map(itemgetter(name), twins))), strict=True):
                twin[name] = value
        return list(map(self.family.build, twins))

    # -- the state as a whole ------------------------------------------------------------------------

    def rebuild(self, value: Any, changes: dict[str, Any]) -> Any:
        """Make an object like `value` with some fields changed, without running its class's code."""
        are_set = {(FIELDS_SET, name): True for name in changes}
        return self.family.assemble({**self.family.parts(value), **are_set, **changes})
