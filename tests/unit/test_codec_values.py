"""Whatever the codec writes comes back equal and of the same types, in typed and in untyped places."""

import math
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from milepost.codec import Codec
from milepost.errors import DeserializeStateError, SerializeStateError, StateTypeError
from milepost.testing.tables import for_each


def show(value: Any) -> str:
    """Name a parameter the same in every process: sets and objects have no such repr, huge ints have none at all."""
    if isinstance(value, bytes | str | float | date | timedelta | Decimal) or (
        type(value) is int and abs(value) < 2**70
    ):
        return repr(value)[:50]
    return type(value).__name__ if not isinstance(value, type) else value.__name__


class Ticket:
    class Level(Enum):
        LOW = 1
        HIGH = 3


class Kind(StrEnum):
    BUG = "bug"
    TASK = "task"


class Size(IntEnum):
    S = 1
    L = 2


class Access(Flag):
    READ = auto()
    WRITE = auto()
    BOTH = READ | WRITE
    ADMIN = auto()


class Bits(IntFlag):
    A = 1
    B = 4


class Shape(Enum):
    POINT = (0, 0)
    LINE = (1, 0)


class Odd(Enum):
    NOTHING = None
    NAN = float("nan")
    OPAQUE = object()


class Color(str, Enum):  # noqa: UP042  # what older code has
    RED = "red"


BERLIN = ZoneInfo("Europe/Berlin")

VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**40,
    -(10**5000),
    0.0,
    -0.0,
    1.0,
    1e22,
    5e-324,
    float("inf"),
    float("-inf"),
    float("nan"),
    complex(1.5, -0.0),
    complex("nan+infj"),
    "",
    "x\x00y",
    "déjà 𝄞",
    "\u2028",
    b"",
    b"\x00\xff",
    bytearray(b"ab\x80"),
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("1E+30"),
    Decimal("NaN"),
    Decimal("sNaN12"),
    Decimal("-Infinity"),
    Fraction(-3, 4),
    Fraction(10**700, 7),
    datetime(2024, 2, 29, 1, 2, 3, 4),
    datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=-5, minutes=-30))),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(seconds=3723, microseconds=7))),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(microseconds=1))),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=1), "CET")),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(0), "Z u l u")),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    datetime(2024, 10, 27, 2, 30, fold=1),
    datetime.min,
    datetime.max,
    date(2024, 2, 29),
    time(1, 2, 3, 4),
    time(2, 30, tzinfo=UTC, fold=1),
    time(2, 30, tzinfo=BERLIN),
    timedelta(days=-1, seconds=5, microseconds=6),
    timedelta.max,
    timedelta.min,
    UTC,
    timezone(timedelta(hours=2), "two hours"),
    timezone(timedelta(microseconds=-1)),
    BERLIN,
    UUID(int=5),
    PurePosixPath("/a/b"),
    PureWindowsPath("c:\\a"),
    Path("a/ b"),
    Ticket.Level.HIGH,
    Kind.BUG,
    Size.L,
    Access.READ,
    Access.BOTH,
    Access.READ | Access.ADMIN,
    Access(0),
    Bits.A | Bits.B,
    Bits(32),
    Shape.LINE,
    Odd.NOTHING,
    Odd.NAN,
    Odd.OPAQUE,
    Color.RED,
    [],
    [1, [2, []]],
    (),
    (1, "a", (None,)),
    {},
    {"a": 1, "b": [1.5]},
    {1: "int", "1": "text"},
    {date(2024, 2, 29): 1, UUID(int=5): 2, Kind.BUG: 3, (1, "a"): 4, None: 5, True: 6, 2.5: 7, frozenset({1}): 8},
    {"$mp": "tuple", "v": [1]},
    {"a": {"$mp": 3}},
    set(),
    {(5, "e"), (6, "f")},
    frozenset({frozenset({8}), frozenset()}),
    {"rows": [("x", 1), ("y", 2)]},
    deque([7, 8], maxlen=2),
    deque([1]),
    deque(maxlen=0),
    OrderedDict([("b", 1), ("a", 2)]),
    OrderedDict([(2, 1), ("a", 2)]),
    Counter("aab"),
    Counter({(1,): 2}),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {1: 2}),
    defaultdict(int),
    {"deep": [{"in": (datetime(2024, 1, 1, tzinfo=BERLIN), {1}, b"x")}]},
]

KNOWN = (Ticket.Level, Kind, Size, Access, Bits, Shape, Odd, Color)


def same(expected: Any, found: Any) -> bool:
    """Whether two values are equal and of the same types at every depth; nan equals nan."""
    if type(expected) is not type(found):
        return False
    if isinstance(expected, Enum):
        return expected is found if type(expected).__flags__ is not None and expected.name else expected == found
    if isinstance(expected, float):
        return repr(expected) == repr(found)
    if isinstance(expected, complex):
        return repr(expected) == repr(found)
    if isinstance(expected, Decimal):
        return str(expected) == str(found)
    if isinstance(expected, datetime | time):
        zones = (expected.tzinfo, found.tzinfo)
        return (
            expected.replace(tzinfo=None) == found.replace(tzinfo=None)
            and expected.fold == found.fold
            and repr(zones[0]) == repr(zones[1])
        )
    if isinstance(expected, list | tuple | deque):
        return (
            len(expected) == len(found)
            and getattr(expected, "maxlen", 0) == getattr(found, "maxlen", 0)
            and all(map(same, expected, found))
        )
    if isinstance(expected, dict):
        return (
            list(map(type, expected)) == list(map(type, found))
            and all(map(same, expected, found))
            and all(map(same, expected.values(), found.values()))
            and getattr(expected, "default_factory", 0) is getattr(found, "default_factory", 0)
        )
    if isinstance(expected, set | frozenset):
        return expected == found and {*map(type, expected)} == {*map(type, found)}
    return bool(expected == found)


@for_each("value", VALUES)
@for_each("shape", ["alone", "in a dict", "in a list of many", "in a tuple", "as a default"])
def test_every_carried_value_comes_back_equal_and_of_its_type_where_nothing_is_declared(value: Any, shape: str) -> None:
    wrapped = {
        "alone": value,
        "in a dict": {"k": value},
        "in a list of many": ["x", value, 1, value],
        "in a tuple": (value, 2),
        "as a default": {"k": [{"v": value}, {"v": value}]},
    }[shape]
    codec = Codec(Any, types=KNOWN)
    data = codec.encode(wrapped)
    assert same(wrapped, codec.decode(data))
    assert b"NaN" not in data or b'"' in data
    msgspec.json.decode(data)


TYPED = [
    (bool, True, b"true"),
    (int, 5, b"5"),
    (int, 2**65, b'{"$mp":"int","v":"36893488147419103232"}'),
    (float, 1.0, b"1.0"),
    (float, math.inf, b'{"$mp":"float","v":"inf"}'),
    (float, 1, b"1"),
    (float, 2**65, b'{"$mp":"int","v":"36893488147419103232"}'),
    (str, "a", b'"a"'),
    (bytes, b"\x00\xff", b'"AP8="'),
    (bytearray, bytearray(b"a"), b'"YQ=="'),
    (complex, 1 + 2j, b'"1.0,2.0"'),
    (complex, 1.5, b"1.5"),
    (complex, 1, b"1"),
    (Decimal, Decimal("12.50"), b'"12.50"'),
    (Fraction, Fraction(1, 3), b'"1/3"'),
    (datetime, datetime(2024, 1, 1), b'"2024-01-01T00:00:00"'),
    (datetime, datetime(2024, 1, 1, tzinfo=UTC), b'"2024-01-01T00:00:00+00:00"'),
    (
        datetime,
        datetime(2024, 1, 1, tzinfo=BERLIN),
        b'{"$mp":"datetime","v":"2024-01-01T00:00:00+01:00","zone":"Europe/Berlin"}',
    ),
    (date, date(2024, 1, 1), b'"2024-01-01"'),
    (time, time(1), b'"01:00:00"'),
    (timedelta, timedelta(1, 2, 3), b'"P1DT2.000003S"'),
    (UUID, UUID(int=5), b'"00000000-0000-0000-0000-000000000005"'),
    (Path, Path("a"), b'"a"'),
    (PurePath, PureWindowsPath("a"), b'{"$mp":"path","v":"a","t":"PureWindowsPath"}'),
    (PurePosixPath, PurePosixPath("a"), b'"a"'),
    (Ticket.Level, Ticket.Level.HIGH, b"3"),
    (Kind, Kind.BUG, b'"bug"'),
    (Size, Size.L, b"2"),
    (Access, Access.READ | Access.ADMIN, b"5"),
    (Bits, Bits(32), b"32"),
    (Shape, Shape.LINE, b'{"$mp":"tuple","v":[1,0]}'),
    (Odd, Odd.OPAQUE, b'{"$mp":"enum","t":"Odd","v":"OPAQUE"}'),
    (Odd, Odd.NOTHING, b"null"),
    (Odd | None, Odd.NOTHING, b'{"$mp":"enum","t":"Odd","v":"NOTHING"}'),
    (list[int], [1, 2], b"[1,2]"),
    (list[Ticket.Level], [Ticket.Level.LOW, Ticket.Level.HIGH], b"[1,3]"),
    (list[list[date]], [[date(2024, 1, 1)], []], b'[["2024-01-01"],[]]'),
    (tuple[int, ...], (1, 2), b"[1,2]"),
    (tuple[int, str], (1, "a"), b'[1,"a"]'),
    (tuple[()], (), b"[]"),
    (tuple, (1, (2,)), b'[1,{"$mp":"tuple","v":[2]}]'),
    (set[str], {"b", "a"}, b'["a","b"]'),
    (frozenset[date], frozenset({date(2024, 1, 1)}), b'["2024-01-01"]'),
    (deque[int], deque([1]), b"[1]"),
    (deque[int], deque([1], 3), b'{"$mp":"deque","v":[1],"n":3}'),
    (dict[str, Decimal], {"a": Decimal("1.0")}, b'{"a":"1.0"}'),
    (dict[str, int], {"$mp": 1}, b'{"$mp":"dict","v":[["$mp",1]]}'),
    (dict[int, str], {1: "a", 2**70: "b"}, b'{"1":"a","1180591620717411303424":"b"}'),
    (dict[UUID, int], {UUID(int=1): 2}, b'{"00000000-0000-0000-0000-000000000001":2}'),
    (dict[Kind, int], {Kind.BUG: 2}, b'{"bug":2}'),
    (dict[tuple[int, str], int], {(1, "a"): 2}, b'{"$mp":"dict","v":[[[1,"a"],2]]}'),
    (dict[bool, int], {True: 2}, b'{"$mp":"dict","v":[[true,2]]}'),
    (OrderedDict[str, int], OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
    (Counter[str], Counter("aab"), b'{"a":2,"b":1}'),
    (
        defaultdict[str, list[int]],
        defaultdict(list, a=[1]),
        b'{"$mp":"defaultdict","v":{"a":[1]},"f":"list"}',
    ),
    (int | None, None, b"null"),
    (Decimal | None, Decimal(1), b'"1"'),
    (int | str, "1", b'"1"'),
    (int | float, 1.0, b"1.0"),
    (Decimal | str, Decimal("1.0"), b'{"$mp":"decimal","v":"1.0"}'),
    (Decimal | str, "1.0", b'"1.0"'),
    (Decimal | int, Decimal("1.0"), b'"1.0"'),
    (datetime | date, date(2024, 1, 1), b'{"$mp":"date","v":"2024-01-01"}'),
    (list[int] | set[int], {1}, b'{"$mp":"set","v":[1]}'),
    (list[int] | set[int], [1], b"[1]"),
    (list[date] | list[str], [date(2024, 1, 1)], b'[{"$mp":"date","v":"2024-01-01"}]'),
    (list[date] | list[str], ["2024-01-01"], b'["2024-01-01"]'),
    (dict[int, int] | dict[str, int], {1: 2}, b'{"$mp":"dict","v":[[1,2]]}'),
    (Literal["a", 1] | None, 1, b"1"),
    (Literal[Kind.BUG], Kind.BUG, b'{"$mp":"enum","t":"Kind","v":"BUG"}'),
    (Literal["a"] | str, "b", b'"b"'),
    (Sequence[date], [date(2024, 1, 1)], b'["2024-01-01"]'),
    (Sequence[date], (date(2024, 1, 1),), b'{"$mp":"tuple","v":["2024-01-01"]}'),
    (Sequence[str], "abc", b'"abc"'),
    (Iterable[int], {1}, b'{"$mp":"set","v":[1]}'),
    (Collection[int], frozenset({1}), b'{"$mp":"frozenset","v":[1]}'),
    (AbstractSet[int], frozenset({1}), b'{"$mp":"frozenset","v":[1]}'),
    (Mapping[str, date], {"a": date(2024, 1, 1)}, b'{"a":"2024-01-01"}'),
    (Mapping[str, date], OrderedDict(a=date(2024, 1, 1)), b'{"$mp":"ordereddict","v":{"a":"2024-01-01"}}'),
    (object, (1,), b'{"$mp":"tuple","v":[1]}'),
]


@for_each("type_, value, data", TYPED)
def test_a_declared_type_is_written_as_plain_json_where_that_is_exact(type_: Any, value: Any, data: bytes) -> None:
    codec: Codec[Any] = Codec(type_)
    assert () == codec.problems
    assert data == codec.encode(value)
    assert same(value, codec.decode(data))
    many: Codec[Any] = Codec(list[type_])
    assert b"[" + b",".join([data] * 3) + b"]" == many.encode([value] * 3)
    assert same([value] * 3, many.decode(many.encode([value] * 3)))


@for_each("type_, value, data", TYPED)
def test_what_was_written_where_nothing_is_declared_is_read_by_a_declared_type(
    type_: Any, value: Any, data: bytes
) -> None:
    data = Codec(Any, types=KNOWN).encode(value)
    assert same(value, Codec(type_).decode(data))


WRONG = [
    (int, True, "int", "bool"),
    (int, 1.0, "int", "float"),
    (int, Size.L, "int", f"{__name__}.Size"),
    (float, True, "float", "bool"),
    (float | None, False, "float | None", "bool"),
    (complex, True, "complex", "bool"),
    (str, 1, "str", "int"),
    (str, None, "str", "None"),
    (str, Kind.BUG, "str", f"{__name__}.Kind"),
    (bool, 1, "bool", "int"),
    (date, datetime(2024, 1, 1), "datetime.date", "datetime.datetime"),
    (list[int], (1,), "list[int]", "tuple"),
    (list[str], None, "list[str]", "None"),
    (tuple[int, ...], [1], "tuple[int, ...]", "list"),
    (tuple[int, int], (1,), "tuple[int, int]", "a tuple of 1"),
    (dict[str, int], OrderedDict(a=1), "dict[str, int]", "collections.OrderedDict"),
    (Literal["a", "b"], "c", "Literal['a', 'b']", "'c'"),
    (int | str, 1.5, "int | str", "float"),
    (Decimal, 1, "decimal.Decimal", "int"),
    (Kind, "bug", f"{__name__}.Kind", "str"),
    (int | None, "x", "int | None", "str"),
]


@for_each("type_, value, expected, found", WRONG)
def test_a_value_that_contradicts_its_declared_type_is_refused_with_path_and_types(
    type_: Any, value: Any, expected: str, found: str
) -> None:
    for codec, state, path in (
        (Codec(type_), value, "state"),
        (Codec(list[type_]), [value], "state[0]"),
        (Codec(dict[str, dict[str, type_]]), {"a": {}, "b": {"c": value}}, 'state["b"]["c"]'),
    ):
        with pytest.raises(StateTypeError) as refused:
            codec.encode(state)
        assert (path, expected, found) == (refused.value.path, refused.value.expected, refused.value.found)
        assert path in str(refused.value)


def test_the_path_of_a_refusal_is_exact_in_large_columns() -> None:
    rows = [{"tags": ["a", "b"], "n": {"x": 1}} for _ in range(50)]
    rows[37]["tags"] = ["a", 3]  # type: ignore[list-item]
    with pytest.raises(StateTypeError) as refused:
        Codec(list[dict[str, list[str] | dict[str, int]]]).encode(rows)
    assert refused.value.path == 'state[37]["tags"][1]'
    with pytest.raises(StateTypeError) as refused:
        Codec(list[list[list[int]]]).encode([[[1], [2, 3]], [], [[4], [], [5, 6, "7"]]])
    assert refused.value.path == "state[2][2][2]"
    with pytest.raises(DeserializeStateError) as unreadable:
        Codec(list[list[dict[str, int | None]]]).decode(b'[[{"a":1}],[],[{},{"b":null,"c":"x"}]]')
    assert unreadable.value.path == 'state[2][1]["c"]'


@pytest.mark.parametrize("text", ["a\ud801b", "\udfff", "x" * 100 + "\ud83d"])
def test_a_lone_surrogate_is_refused_by_path_wherever_it_stands(text: str) -> None:
    for state, path in (
        ({"a": [text]}, 'state["a"][0]'),
        ({"a": {text: 1}}, None),
        ({"a": (1, text)}, 'state["a"][1]'),
        ({"a": Path(text)}, 'state["a"]'),
        ({"a": [1, {"b": text}]}, 'state["a"][1]["b"]'),
    ):
        with pytest.raises(SerializeStateError) as refused:
            Codec(dict).encode(state)
        if path:
            assert path == refused.value.path
        str(refused.value).encode()
    for type_, value in ((str, text), (list[str], [text]), (dict[str, int], {text: 1}), (str | int, text)):
        with pytest.raises(SerializeStateError):
            Codec(type_).encode(value)


def test_a_refusal_says_where_though_a_huge_number_cannot_be_shown() -> None:
    with pytest.raises(SerializeStateError) as refused:
        Codec(dict[Any, Any]).encode({(10**6000, 1): "\ud800"})
    assert "state[<tuple>]" == refused.value.path
    with pytest.raises(StateTypeError, match="state is int where"):
        Codec(Literal[1, 2]).encode(10**6000)


def test_a_text_of_two_surrogates_is_not_silently_joined() -> None:
    with pytest.raises(SerializeStateError):
        Codec(list[str]).encode(["\ud83d", "\ude00"])


def test_a_deque_keeps_its_bound_and_a_defaultdict_its_factory() -> None:
    state = {"d": defaultdict(list), "q": deque([7, 8], maxlen=2)}
    back = Codec(dict).decode(Codec(dict).encode(state))
    back["q"].append(9)
    assert back["q"] == deque([8, 9], maxlen=2)
    assert back["q"].maxlen == 2
    assert back["d"]["missing"] == []


def test_a_defaultdict_whose_factory_is_no_carried_one_is_refused() -> None:
    with pytest.raises(SerializeStateError, match="factory") as refused:
        Codec(dict).encode({"d": [defaultdict(lambda: 3)]})
    assert refused.value.path == 'state["d"][0]'


def test_utc_stays_the_very_object_utc() -> None:
    for type_ in (datetime, Any):
        codec: Codec[Any] = Codec(type_)
        assert codec.decode(codec.encode(datetime(2024, 1, 1, tzinfo=UTC))).tzinfo is UTC


class Zone(timezone.__base__):  # type: ignore[misc, name-defined]
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


def test_a_zone_without_a_name_in_the_zone_database_is_refused() -> None:
    with pytest.raises(SerializeStateError, match="zone") as refused:
        Codec(dict).encode({"at": [datetime(2024, 1, 1, tzinfo=Zone())]})
    assert refused.value.path == 'state["at"][0]'


@for_each("key", ["../../etc/passwd", "/etc/localtime", "Europe/../UTC", "", "Nowhere/At_All", "Europe"])
def test_a_zone_that_is_no_key_of_the_zone_database_is_unreadable(key: str) -> None:
    data = msgspec.json.encode({"$mp": "datetime", "v": "2024-01-01T00:00:00", "zone": key})
    with pytest.raises(DeserializeStateError):
        Codec(datetime).decode(data)
    with pytest.raises(DeserializeStateError):
        Codec(Any).decode(data)


class Words(list[str]):
    pass


class Name(str):
    __slots__ = ()


class Table(dict[str, int]):
    pass


@for_each("value", [Words(["a"]), Name("a"), Table(a=1), object(), len, uuid, Words, iter([])])
def test_a_value_of_an_unknown_class_is_refused_and_named(value: Any) -> None:
    with pytest.raises(SerializeStateError) as refused:
        Codec(dict).encode({"frames": [{"table": value}]})
    assert refused.value.path == 'state["frames"][0]["table"]'
    assert type(value).__qualname__ in refused.value.type_name
    assert type(value).__qualname__ in str(refused.value)


def test_the_refusal_of_an_unknown_class_says_how_to_make_it_known() -> None:
    @dataclass
    class Known:
        a: int = 0

    class Kind(Enum):
        A = 1

    for value in (Known(), Kind.A):
        with pytest.raises(SerializeStateError, match=rf"types=\[{type(value).__name__}\].*codec\.register"):
            Codec(Any).encode(value)
        Codec(Any, types=[type(value)]).encode(value)
    for value in (Words(), range(3), iter([]), object()):
        with pytest.raises(SerializeStateError, match=r"no object of that class is carried: .*codec\.register"):
            Codec(Any, types=[type(value)]).encode(value)


def test_an_unknown_class_as_key_or_in_a_set_is_refused_by_path() -> None:
    with pytest.raises(SerializeStateError) as refused:
        Codec(dict).encode({"a": {Name("k"): 1}})
    assert refused.value.path == 'state["a"][<Name>]'
    with pytest.raises(SerializeStateError) as refused:
        Codec(dict).encode({"a": {1, Name("k")}})
    assert refused.value.path.startswith('state["a"]{')


def test_a_container_with_an_attribute_of_its_own_is_refused() -> None:
    counts = Counter("a")
    counts.note = 1  # type: ignore[attr-defined]
    with pytest.raises(SerializeStateError, match="note"):
        Codec(Any).encode(counts)


def test_a_container_that_holds_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    loop.append(loop)
    ring: dict[str, Any] = {}
    ring["again"] = [ring, ring]
    for type_, value in ((Any, loop), (dict, ring), (list, loop), (dict[str, list[Any]], ring), (Any, (loop,))):
        with pytest.raises(SerializeStateError, match="holds itself"):
            Codec(type_).encode(value)


@dataclass
class Link:
    next: "Link | None" = None
    more: "list[Link] | None" = None
    meta: Any = None


def test_an_object_that_holds_itself_is_refused_whatever_the_way() -> None:
    for ring in (Link(), Link(), Link()):
        ring.next = ring
        ring.more = [ring, ring]
        ring.meta = {"me": [ring, ring]}
        with pytest.raises(SerializeStateError, match="holds itself"):
            Codec(Link).encode(ring)
    ring = Link()
    ring.meta = [ring, ring]
    with pytest.raises(SerializeStateError, match="holds itself"):
        Codec(Link).encode(ring)


def test_deep_nesting_is_carried_up_to_a_limit_and_refused_beyond() -> None:
    def nested(depth: int, make: Any) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = make(value)
        return value

    for make in (lambda v: [v], lambda v: {"k": v}, lambda v: (v,), lambda v: {1: v}, lambda v: Link(meta=v)):
        codec: Codec[Any] = Codec(Any, types=[Link])
        assert nested(100, make) == codec.decode(codec.encode(nested(100, make)))
        with pytest.raises(SerializeStateError, match="nested"):
            codec.encode(nested(200, make))
        with pytest.raises(SerializeStateError, match="nested"):
            codec.encode(nested(600, make))


@pytest.mark.parametrize("data", [b"[" * 5000 + b"]" * 5000, b'{"a":' * 3000 + b"1" + b"}" * 3000])
def test_deep_json_is_read_or_refused_and_no_recursion_error(data: bytes) -> None:
    # How deep the interpreter can go differs between its versions.
    for type_ in (Any, dict, list):
        with suppress(DeserializeStateError):
            assert Codec(type_).decode(data) is not None
    with pytest.raises(DeserializeStateError):
        Codec(Link).decode(data)


def test_deep_json_without_an_end_is_unreadable() -> None:
    with pytest.raises(DeserializeStateError):
        Codec(Any).decode(b"[" * 100_000)


def test_shared_references_become_equal_objects_of_their_own() -> None:
    inner = [1]
    back = Codec(Any).decode(Codec(Any).encode([inner, inner]))
    assert back == [[1], [1]]
    assert back[0] is not back[1]


@for_each("data", [b"", b"{", b"NaN", b"[1,]", b"\xff", b"\xef\xbb\xbf1", b'"\\ud800"', b"1e999", b"01"])
def test_bytes_that_are_no_strict_json_are_unreadable(data: bytes) -> None:
    for type_ in (Any, dict, int, str, float):
        with pytest.raises(DeserializeStateError):
            Codec(type_).decode(data)


@for_each(
    "data",
    [
        b'{"$mp":"nonsense","v":1}',
        b'{"$mp":1}',
        b'{"$mp":"tuple"}',
        b'{"$mp":"tuple","v":{}}',
        b'{"$mp":"set","v":[[1]]}',
        b'{"$mp":"dict","v":[[1]]}',
        b'{"$mp":"dict","v":[[[],1]]}',
        b'{"$mp":"int","v":"1_0"}',
        b'{"$mp":"int","v":" 1"}',
        b'{"$mp":"float","v":"1.5"}',
        b'{"$mp":"decimal","v":"x"}',
        b'{"$mp":"fraction","v":"1/0"}',
        b'{"$mp":"bytes","v":"A"}',
        b'{"$mp":"deque","v":[1,2],"n":1}',
        b'{"$mp":"deque","v":[1],"n":-1}',
        b'{"$mp":"deque","v":[1],"n":1e3}',
        b'{"$mp":"defaultdict","v":{},"f":"eval"}',
        b'{"$mp":"defaultdict","v":{},"f":[]}',
        b'{"$mp":"path","v":"a","t":"os.system"}',
        b'{"$mp":"path","v":"a","t":[]}',
        b'{"$mp":"datetime","v":"2024-01-01","name":3,"offset":"P0DT0.000000S"}',
        b'{"$mp":"datetime","v":"2024-01-01","name":"x"}',
        b'{"$mp":"datetime","v":"2024-01-01","zone":[]}',
        b'{"$mp":"timedelta","v":"P99999999999DT0.000000S"}',
        b'{"$mp":"object","t":"os.system","v":{}}',
        b'{"$mp":"object","t":["x"],"v":{}}',
        b'{"$mp":"enum","t":"Kind","v":"NOPE"}',
        b'{"$mp":"enum","t":"Kind","v":{}}',
        b'{"$mp":"custom","t":"never registered","v":1}',
        b'{"$mp":"custom"}',
        b'{"\\u0024mp":"object","t":"subprocess.Popen","v":{}}',
    ],
)
def test_tagged_nonsense_is_unreadable_wherever_it_stands(data: bytes) -> None:
    for type_ in (Any, int, str, dict, list, tuple, set, Decimal, datetime, Path, deque, Kind, int | str | None):
        with pytest.raises(DeserializeStateError):
            Codec(type_, types=KNOWN).decode(data)
    with pytest.raises(DeserializeStateError) as refused:
        Codec(dict, types=KNOWN).decode(b'{"a":[1,' + data + b"]}")
    assert refused.value.path == 'state["a"][1]'


def test_json_written_by_a_person_is_read_leniently_only_where_the_type_is_certain() -> None:
    assert Codec(datetime).decode(b'"2024-01-01T00:00:00Z"').tzinfo is UTC
    for type_, data in ((int, b"1.0"), (int, b"true"), (float, b"true"), (float, b'"1"')):
        with pytest.raises(DeserializeStateError):
            Codec(type_).decode(data)


@for_each(
    "type_, value",
    [
        (list[float], [1, 2.0, 2**65, -0.0]),
        (tuple[float, str], (1, "a")),
        (set[float], {1, 2.5}),
        (dict[float, str], {1: "int", 2.0: "float"}),
        (dict[complex, float], {1: 1, 2.5: 2.0, 3j: 3}),
        (list[float | None], [None, 1, 1.0]),
        (list[float | bool | str], [True, 1, 1.0, "1"]),
        (list[float | Size], [Size.S, 1, 1.0]),
        (list[complex | float | str], ["1.0,2.0", 1, 1.0, 1 + 2j]),
    ],
)
def test_where_a_float_is_declared_an_int_comes_back_as_that_int(type_: Any, value: Any) -> None:
    codec = Codec(type_)
    assert same(value, codec.decode(codec.encode(value)))
    assert same([value] * 50, Codec(list[type_]).decode(Codec(list[type_]).encode([value] * 50)))


def test_a_large_integer_that_a_person_wrote_stays_an_integer() -> None:
    assert Codec(Any).decode(b"1" + b"0" * 30) == 10**30
    assert type(Codec(Any).decode(b"1" + b"0" * 30)) is int


def test_the_root_begins_the_paths() -> None:
    with pytest.raises(SerializeStateError) as refused:
        Codec(Any).encode([object()], root="input.rows")
    assert refused.value.path == "input.rows[0]"
    with pytest.raises(DeserializeStateError) as unreadable:
        Codec(list[int]).decode(b'["x"]', root="output")
    assert unreadable.value.path == "output[0]"


def test_two_nan_stay_two_keys_and_two_elements() -> None:
    one, other = float("nan"), float("nan")
    values: tuple[Any, ...] = (
        {one: 1, other: 2},
        {one, other},
        {(one, 1), (other, 1)},
        frozenset({complex(one, 1), complex(other, 1)}),
        {Decimal("NaN"): 1, Decimal("nan"): 2},
    )
    for value in values:
        assert 2 == len(Codec(Any).decode(Codec(Any).encode(value)))
    declared = Codec(dict[float, int])
    assert [1, 2] == list(declared.decode(declared.encode({one: 1, other: 2})).values())


@for_each(
    "type_, data",
    [
        (Any, b'{"$mp":"dict","v":[[1,"a"],[1,"b"]]}'),
        (Any, b'{"$mp":"set","v":[1,1]}'),
        (Any, b'{"$mp":"frozenset","v":[1,1.0]}'),
        (Any, b'{"$mp":"counter","v":[["a",1],["a",2]]}'),
        (dict[int, str], b'{"1":"a","01":"b"}'),
        (set[Decimal], b'["1.0","1.00"]'),
    ],
)
def test_what_would_be_merged_when_it_is_read_is_unreadable(type_: Any, data: bytes) -> None:
    with pytest.raises(DeserializeStateError, match="are equal"):
        Codec(type_).decode(data)


def test_a_container_that_was_made_by_its_generic_alias_is_carried() -> None:
    assert Counter("aab") == Codec(Any).decode(Codec(Any).encode(Counter[str]("aab")))
    assert b'{"a":1}' == Codec(OrderedDict[str, int]).encode(OrderedDict[str, int](a=1))


@for_each(
    "type_, value, data",
    [
        (tuple[int, *tuple[Decimal, ...]], (1, Decimal("2.0"), Decimal(3)), b'[1,"2.0","3"]'),
        (tuple[int, *tuple[Decimal, ...]], (1,), b"[1]"),
        (tuple[*tuple[date, ...], int], (date(2024, 2, 29), 1), b'["2024-02-29",1]'),
        (tuple[int, *tuple[str, Decimal], bool], (1, "a", Decimal(1), True), b'[1,"a","1",true]'),
        (tuple[*tuple[int, *tuple[Decimal, ...]], str], (1, Decimal(5), "z"), b'[1,"5","z"]'),
    ],
)
def test_a_tuple_with_an_unpacked_one_declares_each_place(type_: Any, value: Any, data: bytes) -> None:
    for place, given, written in ((type_, value, data), (list[type_], [value, value], b"[%s,%s]" % (data, data))):
        codec = Codec(place)
        assert written == codec.encode(given)
        assert given == codec.decode(written)


@pytest.mark.parametrize("value", [(), ("a",), (1, 2), (1, "a", 2)])
def test_a_tuple_with_an_unpacked_one_is_checked_place_by_place(value: tuple[Any, ...]) -> None:
    with pytest.raises(StateTypeError):
        Codec(tuple[int, *tuple[str, ...]]).encode(value)


class Unhashable:
    """Stands beside `Keyed`: what a `__hash__` that fails raises is not one of the usual errors."""

    is_on = False


@dataclass(frozen=True)
class Keyed:
    n: int

    def __hash__(self) -> int:
        if Unhashable.is_on:
            raise RuntimeError("no hash today")
        return 1


@pytest.mark.parametrize("type_", [dict[Keyed, int], set[Keyed]])
def test_a_hash_that_fails_is_a_typed_error_with_the_cause(type_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    value: Any = {Keyed(1): 2} if type_ == dict[Keyed, int] else {Keyed(1)}
    data = Codec(type_).encode(value)
    monkeypatch.setattr(Unhashable, "is_on", True)
    with pytest.raises(DeserializeStateError, match="no hash today") as raised:
        Codec(type_).decode(data)
    assert isinstance(raised.value.__cause__, RuntimeError)


@for_each("row", range(3))
@for_each("others", [Shape, Size, Kind])
def test_a_wrong_member_of_an_enum_is_refused_with_its_own_place(row: int, others: type[Enum]) -> None:
    @dataclass
    class Line:
        kind: Any

    Line.__annotations__["kind"] = others | None
    lines = [Line(next(iter(others))), Line(None), Line([*others][-1])]
    lines[row] = Line(True)
    with pytest.raises(StateTypeError, match=rf'"lines"\]\[{row}\]\.kind is bool'):
        Codec(dict[str, list[Line]]).encode({"lines": lines})


ALIKE = [n * (2**61 - 1) for n in range(1, 1102)]
"""Numbers of one hash."""


@pytest.mark.parametrize(
    ("type_", "make"),
    [
        (dict[int, int], lambda: dict.fromkeys(ALIKE, 0)),
        (dict[Decimal, int], lambda: dict.fromkeys(map(Decimal, ALIKE), 0)),
        (dict[UUID, int], lambda: {UUID(int=number): 0 for number in ALIKE}),
        (Counter[int], lambda: Counter(ALIKE)),
        (set[int], lambda: {*ALIKE}),
        (Any, lambda: frozenset(ALIKE)),
    ],
    ids=["dict", "decimal", "uuid", "counter", "set", "anything"],
)
def test_numbers_that_were_chosen_to_have_one_hash_are_refused(
    type_: Any, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, value = Codec(type_), make()
    with pytest.raises(SerializeStateError, match="same hash"):
        codec.encode(value)
    with monkeypatch.context() as patch:
        patch.setattr("milepost.codec.containers.MOST_OF_ONE_HASH", 10_000)
        data = codec.encode(value)
        assert value == codec.decode(data)
    with pytest.raises(DeserializeStateError, match="same hash"):
        codec.decode(data)


def test_many_keys_of_hashes_of_their_own_are_carried() -> None:
    for type_, keys in ((int, range(-2000, 2**62, 2**50)), (UUID, [uuid.uuid4() for _ in range(2000)])):
        value = dict.fromkeys(keys, 0)
        codec = Codec(dict[type_, int])  # type: ignore[valid-type]
        assert value == codec.decode(codec.encode(value))
