"""What a replay compares: arguments as text and digest, inputs as digests, and how a difference is told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest

from milepost import NonDeterminismError, SerializeStateError
from milepost.workflows.matching import (
    LONGEST,
    arguments_of,
    described,
    differs,
    hash_of,
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
    assert [None] * 4 == [plain_arguments(args) for args in [(1.0,), ([1],), (1, Point()), ("a\ud800",)]]


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


@pytest.mark.parametrize(
    "value", [object(), "a\ud800", lambda: None, [object()], {"a\ud800": 1}, Unreadable(), nested()]
)
def test_what_the_codec_cannot_carry_is_not_compared_and_what_stands_beside_it_is(value: Any):
    for told in (arguments_of((value, "eu"), {}), arguments_of(("eu",), {"client": value, "n": [1, value]})):
        assert told["text"].count("…")
        assert '"eu"' in told["text"]
    assert not differs(arguments_of((value, "eu"), {}), arguments_of((value, "eu"), {}))
    assert differs(arguments_of((value, "eu"), {}), arguments_of((value, "us"), {}))
    assert differs(arguments_of((), {"client": value, "n": [1]}), arguments_of((), {"client": value, "n": [2]}))
    assert not differs({}, arguments_of((1,), {}))
    assert not differs(None, arguments_of((1,), {}))


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
