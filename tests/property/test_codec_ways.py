"""The codec's fast ways agree with the plain one, which looks at each value by itself: same bytes, values and refusals."""

import copy
import gc
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from milepost.codec import Codec, canonical
from milepost.codec import codec as codecs
from milepost.codec.plan import Plan
from milepost.errors import DeserializeStateError, SerializeStateError, StateTypeError
from milepost.model.rope import Rope
from milepost.stores.base.deltas import difference
from thoroughness import examples

thorough = settings(
    max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
Typed = tuple[Any, st.SearchStrategy[Any]]


class Grade(IntEnum):
    ONE = 1


class Level(Enum):
    LOW = 1
    HIGH = "high"


class Text(str):
    __slots__ = ()


class Moment(datetime):
    pass


@dataclass
class Checked:
    a: int
    b: datetime

    def __post_init__(self) -> None:
        self.a += 1


# -- the plain way ----------------------------------------------------------------------------------------


def below(cls: type) -> Iterator[type]:
    yield cls
    for inner in cls.__subclasses__():
        yield from below(inner)


@contextmanager
def one_by_one() -> Iterator[None]:
    """No columns and no typed decoder: each value is written and read alone, by the code that refuses it."""
    with pytest.MonkeyPatch.context() as patch:
        for cls in {*below(Plan)} - {Plan}:
            for name in ("are_json", "dump_all"):
                if name in vars(cls):
                    patch.setattr(cls, name, getattr(Plan, name))
        patch.setattr(Codec, "_decoder", None)
        yield


def outcome(act: Callable[..., Any], *args: Any) -> Any:
    """What comes out, or how it is refused."""
    try:
        return act(*args)
    except (SerializeStateError, StateTypeError, DeserializeStateError) as error:
        return type(error), str(error)


def shape(value: Any) -> Any:
    """What a value is, so that equal shapes are equal values of the same types; NaN is equal to NaN here."""
    cls = type(value)
    if isinstance(value, dict):
        return cls, [(shape(key), shape(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return cls, [shape(item) for item in value]
    if isinstance(value, set | frozenset):
        return cls, sorted(map(repr, value))
    if isinstance(value, pydantic.BaseModel):
        return cls, shape(value.__dict__), sorted(value.__pydantic_fields_set__), value.__pydantic_extra__
    if isinstance(value, msgspec.Struct):
        return cls, [shape(getattr(value, name)) for name in value.__struct_fields__]
    if hasattr(value, "__attrs_attrs__"):
        return cls, [(field.name, shape(getattr(value, field.name))) for field in value.__attrs_attrs__]
    if hasattr(value, "__dataclass_fields__"):
        return cls, [(name, shape(getattr(value, name))) for name in value.__dataclass_fields__]
    return cls, repr(value)


def agree_on(codec: Codec[Any], value: Any) -> None:
    """Both ways write the same bytes, or refuse with the same words; and read the same value."""
    fast = outcome(codec.encode, value)
    with one_by_one():
        slow = outcome(codec.encode, value)
    assert slow == fast
    if isinstance(fast, bytes):
        agree_on_reading(codec, fast)
        assert shape(value) == shape(codec.decode(fast))


def agree_on_reading(codec: Codec[Any], data: bytes) -> None:
    fast = outcome(codec.decode, data)
    with one_by_one():
        slow = outcome(codec.decode, data)
    assert shape(slow) == shape(fast)


# -- types and values ---------------------------------------------------------------------------------------

text = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["12:00:00Z", "a+00:00", "$mp", "\\u0041"])
fixed = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
zones = st.one_of(st.none(), st.just(UTC), fixed, st.just(ZoneInfo("Europe/Berlin")))
moments = st.datetimes(timezones=st.none() | st.just(UTC)) | st.builds(
    lambda at, fold: at.replace(fold=fold), st.datetimes(timezones=zones), st.integers(0, 1)
)
integers = st.integers() | st.integers(min_value=2**62, max_value=2**70)
LEAVES: list[Typed] = [
    (int, integers),
    (bool, st.booleans()),
    (float, st.floats() | integers),
    (str, text),
    (bytes, st.binary(max_size=5)),
    (Decimal, st.decimals()),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times(timezones=zones)),
    (timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Level, st.sampled_from(list(Level))),
    (Any, st.none() | integers | text | moments | st.lists(integers, max_size=2)),
    (Checked, st.builds(Checked, st.integers(), st.just(datetime(2026, 1, 1, tzinfo=UTC)))),
]


def combine(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        inner.map(lambda t: (list[t[0]], st.lists(t[1], max_size=3))),
        inner.map(lambda t: (tuple[t[0], ...], st.lists(t[1], max_size=3).map(tuple))),
        st.tuples(inner, inner).map(lambda t: (tuple[t[0][0], t[1][0]], st.tuples(t[0][1], t[1][1]))),
        inner.map(lambda t: (dict[str, t[0]], st.dictionaries(text, t[1], max_size=3))),
        inner.map(lambda t: (t[0] | None, st.none() | t[1])),
        records(inner),
    )


def record_of(family: str, hints: dict[str, Any]) -> Callable[..., Any]:
    """A class of that family with these fields."""
    body = {"__annotations__": hints, "__module__": __name__}
    match family:
        case "dataclass":
            return make_dataclass("Record", hints.items())
        case "frozen dataclass":
            return make_dataclass("Record", hints.items(), frozen=True)
        case "dataclass with slots":
            return make_dataclass("Record", hints.items(), slots=True)
        case "TypedDict":
            return TypedDict("Record", hints)
        case "NamedTuple":
            return NamedTuple("Record", [*hints.items()])
        case "struct":
            return msgspec.defstruct("Record", [*hints.items()])
        case "attrs":
            return attrs.define(type("Record", (), body))
        case "attrs in a dict":
            return attrs.define(type("Record", (), body), slots=False)
    unchecked = pydantic.ConfigDict(arbitrary_types_allowed=True, defer_build=True)
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items()}
    return pydantic.create_model("Record", __config__=unchecked, **fields)


FAMILIES = (
    *("dataclass", "frozen dataclass", "dataclass with slots", "TypedDict", "NamedTuple", "struct", "attrs"),
    *("attrs in a dict", "pydantic"),
)


def records(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.builds(
        record, st.sampled_from(FAMILIES), st.lists(inner, min_size=1, max_size=4), st.permutations("abcd")
    )


def record(family: str, fields: list[Typed], names: list[str]) -> Typed:
    cls = record_of(family, dict(zip(names, [field[0] for field in fields], strict=False)))
    make = cls.model_construct if family == "pydantic" else cls  # type: ignore[attr-defined]
    return cls, st.fixed_dictionaries(dict(zip(names, [field[1] for field in fields], strict=False))).map(
        lambda values: make(**values)
    )


types = st.recursive(st.sampled_from(LEAVES), combine, max_leaves=6)
odd_values = st.sampled_from(
    [
        *(
            None,
            True,
            0,
            1.0,
            -0.0,
            math.nan,
            math.inf,
            2**64,
            -(2**63) - 1,
            "",
            "x",
            "\ud800",
            "1Z",
            b"x",
            [],
            {},
            (1,),
        ),
        *(Grade.ONE, Level.LOW, Text("x"), Moment(2026, 1, 1), datetime(2026, 1, 1), date(2026, 1, 1), Decimal("1.50")),
        *(
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(0), "Zulu")),
            datetime(2026, 1, 1, fold=1),
            object(),
            int,
            [1.5],
        ),
    ]
)


def put(value: Any, name: str, item: Any) -> Any:
    """A record with one field changed, as it may happen in a program; NamedTuples and frozen ones are made anew."""
    if isinstance(value, dict):
        return {**value, name: item}
    if isinstance(value, tuple):
        return value._replace(**{name: item})  # type: ignore[attr-defined]
    if isinstance(value, pydantic.BaseModel):
        value.__dict__[name] = item
    elif isinstance(value, msgspec.Struct):
        msgspec.structs.force_setattr(value, name, item)
    else:
        object.__setattr__(value, name, item)
    return value


# -- agreement ------------------------------------------------------------------------------------------------


@thorough
@given(st.data(), types)
def test_columns_of_any_type_are_written_and_read_as_their_values_are(data: st.DataObject, typed: Typed) -> None:
    type_, values = typed
    codec: Codec[Any] = Codec(list[type_])  # type: ignore[valid-type]
    assert () == codec.problems
    agree_on(codec, data.draw(st.lists(values, max_size=3)) * data.draw(st.sampled_from([1, 9])))


@thorough
@given(st.data(), records(types), odd_values)
def test_a_wrong_value_among_right_ones_is_refused_with_the_same_words(
    data: st.DataObject, typed: Typed, odd: Any
) -> None:
    cls, values = typed
    codec: Codec[Any] = Codec(dict[str, list[cls]])  # type: ignore[valid-type]
    column = data.draw(st.lists(values, min_size=1, max_size=4))
    row = data.draw(st.integers(0, len(column) - 1))
    name = data.draw(st.sampled_from(list(codec._plan.value.item.plans)))  # type: ignore[attr-defined]
    column[row] = put(column[row], name, odd)
    fast = outcome(codec.encode, {"rows": column})
    with one_by_one():
        slow = outcome(codec.encode, {"rows": column})
    assert slow == fast


odd_json = st.sampled_from(
    [
        *(
            None,
            True,
            0,
            1,
            1.0,
            2**64,
            2**70,
            "",
            "x",
            "1",
            "2026-01-01T00:00:00Z",
            "2026-01-01 00:00:00+00:00",
            [],
            {},
        ),
        *("2026-01-01T00:00:00.123+00:00", "2026-01-01T00:00:00-00:00", "1E+2", "NaN", "QUI=", "QUI", [1], {"a": 1}),
        *({"$mp": "datetime", "v": "2026-01-01T00:00:00"}, {"$mp": "int", "v": "7"}, {"$mp": "float", "v": "nan"}),
    ]
)


@thorough
@given(st.data(), records(types), odd_json)
def test_records_that_a_person_has_changed_are_read_alike(data: st.DataObject, typed: Typed, odd: Any) -> None:
    cls, values = typed
    codec: Codec[Any] = Codec(list[cls])  # type: ignore[valid-type]
    raws = json.loads(codec.encode(data.draw(st.lists(values, min_size=1, max_size=3))))
    raw = raws[data.draw(st.integers(0, len(raws) - 1))]
    name = data.draw(st.sampled_from([*raw, "other"]))
    match data.draw(st.sampled_from(["change", "drop", "turn"])):
        case "change":
            raw[name] = odd
        case "drop":
            raw.pop(name, None)
        case _:
            turned = dict(reversed(raw.items()))
            raw.clear()
            raw.update(turned)
    agree_on_reading(codec, json.dumps(raws, separators=(",", ":"), ensure_ascii=False).encode())


untyped_values = st.recursive(
    st.none()
    | st.booleans()
    | integers
    | st.floats()
    | text
    | moments
    | st.dates()
    | st.uuids()
    | st.sampled_from(Level),
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(text, inner, max_size=20),
        st.dictionaries(st.integers(), inner, max_size=3),
        st.lists(st.fixed_dictionaries({"a": inner, "b": inner}), min_size=17, max_size=20),
        st.sets(st.integers(), max_size=3),
        st.builds(Checked, st.integers(), st.just(datetime(2026, 1, 1))),
    ),
    max_leaves=60,
)


@thorough
@given(untyped_values)
@example([{"$mp": 1, "a": n} for n in range(20)])
@example([{"a": datetime(2026, 1, 1, tzinfo=UTC), "b": n} for n in range(200)])
@example([["\ud800"]] * 20)
@example([{1: 2, "a": n} for n in range(20)])
@example([*[{"a": 1}] * 10, *[{"b": [1.5]}] * 10])
def test_values_of_no_declared_type_are_written_and_read_alike(value: Any) -> None:
    codec: Codec[Any] = Codec(Any, types=[Level, Checked])
    agree_on(codec, value)
    fast = outcome(canonical, value, (Level, Checked))
    with one_by_one():
        assert outcome(canonical, value, (Level, Checked)) == fast


# -- one after another ----------------------------------------------------------------------------------------


@contextmanager
def small_parts() -> Iterator[None]:
    """Parts are kept from the first byte on, and have few elements."""
    with pytest.MonkeyPatch.context() as patch:
        for name, few in (("_LARGE", 0), ("_SAMPLE", 1), ("_PART", 1), ("_LONGEST_REST", 0)):
            patch.setattr(codecs, name, few)
        yield


def changeable(value: Any) -> Iterator[Any]:
    """Everything in a value that can be changed in place without a trick such as `object.__setattr__`."""
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [*value.values()]
    elif isinstance(value, list | tuple):
        inner = [*value]
    elif fields := fields_of(value):
        inner = [getattr(value, name) for name in fields if hasattr(value, name)]
    is_frozen = isinstance(value, tuple) or any(
        getattr(getattr(type(value), name, None), "frozen", False)
        for name in ("__struct_config__", "__dataclass_params__")
    )
    if not is_frozen and (inner or isinstance(value, list | dict)):
        yield value
    for item in inner:
        yield from changeable(item)


def fields_of(value: Any) -> list[str]:
    for names in ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__"):
        if hasattr(type(value), names):
            return [*getattr(type(value), names)]
    return [field.name for field in getattr(type(value), "__attrs_attrs__", ())]


def disturb(data: st.DataObject, value: Any, values: st.SearchStrategy[Any]) -> None:
    """Change something in a value in place, often to what has no place there."""
    place = data.draw(st.sampled_from([*changeable(value)]))
    item = data.draw(odd_values | values)
    if isinstance(place, list):
        deed = data.draw(st.sampled_from(["put", "append", "pop", "reverse"]))
        if deed == "append" or not place:
            place.append(item)
        elif deed == "put":
            place[data.draw(st.integers(0, len(place) - 1))] = item
        else:
            getattr(place, deed)()
    elif isinstance(place, dict):
        name = data.draw(st.sampled_from([*place, "other"]))
        if data.draw(st.booleans()):
            place[name] = item
        else:
            place[name] = place.pop(name, 0)
    else:
        put(place, data.draw(st.sampled_from(fields_of(place))), item)


@thorough
@given(st.data(), types | st.just((Any, untyped_values)), st.booleans())
def test_values_that_follow_each_other_are_written_as_each_of_them_alone(
    data: st.DataObject, typed: Typed, is_tuple: bool
) -> None:
    """Whatever is put in, taken out, replaced, swapped, doubled, changed in place deep inside and changed back."""
    type_, values = typed
    many: Any = tuple[type_, ...] if is_tuple else list[type_]  # type: ignore[valid-type]
    cls = make_dataclass("Holder", [("n", int), ("items", many), ("more", list[type_])])  # type: ignore[valid-type]
    codec: Codec[Any] = Codec(cls, types=[Level, Checked])
    column = data.draw(st.lists(values, min_size=1, max_size=8)) * data.draw(st.sampled_from([1, 5]))
    items: list[Any] = column if not is_tuple else [*column]
    more = data.draw(st.lists(values, max_size=4))
    follower, roper = codec.in_succession(), codec.in_succession(as_rope=Rope)
    last: Any = b""
    with small_parts():
        for n in range(data.draw(st.integers(2, 8))):
            deeds = ["leave", "append", "drop", "replace", "disturb", "insert", "remove", "swap", "alias", "copy"]
            deed = data.draw(st.sampled_from(deeds))
            at = data.draw(st.integers(0, max(len(items) - 1, 0)))
            match deed:
                case "append":
                    items += data.draw(st.lists(values, min_size=1, max_size=3))
                case "drop":
                    del items[at:]
                case "replace":
                    items[at : at + 1] = [data.draw(values)]
                case "disturb":
                    disturb(data, items, values)
                case "insert":
                    items.insert(at, data.draw(values))
                case "remove":
                    del items[at : at + 1]
                case "swap":
                    items[at : at + 2] = items[at : at + 2][::-1]
                case "alias":
                    items += items[at : at + 1]
                case "copy":
                    items[at : at + 1] = copy.deepcopy(items[at : at + 1])
            value = cls(n, tuple(items) if is_tuple else items, more)
            alone = outcome(codec.encode, value)
            assert [alone] * 3 == [outcome(follower.encode, value) for _ in "abc"]
            rope = outcome(roper.encode, value)
            if isinstance(alone, bytes):
                assert (alone, len(alone)) == (bytes(rope), len(rope))
                edits = difference(last, rope)
                assert edits is None or alone == applied(bytes(last), edits)
                last = rope
            else:
                assert alone == rope


def applied(old: bytes, edits: list[tuple[int, int, str]]) -> bytes:
    for at, count, text in reversed(edits):
        old = old[:at] + text.encode() + old[at + count :]
    return old


@dataclass(frozen=True)
class Said:
    """An item that can't change if its content can't."""

    who: str
    what: Any


class Twin:
    """An object that is equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize("other", [Text("x" * 1000), b"x" * 1000, Twin(), None, ["x" * 1000], 1, True, 1.0, -0.0])
@pytest.mark.parametrize("type_", [str, Any])
@pytest.mark.parametrize("at", [0, 70, 199])
def test_an_item_that_is_equal_and_not_the_same_is_noticed(other: Any, type_: Any, at: int) -> None:
    codec: Codec[Any] = Codec(list[type_])
    rows: list[Any] = ["x" * 1000 if isinstance(other, str | bytes) else n for n in range(200)]
    if type_ is str:
        rows = [f"{n}" * 500 for n in range(200)]
    follower = codec.in_succession(as_rope=Rope)
    for _ in "abc":
        assert codec.encode(rows) == bytes(follower.encode(rows))
    before, rows[at] = rows[at], other
    alone = outcome(codec.encode, rows)
    found = outcome(follower.encode, rows)
    assert alone == (bytes(found) if isinstance(alone, bytes) else found)
    rows[at] = before
    assert codec.encode(rows) == bytes(follower.encode(rows))


@pytest.mark.parametrize("content", [list, dict, set, lambda: Checked(1, datetime(2026, 1, 1))])
def test_what_changes_inside_an_item_that_cannot_change_is_noticed(content: Callable[[], Any]) -> None:
    codec: Codec[Any] = Codec(list[Said], types=[Checked])
    rows = [Said(f"{n}" * 100, (n, content())) for n in range(2000)]
    follower = codec.in_succession(as_rope=Rope)
    for n in range(9):
        assert codec.encode(rows) == bytes(follower.encode(rows))
        inner = rows[n * 200].what[1]
        if isinstance(inner, list | set):
            getattr(inner, "append" if isinstance(inner, list) else "add")(n)
        elif isinstance(inner, dict):
            inner["n"] = n
        else:
            inner.a += 1
    assert not any(each.parts for each in follower._lists or ())


@pytest.mark.parametrize(
    "make",
    [
        lambda n: f"{n} " * 100,
        lambda n: (n, f"{n} " * 100, (None, 1.5)),
        lambda n: Said("me", (f"{n} " * 100, date(2026, 1, 1))),
        lambda n: Said("me", Said(f"{n} " * 100, 1)),
    ],
)
def test_a_list_of_items_that_cannot_change_costs_what_is_new(make: Callable[[int], Any]) -> None:
    """Each item dies once it is replaced, so that new ones get its place in memory."""
    codec: Codec[Any] = Codec(list[Any], types=[Said])
    rows = [make(n) for n in range(600)]
    follower = codec.in_succession(as_rope=Rope)
    last = follower.encode(rows)
    for n in range(200):
        deed = "append" if n % 4 else ["replace", "swap", "insert", "remove", "pop", "clear"][n // 4 % 6]
        at = n * 7919 % len(rows)
        match deed:
            case "append":
                rows.append(make(n))
            case "replace":
                rows[at] = make(n)
            case "swap":
                rows[at], rows[-1] = rows[-1], rows[at]
            case "insert":
                rows.insert(at, make(n))
            case "remove":
                del rows[at]
            case "pop":
                del rows[-3:]
            case "clear" if n == 116:
                rows[:] = [make(n) for n in range(600)]
        now = follower.encode(rows)
        assert codec.encode(rows) == bytes(now)
        edits = difference(last, now)
        assert edits is None or bytes(now) == applied(bytes(last), edits)
        if deed == "append" and n % 4 > 1:
            assert edits is not None
            assert sum(len(text) for _, _, text in edits) < 2000
        last = now


def test_a_subclass_of_a_list_is_refused_as_ever() -> None:
    class Growing(list[str]):
        pass

    codec: Codec[Any] = Codec(list[str])
    follower = codec.in_succession(as_rope=Rope)
    rows = ["x" * 1000] * 200
    for _ in "abc":
        assert codec.encode(rows) == bytes(follower.encode(rows))
    assert outcome(codec.encode, Growing(rows)) == outcome(follower.encode, Growing(rows))
    assert codec.encode(rows) == bytes(follower.encode(rows))


def test_the_parts_of_a_list_of_texts_are_used_again_and_those_of_changeable_elements_are_not() -> None:
    for type_, element, is_reused in ((str, "x" * 1000, True), (list[str], ["x" * 1000], False)):
        rows: list[Any] = [copy.copy(element) for _ in range(1000)]
        codec: Codec[Any] = Codec(list[type_])  # type: ignore[valid-type]
        follower = codec.in_succession()
        for row in (0, 1, 500, 999):
            assert [codec.encode(rows)] * 4 == [follower.encode(rows) for _ in "abcd"]
            assert is_reused == any(each.kept > each.written for each in follower._lists or ())
            if isinstance(rows[row], list):
                rows[row][0] = "y"
            else:
                rows[row] = "y"


@pytest.mark.parametrize("family", FAMILIES)
def test_records_of_every_family_are_read_in_one_go(family: str) -> None:
    cls = record_of(family, {"b": int, "at": datetime, "a": str | None, "level": Level, "notes": list[Any]})
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [cls(b=n, at=at, a=None if n else "Z", level=Level.LOW, notes=[1.5, {"c": "d"}]) for n in range(3)]
    codec: Codec[Any] = Codec(list[cls])  # type: ignore[valid-type]
    assert shape(rows) == shape(codec._decode_fast(codec.encode(rows)))


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Shelf(Generic[T]):
    boxes: list[Box[list[T]]]


@dataclass
class DatedShelf(Shelf[date]):
    name: str


@dataclass
class Store:
    dates: Shelf[date]
    dated: DatedShelf


def test_what_fields_of_generic_classes_hold_is_told_by_their_arguments() -> None:
    dates = [Box([date(2026, 1, 1)])]
    agree_on(Codec(Shelf[date]), Shelf(dates))
    agree_on(Codec(Store), Store(Shelf(dates), DatedShelf(dates, "x")))


@pytest.mark.parametrize("is_collecting", [True, False])
def test_reading_much_leaves_the_collector_of_garbage_as_it_was(is_collecting: bool) -> None:
    codec: Codec[list[int]] = Codec(list[int])
    data = codec.encode([*range(50_000)])
    (gc.enable if is_collecting else gc.disable)()
    try:
        assert 50_000 == len(codec.decode(data))
        assert is_collecting == gc.isenabled()
        with pytest.raises(DeserializeStateError):
            codec.decode(data[:-1])
        assert is_collecting == gc.isenabled()
    finally:
        gc.enable()


def test_a_value_that_holds_itself_many_times_is_refused_at_once() -> None:
    rows: list[Any] = []
    rows += [rows] * 20
    named: dict[str, Any] = {}
    named |= {f"key-{n}": [named] * 20 for n in range(20)}
    for value in (rows, named):
        with pytest.raises(SerializeStateError, match="holds itself"):
            Codec(Any).encode(value)
