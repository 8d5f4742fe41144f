"""Paths of values that nobody shall see: one grammar for the pages of the console and for runs that become tests.

A path is a root, such as `state`, and the parts below it: `state.cards.number`. A part names a key of an object. In a list an
index takes one item; a part that is no index leads to each item, and is looked for in it. `*` stands for any one root, key or
index. The marks of the codec count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from milepost.codec.plan import MARK
from milepost.errors import OptionError, shown

ROOTS = ("state", "inputs", "output", "items", "prompt", "payload")
_MAPPINGS = ("dict", "ordereddict", "defaultdict", "counter")

Place = tuple[str, ...]
"""The keys and indexes that lead to one value of recorded JSON; the key of a tagged value is one of them."""


class HiddenPath(NamedTuple):
    """A path of values to hide."""

    root: str
    parts: tuple[str, ...]

    def is_below(self, *roots: str) -> bool:
        """Return whether the path begins at one of these roots."""
        return self.root in {"*", *roots}

    def __str__(self) -> str:
        return ".".join((self.root, *self.parts))


def read_paths(texts: Iterable[str]) -> list[HiddenPath]:
    """Read paths such as `state.card`. Raises `OptionError` for one that begins with no root, or has an empty part."""
    paths = []
    for text in texts:
        root, *parts = text.split(".")
        if root not in {"*", *ROOTS} or not all(parts):
            raise OptionError(
                f"a hidden path begins with {', '.join(ROOTS)}, such as state.card, unlike {shown(text)}", option="hide"
            )
        paths.append(HiddenPath(root, tuple(parts)))
    return paths


def find_places(value: Any, parts: Sequence[str]) -> Iterator[tuple[Place, Any]]:
    """Yield where the parts of a path lead in recorded JSON, and what stands there."""
    if not parts:
        yield (), value
        return
    for beginning, inner, rest in _inside(value, parts):
        for place, found in find_places(inner, rest):
            yield (*beginning, *place), found


def _inside(value: Any, parts: Sequence[str]) -> Iterator[tuple[Place, Any, Sequence[str]]]:
    """Yield the values one level below to which the parts lead: the place of each, itself, and the parts that are left."""
    part, rest = parts[0], parts[1:]
    if is_pairs(value):
        for index, (key, item) in enumerate(value["v"]):
            if part in {"*", str(key["v"] if _is_tagged(key) else key)}:  # a key with a tag is named by what it holds
                yield ("v", str(index), "1"), item, rest
    elif _is_tagged(value):
        yield ("v",), value["v"], parts
    elif isinstance(value, dict):
        for key, item in value.items():
            if part in {"*", key}:
                yield (key,), item, rest
    elif isinstance(value, list):
        is_index = part == "*" or part.isdecimal()
        for index, item in enumerate(value):
            if not is_index:
                yield (str(index),), item, parts
            elif part in {"*", str(index)}:
                yield (str(index),), item, rest


def is_pairs(value: Any) -> bool:
    """Return whether this is a mapping, some key of which is no text: it is recorded as pairs."""
    if not isinstance(value, dict) or value.get(MARK) not in _MAPPINGS or not isinstance(value.get("v"), list):
        return False
    return all(isinstance(pair, list) and len(pair) == 2 for pair in value["v"])


def _is_tagged(value: Any) -> bool:
    return isinstance(value, dict) and MARK in value and "v" in value
