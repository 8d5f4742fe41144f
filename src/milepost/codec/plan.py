"""The base of all plans, with their refusals and the limits.

A `Plan` writes the values of one declared type as JSON and reads them back. It has two ways to write. `dump` is
for a place whose declared type the reader knows: it writes the bare form where that is exact ("12.50" for a
Decimal) and the tagged form elsewhere. `wrap` is for a place without a declared type: values that JSON cannot
tell apart become an object with the key `$mp`. `load` reads both, so old records can still be read after the
type of a field was narrowed from Any.

`dump_all` writes a column of values at once, such as all totals of a list of orders. `are_json` tells, by functions
that are written in C, that msgspec writes the values of a column as they are, which may be objects, just as `dump`
would. Lists of records are looked at column by column, all other columns value by value.

JSON without marks is read in one go if the result can be proved right. `twin` is a type that msgspec's typed decoder
knows: the class itself, or a dict of a record's fields. That decoder is more lenient than this codec, so its result
counts only if writing it gives the same bytes again. Then `revive` makes the values of the twins that are not the
values themselves.

A refusal is raised as a `Refusal`; each container that it passes adds its step of the path. In a column it also
has its row. Plans keep no state of a call and may be used by several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

MARK = "$mp"  # the key that makes a JSON object a tagged value
MAX_DEPTH = 128  # containers within containers; keeps both directions far from the interpreter's recursion limit

encode_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
encode_sorted: Callable[[Any], bytes] = msgspec.json.Encoder(order="sorted").encode

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "list",
    dict: "dict",
}


class Refusal(Exception):
    """The refusal of a value; `steps` is the path of the value from the inside outwards."""

    def __init__(self, message: str, *, type_name: str = "", expected: str = "", found: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.expected = expected
        self.found = found
        self.steps: list[str] = []
        self.row = 0  # the value's place in the column of `dump_all`

    def path(self, root: str) -> str:
        """Give the whole path; a path of more than 24 steps is cut in the middle."""
        steps = self.steps[::-1]
        if len(steps) > 24:
            steps = [*steps[:12], "…", *steps[-11:]]
        return root + "".join(steps)


class NotCarried(Refusal):
    """A value that cannot be written exactly."""


class Contradicted(Refusal):
    """A value that is not of its declared type."""


class Unreadable(Refusal):
    """JSON that does not give a value of the declared type."""


class Plan:
    """The writer and reader of the values of one declared type. Subclasses override the methods that they need."""

    tag: str = ""
    types: tuple[type, ...] = ()  # exact classes of the values; empty: only the plan itself knows
    bare: frozenset[str] = frozenset()  # the kinds of JSON that `dump` writes without the mark
    plain = False  # `wrap` writes the same as `dump`: JSON itself shows the type
    expected = "object"  # the declared type, for people
    twin: Any = Any  # the type that msgspec's typed decoder reads instead; valid if the same bytes come out again
    revives = True  # `revive` has to make the values from the twins
    keeps_text = False  # a text in JSON is the value itself
    may_be_json = False  # `are_json` may say yes

    def dump(self, value: Any, depth: int) -> Any:
        """Write `value` for a place whose declared type is this one."""
        raise NotImplementedError

    def wrap(self, value: Any, depth: int) -> Any:
        """Write `value` for a place without a declared type."""
        return self.dump(value, depth)

    def load(self, raw: Any, bare: bool) -> Any:
        """Read the JSON that `dump` or `wrap` wrote. `bare` promises that no mark is in `raw` at any depth."""
        raise NotImplementedError

    def opens(self, tag: Any, name: Any) -> bool:
        """Return whether a tagged object of that tag and class name is one of this plan."""
        return tag == self.tag and self.tag != ""

    def are_json(self, values: list[Any], depth: int) -> bool:
        """Return whether the values of a column are of the declared type and msgspec writes them as `dump` would."""
        return False

    def dump_all(self, values: list[Any], depth: int) -> list[Any]:
        """Write each value of a column as `dump` does. The column itself comes back if nothing changes."""
        return values if self.may_be_json and self.are_json(values, depth) else self._dump_each(values, depth)

    def _dump_each(self, values: list[Any], depth: int) -> list[Any]:
        """Write each value of a column by itself."""
        out: list[Any] = []
        try:
            for value in values:
                out.append(self.dump(value, depth))  # noqa: PERF401  # its length is the row
        except Refusal as refusal:
            refusal.row = len(out)
            raise
        return out

    def revive(self, twin: Any) -> Any:
        """Make the value of a twin, which may be changed for it. The twin of this method is plain JSON."""
        return self.load(twin, True)

    def revive_all(self, twins: Sequence[Any]) -> list[Any]:
        """Make the values of many twins, as `revive` does."""
        return list(map(self.revive, twins))

    def contradicted(self, value: Any) -> Contradicted:
        """Make the refusal of a value that is not of the declared type."""
        actual = describe(value)
        return Contradicted("", expected=self.expected, found=actual, type_name=qualified(type(value)))

    def unreadable(self, raw: Any, why: str = "") -> Unreadable:
        """Make the refusal of JSON that is no value of the declared type."""
        return Unreadable(why, expected=self.expected, found=describe_json(raw))


class Tagged(Plan):
    """A plan whose form is `{"$mp": tag, "v": ...}` with extra keys, or `v` alone where that is exact.

    Subclasses define `parts` (the value as JSON, and extra keys or None) and `make`, which does the reverse.
    """

    def parts(self, value: Any, depth: int) -> tuple[Any, dict[str, Any] | None]:
        raise NotImplementedError

    def make(self, v: Any, extra: dict[str, Any], bare: bool) -> Any:
        raise NotImplementedError

    def dump(self, value: Any, depth: int) -> Any:
        v, extra = self.parts(value, depth)
        return v if extra is None else {MARK: self.tag, "v": v, **extra}

    def wrap(self, value: Any, depth: int) -> Any:
        v, extra = self.parts(value, depth)
        return {MARK: self.tag, "v": v} if extra is None else {MARK: self.tag, "v": v, **extra}

    def load(self, raw: Any, bare: bool) -> Any:
        if not bare and type(raw) is dict and MARK in raw:
            if not self.opens(*read_mark(raw)) or "v" not in raw:
                raise self.unreadable(raw)
            return self.make(raw["v"], raw, bare)
        return self.make(raw, _NO_EXTRA, bare)


_NO_EXTRA: dict[str, Any] = {}


def read_mark(raw: dict[str, Any]) -> tuple[Any, Any]:
    """Give the tag and the class name of a tagged object; None for each that is no text."""
    tag, name = raw.get(MARK), raw.get("t")
    return (tag if type(tag) is str else None, name if type(name) is str else None)


def json_kind(raw: Any) -> str:
    """Name the kind of JSON that `raw` is; "" if it is no JSON."""
    return _KINDS.get(type(raw), "")


def key_step(key: Any) -> str:
    """Give the step of a path for a key of a dict: `["name"]`, `[3]`, `[datetime.date(2024, 2, 29)]`."""
    if type(key) is str:
        quoted = key.replace("\\", "\\\\").replace('"', '\\"')
        return f'["{quoted}"]' if quoted.isprintable() else f"[{key!a}]"
    module = type(key).__module__
    if module in ("builtins", "datetime", "decimal", "uuid", "fractions"):
        with suppress(Exception):  # for a number of thousands of digits, and for a user's objects inside
            return f"[{key!r}]"[:100]
    return f"[<{type(key).__qualname__}>]"


def qualified(cls: Any) -> str:
    """Give a class's name with its module; built-in classes come without."""
    name = str(getattr(cls, "__qualname__", cls))
    module = getattr(cls, "__module__", "builtins")
    return name if module == "builtins" else f"{module}.{name}"


def describe(value: Any) -> str:
    """Describe a value in a message: None as itself, any other value by its type."""
    return "None" if value is None else qualified(type(value))


def describe_json(raw: Any) -> str:
    """Describe some JSON in a message."""
    kind = json_kind(raw)
    if kind == "dict" and MARK in raw:
        tag, name = read_mark(raw)
        return f"a tagged {tag or 'value of no known kind'}" + (f" {name!r}" if name else "")
    if kind == "str":
        return f"the text {raw[:40]!r}" + ("…" if len(raw) > 40 else "")
    names = {"null": "null", "list": "an array", "dict": "an object", "bool": "a bool", "int": "an integer"}
    return names.get(kind, "a number" if kind else f"a {qualified(type(raw))}")


def too_deep(value: Any) -> NotCarried:
    """Make the refusal of a value that contains itself or is nested too deep."""
    return NotCarried(
        f"containers are nested more than {MAX_DEPTH} deep here, or one holds itself", type_name=qualified(type(value))
    )
