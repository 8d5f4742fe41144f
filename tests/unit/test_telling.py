"""Events in the log are sentences with the run's facts in `extra`."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from milepost import END, Graph, MemoryStore, Retry


def flaky(ctx, state: dict) -> dict:  # type: ignore[no-untyped-def, type-arg]
    ctx.progress(1, 2, "half")
    ctx.emit("note", {"a": 1})
    if ctx.attempt == 1:
        raise ConnectionError("down")
    return state


GRAPH = (
    Graph(dict)
    .add_node("only", flaky, retry=Retry(max_attempts=2, backoff=0))
    .add_edge("only", END)
    .set_entry("only")
    .compile("told")
)


def test_each_event_is_one_sentence_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="milepost"):
        GRAPH.run({"n": 1}, store=MemoryStore(), run_id="r")
    told = [record.getMessage() for record in caplog.records]
    assert "run 'r' of flow 'told' starts" == told[0]
    assert "run 'r': attempt 1 of node 'only' failed: ConnectionError: down; again in 0.0 s" in told
    assert "run 'r': node 'only': 1 of 2 half" in told
    assert told[-1].startswith("run 'r' of flow 'told' is finished after ")
    assert {"r"} == {vars(record)["run_id"] for record in caplog.records}
    levels = {record.getMessage().split(":")[1].strip()[:9]: record.levelno for record in caplog.records[1:-1]}
    assert logging.WARNING == levels["attempt 1"]


def test_a_program_that_configures_no_logging_hears_nothing(tmp_path: Path) -> None:
    script = tmp_path / "quiet.py"
    script.write_text(Path(__file__).read_text().split("\n\n\ndef test_")[0] + "\nGRAPH.run({}, store=MemoryStore())\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ("", "") == (done.stdout, done.stderr)
