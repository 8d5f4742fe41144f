"""The link of the record before, where it is not known, damaged, or another process's business."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from milepost import END, Engine, Graph, MemoryStore, RunInfo, SQLiteStore
from milepost.model.record import CHECKPOINT, START, make_record
from milepost.model.seal import link_of
from milepost.store import Append, NewRun, Release

KEY = {"signing_key": {"s": b"signing key, 24 bytes..."}}
graph = Graph(dict).add_node("n", lambda state: state).add_edge("n", END).set_entry("n").compile("one")


def record(sequence: int, kind: str = CHECKPOINT):
    return make_record("r", sequence, "2026-01-01T00:00:00.000000Z", kind, "n", sequence, b"{}", {"epoch": 1})


def test_an_owner_whose_link_is_not_known_goes_on_in_memory_too() -> None:
    with SQLiteStore(":memory:") as store:
        token = store.create(NewRun("r", "one", "0" * 16, record(0, START), 600.0, {}))
        store.put_signal("r", "early", b"1")
        (refused,) = store.append([Append(token, (), Release("waiting", signals=0))])
        (verdict,) = store.append([Append(token, (record(1),))])
    assert ("refused", "written") == (refused.outcome, verdict.outcome)


@pytest.mark.parametrize("ending", ['"n":1,"run_id":"x"', '"old","next_node":"transfer_money","z":"'])
def test_a_damaged_header_gives_no_text_to_the_next_one(tmp_path: Path, ending: str) -> None:
    with SQLiteStore(tmp_path / "runs.db", **KEY) as store:
        graph.run({}, store=store, run_id="r")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
        header = '{"version":1,"seal":' + ending
        connection.execute("UPDATE records SET header = ? WHERE sequence = 2", (header,))
        connection.commit()
    with SQLiteStore(tmp_path / "runs.db", **KEY) as store:
        store.save("r", "n", b'{"a":1}')
        newest = store.read("r")[-1]
    assert "next_node" not in json.loads((newest.header or b"") + b"}").get("prev", "")
    assert link_of(header.encode()) == json.loads((newest.header or b"") + b"}")["prev"]


def test_verbs_for_many_runs_ask_a_store_of_ones_own_for_what_it_knows() -> None:
    class Known(MemoryStore):
        def list_runs(self, *, flow=None, status=None, tags=None, updated_before=None, limit=100, after=None):  # type: ignore[no-untyped-def, override]
            return super().list_runs(
                flow=flow, status=status, tags=tags, updated_before=updated_before, limit=limit, after=after
            )

    with Engine(Known(), flows=[graph]) as engine:
        assert engine.requeue_all().done == ()


def test_a_pause_that_cannot_be_proven_counts_all_the_same(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "runs.db", **KEY) as store:
        store.pause_schedule("weekly", by="bea")
    for keys in ({}, {"signing_key": {"t": b"another key of 24 bytes."}}):
        with SQLiteStore(tmp_path / "runs.db", **keys) as store:
            assert [("weekly", None)] == [(name, pause.by) for name, pause in store.paused_schedules().items()]
    with SQLiteStore(tmp_path / "runs.db", **KEY) as store:
        assert "bea" == store.paused_schedules()["weekly"].by


def test_a_page_that_is_full_skips_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.stores.base.store.MOST_WALKED", 18)
    monkeypatch.setattr("milepost.stores.base.store._PAGE", 10)
    with MemoryStore() as store, Engine(store, flows=[graph]) as engine:
        for n in range(30):
            run_id = f"r{n:02}"
            engine.start(graph, {}, run_id=run_id)
            if 9 < n < 17:
                engine.run(graph, {}, run_id=run_id, if_exists="resume")
        found: list[RunInfo] = []
        after = None
        for _ in range(20):
            page = store.list_runs(status=["finished", "blocked"], limit=2, after=after)
            found += page
            after = page.stopped_after or (page[-1].run_id if page else None)
            if not page and after is None:
                break
    assert [f"r{n}" for n in range(16, 9, -1)] == [info.run_id for info in found]


def test_a_file_in_a_folder_that_cannot_be_written_is_read_anew_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStore(tmp_path / "runs.db") as store:
        graph.run({}, store=store, run_id="first")
    # The user of these tests may be root, who may write everywhere.
    monkeypatch.setattr("milepost.stores.sqlite.store.os.access", lambda path, mode: False)
    with SQLiteStore(tmp_path / "runs.db", read_only=True) as looking:
        assert ["first"] == [info.run_id for info in looking.list_runs()]
        with SQLiteStore(tmp_path / "runs.db") as store:
            graph.run({}, store=store, run_id="second")
            assert ["second", "first"] == [info.run_id for info in looking.list_runs()]
        assert ["second", "first"] == [info.run_id for info in looking.list_runs()]
