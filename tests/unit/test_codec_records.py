"""Objects of record classes come back as they were recorded, field by field and class by class."""

import copy
import functools
import math
import operator
import subprocess
import sys
import threading
import typing
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field, make_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import ModuleType
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, NewType, NotRequired, Protocol, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from milepost.codec import Codec, canonical, register
from milepost.errors import DeserializeStateError, OptionError, SerializeStateError, StateTypeError
from milepost.testing.tables import for_each

T = TypeVar("T")
N = TypeVar("N", bound=int)


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@dataclass
class Basket:
    items: list[str]
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.items)
        self.items = [*self.items]


@dataclass(frozen=True, slots=True)
class Slotted:
    when: date
    price: Decimal
    point: Point | None = None


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class IntBox(Box[int]):
    n: int = 0


class PydanticBox(pydantic.BaseModel, Generic[T]):
    value: T


class StructBox(msgspec.Struct, Generic[T]):
    value: T


@dataclass
class Node:
    name: str
    children: list["Node"] = field(default_factory=list)
    parent: "Node | None" = None


@dataclass
class Shouting:
    text: str
    seed: InitVar[int] = 0
    limit: ClassVar[int] = 3

    def __post_init__(self, seed: int) -> None:
        self.text = self.text.upper()
        assert self.text != "ONLY ONCE", "made again"


@dataclass
class Private:
    _hidden: int
    __mangled: str = "m"
    _: KW_ONLY = None  # type: ignore[assignment]
    last: int = 5


class Pair(NamedTuple):
    left: date
    right: int = 3


Plain = namedtuple("Plain", "a b")  # what older code has


class Movie(TypedDict):
    title: str
    released: date
    rating: NotRequired[Decimal]


class Both(TypedDict):
    a: int
    b: str


class Loose(TypedDict, total=False):
    a: int
    b: tuple[int, ...]


class Model(pydantic.BaseModel):
    title: str
    price: Decimal = Decimal("1.5")
    tags: list[str] = pydantic.Field(default_factory=list)
    _seen: int = pydantic.PrivateAttr(default=0)

    @pydantic.field_validator("title")
    @classmethod
    def _shout(cls, title: str) -> str:
        return title.upper()


class Open(pydantic.BaseModel, extra="allow"):
    a: int


class Root(pydantic.RootModel[list[date]]):
    pass


@pydantic.dataclasses.dataclass
class PydanticPoint:
    x: int = pydantic.Field(default=3)
    y: list[int] = pydantic.Field(default_factory=list)


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    first_name: str
    due: date | None = None


class TaggedStruct(msgspec.Struct, tag="t", tag_field="kind"):
    n: int


class ArrayStruct(msgspec.Struct, array_like=True):
    n: int


class RenamedStruct(msgspec.Struct, rename="pascal"):
    n: int


class DefaultsLeftOut(msgspec.Struct, omit_defaults=True):
    n: int = 1


class CheckedStruct(msgspec.Struct, kw_only=True):
    n: int

    def __post_init__(self) -> None:
        self.n += 1


@attrs.define
class Attr:
    a: int
    _b: date = date(2024, 1, 1)
    c: list[int] = attrs.Factory(list)


@attrs.define
class PlainAttr:
    b: int
    a: str = ""


@attrs.define
class HiddenAttr:
    a: int
    _b: int = 2


@attrs.frozen(cache_hash=True)
class FrozenAttr:
    a: int = attrs.field(converter=lambda v: v + 1, default=0)


@attrs.define(slots=False)
class DictAttr:
    a: Any


class Level(Enum):
    LOW = 1


class Key(StrEnum):
    A = "a"


class Small(IntEnum):
    ONE = 1


@dataclass
class Cached:
    n: int

    @functools.cached_property
    def double(self) -> int:
        return 2 * self.n


class Animal(ABC):
    @abstractmethod
    def sound(self) -> str: ...


@dataclass
class Dog(Animal):
    name: str

    def sound(self) -> str:
        return "wuff"


@dataclass
class Puppy(Dog):
    weeks: int


class Walks(Protocol):
    name: str


UserId = NewType("UserId", int)


def with_count(basket: Basket, count: int) -> Basket:
    basket.count = count
    return basket


def in_other_order(box: Any) -> Any:
    attributes = dict(reversed(vars(box).items()))
    vars(box).clear()
    vars(box).update(attributes)
    return box


def set_private(model: Model, n: int) -> Model:
    model._seen = n
    return model


OBJECTS: list[tuple[Any, Any]] = [
    (Point, Point(1, 2)),
    (Basket, with_count(Basket(["a", "b"]), 7)),
    (Slotted, Slotted(date(2024, 1, 1), Decimal("1.10"), Point(1))),
    (Box[int], Box(5)),
    (Box[date], Box(date(2024, 1, 1))),
    (Box[Box[date]], Box(Box(date(2024, 1, 1)))),
    (Box, Box((1, {2}))),
    (IntBox, IntBox(4, 5)),
    (PydanticBox[int], PydanticBox[int](value=5)),
    (StructBox[date], StructBox(date(2024, 1, 1))),
    (Node, Node("a", [Node("b", [Node("c")], Node("d"))])),
    (Private, Private(1, "z", last=9)),
    (Pair, Pair(date(2024, 1, 1))),
    (Plain, Plain(1, (2,))),
    (Model, Model(title="x")),
    (Model, Model(title="x", price=Decimal("2.0"), tags=["a"])),
    (Model, set_private(Model(title="x"), 7)),
    (Open, Open(a=1, b=date(2024, 1, 1))),  # type: ignore[call-arg]
    (Root, Root([date(2024, 1, 1)])),
    (PydanticPoint, PydanticPoint()),
    (Struct, Struct("a")),
    (Struct, Struct("a", date(2024, 1, 1))),
    (CheckedStruct, CheckedStruct(n=1)),
    (TaggedStruct, TaggedStruct(1)),
    (ArrayStruct, ArrayStruct(1)),
    (RenamedStruct, RenamedStruct(1)),
    (DefaultsLeftOut, DefaultsLeftOut()),
    (Attr, Attr(1, c=[2])),
    (PlainAttr, PlainAttr(1, "a")),
    (HiddenAttr, HiddenAttr(1)),
    (Point, in_other_order(Point(1, 2))),
    (Both, {"a": 1, "b": "x"}),
    (Both, {"b": "x", "a": 1}),
    (FrozenAttr, FrozenAttr(5)),
    (DictAttr, DictAttr({1})),
    (Dog, Dog("rex")),
]


@for_each("type_, value", OBJECTS)
def test_an_object_comes_back_in_every_kind_of_place(type_: Any, value: Any) -> None:
    for codec, state in (
        (Codec(type_), value),
        (Codec(list[type_]), [value] * 3),
        (Codec(list[type_ | None]), [value, None, value]),
        (Codec(dict[str, type_ | None]), {"a": value, "b": None}),
        (Codec(type_ | int | str), value),
        (Codec(Any, types=[type_]), value),
        (Codec(dict, types=[type_]), {"a": [(value,), {"b": value}], "c": [value, value]}),
    ):
        assert () == codec.problems
        data = codec.encode(state)
        back = codec.decode(data)
        assert state == back
        assert repr(state) == repr(back)
        assert data == codec.encode(back)
    assert type(Codec(type_).decode(Codec(type_).encode(value))) is type(value)


@for_each("type_, value", OBJECTS)
def test_many_objects_are_written_as_each_of_them(type_: Any, value: Any) -> None:
    """In whichever containers: many at once are left to msgspec where it writes them alike."""
    one = Codec(type_).encode(value)
    two = b"[" + one + b"," + one + b"]"
    assert two == Codec(list[type_]).encode([value, value])
    assert two == Codec(tuple[type_, ...]).encode((value, value))
    assert b"[" + two + b"," + two + b"]" == Codec(list[list[type_]]).encode([[value, value]] * 2)
    assert b'{"k":' + one + b',"l":' + one + b"}" == Codec(dict[str, type_]).encode({"k": value, "l": value})
    assert b'[{"value":' + two + b"}]" == Codec(list[Box[list[type_]]]).encode([Box([value, value])])
    assert canonical([value, value], [type_]) == canonical([value, copy.copy(value)], [type_])


def odd_records() -> list[tuple[Any, Any]]:
    """Classes whose objects msgspec would write otherwise than field by field, with an object of each."""

    class Stored(msgspec.Struct):
        x: Any

    class Shown(Stored):
        @property
        def x(self) -> int:  # type: ignore[override]
            return 1

    class Shadowing(Stored):
        x = 5

    @dataclass
    class Telling:
        x: int

        def __getattribute__(self, name: str) -> Any:
            return 7 if name == "x" else object.__getattribute__(self, name)

    @dataclass
    class Deleting:
        x: int

    class Deletes:
        def __get__(self, obj: Any, cls: Any) -> int:
            return 9

        def __delete__(self, obj: Any) -> None: ...

    Deleting.x = Deletes()  # type: ignore[assignment]

    @dataclass(init=False)
    class Id(uuid.UUID):
        __slots__ = ()
        int: Any
        is_safe: uuid.SafeUUID  # type: ignore[assignment]

    class Empty(msgspec.Struct, tag=True):
        pass

    class NoPair(NamedTuple):
        pass

    class Nothing(TypedDict):
        pass

    named = make_dataclass("named", [(Key.A, int, 5)])
    member_keys = TypedDict("member_keys", {Key.A: int})  # type: ignore[misc]
    return [
        (Shown, Shown({1: 2})),
        (Shadowing, Shadowing(math.nan)),
        (Telling, Telling(1)),
        (Deleting, Deleting.__new__(Deleting)),
        (Id, Id(int=5)),
        (Empty, Empty()),
        (NoPair, NoPair()),
        (Nothing, {}),
        (named, named(1)),
        (member_keys, {"a": 1}),
    ]


@for_each("type_, value", odd_records())
def test_many_odd_objects_are_written_as_each_of_them(type_: Any, value: Any) -> None:
    one = Codec(type_).encode(value)
    assert b"[" + one + b"," + one + b"]" == Codec(list[type_]).encode([value, value])
    assert b'{"k":' + one + b"}" == Codec(dict[str, type_]).encode({"k": value})


def test_the_keys_of_a_typed_dict_that_is_declared_with_an_enum_are_texts() -> None:
    type_ = TypedDict("type_", {Key.A: int})  # type: ignore[misc]
    for codec, value in ((Codec(type_), {"a": 1}), (Codec(list[type_]), [{"a": 1}])):
        assert repr(value) == repr(codec.decode(codec.encode(value)))


Marked = TypedDict("Marked", {"$mp": str, "v": int})
Unmarked = TypedDict("Unmarked", {"$set": int})


def model_with(name: str) -> Any:
    """A pydantic model with a field of any name."""
    fields: Any = {name: (str, ...)}
    return pydantic.create_model("Model", **fields)


def reserved_names() -> list[tuple[Any, Any]]:
    """Record classes and objects with a field whose name is a key of a record's own form."""
    models = [(model_with(name), name) for name in ("$mp", "$set", "$extra", "$private")]
    return [(Marked, {"$mp": "date", "v": 1}), *[(model, model(**{name: "a"})) for model, name in models]]


@for_each("type_, value", reserved_names())
def test_a_field_with_a_reserved_name_is_refused_before_anything_is_written(type_: Any, value: Any) -> None:
    assert "a field cannot be named '$" in Codec(type_).problems[0][1]
    for codec, given in ((Codec(type_), value), (Codec(list[type_]), [value, value])):
        with pytest.raises(SerializeStateError, match=r"a field cannot be named '[$].* rename it"):
            codec.encode(given)


def test_such_names_are_free_where_they_mean_nothing_else() -> None:
    for type_, value in ((Unmarked, {"$set": 1}), (dict[str, int], {"$mp": 1})):
        assert value == Codec(type_).decode(Codec(type_).encode(value))


class Mixin:
    __slots__ = ("beside",)


class Mixed(msgspec.Struct, Mixin):
    x: int


def without_field(value: Mixed) -> Mixed:
    del value.x
    return value


def with_more(value: Mixed) -> Mixed:
    value.beside = 4
    return value


@for_each("value", [without_field(Mixed(1)), with_more(Mixed(1))])
def test_a_struct_that_can_not_be_recorded_is_refused_wherever_it_is(value: Mixed) -> None:
    for type_, state in ((Mixed, value), (list[Mixed], [value]), (list[Mixed | None], [None, value])):
        with pytest.raises(SerializeStateError):
            Codec(type_).encode(state)


def test_a_key_of_a_typed_dict_is_exactly_a_text() -> None:
    """However many of them are written: an equal member of an enum would come back as a text."""
    state = {Key.A: 1, "b": "x"}
    for codec, value in ((Codec(Both), state), (Codec(list[Both]), [state]), (Codec(list[Both]), [state, state])):
        with pytest.raises(StateTypeError):
            codec.encode(value)  # type: ignore[arg-type]


def test_a_field_of_init_false_keeps_what_a_node_made_of_it() -> None:
    basket = with_count(Basket(["a", "b"]), 7)
    assert Codec(Basket).encode(basket) == b'{"items":["a","b"],"count":7}'
    back = Codec(list[Basket]).decode(Codec(list[Basket]).encode([basket, basket]))
    assert [b.count for b in back] == [7, 7]


def test_post_init_and_validators_do_not_run_when_a_value_is_read() -> None:
    shouting = Shouting("x")
    shouting.text = "only once"
    assert Codec(Shouting).decode(Codec(Shouting).encode(shouting)).text == "only once"
    model = Model(title="a")
    model.title = "a"
    assert Codec(Model).decode(Codec(Model).encode(model)).title == "a"
    struct = CheckedStruct(n=1)
    back = Codec(list[CheckedStruct]).decode(Codec(list[CheckedStruct]).encode([struct, struct]))
    assert [s.n for s in back] == [2, 2]
    assert type(back[0]) is CheckedStruct


def test_a_class_with_its_own_constructor_is_built_without_it() -> None:
    @dataclass
    class Counted:
        n: int

        def __init__(self, n: int) -> None:
            self.n = n + 1

    @dataclass
    class Guarded:
        n: int

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value + 1)

    for cls in (Counted, Guarded):
        codec: Codec[Any] = Codec(list[cls])  # type: ignore[valid-type]
        assert [2, 2] == [o.n for o in codec.decode(codec.encode([cls(1), cls(1)]))]


def test_which_fields_of_a_model_were_set_is_kept() -> None:
    codec = Codec(Model)
    assert (
        codec.encode(Model(title="a"))
        == b'{"title":"A","price":"1.5","tags":[],"$set":["title"],"$private":{"_seen":0}}'
    )
    assert codec.decode(codec.encode(Model(title="a"))).model_fields_set == {"title"}
    assert codec.decode(b'{"title":"a","price":"1.5","tags":[]}').model_fields_set == {"title", "price", "tags"}
    assert codec.decode(b'{"title":"a"}')._seen == 0


def test_an_extra_name_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(SerializeStateError, match="surrogate"):
        Codec(Open).encode(Open.model_construct(a=1, **{"\ud800": 2}))


def test_a_typed_dict_is_written_by_its_declared_types() -> None:
    codec = Codec(Movie)
    movie: Movie = {"title": "a", "released": date(2024, 1, 1)}
    assert codec.encode(movie) == b'{"title":"a","released":"2024-01-01"}'
    assert codec.decode(codec.encode(movie)) == movie
    assert Codec(Loose).decode(b'{"b":[1]}') == {"b": (1,)}
    assert list(Codec(Movie).decode(b'{"released":"2024-01-01","rating":"1","title":"a"}')) == [
        "released",
        "rating",
        "title",
    ]


def test_a_typed_dict_with_a_missing_or_an_undeclared_key_is_refused() -> None:
    for state, path in (
        ({"title": "a"}, 'state["released"]'),
        ({"title": "a", "released": date(1, 1, 1), "x": 1}, 'state["x"]'),
    ):
        with pytest.raises(StateTypeError) as refused:
            Codec(Movie).encode(state)  # type: ignore[arg-type]
        assert path == refused.value.path


def test_paths_go_through_attributes_keys_and_places() -> None:
    @dataclass
    class Item:
        due: date

    @dataclass
    class State:
        items: list[Item]
        by_name: dict[str, Item] = field(default_factory=dict)
        pair: tuple[int, Item] | None = None

    codec = Codec(State)
    good, bad = Item(date(2024, 1, 1)), Item("soon")  # type: ignore[arg-type]
    for state, path in (
        (State([good, good, good, bad]), "state.items[3].due"),
        (State([], {"a b": bad}), 'state.by_name["a b"].due'),
        (State([], {}, (1, bad)), "state.pair[1].due"),
    ):
        with pytest.raises(StateTypeError) as refused:
            codec.encode(state)
        assert (path, "datetime.date", "str") == (refused.value.path, refused.value.expected, refused.value.found)
    with pytest.raises(DeserializeStateError) as unreadable:
        codec.decode(b'{"items":[{"due":"2024-01-01"},{"due":5}]}')
    assert unreadable.value.path == "state.items[1].due"


def test_a_field_that_a_record_lacks_takes_its_default_or_is_an_error() -> None:
    assert Codec(Point).decode(b'{"x":1}') == Point(1, 0)
    assert Codec(Node).decode(b'{"name":"a"}') == Node("a")
    assert Codec(Model).decode(b'{"title":"a"}').price == Decimal("1.5")
    assert Codec(Struct).decode(b'{"first_name":"a"}') == Struct("a")
    assert Codec(Attr).decode(b'{"a":1}') == Attr(1)
    assert Codec(Pair).decode(b'{"left":"2024-01-01"}') == Pair(date(2024, 1, 1))
    assert Codec(PydanticPoint).decode(b"{}") == PydanticPoint()
    for type_ in (Point, Node, Model, Struct, Attr, Pair, Movie, Basket):
        with pytest.raises(DeserializeStateError, match="missing") as refused:
            Codec(type_).decode(b"{}")
        assert refused.value.found == "nothing"


def test_an_unknown_field_is_an_error_or_dropped() -> None:
    for type_, known in (
        (Point, b'"x":1,"y":2'),
        (Model, b'"title":"a"'),
        (Movie, b'"title":"a","released":"2024-01-01"'),
    ):
        data = b"{" + known + b',"zzz":[1]}'
        with pytest.raises(DeserializeStateError, match="no field of that name") as refused:
            Codec(type_).decode(data)
        assert "zzz" in refused.value.path
        assert Codec(type_).decode(b"{" + known + b"}") == Codec(type_, unknown_fields="drop").decode(data)
    with pytest.raises(OptionError):
        Codec(Point, unknown_fields="keep")  # type: ignore[arg-type]


def test_upgrade_turns_old_json_into_new_before_it_is_read() -> None:
    def upgrade(raw: Any) -> Any:
        return {"x": raw["a"], "y": raw.get("y", 5)} if "a" in raw else raw

    codec = Codec(Point, upgrade=upgrade)
    assert codec.decode(b'{"a":1}') == Point(1, 5)
    assert codec.decode(b'{"x":1,"y":2}') == Point(1, 2)
    for bad in (b'{"a":"text"}', b"[]", b"null"):
        with pytest.raises(DeserializeStateError):
            codec.decode(bad)


def test_what_upgrade_returns_must_be_plain_json_and_is_copied() -> None:
    shared = {"k": [1]}
    codec = Codec(dict, upgrade=lambda raw: shared)
    codec.decode(b"{}")["k"].append(2)
    assert codec.decode(b"{}") == {"k": [1]}
    loop: list[Any] = []
    loop.append(loop)
    for bad in ((1,), {1: 2}, {"k": date(2024, 1, 1)}, loop):
        with pytest.raises(DeserializeStateError, match="upgrade"):
            Codec(Any, upgrade=lambda raw, bad=bad: bad).decode(b"{}")  # type: ignore[misc]


def test_an_attribute_that_is_no_field_is_refused() -> None:
    point = Basket(["a"])
    point.note = 1  # type: ignore[attr-defined]
    attr = DictAttr(1)
    attr.note = 1  # type: ignore[attr-defined]

    class Sub(Pair):
        pass

    sub = Sub(date(2024, 1, 1))
    sub.note = 1
    for value in (point, attr, sub):
        for codec, state in (
            (Codec(type(value)), value),
            (Codec(list[type(value)]), [value, value]),  # type: ignore[misc]
            (Codec(Any, types=[type(value)]), value),
        ):
            with pytest.raises(SerializeStateError, match="note"):
                codec.encode(state)


def test_a_deleted_attribute_is_not_hidden_by_an_extra_one() -> None:
    pair = [Dog("a"), Dog("b")]
    del pair[1].name
    pair[1].other = 1  # type: ignore[attr-defined]
    for state in (pair, pair[1:]):
        with pytest.raises(SerializeStateError):
            Codec(list[Dog]).encode(state)
    with pytest.raises(SerializeStateError, match="no value"):
        codec = Codec(Basket)
        empty = Basket(["a"])
        del empty.count
        codec.encode(empty)


def test_a_cached_property_is_left_out_and_computed_again() -> None:
    cached = Cached(2)
    assert cached.double == 4
    back = Codec(Cached).decode(Codec(Cached).encode(cached))
    assert vars(back) == {"n": 2}


def test_a_generic_object_that_remembers_its_arguments_is_carried() -> None:
    box = Box[int](5)
    assert "__orig_class__" in vars(box)
    assert Codec(Box[int]).decode(Codec(Box[int]).encode(box)) == box
    with pytest.raises(StateTypeError) as refused:
        Codec(Box[int]).encode(Box[int]("5"))  # type: ignore[arg-type]
    assert ("state.value", "int") == (refused.value.path, refused.value.expected)
    with pytest.raises(StateTypeError):
        Codec(IntBox).encode(IntBox("5"))  # type: ignore[arg-type]


def test_a_record_class_that_is_a_container_besides_is_refused() -> None:
    @dataclass
    class Both(dict):  # type: ignore[type-arg]
        a: int = 0

        __hash__ = None  # type: ignore[assignment]

    @dataclass
    class Failed(Exception):
        a: int = 0

    for cls in (Both, Failed):
        codec: Codec[Any] = Codec(cls)
        assert codec.problems
        with pytest.raises(SerializeStateError):
            codec.encode(cls())


def test_a_subclass_is_refused_unless_it_is_known_by_itself() -> None:
    with pytest.raises(StateTypeError, match=r"types=\[Puppy\]") as refused:
        Codec(list[Dog]).encode([Puppy("a", 3)])
    assert refused.value.path == "state[0]"
    codec = Codec(list[Dog], types=[Puppy])
    assert codec.encode([Puppy("a", 3)]) == b'[{"$mp":"object","t":"Puppy","v":{"name":"a","weeks":3}}]'
    assert codec.decode(codec.encode([Puppy("a", 3), Dog("b")])) == [Puppy("a", 3), Dog("b")]
    with pytest.raises(DeserializeStateError):
        Codec(list[Dog]).decode(codec.encode([Puppy("a", 3)]))
    with pytest.raises(DeserializeStateError):
        Codec(Point, types=[Puppy]).decode(b'{"$mp":"object","t":"Puppy","v":{"name":"a","weeks":3}}')


def test_an_abstract_type_takes_its_known_subclasses() -> None:
    @dataclass
    class Zoo:
        animal: Animal
        walker: Walks | None = None

    codec = Codec(Zoo, types=[Dog])
    assert () == codec.problems
    zoo = Zoo(Dog("a"), Dog("b"))
    assert codec.decode(codec.encode(zoo)) == zoo
    with pytest.raises(StateTypeError):
        codec.encode(Zoo(Point(1)))  # type: ignore[arg-type]
    assert [path for path, _ in Codec(Zoo).problems] == ["state.animal"]


def test_fields_that_cannot_be_carried_are_problems_and_refused_when_written() -> None:
    @dataclass
    class State:
        lock: Any
        real: "list[threading.Thread]"
        secret: pydantic.SecretStr | None = None
        call: typing.Callable[[], int] | None = None
        lost: "list[Nowhere]" = field(default_factory=list)  # type: ignore[name-defined]  # noqa: F821

    codec = Codec(State)
    paths = [path for path, _ in codec.problems]
    assert sorted(paths) == ["state.call", "state.lost", "state.real[*]", "state.secret"]
    with pytest.raises(SerializeStateError, match="deps=") as refused:
        codec.encode(State(None, [], pydantic.SecretStr("x")))
    assert ("state.secret", "pydantic.types.SecretStr") == (refused.value.path, refused.value.type_name)
    assert "'x'" not in str(refused.value)
    with pytest.raises(SerializeStateError, match="lock") as refused:
        codec.encode(State({"a": threading.Lock()}, []))
    assert refused.value.path == 'state.lock["a"]'
    assert codec.decode(codec.encode(State(1, []))) == State(1, [])


def test_a_name_that_cannot_be_resolved_is_found_among_types() -> None:
    @dataclass
    class Part:
        due: date

    @dataclass
    class Whole:
        part: "Part"
        again: "Whole | None" = None

    assert [path for path, _ in Codec(Whole).problems] == ["state.part"]
    codec = Codec(Whole, types=[Part])
    assert () == codec.problems
    assert codec.encode(Whole(Part(date(2024, 1, 1)))) == b'{"part":{"due":"2024-01-01"},"again":null}'


def test_nested_classes_of_a_class_are_found_by_its_annotations() -> None:
    codec = Codec(Outer)
    assert () == codec.problems
    state = Outer(Outer.Level.HIGH, [Outer.Level.LOW])
    assert codec.encode(state) == b'{"level":3,"seen":[1]}'
    assert codec.decode(codec.encode(state)).level is Outer.Level.HIGH


@dataclass
class Outer:
    class Level(Enum):
        LOW = 1
        HIGH = 3

    level: "Level"
    seen: "list[Level]" = field(default_factory=list)


def test_a_data_frame_is_refused_with_the_hint_to_return_a_path() -> None:
    frame = type("DataFrame", (), {"__module__": "pandas.core.frame"})
    with pytest.raises(SerializeStateError, match="return the path"):
        Codec(dict).encode({"df": frame()})


def test_a_dict_never_stands_in_for_an_object_nor_an_object_for_a_dict() -> None:
    with pytest.raises(StateTypeError):
        Codec(Point).encode({"x": 1, "y": 2})  # type: ignore[arg-type]
    with pytest.raises(StateTypeError):
        Codec(list[Point]).encode([{"x": 1, "y": 2}])  # type: ignore[list-item]
    assert type(Codec(Any, types=[Point]).decode(b'{"x":1,"y":2}')) is dict
    with pytest.raises(DeserializeStateError, match="types="):
        Codec(Any).decode(b'{"$mp":"object","t":"Point","v":{"x":1,"y":2}}')


def make_level(module: str, qualname: str) -> type[Any]:
    made = Enum("Level", {"LOW": 2}, module=module, qualname=qualname)
    return typing.cast("type[Any]", made)


def test_two_known_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    other = make_level("elsewhere", "Deep.Level")
    codec = Codec(dict, types=[Level, other])
    state = {"a": Level.LOW, "b": other.LOW}
    data = codec.encode(state)
    assert b'"elsewhere.Deep.Level"' in data
    assert codec.decode(data)["a"] is Level.LOW
    assert codec.decode(data)["b"] is other.LOW
    alone = Codec(dict, types=[Level])
    assert alone.decode(b'{"a":{"$mp":"enum","t":"' + f"{__name__}.Level".encode() + b'","v":"LOW"}}')["a"] is Level.LOW
    with pytest.raises(DeserializeStateError, match="several"):
        codec.decode(b'{"a":{"$mp":"enum","t":"Level","v":"LOW"}}')


def test_two_known_classes_that_no_name_tells_apart_are_refused() -> None:
    twins = [make_level("elsewhere", "Level"), make_level("elsewhere", "Level")]
    with pytest.raises(SerializeStateError, match="tell them apart"):
        Codec(Any, types=twins).encode(twins[0].LOW)


def test_a_union_of_records_is_tagged_with_the_class() -> None:
    codec: Codec[Any] = Codec(list[Point | Dog | None])
    state = [Point(1), Dog("a"), None]
    assert codec.encode(state) == (
        b'[{"$mp":"object","t":"Point","v":{"x":1,"y":0}},{"$mp":"object","t":"Dog","v":{"name":"a"}},null]'
    )
    assert codec.decode(codec.encode(state)) == state
    boxes: Codec[Any] = Codec(list[Box[int] | Box[str]])
    assert boxes.decode(boxes.encode([Box(1), Box("a")])) == [Box(1), Box("a")]
    with pytest.raises(StateTypeError):
        boxes.encode([Box(1.5)])
    with pytest.raises(DeserializeStateError):
        boxes.decode(b'[{"$mp":"object","t":"Box","v":{"value":1.5}}]')


def test_annotations_that_only_decorate_are_looked_through() -> None:
    @dataclass
    class State:
        a: Annotated[date, "note"]
        b: UserId
        c: typing.Final[date] = date(2024, 1, 1)
        d: "typing.Annotated[list[Annotated[date, 1]], 2]" = field(default_factory=list)

    codec = Codec(State)
    assert codec.encode(State(date(2024, 1, 1), UserId(3), d=[date(1, 1, 1)])) == (
        b'{"a":"2024-01-01","b":3,"c":"2024-01-01","d":["0001-01-01"]}'
    )


def test_a_bound_type_variable_means_its_bound() -> None:
    @dataclass
    class Count(Generic[N]):
        n: N

    with pytest.raises(StateTypeError):
        Codec(Count).encode(Count("1"))  # type: ignore[type-var]


def test_a_type_alias_may_refer_to_itself() -> None:
    class Alias:
        __name__ = "Json"
        __value__: Any

        def __repr__(self) -> str:
            return "Json"

    json = Alias()
    json.__value__ = typing.Union[int, str, list[json], dict[str, json]]  # type: ignore[valid-type]  # noqa: UP007
    codec: Codec[Any] = Codec(list[json])  # type: ignore[valid-type]
    assert codec.decode(codec.encode([1, {"a": ["b", [2]]}])) == [1, {"a": ["b", [2]]}]
    with pytest.raises(StateTypeError):
        codec.encode([{"a": [None]}])


# -- the state as a whole ------------------------------------------------------------------------------


def test_check_looks_at_the_type_of_the_state_alone() -> None:
    Codec(Point).check(Point("x"))  # type: ignore[arg-type]
    Codec(Movie).check({})
    Codec(dict).check({})
    Codec(Any).check(3)
    for type_, value, found in (
        (Point, None, "None"),
        (Point, {"x": 1}, "dict"),
        (Movie, 3, "int"),
        (dict, [], "list"),
        (int, "a", "str"),
    ):
        with pytest.raises(StateTypeError) as refused:
            Codec(type_).check(value)
        assert ("state", found) == (refused.value.path, refused.value.found)
    with pytest.raises(StateTypeError, match="return the state"):
        Codec(Point).check(None)


def test_field_names_are_those_of_the_declared_type() -> None:
    assert Codec(Basket).field_names == ("items", "count")
    assert Codec(Movie).field_names == ("title", "released", "rating")
    assert Codec(Model).field_names == ("title", "price", "tags")
    assert Codec(Struct).field_names == ("first_name", "due")
    assert Codec(dict).field_names is None
    assert Codec(list[int]).field_names is None


@for_each(
    "value, name, new",
    [
        (Point(1, 2), "y", 5),
        (with_count(Basket(["a"]), 7), "items", ["b"]),
        (Slotted(date(2024, 1, 1), Decimal(1)), "price", Decimal(2)),
        (Pair(date(2024, 1, 1)), "right", 9),
        (set_private(Model(title="a"), 4), "price", Decimal(3)),
        (Open(a=1, b=2), "a", 3),  # type: ignore[call-arg]
        (Struct("a"), "due", date(2024, 1, 1)),
        (CheckedStruct(n=1), "n", 5),
        (Attr(1), "c", [3]),
        (FrozenAttr(1), "a", 9),
        (Box[int](1), "value", 2),
    ],
)
def test_replace_changes_what_it_is_told_and_nothing_else(value: Any, name: str, new: Any) -> None:
    codec: Codec[Any] = Codec(type(value))
    before = repr(value)
    made = codec.replace(value, {name: new})
    assert type(made) is type(value)
    assert before == repr(value)
    assert new == codec.get(made, name)
    for other in codec.field_names or ():
        if other != name:
            assert codec.get(value, other) is codec.get(made, other)
    if isinstance(value, Model):
        assert made._seen == 4
        assert made.model_fields_set == {"title", "price"}
    if isinstance(value, Open):
        assert made.model_extra == {"b": 2}
    with pytest.raises(StateTypeError, match="no field 'nope'"):
        codec.replace(value, {"nope": 1})
    with pytest.raises(StateTypeError):
        codec.get(value, "nope")


def test_replace_of_dicts_keeps_their_class_and_order() -> None:
    state = {"b": 1, "a": 2}
    made = Codec(dict).replace(state, {"b": 3, "c": 4})
    assert list(made.items()) == [("b", 3), ("a", 2), ("c", 4)]
    assert state == {"b": 1, "a": 2}
    movie: Movie = {"title": "a", "released": date(2024, 1, 1)}
    assert Codec(Movie).replace(movie, {"title": "b"})["title"] == "b"
    with pytest.raises(StateTypeError) as refused:
        Codec(Movie).replace(movie, {"nope": 1})
    assert refused.value.path == 'state["nope"]'
    with pytest.raises(StateTypeError):
        Codec(dict).get({}, "a")


def test_reducers_come_from_annotations() -> None:
    def extend(old: list[int], new: list[int]) -> list[int]:
        return old + new

    class Messages(TypedDict, total=False):
        a: Annotated[list[int], operator.add]
        b: Annotated[NotRequired[list[int]], "text", extend]
        c: Annotated[int, pydantic.Field(gt=1)]
        d: Annotated[int, lambda one: one]
        e: Annotated[int, int]
        f: Annotated[int, max]
        g: list[Annotated[int, operator.add]]

    assert Codec(Messages).reducers == {"a": operator.add, "b": extend, "f": max}

    class Reduced(pydantic.BaseModel):
        a: Annotated[list[int], operator.add] = []

    @dataclass
    class Data:
        a: Annotated[list[int], operator.add]
        b: Annotated[int, min] = 1

    assert Codec(Reduced).reducers == {"a": operator.add}
    assert Codec(Data).reducers == {"a": operator.add, "b": min}
    assert Codec(dict).reducers == {}
    assert Codec(Data).decode(Codec(Data).encode(Data([1], 2))) == Data([1], 2)


# -- registered classes ----------------------------------------------------------------------------------


class Money:
    def __init__(self, amount: Decimal) -> None:
        self.amount = amount

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.amount == other.amount

    def __hash__(self) -> int:
        return hash(self.amount)


class Broken:
    pass


def fail(value: Any) -> Any:
    raise KeyError("no")


register(Money, "test.money", lambda money: (money.amount,), lambda parts: Money(parts[0]))
register(Broken, "test.broken", fail, fail)


def test_a_registered_class_is_carried_everywhere() -> None:
    @dataclass
    class State:
        total: Money
        rest: dict[Money, Any]
        either: Money | int = 0

    codec = Codec(State)
    assert () == codec.problems
    state = State(Money(Decimal("1.0")), {Money(Decimal(2)): [Money(Decimal(3))]}, Money(Decimal(4)))
    assert codec.decode(codec.encode(state)) == state
    assert Codec(Any).encode(Money(Decimal(1))) == (
        b'{"$mp":"custom","t":"test.money","v":{"$mp":"tuple","v":[{"$mp":"decimal","v":"1"}]}}'
    )
    with pytest.raises(StateTypeError):
        codec.encode(State(1, {}))  # type: ignore[arg-type]


def test_a_registered_function_that_fails_is_a_typed_error_with_the_cause() -> None:
    with pytest.raises(SerializeStateError, match="registered encode") as refused:
        Codec(dict).encode({"a": [Broken()]})
    assert refused.value.path == 'state["a"][0]'
    assert isinstance(refused.value.__cause__, KeyError)
    with pytest.raises(DeserializeStateError, match="registered decode"):
        Codec(dict).decode(b'{"a":{"$mp":"custom","t":"test.broken","v":1}}')


def test_a_tag_belongs_to_one_class() -> None:
    with pytest.raises(OptionError, match="belongs to"):
        register(Broken, "test.money", str, str)
    with pytest.raises(OptionError):
        register(Broken, "", str, str)
    with pytest.raises(OptionError):
        register("Broken", "x", str, str)  # type: ignore[arg-type]


# -- names in records ------------------------------------------------------------------------------------


def test_nothing_is_imported_by_a_name_in_a_record() -> None:
    before = set(sys.modules)
    for tag in ("object", "enum", "custom", "path", "datetime", "antigravity", "this"):
        data = msgspec.json.encode(
            {"$mp": tag, "t": "this.s", "v": "antigravity.webbrowser", "zone": "this", "f": "this"}
        )
        for type_ in (Any, Point, datetime, dict):
            with pytest.raises(DeserializeStateError):
                Codec(type_, types=[Level]).decode(data)
    assert {"this", "antigravity"}.isdisjoint(set(sys.modules) - before)


def test_neither_pydantic_nor_attrs_is_imported_by_the_codec() -> None:
    code = (
        "import sys; from dataclasses import dataclass; from milepost.codec import Codec\n"
        "@dataclass\nclass A:\n    x: int\n"
        "c = Codec(A); assert c.decode(c.encode(A(1))) == A(1)\n"
        "assert not {'pydantic', 'attr', 'attrs'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_reloaded_module_may_register_its_classes_again() -> None:
    module = ModuleType("reloaded")
    for _ in range(2):
        thing = type("Thing", (), {"__module__": module.__name__})
        register(thing, "test.thing", lambda value: None, lambda value, thing=thing: thing())  # type: ignore[misc]
    assert type(Codec(Any).decode(Codec(Any).encode(thing()))) is thing


# -- the canonical form ------------------------------------------------------------------------------------


def test_canonical_does_not_depend_on_the_order_of_keys_but_on_every_type() -> None:
    assert canonical({"a": 1, "b": {"d": 1, "c": 2}}) == canonical({"b": {"c": 2, "d": 1}, "a": 1})
    assert canonical({1: "a", "1": "b", None: 3}) == canonical({None: 3, "1": "b", 1: "a"})
    forms = [
        1,
        1.0,
        True,
        "1",
        (1,),
        [1],
        {1},
        frozenset({1}),
        b"1",
        Decimal(1),
        None,
        {"1": 1},
        {1: 1},
        Level.LOW,
        Point(1),
    ]
    assert len(forms) == len({canonical(form, [Level, Point]) for form in forms})
    assert canonical(Point(1, 2), [Point]) == b'{"$mp":"object","t":"Point","v":{"x":1,"y":2}}'
    with pytest.raises(SerializeStateError) as refused:
        canonical({"a": [Point(1)]})
    assert refused.value.path == 'value["a"][0]'


def test_canonical_and_encode_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from milepost.codec import Codec, canonical; from typing import Any\n"
        "v = {'s': {'x', 'y', 'z', (1, 'a'), None}, 'd': {frozenset({'p', 'q'}): 1, 'k': 2}}\n"
        "print(canonical(v).hex(), Codec(Any).encode(v).hex(), Codec(set[str]).encode({'x', 'y', 'z', 'w'}).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


# -- the fast way of reading -------------------------------------------------------------------------------


@dataclass
class Line:
    n: int
    price: float
    tags: list[str]
    note: str | None = None
    meta: Any = None


@pytest.mark.parametrize(
    "data",
    [
        b'{"n":1,"price":1.0,"tags":["a"],"note":null,"meta":{"k":[1,2.5]}}',
        b'{"n":1,"price":1.0,"tags":["a"],"meta":{"k":[1,2.5]}}',
        b'{ "tags": ["a"], "price": 1.0, "n": 1, "meta": {"k": [1, 2.5]} }',
        b'{"n":1,"price":1.0,"tags":["\\u0061"],"meta":{"k":[1,2.5]}}',
    ],
)
def test_every_way_of_reading_gives_the_same(data: bytes) -> None:
    expected = Line(1, 1.0, ["a"], None, {"k": [1, 2.5]})
    back = Codec(Line).decode(data)
    assert repr(expected) == repr(back)
    assert repr([expected] * 2) == repr(Codec(list[Line]).decode(b"[" + data + b"," + data + b"]"))


@for_each("field_", [b'"n":1.0', b'"n":true', b'"n":"1"', b'"n":null', b'"n":1,"zzz":2'])
def test_the_fast_way_is_not_more_lenient(field_: bytes) -> None:
    with pytest.raises(DeserializeStateError):
        Codec(Line).decode(b"{" + field_ + b',"price":1.0,"tags":[],"note":null,"meta":null}')


@pytest.mark.parametrize(
    "line", [Line(True, 1.0, []), Line(Small.ONE, 1.0, []), Line(1, True, []), Line(1, 1.0, ("a",))]
)
def test_the_fast_way_of_writing_checks_exact_types(line: Line) -> None:
    for codec, state in ((Codec(Line), line), (Codec(list[Line]), [Line(1, 1.0, []), line])):
        with pytest.raises(StateTypeError):
            codec.encode(state)  # type: ignore[arg-type]


@dataclass
class Fare:
    price: float = 0
    paid: float | None = 0


class FareModel(pydantic.BaseModel):
    price: float = 0
    paid: float | None = 0


class FareStruct(msgspec.Struct):
    price: float = 0
    paid: float | None = 0


class FareTuple(NamedTuple):
    price: float = 0
    paid: float | None = 0


class FareDict(TypedDict):
    price: float
    paid: float | None


@attrs.define
class FareAttrs:
    price: float = 0
    paid: float | None = 0


def model_fare(**fields: Any) -> FareModel:
    return FareModel.model_construct(**fields)  # a validator would make floats of them


@for_each("make", [Fare, model_fare, FareStruct, FareTuple, FareDict, FareAttrs])
def test_an_int_in_a_field_that_is_declared_as_float_comes_back_as_that_int(make: Callable[..., Any]) -> None:
    fares = [make(price=price, paid=paid) for price in (0, 1.5, 2.0, 2**65) for paid in (0, 1.0, None)]
    kind: Any = FareDict if make is FareDict else type(fares[0])
    codec = Codec(list[kind])
    assert repr(fares) == repr(codec.decode(codec.encode(fares)))
    assert repr(fares[0]) == repr(Codec(kind).decode(Codec(kind).encode(fares[0])))
    with pytest.raises(StateTypeError, match="is bool where float"):
        codec.encode([*fares, make(price=True, paid=None)])


def test_nan_in_a_plain_record_is_tagged_and_comes_back() -> None:
    codec = Codec(list[Line])
    data = codec.encode([Line(1, float("nan"), [], meta=[float("inf")]), Line(2**80, 1.0, [])])
    assert b"null,null" not in data.replace(b'"note":null', b"")
    assert repr(codec.decode(data)) == repr([Line(1, float("nan"), [], meta=[float("inf")]), Line(2**80, 1.0, [])])


@dataclass
class Holder:
    @dataclass
    class Line:
        n: int

    line: "Line"


def test_a_nested_class_is_not_taken_for_the_one_of_its_module() -> None:
    codec = Codec(Holder)
    assert type(codec.decode(codec.encode(Holder(Holder.Line(1)))).line) is Holder.Line


def test_an_enum_base_class_takes_members_of_known_enums() -> None:
    codec: Codec[Any] = Codec(list[Enum], types=[Level])
    assert codec.decode(codec.encode([Level.LOW])) == [Level.LOW]
    with pytest.raises(SerializeStateError):
        Codec(list[Enum]).encode([Level.LOW])


@dataclass
class Renamed:
    new: str = "x"


def test_as_many_defaults_as_unknown_fields_are_no_full_match() -> None:
    with pytest.raises(DeserializeStateError) as raised:
        Codec(Renamed).decode(b'{"old":"precious"}')
    assert "state.old" == raised.value.path
    with pytest.raises(DeserializeStateError):
        Codec(list[Renamed]).decode(b'[{"old":"precious"}]')
    assert Renamed() == Codec(Renamed, unknown_fields="drop").decode(b'{"old":"precious"}')


def test_typed_dicts_in_a_column_keep_the_order_of_their_keys() -> None:
    movies: list[Movie] = [
        {"released": date(2024, 2, 29), "title": "b"},
        {"title": "a", "rating": Decimal(1), "released": date(2024, 3, 1)},
        {"rating": Decimal(1), "released": date(2024, 3, 1), "title": "c"},
    ]
    for some in (movies, movies[2:], movies[:1]):
        back = Codec(list[Movie]).decode(Codec(list[Movie]).encode(some))
        assert [list(movie) for movie in some] == [list(movie) for movie in back]


def test_a_root_model_has_nothing_beside_its_value() -> None:
    back = Codec(Root).decode(Codec(Root).encode(Root([date(2024, 2, 29)])))
    assert vars(Root([date(2024, 2, 29)])) == vars(back)


class Grown(pydantic.BaseModel, extra="allow"):
    x: int = 1
    y: int = 2
    _count: int = pydantic.PrivateAttr(default=5)
    _log: list[int] = pydantic.PrivateAttr(default_factory=list)


def test_a_model_that_has_grown_takes_its_defaults_and_does_not_call_them_set() -> None:
    model = Codec(Grown).decode(b'{"x":7,"$private":{"_count":6}}')
    assert (7, 2, 6, []) == (model.x, model.y, model._count, model._log)
    assert {"x"} == model.model_fields_set
    assert [] == Codec(Grown).decode(b'{"x":7,"y":8}')._log
    assert {"x", "y"} == Codec(Grown).decode(b'{"x":7,"y":8}').model_fields_set


@pytest.mark.parametrize("beside", ['"$private":{"_gone":1}', '"$extra":{"y":9}', '"$extra":{"y":9,"z":1}'])
def test_what_stands_beside_a_model_and_has_no_place_is_an_error_or_dropped(beside: str) -> None:
    data = b'{"x":7,%s}' % beside.encode()
    with pytest.raises(DeserializeStateError):
        Codec(Grown).decode(data)
    kept = Codec(Grown, unknown_fields="drop").decode(data)
    assert (2, 5) == (kept.y, kept._count)
    assert "y" not in (kept.__pydantic_extra__ or {})


def test_dropped_fields_of_a_model_are_not_among_those_that_were_set() -> None:
    dropped = Codec(Model, unknown_fields="drop").decode(b'{"title":"A","old":1,"$set":["title","old"]}')
    assert {"title"} == dropped.model_fields_set


def test_a_deleted_private_attribute_is_refused() -> None:
    model = Grown()
    del model._count
    with pytest.raises(SerializeStateError, match="_count"):
        Codec(Grown).encode(model)


class Doubled(pydantic.BaseModel):
    a: int
    b: int = pydantic.Field(default_factory=lambda values: values["a"] * 2)


@attrs.define
class Derived:
    a: int
    b: int = attrs.field(default=attrs.Factory(lambda self: self.a + 1, takes_self=True))
    c: int = attrs.field(default=attrs.Factory(lambda self: self.b + 1, takes_self=True))


def test_a_default_that_is_made_of_other_fields_is_made_of_what_was_recorded() -> None:
    assert Doubled(a=4, b=8) == Codec(Doubled).decode(b'{"a":4}')
    assert Derived(4, 5, 6) == Codec(Derived).decode(b'{"a":4}')
    assert [Derived(1, 9, 10), Derived(2, 3, 7)] == Codec(list[Derived]).decode(b'[{"a":1,"b":9},{"a":2,"c":7}]')


@attrs.define
class Converted:
    n: int
    plain: int = attrs.field(default="5", converter=int)
    several: list[int] = attrs.field(default="1", converter=[int, lambda value: [value]])
    with_self: int = attrs.field(
        default="7",
        converter=attrs.Converter(lambda value, made, field: int(value) + made.n, takes_self=True, takes_field=True),
    )
    of_self: int = attrs.field(default=attrs.Factory(lambda made: str(made.plain), takes_self=True), converter=int)
    low: int = attrs.field(default="1", converter=int)
    high: int = attrs.field(default="2", converter=int)

    @low.validator
    def _check(self, attribute: Any, value: int) -> None:
        if value > self.high:
            raise ValueError("low is above high")


class Validated(pydantic.BaseModel):
    n: int
    fixed: int = pydantic.Field(default="7", validate_default=True)
    made: int = pydantic.Field(default_factory=lambda values: str(values["fixed"]), validate_default=True)

    @pydantic.field_validator("fixed", mode="before")
    @classmethod
    def _add(cls, value: Any, info: pydantic.ValidationInfo) -> int:
        return int(value) + int(info.data["n"])

    @pydantic.model_validator(mode="after")
    def _change(self) -> "Validated":
        self.n = 99  # what is recorded is built as it was
        return self


class ValidatedTree(pydantic.BaseModel, validate_default=True, frozen=True):
    n: int
    fixed: int = pydantic.Field(default="7", alias="Fixed")
    made: Annotated[str, pydantic.StringConstraints(to_upper=True)] = "up"
    children: list["ValidatedTree"] = []


@pydantic.dataclasses.dataclass
class ValidatedData:
    n: int
    fixed: int = pydantic.Field(default="7", validate_default=True)
    made: int = pydantic.Field(default_factory=lambda values: values["fixed"] + 1)


class Settled(pydantic.BaseModel, frozen=True):
    n: int
    tens: int = 0
    names: list[str] = []

    @pydantic.model_validator(mode="after")
    def _count(self, info: pydantic.ValidationInfo) -> "Settled":
        object.__setattr__(self, "tens", self.n * 10)
        return self

    @pydantic.model_validator(mode="after")
    def _name(self) -> "Settled":
        self.names.append("a")
        if self.tens > 90:
            raise ValueError("too many")
        return self


@pydantic.dataclasses.dataclass
class SettledData:
    n: int
    tens: int = 0

    @pydantic.model_validator(mode="after")
    def _count(self) -> "SettledData":
        self.n, self.tens = 99, self.n * 10
        return self


def test_the_validators_of_a_model_see_new_fields_and_change_no_recorded_one() -> None:
    assert ["b"] == Codec(Settled).decode(b'{"n":1,"names":["b"]}').names
    assert (0, []) == (
        Codec(Settled).decode(b'{"n":50,"names":[],"tens":0}').tens,
        Settled.model_fields["names"].default,
    )
    with pytest.raises(DeserializeStateError, match=r"(?s)with the default of tens, names: .*too many"):
        Codec(Settled).decode(b'{"n":50}')


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Converted, "Converted(n=1, plain=5, several=[1], with_self=8, of_self=5, low=1, high=2)"),
        (Validated, "Validated(n=1, fixed=8, made=8)"),
        (ValidatedTree, "ValidatedTree(n=1, fixed=7, made='UP', children=[])"),
        (ValidatedData, "ValidatedData(n=1, fixed=7, made=8)"),
        (Settled, "Settled(n=1, tens=10, names=['a'])"),
        (SettledData, "SettledData(n=1, tens=10)"),
    ],
)
def test_the_default_of_a_new_field_is_converted_and_validated_as_its_class_does_it(kind: Any, expected: str) -> None:
    assert expected == repr(Codec(kind).decode(b'{"n":1}'))
    assert [expected] * 2 == [*map(repr, Codec(list[kind]).decode(b'[{"n":1},{"n":1}]'))]


@dataclass
class Mistaken:
    n: int
    more: int = "1"  # type: ignore[assignment]


@dataclass
class MistakenDeep:
    n: int
    more: list[int] = field(default_factory=lambda: [1, "2"])  # type: ignore[list-item]


class MistakenTuple(NamedTuple):
    n: int
    more: int = "1"  # type: ignore[assignment]


class MistakenStruct(msgspec.Struct):
    n: int
    more: int = "1"  # type: ignore[assignment]


class MistakenModel(pydantic.BaseModel):
    n: int
    more: int = "1"  # type: ignore[assignment]


class RefusedModel(pydantic.BaseModel):
    n: int
    more: int = pydantic.Field(default=1, gt=5, validate_default=True)


@attrs.define
class MistakenAttrs:
    n: int
    more: int = "1"  # type: ignore[assignment]


@attrs.define
class RefusedAttrs:
    n: int
    more: int = attrs.field(default=1, validator=attrs.validators.gt(5))


@for_each(
    "kind",
    [Mistaken, MistakenDeep, MistakenTuple, MistakenStruct, MistakenModel, RefusedModel, MistakenAttrs, RefusedAttrs],
)
def test_the_default_of_a_new_field_that_is_none_for_it_is_refused_by_its_name(kind: Any) -> None:
    for codec, data in ((Codec(kind), b'{"n":1}'), (Codec(list[kind]), b'[{"n":1}]')):
        with pytest.raises(DeserializeStateError, match="default") as refused:
            codec.decode(data)
        assert ".more" in refused.value.path


class Failing:
    def __get__(self, owner: Any, cls: Any = None) -> Any:
        if owner is None:
            return 5
        raise KeyError("not today")

    def __set__(self, owner: Any, value: Any) -> None:
        if value == 13:
            raise RuntimeError("unlucky")


@dataclass
class Guarded:
    x: int = Failing()  # type: ignore[assignment]


def test_a_property_that_fails_is_a_typed_error_with_the_cause() -> None:
    for type_, value in ((Guarded, Guarded(1)), (list[Guarded], [Guarded(1)])):
        with pytest.raises(SerializeStateError, match="not today") as refused:
            Codec(type_).encode(value)
        assert isinstance(refused.value.__cause__, KeyError)
    for type_, data in ((Guarded, b'{"x":13}'), (list[Guarded], b'[{"x":13}]')):
        with pytest.raises(DeserializeStateError, match="unlucky"):
            Codec(type_).decode(data)


@dataclass
class Ranked:
    places: OrderedDict[str, int]


def test_the_order_of_an_ordered_dict_counts_in_canonical_where_its_type_is_declared_too() -> None:
    one, other = Ranked(OrderedDict(a=1, b=2)), Ranked(OrderedDict(b=2, a=1))
    assert canonical(one, [Ranked]) != canonical(other, [Ranked])
    assert canonical(one, [Ranked]) == canonical(Ranked(OrderedDict(a=1, b=2)), [Ranked])
    assert Codec(Ranked).canonical(one) != Codec(Ranked).canonical(other)
