"""The runs of the crash tests as regression tests: each goes again as it went, also if its first process died."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from test_golden_journals import GRAPHS, WORKFLOWS, Place, _live

from milepost.testing import Crash, FakeClock, ReplayDifference, replay

pytestmark = pytest.mark.wide
UNSTEADY = {"graph_failing_router", "fork_failing", "fork_failing_merge", "workflow_graph_that_fails_inside"}
"""The flows with a router or merge that fails once: this runs for real, and answers otherwise than it did."""


@pytest.mark.parametrize("name", [*GRAPHS, *WORKFLOWS])
def test_a_run_goes_again_as_it_went(name: str, tmp_path: Path) -> None:
    logging.disable(logging.CRITICAL)
    place = Place("sqlite", tmp_path, None)
    flow = GRAPHS[name]().graph if name in GRAPHS else WORKFLOWS[name].flow
    appends = _live(name, place, None)
    for crash in (None, Crash(appends[len(appends) // 2], is_after=True)):
        if crash is not None:
            _live(name, place, crash)
        with place.open(FakeClock()) as store:
            [run] = store.list_runs()
            again = replay(store.export(run.run_id), flow)
        try:
            again.check()
        except ReplayDifference:
            assert name in UNSTEADY
    logging.disable(logging.NOTSET)
