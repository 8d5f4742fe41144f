"""Plans of values that contain no others: numbers, text, bytes, identifiers, paths.

Values that JSON has itself (None, bool, int, float, str) are plain; all others are written as text. Every class
is matched exactly: a bool is no int here, and a subclass of str is no str.
"""

from __future__ import annotations

import base64
import pathlib
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from typing import Any
from uuid import UUID

from .plan import MARK, NotCarried, Plan, Tagged, qualified, read_mark

MIN_INT, MAX_INT = -(2**63), 2**64 - 1  # the range of 64 bits, signed or not
_NATIVE = frozenset({bytes, bytearray, date, Decimal, UUID})  # msgspec writes the same text for them
_NON_FINITE = frozenset({"nan", "inf", "-inf"})
# Python refuses to turn longer ints into decimal text (sys.set_int_max_str_digits allows 640 digits at least)
_DECIMAL_BITS = 2000


class JsonPlan(Plan):
    """The plan of the values of one class that JSON has itself; `twin` is the class."""

    plain = True
    revives = False

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
    if re.fullmatch(r"-?[0-9]{1,640}", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"-?0x[0-9a-f]+", text, re.ASCII):
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
    ]
