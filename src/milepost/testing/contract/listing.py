"""Lists of runs, and the statements that users add to an append."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import (
    CheckpointIntegrityError,
    CheckpointNotFoundError,
    OptionError,
    RunNotFoundError,
    StatementError,
)
from milepost.model.info import RunFailure
from milepost.model.record import FAILURE, FINISH, format_time, make_record
from milepost.store import Append, Release, Statement, Store, Token
from milepost.testing.clock import FakeClock
from milepost.testing.contract.processes import at_once
from milepost.testing.contract.subject import StoreUnderTest, requires
from milepost.testing.journals import begin, checkpoint, failure, finish, take, whole, work, write
from milepost.testing.tables import for_each, trying

# -- Listing, exporting and verifying: pages, filters, damaged records, and that nothing stays open meanwhile


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

    def test_a_failed_run_tells_its_error(self, store: Store, clock: FakeClock) -> None:
        """A failed run's `error` is given: by `get_run` with its traceback, by a listing with its first line."""
        said = {"error_type": "ValueError", "message": "no\nnever", "traceback": "Traceback", "epoch": 1}
        for run_id, node_ids in (("by a node", ["a"]), ("by itself", list[str]())):
            at = format_time(clock.time())
            ends = [
                *(make_record(run_id, 1, at, FAILURE, node_id, fields={"final": True, **said}) for node_id in node_ids),
                make_record(run_id, 1 + len(node_ids), at, FINISH, fields={"status": "failed", **said}),
            ]
            write(store, begin(store, run_id), *ends, release=Release("failed", "because"))
            node_id = "".join(node_ids)
            assert RunFailure("ValueError", "no\nnever", node_id, "Traceback") == store.get_run(run_id).info.error
            assert RunFailure("ValueError", "no", node_id, "") == store.list_runs(limit=1)[0].error
        claimed = take(store, "by itself")
        assert claimed.token is not None
        store.release(claimed.token, Release("failed", "nobody knows why"))
        assert None is store.get_run("by itself").info.error

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

    @for_each(
        "wrong",
        [
            {"limit": 1.5},
            {"limit": True},
            {"limit": "5"},
            {"flow": 5},
            {"updated_before": 5},
            {"updated_after": "2026"},
            {"created_before": 5},
            {"run_id_prefix": 5},
            {"after": 5},
            {"tags": {1: "a"}},
            {"tags": ["a"]},
        ],
    )
    def test_a_filter_of_another_type_is_a_type_error(self, store: Store, wrong: dict[str, Any]) -> None:
        """TypeError for a value of another type, on every store alike."""
        with pytest.raises(TypeError):
            store.list_runs(**wrong)

    @for_each("name", ["updated_before", "updated_after", "created_before", "created_after"])
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

    def test_runs_are_counted_up_to_a_limit(self, store: Store) -> None:
        """Count the runs that match all filters, up to `limit`; the default of a user's own store counts the same."""
        for n in range(7):
            token = begin(store, f"r{n}", flow="odd" if n % 2 else "even", tags={"half": str(n % 2), "env": "test"})
            if n < 5:
                store.release(token, Release("failed" if n < 3 else "finished"))
        asked: list[tuple[int, dict[str, Any]]] = [
            (7, {}),
            (3, {"flow": "odd"}),
            (0, {"flow": "none"}),
            (3, {"status": "failed"}),
            (5, {"status": ["failed", "finished"]}),
            (2, {"status": "running"}),
            (5, {"status": ["running", "failed"]}),
            (7, {"status": ["running", "failed", "dead", "finished"]}),
            (0, {"status": "dead"}),
            (0, {"status": []}),
            (2, {"status": "failed", "flow": "even"}),
            (3, {"tags": {"half": "1"}}),
            (1, {"tags": {"half": "1", "env": "test"}, "status": "failed"}),
            (0, {"tags": {"half": "1", "env": "prod"}}),
            (2, {"limit": 2}),
            (2, {"limit": 2, "status": ["finished", "failed", "running"]}),
            (0, {"flow": "\ud800"}),
            (7, {"limit": 10**30}),
        ]
        for count, filters in asked:
            assert count == store.count_runs(**filters) == Store.count_runs(store, **filters), filters
        for wrong in ({"limit": 1.5}, {"flow": 5}, {"tags": {1: "a"}}):
            with pytest.raises(TypeError):
                store.count_runs(**wrong)
        with pytest.raises(ValueError, match="limit"):
            store.count_runs(limit=0)

    @requires(is_shared_between_processes=True, lease_has_end=True)
    def test_dead_runs_are_counted_as_dead(self, store: Store, other: Store, clock: FakeClock) -> None:
        """`status` is one status or several, `dead` included."""
        begin(store, "quick", lease=10.0)
        begin(store, "slow", lease=100.0)
        clock.advance(50)
        assert [1, 1, 2] == [other.count_runs(status=status) for status in ("dead", "running", ["dead", "running"])]
        assert 1 == other.count_runs(status=("dead", "failed"))

    def test_flows_are_listed_by_name(self, store: Store) -> None:
        """The names of the flows that have runs, sorted, at most `limit`; also by the default of a user's own store."""
        assert () == store.flows()
        store.save("from outside", "a", b"1")
        for n, flow in enumerate(["b", "a", "ключ", "b", "c d", "it's"]):
            begin(store, f"r{n}", flow=flow)
        names = ("a", "b", "c d", "it's", "ключ")
        assert names == store.flows() == Store.flows(store)
        assert names[:2] == store.flows(limit=2) == Store.flows(store, limit=2)
        with pytest.raises(ValueError, match="limit"):
            store.flows(limit=0)

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

    def test_runs_are_listed_by_their_creation(self, store: Store, clock: FakeClock) -> None:
        """`created_before` and `created_after`, whatever has changed since."""
        start, half = clock.now(), timedelta(minutes=30)
        for name in ("old", "middle", "new"):
            begin(store, name, flow="even" if name == "middle" else "odd", status="ready")
            clock.advance(hours=1)
        store.save("old", "a", b"2")
        assert ["old"] == ids(store, created_before=start + half)
        assert ["new", "middle"] == ids(store, created_after=start + half)
        assert ["middle"] == ids(store, created_after=start + half, created_before=start + 3 * half)
        assert ["new"] == ids(store, created_after=start + half, flow="odd", status=["ready", "failed"])
        assert ["middle"] == ids(store, created_after=start + half, after="new")
        assert [] == ids(store, created_after=start, created_before=start)
        assert [] == ids(store, created_after=clock.now()) == ids(store, created_before=start)

    def test_runs_are_listed_by_the_beginning_of_their_ids(self, store: Store) -> None:
        """`run_id_prefix`: any text, compared and never run."""
        names = ["o", "o-1", "o-2", "O-1", "p", "o-\U0010ffff", "o%", *HOSTILE]
        for number, name in enumerate(names):
            begin(store, name, status="ready", tags={"half": str(number % 2)})
        for prefix in ("o", "o-", "o-1", "o-1x", "%", "_", "ключ", "$.", '$."x"', "", "\ud800", "o\0"):
            expected = [name for name in reversed(names) if name.startswith(prefix)]
            assert expected == ids(store, run_id_prefix=prefix), prefix
            assert expected == ids(store, run_id_prefix=prefix, flow="orders", status=["ready", "failed"]), prefix
        assert ["o-2"] == ids(store, run_id_prefix="o-2", tags={"half": "0"})
        assert ["o-1"] == ids(store, run_id_prefix="o-", after="o-2")
        assert ["o%"] == ids(store, run_id_prefix="o", limit=1)

    def test_listing_reads_no_state(self, store: Store) -> None:
        """No state is read: a damaged one hides neither its run nor its neighbours."""
        token = begin(store, "r")
        damaged = checkpoint("r", 2, "b")._replace(payload=b"\xff\x00 no json", visit=9)
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
        damaged = checkpoint("r", 2, "b")._replace(payload=b"", visit=9)
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
        """One JSON object a line: the run, its records in order as envelopes, its signals; with a key, a seal of them."""
        token = begin(store, "r", tags={"a": "b"})
        work(store, token, *"abcdefghij")
        write(store, token, failure("r", 11, "k"))
        store.put_signal("r", "go", b'{"ok":true}', signal_id="once")
        store.put_signal("r", "go", None)
        lines = store.export("r").splitlines()
        assert store.export_seals.is_keyed == (b'{"seal":' == lines[-1][:8])
        del lines[15:]
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
        assert 6 + store.export_seals.is_keyed == len(lines)
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


# -- Users' statements: they count with the records of their append, or not at all; other stores refuse them


BOOK = "milepost_contract_book"
"""A table of the user's own."""

CONTROL = [
    "COMMIT",
    "commit;",
    " \n\t;COMMIT",
    "-- a comment\nCOMMIT",
    "/* one */ /* two */ Commit",
    "END",
    "BEGIN",
    "BEGIN TRANSACTION",
    "ROLLBACK",
    "rollback to savepoint s",
    "SAVEPOINT s",
    "RELEASE s",
    "RELEASE SAVEPOINT s",
]
"""Statements that control a transaction in the SQL of any database."""


class StatementContract(StoreUnderTest):
    """What a user wants to count with the records, and only with them: executed after these in their transaction."""

    @requires(runs_statements=False)
    def test_a_store_that_executes_no_statements_refuses_them(self, store: Store) -> None:
        """Whether an append may have statements; one that may not have them refuses them with `OptionError`."""
        assert not store.runs_statements
        token = begin(store, "r")
        before = whole(store, "r")
        with pytest.raises(OptionError, match="executes no statements"):
            store.append([Append(token, (checkpoint("r", 1),), statements=(Statement("SELECT 1"),))])
        assert before == whole(store, "r")
        assert "written" == work(store, token, "a").outcome

    @pytest.fixture
    def book(self, store: Store, tmp_path: Path) -> Iterator[Path]:
        """Create the table, and yield the store's path."""
        self.query(tmp_path, f"DROP TABLE IF EXISTS {BOOK}")
        self.query(tmp_path, f"CREATE TABLE {BOOK} (id integer PRIMARY KEY, word text CHECK (word <> 'no'))")
        yield tmp_path
        self.query(tmp_path, f"DROP TABLE IF EXISTS {BOOK}")

    def _words(self, place: Path) -> list[Any]:
        return [word for (word,) in self.query(place, f"SELECT word FROM {BOOK} ORDER BY id")]  # noqa: S608

    def _enter(self, number: int, word: str = "word") -> Statement:
        mark = self.placeholder
        return Statement(f"INSERT INTO {BOOK} VALUES ({mark}, {mark})", (number, word))  # noqa: S608

    def _together(self, token: Token, sequence: int, *statements: Statement) -> Append:
        return Append(token, (checkpoint(token.run_id, sequence),), statements=statements)

    @requires(runs_statements=True)
    def test_statements_count_with_the_records_of_their_append(self, store: Store, book: Path) -> None:
        """It has a transaction of its own, in which they follow the fence and the records, in order."""
        assert store.runs_statements
        token = begin(store, "r")
        mark = self.placeholder
        changed = Statement(f"UPDATE {BOOK} SET word = {mark} WHERE id = {mark}", ("two", 1))  # noqa: S608
        verdicts = store.append([self._together(token, 1, self._enter(1, "one"), changed, self._enter(2, "more"))])
        assert [("written", None)] == verdicts
        assert ["two", "more"] == self._words(book)
        assert [0, 1] == [record.sequence for record in store.read("r")]
        assert "written" == work(store, token, "a").outcome

    @requires(runs_statements=True)
    def test_statements_count_with_the_end_of_a_run(self, store: Store, book: Path) -> None:
        """Records of one run that are written together, with the release and the tags."""
        token = begin(store, "r")
        last = Append(token, (finish("r", 1),), Release("finished"), {"k": "v"}, (self._enter(1),))
        assert ["written"] == [verdict.outcome for verdict in store.append([last])]
        assert ["word"] == self._words(book)
        info = store.get_run("r").info
        assert ("finished", {"k": "v"}) == (info.status, dict(info.tags))

    @requires(runs_statements=True)
    @pytest.mark.parametrize("failing", ["again", "check", "no such table", "nonsense", "too few", "unknown type"])
    def test_a_statement_that_fails_undoes_all_of_its_append(self, store: Store, book: Path, failing: str) -> None:
        """`StatementError`: one failed, and nothing was written."""
        token = begin(store, "r")
        mark = self.placeholder
        bad = {
            "again": self._enter(1),
            "check": self._enter(2, "no"),
            "no such table": Statement("INSERT INTO milepost_contract_nowhere VALUES (1)"),
            "nonsense": Statement("INSERT nonsense"),
            "too few": Statement(f"INSERT INTO {BOOK} VALUES ({mark}, {mark})", (2,)),  # noqa: S608
            "unknown type": Statement(f"INSERT INTO {BOOK} VALUES ({mark}, 'x')", (object(),)),  # noqa: S608
        }[failing]
        before = whole(store, "r")
        ended = Append(token, (finish("r", 1),), Release("finished"), {"k": "v"}, (self._enter(1), bad))
        with pytest.raises(StatementError) as caught:
            store.append([ended])
        assert isinstance(caught.value.__cause__, Exception)
        assert bad.sql == caught.value.sql
        assert before == whole(store, "r")
        assert [] == self._words(book)
        assert ["written"] == [verdict.outcome for verdict in store.append([self._together(token, 1, self._enter(1))])]
        assert ["word"] == self._words(book)

    @requires(runs_statements=True)
    def test_a_statement_may_not_control_the_transaction(self, store: Store, book: Path) -> None:
        """`StatementError`: one is none that may stand in a transaction, and nothing was written."""
        token = begin(store, "r")
        work(store, token, "a")  # so that the store has sent its own statements over the connection before
        before = whole(store, "r")
        for control in CONTROL:
            with trying(control=control), pytest.raises(StatementError):
                store.append([self._together(token, 2, self._enter(1), Statement(control), self._enter(2))])
            assert before == whole(store, "r")
            assert [] == self._words(book)
        assert "written" == work(store, token, "b").outcome

    @requires(runs_statements=True)
    def test_a_text_is_one_statement(self, store: Store, book: Path) -> None:
        """One statement in the store's SQL."""
        token = begin(store, "r")
        one, two = (f"INSERT INTO {BOOK} VALUES ({values})" for values in ("1, 'a'", "2, 'b'"))  # noqa: S608
        for text in (f"{one}; {two}", f"{one}; COMMIT", "", " ; ", "-- nothing", "/* nothing */"):
            with pytest.raises(StatementError):
                store.append([self._together(token, 1, Statement(text))])
        assert [] == self._words(book)
        store.append([self._together(token, 1, Statement(f"{one};"))])
        assert ["a"] == self._words(book)

    @requires(runs_statements=True)
    def test_values_are_bound(self, store: Store, book: Path) -> None:
        """The values that are bound to its placeholders."""
        token = begin(store, "r")
        word = f"'); DROP TABLE {BOOK}; --"
        store.append([self._together(token, 1, self._enter(1, word), self._enter(2, "100%"))])
        assert [word, "100%"] == self._words(book)

    @requires(runs_statements=True)
    def test_without_the_token_none_is_executed(self, store: Store, book: Path) -> None:
        """With any other verdict than `written` none is executed."""
        token = begin(store, "r")
        newer = take(store, "r", takeover=True).token
        assert newer is not None
        late = self._together(token, 1, self._enter(1))
        assert ["lost"] == [verdict.outcome for verdict in store.append([late])]
        forged = self._together(newer._replace(nonce="no"), 2, self._enter(1))
        assert ["lost"] == [verdict.outcome for verdict in store.append([forged])]
        assert ["taken"] == [verdict.outcome for verdict in store.append([self._together(newer, 1, self._enter(1))])]
        assert ["gap"] == [verdict.outcome for verdict in store.append([self._together(newer, 9, self._enter(1))])]
        store.request_cancel("r", "enough")
        refused = Append(newer, (finish("r", 2),), Release("finished"), statements=(self._enter(1),))
        assert ["refused"] == [verdict.outcome for verdict in store.append([refused])]
        assert [] == self._words(book)
        assert ("written", "enough") == store.append([self._together(newer, 2, self._enter(1))])[0]
        assert ["word"] == self._words(book)

    @requires(runs_statements=True)
    def test_an_append_with_statements_is_a_batch_of_its_own(self, store: Store, book: Path) -> None:
        """An append with statements is a batch of its own (else ValueError)."""
        mine, yours = begin(store, "mine"), begin(store, "yours")
        with pytest.raises(ValueError, match="batch of its own"):
            store.append([self._together(mine, 1, self._enter(1)), Append(yours, (checkpoint("yours", 1),))])
        assert [] == self._words(book)
        assert [0, 0] == [store.get_run(run_id).info.sequence for run_id in ("mine", "yours")]

    @requires(runs_statements=True)
    def test_a_failing_statement_undoes_nothing_of_other_threads(self, store: Store, book: Path) -> None:
        """It has a transaction of its own: one append's fate does not touch another's."""
        tokens = [begin(store, f"r{number}") for number in range(12)]

        def add(number: int) -> list[str]:
            token = tokens[number]
            outcomes: list[str] = []
            for sequence in range(1, 6):
                if number % 3 == 0:
                    outcomes.append(write(store, token, checkpoint(token.run_id, sequence)).outcome)
                    continue
                key = 1000 * number + sequence
                statements = (self._enter(key), self._enter(key)) if number % 3 == 1 else (self._enter(key),)
                try:
                    outcomes.append(store.append([self._together(token, sequence, *statements)])[0].outcome)
                except StatementError:
                    outcomes.append("failed")
                    write(store, token, checkpoint(token.run_id, sequence))
            return outcomes

        outcomes = at_once(add, range(12))
        assert [["failed" if number % 3 == 1 else "written"] * 5 for number in range(12)] == outcomes
        assert ["word"] * 20 == self._words(book)
        assert [5] * 12 == [store.get_run(token.run_id).info.sequence for token in tokens]
