"""The values of a run's page, for each kind of run, as they were when they were frozen.

`pytest tests/unit/test_console_values.py --freeze` writes them again, after a change on purpose.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from console_runs import FLOWS, add, adding, asking, forked, line, mapped, orders, paying, price
from starlette.testclient import TestClient

from milepost import Engine, Retry, SQLiteStore
from milepost.console import console
from milepost.errors import MilepostError
from milepost.events import AttemptFailed
from milepost.testing import FakeClock

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "console"
KEY = {"e1": b"k" * 32}


def run(engine: Engine, flow: Any, value: Any, **options: Any) -> None:
    with suppress(MilepostError):
        engine.run(flow, value, run_id="r", **options)


def superseded(engine: Engine) -> None:
    run(engine, orders, {"ok": True})
    engine.store.clock.advance(90)  # type: ignore[attr-defined]
    engine.resume_from(orders, "r", "add", state_override=lambda state: {**state, "n": 7})


def retrying(engine: Engine) -> None:
    """A node that failed, whose worker was stopped before the next attempt."""
    flow = line("orders", ("add", add), ("price", price, {"retry": Retry(3, backoff=60.0, jitter=False)}))

    for event in engine.stream(flow, {}, run_id="r"):
        if isinstance(event, AttemptFailed):
            break


def answered(engine: Engine) -> None:
    run(engine, asking, 12)
    engine.signal("r", "approval", False, by="bea")
    engine.worker(FLOWS).run(until_idle=True)


RUNS: dict[str, Callable[[Engine], None]] = {
    "graph": lambda engine: run(engine, adding, {"card": "4111"}, tags={"team": "shop"}),
    "failed": lambda engine: run(engine, orders, {}),
    "fork": lambda engine: run(engine, forked(), {"ok": True}),
    "fork_failed": lambda engine: run(engine, forked(), {}),
    "map": lambda engine: run(engine, mapped(), {"items": [1, 2, 3, 4]}),
    "retry": retrying,
    "superseded": superseded,
    "wait": lambda engine: run(engine, asking, 12),
    "workflow": answered,
    "rollback": lambda engine: run(engine, paying, 3),
    "ready": lambda engine: engine.start("unknown", {"id": 1}, run_id="r") and None,
    "damaged": lambda engine: run(engine, adding, {}),
    "encrypted": lambda engine: run(engine, asking, 12),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def values_of(kind: str, place: Path) -> dict[str, Any]:
    """The values of the page, without what is left to chance."""
    clock, options = FakeClock(), {"encryption_key": KEY} if kind == "encrypted" else {}
    with SQLiteStore(place, clock=clock, entropy=None, **options) as store:  # type: ignore[arg-type]
        engine = Engine(store, flows=FLOWS, clock=clock)
        RUNS[kind](engine)
        engine.close()
    if kind == "damaged":
        with closing(sqlite3.connect(place)) as connection, connection:
            connection.execute("UPDATE records SET header = 'x' WHERE sequence = 1")
    clock.advance(30)
    with SQLiteStore(place, clock=clock) as store:
        client = TestClient(console(Engine(store, flows=FLOWS)), base_url="http://localhost")
        page = client.get("/runs/r")
        assert 200 == page.status_code
        found: dict[str, Any] = client.get("/runs/r?format=json").json()
    if found["error"]:
        found["error"] = {name: found["error"][name] for name in ("error_type", "message", "node_id", "before")}
    for record in found["history"]["records"]:
        record["error"] = record["error"] and record["error"]["message"]
    text = json.dumps(found, indent=1, ensure_ascii=False)
    text = re.sub(r'"(fingerprint|owner)": ".+"', r'"\1": "..."', text)
    text = re.sub(r'"(duration_ms)": [\d.]+', r'"\1": 0.0', text)
    text = re.sub(r"[\w-]+:\d+:[0-9a-f]{8,}", "OWNER", text)
    return json.loads(text)


@pytest.mark.parametrize("kind", RUNS)
def test_the_values_of_a_page_are_those_that_were_frozen(kind: str, place: Path, request: pytest.FixtureRequest):
    values = values_of(kind, place)
    path = GOLDEN / f"{kind}.json"
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    if request.config.getoption("--freeze"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == values
