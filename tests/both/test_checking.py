"""`check` tells of each change of code what becomes of the runs that are open."""

from __future__ import annotations

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
