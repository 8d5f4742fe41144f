"""Sync functions that Ray runs. Marked `ray`, because Ray is large: `pip install 'milepost[ray]'`, then `pytest -m ray`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import executed
import pytest
from executed import Job

from milepost import END, Graph, NodeError, Retry, Steps, step, workflow
from milepost.drivers.ray import RayExecutor
from milepost.errors import MissingExtraError


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'milepost\[ray\]'") as caught:
        RayExecutor()
    assert "ray" == caught.value.extra


@pytest.fixture(scope="module")
def executor() -> Iterator[RayExecutor]:
    ray = pytest.importorskip("ray")
    path = os.pathsep.join([str(Path(executed.__file__).parent), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    with RayExecutor(num_cpus=1) as executor:
        yield executor
    ray.shutdown()


def one(fn: Any, executor: Any, **options: Any) -> Any:
    graph = Graph(Job).add_node("heavy", fn, executor=executor, **options).add_edge("heavy", END)
    return graph.set_entry("heavy").compile("jobs")


@pytest.mark.ray
def test_a_node_runs_on_ray_with_its_ids(executor, tmp_path):
    told = one(executed.with_ids, executor).run(Job(str(tmp_path)), run_id="r1")
    assert ["r1", "heavy", "1", "1"] == told.ids[:4]
    assert os.getpid() not in one(executed.here, executor).run(Job(str(tmp_path))).pids


@pytest.mark.ray
def test_a_worker_of_ray_that_dies_is_a_failed_attempt(executor, tmp_path):
    graph = one(executed.is_killed_at_first, executor, retry=Retry(2, backoff=0))
    assert 1 == len(graph.run(Job(str(tmp_path))).pids)
    assert 2 == len((tmp_path / "calls").read_text().splitlines())


@pytest.mark.ray
async def test_items_run_on_ray_and_equal_ones_each_for_itself(executor, tmp_path):
    @workflow("counts")
    def counts(folder: str) -> Steps[list[int]]:
        return (yield from step("counts").map(executed.counted, [folder] * 3, executor=executor))

    assert [1, 2, 3] == sorted(await counts.arun(folder=str(tmp_path)))


@pytest.mark.ray
def test_errors_come_back_from_ray(executor, tmp_path):
    with pytest.raises(NodeError, match="Odd: as it comes"):
        one(executed.is_odd, executor).run(Job(str(tmp_path)))
    with pytest.raises(NodeError, match="let it be data"):
        one(executed.gives_a_lock, executor).run(Job(str(tmp_path)))


@pytest.mark.ray
def test_an_executor_that_was_shut_down_takes_no_more(executor):
    own = RayExecutor()
    future = own.submit(executed.squared, 3)
    own.shutdown()
    assert 9 == future.result(0)
    with pytest.raises(RuntimeError, match="after shutdown"):
        own.submit(executed.squared, 3)
