"""Ready-made reducers: `(value, update) -> value`, for one field of a state.

A reducer says how a field takes up what a node returned for it. Name one in the state's type, as in
`Annotated[list[str], append]`, or give `reducers={"field": append}` to the graph. Any function of two arguments
does; these have names, and what a branch adds can be told from them. None changes its arguments.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

__all__ = ["append", "largest", "last", "smallest", "total", "union"]

T = TypeVar("T")
U = TypeVar("U")


def append(value: list[T], update: list[U]) -> list[T | U]:
    """A new list: the items of `value`, then those of `update`. TypeError unless both are lists."""
    if not isinstance(value, list) or not isinstance(update, list):
        raise TypeError(
            f"append joins two lists, not {type(value).__name__} and {type(update).__name__}: "
            "return a list with the new items, even for one of them"
        )
    return [*value, *update]


def union(value: AbstractSet[T], update: AbstractSet[U]) -> AbstractSet[T | U]:
    """A new set of what is in either, of the type of `value`. TypeError unless both are sets."""
    return value | update


def total(value: Any, update: Any) -> Any:
    """The sum of both."""
    return value + update


def largest(value: Any, update: Any) -> Any:
    """The larger one; `value` if they are equal."""
    return max(value, update)


def smallest(value: Any, update: Any) -> Any:
    """The smaller one; `value` if they are equal."""
    return min(value, update)


def last(value: object, update: T) -> T:
    """The update, as a field without a reducer takes it."""
    return update
