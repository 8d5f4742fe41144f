"""The schema of a payload's type refuses plain JSON that the type would not take, and nothing that it would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from milepost.codec.schema import flaw_of, schema_of
from milepost.executor.waits import Waits, reply_with
from milepost.store import Signal


@dataclass
class Item:
    count: int
    name: str = "x"
    inner: Item | None = None


class Keyed(TypedDict):
    a: int
    b: NotRequired[str]


class Pair(NamedTuple):
    a: int
    b: str = ""


class Lines(msgspec.Struct):
    items: list[Item]


@attrs.define
class Sized:
    size: int = attrs.field(converter=int)


class Form(pydantic.BaseModel):
    count: int


TYPES = [
    int, float, bool, str, list, list[int], dict, dict[str, int], dict[int, int], tuple[int, str], set[int], date, datetime,
    UUID, Decimal, bytes, Any, Literal["a", 1], int | None, Item | str, Item, Keyed, Pair, Lines, Sized, Form, list[Item],
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, 1.0, 1.5, 2**70, "a", "1", "2024-01-01", "2024-01-01T00:00:00Z", "1.5", [], [1], ["a"], [1, "x"], [["a", 1]],
    [[1, 1]], [{"count": 1}], {}, {"1": 1}, {"a": 1}, {"a": 1, "b": "x"}, {"a": "x"}, {"count": 1}, {"count": "1"}, {"size": 1},
    {"count": 1, "name": 2}, {"count": 1, "more": 1}, {"items": [{"count": 1}]}, {"items": [{"name": "x"}]}, {"size": "1"},
    {"count": 1, "inner": {"count": 1}}, {"$mp": "tuple", "v": [1, "x"]}, {"$mp": "date", "v": "2024-01-01"},
]  # fmt: skip


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_a_schema_refuses_nothing_that_its_type_would_take(type_):
    schema = schema_of(type_)
    for value in VALUES:
        data = json.dumps(value).encode()
        reply, _ = reply_with(Waits("go", None, payload=type_), Signal(1, "go", data, None, None, 0.0))
        assert reply is None or not flaw_of(data, schema), (value, schema)


@pytest.mark.parametrize(
    ("type_", "value", "flaw"),
    [
        (int, "x", "payload must be of type integer, and is of type string"),
        (dict, "x", "payload must be of type object or array, and is of type string"),
        (list[int], [1, True], "payload[1] must be of type integer, and is of type boolean"),
        (Literal["a", 1], True, "payload must be one of 'a', 1"),
        (int | None, 1.5, "payload fits none of 2 types: payload must be of type integer, and is of type number; "),
        (Keyed, {"b": "x"}, "payload lacks 'a'"),
        (Lines, {"items": [{"count": 1}, {"count": None}]}, "payload.items[1].count must be of type integer"),
    ],
    ids=str,
)
def test_a_flaw_names_the_place_and_the_type(type_, value, flaw):
    assert flaw_of(json.dumps(value).encode(), schema_of(type_)).startswith(flaw)


def test_a_payload_that_is_nested_too_deep_to_be_read_is_left_to_the_run():
    assert "" == flaw_of(b"[" * 100_000 + b"]" * 100_000, {"type": "array"})


def test_a_schema_that_is_too_large_or_no_json_says_nothing():
    large = Literal[tuple(f"option {n}" for n in range(2000))]  # type: ignore[valid-type]
    assert [{}, {}] == [schema_of(large), schema_of(Literal["\ud800"])]


def test_an_unknown_keyword_lets_pass():
    assert (
        "" == flaw_of(b'"x"', {"format": "date", "type": ["string", "month"]}) == flaw_of(b"not json", {"type": "null"})
    )
