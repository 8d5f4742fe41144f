"""Listing, exporting and verifying: pages, filters, damaged records, and that nothing stays open meanwhile."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from milepost.errors import (
    CheckpointIntegrityError,
    CheckpointNotFoundError,
    DeserializeStateError,
    OptionError,
    RunNotFoundError,
)
from milepost.model.record import CHECKPOINT, format_time, make_record
from milepost.store import Release, Store
from milepost.testing.clock import FakeClock
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, failure, take, work, write

HOSTILE = ("k') OR 2>1 --", "a.b", '$."x"', "it's", '"', "\\", "%", "_", "ключ", "[0]", "?")


def ids(store: Store, **filters: Any) -> list[str]:
    """Return the run ids of a page."""
    return [info.run_id for info in store.list_runs(**filters)]


class ListingContract(StoreUnderTest):
    """A page of runs by creation, newest first."""

    def test_runs_are_listed_newest_first(self, store: Store, clock: FakeClock) -> None:
        """A page of runs by creation, newest first."""
        names = [f"r{n}" for n in (3, 1, 2, 9, 0, 7, 5, 8, 4, 6)]
        for name in names:
            begin(store, name)
            clock.advance(1)
        assert "claimed" == take(store, "r3", takeover=True).outcome
        assert names[::-1] == ids(store)
        assert [store.get_run(name).info for name in names[::-1]] == store.list_runs()
        assert names[::-1][:4] == ids(store, limit=4)

    @pytest.mark.parametrize("step", [0, 1])
    def test_pages_show_every_run_once(self, store: Store, clock: FakeClock, step: int) -> None:
        """`after` is the run id of the last one seen; runs made at the same time included."""
        names = {f"r{n}" for n in range(25)}
        for name in sorted(names):
            store.save(name, "a", b"1")
            clock.advance(step)
        seen, page = list[str](), ids(store, limit=7)
        while page:
            seen += page
            store.save(page[0], "b", b"in between")
            page = ids(store, limit=7, after=page[-1])
        assert (25, names) == (len(seen), set(seen))

    def test_a_run_that_is_deleted_at_the_end_of_a_page_hides_none(self, store: Store) -> None:
        """That run may have been deleted since, if this store object gave the page that it ended."""
        for n in range(7):
            store.save(f"r{n}", "a", b"1")
        seen, page = list[str](), ids(store, limit=2)
        while page:
            seen += page
            store.delete_run(page[-1])
            if page[-1] == "r3":
                store.save("r3", "a", b"made again")
            page = ids(store, limit=2, after=page[-1])
        assert ["r6", "r5", "r4", "r3", "r2", "r1", "r0"] == seen
        assert ["r3", "r6", "r4", "r2"] == ids(store)

    def test_a_page_after_a_run_that_was_never_seen_is_refused(self, store: Store) -> None:
        """Of another one that is not there nobody knows what comes after it: `RunNotFoundError`."""
        store.save("r", "a", b"1")
        with pytest.raises(RunNotFoundError, match="never"):
            store.list_runs(after="never")

    def test_a_clock_that_was_ahead_changes_no_order(self, store: Store, clock: FakeClock) -> None:
        """A page of runs by creation, newest first, whatever the clock said."""
        for name, day in (("first", 2), ("second, a week ahead", 9), ("third", 3)):
            clock.set(clock.now().replace(day=day))
            begin(store, name, status="ready")
        assert ["third", "second, a week ahead", "first"] == ids(store)
        assert ["first"] == ids(store, after="second, a week ahead")
        assert ["first"] == [token.run_id for token, _ in store.claim_due(["orders"], 1)]

    def test_a_page_has_at_most_100_runs_unless_asked(self, store: Store) -> None:
        """`limit`: 100."""
        for n in range(103):
            store.save(f"r{n}", "a", b"")
        assert (100, 103) == (len(store.list_runs()), len(store.list_runs(limit=1000)))

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_limit_below_1_is_refused(self, store: Store, limit: int) -> None:
        """ValueError if `limit` is below 1."""
        with pytest.raises(ValueError, match="limit"):
            store.list_runs(limit=limit)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"limit": 1.5},
            {"limit": True},
            {"limit": "5"},
            {"flow": 5},
            {"updated_before": 5},
            {"updated_after": "2026"},
            {"after": 5},
            {"tags": {1: "a"}},
            {"tags": ["a"]},
        ],
        ids=str,
    )
    def test_a_filter_of_another_type_is_a_type_error(self, store: Store, wrong: dict[str, Any]) -> None:
        """TypeError for a value of another type, on every store alike."""
        with pytest.raises(TypeError):
            store.list_runs(**wrong)

    @pytest.mark.parametrize("name", ["updated_before", "updated_after"])
    def test_a_time_without_a_zone_is_refused(self, store: Store, clock: FakeClock, name: str) -> None:
        """`OptionError` for a time without a zone."""
        filters: dict[str, Any] = {name: clock.now().replace(tzinfo=None)}
        with pytest.raises(OptionError, match=name):
            store.list_runs(**filters)

    def test_numbers_that_are_none_are_refused(self, store: Store) -> None:
        """TypeError for numbers that are no int, ValueError for a `limit` below 1."""
        store.save("r", "a", b"1")
        for wrong in (True, 1.5, 2.0, "1", b"1", float("nan"), float("inf")):
            reads: tuple[Callable[[Any], object], ...] = (
                lambda n: store.read("r", after=n),
                lambda n: store.read("r", before=n),
                lambda n: store.read("r", limit=n),
                lambda n: store.latest("r", before=n),
                lambda n: store.load("r", "a", n),
                lambda n: store.signals("r", after=n),
                lambda n: store.request_cancel("r", sequence=n),
            )
            for read in reads:
                with pytest.raises(TypeError):
                    read(wrong)
        for limit in (0, -1):
            with pytest.raises(ValueError, match="limit"):
                store.read("r", limit=limit)
        with pytest.raises(TypeError):
            store.read("r", kinds="checkpoint")
        with pytest.raises(TypeError):
            store.read("r", node_id=5)  # type: ignore[arg-type]

    @pytest.mark.parametrize("far", [2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30], ids=str)
    def test_numbers_beyond_all_that_there_is_are_numbers(self, store: Store, far: int) -> None:
        """Nothing is found beyond the end or before the beginning; a bound there leaves nothing out."""
        store.save("r", "a", b"1")
        store.put_signal("r", "go", None)
        for number in (far, -far):
            with pytest.raises(CheckpointNotFoundError):
                store.load("r", "a", number)
        whole, signals = store.read("r"), store.signals("r")
        assert [] == store.read("r", after=far) == store.read("r", before=-far)
        assert [] == store.signals("r", after=far)
        assert whole == store.read("r", after=-far) == store.read("r", before=far) == store.read("r", limit=far)
        assert signals == store.signals("r", after=-far)
        assert store.latest("r") == store.latest("r", before=far)

    def test_a_limit_may_be_any_number_and_a_filter_any_text(self, store: Store) -> None:
        """A limit has no upper bound; text that no store keeps matches nothing."""
        store.save("r", "a", b"1")
        assert ["r"] == ids(store, limit=10**30)
        assert [] == ids(store, flow="\ud800")
        assert [] == ids(store, status="\ud800")
        assert [] == ids(store, tags={"\ud800": "x"})
        assert [] == store.read("r", node_id="\ud800")

    def test_runs_are_listed_by_flow_and_status(self, store: Store, clock: FakeClock) -> None:
        """`status` is one or several."""
        for n, status in enumerate(("finished", "failed", "waiting", "interrupted", "cancelled", "blocked", "ready")):
            store.release(begin(store, status, flow="even" if n % 2 == 0 else "odd"), Release(status))
            clock.advance(1)
        begin(store, "running", flow="odd")
        assert ["failed"] == ids(store, status="failed")
        assert ["running", "failed"] == ids(store, status=["failed", "running"])
        assert ["running", "failed"] == ids(store, status=(status for status in ("running", "failed", "dead")))
        assert ["ready", "cancelled", "waiting", "finished"] == ids(store, flow="even")
        assert ["cancelled"] == ids(store, flow="even", status={"cancelled", "failed"})
        assert [] == ids(store, status=[])
        assert [] == ids(store, status="dead")
        assert [] == ids(store, flow="Even")
        assert ["blocked"] == ids(store, flow="odd", limit=1, after="running")

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_dead_runs_are_listed_as_dead(self, store: Store, other: Store, clock: FakeClock) -> None:
        """`status` is one or several, `dead` included: a running one whose lease has ended."""
        begin(store, "quick", lease=10.0)
        begin(store, "slow", lease=100.0)
        clock.advance(50)
        assert (["quick"], ["slow"]) == (ids(other, status="dead"), ids(other, status="running"))
        assert {"quick", "slow"} == set(ids(other, status=["dead", "running"]))
        assert {"quick": "dead", "slow": "running"} == {info.run_id: info.status for info in other.list_runs()}

    def test_runs_are_listed_by_tags(self, store: Store) -> None:
        """`tags` must all match."""
        begin(store, "both", tags={"team": "blue", "env": "prod"})
        begin(store, "one", tags={"team": "blue"})
        begin(store, "none")
        assert {"both", "one"} == set(ids(store, tags={"team": "blue"}))
        assert ["both"] == ids(store, tags={"env": "prod", "team": "blue"})
        assert [] == ids(store, tags={"team": "Blue"})
        assert [] == ids(store, tags={"team": "blue", "env": "test"})
        assert 3 == len(ids(store, tags={}))

    @pytest.mark.parametrize("text", HOSTILE)
    def test_a_filter_is_data(self, store: Store, text: str) -> None:
        """Values are compared, never run: `tags`, `flow`, `status` and `after` alike."""
        begin(store, "plain", tags={"k": "v", "a": "b"})
        begin(store, "key", tags={text: "v"})
        begin(store, "value", tags={"k": text})
        begin(store, "flow", flow=text)
        assert ["key"] == ids(store, tags={text: "v"})
        assert ["value"] == ids(store, tags={"k": text})
        assert ["flow"] == ids(store, flow=text)
        assert [] == ids(store, tags={text: text})
        assert [] == ids(store, status=text)
        assert {text: "v"} == dict(store.get_run("key").info.tags)

    def test_runs_are_listed_by_their_last_change(self, store: Store, clock: FakeClock) -> None:
        """`updated_before` and `updated_after`, whatever zone they are given in."""
        start = clock.now()
        for name in ("old", "touched", "new"):
            store.save(name, "a", b"1")
            clock.advance(hours=1)
        store.save("touched", "b", b"2")
        half = timedelta(minutes=30)
        assert ["old"] == ids(store, updated_before=start + half)
        assert {"new", "touched"} == set(ids(store, updated_after=start + half))
        assert ["new"] == ids(store, updated_after=start + half, updated_before=start + 5 * half)
        assert [] == ids(store, updated_after=clock.now() + half)

    def test_listing_reads_no_state(self, store: Store) -> None:
        """No state is read: a damaged one hides neither its run nor its neighbours."""
        token = begin(store, "r")
        damaged = checkpoint("r", 2, "b")._replace(payload=b"\xff\x00 no json")
        assert "written" == write(store, token, checkpoint("r", 1, "a"), damaged, checkpoint("r", 3, "c")).outcome
        begin(store, "s")
        assert {"r", "s"} == set(ids(store))
        assert ["a", "b", "c"] == [info.node_id for info in store.list("r")]
        assert ["a", "b", "c"] == [info.node_id for info in store.history("r")]
        assert [0, 1, 2, 3] == [record.sequence for record in store.read("r")]
        assert 3 == store.latest("r").newest
        assert {"n": 6} == json.loads(store.load("r", "a"))["state"]
        with pytest.raises(CheckpointIntegrityError):
            store.seals.check("r", store.read("r")[2])

    def test_a_damaged_newest_record_leaves_the_rest_readable(self, store: Store) -> None:
        """Nothing is checked on reading: `seals.check` does that."""
        token = begin(store, "r")
        damaged = checkpoint("r", 2, "b")._replace(payload=b"", packing="zstd")
        assert "written" == write(store, token, checkpoint("r", 1, "a"), damaged).outcome
        assert ["r"] == ids(store)
        point = store.latest("r").point
        assert point is not None
        assert 2 == point.sequence
        previous = store.latest("r", before=2).point
        assert previous is not None
        assert (1, b'{"n":6}') == (previous.sequence, previous.state())
        assert not store.verify("r").ok

    def test_a_loop_over_a_listing_may_save_and_load(self, store: Store) -> None:
        """Nothing stays locked or open on return."""
        for n in range(10):
            store.save("r", f"n{n}", b"%d" % n)
            begin(store, f"owned {n}")
        for listing in (store.list("r"), store.history("r"), store.list_runs(), store.read("r")):
            for n, _ in enumerate(listing):
                store.save("r", f"more {n}", store.load("r", "n0"))
                if n == 5:
                    break
        iterator = iter(store.list("r"))
        next(iterator)
        store.delete("r", "n1")
        store.delete_run("owned 1", force=True)
        assert 15 == len(list(iterator))

    def test_a_loop_over_a_listing_blocks_no_other_writer(self, store: Store) -> None:
        """Nothing stays locked or open on return."""
        for n in range(10):
            store.save("r", f"n{n}", b"1")
        paused = [iter(store.list("r")), iter(store.history("r")), iter(store.list_runs()), iter(store.read("r"))]
        for iterator in paused:
            next(iterator)
        writer = threading.Thread(target=lambda: store.save("r", "by another thread", b"2"))
        writer.start()
        writer.join(10)
        assert not writer.is_alive()
        assert b"2" == store.load("r", "by another thread")

    @requires(is_shared_between_processes=True)
    def test_a_loop_over_a_listing_blocks_no_other_store_object(self, store: Store, other: Store) -> None:
        """Nothing stays locked or open on return."""
        for n in range(10):
            store.save("r", f"n{n}", b"1")
        for info in store.list("r"):
            other.save("r", info.node_id, b"2")
            other.save(f"of {info.node_id}", "a", store.load("r", info.node_id))
        assert 11 == len(ids(store))

    def test_an_export_has_one_object_a_line(self, store: Store) -> None:
        """One JSON object a line: the run, its records in order as envelopes, its signals."""
        token = begin(store, "r", tags={"a": "b"})
        work(store, token, *"abcdefghij")
        write(store, token, failure("r", 11, "k"))
        store.put_signal("r", "go", b'{"ok":true}', signal_id="once")
        store.put_signal("r", "go", None)
        lines = store.export("r").splitlines()
        assert 1 + 12 + 2 == len(lines)
        assert {dict} == {type(json.loads(line)) for line in lines}
        assert b'"orders"' in lines[0]
        envelopes = [json.loads(record.envelope()) for record in store.read("r")]
        assert envelopes == [json.loads(line) for line in lines[1:13]]
        assert [True, False] == [b'"once"' in line for line in lines[13:]]

    def test_an_export_carries_bytes_that_are_no_json(self, store: Store) -> None:
        """One JSON object a line, whatever was saved from outside."""
        for n, data in enumerate((b"", b"\xff\n\x00", b'{"a":\n1}', b"[1]", b'{"b":2}')):
            store.save("r", f"n{n}", data)
        lines = store.export("r").splitlines()
        assert 6 == len(lines)
        assert {dict} == {type(json.loads(line)) for line in lines}

    def test_an_export_carries_any_payload_of_a_signal_on_one_line(self, store: Store) -> None:
        """What is no JSON, or would not come back as the same bytes, stands in `data` as base64."""
        begin(store, "r")
        for payload in (b'{\n "a": 1\n}', b"\xffno json", b"[" * 5000, None):
            store.put_signal("r", "go", payload)
        lines = [json.loads(line) for line in store.export("r").splitlines()]
        signals = [line["signal"] for line in lines if "signal" in line]
        assert [{"a": 1}, None, None, None] == [signal["payload"] for signal in signals]
        assert [b'{\n "a": 1\n}', b"\xffno json", b"[" * 5000] == [
            base64.b64decode(signal["data"]) for signal in signals if "data" in signal
        ]

    def test_a_whole_run_is_verified(self, store: Store) -> None:
        """Check every digest, seal, number and gap of a run, changing nothing."""
        token = begin(store, "r")
        work(store, token, *"abcab")
        write(store, token, failure("r", 6, "k"))
        work(store, token, "d", release=Release("interrupted"))
        store.save("r", "e", b"\x00 from outside")
        store.delete("r", "b")
        take(store, "r", live=(("", 0, 1), ("", 10, None)))
        report = store.verify("r")
        assert (True, ()) == (report.ok, report.problems)

    @pytest.mark.parametrize(
        "damage",
        [
            {"payload": b'{"n":7}'},
            {"payload": None},
            {"payload": b""},
            {"node_id": "another"},
            {"visit": 2},
            {"header": b'{"version":1,"run_id":"r"'},
            {"header": b"{"},
            {"header": b"no json"},
        ],
        ids=str,
    )
    def test_a_damaged_record_is_found(self, store: Store, damage: dict[str, Any]) -> None:
        """Check every digest, seal, number and gap of a run: `problems`, one sentence each."""
        token = begin(store, "r")
        write(store, token, checkpoint("r", 1, "a"), checkpoint("r", 2, "b")._replace(**damage))
        work(store, begin(store, "sound"), "a")
        report = store.verify("r")
        assert not report.ok
        assert 1 <= len(report.problems)
        assert store.verify("sound").ok

    def test_verify_tells_of_a_state_that_no_export_can_hold(self, store: Store) -> None:
        """Each state must be compact JSON, which is all that an export holds; such a one fits its digest all the same."""
        for run_id, state in {"spaced": b'{"n": 6}', "doubled": b'{"n":6,"n":6}', "no json": b"no json"}.items():
            token, at = begin(store, run_id), format_time(store.clock.time())
            assert "written" == write(store, token, make_record(run_id, 1, at, CHECKPOINT, "a", state=state)).outcome
            (problem,) = store.verify(run_id).problems
            assert "the state of record 1 at node 'a'" in problem
            with pytest.raises(DeserializeStateError):
                store.import_run(store.export(run_id), run_id="copy")
