"""The journal: appends and reads, the snapshot of a run, and large states that change little."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest

from milepost.errors import CheckpointNotFoundError, OptionError, RunExistsError, RunNotFoundError
from milepost.model.ids import this_process
from milepost.model.info import Wait
from milepost.model.ranges import Ranges
from milepost.model.record import (
    CHECKPOINT,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    REPLY,
    ROLLBACK,
    ROUTE,
    START,
    WAIT,
    Record,
    make_record,
)
from milepost.store import Append, Release, Store
from milepost.testing.chats import chat, said, state_of, talk
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import (
    begin,
    checkpoint,
    claim_of,
    failure,
    finish,
    new_run,
    owner,
    take,
    whole,
    work,
    write,
)
from milepost.testing.tables import for_each

# -- The journal: the start of a run, the records that an append adds, and that all of them are read as they were written


STAMP = "2026-01-01T00:00:00.000000Z"
KINDS = (CHECKPOINT, FAILURE, ROUTE, ITEMS, WAIT, REPLY, ROLLBACK, FINISH)


class JournalContract(StoreUnderTest):
    """A run is a row and a journal."""

    def test_create_writes_the_row_and_record_0_as_one(self, store: Store, clock: FakeClock) -> None:
        """Write the run row and record 0 as one, with epoch 1."""
        clock.advance(hours=1)
        new = new_run("r", flow="orders", tags={"team": "blue"}, state=b'{"n":5}', at=clock.time())
        token = store.create(new)
        row, (record,) = store.get_run("r"), store.read("r")
        assert ("r", 1, new.nonce, this_process().key) == token
        assert token.is_ours
        assert (1, "ours", None, 0, ()) == (row.epoch, row.lease, row.cancel, row.signals, row.live)
        info = row.info
        assert ("r", "orders", "running", False, ()) == (
            info.run_id,
            info.flow,
            info.status,
            info.degraded,
            info.missed,
        )
        assert (0, None, 0, (), {"team": "blue"}) == (
            info.sequence,
            info.wake_at,
            info.crash_count,
            info.waiting_for,
            dict(info.tags),
        )
        assert (clock.now(), clock.now()) == (info.created_at, info.updated_at)
        assert "" != info.owner
        assert (0, START, "", 1, 7, b'{"n":5}') == (
            record.sequence,
            record.kind,
            record.node_id,
            record.visit,
            record.size,
            record.state(),
        )

    def test_a_ready_run_has_no_owner(self, store: Store, clock: FakeClock) -> None:
        """With status `ready` the run has no owner and the token is good for nothing."""
        token = store.create(new_run("r", status="ready", wake_at=clock.time() + 60))
        before = whole(store, "r")
        assert ("ready", "free") == (before[0].info.status, before[0].lease)
        assert before[0].info.wake_at is not None
        assert clock.time() + 60 == before[0].info.wake_at.timestamp()
        assert "lost" == write(store, token, checkpoint("r", 1)).outcome
        assert "lost" == store.renew([token])[0].outcome
        assert before == whole(store, "r")

    @pytest.mark.parametrize("status", ["finished", "failed", "waiting", "interrupted"])
    def test_create_over_an_existing_id_changes_nothing(self, store: Store, status: str) -> None:
        """Raises `RunExistsError` (with the run's `status`) if the id is taken."""
        work(store, begin(store, "r"), "a", release=Release(status, signals=0))
        before = whole(store, "r")
        with pytest.raises(RunExistsError) as caught:
            begin(store, "r", flow="another", tags={"new": "yes"})
        assert ("r", status) == (caught.value.run_id, caught.value.status)
        assert before == whole(store, "r")

    def test_create_over_a_run_saved_from_outside_is_refused(self, store: Store) -> None:
        """Raises `RunExistsError` (with the run's `status`) if the id is taken."""
        store.save("r", "a", b"1")
        with pytest.raises(RunExistsError) as caught:
            begin(store, "r")
        assert "interrupted" == caught.value.status
        assert b"1" == store.load("r", "a")

    def test_tags_belong_to_the_store_once_they_are_given(self, store: Store) -> None:
        """Values that go in are copied or immutable."""
        tags = {"team": "blue"}
        begin(store, "r", tags=tags)
        tags["team"] = "red"
        assert {"team": "blue"} == dict(store.get_run("r").info.tags)

    def test_a_run_has_at_most_64_tags(self, store: Store) -> None:
        """`OptionError` for too many tags, or one of more than 512 bytes."""
        begin(store, "full", tags={str(n): "" for n in range(64)})
        for tags in ({str(n): "" for n in range(65)}, {"k" * 513: ""}):
            with pytest.raises(OptionError, match="tag"):
                begin(store, "r", tags=tags)
        assert ["full"] == [info.run_id for info in store.list_runs()]

    def test_what_is_read_belongs_to_the_caller(self, store: Store) -> None:
        """What comes out belongs to the caller."""
        work(store, begin(store, "r"), "a")
        store.put_signal("r", "go", b"1")
        for answer in (store.read("r"), store.list("r"), store.history("r"), store.list_runs(), store.signals("r")):
            expected = len(answer)
            answer.clear()
            assert expected > 0
        sizes = (store.read("r"), store.list("r"), store.history("r"), store.list_runs(), store.signals("r"))
        assert [2, 1, 1, 1, 1] == [len(answer) for answer in sizes]

    def test_a_record_comes_back_as_it_went_in_and_sealed(self, store: Store) -> None:
        """`header` is the JSON text of the header, sealed once a store has written it."""
        given = [make_record("r", n, STAMP, kind, f"node {n}", 3, b'{"k":[%d,"\\u00e9"]}' % n, {"of": kind, "more": n})
                 for n, kind in enumerate(KINDS, 1)]  # fmt: skip
        write(store, begin(store, "r"), *given)
        found = store.read("r")[1:]
        assert [_facts(record) for record in given] == [_facts(record) for record in found]
        for record in store.read("r"):
            store.seals.check("r", record)

    def test_records_without_a_state_come_back_without_one(self, store: Store) -> None:
        """`payload` is the encoded state (None: the record has none)."""
        write(store, begin(store, "r"), failure("r", 1, "a"), checkpoint("r", 2, "a", state=b'""'))
        assert [None, b'""'] == [record.state() for record in store.read("r", after=0)]

    @for_each("size", [1, 1023, 1024, 4096, 100_000, 1024 * 1024, 1024 * 1024 + 1, 3_000_000])
    @for_each("compressing", [False, True])
    def test_a_state_of_any_size_comes_back(self, store: Store, size: int, compressing: bool) -> None:
        """A record's state is what was encoded, however the store packs it."""
        state = b"[" + b"1," * (size // 2) + b"1]"
        record = make_record("r", 1, STAMP, CHECKPOINT, "a", 1, state, compressing=compressing)
        write(store, begin(store, "r"), record)
        found = store.read("r")[1]
        assert state == found.state()
        assert len(state) == found.size
        store.seals.check("r", found)
        fields = json.loads(store.load("r", "a"))
        assert record.fields() == {name: fields[name] for name in record.fields()}
        assert ("compressed" in fields) is isinstance(fields["state"], str)
        store.delete_run("r", force=True)

    def test_an_append_inserts_all_its_records_and_touches_nothing_else(self, store: Store, clock: FakeClock) -> None:
        """Records of one run that are written together; an append only inserts."""
        token = begin(store, "r")
        row = store.get_run("r")
        assert ("written", None) == work(store, token, *"abcdefghij")
        after = store.get_run("r")
        assert list(range(11)) == [record.sequence for record in store.read("r")]
        assert 10 == after.info.sequence
        assert "later" == after.info.next_node
        assert len(b'{"n":10}') == after.info.size
        assert (row.epoch, row.lease, row.info.status, row.info.owner, row.info.lease_until) == (
            after.epoch,
            after.lease,
            after.info.status,
            after.info.owner,
            after.info.lease_until,
        )

    def test_an_append_may_add_tags(self, store: Store) -> None:
        """Tags to add to the run row in the same write."""
        token = begin(store, "r", tags={"a": "1", "b": "1"})
        write(store, token, checkpoint("r", 1), tags={"b": "2", "c": "3"})
        assert {"a": "1", "b": "2", "c": "3"} == dict(store.get_run("r").info.tags)

    @pytest.mark.parametrize(
        "status", ["interrupted", "failed", "cancelled", "finished", "ready", "waiting", "blocked"]
    )
    def test_a_release_says_what_the_run_is_then(self, store: Store, status: str) -> None:
        """The end of ownership, and what the run is then."""
        token = begin(store, "r")
        waits = (Wait("ask#1", "answer", {"text": "go on?"}), Wait("nap#1", None)) if status == "waiting" else ()
        wake_at = 1_800_000_000.25 if status in {"waiting", "ready"} else None
        end = Release(status, "because", wake_at, waits, None, True, ("a#1", "b#2"))
        assert "written" == write(store, token, checkpoint("r", 1), release=end).outcome
        row = store.get_run("r")
        assert (status, True, "free") == (row.info.status, "because" in row.info.reason, row.lease)
        assert (True, ("a#1", "b#2"), waits) == (row.info.degraded, row.info.missed, row.info.waiting_for)
        assert (wake_at and datetime.fromtimestamp(wake_at, row.info.created_at.tzinfo)) == row.info.wake_at
        assert 1 == row.info.sequence
        before = whole(store, "r")
        assert "lost" == write(store, token, checkpoint("r", 2)).outcome
        assert before == whole(store, "r")

    def test_a_wait_keeps_its_prompt_and_its_end(self, store: Store, clock: FakeClock) -> None:
        """One thing that a run waits for. `signal` is None for a timer, `wake_at` None without an end."""
        prompt = {"ask": ["ü", 1, 2.5, None, True], "{}": {}}
        waits = (Wait("w#1", "approval", prompt, clock.now()), Wait("w#2", "other"))
        store.release(begin(store, "r"), Release("waiting", waiting_for=waits))
        assert waits == store.get_run("r").info.waiting_for
        assert waits == store.list_runs()[0].waiting_for

    def test_a_release_needs_no_record(self, store: Store) -> None:
        """Give the run up without a record: `append` with no records."""
        token = begin(store, "r")
        assert ("written", None) == store.release(token, Release("interrupted", "stopped"))
        row = store.get_run("r")
        assert ("interrupted", "stopped", "free", 0) == (row.info.status, row.info.reason, row.lease, row.info.sequence)
        assert "lost" == store.release(token, Release("finished")).outcome
        assert "interrupted" == store.get_run("r").info.status

    def test_updated_at_moves_when_the_row_is_written(self, store: Store, clock: FakeClock) -> None:
        """What a store knows of a run."""
        token = begin(store, "r")
        created = clock.now()
        clock.advance(10)
        store.release(token, Release("interrupted"))
        info = store.get_run("r").info
        assert (created, clock.now()) == (info.created_at, info.updated_at)

    def test_read_gives_records_between_two_numbers_of_some_kinds_and_a_node(self, store: Store) -> None:
        """Records with `after` < sequence < `before` of these kinds and this node; [] for an unknown run."""
        token = begin(store, "r")
        work(store, token, "a")
        write(store, token, failure("r", 2, "b"), failure("r", 3, "b"))
        work(store, token, "b", "c")
        write(store, token, finish("r", 6))

        def numbers(**options: Any) -> list[int]:
            return [record.sequence for record in store.read("r", **options)]

        assert [0, 1, 2, 3, 4, 5, 6] == numbers()
        assert [4, 5, 6] == numbers(after=3)
        assert [0, 1, 2] == numbers(before=3)
        assert [2, 3] == numbers(after=1, before=4)
        assert [] == numbers(before=0)
        assert [] == numbers(after=6)
        assert [0, 1, 2] == numbers(limit=3)
        assert [3, 4] == numbers(after=2, limit=2)
        assert [2, 3, 6] == numbers(kinds={FAILURE, FINISH})
        assert [3, 6] == numbers(kinds=[FINISH, FAILURE], after=2)
        assert [2] == numbers(kinds=(FAILURE,), limit=1)
        assert [] == numbers(kinds=())
        assert [2, 3, 4] == numbers(node_id="b")
        assert [4] == numbers(node_id="b", kinds=(CHECKPOINT,))
        assert [2] == numbers(node_id="b", before=3)
        assert [] == numbers(node_id="B")
        assert [0, 6] == numbers(node_id="")
        assert [] == store.read("nobody")

    def test_read_goes_from_the_newest_back_when_asked(self, store: Store) -> None:
        """In order, or with `newest` from the newest back; at most `limit`."""
        token = begin(store, "r")
        work(store, token, "a", "b", "a", "c")

        def numbers(**options: Any) -> list[int]:
            return [record.sequence for record in store.read("r", newest=True, **options)]

        assert [4, 3, 2, 1, 0] == numbers()
        assert [4, 3] == numbers(limit=2)
        assert [3] == numbers(node_id="a", limit=1)
        assert [3, 1] == numbers(node_id="a", kinds={CHECKPOINT})
        assert [1] == numbers(node_id="a", before=3, limit=1)
        assert [4, 3, 2] == numbers(after=1)
        assert [] == numbers(node_id="never")

    def test_get_run_and_latest_of_an_unknown_run(self, store: Store) -> None:
        """The run's row. Raises `RunNotFoundError`."""
        for call in (store.get_run, store.latest, store.export, store.verify, store.request_cancel):
            with pytest.raises(RunNotFoundError) as caught:
                call("nobody")
            assert "nobody" == caught.value.run_id
            assert store.place in str(caught.value)

    def test_order_is_by_sequence_when_the_clock_goes_back(self, store: Store, clock: FakeClock) -> None:
        """Order is by sequence, never by a clock."""
        for n in (1, 2, 3):
            store.save("r", f"node {n}", b"%d" % n)
        clock.set(clock.now().replace(year=2025))
        store.save("r", "node 4", b"4")
        store.save("r", "node 1", b"again")
        assert ["node 2", "node 3", "node 4", "node 1"] == [info.node_id for info in store.list("r")]
        assert [1, 2, 3, 4, 5] == [info.sequence for info in store.history("r")]
        point = store.latest("r").point
        assert point is not None
        assert (5, b"again") == (point.sequence, point.state())

    @requires(is_shared_between_processes=True)
    def test_what_was_written_is_there_for_a_store_opened_later(self, store: Store, other: Store) -> None:
        """Durable on return."""
        token = begin(store, "r", tags={"a": "b"})
        work(store, token, *"abcdefghij", release=Release("failed", "why"))
        store.put_signal("r", "go", b"1")
        row, records, signals = store.get_run("r"), store.read("r"), store.signals("r")
        store.close()
        assert (row, records, signals) == (other.get_run("r"), other.read("r"), other.signals("r"))
        assert "claimed" == take(other, "r").outcome

    @requires(is_shared_between_processes=False)
    def test_two_stores_share_nothing(self, store: Store, other: Store) -> None:
        """A store that is not shared begins empty each time."""
        begin(store, "r")
        assert [] == other.list_runs()

    def test_appends_of_several_runs_are_written_in_one_batch(self, store: Store) -> None:
        """Write the appends of several runs in one commit; a verdict for each, in order."""
        tokens = [begin(store, f"r{n}") for n in range(12)]
        batch = [Append(token, (checkpoint(token.run_id, 1, "a"), finish(token.run_id, 2))) for token in tokens]
        assert ["written"] * 12 == [verdict.outcome for verdict in store.append(batch)]
        assert {2} == {store.get_run(token.run_id).info.sequence for token in tokens}
        assert [] == store.append([])


def _facts(record: Record) -> tuple[Any, ...]:
    """Return the parts of a record that must be read as written; the digest and the seal are the store's own."""
    fields = {name: value for name, value in record.fields().items() if name not in {"digest", "life", "prev", "seal"}}
    return (record.sequence, record.kind, record.node_id, record.visit, record.size, fields, record.state())


# -- The snapshot of a run: the point to go on from, the records after it, and those that live ranges leave out


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


# -- Large states that change little: in whatever form a store keeps them, they are read whole -----


class LargeContract(StoreUnderTest):
    """Every state comes back as it went in, whatever is kept of it, and whatever goes."""

    def test_large_states_come_back_whole_by_every_way(self, store: Store) -> None:
        """Read in order, backwards, one by one, by node and visit, and as the latest point."""
        token = begin(store, "r")
        talk(store, token, 1, 90)
        states = {n: chat(n) for n in range(1, 91)}
        read = {record.sequence: record.state() for record in store.read("r", kinds=(CHECKPOINT,))}
        assert states == read
        backwards = store.read("r", kinds=(CHECKPOINT,), newest=True)
        assert [states[n] for n in range(90, 0, -1)] == [record.state() for record in backwards]
        assert [states[n] for n in (90, 89, 88)] == [r.state() for r in store.read("r", newest=True, limit=3)]
        assert all(states[n] == state_of(store, "r", n) for n in (1, 7, 64, 65, 66, 90, 33))
        assert [states[n] for n in range(2, 91, 3)] == [r.state() for r in store.read("r", node_id="c")]
        assert states[10] == json_state(store.load("r", "b", 4))
        latest = store.latest("r")
        assert latest.point is not None
        assert states[90] == latest.point.state()
        before = store.latest("r", before=50).point
        assert before is not None
        assert states[49] == before.state()
        assert [len(chat(n)) for n in range(1, 91)] == [info.size for info in store.history("r")]
        assert len(chat(90)) == store.get_run("r").info.size
        report = store.verify("r")
        assert (True, ()) == (report.ok, report.problems)

    def test_large_states_of_several_records_in_one_append_come_back_whole(self, store: Store) -> None:
        """Records that are handed in together, of one run and of several."""
        tokens = [begin(store, run_id) for run_id in ("r", "s")]
        for first in range(1, 60, 6):
            batch = [Append(t, tuple(said(t.run_id, n) for n in range(first, first + 6))) for t in tokens]
            assert ["written", "written"] == [verdict.outcome for verdict in store.append(batch)]
        assert all(chat(n) == state_of(store, run_id, n) for run_id in ("r", "s") for n in (1, 2, 30, 59, 60))

    def test_compressed_states_come_back_whole(self, store: Store) -> None:
        """As `compress_state` asks for it."""
        token = begin(store, "r")
        talk(store, token, 1, 40, compressing=True)
        assert all(chat(n) == record.state() for n, record in enumerate(store.read("r", after=0), 1))
        assert store.verify("r").ok
        copied = store.import_run(store.export("r"), run_id="copy")
        assert all(chat(n) == state_of(store, copied, n) for n in (1, 20, 40))

    def test_a_small_change_of_a_large_state_is_kept_as_such(self, store: Store) -> None:
        """Storage grows with the change where a store says that it keeps differences."""
        token = begin(store, "r")
        talk(store, token, 1, 120)
        kept, last, whole = store.stats().size, len(chat(120)), sum(len(chat(n)) for n in range(1, 121))
        assert whole > 40 * last
        most = 6 if store.seals.is_keyed else 4  # what is encrypted has a header around its own one
        assert not getattr(store, "keeps_differences", False) or kept < most * last

    def test_a_state_that_is_refused_is_no_base_of_the_next(self, store: Store) -> None:
        """What was not written is nothing that others could build on."""
        token = begin(store, "r")
        talk(store, token, 1, 10)
        assert "gap" == write(store, token, said("r", 12)).outcome
        talk(store, token, 11, 12)
        assert "taken" == write(store, token, said("r", 12)).outcome
        talk(store, token, 13, 14)
        assert all(chat(n) == state_of(store, "r", n) for n in range(10, 15))

    def test_of_several_appends_one_that_is_refused_is_no_base(self, store: Store) -> None:
        """Appends of one run that are handed in together, of which not all are written."""
        token = begin(store, "r", state=chat(20))
        talk(store, token, 1, 20)
        batch = [Append(token, (said("r", 21),)), Append(token, (said("r", 23),))]
        assert ["written", "gap"] == [verdict.outcome for verdict in store.append(batch)]
        talk(store, token, 22, 25)
        assert all(chat(n) == state_of(store, "r", n) for n in range(20, 26))

    def test_a_run_builds_on_nothing_of_a_former_one_of_its_id(self, store: Store) -> None:
        """What was known of a run is of no use once it is deleted."""
        token = begin(store, "r")
        talk(store, token, 1, 20)
        write(store, token, release=Release("finished"))
        store.latest("r")
        store.delete_run("r")
        token = begin(store, "r", state=chat(20))
        assert chat(20) == state_of(store, "r", 0)
        talk(store, token, 1, 2)
        assert all(chat(n) == state_of(store, "r", n) for n in (1, 2))

    @requires(is_shared_between_processes=True)
    def test_a_run_that_another_object_makes_anew_builds_on_nothing_of_the_former_one(
        self, store: Store, other: Store, clock: FakeClock
    ) -> None:
        """The new one has the same epochs and may have as many records."""
        for final in (20, 24):
            token = begin(other, "r")
            for n in range(1, final + 1):
                write(other, token, said("r", n) if final == 20 else checkpoint("r", n, visit=n))
            write(other, token, release=Release("interrupted"))
            store.latest("r")
            if final == 20:
                other.delete_run("r")
                clock.advance(1.0)
        owner = take(store, "r").token
        assert owner is not None
        talk(store, owner, 26, 27)
        assert all(chat(n) == state_of(store, "r", n) for n in (26, 27))

    def test_another_owner_goes_on_from_a_large_state(self, store: Store) -> None:
        """Each owner in turn, with and without a state of its own, one that was read and one that was not."""
        token, n = begin(store, "r"), 0
        for _ in range(4):
            talk(store, token, n + 1, n + 6)
            assert "written" == write(store, token, release=Release("interrupted")).outcome
            claimed = take(store, "r")
            assert claimed.token is not None
            token, n = claimed.token, n + 7
        talk(store, token, n + 1, n + 2)
        assert all(chat(k) == state_of(store, "r", k) for k in (1, 6, 8, 13, 15, 27, 29, 30))
        assert store.verify("r").ok

    @requires(is_shared_between_processes=True)
    def test_what_another_object_wrote_is_built_upon(self, store: Store, other: Store) -> None:
        """Two objects of one store take turns; neither trusts what it knew before the other came."""
        token = begin(store, "r")
        talk(store, token, 1, 6)
        write(store, token, release=Release("interrupted"))
        owner = take(other, "r").token
        assert owner is not None
        talk(other, owner, 8, 12)
        write(other, owner, release=Release("interrupted"))
        mine = take(store, "r").token
        assert mine is not None
        talk(store, mine, 14, 16)
        assert "lost" == write(other, owner, said("r", 17)).outcome
        for n in (1, 6, 8, 12, 14, 16):
            assert chat(n) == state_of(store, "r", n) == state_of(other, "r", n)

    def test_a_state_survives_the_deletion_of_what_it_builds_on(self, store: Store, clock: FakeClock) -> None:
        """A node is deleted: the others keep their states, and storage does not explode."""
        token = begin(store, "r")
        talk(store, token, 1, 60)
        before = store.stats().size
        write(store, token, release=Release("interrupted"))
        store.delete("r", "b")
        left = [n for n in range(1, 61) if n % 3 != 1]
        assert {n: chat(n) for n in left} == {r.sequence: r.state() for r in store.read("r", kinds=(CHECKPOINT,))}
        assert all(chat(n) == state_of(store, "r", n) for n in reversed(left))
        assert store.verify("r").problems == ()
        assert not getattr(store, "keeps_differences", False) or store.stats().size < 2 * before
        store.delete("r", "a")
        assert all(chat(n) == state_of(store, "r", n) for n in left if n % 3 == 2)
        token2 = take(store, "r").token
        assert token2 is not None
        newest = store.latest("r").newest
        write(store, token2, checkpoint("r", newest + 1, "d", state=chat(61)))
        assert chat(61) == state_of(store, "r", newest + 1)
        assert chat(59) == state_of(store, "r", 59)

    def test_chains_that_lose_links_here_and_there_stay_whole(self, store: Store) -> None:
        """Several chains of a run, of each of which something goes."""
        token, rows = begin(store, "r"), [f"row {n} " * 20 for n in range(60)]
        states = dict[int, bytes]()
        for n in range(1, 161):
            rows[n % 60] = f"now {n} " * 20
            states[n] = msgspec.json.encode(rows)
            write(store, token, checkpoint("r", n, "ab"[n % 7 == 3 or n % 11 == 5], visit=n, state=states[n]))
        write(store, token, release=Release("interrupted"))
        store.delete("r", "b")
        left = [record.sequence for record in store.read("r", kinds=(CHECKPOINT,))]
        assert 100 < len(left) < 140
        assert all(states[n] == state_of(store, "r", n) for n in left)

    def test_a_chain_with_much_between_its_links_is_read_whole(self, store: Store) -> None:
        """Small records, and one link read after another that was not the one before."""
        token, n = begin(store, "r"), 0
        for turn in range(20, 32):
            write(store, token, checkpoint("r", n + 1, "large", visit=n + 1, state=chat(turn)))
            small = [checkpoint("r", k, "small", visit=k) for k in range(n + 2, n + 32)]
            write(store, token, *small)
            n += 31
        assert all(chat(turn) == state_of(store, "r", 1 + 31 * (turn - 20)) for turn in range(31, 19, -1))
        states = [record.state() for record in store.read("r", node_id="large")]
        assert [chat(turn) for turn in range(20, 32)] == states

    def test_a_thinned_run_keeps_its_states(self, store: Store) -> None:
        """`prune(keep_last=)` leaves whole what it leaves."""
        token = begin(store, "r")
        talk(store, token, 1, 60)
        write(store, token, release=Release("finished"))
        store.prune(keep_last=2)
        assert list(range(55, 61)) == [r.sequence for r in store.read("r", kinds=(CHECKPOINT,))]
        assert all(chat(n) == state_of(store, "r", n) for n in range(60, 54, -1))
        store.prune(keep_last=1)
        assert all(chat(n) == state_of(store, "r", n) for n in (58, 59, 60))
        assert store.verify("r").problems == ()
        owner = take(store, "r").token
        assert owner is not None
        talk(store, owner, 62, 64)
        assert all(chat(n) == state_of(store, "r", n) for n in (58, 60, 62, 64))

    def test_what_was_read_before_a_deletion_is_not_built_upon(self, store: Store) -> None:
        """A claim that was made ready before fails; the next one builds on what is there."""
        token = begin(store, "r")
        talk(store, token, 1, 30)
        write(store, token, release=Release("interrupted"))
        store.latest("r")
        store.delete("r", "a")
        owner = take(store, "r").token
        assert owner is not None
        newest = store.latest("r").newest
        write(store, owner, checkpoint("r", newest + 1, "d", state=chat(31)))
        assert chat(31) == state_of(store, "r", newest + 1)
        store.delete("r", "c", force=True)
        assert "lost" == write(store, owner, checkpoint("r", newest + 3, "d", state=chat(32))).outcome
        assert chat(31) == state_of(store, "r", newest + 1)

    def test_an_override_and_a_replaced_state_come_back(self, store: Store) -> None:
        """States that have nothing to do with the one before."""
        token = begin(store, "r")
        talk(store, token, 1, 10)
        write(store, token, release=Release("interrupted"))
        latest = store.latest("r")
        state = chat(4)[::-1].translate(None, b'"\\{}[]').join((b'{"x":"', b'"}'))
        text = state.decode("ascii", "ignore").encode()
        record = owner("r", 11, latest.row.epoch + 1, node_id="b", state=text)
        taken = take(store, "r", record=record).token
        assert taken is not None
        talk(store, taken, 12, 13)
        write(store, taken, checkpoint("r", 14, "d", state=text))
        assert [text, chat(12), chat(13), text] == [state_of(store, "r", n) for n in (11, 12, 13, 14)]

    def test_a_large_run_moves_whole(self, store: Store) -> None:
        """Export and import give the same run again, byte for byte."""
        token = begin(store, "r")
        talk(store, token, 1, 50)
        write(store, token, release=Release("interrupted"))
        exported = store.export("r")
        before = store.stats().size
        store.import_run(exported, run_id="copy")
        assert not getattr(store, "keeps_differences", False) or store.stats().size < 3 * before
        assert [r.state() for r in store.read("r")] == [r.state() for r in store.read("copy")]
        store.delete_run("r")
        store.import_run(exported)
        again = take(store, "r").token
        assert again is not None
        talk(store, again, 52, 53)
        assert all(chat(n) == state_of(store, "r", n) for n in (1, 25, 50, 53))


def json_state(envelope: bytes) -> bytes:
    """Return the state in an envelope, as it was encoded."""
    begin_at = envelope.index(b'"state":') + len(b'"state":')
    return envelope[begin_at:-1]
