"""A workflow of two expensive phases, with a marked point between them: run, interrupted, and gone on with.

The code of the first part is written as its users write it, over the default store of a `WorkflowEngine`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost import (
    CheckpointData,
    CheckpointNotFoundError,
    FileCheckpointStore,
    InputMismatchError,
    MemoryCheckpointStore,
    WorkflowEngine,
    step,
    workflow,
)
from milepost.events import StepCompleted

ran: list[str] = []
is_broken: list[bool] = []


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    is_broken.clear()
    monkeypatch.chdir(tmp_path)


def expensive_compute(data: str) -> dict[str, Any]:
    ran.append("expensive")
    return {"computed": True, "data": data}


def transform(result: dict[str, Any]) -> str:
    ran.append("transform")
    if is_broken:
        raise RuntimeError("interrupted")
    return str(result["data"]).upper()


@workflow("long_running")
def long_running(data: str):  # type: ignore[no-untyped-def]
    # First phase - expensive
    result = yield step("expensive").python(expensive_compute, args=(data,)).checkpoint()

    # Second phase - also expensive
    final = yield step("transform").python(transform, args=(result,))

    return final


async def test_the_first_run_may_fail_and_a_resume_goes_on_from_the_marked_point(tmp_path: Path) -> None:
    is_broken.append(True)
    engine = WorkflowEngine()
    async for event in engine.execute(long_running, data="input", workflow_id="run-123"):
        print(event)
    assert (False, ["expensive", "transform"]) == (engine.get_result().success, ran)

    (file,) = (tmp_path / ".milepost" / "checkpoints" / "run-123").glob("*.json")
    told = json.loads(file.read_text(encoding="utf-8"))
    assert ("expensive.json", "expensive", "long_running") == (file.name, told["checkpoint_id"], told["workflow_name"])
    assert (16, {"computed": True, "data": "input"}) == (len(told["inputs_hash"]), told["step_results"][0]["output"])
    assert {"name", "step_type", "success", "output", "duration_ms", "error"} < set(told["step_results"][0])

    is_broken.clear()
    engine = WorkflowEngine()
    async for event in engine.resume(
        long_running,
        workflow_id="run-123",
        data="input",  # Must match original
    ):
        print(event)
    assert ("INPUT", ["expensive", "transform", "transform"]) == (engine.get_result().final_output, ran)


async def test_a_custom_store_has_its_folder(tmp_path: Path) -> None:
    store = FileCheckpointStore(base_path=tmp_path / "mine")
    engine = WorkflowEngine(checkpoint_store=store)
    steps = [
        event.step_name
        async for event in engine.execute(long_running, data="input", run_id="run-1")
        if isinstance(event, StepCompleted)
    ]
    assert ["expensive", "transform"] == steps
    assert ["expensive"] == await store.list_checkpoints("run-1")
    assert (tmp_path / "mine" / "run-1" / "expensive.json").is_file()
    assert not (tmp_path / ".milepost").exists()


@pytest.mark.parametrize("kind", [FileCheckpointStore, MemoryCheckpointStore])
async def test_what_does_not_match_is_refused_with_both_hashes(kind: Any) -> None:
    is_broken.append(True)
    store = kind()
    engine = WorkflowEngine(store)
    await engine.arun(long_running, data="input", run_id="run-1")
    with pytest.raises(CheckpointNotFoundError, match="run-2"):
        async for _ in engine.resume(long_running, workflow_id="run-2", data="input"):
            pass
    with pytest.raises(InputMismatchError) as caught:
        async for _ in engine.resume(long_running, workflow_id="run-1", data="other"):
            pass
    point = await store.load_latest("run-1")
    assert point is not None
    assert point.inputs_hash == caught.value.expected_hash[:16]
    assert caught.value.actual_hash[:16] in str(caught.value)
    assert ["expensive", "transform"] == ran


async def test_a_run_goes_on_from_a_file_of_the_format_alone(tmp_path: Path) -> None:
    """A file with the fields of the format and no other, as an earlier program left it."""
    result = {
        "name": "expensive",
        "step_type": "python",
        "success": True,
        "output": {"computed": True, "data": "kept"},
        "duration_ms": 120000,
        "error": None,
    }
    fields = {
        "checkpoint_id": "expensive",
        "workflow_name": "long_running",
        "inputs_hash": long_running._definition.inputs_hash({"data": "input"})[:16],
        "step_results": [result],
        "saved_at": "2025-12-20T15:30:00Z",
    }
    folder = tmp_path / ".milepost" / "checkpoints" / "run-123"
    folder.mkdir(parents=True)
    (folder / "expensive.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")
    engine = WorkflowEngine()
    async for _ in engine.resume(long_running, workflow_id="run-123", data="input"):
        pass
    assert ("KEPT", ["transform"]) == (engine.get_result().final_output, ran)
    store = engine.checkpoint_store
    assert isinstance(store, FileCheckpointStore)
    assert CheckpointData.from_dict(fields) == await store.load("run-123", "expensive")
