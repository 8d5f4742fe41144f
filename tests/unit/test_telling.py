"""Events in the log are sentences with the run's facts in `extra`."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from milepost import END, Engine, Graph, MemoryStore, Retry, RunSuspended, StepError, Steps, step, workflow
from milepost.errors import NodeError
from milepost.testing import FakeClock


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


def bad(x: int) -> int:
    raise ValueError("bad")


@workflow("booked")
def booked() -> Steps[None]:
    yield step("one").python(int, args=(1,)).with_rollback(lambda ctx: None)
    yield step("two").python(int, args=(2,)).with_rollback(lambda ctx: bad(1))
    yield step("left out").when(lambda ctx: False).python(int, args=(1,))
    yield step("asked").wait_for("answer", timeout=60)
    yield step("three").python(bad, args=(1,))


def sentences(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and message of what the log has, without times and durations."""
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return [(level, re.sub(r"\d+\.\d+ ms|until \S+", "...", message)) for level, message in told]


def test_each_event_of_a_workflow_is_one_sentence_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    engine = Engine(MemoryStore(clock=clock), clock=clock)
    with caplog.at_level(logging.DEBUG, logger="milepost"):
        with pytest.raises(RunSuspended):
            engine.run(booked, run_id="r")
        first = sentences(caplog)
        clock.advance(minutes=2)
        with pytest.raises(StepError):
            engine.resume(booked, "r")
        nodes = {vars(record).get("node_id") for record in caplog.records}
        second = sentences(caplog)
    assert ("INFO", "run 'r' of flow 'booked' starts") == first[0]
    assert ("DEBUG", "run 'r': python step 'one' starts: visit 1, attempt 1") == first[1]
    assert ("DEBUG", "run 'r': python step 'one' succeeded in ...") in first
    assert ("DEBUG", "run 'r': python step 'left out' skipped in ...") in first
    assert [
        ("INFO", "run 'r': waits at 'asked#1' for signal 'answer' ..."),
        ("INFO", "run 'r' of flow 'booked' is waiting after ..."),
    ] == first[-2:]
    assert ("INFO", "run 'r' of flow 'booked' goes on at step 'asked' after record 3 (skipped: 3)") == second[0]
    assert [("WARNING", "run 'r': attempt 1 of node 'three' failed: ValueError: bad; no further attempt")] == [
        (level, message) for level, message in second if "'three'" in message and level == "WARNING"
    ]
    assert ("DEBUG", "run 'r': step 'two' is rolled back, and that failed: ValueError: bad") in second
    assert ("DEBUG", "run 'r': step 'one' is rolled back") in second
    assert ("INFO", True) == (second[-1][0], second[-1][1].startswith("run 'r' of flow 'booked' is failed after ..."))
    assert {"one", "two", "asked", "three", None} == nodes


def test_a_run_that_had_finished_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(MemoryStore())
    short = workflow("short")(lambda: (yield step("one").python(int, args=(1,))))
    engine.run(short, run_id="r")
    with caplog.at_level(logging.INFO, logger="milepost"):
        engine.resume(short, "r")
    assert ("INFO", "run 'r' of flow 'short' has finished before") == sentences(caplog)[0]


def test_a_program_that_configures_no_logging_hears_nothing(tmp_path: Path) -> None:
    script = tmp_path / "quiet.py"
    script.write_text(Path(__file__).read_text().split("\n\n\ndef test_")[0] + "\nGRAPH.run({}, store=MemoryStore())\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert ("", "") == (done.stdout, done.stderr)


def test_what_was_sent_and_refused_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    @workflow("asks")
    def asks() -> Steps[bool]:
        return (yield from step("ask").wait_for("go", payload=bool)).payload is True

    store = MemoryStore()
    with caplog.at_level(logging.DEBUG, "milepost"):
        Engine(store).start(asks, run_id="r")
        asks.signal(store, "r", "go", "a secret")
        with pytest.raises(RunSuspended):
            asks.resume(store, "r")
    assert "a secret" in store.get_run("r").info.reason
    assert "a secret" not in caplog.text
    assert "the newest answer was refused" in caplog.text


HOSTILE = "red \x1b[31m, a line \x85, another \u2028, turned \u202e, and \x9b2J"


def test_what_a_terminal_would_obey_is_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(state: dict) -> dict:  # type: ignore[type-arg]
        raise ValueError(HOSTILE)

    def hook(event: object) -> None:
        raise ValueError(HOSTILE)

    graph = Graph(dict).add_node("a", fail).add_edge("a", END).set_entry("a").compile("g")
    with caplog.at_level(logging.DEBUG, logger="milepost"), pytest.raises(NodeError):
        graph.run({}, store=MemoryStore(), run_id="r", hooks=[hook])
    shown = [logging.Formatter().format(record) for record in caplog.records]
    assert all("".join(text.splitlines()).isprintable() and "\x85" not in text for text in shown)
    assert any(r"red \x1b[31m" in record.getMessage() for record in caplog.records)
    assert any(r"turned \u202e" in record.exc_text for record in caplog.records if record.exc_text)


def test_an_object_that_cannot_be_shown_in_the_log_changes_no_run(caplog: pytest.LogCaptureFixture) -> None:
    class Hook:
        def __call__(self, event: object) -> None:
            raise ValueError("no")

        def __repr__(self) -> str:
            raise ValueError("no name either")

    logging.raiseExceptions, before = False, logging.raiseExceptions
    try:
        graph = Graph(dict).add_node("a", dict).add_edge("a", END).set_entry("a").compile("g")
        assert {} == graph.run({}, store=MemoryStore(), run_id="r", hooks=[Hook()])
    finally:
        logging.raiseExceptions = before
