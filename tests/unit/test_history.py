"""The index of a workflow's journal, made of records by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from milepost import StepError, WorkflowError
from milepost.errors import CheckpointCorruptError, DeserializeStateError, NoBranchMatchedError
from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import followed_by, position_after, read_history, retried_at
from milepost.executor.history_values import StepRecord, parent_of
from milepost.executor.renames import Renames
from milepost.graph.nesting import recorded_items
from milepost.model.failure import recorded_step_error
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
    step_head,
)
from milepost.model.seal import with_digests
from milepost.testing.tables import for_each


class Journal:
    """Records in the order in which they are made."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.add(START)

    def add(self, kind: str, step_id: str = "", visit: int = 1, state: bytes | None = None, **fields: Any) -> Journal:
        number = len(self.records)
        timestamp = "2026-01-01T00:00:00.000000Z"
        self.records.append(make_record("r1", number, timestamp, kind, step_id, visit, state=state, fields=fields))
        return self

    def done(self, *ids: str, **fields: Any) -> Journal:
        for step_id in ids:
            self.add(CHECKPOINT, step_id, **fields)
        return self

    def read(self, live: Any = (), rename: dict[str, str] | None = None) -> JournalHistory:
        return read_history(self.records, live, Renames((), rename))


def test_a_history_never_changes():
    journal = Journal().done("s/a", branch="f#1/s").add(FAILURE, "b").add(ROLLBACK, "s/a").done("s", outcome="failed")
    before, same = journal.read(), journal.read()
    journal.done("c", branch="f#1/c").add(FAILURE, "b").add(
        OWNER, "", crashed=True, reroute=True, overrides=1, state=b"0"
    )
    after = followed_by(before, journal.records[5:])
    assert msgspec.structs.asdict(journal.read()).keys() == msgspec.structs.asdict(after).keys()
    assert "c" in after.done
    assert [2, 6] == [entry.sequence for entry in after.failures["b"]]
    assert [7] == after.crashes
    retried_at(before.crashed_at(5), 5)
    before.overridden(1, b"[]").rerouted(1, 5).completed_by(before.failures["b"][0], "b")
    for name in {*before.__struct_fields__} - {"renames"}:
        assert shown(getattr(same, name)) == shown(getattr(before, name)), name
    with pytest.raises(AttributeError, match="immutable"):
        before.newest = 9  # type: ignore[misc]


def shown(value: Any) -> Any:
    """The numbers of the records in a part of a history."""
    if isinstance(value, StepRecord):
        return value.sequence
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items()}
    return [shown(inner) for inner in value] if isinstance(value, list) else repr(value)


def test_a_run_stands_where_the_records_after_its_point_say():
    journal = Journal().add(CHECKPOINT, "a", next_node="b").add(ROUTE, "x", next_node="y").add(OWNER, state=b"7")
    at = position_after(journal.records[1], "b", journal.records[2:])
    assert ("b", 1, b"7", False, None) == (at.next_node, at.route_at, at.override.state(), at.is_rerouted, at.turn)  # type: ignore[union-attr]
    journal.add(OWNER, reroute=True)
    assert position_after(journal.records[1], "b", journal.records[2:]).is_rerouted
    journal.add(ROUTE, "a", next_node="c").add(OWNER, overrides=99, state=b"8", reroute=True)
    at = position_after(journal.records[1], "b", journal.records[2:])
    assert ("c", 5, journal.records[3], False) == (at.next_node, at.route_at, at.override, at.is_rerouted)
    journal.add(FINISH).add(OWNER, verb="continue", entry="a", state=b"9")
    at = position_after(journal.records[1], "b", journal.records[2:])
    assert ("a", journal.records[8], journal.records[8], (journal.records[8],)) == (
        at.next_node, at.override, at.turn, at.tail,
    )  # fmt: skip


def test_a_wait_is_open_until_its_reply_or_the_end_of_a_step_around_it():
    journal = Journal().add(WAIT, "s/w", wait_id="s/w#1", signal="go").add(REPLY, "s/w", signal=1, refused="no")
    (found,) = journal.read().open_waits().values()
    assert ("s/w#1", 1, "no") == (found.wait.wait_id, found.sequence, found.wait.refused and found.wait.refused.text)
    assert {} == Journal().add(WAIT, "s/w").add(REPLY, "s/w", signal=1).read().open_waits()
    assert {} == Journal().add(WAIT, "s/w").done("s").read().open_waits()


def test_a_lenient_reader_notes_what_it_cannot_read():
    journal = Journal().done("a")
    journal.records.append(journal.records[1]._replace(sequence=2, header=b"{{"))
    with pytest.raises(CheckpointCorruptError):
        journal.read()
    assert [2] == read_history(journal.records, is_lenient=True).damaged


def test_children_come_in_the_order_in_which_they_appeared():
    recorded = Journal().done("a", "p/x/deep").add(ROUTE, "p/w", verdict=True).done("p/x", "p", "b").read()
    assert (("a", "p", "b"), ("p/x", "p/w"), ("p/x/deep",), ()) == tuple(
        recorded.children(step_id) for step_id in ("", "p", "p/x", "nope")
    )
    assert ["p/x", "p/x/deep", "p/w"] == [*recorded.below("p")]
    assert ("a", "p", "b") == recorded.steps


@pytest.mark.parametrize(("step_id", "parent"), [("a", ""), ("a/b", "a"), ("a/b/c", "a/b")])
def test_the_parent_of_a_step_is_what_it_is_part_of(step_id: str, parent: str):
    assert parent == parent_of(step_id)


def test_each_kind_of_record_is_found_by_its_step():
    recorded = (
        Journal().add(ITEMS, "m").add(WAIT, "w").add(REPLY, "w", signal=3).add(REPLY, "v", signal=4, refused="no")
        .add(FAILURE, "f").add(FAILURE, "f", final=True).add(ROLLBACK, "a").add(FINISH, status="failed").read()
    )  # fmt: skip
    assert (1, 2, 3, 4) == (
        recorded.items["m"].sequence, recorded.waits["w"].sequence, recorded.replies["w"].sequence,
        recorded.refused["v"].sequence,
    )  # fmt: skip
    assert ([5, 6], {3, 4}) == ([entry.sequence for entry in recorded.failures["f"]], recorded.used_signals)
    assert recorded.start is not None
    assert recorded.final is not None
    assert recorded.finish is not None
    assert (0, 6, 7, 8, 8) == (
        recorded.start.sequence, recorded.final.sequence, recorded.undone["a"].sequence, recorded.finish.sequence,
        recorded.newest,
    )  # fmt: skip


def test_superseded_records_count_visits_and_signals_alone():
    journal = Journal().done("a").add(CHECKPOINT, "b", visit=4).add(REPLY, "w", signal=7).add(OWNER, verb="resume_from")
    recorded = journal.read((("", 0, 1), ("", 4, None)))
    assert (["a"], {}, {7}, 4) == ([*recorded.done], recorded.replies, recorded.used_signals, recorded.visits["b"])
    assert (("a",), 4) == (recorded.children(""), recorded.visits["b"])


def test_a_superseded_record_that_is_damaged_is_in_nobodys_way():
    journal = Journal().done("a", "b").add(OWNER)
    journal.records[2] = journal.records[2]._replace(header=b"")
    assert ["a"] == [*journal.read((("", 0, 1), ("", 3, None))).done]
    with pytest.raises(CheckpointCorruptError):
        journal.read()


def test_visits_and_signals_of_a_deleted_step_are_not_used_again():
    recorded = Journal().add(OWNER, "a", visit=3, verb="delete", used=[5]).read()
    assert (3, {5}, ()) == (recorded.visits["a"], recorded.used_signals, recorded.children(""))


def test_a_renamed_step_is_found_under_its_new_name_with_what_is_inside():
    recorded = Journal().done("old/x", "old", "older").read(rename={"old": "new"})
    assert ["new/x", "new", "older"] == [*recorded.done]
    assert ("new", "older") == recorded.children("")


def test_a_run_that_had_failed_and_goes_on_is_not_on_its_way_to_an_end():
    journal = Journal().done("a").add(FAILURE, "b", final=True).add(FINISH, status="failed")
    recorded = journal.read()
    assert (2, 3) == (recorded.final and recorded.final.sequence, recorded.finish and recorded.finish.sequence)
    recorded = journal.add(OWNER, verb="resume").read()
    assert (None, None) == (recorded.final, recorded.finish)


def test_a_crash_on_the_way_to_an_end_does_not_take_it_off_that_way():
    recorded = Journal().done("a").add(FAILURE, "b", final=True).add(OWNER, verb="resume", crashed=True).read()
    assert recorded.final is not None
    assert [3] == recorded.crashes


# -- rollbacks -----------------------------------------------------------------------------------------------


def test_a_step_that_is_done_again_is_not_undone_any_more():
    recorded = Journal().done("a").add(ROLLBACK, "a").done("a").read()
    assert ({}, None) == (recorded.undone, recorded.first_undone())


def test_heads_of_completions_are_as_good_as_their_fields():
    kept = {"step_type": "python", "outcome": "succeeded", "state": b"null"}
    journal = Journal().done("a", "b", "p/x", "b", branch="way#1/b", **kept).add(ROLLBACK, "a").done("a", "c", **kept)
    stored = [with_digests(record, record) for record in journal.records]
    heads = {r.sequence: head for r in stored if r.header and (head := step_head(r.header)) is not None}
    assert [1, 2, 3, 4, 6, 7] == [*heads]
    for rename, live in (({}, ()), ({"a": "d"}, ()), ({}, [("", 0, 4)])):
        names = Renames((), rename)
        usual, short = read_history(journal.records, live, names), read_history(journal.records, live, names, heads)
        for name in ("done", "undone"):
            told = [
                {key: (entry.sequence, entry.fields) for key, entry in getattr(r, name).items()} for r in (usual, short)
            ]
            assert told[0] == told[1]
        assert (usual.visits, usual.steps, usual.newest) == (short.visits, short.steps, short.newest)
        assert [*usual.below("")] == [*short.below("")]


def test_the_first_step_that_was_rolled_back_is_the_one_that_was_done_first():
    assert 1 == Journal().done("a", "b").add(ROLLBACK, "b").add(ROLLBACK, "a").read().first_undone()
    assert 2 == Journal().done("a", "b").add(ROLLBACK, "b").read().first_undone()


def test_what_a_part_undid_of_its_own_is_not_what_the_run_rolled_back():
    journal = Journal().done("s/x").add(ROLLBACK, "s/x").done("s", outcome="failed")
    assert journal.read().first_undone() is None
    assert 4 == journal.done("b").add(ROLLBACK, "b").read().first_undone()


def test_what_a_part_undid_that_the_run_failed_with_was_rolled_back_by_the_run():
    assert 1 == Journal().done("s/x").add(ROLLBACK, "s/x").add(FAILURE, "s", final=True).read().first_undone()


def test_a_retry_forgets_what_a_failed_part_did_from_the_first_thing_on_that_it_undid():
    journal = (
        Journal().done("p/s/kept", "p/s/x", "p/s/y").add(FAILURE, "p/s/z", given_up=True).add(ROLLBACK, "p/s/x")
        .done("p/s", outcome="failed").done("p/good", "p")
    )  # fmt: skip
    recorded = journal.add(OWNER, verb="retry").read()
    assert ["p/s/kept", "p/s", "p/good", "p"] == [*recorded.done]
    assert (("p/s/kept",), {}, {}) == (recorded.children("p/s"), recorded.undone, recorded.failures)
    assert 1 == recorded.visits["p/s/x"]


# -- failures that stand -------------------------------------------------------------------------------------


def test_a_failure_for_good_inside_a_step_that_has_not_ended_stands():
    recorded = Journal().add(FAILURE, "s/b", given_up=True).read()
    entry = recorded.standing_failure("s/b")
    assert entry is not None
    assert 1 == entry.sequence


@for_each(
    "journal",
    [
        Journal().add(FAILURE, "s/b", retry_at="2026-01-01T00:00:01.000000Z"),
        Journal().add(FAILURE, "s/b", given_up=True).add(OWNER, verb="retry"),
        Journal().add(FAILURE, "s/b", given_up=True).add(FAILURE, "s", retry_at="2026-01-01T00:00:01.000000Z"),
        Journal().add(FAILURE, "s/b", given_up=True).add(FAILURE, "s", final=True).add(FINISH).add(OWNER),
        Journal().add(FAILURE, "s/b", given_up=True).done("s/b"),
        Journal().add(FAILURE, "b", given_up=True, final=True),
        Journal(),
    ],
)
def test_a_failure_does_not_stand_that_something_came_after(journal: Journal):
    assert journal.read().standing_failure("s/b") is None
    assert journal.read().standing_failure("b") is None


def test_where_nothing_failed_a_retry_has_nothing_to_do_again():
    assert Journal().done("a", "p/x", "p", outcome="succeeded").read().failed_root() is None
    assert Journal().add(FAILURE, "a", attempt=1, error_type="OSError", error="no").read().failed_root() is None


def test_a_retry_does_the_newest_root_with_a_failure_in_it_again():
    journal = Journal().done("a", outcome="failed").done("p/x", outcome="failed").done("p", "b", outcome="succeeded")
    assert ("", 2) == journal.read().failed_root()


# -- errors of another process -------------------------------------------------------------------------------


@for_each(
    "step_id, error_type, kind",
    [
        ("a", "ValueError", StepError),
        ("a", "milepost.errors.NoBranchMatchedError", NoBranchMatchedError),
        ("a", "milepost.errors.DuplicateStepNameError", StepError),
        ("", "milepost.errors.WorkflowError", WorkflowError),
        ("", "KeyError", WorkflowError),
    ],
)
def test_the_error_of_another_process_has_its_kind_and_its_text(step_id: str, error_type: str, kind: type):
    told = {
        "error_type": error_type,
        "message": "no more",
        "traceback": "Traceback: here",
        "attempt": 3,
        "op": "execute",
    }
    record = Journal().add(FAILURE, step_id, **told).records[-1]
    error = recorded_step_error("r1", record.fields(), record.node_id)
    assert (kind, "r1", step_id or None, None) == (type(error), error.run_id, error.node_id, error.__cause__)
    for text in (error_type, "no more", "Traceback: here"):
        assert text in str(error)
    if isinstance(error, StepError):
        assert (step_id, 3) == (error.step_name, error.attempt)
    if isinstance(error, WorkflowError):
        assert "no more" == error.reason


def test_a_record_without_a_result_is_told_by_its_step():
    record = Journal().add(CHECKPOINT, "a", state=b"[1]").records[-1]
    with pytest.raises(CheckpointCorruptError, match="'a' holds no result") as caught:
        StepRecord(1, record.fields(), record).outcome()
    assert ("a", 1) == (caught.value.node_id, caught.value.sequence)


def test_items_that_are_nested_too_deep_to_be_read_are_damage() -> None:
    state = b"[" * 100_000 + b"]" * 100_000
    record = make_record("r", 3, "2026-01-01T00:00:00.000000Z", ITEMS, "each", state=state)
    with pytest.raises(DeserializeStateError, match="the items of map 'each' are damaged"):
        recorded_items("each", StepRecord(3, {}, record))
