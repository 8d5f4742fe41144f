"""The journal: the start of a run, the records that an append adds, and that all of them are read as they were written."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from milepost.errors import RunExistsError, RunNotFoundError
from milepost.model.info import Wait
from milepost.model.process import this_process
from milepost.model.record import (
    CHECKPOINT,
    FAILURE,
    FINISH,
    ITEMS,
    REPLY,
    ROLLBACK,
    ROUTE,
    START,
    WAIT,
    Record,
    make_record,
)
from milepost.store import Append, Release, Store
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, failure, finish, new_run, take, whole, work, write

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

    @pytest.mark.parametrize("size", [1, 1023, 1024, 4096, 100_000, 1024 * 1024, 1024 * 1024 + 1, 3_000_000])
    @pytest.mark.parametrize("compressing", [False, True])
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
    """Return the parts of a record that must be read as written; only the seal is the store's own."""
    fields = record.fields()
    fields.pop("seal", None)
    return (record.sequence, record.kind, record.node_id, record.visit, record.size, fields, record.state())
