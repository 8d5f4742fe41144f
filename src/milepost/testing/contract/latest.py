"""The snapshot of a run: the point to go on from, the records after it, and those that live ranges leave out."""

from __future__ import annotations

import json

import pytest

from milepost.errors import CheckpointNotFoundError
from milepost.model.record import OWNER
from milepost.store import Ranges, Release, Store
from milepost.testing.contract.subject import StoreUnderTest
from milepost.testing.journals import begin, checkpoint, claim_of, failure, owner, take, whole, work, write


def go_back(store: Store, run_id: str, live: Ranges) -> None:
    """Claim a free run with new live ranges, and release it again."""
    claimed = take(store, run_id, live=live)
    assert claimed.token is not None
    store.release(claimed.token, Release("interrupted"))


def stands(store: Store, run_id: str) -> tuple[int | None, list[int], int]:
    """Return the numbers of the point, of the tail, and of the newest record."""
    latest = store.latest(run_id)
    return latest.point and latest.point.sequence, [record.sequence for record in latest.tail], latest.newest


class LatestContract(StoreUnderTest):
    """`point` is the newest live checkpoint, or the start, or None for a run without either."""

    def test_a_run_that_has_begun_stands_at_its_start(self, store: Store) -> None:
        """`point` is the newest live checkpoint, or the start."""
        begin(store, "r")
        assert (0, [], 0) == stands(store, "r")
        assert store.get_run("r") == store.latest("r").row
        assert store.read("r")[0] == store.latest("r").point

    def test_a_run_stands_at_its_newest_checkpoint(self, store: Store) -> None:
        """`point` is the newest live checkpoint; `newest` is the sequence of the newest record."""
        token = begin(store, "r")
        work(store, token, *"abcdefghij")
        assert (10, [], 10) == stands(store, "r")
        assert store.read("r")[10] == store.latest("r").point

    def test_the_tail_is_what_came_after_the_point(self, store: Store) -> None:
        """`tail` are the live records after the point, in order: failures, owners, routes and the like."""
        token = begin(store, "r")
        write(store, token, failure("r", 1, "a"))
        assert (0, [1], 1) == stands(store, "r")
        work(store, token, "a")
        write(store, token, failure("r", 3, "b"), failure("r", 4, "b"))
        take(store, "r", takeover=True)
        assert (2, [3, 4, 5], 5) == stands(store, "r")
        assert store.read("r", after=2) == list(store.latest("r").tail)

    def test_the_start_may_come_with_the_nodes(self, store: Store) -> None:
        """`start`: where nodes are asked for, the start record. None: the store leaves it to be read."""
        token = begin(store, "r")
        work(store, token, "a")
        assert store.latest("r", with_nodes=True).start in (store.read("r")[0], None)
        assert store.latest("r").start is None

    def test_a_run_saved_from_outside_stands_at_its_newest_save(self, store: Store) -> None:
        """`point` is the newest live checkpoint, or the start, or None for a run without either."""
        store.save("r", "a", b"1")
        store.save("r", "b", b"2")
        assert (2, [], 2) == stands(store, "r")
        point = store.latest("r").point
        assert point is not None
        assert ("b", b"2", True) == (point.node_id, point.state(), point.is_foreign)

    def test_a_run_without_start_or_checkpoint_stands_nowhere(self, store: Store) -> None:
        """None for a run without either."""
        store.save("r", "a", b"1")
        store.delete("r", "a")
        latest = store.latest("r")
        assert latest.point is None
        assert store.read("r")[-1].sequence == latest.newest == latest.tail[-1].sequence

    def test_the_point_after_a_delete_is_the_newest_that_is_left(self, store: Store) -> None:
        """`point` is the newest live checkpoint."""
        work(store, begin(store, "r"), "a", "b", "c", release=Release("interrupted"))
        store.delete("r", "c")
        assert (2, [4], 4) == stands(store, "r")
        info = store.get_run("r").info
        assert ("later", len(b'{"n":2}')) == (info.next_node, info.size)

    def test_an_override_is_read_by_its_node_and_is_no_point(self, store: Store) -> None:
        """The point is a checkpoint, amended by the owner records of the tail."""
        work(store, begin(store, "r"), "a", "b", release=Release("interrupted"))
        record = owner("r", 3, 2, node_id="a", state=b'{"n":99}')
        assert "claimed" == store.claim(claim_of(store.latest("r"), record=record)).outcome
        (found,) = store.read("r", node_id="a", newest=True, limit=1)
        assert (OWNER, 3, b'{"n":99}') == (found.kind, found.sequence, found.state())
        assert (2, [3], 3) == stands(store, "r")

    def test_the_latest_before_a_number(self, store: Store) -> None:
        """`before`: only records below that sequence count for the point and the tail."""
        token = begin(store, "r")
        work(store, token, "a", "b")
        write(store, token, failure("r", 3, "a"), failure("r", 4, "a"), checkpoint("r", 5, "a", visit=2))
        for before, sequence, tail in ((1, 0, []), (2, 1, []), (3, 2, []), (4, 2, [3]), (5, 2, [3, 4]), (100, 5, [])):
            latest = store.latest("r", before=before)
            assert latest.point is not None
            assert (sequence, tail) == (latest.point.sequence, [record.sequence for record in latest.tail])
        assert (None, ()) == (store.latest("r", before=0).point, store.latest("r", before=0).tail)

    def test_superseded_records_are_no_point(self, store: Store) -> None:
        """Live ranges of a journal: (branch, first sequence, last sequence or None for open)."""
        work(store, begin(store, "r"), "a", "b", "c", release=Release("interrupted"))
        go_back(store, "r", (("", 0, 1), ("", 4, None)))
        assert (1, [4], 4) == stands(store, "r")
        before = store.latest("r", before=4).point
        assert before is not None
        assert 1 == before.sequence

    def test_superseded_visits_stay_in_the_history(self, store: Store) -> None:
        """`list` gives the newest live visit of each node; `history` every visit, superseded ones marked."""
        work(store, begin(store, "r"), "a", "b", "c", "b", release=Release("interrupted"))
        go_back(store, "r", (("", 0, 2), ("", 5, None)))
        assert [("a", 1), ("b", 2)] == [(info.node_id, info.sequence) for info in store.list("r")]
        history = [(info.sequence, info.visit, info.superseded) for info in store.history("r")]
        assert [(1, 1, False), (2, 1, False), (3, 1, True), (4, 2, True)] == history
        assert {"n": 2} == json.loads(store.load("r", "b"))["state"]
        assert {"n": 4} == json.loads(store.load("r", "b", visit=2))["state"]
        assert {"n": 3} == json.loads(store.load("r", "c", visit=1))["state"]
        with pytest.raises(CheckpointNotFoundError):
            store.load("r", "c")
        assert [0, 1, 2, 3, 4, 5] == [record.sequence for record in store.read("r")]
        info = store.get_run("r").info
        assert len(b'{"n":2}') == info.size

    def test_work_after_going_back_is_live(self, store: Store) -> None:
        """A range whose last sequence is None is open."""
        work(store, begin(store, "r"), "a", "b", "c", release=Release("interrupted"))
        claimed = take(store, "r", live=(("", 0, 1), ("", 4, None)))
        assert claimed.token is not None
        write(store, claimed.token, checkpoint("r", 5, "c", visit=2), checkpoint("r", 6, "d"))
        store.release(claimed.token, Release("interrupted"))
        assert (6, [], 6) == stands(store, "r")
        assert [("a", 1), ("c", 5), ("d", 6)] == [(info.node_id, info.sequence) for info in store.list("r")]
        store.save("r", "b", b"outside")
        assert (7, [], 7) == stands(store, "r")
        assert b"outside" == store.load("r", "b")

    def test_live_ranges_are_those_of_the_newest_owner_that_has_them(self, store: Store) -> None:
        """The live ranges of the newest owner record that has them."""
        work(store, begin(store, "r"), "a", "b", "c", release=Release("interrupted"))
        go_back(store, "r", (("", 0, 1), ("", 4, None)))
        claimed = take(store, "r")
        assert "claimed" == claimed.outcome
        assert (("", 0, 1), ("", 4, None)) == claimed.row.live
        assert (1, [4, 5], 5) == stands(store, "r")
        assert claimed.token is not None
        store.release(claimed.token, Release("interrupted"))
        go_back(store, "r", (("", 0, 3), ("", 6, None)))
        assert (3, [6], 6) == stands(store, "r")
        assert ["a", "b", "c"] == [info.node_id for info in store.list("r")]

    def test_reading_changes_nothing(self, store: Store) -> None:
        """Where the run stands; readers write nothing."""
        work(store, begin(store, "r"), "a", "b", release=Release("interrupted"))
        before = whole(store, "r")
        for _ in range(3):
            store.latest("r")
            store.list("r")
            store.history("r")
            store.load("r", "a")
            store.list_runs()
            store.export("r")
            store.verify("r")
        assert before == whole(store, "r")
