"""watch: it follows a run that others execute, and touches nothing."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3

import pytest
from cli_calls import Shop, shop
from test_cli_looking import make_run

from milepost import SQLiteStore
from milepost.model.info import Wait
from milepost.model.record import make_record
from milepost.store import Append, Release

__all__ = ["shop"]


@pytest.fixture
def done(shop: Shop) -> Shop:
    """A shop with a run that finished and one that failed; their code is gone."""
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "good")
    shop.call("run", "shop:graph", "-i", "id=b", "-i", "fails=true", "--run-id", "bad")
    (shop.folder / "shop.py").unlink()
    return shop


def untimed(line: str) -> str:
    """A line without its duration."""
    return " ".join(word for word in line.split() if word not in {"ms", "s"} and not word[0].isdigit())


def test_watch_tells_what_run_told(shop: Shop) -> None:
    told = shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a").out.splitlines()
    answer = shop.call("watch", "a")
    assert (0, "") == (answer.code, answer.err)
    expected = [untimed(line) for line in told if line.startswith(("run ", "  done"))]
    assert expected == [untimed(line) for line in answer.out.splitlines()]


def test_watch_of_a_run_that_failed_tells_why(done: Shop) -> None:
    answer = done.call("watch", "bad")
    assert 1 == answer.code
    assert "  failed  charge#1             attempt 1: RuntimeError: card refused\\nby the bank" in answer.out
    assert "Traceback" not in answer.out
    assert answer.err.startswith("milepost: run 'bad' is failed: node 'charge' of run 'bad' failed: RuntimeError")
    assert 1 == answer.err.count("\n")


def test_watch_with_json_has_a_line_for_each_record_that_tells_something(done: Shop) -> None:
    events = done.call("watch", "bad", "--json").events
    assert [
        ("RunStarted", 0, None),
        ("NodeCompleted", 1, None),
        ("AttemptFailed", 2, "RuntimeError: card refused\\nby the bank"),
        ("RunCompleted", 3, "RuntimeError: card refused\\nby the bank"),
    ] == [(event["event"], event["sequence"], event.get("error")) for event in events]
    assert ("b", True) == (events[0]["input"]["id"], events[0]["input"]["fails"])


def test_watch_goes_on_after_a_record(done: Shop) -> None:
    events = done.call("watch", "good", "--json", "--after", "3").events
    assert [("NodeCompleted", 4), ("RunCompleted", 5)] == [(event["event"], event["sequence"]) for event in events]


def test_watch_reads_a_long_journal_page_by_page(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        token = make_run(store, "long")
        for number in range(1, 251):
            kind, node = ("failure", "n") if number < 250 else ("finish", "")
            fields = {"error_type": "OSError", "message": "no", "status": "failed", "attempt": number}
            record = make_record(
                "long", number, "2026-11-28T00:00:00.000000Z", kind, node_id=node, visit=1, fields=fields
            )
            release = Release("failed", "no luck") if kind == "finish" else None
            assert "written" == store.append([Append(token, (record,), release)])[0].outcome
    answer = shop.call("watch", "long", "--json", "--store", "sqlite:///s.db")
    assert (1, list(range(251))) == (answer.code, [event["sequence"] for event in answer.events])


def test_watch_follows_a_run_of_another_process_to_its_end(shop: Shop) -> None:
    url = ("--store", "sqlite:///s.db")
    with SQLiteStore("s.db") as store:
        wait = Wait("w#1", "approval")
        store.release(make_run(store, "a"), Release("waiting", waiting_for=(wait,), signals=0))
        with shop.spawn("watch", "a", "--json", *url) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "RunStarted" == json.loads(process.stdout.readline())["event"]
            assert "milepost: run 'a' is waiting: waits for signal 'approval' at 'w#1'\n" == process.stderr.readline()
            store.put_signal("a", "approval", None)
            assert process.stderr.readline().startswith("milepost: run 'a' is ready: ready since ")
            assert 0 == shop.call("resume", "a", "shop:graph", *url).code
            events = [json.loads(line) for line in process.stdout]
            assert 0 == process.wait(timeout=30)
    assert "RunCompleted" == events[-1]["event"]
    assert ["price", "charge", "price", "charge"] == [e["node_id"] for e in events if e["event"] == "NodeCompleted"]


@pytest.mark.parametrize("command", [["watch"], pytest.param(["show", "--watch"], marks=pytest.mark.wide)])
@pytest.mark.parametrize("front", ["graph", "workflow"])
def test_watch_of_a_run_that_damage_stops_ends_with_the_error(shop: Shop, front: str, command: list[str]) -> None:
    with SQLiteStore("s.db") as store:
        token = make_run(store, "a", front=front)
        at = "2026-11-28T00:00:00.000000Z"
        nodes = ["price", "charge"] if front == "workflow" else ["price"]
        records = [
            make_record("a", number, at, "checkpoint", node, state=b'{"id":"x"}', fields={"next_node": "end"})
            for number, node in enumerate(nodes, 1)
        ]
        store.append([Append(token, tuple(records), Release("interrupted", "stopped"))])
    with contextlib.closing(sqlite3.connect("s.db", isolation_level=None)) as connection:
        connection.execute("UPDATE records SET payload = x'7b7d' WHERE node_id = 'price'")
    answer = shop.call(*command, "a", "--store", "sqlite:///s.db")
    assert 1 == answer.code
    assert "milepost: record 1 of run 'a' at node 'price' was changed after it was written" in answer.err


@pytest.mark.wide
def test_watch_of_a_run_whose_key_is_elsewhere_goes_on(shop: Shop) -> None:
    with SQLiteStore("s.db", encryption_key={"k": bytes(32)}) as store:
        wait = Wait("w#1", "approval")
        store.release(make_run(store, "a"), Release("waiting", waiting_for=(wait,), signals=0))
        with shop.spawn("watch", "a", "--store", "sqlite:///s.db") as process:
            assert process.stderr is not None
            assert "milepost: run 'a' is waiting: " in process.stderr.readline()
            store.put_signal("a", "approval", None)
            assert "milepost: run 'a' is ready: " in process.stderr.readline()
            store.delete_run("a")
            assert 3 == process.wait(timeout=30)


def test_watch_says_when_a_run_that_waits_for_its_time_is_due(shop: Shop) -> None:
    shop.call("start", "shop:graph", "-i", "id=a", "--run-id", "a", "--at", "2099-01-01T00:00:00Z")
    with shop.spawn("watch", "a") as process:
        assert process.stderr is not None
        assert "milepost: run 'a' waits: it is due at 2099-01-01 00:00:00 UTC\n" == process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert (130, "") == (process.returncode, out)


def test_watch_says_that_a_run_went_on(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--run-id", "a")
    shop.call("resume", "a", "shop:graph", "--from", "price", "--visit", "1")
    assert "run 'a' of flow 'orders' goes on after record 1\n" in shop.call("watch", "a").out


def test_control_c_ends_the_watching_and_touches_nothing(shop: Shop) -> None:
    url = ("--store", "sqlite:///s.db")
    with SQLiteStore("s.db") as store:
        make_run(store, "live")
        before = shop.call("export", "live", *url).out
        with shop.spawn("watch", "live", "--json", *url) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        assert (130, "milepost: interrupted\n") == (process.returncode, err)
        assert before == shop.call("export", "live", *url).out


def test_watch_ends_when_its_reader_goes_away(shop: Shop) -> None:
    with SQLiteStore("s.db") as store:
        token = make_run(store, "live")
        with shop.spawn("watch", "live", "--store", "sqlite:///s.db") as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            record = make_record("live", 1, "2026-11-28T00:00:00.000000Z", "finish", fields={"status": "finished"})
            store.append([Append(token, (record,), Release("finished"))])
            assert 141 == process.wait(timeout=30)
