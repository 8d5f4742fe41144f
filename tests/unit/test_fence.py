"""The fence's decisions, without a store."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from milepost.model.ids import this_process
from milepost.model.info import Wait
from milepost.model.ranges import is_live
from milepost.model.record import Record
from milepost.store import Append, Claim, Release, Token
from milepost.store import LeaseState as State
from milepost.stores.base import fence
from milepost.stores.base.fence import Row, TokenState
from milepost.testing.tables import for_each

NOW = 1000.0
OWNED = Row("r", "f", "running", NOW, NOW, 1, nonce="n", owner="host:1:1", lease=30.0, lease_until=NOW + 30)
FREE = fence.give_up(replace(OWNED, status="interrupted"), NOW)
TOKEN = Token("r", 1, "n", this_process().key)


def record(sequence: int) -> Record:
    return Record(sequence, "checkpoint", "a", 1, 0, b"{", None)


def alive(name: str) -> bool:
    return False


def gone(name: str) -> bool:
    return True


def wish(**changes: Any) -> Claim:
    return Claim("r", 5, 2, "m", record(6), 60.0)._replace(**changes)


def claim(
    row: Row, wanted: Claim, state: State, *, newest: int = 5, newest_checkpoint: int = 3, worked: bool = False
) -> fence.Ruling:
    return fence.claim(
        row,
        wanted,
        state=state,
        newest=newest,
        newest_checkpoint=newest_checkpoint,
        now=NOW,
        owner="me",
        until=NOW + wanted.lease,
        worked=worked,
    )


# -- tokens and leases -----------------------------------------------------------------------------


def test_a_token_of_another_process_is_not_current() -> None:
    assert fence.is_current(OWNED, TOKEN)
    assert not fence.is_current(OWNED, TOKEN._replace(process="another"))


def test_a_released_run_has_no_current_token() -> None:
    assert not fence.is_current(FREE, TOKEN)
    assert not fence.is_current(FREE, TOKEN._replace(nonce=""))


@for_each(
    "expected, row, held, is_gone",
    [
        ("free", FREE, None, alive),
        ("live", OWNED, None, alive),
        ("ended", OWNED, None, gone),
        ("ours", OWNED, TokenState(TOKEN), alive),
        ("abandoned", OWNED, TokenState(TOKEN, is_abandoned=True), alive),
        ("live", OWNED, TokenState(TOKEN._replace(nonce="older"), is_abandoned=True), alive),
        ("live", OWNED, TokenState(TOKEN._replace(process="parent")), alive),
        ("ended", replace(OWNED, lease_until=NOW), TokenState(TOKEN), alive),
        ("abandoned", replace(OWNED, lease_until=NOW), TokenState(TOKEN, is_abandoned=True), alive),
        ("live", replace(OWNED, lease_until=None), None, alive),
    ],
)
def test_a_lease_is_what_its_time_and_its_owner_say(
    expected: State, row: Row, held: TokenState | None, is_gone: Any
) -> None:
    assert expected == fence.lease_state(row, NOW, held, is_gone)


def test_a_lease_that_lies_further_ahead_than_it_is_long_has_ended() -> None:
    assert "live" == fence.lease_state(OWNED, NOW, None, alive)
    assert "ended" == fence.lease_state(OWNED, NOW - 1, None, alive)


def test_only_a_running_run_is_shown_as_dead() -> None:
    assert "dead" == fence.shown_status(OWNED, "ended")
    assert "running" == fence.shown_status(OWNED, "live")
    assert "waiting" == fence.shown_status(replace(OWNED, status="waiting"), "ended")


# -- claims ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["live", "ours"])
def test_a_claim_over_a_live_lease_needs_a_takeover(state: State) -> None:
    assert ("locked", None) == claim(OWNED, wish(), state)
    assert "claimed" == claim(OWNED, wish(takeover=True), state).outcome


def test_a_locked_run_is_locked_for_stale_readers_too() -> None:
    assert "locked" == claim(OWNED, wish(epoch=9), "live").outcome


@for_each("stale", [{"epoch": 1}, {"epoch": 3}, {"sequence": 4}, {"sequence": 6}, {"crashed": True}])
def test_a_claim_from_a_stale_view_is_moved_and_changes_nothing(stale: dict[str, Any]) -> None:
    assert ("moved", None) == claim(FREE, wish(**stale), "free")


def test_a_crash_that_the_claimer_did_not_see_is_moved() -> None:
    assert "moved" == claim(OWNED, wish(), "ended").outcome
    assert "claimed" == claim(OWNED, wish(crashed=True), "ended").outcome


def test_a_claim_makes_the_claimer_the_owner() -> None:
    row = claim(replace(FREE, reason="because", wake_at=NOW), wish(), "free").row
    assert row is not None
    assert (2, "m", "me", 60.0, NOW + 60) == (row.epoch, row.nonce, row.owner, row.lease, row.lease_until)
    assert ("running", "", None, 6) == (row.status, row.reason, row.wake_at, row.sequence)


def test_an_abandoned_lease_is_no_crash() -> None:
    row = claim(replace(OWNED, crash_count=2, crashed_at=3), wish(), "abandoned").row
    assert row is not None
    assert 2 == row.crash_count


def test_a_worker_counts_an_owner_that_could_not_release_the_run() -> None:
    row = replace(OWNED, crash_count=1, crashed_at=3)
    counted = [claim(row, wish(max_crashes=most), "abandoned", worked=True) for most in (3, 2)]
    assert [("claimed", 2), ("blocked", 2)] == [(one.outcome, one.row and one.row.crash_count) for one in counted]


def test_crashes_add_up_without_progress_and_block_the_run() -> None:
    row = OWNED
    for count in (1, 2):
        ruling = claim(row, wish(crashed=True, epoch=row.epoch + 1, max_crashes=3), "ended")
        assert ruling.row is not None
        assert ("claimed", count) == (ruling.outcome, ruling.row.crash_count)
        row = ruling.row
    blocked = claim(row, wish(crashed=True, epoch=row.epoch + 1, max_crashes=3), "ended")
    assert blocked.row is not None
    assert ("blocked", "blocked", "", 3) == (
        blocked.outcome,
        blocked.row.status,
        blocked.row.owner,
        blocked.row.crash_count,
    )
    assert "3 owners" in blocked.row.reason


def test_a_checkpoint_since_the_last_crash_starts_the_count_again() -> None:
    row = replace(OWNED, crash_count=4, crashed_at=3)
    assert 4 == fence.crashes(row, 3)
    assert 0 == fence.crashes(row, 4)
    ruling = claim(row, wish(crashed=True), "ended", newest_checkpoint=4)
    assert ruling.row is not None
    assert 1 == ruling.row.crash_count


def test_a_run_without_a_limit_is_never_blocked() -> None:
    row = replace(OWNED, crash_count=99, crashed_at=3)
    assert "claimed" == claim(row, wish(crashed=True, max_crashes=None), "ended").outcome


def test_a_blocked_run_needs_a_reopening_which_clears_count_and_cancel() -> None:
    row = replace(FREE, status="blocked", crash_count=5, crashed_at=3)
    assert ("blocked", None) == claim(row, wish(), "free")
    ruling = claim(replace(row, cancel="stop"), wish(reopen=True), "free")
    assert ruling.row is not None
    assert (0, None) == (ruling.row.crash_count, ruling.row.cancel)


def test_a_claim_keeps_the_live_ranges_unless_it_brings_new_ones() -> None:
    row = replace(FREE, live=(("", 0, 3),))
    kept, replaced = claim(row, wish(), "free").row, claim(row, wish(live=()), "free").row
    assert kept is not None
    assert replaced is not None
    assert ((("", 0, 3),), ()) == (kept.live, replaced.live)


# -- appends and releases ------------------------------------------------------------------------------


@for_each(
    "expected, numbers",
    [
        ("written", []),
        ("written", [6]),
        ("written", [6, 7]),
        ("taken", [5]),
        ("taken", [1]),
        ("taken", [6, 6]),
        ("gap", [7]),
        ("gap", [6, 8]),
    ],
)
def test_numbers_are_dense_from_the_newest(expected: str, numbers: list[int]) -> None:
    assert expected == fence.judge(OWNED, Append(TOKEN, tuple(map(record, numbers))), 5)


def test_an_append_without_the_current_token_is_lost_whatever_its_numbers() -> None:
    append = Append(TOKEN, (record(9),))
    assert "lost" == fence.judge(replace(OWNED, epoch=2), append, 5)
    assert "lost" == fence.judge(replace(OWNED, nonce="other"), append, 5)
    assert "lost" == fence.judge(None, append, 5)


def test_a_finish_is_refused_by_an_open_cancel_and_a_failure_is_not() -> None:
    row = replace(OWNED, cancel="stop")
    assert "refused" == fence.judge(row, Append(TOKEN, (), Release("finished")), 5)
    assert "written" == fence.judge(row, Append(TOKEN, (), Release("failed")), 5)
    assert None is fence.end_ownership(row, Release("failed"), newest=5, now=NOW).cancel
    assert "stop" == fence.end_ownership(row, Release("waiting"), newest=5, now=NOW).cancel


def test_parking_is_refused_when_a_signal_came_that_was_not_read() -> None:
    row = replace(OWNED, signals=2)
    assert "refused" == fence.judge(row, Append(TOKEN, (), Release("waiting", signals=1)), 5)
    assert "written" == fence.judge(row, Append(TOKEN, (), Release("waiting", signals=2)), 5)
    assert "written" == fence.judge(row, Append(TOKEN, (), Release("waiting")), 5)


# -- signals, cancels, workers -------------------------------------------------------------------------


def test_a_wait_takes_one_signal() -> None:
    row = replace(FREE, status="waiting", waiting=(Wait("a#1", "go"), Wait("b#1", "go")), wake_at=NOW + 9)
    first, row = fence.place_signal(row, "go", None, NOW)
    second, row = fence.place_signal(row, "go", None, NOW)
    third, row = fence.place_signal(row, "go", None, NOW)
    assert ["a#1", "b#1", None] == [wait and wait.wait_id for wait in (first, second, third)]
    assert ("ready", None, 3) == (row.status, row.wake_at, row.signals)


def test_a_cancel_waits_for_an_owner_and_for_rollbacks() -> None:
    for state, sequence in (("live", 5), ("free", None), ("free", 4)):
        outcome, row = fence.cancel(FREE, "stop", sequence, None, state=state, newest=5, now=NOW)  # type: ignore[arg-type]
        assert row is not None
        assert ("requested", "stop", 1) == (outcome, row.cancel, row.epoch)


def test_a_cancel_of_a_run_that_nobody_owns_ends_it_with_a_new_epoch() -> None:
    outcome, row = fence.cancel(FREE, "stop", 5, None, state="free", newest=5, now=NOW)
    assert row is not None
    assert ("cancelled", "cancelled", "stop", 2, 6) == (outcome, row.status, row.reason, row.epoch, row.sequence)


def test_a_second_cancel_keeps_the_first_reason() -> None:
    _, row = fence.cancel(replace(OWNED, cancel="first"), "second", 5, None, state="live", newest=5, now=NOW)
    assert row is not None
    assert "first" == row.cancel


@for_each(
    "expected, changes, state",
    [
        (True, {"status": "ready"}, "free"),
        (True, {"status": "ready", "wake_at": NOW}, "free"),
        (False, {"status": "ready", "wake_at": NOW + 1}, "free"),
        (True, {"status": "waiting", "wake_at": NOW}, "free"),
        (False, {"status": "waiting"}, "free"),
        (True, {"status": "waiting", "cancel": ""}, "free"),
        (False, {"status": "running", "cancel": ""}, "live"),
        (True, {"status": "running"}, "ended"),
        (True, {"status": "running"}, "abandoned"),
        (False, {"status": "running"}, "ours"),
        (True, {"status": "interrupted", "worked": True}, "free"),
        (False, {"status": "interrupted"}, "free"),
        (False, {"status": "failed"}, "free"),
        (True, {"status": "failed", "cancel": ""}, "free"),
        (False, {"status": "cancelled", "cancel": ""}, "free"),
        (False, {"status": "blocked"}, "free"),
    ],
)
def test_a_worker_takes_what_is_due(expected: bool, changes: dict[str, Any], state: State) -> None:
    assert expected is fence.is_due(replace(FREE, **changes), state, NOW)


def test_a_write_from_outside_fences_off_the_owner() -> None:
    row = fence.intruded(OWNED, 6, NOW)
    assert (2, "", "interrupted", 6) == (row.epoch, row.owner, row.status, row.sequence)
    assert not fence.is_current(row, TOKEN)


def test_ranges_say_what_is_live() -> None:
    live = (("", 0, 3), ("", 7, None))
    assert [0, 3, 7, 99] == [n for n in (0, 3, 4, 6, 7, 99) if is_live(n, live)]
    assert is_live(4, ())
