"""Keeping and forgetting: which records go, what real runs still can, and what an import believes."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from milepost import END, CompiledGraph, Graph, MemoryStore, MilepostError, SQLiteStore
from milepost.errors import (
    CheckpointIntegrityError,
    DeserializeStateError,
    NoCheckpointFoundError,
    OptionError,
    StoreError,
)
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
from milepost.model.seal import Seals
from milepost.model.upkeep import Retention
from milepost.store import Release, Store
from milepost.stores.base.prune import PruneRequest, Trace, surplus, trace_of
from milepost.testing import FakeClock
from milepost.testing.clock import fake_entropy
from milepost.testing.journals import begin, checkpoint, finish, take, work, write
from milepost.testing.tables import for_each

# -- which records go ------------------------------------------------------------------------------------------


def traces(*told: str) -> list[Trace]:
    """Records from 0 on: `kind node#visit`, a fork's branch behind `in`, the number of a point behind `of`."""
    made = []
    for sequence, text in enumerate(told):
        text, _, needs = text.partition(" of ")
        text, _, branch = text.partition(" in ")
        kind, _, visit_of = text.partition(" ")
        node_id, _, visit = visit_of.partition("#")
        made.append(Trace(sequence, kind, node_id, int(visit or 1), branch, int(needs) if needs else None))
    return made


def gone(keep_last: int, *told: str, live: Ranges = ()) -> list[str]:
    """What goes of the records that `told` describes."""
    return [told[sequence] for sequence in surplus(traces(*told), live, keep_last)]


def points(*visits: str) -> list[str]:
    return [f"{CHECKPOINT} {visit}" for visit in visits]


def test_start_end_and_owners_stay():
    told = [START, *points("a#1", "a#2"), OWNER, *points("a#3"), FINISH]
    assert points("a#1", "a#2") == gone(1, *told)


def test_nothing_goes_of_what_is_not_more():
    assert [] == gone(3, START, *points("a#1", "b#1", "a#2", "b#2", "a#3", "b#3"), FINISH)
    assert [] == surplus([], (), 1)


@for_each("kind", [FAILURE, ROUTE, ITEMS, WAIT, ROLLBACK])
def test_the_records_of_a_visit_go_with_it_and_no_others(kind: str):
    told = [START, *points("a#1"), f"{kind} a#1", *points("a#2"), f"{kind} a#2", f"{kind} ", f"{kind} a#3"]
    assert [*points("a#1"), f"{kind} a#1"] == gone(1, *told)


@pytest.mark.parametrize("kind", [WAIT, ITEMS, FAILURE])
def test_a_visit_under_way_stays(kind: str):
    """Without a checkpoint it is none of those that are counted."""
    assert points("m#1") == gone(1, START, *points("m#1", "m#2"), f"{kind} m#3", *points("other#1"))


def test_a_visit_that_was_given_up_goes_once_it_is_older_than_those_that_stay():
    told = [START, *points("a#1"), f"{FAILURE} a#2", *points("a#3"), f"{FAILURE} a#4", *points("a#5", "a#6")]
    assert [told[1], told[2], told[3], told[4]] == gone(2, *told)
    assert [told[1], told[2]] == gone(3, *told)


def test_a_reply_stays_so_that_its_signal_is_not_used_again():
    assert points("w#1") == gone(1, START, *points("w#1"), f"{REPLY} w#1", *points("w#2"))


def test_a_kind_that_is_not_known_stays():
    assert points("a#1") == gone(1, START, *points("a#1"), "novel a#1", *points("a#2"))


def test_the_newest_checkpoint_of_all_stays_for_the_count_of_crashes():
    told = [START, *points("a#1", "a#2", "a#3"), f"{FAILURE} a#4", OWNER]
    assert points("a#2") == gone(1, *told, live=(("", 0, 1), ("", 5, None)))


def test_an_override_keeps_the_point_that_it_amends():
    told = [START, *points("a#1", "a#2"), f"{OWNER} of 1", *points("a#3", "a#4")]
    assert points("a#2", "a#3") == gone(1, *told)
    assert points("a#1", "a#2") == gone(
        1, START, *points("a#1"), f"{OWNER} of 1", *points("a#2", "a#3"), live=(("", 3, None),)
    )


def test_an_end_keeps_its_result():
    assert points("a#2") == gone(1, START, *points("a#1", "a#2", "a#3"), f"{FINISH} of 1")


def test_a_fork_stays_whole_with_all_that_led_to_it():
    """Whoever goes on inside a fork needs its state, and what its other branches have done."""
    first = [
        *points("f#1"),
        f"{CHECKPOINT} x#1 in f#1/x",
        f"{CHECKPOINT} rare#1 in f#1/x",
        f"{CHECKPOINT} y#1 in f#1/y",
    ]
    second = [*points("f#2"), f"{CHECKPOINT} x#2 in f#2/x", f"{CHECKPOINT} y#2 in f#2/y"]
    third = [*points("f#3"), *(f"{CHECKPOINT} x#{n} in f#3/x" for n in range(3, 7)), f"{CHECKPOINT} y#3 in f#3/y/g#1/z"]
    told = [START, *first, *points("j#1"), *second, *points("j#2"), *third, *points("j#3")]
    assert [*points("j#1"), *second, *points("j#2")] == gone(1, *told)


def test_an_open_fork_stays_whole():
    told = [
        START,
        *points("f#1"),
        f"{CHECKPOINT} x#1 in f#1/x",
        f"{FAILURE} y#1 in f#1/y",
        f"{CHECKPOINT} x#2 in f#1/x",
    ]
    assert [] == gone(1, *told)


def test_a_node_in_a_sub_graph_keeps_the_state_around_it():
    told = [START, *points("a#1", "s/t/x#1", "a#2", "s/y#1", "a#3", "a#4")]
    assert points("a#3") == gone(1, *told)


def test_what_is_superseded_needs_nothing():
    told = [START, *points("a#1", "s/x#1", "a#2", "a#3")]
    assert points("a#1", "a#2") == gone(1, *told, live=(("", 0, 1), ("", 3, None)))


def test_a_trace_tells_what_the_header_does():
    made = make_record("r", 5, "2026-01-01T00:00:00.000000Z", FINISH, fields={"result": 4})
    assert Trace(5, FINISH, "", 1, "", 4) == trace_of(made)
    override = make_record("r", 6, "2026-01-01T00:00:00.000000Z", OWNER, state=b"{}", fields={"from": 3})
    assert (3, None) == (trace_of(override).needs, trace_of(override._replace(payload=None)).needs)
    branch = make_record("r", 7, "2026-01-01T00:00:00.000000Z", CHECKPOINT, "x", 2, b"{}", {"branch": "f#1/x"})
    assert Trace(7, CHECKPOINT, "x", 2, "f#1/x") == trace_of(branch)
    assert Trace(7, CHECKPOINT, "x", 2) == trace_of(branch._replace(header=b'{"branch" no json'))
    assert Trace(1, CHECKPOINT, "x", 2) == trace_of(Record(1, CHECKPOINT, "x", 2, 0, None, b'"branch"'))


# -- a long run ------------------------------------------------------------------------------------------------


@dataclass
class Log:
    lines: list[str] = field(default_factory=list)


def appending(steps: int, size: int) -> CompiledGraph[Log]:
    """A run of steps that each append so many bytes."""
    graph = Graph(Log).add_node("add", lambda log: Log([*log.lines, "x" * size]))
    graph.add_conditional_edge("add", lambda log: "add" if len(log.lines) < steps else END, ["add", END])
    return graph.set_entry("add").compile("log")


@pytest.mark.parametrize(("steps", "size"), [(40, 2000), pytest.param(400, 2000, marks=pytest.mark.slow)])
def test_a_long_run_is_thinned_at_its_end_and_leaves_nothing_when_it_is_deleted(tmp_path: Path, steps: int, size: int):
    clock, graph = FakeClock(), appending(steps, size)
    retention = Retention(older_than=timedelta(days=30), keep_last=3)
    with SQLiteStore(tmp_path / "runs.db", durability="normal", clock=clock, retention=retention) as store:
        result = graph.run(Log(), store=store, run_id="r")
        kept, data = store.history("r"), store.export("r")
        assert [steps - 2, steps - 1, steps] == [info.visit for info in kept]
        assert store.stats().size < 4 * kept[-1].size
        assert result == graph.resume(store, "r")
        for info in kept[:-1]:
            copy = MemoryStore()
            copy.import_run(data)
            assert result == graph.resume_from(copy, "r", "add", visit=info.visit)
            assert steps + 1 == next(i.visit for i in copy.history("r") if i.sequence > kept[-1].sequence)
            assert copy.verify("r").ok
        store.save("r", "by hand", b"1")
        graph.run(Log(["x"] * steps), store=store, run_id="s")
        clock.advance(days=31)
        graph.run(Log(["x"] * steps), store=store, run_id="t")
        assert ["t", "r"] == [info.run_id for info in store.list_runs()]
        store.put_signal("r", "go", b"1")
        store.delete_run("r")
        store.delete_run("t")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
        for table in ("runs", "records", "signals"):
            assert 0 == connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


# -- a store's retention ---------------------------------------------------------------------------------------


@for_each(
    "wrong", [{"older_than": -1}, {"older_than": "30d"}, {"keep_last": 0}, {"keep_last": True}, {"keep_last": 2.0}]
)
def test_a_retention_that_makes_no_sense_is_refused(wrong: dict[str, Any]):
    with pytest.raises(OptionError):
        Retention(**wrong)


def test_a_retention_is_checked_when_the_store_is_made(tmp_path: Path):
    wrong: Any = {"keep_last": 3}
    with pytest.raises(OptionError, match="retention"):
        MemoryStore(retention=wrong)
    with pytest.raises(OptionError, match="retention"):
        SQLiteStore(tmp_path / "runs.db", retention=wrong)
    assert [] == list(tmp_path.iterdir())
    assert Retention(86400.0) == Retention(timedelta(days=1))


def test_the_end_of_a_run_deletes_no_more_than_a_hundred_old_ones():
    clock = FakeClock()
    store = MemoryStore(clock=clock, retention=Retention(older_than=60))
    for n in range(250):
        write(store, begin(store, f"r{n}"), finish(f"r{n}", 1), release=Release("finished"))
    clock.advance(60)
    for left in (150, 50, 0, 0):
        store.tidy("r0")
        assert left == len(store)


def test_a_run_that_ended_well_does_not_fail_for_its_retention(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    graph = Graph(dict).add_node("a", lambda s: s).add_edge("a", END).set_entry("a").compile("one")
    with SQLiteStore(tmp_path / "runs.db", retention=Retention(keep_last=1, older_than=0)) as store:
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
            connection.execute("CREATE TRIGGER no BEFORE DELETE ON runs BEGIN SELECT raise(ABORT, 'not today'); END")
        with caplog.at_level(logging.WARNING, "milepost"):
            assert {"n": 1} == graph.run({"n": 1}, store=store, run_id="r")
        assert ["finished"] == [info.status for info in store.list_runs()]
    (told,) = caplog.records
    assert "not today" in told.getMessage()


def test_thinning_a_live_run_takes_a_twentieth_of_its_time_at_most():
    clock = FakeClock()

    class Slow(MemoryStore):
        """Finding out what goes takes a second."""

        found = 0

        def _surplus(self, *args: Any) -> list[int]:
            self.found += 1
            clock.advance(seconds=1)
            return super()._surplus(*args)

    store = Slow(clock=clock, retention=Retention(keep_last=2))
    token = begin(store, "r")
    for visit in range(1, 201):
        clock.advance(seconds=1)
        write(store, token, checkpoint("r", visit, "a", visit=visit))
        assert len(store.history("r")) <= 2 + 20
    assert 1 + 200 // 20 == store.found


def test_a_live_run_that_cannot_be_looked_through_goes_on(caplog: pytest.LogCaptureFixture):
    class Broken(MemoryStore):
        def _surplus(self, *args: Any) -> list[int]:
            raise StoreError("not today", op="read")

    store = Broken(retention=Retention(keep_last=1))
    token = begin(store, "r")
    with caplog.at_level(logging.WARNING, "milepost"):
        for visit in (1, 2):
            assert "written" == write(store, token, checkpoint("r", visit, "a", visit=visit)).outcome
    (told,) = caplog.records
    assert ("r", True) == (told.run_id, "not today" in told.getMessage())  # type: ignore[attr-defined]


def test_a_live_run_that_cannot_be_thinned_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with SQLiteStore(tmp_path / "runs.db", clock=FakeClock(), retention=Retention(keep_last=2)) as store:
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
            connection.execute("CREATE TRIGGER no BEFORE DELETE ON records BEGIN SELECT raise(ABORT, 'not today'); END")
        token = begin(store, "r")
        with caplog.at_level(logging.WARNING, "milepost"):
            for visit in range(1, 6):
                assert "written" == write(store, token, checkpoint("r", visit, "a", visit=visit)).outcome
        assert ([1, 2, 3, 4, 5], True) == ([info.visit for info in store.history("r")], store.verify("r").ok)
    (told,) = caplog.records
    assert ("r", True) == (told.run_id, "not today" in told.getMessage())  # type: ignore[attr-defined]


# -- in the way of pruning -------------------------------------------------------------------------------------


def ended(store: Store, run_id: str, passes: int = 3) -> None:
    token = begin(store, run_id)
    work(store, token, *("a" * passes))
    write(store, token, finish(run_id, passes + 1), release=Release("finished"))


def test_a_damaged_row_keeps_no_other_run_from_being_pruned(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with SQLiteStore(tmp_path / "runs.db") as store:
        for run_id in ("a", "bad", "c"):
            ended(store, run_id)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
            connection.execute("UPDATE runs SET tags = 'no json' WHERE run_id = 'bad'")
        with caplog.at_level(logging.WARNING, "milepost"):
            assert ("a", "c") == store.prune(keep_last=1).thinned
        assert {"bad"} == {record.run_id for record in caplog.records}  # type: ignore[attr-defined]
        assert 5 == len(store.read("bad"))
        with pytest.raises(StoreError, match="damaged"):
            store.get_run("bad")
        assert ("a", "bad", "c") == store.prune(older_than=0).deleted
        assert [] == store.list_runs()


def test_runs_that_go_while_others_are_looked_at_hide_none():
    """The next page begins at the time of the last run, not at the run."""
    store = MemoryStore()
    for n in range(800):
        store.save(f"r{n:03}", "a", b"1")
    seen = []
    for _, run_id in store._candidates(PruneRequest(frozenset({"interrupted"}), before=store.clock.time()), None):
        seen.append(run_id)
        if run_id == "r000":
            for n in range(270, 400):  # the end of the second page, and what follows
                store.delete_run(f"r{n}")
    gone = {f"r{n}" for n in range(270, 400)}
    assert {f"r{n:03}" for n in range(800)} - gone == set(seen) - gone
    assert len(seen) == len(set(seen))


def test_a_run_that_somebody_went_on_with_since_it_was_seen_is_not_deleted():
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    ended(store, "r")
    wish = PruneRequest(frozenset({"finished"}), before=clock.time())
    clock.advance(1)
    take(store, "r")
    assert not store._forget("r", wish)
    work(store, take(store, "r", takeover=True).token, "a", release=Release("finished"))
    assert not store._forget("r", wish)
    assert store._forget("r", PruneRequest(frozenset({"finished"}), before=clock.time()))
    assert 0 == len(store)


def test_a_run_that_is_thinned_while_it_is_verified_is_whole():
    """Each record is read with what it says of those before it."""
    store = MemoryStore()
    ended(store, "r", 600)

    class Thinning(Seals):
        def check(self, run_id: str, record: Record) -> bool:
            store.prune(keep_last=1)
            return super().check(run_id, record)

    store.seals = Thinning()
    assert store.verify("r").ok
    assert 1 == len(store.history("r"))


def test_a_gap_that_nobody_tells_of_is_found_in_a_thinned_run(tmp_path: Path):
    with SQLiteStore(tmp_path / "runs.db") as store:
        ended(store, "r", 10)
        store.prune(keep_last=3)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
            connection.execute("DELETE FROM records WHERE sequence = 9")
        report = store.verify("r")
    assert ("record 9 is missing, without a deletion that says so",) == report.problems


def test_a_resume_from_a_visit_that_is_pruned_meanwhile_goes_on_from_it_or_refuses(tmp_path: Path):
    """A claim that was made ready before fails: a resume never goes on from another point than the one it was asked for."""
    graph = Graph(list)
    graph.add_node("add", lambda trail: [*trail, len(trail)])
    graph.add_conditional_edge("add", lambda trail: "add" if len(trail) % 6 else END, ["add", END])
    flow = graph.set_entry("add").compile("trail")
    with SQLiteStore(tmp_path / "runs.db", durability="normal") as store:
        flow.run([], store=store, run_id="r")
        is_over = threading.Event()

        def thin() -> None:
            while not is_over.is_set():
                store.prune(keep_last=2)

        thinning = threading.Thread(target=thin)
        thinning.start()
        outcomes = set()
        try:
            for _ in range(60):
                visit = store.history("r")[0].visit
                try:
                    outcomes.add(tuple(flow.resume_from(store, "r", "add", visit=visit)))
                except MilepostError as error:
                    outcomes.add(type(error).__name__)
        finally:
            is_over.set()
            thinning.join()
        assert outcomes <= {tuple(range(6)), "NoCheckpointFoundError", "ResumeNodeCompletedError"}
        assert tuple(range(6)) in outcomes
        assert store.verify("r").ok


# -- what an import believes -----------------------------------------------------------------------------------


def test_no_changed_byte_of_a_record_comes_in():
    store, other = MemoryStore(), MemoryStore()
    work(store, begin(store, "r"), *"ab", release=Release("interrupted"))
    lines = store.export("r").split(b"\n")
    for number in range(1, 4):
        for place in range(0, len(lines[number]), 2):
            changed = bytearray(lines[number])
            changed[place] ^= 1
            with pytest.raises(DeserializeStateError, match=f"line {number + 1} of"):
                other.import_run(b"\n".join([*lines[:number], bytes(changed), *lines[number + 1 :]]))
    assert 0 == len(other)


def test_a_seal_that_was_made_with_a_key_is_proven_where_the_key_is():
    key, another = {"k": b"0123456789abcdef"}, {"other": b"fedcba9876543210"}
    with MemoryStore(signing_key=key) as store:
        work(store, begin(store, "r"), *"ab", release=Release("interrupted"))
        data = store.export("r")
    forged = data.replace(b'"next_node":"later"', b'"next_node":"other"', 1)
    with MemoryStore(signing_key=key) as store, pytest.raises(CheckpointIntegrityError, match="was changed"):
        store.import_run(forged)
    with MemoryStore(signing_key=another) as store, pytest.raises(CheckpointIntegrityError, match="key 'k'"):
        store.import_run(data)
    for options in ({"signing_key": key}, {"signing_key": {**another, **key}}, {}):
        with MemoryStore(**options) as store:
            store.import_run(data)
            assert store.verify("r").ok
            assert (b"hmac-sha256:other:" in store.export("r")) == ("other" in options.get("signing_key", {}))


def test_a_thousand_records_are_exported_and_imported_in_order():
    store, other = MemoryStore(entropy=fake_entropy), MemoryStore(entropy=fake_entropy)
    token = begin(store, "r")
    write(store, token, *(checkpoint("r", n, "a", visit=n) for n in range(1, 1001)), release=Release("finished"))
    other.import_run(store.export("r"))
    assert store.read("r") == other.read("r")
    assert all(b',"prev":"sha256:' in (record.header or b"") for record in other.read("r", after=0))


def test_a_node_whose_input_was_pruned_is_not_run_again_from_another():
    graph = Graph(list)
    graph.add_node("add", lambda trail: [*trail, len(trail)])
    graph.add_conditional_edge("add", lambda trail: "add" if len(trail) < 6 else END, ["add", END])
    flow, store = graph.set_entry("add").compile("trail"), MemoryStore()
    flow.run([], store=store, run_id="r")
    store.prune(keep_last=2)
    with pytest.raises(NoCheckpointFoundError, match="pruned"):
        flow.resume_from(store, "r", "add", visit=5, rerun=True)
    assert [*range(6)] == flow.resume_from(store, "r", "add", visit=6, rerun=True)


def test_a_pass_comes_to_an_end_while_runs_go_on_ending():
    clock = FakeClock()
    loop = Graph(dict).add_node("lap", lambda state: {"n": state["n"] + 1})
    laps = (
        loop.add_conditional_edge("lap", lambda state: "lap" if state["n"] < 5 else END, ["lap", END])
        .set_entry("lap")
        .compile("laps")
    )

    class Busy(MemoryStore):
        """While one run is thinned, another one ends."""

        thinned = 0

        def _thin(self, run_id: str, wish: PruneRequest) -> int:
            self.thinned += 1
            assert self.thinned < 50, "there is no end"
            clock.advance(seconds=2)
            laps.run({"n": 0}, store=self, run_id=f"later-{self.thinned}")
            return super()._thin(run_id, wish)

    store = Busy(clock=clock)
    for number in range(3):
        laps.run({"n": 0}, store=store, run_id=f"r-{number}")
    pruned = store.prune(older_than=timedelta(days=1), keep_last=2)
    assert {"r-0", "r-1", "r-2"} == set(pruned.thinned)
    assert 3 <= store.thinned <= 4
