"""What annotations mean, also those that are texts: aliases, names of types, keys that may be missing, classes of pydantic."""

from __future__ import annotations

import itertools
import threading
import typing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Generic, NotRequired, Required, Self, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from milepost import END, Graph, MemoryStore, Steps, step, workflow
from milepost.codec import Codec
from milepost.codec.functions import classes
from milepost.codec.schema import schema_of
from milepost.errors import DeserializeStateError, StateTypeError
from milepost.testing.tables import for_each

T = TypeVar("T")


class Item(TypedDict):
    sku: str
    note: NotRequired[str]
    label: Annotated[NotRequired[str], "shown"]


class Order(TypedDict, total=False):
    items: Required[list[Item]]
    coupon: str


def test_a_key_may_be_missing_if_its_annotation_says_so_even_as_a_text() -> None:
    codec = Codec(Order)
    for order in ({"items": []}, {"items": [{"sku": "a"}], "coupon": "c"}, {"items": [{"sku": "a", "note": "n"}]}):
        assert order == codec.decode(codec.encode(order))
    for order in ({"coupon": "c"}, {"items": [{"note": "n"}]}):
        with pytest.raises(StateTypeError, match="the key is missing"):
            codec.encode(order)
    assert ["items"] == schema_of(Order)["required"]
    assert ["sku"] == schema_of(Item)["required"]


# -- aliases -------------------------------------------------------------------------------------------

Tree = TypeAliasType("Tree", "dict[str, Tree | Decimal]")
Deep = TypeAliasType("Deep", "list[Deep | date] | tuple[Deep, ...] | None")
Listed = TypeAliasType("Listed", list[T], type_params=(T,))
Nested = TypeAliasType("Nested", "dict[str, Nested[T] | T]", type_params=(T,))
JSON = typing.Union[dict[str, "JSON"], list["JSON"], str, int, float, bool, None]  # noqa: UP007  # as people write it


@dataclass
class Price:
    amount: Decimal


Quotes = TypeAliasType("Quotes", "list[Quotes] | Price")


@dataclass
class Holding:
    tree: Tree = field(default_factory=dict)
    deep: Deep = None
    prices: Listed[Price] = field(default_factory=list)
    nested: Nested[Price] = field(default_factory=dict)
    json: JSON = None
    quotes: Quotes | dict[str, int] = field(default_factory=dict)


@for_each(
    "held",
    [
        Holding(tree={"eu": {"de": Decimal("12.50")}, "us": Decimal(1)}),
        Holding(deep=[date(2026, 1, 2), [None, (None, [])]]),
        Holding(prices=[Price(Decimal(1))]),
        Holding(nested={"a": {"b": Price(Decimal(1))}, "c": Price(Decimal(2))}),
        Holding(json={"a": [1, 2.5, {"b": None}]}),
        Holding(quotes=[Price(Decimal(1)), [Price(Decimal(2))]]),
        Holding(quotes=Price(Decimal(1))),
        Holding(quotes={"amount": 1}),
    ],
)
def test_values_of_aliases_that_name_themselves_or_have_arguments_come_back(held: Holding) -> None:
    codec = Codec(Holding)
    assert () == codec.problems
    assert repr(held) == repr(codec.decode(codec.encode(held)))


def test_the_arguments_of_an_alias_count() -> None:
    with pytest.raises(StateTypeError, match=r"state\[0\] is str where int is declared"):
        Codec(Listed[int]).encode(["a"])


def local_alias(kind: type[Any]) -> tuple[Any, Any]:
    """Return a class and an alias that are called like those of other calls."""

    @dataclass
    class Local:
        value: int

    Local.__annotations__["value"] = kind
    return Local, TypeAliasType("Chain", list["Chain"] | kind)  # type: ignore[misc, valid-type]  # noqa: F821


def test_classes_and_aliases_of_one_name_are_not_taken_for_each_other() -> None:
    (one, chain), (other, other_chain) = local_alias(int), local_alias(str)
    codec: Codec[Any] = Codec(tuple[Listed[one], Listed[other], chain, other_chain])  # type: ignore[valid-type]
    value = ([one(1)], [other("a")], [[1], 2], [["a"], "b"])
    assert value == codec.decode(codec.encode(value))
    with pytest.raises(StateTypeError):
        codec.encode(([one(1)], [other("a")], [[1], 2], [[1]]))


def test_a_workflow_may_have_inputs_and_steps_of_a_type_that_names_itself() -> None:
    def measure(x: Tree, y: JSON) -> JSON:
        return [len(x), y]

    @workflow("measuring")
    def measuring(x: Tree, y: JSON = None) -> Steps[Any]:
        return (yield from step("measure").python(measure, args=(x, y)))

    store = MemoryStore()
    result = measuring.run(store=store, run_id="r", x={"a": Decimal(1)}, y={"b": [None]})
    assert result == [1, {"b": [None]}] == measuring.resume(store, "r")
    assert {Tree, Price} >= {*classes([Tree, Listed[Price]])}


def test_a_generic_class_that_holds_itself_with_ever_other_arguments_is_told() -> None:
    codec = Codec(Growing[int])
    assert "hold others with other type arguments without end" in codec.problems[0][1]
    assert Growing(1, Growing([2])) == codec.decode(codec.encode(Growing(1, Growing([2]))))


@dataclass
class Growing(Generic[T]):
    value: T
    next: Growing[list[T]] | None = None


# -- unions of values of one class ---------------------------------------------------------------------


@dataclass
class Node:
    name: str
    children: list[Node] | list[str] = field(default_factory=list)


def test_a_union_of_lists_that_holds_itself_costs_no_more_at_each_level(monkeypatch: pytest.MonkeyPatch) -> None:
    from milepost.codec.records import RecordPlan

    counter = itertools.count()
    dump = RecordPlan.dump

    def counted(plan: RecordPlan, value: Any, depth: int) -> Any:
        next(counter)
        return dump(plan, value, depth)

    monkeypatch.setattr(RecordPlan, "dump", counted)
    codec, node = Codec(Node), Node("leaf", ["a"])
    for number in range(25):
        node = Node(str(number), [node])
    assert node == codec.decode(codec.encode(node))
    assert next(counter) < 10_000  # twice as many for each level would be 100 million
    node.children[0].children = [1]  # type: ignore[union-attr, list-item]
    with pytest.raises(StateTypeError, match="children"):
        codec.encode(node)
    with pytest.raises(DeserializeStateError):
        codec.decode(b'{"name":"a","children":[{"$mp":"object","t":"Node","v":{"name":"b","children":[1]}}]}')


# -- classes of other libraries ------------------------------------------------------------------------


class Event(pydantic.BaseModel):
    at: pydantic.AwareDatetime
    born: pydantic.PastDate
    data: pydantic.JsonValue
    text: pydantic.Json[Any]
    cause: Self | None = None


def test_classes_of_pydantic_that_no_value_has_are_no_obstacle() -> None:
    event = Event(at=datetime(2026, 1, 1, tzinfo=UTC), born=date(2020, 1, 1), data={"a": [1, None]}, text='{"b": 1}')
    event = Event(at=event.at, born=event.born, data=[event.data], text="[2]", cause=event)
    codec = Codec(Event)
    assert () == codec.problems
    assert event == codec.decode(codec.encode(event))


class Page(pydantic.BaseModel):
    n: int


class Crawl(pydantic.BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, Page]
    url: str
    _seen: dict[str, Page] = pydantic.PrivateAttr(default_factory=dict)
    _lock: threading.Lock = pydantic.PrivateAttr()


def test_classes_of_private_attributes_and_extra_fields_are_known() -> None:
    crawl = Crawl(url="u", next=Page(n=2))
    crawl._seen["a"] = Page(n=1)
    codec = Codec(Crawl)
    assert () == codec.problems
    read = codec.decode(codec.encode(crawl))
    assert read == crawl
    assert {"a": Page(n=1)} == read._seen


@attrs.define
class Cart:
    prices: list[int]

    @cached_property
    def total(self) -> int:
        return sum(self.prices)


def test_a_cached_property_of_an_attrs_class_with_slots_is_computed_again() -> None:
    cart = Cart([1, 2])
    assert cart.total == 3
    read = Codec(Cart).decode(Codec(Cart).encode(cart))
    assert (cart, 3) == (read, read.total)


KINDS: dict[str, Any] = {}


class Kind(msgspec.Struct):
    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        KINDS[cls.__name__] = cls


class Paid(Kind):
    cents: int
    fee: int = 0

    def __post_init__(self) -> None:
        self.fee = self.cents // 10


def test_reading_a_struct_announces_no_subclass_of_it() -> None:
    flow: Any = Graph(Paid).add_node("a", lambda s: KINDS["Paid"](200)).add_edge("a", END).set_entry("a").compile("f")
    assert Paid(200) == flow.run(Paid(100), store=MemoryStore(), run_id="r")
    assert Paid is KINDS["Paid"]
