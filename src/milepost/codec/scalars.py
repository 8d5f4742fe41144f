"""Plans of values that contain no others: numbers, text, bytes, identifiers, paths, times, enum members.

Values that JSON has itself (None, bool, int, float, str) are plain; all others are written as text. Every class
is matched exactly: a bool is no int here, and a subclass of str is no str.

ISO text alone is exact for naive times, for UTC and for offsets of whole seconds without a name. A zone from
the zone database, any other offset and `fold` are extra keys of the tagged form. A zone is looked up by its key in the
zone database, after keys that are no plain names were refused.

If the declared type names an enum, a member is written as its value; elsewhere as its name, or as its number for
a combination of flags. A member is looked up in the class, which is never called with recorded data, except for
combinations of flags.
"""

from __future__ import annotations

import base64
import pathlib
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cached_property
from math import isfinite
from operator import attrgetter
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from .plan import MARK, NotCarried, Plan, Refusal, Tagged, encode_json, encode_sorted, json_kind, qualified, read_mark

MIN_INT, MAX_INT = -(2**63), 2**64 - 1  # the range of 64 bits, signed or not
_NATIVE = frozenset({bytes, bytearray, date, Decimal, UUID})  # msgspec writes the same text for them
_NON_FINITE = frozenset({"nan", "inf", "-inf"})
# Python refuses to turn longer ints into decimal text (sys.set_int_max_str_digits allows 640 digits at least)
_DECIMAL_BITS = 2000


class JsonPlan(Plan):
    """The plan of the values of one class that JSON has itself; `twin` is the class."""

    plain = True
    revives = False
    may_be_json = True

    def are_json(self, values: list[Any], depth: int) -> bool:
        return {*map(type, values)} == {self.twin} and ARE_JSON[self.twin](values)

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not self.twin:
            raise self.contradicted(value)
        return value

    def load(self, raw: Any, bare: bool) -> Any:
        if type(raw) is not self.twin:
            raise self.unreadable(raw)
        return raw


class NonePlan(JsonPlan):
    """The plan of None."""

    types = (type(None),)
    bare = frozenset({"null"})
    twin = type(None)
    expected = "None"


class BoolPlan(JsonPlan):
    """The plan of True and False."""

    types = (bool,)
    bare = frozenset({"bool"})
    twin = bool
    expected = "bool"


class IntPlan(JsonPlan):
    """The plan of int: a number up to 64 bits, tagged text for larger ones."""

    tag = "int"
    types = (int,)
    bare = frozenset({"int"})
    twin = int
    expected = "int"

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not int:
            raise self.contradicted(value)
        return value if MIN_INT <= value <= MAX_INT else {MARK: "int", "v": int_text(value)}

    def load(self, raw: Any, bare: bool) -> Any:
        if not bare and type(raw) is dict and read_mark(raw)[0] == "int" and type(raw.get("v")) is str:
            try:
                return read_int(raw["v"])
            except ValueError as exc:
                raise self.unreadable(raw) from exc
        return super().load(raw, bare)


class FloatPlan(JsonPlan):
    """The plan of float: a number with a point or an exponent, or tagged text for nan and the infinities."""

    tag = "float"
    types = (float,)
    bare = frozenset({"float"})
    twin = float
    expected = "float"

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not float:
            raise self.contradicted(value)
        return value if isfinite(value) else {MARK: "float", "v": repr(value)}

    def load(self, raw: Any, bare: bool) -> Any:
        if not bare and type(raw) is dict and read_mark(raw)[0] == "float":
            text = raw.get("v")
            if type(text) is str and text in _NON_FINITE:
                return float(text)  # a new object each time: two NaN are two keys of a dict, one NaN twice is one
        return super().load(raw, bare)


class StrPlan(JsonPlan):
    """The plan of str: text as it is; a lone surrogate is not text in UTF-8 and is refused."""

    types = (str,)
    bare = frozenset({"str"})
    twin = str
    keeps_text = True
    expected = "str"

    def dump(self, value: Any, depth: int) -> Any:
        if type(value) is not str:
            raise self.contradicted(value)
        return checked_text(value)


class TextPlan(Tagged):
    """The plan of a class whose values are written as one text, by two functions."""

    bare = frozenset({"str"})

    def __init__(self, cls: type, tag: str, write: Callable[[Any], str], read: Callable[[str], Any]) -> None:
        self.tag = tag
        self.types = (cls,)
        self.expected = qualified(cls)
        self.revives = cls not in _NATIVE
        self.twin = Any if self.revives else cls
        self._cls, self._write, self._read = cls, write, read

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not self._cls:
            raise self.contradicted(value)
        return self._write(value), None

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        if type(v) is not str:
            raise self.unreadable(v)
        try:
            return self._read(v)
        except (ValueError, ArithmeticError, TypeError) as exc:
            raise self.unreadable(v) from exc


class PathPlan(Tagged):
    """The plan of a path class; `Path` stands for the concrete class of this system.

    A path of another class than the declared one makes is tagged with its class.
    """

    tag = "path"
    bare = frozenset({"str"})

    def __init__(self, declared: type[pathlib.PurePath]) -> None:
        self._declared = declared
        self._default = {pathlib.Path: type(pathlib.Path()), pathlib.PurePath: type(pathlib.PurePath())}.get(
            declared, declared
        )
        self.types = tuple(cls for cls in PATHS.values() if issubclass(cls, declared))
        self.expected = qualified(declared)

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        cls = type(value)
        if cls not in self.types:
            raise self.contradicted(value)
        text = checked_text(str(value))
        return text, None if cls is self._default else {"t": cls.__name__}

    def wrap(self, value: Any, depth: int) -> Any:
        text, _ = self.parts(value, depth)
        return {MARK: "path", "v": text, "t": type(value).__name__}

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        cls = PATHS.get(extra.get("t", self._default.__name__)) if type(extra.get("t", "")) is str else None
        if type(v) is not str or cls not in self.types:
            raise self.unreadable(v)
        try:
            return cls(v)
        except (NotImplementedError, ValueError) as exc:  # a WindowsPath outside Windows
            raise self.unreadable(v, f"{cls.__name__} cannot be made on this system") from exc


PATHS: dict[str, type[pathlib.PurePath]] = {
    cls.__name__: cls
    for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
}


def checked_text(text: str) -> str:
    """Give `text` back. Raises NotCarried if UTF-8 cannot hold it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise NotCarried(
                f"the text has a lone surrogate ({text[exc.start]!a} at {exc.start}), which is no character: "
                "decode the bytes with errors='replace', or keep them as bytes",
                type_name="str",
            ) from exc
    return text


def is_text(text: str) -> bool:
    """Return whether UTF-8 can hold the text."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


SCALARS = frozenset({type(None), bool, int, float, str})


def are_exact(values: list[Any]) -> bool:
    """Return whether values are JSON as they are and contain no others."""
    classes = {*map(type, values)}
    if not classes <= SCALARS:
        return False
    if len(classes) == 1:
        return ARE_JSON[classes.pop()](values)
    return all(ARE_JSON[cls]([v for v in values if type(v) is cls]) for cls in classes)


def are_64_bits(values: list[int]) -> bool:
    """Return whether all values have 64 bits at most and so are numbers in JSON."""
    return min(values) >= MIN_INT and max(values) <= MAX_INT


def are_texts(values: list[str]) -> bool:
    """Return whether UTF-8 can hold all texts."""
    return is_text("".join(values))


def are_finite(values: list[float]) -> bool:
    """Return whether no value is nan or infinite."""
    return isfinite(sum(values)) or all(map(isfinite, values))  # the sum of finite values may be infinite


ARE_JSON: dict[type, Callable[[list[Any]], bool]] = {
    bool: lambda values: True,
    int: are_64_bits,
    float: are_finite,
    str: are_texts,
    type(None): lambda values: True,
}
"""For each class of `SCALARS` a function that returns whether values of this class are all JSON as they are."""


def int_text(value: int) -> str:
    """Write an int of any size: decimal, or hexadecimal where Python limits decimal text."""
    return str(value) if value.bit_length() < _DECIMAL_BITS else hex(value)


def read_int(text: str) -> int:
    """Read the text that `int_text` wrote. Raises ValueError for anything else."""
    if re.fullmatch(r"-?[0-9]{1,640}", text):
        return int(text)
    if re.fullmatch(r"-?0x[0-9a-f]+", text):
        return int(text, 16)
    raise ValueError(text[:40])


def _write_fraction(value: Fraction) -> str:
    return f"{int_text(value.numerator)}/{int_text(value.denominator)}"


def _read_fraction(text: str) -> Fraction:
    numerator, slash, denominator = text.partition("/")
    return Fraction(read_int(numerator), read_int(denominator) if slash else 1)


def _write_complex(value: complex) -> str:
    return f"{value.real!r},{value.imag!r}"


def _read_complex(text: str) -> complex:
    real, imag = text.split(",")
    return complex(float(real), float(imag))


def _read_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if value.is_nan() and "nan" not in text.lower():  # a context without traps makes NaN of bad text
        raise ValueError(text[:40])
    return value


def _write_bytes(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def _read_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _read_bytearray(text: str) -> bytearray:
    return bytearray(_read_bytes(text))


_ZONE, _FOLD = attrgetter("tzinfo"), attrgetter("fold")
_EXACT = {id(None), id(UTC)}  # the zones whose times are exact as text
_decode_texts: Callable[[bytes], list[str]] = msgspec.json.Decoder(list[str]).decode
_KEY = r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*"
_DURATION = r"P(-?[0-9]+)DT([0-9]+)\.([0-9]{6})S"


class ClockPlan(Tagged):
    """The plan of `datetime` or of `time`; both have the same methods here."""

    bare = frozenset({"str"})

    def __init__(self, cls: type[datetime] | type[time]) -> None:
        self.tag = cls.__name__
        self.types = (cls,)
        self.twin = cls
        self.revives = False
        self.expected = qualified(cls)
        self._cls: Any = cls

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        if type(value) is not self._cls:
            raise self.contradicted(value)
        zone = value.tzinfo
        extra: dict[str, Any] = {}
        if zone is not None and zone is not UTC:
            extra = _write_zone(zone)
        if value.fold:
            extra["fold"] = 1
        return value.isoformat(), extra or None

    def dump_all(self, values: list[Any], depth: int) -> list[Any]:
        if (
            {*map(type, values)} == {self._cls}
            and {*map(id, map(_ZONE, values))} <= _EXACT
            and not any(map(_FOLD, values))
        ):
            # msgspec writes times as `isoformat` does, except for the name of UTC; `isoformat` takes ten times as long.
            return _decode_texts(encode_json(values).replace(b'Z"', b'+00:00"'))
        return super().dump_all(values, depth)

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        if type(v) is not str:
            raise self.unreadable(v)
        try:
            value = self._cls.fromisoformat(v)
            zone = _read_zone(extra)
            if zone is not None:
                value = value.replace(tzinfo=zone)
            return value.replace(fold=1) if extra.get("fold") == 1 else value
        except (ValueError, TypeError, OverflowError, KeyError, OSError) as exc:
            raise self.unreadable(v) from exc


def _write_zone(zone: tzinfo) -> dict[str, Any]:
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if name:
            return {"offset": _write_duration(offset), "name": checked_text(name[0])}
        # `fromisoformat` takes an offset below a second for UTC (seen with Python 3.11)
        return {"offset": _write_duration(offset)} if offset.microseconds else {}
    if type(zone) is ZoneInfo and isinstance(zone.key, str) and re.fullmatch(_KEY, zone.key):
        return {"zone": zone.key}
    raise NotCarried(
        f"its zone is a {qualified(type(zone))} that has no name in the zone database: "
        "use zoneinfo.ZoneInfo(key), or turn the time to UTC",
        type_name=qualified(type(zone)),
    )


def _read_zone(extra: dict[str, Any]) -> tzinfo | None:
    if "zone" in extra:
        return _read_key(extra["zone"])
    if "name" in extra:
        if type(extra["name"]) is not str:
            raise ValueError("the name of an offset is no text")
        return timezone(_read_duration(extra["offset"]), extra["name"])
    return timezone(_read_duration(extra["offset"])) if "offset" in extra else None


def _write_key(zone: ZoneInfo) -> str:
    key: str = _write_zone(zone)["zone"]
    return key


def _read_key(key: str) -> ZoneInfo:
    if not re.fullmatch(_KEY, key):
        raise ValueError("no key of the zone database")
    try:
        return ZoneInfo(key)
    except (KeyError, OSError) as exc:
        raise ValueError(f"the zone database of this system has no {key!r}") from exc


def _write_timezone(zone: timezone) -> str:
    named = _write_zone(zone)
    offset = _write_duration(zone.utcoffset(None))
    return f"{offset} {named['name']}" if "name" in named else offset


def _read_timezone(text: str) -> timezone:
    offset, space, name = text.partition(" ")
    return timezone(_read_duration(offset), name) if space else timezone(_read_duration(offset))


def _write_duration(value: timedelta) -> str:
    return f"P{value.days}DT{value.seconds}.{value.microseconds:06}S"


def _read_duration(text: str) -> timedelta:
    match = re.fullmatch(_DURATION, text)
    if not match or len(text) > 40:
        raise ValueError("no duration")
    days, seconds, microseconds = map(int, match.groups())
    return timedelta(days, seconds, microseconds)


def scalar_plans() -> list[Plan]:
    """Make the plans of all scalars, one for each class."""
    return [
        NonePlan(),
        BoolPlan(),
        IntPlan(),
        FloatPlan(),
        StrPlan(),
        TextPlan(complex, "complex", _write_complex, _read_complex),
        TextPlan(bytes, "bytes", _write_bytes, _read_bytes),
        TextPlan(bytearray, "bytearray", _write_bytes, _read_bytearray),
        TextPlan(Decimal, "decimal", str, _read_decimal),
        TextPlan(Fraction, "fraction", _write_fraction, _read_fraction),
        TextPlan(UUID, "uuid", str, UUID),
        ClockPlan(datetime),
        ClockPlan(time),
        TextPlan(date, "date", date.isoformat, date.fromisoformat),
        TextPlan(timedelta, "timedelta", _write_duration, _read_duration),
        TextPlan(timezone, "timezone", _write_timezone, _read_timezone),
        TextPlan(ZoneInfo, "zoneinfo", _write_key, _read_key),
    ]


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
        names_of: dict[bytes, list[str]] = {}
        for name, form in self._written.items():
            names_of.setdefault(encode_sorted(form), []).append(name)
        return {form: self.cls[names[0]] for form, names in names_of.items() if len(names) == 1 and names[0]}

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
