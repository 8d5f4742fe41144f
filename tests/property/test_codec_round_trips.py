"""Round trips over generated values and generated types, and decoding of whatever bytes."""

import itertools
import json
import string
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntFlag
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.codec import Codec, canonical
from milepost.errors import DeserializeStateError, SerializeStateError, StateTypeError
from thoroughness import examples

quick = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Level(Enum):
    LOW = 1
    HIGH = "high"
    PAIR = (1, 2)


class Bits(IntFlag):
    A = 1
    B = 2


@dataclass
class Item:
    name: str
    due: date | None = None
    meta: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: tuple[Decimal, ...] = ()


class Named(NamedTuple):
    a: int
    b: Any


class Struct(msgspec.Struct, frozen=True):
    a: float
    b: str | None = None


class Model(pydantic.BaseModel):
    a: int
    b: list[str] = []


@attrs.frozen
class Attr:
    a: bytes


class Keys(TypedDict, total=False):
    a: int
    b: date


@dataclass
class Tree:
    value: Any
    children: list["Tree"] = field(default_factory=list)


@dataclass
class Flat:
    name: str
    a: int
    b: float | None = None
    rows: list[dict[str, list[int]]] = field(default_factory=list)
    v: Any = None


KNOWN = (Flat, Level, Bits, Item, Frozen, Named, Struct, Model, Attr, Tree)

text = st.text(st.characters(codec="utf-8"), max_size=12)
fixed = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
zones = st.one_of(st.none(), st.just(UTC), fixed, st.sampled_from(["Europe/Berlin", "Asia/Tokyo"]).map(ZoneInfo))
moments = st.builds(lambda at, fold: at.replace(fold=fold), st.datetimes(timezones=zones), st.integers(0, 1))
floats = st.floats(allow_nan=False)
decimals = st.decimals(allow_nan=False)

hashable = st.deferred(
    lambda: st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(min_value=2**62, max_value=2**70),
        floats,
        st.complex_numbers(allow_nan=False),
        text,
        st.binary(max_size=8),
        decimals,
        st.fractions(),
        moments,
        st.dates(),
        st.times(timezones=zones),
        st.timedeltas(),
        st.uuids(),
        text.filter(lambda t: "\0" not in t).map(PurePosixPath),
        st.sampled_from(list(Level)),
        st.integers(0, 3).map(Bits),
        st.builds(Frozen, st.integers(), st.lists(decimals, max_size=2).map(tuple)),
        st.builds(Struct, floats, st.none() | text),
        st.builds(Attr, st.binary(max_size=4)),
    )
)
keys = st.one_of(hashable, st.tuples(hashable, hashable), st.frozensets(hashable, max_size=2))


def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(text | st.just("$mp"), inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=3),
        st.builds(deque, st.lists(inner, max_size=2), st.none() | st.integers(2, 5)),
        st.builds(OrderedDict, st.lists(st.tuples(keys, inner), max_size=3)),
        st.builds(lambda d: defaultdict(list, d), st.dictionaries(keys, inner, max_size=2)),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.builds(Item, text, st.none() | st.dates(), inner),
        st.builds(Named, st.integers(), inner),
        st.builds(Flat, text, st.integers(), st.none() | floats, v=inner),
        st.builds(Model, a=st.integers(), b=st.lists(text, max_size=2)),
        st.builds(Tree, inner, st.lists(st.builds(Tree, inner), max_size=2)),
    )


values = st.recursive(st.one_of(hashable, st.binary(max_size=4).map(bytearray)), grow, max_leaves=8)


def alike(expected: Any, found: Any) -> None:
    """Assert that two values are equal and of the same types at every depth."""
    assert type(expected) is type(found)
    assert expected == found
    if isinstance(expected, set | frozenset | Counter):
        by_repr = sorted(expected, key=repr), sorted(found, key=repr)
        assert [*map(type, by_repr[0])] == [*map(type, by_repr[1])]
        return
    if isinstance(expected, float | complex | Decimal):
        assert repr(expected) == repr(found)
    if isinstance(expected, datetime | time):
        assert repr(expected) == repr(found)
    if isinstance(expected, list | tuple | deque):
        assert getattr(expected, "maxlen", 0) == getattr(found, "maxlen", 0)
        for one, other in zip(expected, found, strict=True):
            alike(one, other)
    if isinstance(expected, dict):
        for pair, other in zip(expected.items(), found.items(), strict=True):
            alike(pair[0], other[0])
            alike(pair[1], other[1])
    if isinstance(expected, Item | Tree | Flat):
        alike(vars(expected), vars(found))


UNTYPED: Codec[Any] = Codec(Any, types=KNOWN)


@quick
@given(values)
def test_any_value_comes_back_equal_and_of_its_types(value: Any) -> None:
    data = UNTYPED.encode(value)
    back = UNTYPED.decode(data)
    alike(value, back)
    assert data == UNTYPED.encode(back)
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no strict JSON"))


@quick
@given(st.dictionaries(text | keys, values, max_size=5))
def test_any_dict_comes_back_as_a_state(state: dict[Any, Any]) -> None:
    codec = Codec(dict, types=KNOWN)
    alike(state, codec.decode(codec.encode(state)))


@quick
@given(values)
def test_equal_copies_have_equal_canonical_bytes(value: Any) -> None:
    assert canonical(value, KNOWN) == canonical(UNTYPED.decode(UNTYPED.encode(value)), KNOWN)


# -- generated types -----------------------------------------------------------------------------------

LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (bool, st.booleans()),
    (float, floats | st.integers()),
    (complex, st.complex_numbers(allow_nan=False) | floats | st.integers()),
    (str, text),
    (bytes, st.binary(max_size=5)),
    (Decimal, decimals),
    (Fraction, st.fractions()),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times(timezones=zones)),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Level, st.sampled_from(list(Level))),
    (Bits, st.integers(0, 3).map(Bits)),
    (Frozen, st.builds(Frozen, st.integers(), st.lists(decimals, max_size=2).map(tuple))),
    (Struct, st.builds(Struct, floats, st.none() | text)),
    (Attr, st.builds(Attr, st.binary(max_size=4))),
    (dict[str, list[int]], st.dictionaries(text, st.lists(st.integers(), max_size=2), max_size=2)),
]
Typed = tuple[Any, st.SearchStrategy[Any]]


def combine(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    hashables = st.sampled_from(LEAVES[:-1])
    return st.one_of(
        inner.map(lambda t: (list[t[0]], st.lists(t[1], max_size=4))),
        inner.map(lambda t: (tuple[t[0], ...], st.lists(t[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(lambda t: (tuple[t[0][0], t[1][0]], st.tuples(t[0][1], t[1][1]))),
        hashables.map(lambda t: (set[t[0]], st.sets(t[1], max_size=3))),
        st.tuples(hashables, inner).map(
            lambda t: (dict[t[0][0], t[1][0]], st.dictionaries(t[0][1], t[1][1], max_size=3))
        ),
        inner.map(lambda t: (t[0] | None, st.none() | t[1])),
        st.tuples(inner, inner).map(lambda t: (t[0][0] | t[1][0], t[0][1] | t[1][1])),
        st.lists(inner, min_size=1, max_size=4).map(record),
    )


NUMBERS = itertools.count()


def record(fields: list[Typed]) -> Typed:
    # Two classes of one name cannot stand in one union: a record could not tell them apart.
    cls = make_dataclass(
        f"Generated{next(NUMBERS)}", list(zip(string.ascii_lowercase, [f[0] for f in fields], strict=False))
    )
    return cls, st.tuples(*[f[1] for f in fields]).map(lambda row: cls(*row))


types = st.recursive(st.sampled_from(LEAVES), combine, max_leaves=5)


@quick
@given(st.data(), types)
def test_a_value_of_any_generated_type_comes_back(data: st.DataObject, typed: Typed) -> None:
    type_, strategy = typed
    codec: Codec[Any] = Codec(type_)
    assert () == codec.problems
    value = data.draw(strategy)
    alike(value, codec.decode(codec.encode(value)))
    many: Codec[Any] = Codec(list[type_])
    column = data.draw(st.lists(strategy, max_size=5))
    alike(column, many.decode(many.encode(column)))
    assert many.encode(column) == b"[" + b",".join(map(codec.encode, column)) + b"]"


@quick
@given(types, values)
def test_any_value_in_a_place_of_any_type_is_carried_or_refused_by_a_typed_error(typed: Typed, value: Any) -> None:
    codec: Codec[Any] = Codec(typed[0], types=KNOWN)
    try:
        data = codec.encode(value)
    except (SerializeStateError, StateTypeError):
        return
    alike(value, codec.decode(data))


# -- decoding whatever comes ------------------------------------------------------------------------------

TAGS = """
int float tuple set dict deque defaultdict counter ordereddict datetime time date timedelta timezone zoneinfo uuid
path decimal fraction complex bytes enum object custom frozenset bytearray nothing
"""
tags = st.sampled_from(TAGS.split())
names = st.sampled_from([cls.__name__ for cls in KNOWN] + ["os.system", "PosixPath", ""])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | text | st.sampled_from(["1", "nan", "P1DT0.000000S", "list"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(st.tuples(inner, inner).map(list), max_size=3),
        st.dictionaries(
            text | st.sampled_from(["a", "b", "v", "rows", "name", "due", "$set", "$extra", "$private"]),
            inner,
            max_size=4,
        ),
        st.fixed_dictionaries(
            {"$mp": tags | inner},
            optional={"v": inner, "t": names | inner, "n": inner, "f": inner, "zone": inner, "fold": inner}
            | {"name": inner, "offset": inner},
        ),
    ),
    max_leaves=10,
)
TARGETS: list[Codec[Any]] = [
    Codec(type_, types=KNOWN)
    for type_ in (
        Any,
        dict,
        list[Item],
        list[Flat],
        Flat,
        Item,
        Frozen,
        Named,
        Struct,
        Model,
        Attr,
        Keys,
        Tree,
        Level,
        Bits,
        datetime,
    )
] + [Codec(Item | Model | list[int] | dict[int, date] | Level | None), Codec(dict[Level, deque[time]]), Codec(set[Any])]


@quick
@given(json_values)
def test_only_the_typed_error_escapes_decoding_whatever_the_json(raw: Any) -> None:
    data = json.dumps(raw).encode()
    for codec in TARGETS:
        try:
            value = codec.decode(data)
        except DeserializeStateError:
            continue
        alike(value, codec.decode(codec.encode(value)))


@quick
@given(st.binary(max_size=40))
def test_only_the_typed_error_escapes_decoding_whatever_the_bytes(data: bytes) -> None:
    for codec in TARGETS:
        with suppress(DeserializeStateError):
            codec.decode(data)


@quick
@given(values, st.data())
def test_only_the_typed_error_escapes_decoding_of_damaged_records(value: Any, data: st.DataObject) -> None:
    record = bytearray(UNTYPED.encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.sampled_from(b'"[]{},:0123456789$vtnamp '))
    for codec in TARGETS:
        with suppress(DeserializeStateError):
            codec.decode(bytes(record))
