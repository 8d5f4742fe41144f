"""Pauses that double: they have a limit, however often something has failed."""

from __future__ import annotations

import pytest

from milepost import Engine, Worker
from milepost.engine.worker import LONGEST_PAUSE as LONGEST_POLL
from milepost.executor.run import LONGEST_PAUSE, pause_after


@pytest.mark.parametrize(("count", "seconds"), [(1, 2.0), (3, 8.0), (20, LONGEST_PAUSE), (1024, LONGEST_PAUSE)])
def test_a_run_is_left_alone_longer_each_time(count: int, seconds: float) -> None:
    assert seconds == pause_after(count)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.2), (3, 0.8), (1024, LONGEST_POLL)])
def test_a_worker_whose_store_is_away_looks_less_often(failures: int, seconds: float) -> None:
    with Engine("memory://") as engine:
        worker: Worker = engine.worker(poll=0.1)
        worker._failures = failures
        assert seconds == worker._next_look(0)
