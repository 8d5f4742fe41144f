"""The journal of a run as its branches write it: numbers, where an append fails or nobody learns what became of it."""

from __future__ import annotations

from typing import Any

import pytest

from milepost import MemoryStore
from milepost.drivers.heartbeat import HeldLease
from milepost.errors import CheckpointWriteError, LeaseLost, RunCancelled
from milepost.executor.effects import Ask, Write
from milepost.executor.journal import Journal
from milepost.model.ids import SYSTEM
from milepost.model.record import ROUTE
from milepost.options import Options
from milepost.store import Token, Verdict


def begun() -> Journal:
    journal = Journal(MemoryStore(), "r", Options())
    journal.token = Token("r", 1, "n" * 32, "here")
    journal.sequence = 4
    return journal


def writing(journal: Journal) -> tuple[Any, Any]:
    """A branch that has handed in one record: its routine, and the record."""
    record = journal.make(ROUTE, "a", next_node="b", iteration=1)
    routine = journal.write((record,))
    assert isinstance(next(routine), Write)
    return routine, record


def test_while_a_failed_append_is_asked_for_other_branches_hand_in_what_follows_what_is_written():
    journal = begun()
    first, record = writing(journal)
    assert (5, Ask) == (record.sequence, type(first.throw(OSError("disk full"))))
    other, meanwhile = writing(journal)
    assert 5 == meanwhile.sequence
    with pytest.raises(CheckpointWriteError):
        first.send([])
    with pytest.raises(StopIteration):
        other.send(Verdict("written"))
    assert (5, 6) == (journal.sequence, journal.next_number())


def test_what_was_written_though_the_store_failed_keeps_its_numbers_in_all_branches():
    journal = begun()
    (first, a), (second, b) = writing(journal), writing(journal)
    assert [5, 6] == [a.sequence, b.sequence]
    for routine in (first, second):
        assert isinstance(routine.throw(OSError("connection lost")), Ask)
    with pytest.raises(StopIteration):
        first.send([a])
    assert 7 == journal.next_number()
    with pytest.raises(StopIteration):
        second.send([b])
    assert (6, 8) == (journal.sequence, journal.next_number())


def test_the_end_of_a_hold_is_a_loss_unless_it_is_kept_and_cancelled():
    journal = begun()
    assert isinstance(journal.over(), LeaseLost)
    held = journal.held = HeldLease(journal.store, journal.token, 30, SYSTEM)
    assert isinstance(journal.over(), LeaseLost)
    held.cancelled("enough")
    assert isinstance(journal.over(), RunCancelled)
    held.renewed("lost", None)
    assert isinstance(journal.over(), LeaseLost)
