"""Events as values: frozen, plain as dicts, and cheap until somebody looks."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from milepost import events
from milepost.events import (
    AttemptFailed,
    Event,
    NodeCompleted,
    RunCompleted,
    RunWaiting,
)
from milepost.model.info import Wait
from milepost.model.reports import ResumeInfo, ResumePlan, RunResult
from milepost.testing.tables import for_each

INFO = ResumeInfo(run_id="r", source="latest", from_node="a", sequence=3, visit=1, next_node="b", skipped=("a",))
KINDS = [
    kind
    for kind in (getattr(events, name) for name in events.__all__)
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]


def example(kind: type[Event]) -> Event:
    """An event with something in every field that needs it."""
    given: dict[str, Any] = {"run_id": "r", "timestamp": 1.5}
    for f in dataclasses.fields(kind):
        if f.name not in given and f.default is dataclasses.MISSING:
            given[f.name] = (lambda: "state") if f.name == "_load" else None
    return kind(**given)


@for_each("kind", KINDS)
def test_an_event_tells_run_time_and_its_own_name(kind: type[Event]) -> None:
    told = example(kind).to_dict()
    assert (kind.__name__, "r", 1.5) == (told["event"], told["run_id"], told["timestamp"])
    public = {f.name for f in dataclasses.fields(kind) if not f.name.startswith("_")}
    assert {"event", *public} == set(told)
    json.dumps(told)


@for_each("kind", KINDS)
def test_an_event_cannot_be_changed(kind: type[Event]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        example(kind).run_id = "s"  # type: ignore[misc]


def test_a_state_is_decoded_only_when_it_is_looked_at() -> None:
    loads: list[int] = []

    def load() -> str:
        loads.append(1)
        return "state"

    event = NodeCompleted(
        run_id="r", timestamp=1.0, node_id="a", visit=1, attempt=1, next_node="b", duration_ms=0.5, _load=load
    )
    event.to_dict()
    assert "_load" not in repr(event)
    assert event == dataclasses.replace(event, _load=lambda: "other")
    assert [] == loads
    assert "state" == event.state
    assert [1] == loads


def test_values_are_told_plainly() -> None:
    failed = AttemptFailed(
        run_id="r", timestamp=1.0, node_id="a", visit=1, attempt=1, error=ValueError("no"), retry_in=None
    )
    assert "ValueError: no" == failed.to_dict()["error"]
    wait = Wait("a#1", "approved", prompt={"n": (1, 2)}, wake_at=datetime(2026, 1, 1, tzinfo=UTC))
    waiting = RunWaiting(run_id="r", timestamp=1.0, node_id="a", wait=wait)
    assert {
        "wait_id": "a#1",
        "signal": "approved",
        "prompt": {"n": [1, 2]},
        "wake_at": "2026-01-01T00:00:00+00:00",
        "schema": None,
        "since": None,
        "refused": None,
    } == waiting.to_dict()["wait"]


def test_a_result_is_told_with_its_state() -> None:
    state = {"at": datetime(2026, 1, 1, tzinfo=UTC), "total": Decimal("1.50"), 7: {1}}
    result = RunResult(state=state, run_id="r", status="finished", missed=("a#1",), resumed=INFO)
    told = result.to_dict()
    assert {"at": "2026-01-01T00:00:00+00:00", "total": "1.50", "7": [1]} == told["state"]
    assert (["a#1"], "latest", ["a"]) == (told["missed"], told["resumed"]["source"], told["resumed"]["skipped"])
    ended = RunCompleted(
        run_id="r", timestamp=1.0, flow="orders", status="finished", result=result, total_duration_ms=2.0
    )
    assert "finished" == ended.to_dict()["result"]["status"]


def test_a_plan_is_what_a_resume_would_find_and_why() -> None:
    plan = ResumePlan(**INFO.to_dict(), verdict="refuse", reason="locked", error=ValueError("no"))
    told = plan.to_dict()
    assert ("refuse", "locked", "ValueError: no", "b") == tuple(
        told[name] for name in ("verdict", "reason", "error", "next_node")
    )
    assert isinstance(plan, ResumeInfo)
