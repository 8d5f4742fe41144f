"""What a replay compares: arguments as text and digest, inputs as digests, and how a difference is told."""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from milepost import InputMismatchError, MemoryStore, RunSuspended, SerializeStateError, Steps, step, workflow
from milepost.errors import NonDeterminismError
from milepost.testing.tables import for_each
from milepost.workflows.matching import (
    LONGEST,
    arguments_of,
    described,
    differs,
    hash_of,
    how_to_agree,
    non_determinism,
    plain_arguments,
)


@dataclass
class Point:
    x: int = 0


class Suit(Enum):
    CLUBS = 1
    HEARTS = 2


VALUES: list[Any] = [
    (), (1,), (True,), (1.0,), ("1",), (None,), (b"1",), ((1,),), ([1],), ({1},), ({"a": 1},), (1, 2), (2, 1), ("a\ud800",),
    (datetime(2026, 1, 1, tzinfo=UTC),), ("x" * 300,), ("x" * 301,), (Point(1),), (Point(2),),
]  # fmt: skip


def test_equal_arguments_are_equal_and_others_are_not():
    told = [arguments_of(args, {}, (Point,)) for args in VALUES if args != ("a\ud800",)]
    assert told == [arguments_of(args, {}, (Point,)) for args in VALUES if args != ("a\ud800",)]
    assert len(told) == len({str(one) for one in told})
    assert all(differs(one, other) for one in told for other in told if one is not other)


def test_plain_arguments_are_told_alike_whoever_asks():
    told = {args: plain_arguments(args) for args in [(), (1,), (True, None), ("1", 2**40), ("x" * 300,)]}
    assert told == {args: arguments_of(args, {}) for args in told}
    assert [None] * 5 == [plain_arguments(args) for args in [(1.0,), ([1],), (1, Point()), ("a\ud800",), (10**6000,)]]


def test_keywords_count_by_name_and_not_by_order():
    assert arguments_of((), {"a": 1, "b": 2}) == arguments_of((), {"b": 2, "a": 1})
    assert differs(arguments_of((1,), {}), arguments_of((), {"a": 1}))


@pytest.mark.parametrize(
    ("args", "kwargs", "others"),
    [
        ((1, {"a": 1}), {}, ((1,), {"a": 1})),
        (({"a": 1},), {}, ((), {"a": 1})),
        (([1], {"a": 1}), {}, (([1],), {"a": 1})),
        (([1, {"a": 1}],), {}, ((1,), {"a": 1})),
    ],
)
def test_keywords_are_no_mapping_that_is_given(args: Any, kwargs: Any, others: Any):
    assert differs(arguments_of(args, kwargs), arguments_of(*others))


@dataclass
class Unreadable:
    """An object that cannot be read any more, as those are whose session has been closed."""

    n: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "n":
            raise OSError("no session")
        return super().__getattribute__(name)


def nested() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


@for_each("value", [object(), "a\ud800", lambda: None, [object()], {"a\ud800": 1}, Unreadable(), nested()])
def test_what_the_codec_cannot_carry_is_not_compared_and_what_stands_beside_it_is(value: Any):
    for told in (arguments_of((value, "eu"), {}), arguments_of(("eu",), {"client": value, "n": [1, value]})):
        assert told["text"].count("…")
        assert '"eu"' in told["text"]
    assert not differs(arguments_of((value, "eu"), {}), arguments_of((value, "eu"), {}))
    assert differs(arguments_of((value, "eu"), {}), arguments_of((value, "us"), {}))
    assert differs(arguments_of((), {"client": value, "n": [1]}), arguments_of((), {"client": value, "n": [2]}))
    assert not differs({}, arguments_of((1,), {}))
    assert not differs(None, arguments_of((1,), {}))


class Client:
    """An object that equals only itself."""


class Amount:
    """An object with an equality of its own that no codec knows."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


class Region(str):
    """A text that is more than a text."""

    __slots__ = ()


class Regions(list[Any]):
    """A list that is more than a list."""


class Pair(NamedTuple):
    client: Any
    region: Any


@dataclass(eq=False)
class Request:
    client: Any
    region: Any


@attrs.define
class AttrsRequest:
    client: Any
    region: Any


class Model(pydantic.BaseModel):
    client: Any
    region: Any


class Struct(msgspec.Struct):
    client: Any
    region: Any


def lists(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda region: (Client(), region),
    "a set": lambda region: {Client(), region},
    "keys that are no texts": lambda region: {1: Client(), 2: region},
    "a key": lambda region: {(region, 1): Client()},
    "an ordered dict": lambda region: OrderedDict(client=Client(), region=region),
    "a read-only mapping": lambda region: MappingProxyType({"client": Client(), "region": region}),
    "a mapping that is no dict": lambda region: ChainMap({"region": region}, {"client": Client()}),
    "a view": lambda region: {1: region}.values(),
    "a dataclass": lambda region: Request(Client(), region),
    "an attrs class": lambda region: AttrsRequest(Client(), region),
    "a pydantic model": lambda region: Model(client=Client(), region=region),
    "a msgspec struct": lambda region: Struct(Client(), region),
    "a named tuple": lambda region: Pair(Client(), region),
    "a subclass of list": lambda region: Regions([Client(), region]),
    "a subclass of str": lambda region: Region(region),
    "an equality of its own": lambda region: Amount(region),
    "a namespace": lambda region: SimpleNamespace(client=Client(), region=region),
    "a partial function": lambda region: partial(print, Client(), region),
    "an error": lambda region: ValueError(region),
    "many elements": lambda region: [Client(), *range(300), region],
    "great depth": lambda region: lists((Client(), region), 100),
    "itself": lambda region: [nested(), region],
    "a text that is none": lambda region: "\ud800" + region,
    "a huge number": lambda region: 10**6000 + len(region) + (region == "us"),
}  # fmt: skip


@for_each("holder", HOLDERS)
def test_data_are_compared_wherever_they_stand(holder: str):
    make = HOLDERS[holder]
    for wrap in (lambda value: ((value, 1), {}), lambda value: ((), {"deep": {"er": [value]}})):
        told = arguments_of(*wrap(make("eu")))
        assert not differs(told, arguments_of(*wrap(make("eu"))))
        assert differs(told, arguments_of(*wrap(make("us"))))


@pytest.mark.parametrize(
    "value", [lists("eu", 5000), (region for region in "eu"), memoryview(b"eu"), [Amount(memoryview(b"eu"))]],
    ids=["a depth beyond reason", "a generator", "what cannot be copied", "an object with that inside"],
)  # fmt: skip
def test_data_that_cannot_be_read_equal_nothing_and_the_refusal_says_what_to_do(value: Any):
    told = arguments_of((value,), {})
    assert differs(told, arguments_of((value,), {}))
    assert f"a {told['unlike']} among its arguments equals no other" in how_to_agree(told, arguments_of((1,), {}))


def test_clients_of_one_class_are_one_and_those_of_two_are_two():
    assert not differs(arguments_of((Client(),), {}), arguments_of((Client(),), {}))
    assert differs(arguments_of((Client(),), {}), arguments_of((object(),), {}))
    assert differs(arguments_of((print,), {}), arguments_of((nested,), {}))


def test_what_is_no_plain_data_is_shown_by_its_class_and_a_digest_alone():
    told = arguments_of((Request(Client(), "secret"), {"r": Amount("secret")}), {})
    assert "…Request:" in told["text"]
    assert "secret" not in told["text"]
    assert not differs(
        arguments_of((Model(client=1, region=pydantic.SecretStr("a")),), {}),
        arguments_of((Model(client=1, region=pydantic.SecretStr("b")),), {}),
    )


def test_objects_are_compared_whether_their_classes_are_named_anywhere_or_not():
    for make in (lambda n: Point(n), lambda n: [{"a": (Point(n), 1)}], lambda n: {Suit(n): {Suit.CLUBS}}):
        known = arguments_of((make(1),), {}, (Point, Suit))
        assert known == arguments_of((make(1),), {})
        assert differs(known, arguments_of((make(2),), {}))


def test_a_long_argument_is_kept_as_its_beginning_and_a_digest():
    told = arguments_of(("x" * 5000,), {})
    assert (LONGEST, 64) == (len(told["text"]), len(told["digest"]))
    assert differs(told, arguments_of(("x" * 4999 + "y",), {}))


def test_an_argument_that_could_be_recorded_and_cannot_now_differs():
    assert differs(arguments_of((1,), {}), arguments_of((object(),), {}))


def test_the_hash_of_inputs_is_that_of_their_values_by_name():
    assert hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1})
    digests = {hash_of({"a": value})[0] for value in (1, 1.0, True, "1", None, [1], (1,), {1}, frozenset({1}))}
    assert 9 == len(digests)
    assert {64} == {len(digest) for digest in digests}


def test_an_input_that_cannot_be_carried_has_no_hash():
    with pytest.raises(SerializeStateError):
        hash_of({"a": object()})


def test_a_difference_is_told_with_both_sides_and_what_to_do():
    error = non_determinism("r1", 2, described("a", "python", {"text": '["eu"]'}), described("b", "map"))
    assert isinstance(error, NonDeterminismError)
    assert ("r1", 2, "python step 'a' with [\"eu\"]", "map step 'b'") == (
        error.run_id, error.index, error.recorded, error.found,
    )  # fmt: skip
    assert "step 3 of run 'r1' was recorded as python step 'a'" in str(error)
    assert "rename=" in str(error)
    assert str(non_determinism("r1", 0, "x", "y", "call it as before")).endswith(": call it as before")


@pytest.mark.wide
def test_objects_that_lead_to_one_another_on_many_ways_are_refused_and_not_followed_for_ever():
    @dataclass
    class Cell:
        near: list[Any]
        client: object

    cells = [Cell([], object()) for _ in range(9)]
    for cell in cells:
        cell.near.extend(cells)
    assert "too many ways" in arguments_of((cells,), {}, ())["unlike"]


# -- values in refusals ------------------------------------------------------------------------------------------------


@dataclass
class Quote:
    seller: str
    price: int


def test_a_difference_is_told_by_the_fields_of_a_value_and_not_by_the_codecs_marks() -> None:
    now = arguments_of((Quote("ann", 3), [Decimal("1.50"), {1: datetime(2026, 1, 1, tzinfo=UTC)}]), {})
    assert (
        """python step 'ask' with [Quote {"price":3,"seller":"ann"},[decimal "1.50",dict [[1,"""
        """datetime "2026-01-01T00:00:00+00:00"]]]]""" == described("ask", "python", now)
    )
    cut = described("ask", "python", arguments_of(([1] * 40, [Quote("a", 2), Quote("b" * 200, 1)]), {}))
    assert "$mp" not in cut
    assert 'Quote {"price":2,"seller":"a"},Quote {"price":1,"seller":"bbb' in cut


def test_what_a_user_wrote_stays_as_it_is_in_a_difference() -> None:
    text = 'a {"$mp":"set","v":[1]}'
    assert text in described("ask", "python", arguments_of((text, Quote("ann", 3)), {})).replace('\\\\"', '"')


def test_an_input_that_differs_is_told_by_its_fields() -> None:
    @workflow("quoted", types=[Quote])
    def quoted(offer: object) -> Steps[None]:
        yield from step("wait").wait_for("go")

    store = MemoryStore()
    with pytest.raises(RunSuspended):
        quoted.run(store=store, run_id="r", inputs={"offer": Quote("ann", 3)})
    with pytest.raises(InputMismatchError) as raised:
        quoted.run(store=store, run_id="r", inputs={"offer": Quote("ann", 4)}, if_exists="resume")
    told = 'recorded Quote {"seller":"ann","price":3}, given Quote {"seller":"ann","price":4}'
    assert told in str(raised.value)
    assert "$mp" not in str(raised.value)
