"""`check` tells of each change of code what becomes of the runs that are open."""

from __future__ import annotations

import contextlib

import changed_code
import pytest

from milepost import Engine
from milepost.checking import check


def test_each_change_of_code_has_its_verdict(medium):
    changes, store = changed_code.changes(), medium.open()
    assert len(changes) >= 30
    changed_code.begin(store, changes)
    report = check(Engine(store, flows=[change.now for change in changes]))
    found = {group.flow: group.verdict for group in report.groups}
    assert {change.name: change.verdict for change in changes} == found
    assert all(group.remedy and group.error_type and group.source for group in report.groups if group.is_bad)


@pytest.mark.wide
def test_nothing_is_refused_of_code_that_has_not_changed(medium):
    changes, store = changed_code.changes(), medium.open()
    changed_code.begin(store, changes)
    same = check(Engine(store, flows=[change.before for change in changes]))
    assert (True, len(changes)) == (same.ok, same.checked)


@pytest.mark.wide
def test_a_run_that_is_executed_is_checked_and_not_disturbed(medium):
    reports = []

    def look(state):
        before = store.get_run("r-1").info
        with medium_of(medium) as other:
            reports.extend(
                check(Engine(other, flows=[flow])) for flow in (graph, changed_code.line("axc").compile("orders"))
            )
        assert store.get_run("r-1").info.sequence == before.sequence
        return state

    store = medium.open()
    graph = changed_code.line("abc", fn=lambda state: look(state)).compile("orders")
    halted = changed_code.line("abc").compile("orders")
    halted.run({}, store=store, run_id="r-0", stop_after=["a"], full=True)
    assert {} == graph.run({}, store=store, run_id="r-1")
    assert [["continue"], ["refuse", "continue"]] == [
        [group.verdict for group in report.groups] for report in reports[:2]
    ]
    assert [("r-1", "r-0")] == [group.examples for group in reports[0].groups]
    assert ("finished", "interrupted") == tuple(store.get_run(run_id).info.status for run_id in ("r-1", "r-0"))


def medium_of(medium):
    """Another store object on the same place, to read only; that of memory has none."""
    if medium.kind == "memory":
        return contextlib.nullcontext(medium.open())
    return medium.open(read_only=True)


@pytest.mark.wide
@pytest.mark.stores("sqlite", "file", "postgres")
def test_a_run_whose_key_is_not_there_cannot_be_read(medium):
    pytest.importorskip("cryptography")
    changes, keys = changed_code.changes()[:2], {"encryption_key": {"k": bytes(32)}}
    changed_code.begin(medium.open(**keys), changes)
    report = check(Engine(medium.open(read_only=True), flows=[change.now for change in changes]))
    assert {"not read"} == {group.verdict for group in report.groups}
    assert check(Engine(medium.open(read_only=True, **keys), flows=[change.now for change in changes])).ok
