"""What the measured steps make, the same in every system: a page, a list that grows, a table of a megabyte.

A task is a value, what each step makes, and how that becomes part of the value. A system with a state keeps the whole value
in it; a system that records what steps return is given what the step made, and its workflow holds the value.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from string import ascii_lowercase
from time import perf_counter
from typing import Any, TypedDict

__all__ = ["TASKS", "Row", "Task", "Turn"]

_WORDS = (
    "durable",
    "workflow",
    "node",
    "state",
    "record",
    "journal",
    "lease",
    "store",
    "step",
    "owner",
    "resume",
    "run",
)


class Row(TypedDict):
    """One record of the table; 9500 make a megabyte."""

    id: int
    name: str
    value: float
    tags: list[str]


@cache
def _text(size: int, seed: int) -> str:
    words = random.Random(seed)
    return " ".join(words.choice(_WORDS) for _ in range(size // 4))[:size]


@cache
def _corpus() -> str:
    """Text enough for 600 items of which none repeats another, so that no store gains by what it has seen before."""
    words = random.Random(7)
    known = ["".join(words.choices(ascii_lowercase, k=words.randint(2, 10))) for _ in range(4000)]
    return " ".join(words.choices(known, k=200_000))


def _item(n: int) -> str:
    start = n * 2048 % (len(_corpus()) - 2048)
    return _corpus()[start : start + 2048]


def _no_items() -> list[str]:
    _corpus()  # made before the first step begins
    return []


@cache
def _table(shift: int) -> list[Row]:
    return [
        Row(id=n, name=f"customer {n + shift} of the shop", value=(n + shift) / 7, tags=["new", "paid"])
        for n in range(9500)
    ]


def _changed(n: int) -> tuple[int, Row]:
    place = n * 37 % 9500
    return place, Row(id=place, name=f"customer {n} by another name", value=n / 3, tags=["changed"])


def _with_row(table: list[Row], made: tuple[int, Row]) -> list[Row]:
    place, row = made
    return [*table[:place], row, *table[place + 1 :]]


@dataclass(frozen=True, slots=True)
class Task:
    """`begin` gives the value before the first step, `made` what step n makes, `merged` the value with that."""

    begin: Callable[[], Any]
    made: Callable[[int], Any]
    merged: Callable[[Any, Any], Any]
    value_type: Any
    made_type: Any
    is_appended: bool = False
    """Whether a step adds an item to the value; then `made` gives the item."""
    is_untouched: bool = False


TASKS = {
    "count": Task(str, lambda n: None, lambda value, made: value, str, None, is_untouched=True),
    "page": Task(lambda: _text(1024, 99), lambda n: _text(1024, n % 16), lambda value, made: made, str, str),
    "list": Task(_no_items, _item, lambda value, made: [*value, made], list[str], str, is_appended=True),
    "rewritten": Task(lambda: _table(0), lambda n: _table((n + 1) % 2), lambda value, made: made, list[Row], list[Row]),
    "changed": Task(lambda: _table(0), _changed, _with_row, list[Row], tuple[int, Row]),
    "untouched": Task(lambda: _table(0), lambda n: None, lambda value, made: value, list[Row], None, is_untouched=True),
}


@dataclass(slots=True)
class Turn:
    """What every step calls with its number, from 0: it notes when the step began and gives what the step makes."""

    task: Task
    stop: int | None = None
    """The number of the step that is not done."""
    at_stop: Callable[[], None] = lambda: None
    stamps: list[float] = field(default_factory=list)

    def __call__(self, number: int) -> Any:
        """Begin step `number`."""
        self.stamps.append(perf_counter())
        if number == self.stop:
            self.at_stop()
        return self.task.made(number)

    def per_step(self) -> float:
        """Seconds from the begin of a step to the begin of the next."""
        return (self.stamps[-1] - self.stamps[0]) / (len(self.stamps) - 1)
