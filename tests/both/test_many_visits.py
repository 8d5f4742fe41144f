"""Bounds of what a reader of the newest state reads after 10 000 visits, each of which changed a little."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from milepost import MemoryStore, Store
from milepost.model.record import CHECKPOINT, DIFFERENCE, Record, format_time, make_record
from milepost.store import Append
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.testing.journals import EPOCH_TIME, begin

VISITS = 10_000
AT_ONCE = 100
MOST_DIFFERENCES = 80
"""Number of differences of these states in the longest chain, and some more: 64 until its bytes count as well."""


def changing(count: int) -> Iterator[bytes]:
    """Give states of 8 KB, each with another number and another cell of its table than the one before."""
    chance = random.Random(7)
    cells = [b"%.12f" % chance.random() for _ in range(550)]
    for n in range(count):
        cells[chance.randrange(len(cells))] = b"%.12f" % chance.random()
        yield b'{"n":%d,"cells":[%s]}' % (n, b",".join(cells))


class Counting:
    """A transaction of a backend that also keeps the records that it gives out, each time it gives one."""

    def __init__(self, tx: Any, given: list[Record]) -> None:
        self._tx = tx
        self._given = given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def records(self, *args: Any, **options: Any) -> list[Record]:
        records: list[Record] = self._tx.records(*args, **options)
        self._given += records
        return records

    def point(self, *args: Any, **options: Any) -> tuple[Record | None, list[Record]]:
        checkpoint, later = self._tx.point(*args, **options)
        self._given += [record for record in (checkpoint, *later) if record is not None]
        return checkpoint, later


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records that backends have given out, as they are stored."""
    init, given = DecodingTransaction.__init__, list[Record]()
    monkeypatch.setattr(
        DecodingTransaction,
        "__init__",
        lambda self, tx, *args, **options: init(self, Counting(tx, given), *args, **options),  # type: ignore[arg-type]
    )
    return given


@pytest.mark.every_store
def test_the_newest_state_costs_the_same_after_many_visits(store: Store, given: list[Record]) -> None:
    """Each chain of differences ends, and the payloads that are read have at most twice the bytes of the state."""
    token, states = begin(store, "r"), changing(VISITS)
    fields, stamp = {"next_node": "a", "attempt": 1}, format_time(EPOCH_TIME)
    longest = 0
    for first in range(1, VISITS + 1, AT_ONCE):
        records = [
            make_record("r", n, stamp, CHECKPOINT, "a", n, next(states), fields) for n in range(first, first + AT_ONCE)
        ]
        store.append([Append(token, records)])
        given.clear()
        point = store.latest("r").point
        assert point is not None
        assert (first + AT_ONCE - 1, records[-1].payload) == (point.sequence, point.state())
        differences = [record for record in given if record.packing == DIFFERENCE]
        longest = max(longest, len(differences))
        assert len(given) - len(differences) <= 2
        assert len(differences) <= MOST_DIFFERENCES
        assert sum(len(record.payload or b"") for record in given) <= 2 * point.size
    assert longest >= 64 or isinstance(store, MemoryStore)
