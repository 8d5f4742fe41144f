"""The timeline of a run, from records made by hand: seconds since the run's start stand before each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from milepost.model.record import (
    CHECKPOINT,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    REPLY,
    ROLLBACK,
    START,
    WAIT,
    Record,
    make_record,
)
from milepost.views.text import iso
from milepost.views.timeline import Lane, Timeline, read_timeline

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Journal:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.add(0, START)

    def add(self, at: float, kind: str, node_id: str = "", visit: int = 1, **fields: Any) -> Journal:
        time = str(iso(BEGIN + timedelta(seconds=at)))
        self.records.append(make_record("r", len(self.records), time, kind, node_id, visit, state=None, fields=fields))
        return self

    def done(self, at: float, node_id: str, seconds: float, visit: int = 1, **fields: Any) -> Journal:
        return self.add(at, CHECKPOINT, node_id, visit, duration_ms=seconds * 1000, **fields)

    def failed(self, at: float, node_id: str, attempt: int, retry_at: float | None = None, **fields: Any) -> Journal:
        if retry_at is not None:
            fields["retry_at"] = iso(BEGIN + timedelta(seconds=retry_at))
        return self.add(at, FAILURE, node_id, attempt=attempt, error_type="ValueError", **fields)

    def line(self, status: str = "finished", now: float = 0.0, live: Any = (), **options: Any) -> Timeline:
        return read_timeline(self.records, live, status, BEGIN + timedelta(seconds=now), **options)


def bars(row: Lane) -> list[tuple[str, float, float]]:
    return [(bar.kind, bar.x, bar.width) for bar in row.bars]


def test_a_visit_ends_with_its_record_and_began_its_duration_before():
    line = Journal().done(4, "a", 4).done(10, "b", 5).add(10, FINISH).line()
    assert (BEGIN, BEGIN + timedelta(seconds=10)) == (line.begin, line.end)
    assert [("a", [("done", 0.0, 40.0)]), ("b", [("done", 50.0, 50.0)])] == [
        (row.label, bars(row)) for row in line.rows
    ]
    assert ["4.0 s", "5.0 s"] == [row.took for row in line.rows]


def test_attempts_are_bars_and_the_pauses_between_them_too():
    journal = Journal().done(2, "a", 2).failed(3, "b", 1, retry_at=5).failed(6, "b", 2, retry_at=8)
    line = journal.done(10, "b", 2, attempt=3).line()
    row = line.rows[1]
    pieces = [("failed", 20, 10), ("pause", 30, 20), ("failed", 50, 10), ("pause", 60, 20), ("done", 80, 20)]
    assert pieces == bars(row)
    assert "attempt 1 failed: ValueError, 1.0 s" == row.bars[0].text
    assert "pause before attempt 3, 2.0 s" == row.bars[3].text
    assert "visit 1, attempt 3, 2.0 s" == row.bars[4].text
    assert "4.0 s" == row.took


def test_a_pause_goes_up_to_now_or_to_the_end_of_the_run():
    journal = Journal().failed(5, "a", 1, retry_at=60)
    assert ("pause", 50.0, 50.0) == bars(journal.line("waiting", now=10).rows[0])[1]
    journal.add(10, FINISH)
    assert ("pause", 50.0, 50.0) == bars(journal.line("failed", now=500).rows[0])[1]


def test_a_run_that_nobody_took_has_a_bar_of_its_own():
    line = Journal().add(5, OWNER, verb="worker").done(10, "a", 5).line()
    assert ("", [("ready", 0.0, 50.0)]) == (line.rows[0].label, bars(line.rows[0]))
    assert [(50.0, "taken by a worker")] == [(mark.x, mark.text) for mark in line.marks]
    [row] = Journal().line("ready", now=3).rows
    assert [("ready", 0.0, 100.0)] == bars(row)
    assert "ready, nobody has taken it, 3.0 s" == row.bars[0].text


def test_changes_of_the_owner_are_marks():
    journal = Journal().done(5, "a", 5).add(10, OWNER, verb="worker", crashed=True)
    line = journal.add(15, OWNER, verb="requeue", by="bea").add(16, OWNER, verb="delete").done(20, "b", 1).line()
    assert [(50.0, "taken over after a crash"), (75.0, "requeue by bea")] == [
        (mark.x, mark.text) for mark in line.marks
    ]


def test_a_wait_goes_from_its_record_to_its_reply_or_on():
    journal = Journal().done(2, "a", 2).add(2, WAIT, "ok", signal="approval")
    line = journal.line("waiting", now=10)
    assert [("wait", 20.0, 80.0)] == bars(line.rows[1])
    assert ("waits for approval, 8.0 s", "") == (line.rows[1].bars[0].text, line.rows[1].took)
    journal.add(4, REPLY, "ok", refused="no bool").add(9, REPLY, "ok", signal=1).done(10, "ok", 1)
    line = journal.line()
    assert [("wait", 20.0, 70.0), ("done", 90.0, 10.0)] == bars(line.rows[1])
    assert "waited for approval, 7.0 s" == line.rows[1].bars[0].text


def test_what_runs_now_has_a_bar_up_to_now():
    line = Journal().done(5, "a", 5).line("running", now=10, running=["b"])
    assert [("running", 50.0, 50.0)] == bars(line.rows[1])
    assert "runs, 5.0 s" == line.rows[1].bars[0].text


def test_long_times_without_work_are_gaps_of_one_width():
    journal = Journal().done(10, "a", 10).add(10, WAIT, "ok").add(1010, REPLY, "ok", timed_out=True)
    journal.done(1020, "b", 10)
    line = journal.line()
    assert [(48.0, 4.0, "16 min 40 s")] == [*map(tuple, line.gaps)]
    assert [("done", 0.0, 48.0)] == bars(line.rows[0])
    assert [("wait", 48.0, 4.0)] == bars(line.rows[1])
    assert [("done", 52.0, 48.0)] == bars(line.rows[2])
    assert not journal.line(has_gaps=False).gaps


def test_long_work_and_short_pauses_are_no_gaps():
    assert not Journal().done(5000, "a", 5000).line().gaps
    assert not Journal().done(10, "a", 10).done(49, "b", 10).line().gaps, "29 s of 49"
    assert not Journal().done(1000, "a", 1000).done(1100, "b", 10).line().gaps, "less than a tenth"


def test_a_change_of_the_owner_parts_a_gap():
    journal = Journal().done(10, "a", 10).add(1010, OWNER, verb="resume").done(2020, "b", 10)
    line = journal.line()
    assert [(46.0, "16 min 40 s"), (50.0, "16 min 40 s")] == [(gap.x, gap.text) for gap in line.gaps]
    assert [50.0] == [mark.x for mark in line.marks]


def test_items_and_inner_nodes_stand_below_what_contains_them():
    journal = Journal().add(0, ITEMS, "m", count=2)
    journal.done(4, "m/1", 4, branch="m#1/1").done(6, "m/0", 5, branch="m#1/0").done(6, "m", 6)
    journal.done(8, "sub/x", 1).done(10, "sub", 3)
    shown = [(row.label, row.depth) for row in journal.line().rows]
    assert [("m", 0), ("item 1", 1), ("item 0", 1), ("sub", 0), ("x", 1)] == shown


def test_a_node_around_others_has_a_row_before_it_has_a_record():
    shown = [(row.node_id, row.depth, len(row.bars)) for row in Journal().done(8, "sub/x/y", 1).line("running").rows]
    assert [("sub", 0, 0), ("sub/x", 1, 0), ("sub/x/y", 2, 1)] == shown


def test_an_attempt_in_a_branch_began_with_the_newest_record_on_its_path():
    journal = Journal().done(2, "fork", 2).done(8, "p", 6, branch="fork#1/p").failed(10, "q", 1, branch="fork#1/q")
    assert [("failed", 20.0, 80.0)] == bars(journal.line("failed").rows[2])


def test_plain_items_of_large_maps_are_one_row():
    journal = Journal().add(0, ITEMS, "m", count=100)
    for item in range(99):
        journal.done(item + 1, f"m/{item}", 1, branch=f"m#1/{item}")
    journal.failed(100, "m/99", 1, branch="m#1/99")
    rows = journal.line("failed").rows
    assert 10 == len(rows)
    assert ("92 more items", [("done", 7.0, 92.0)]) == (rows[-1].label, bars(rows[-1]))
    assert "item 99" in [row.label for row in rows]


def test_items_that_have_ended_nowhere_but_inside_are_folded_by_what_is_inside_them():
    journal = Journal().add(1, ITEMS, "m", count=20)
    for number in range(20):
        journal.done(2 + number, f"m/{number}/a", 1, branch=f"m#1/{number}")
    journal.failed(40, "m/19/b", 1, branch="m#1/19")
    rows = journal.line("failed").rows
    labels = [row.label for row in rows]
    folded = rows[labels.index("12 more items")]
    assert [("done", 17.949, 30.769)] == bars(folded)
    assert "item 19" in labels


def test_visits_of_a_node_share_a_row_and_superseded_ones_say_so():
    journal = Journal().done(5, "a", 5).add(5, OWNER, verb="resume").done(10, "a", 5, visit=2)
    [row] = journal.line(live=(("", 0, 0), ("", 2, None))).rows
    assert [True, False] == [bar.is_superseded for bar in row.bars]


def test_older_bars_are_left_out_and_counted():
    journal = Journal()
    for number in range(1, 501):
        journal.done(number, "loop", 1, visit=number)
    line = journal.line()
    assert (400, 100) == (line.left_out, len(line.rows[0].bars))
    assert BEGIN + timedelta(seconds=400) == line.begin


def test_damaged_records_and_runs_without_times_do_no_harm():
    assert Timeline(None, None, [], [], [], 0) == read_timeline([], (), "running", BEGIN)
    journal = Journal().done(1, "a", 1).add(2, ROLLBACK, "a", message="no")
    journal.records.append(journal.records[1]._replace(header=b"{"))
    assert ["done", "rollback"] == [bar.kind for bar in journal.line().rows[0].bars]
