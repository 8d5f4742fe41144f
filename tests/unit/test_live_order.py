"""The order of live events among records, and the numbers that are missing in it."""

from __future__ import annotations

from typing import Any

import pytest

from milepost import MemoryStore
from milepost.events import Emitted, NodeOverdue, Progress
from milepost.model.live import LiveEvent, LiveOrder, Missed
from milepost.model.live_bodies import LARGEST_DATA, body_of, event_of
from milepost.store import Store


def live(number: int, epoch: int = 1, after: int = 0) -> LiveEvent:
    return LiveEvent(epoch, number, after, 0.0, "a", 1, 1, b"")


def test_events_are_told_before_the_record_that_counts_them():
    order, events = LiveOrder((0, 0)), [live(1), live(2), live(3, after=1)]
    order.take(events)
    assert events[:2] == order.before((1, 2))
    assert events[2:] == order.after(1)
    order.take(events)
    assert [] == order.after(9)


def test_an_event_after_a_record_that_was_not_read_yet_waits():
    order = LiveOrder((0, 0))
    order.take([live(1, after=3)])
    assert [] == order.after(2)
    assert [live(1, after=3)] == order.after(3)


def test_gaps_are_told_where_they_are():
    order = LiveOrder((0, 0))
    assert order.lacks((1, 2))
    order.take([live(2), live(5)])
    assert not order.lacks((1, 5))
    assert order.lacks((1, 6))
    assert [Missed(1, 1), live(2), Missed(2, 1), live(5), Missed(1, 1)] == order.before((1, 6))
    order.take([live(6), live(7)])
    assert [live(7)] == order.after(0)


def test_a_new_epoch_begins_with_number_one():
    order = LiveOrder((1, 4))
    order.take([live(5), live(1, epoch=2), live(3, epoch=2)])
    assert [live(5), live(1, epoch=2), Missed(1, 2), live(3, epoch=2)] == order.before((2, 3))
    assert not order.lacks((3, 0))


def test_nothing_is_missed_before_a_beginning_that_is_not_known():
    order = LiveOrder(None)
    assert not order.lacks((1, 9))
    order.take([live(7), live(9)])
    assert [live(7), Missed(1, 1), live(9)] == order.before((1, 9))


def test_what_belongs_to_another_run_is_skipped():
    order = LiveOrder((0, 0))
    order.skip((2, 5))
    assert [] == order.before((2, 5))
    order.take([live(1, epoch=3)])
    assert [live(1, epoch=3)] == order.before((3, 1))


class Odd:
    pass


@pytest.mark.parametrize(
    ("data", "carried", "omitted"),
    [
        ("hé\u2028", "hé\u2028", ""),
        (None, None, ""),
        ((1, {"a": [True, 2.5]}), [1, {"a": [True, 2.5]}], ""),
        ("x" * (LARGEST_DATA + 1), None, f"it is too large: {LARGEST_DATA + 1} bytes"),
        (["x" * LARGEST_DATA], None, "it is too large: "),
        (Odd(), None, "it is no JSON: Odd cannot be encoded"),
        ("\ud800", None, "it is no JSON: "),
    ],
)
def test_data_is_carried_as_json_or_the_reason_is_told(data: Any, carried: Any, omitted: str):
    body = body_of(Emitted, {"name": "n", "data": data})
    back = event_of("r", LiveEvent(4, 6, 7, 5.0, "a", 2, 3, body), 8)
    assert isinstance(back, Emitted)
    assert (carried, True) == (back.data, back.omitted.startswith(omitted))
    assert ("r", 5.0, 8, "a", 2, 3, 4, 6, "n") == (
        *(back.run_id, back.timestamp, back.sequence, back.node_id),
        *(back.visit, back.attempt, back.epoch, back.number, back.name),
    )


def test_later_changes_of_the_data_do_not_change_the_event():
    data = {"n": 1}
    body = body_of(Emitted, {"name": "n", "data": data})
    data["n"] = 2
    back = event_of("r", LiveEvent(1, 1, 0, 5.0, "a", 1, 1, body), 0)
    assert isinstance(back, Emitted)
    assert {"n": 1} == back.data


def test_long_texts_are_cut():
    for said in ({"name": "n" * 20_000, "data": [1]}, {"name": "n" * 20_000, "data": "\ud800"}):
        back = event_of("r", LiveEvent(1, 1, 0, 5.0, "a", 1, 1, body_of(Emitted, said)), 0)
        assert isinstance(back, Emitted)
        assert ("n" * 10_000, bool(back.omitted)) == (back.name, back.data is None)


def test_progress_and_overdue_nodes_come_back_as_they_were():
    progress = {"done": 1, "total": None, "message": "\ud800"}
    for kind, said in ((Progress, progress), (NodeOverdue, {})):
        assert kind is type(event_of("r", LiveEvent(1, 1, 0, 1.5, "a", 1, 1, body_of(kind, said)), 0))
    assert event_of("r", LiveEvent(1, 1, 0, 0.0, "a", 1, 1, b"\xff"), 0) is None
    assert event_of("r", LiveEvent(1, 1, 0, 0.0, "a", 1, 1, b'{"event":"New"}'), 0) is None


def test_a_store_that_keeps_no_live_events_has_none():
    assert not Store.keeps_live
    assert [] == Store.read_live(MemoryStore(), "r")
