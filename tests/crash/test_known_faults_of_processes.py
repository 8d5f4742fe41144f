"""Faults that users of other libraries met and that need processes: starts at once, and a delete that is cut short.

A process under test runs this file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milepost import END, CompiledGraph, Context, Graph, MilepostError, SQLiteStore

RUNS = 3
DELETES = 3
"""How many statements a delete of a run has, at least."""


# -- the process under test ------------------------------------------------------------------------------------


def counting_graph(log: str) -> CompiledGraph[dict[str, Any]]:
    """Three nodes in a row, each of which adds 1 and a line to the log."""

    def add(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{ctx.run_id} {ctx.node_id}\n".encode())
        os.close(fd)
        return {"n": state["n"] + 1}

    graph = Graph(dict).add_node("a", add).add_node("b", add).add_node("c", add)
    return graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile("counting")


def start(place: str, log: str, mode: str) -> None:
    """Start a run for each line of standard input, and tell how it ended."""
    graph = counting_graph(log)
    with SQLiteStore(place) as store:
        print("up", flush=True)
        for line in sys.stdin:
            try:
                told: Any = graph.run({"n": 0}, store=store, run_id=line.strip(), if_exists=mode)["n"]
            except MilepostError as exc:
                told = type(exc).__name__
            print(json.dumps(told), flush=True)


def delete(place: str, statement: int) -> None:
    """Delete a run, and die before the statement of this number, or before the commit if there are not so many."""
    from milepost.stores import sqlite

    seen = 0

    def die(text: str) -> None:
        nonlocal seen
        seen += text.lstrip().startswith("DELETE")
        if seen > statement or (seen and text == "COMMIT"):
            os.kill(os.getpid(), signal.SIGKILL)

    connect: Callable[..., Any] = sqlite.sqlite3.connect

    def traced(*args: Any, **options: Any) -> Any:
        connection = connect(*args, **options)
        connection.set_trace_callback(die)
        return connection

    sqlite.sqlite3.connect = traced
    SQLiteStore(place).delete_run("r-1")


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(*sys.argv[2:])
    else:
        delete(sys.argv[2], int(sys.argv[3]))
    sys.exit()

# -- the test's side -------------------------------------------------------------------------------------------

import pytest  # noqa: E402 - a process under test need not pay for it


@pytest.mark.parametrize("mode", ["error", "resume", "return"])
def test_processes_that_start_one_id_at_once_execute_it_once(mode: str, tmp_path: Path):
    place, log = str(tmp_path / "runs.db"), tmp_path / "log"
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", __file__, "start", place, str(log), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        assert ["up\n"] * 2 == [process.stdout.readline() for process in processes if process.stdout]
        for number in range(RUNS):
            for process in processes:
                assert process.stdin
                process.stdin.write(f"r-{number}\n")
                process.stdin.flush()
            told = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
            assert 3 in told
            others = {"error": {"RunExistsError"}, "resume": {3, "RunLockedError"}, "return": {3}}[mode]
            told.remove(3)
            assert set(told) <= others
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    lines = log.read_text(encoding="utf-8").splitlines()
    assert sorted(f"r-{number} {node}" for number in range(RUNS) for node in "abc") == sorted(lines)
    with SQLiteStore(place) as store:
        assert all(store.verify(f"r-{number}").ok for number in range(RUNS))


@pytest.mark.parametrize("statement", range(DELETES + 1))
def test_a_delete_that_is_killed_leaves_the_whole_run_or_nothing_of_it(statement: int, tmp_path: Path):
    place, log = str(tmp_path / "runs.db"), str(tmp_path / "log")
    graph = counting_graph(log)
    with SQLiteStore(place) as store:
        graph.run({"n": 5}, store=store, run_id="r-1", tags={"old": "yes"})
        before = store.export("r-1")
    ended = subprocess.run([sys.executable, __file__, "delete", place, str(statement)], check=False)
    assert -signal.SIGKILL == ended.returncode
    with SQLiteStore(place) as store:
        assert before == store.export("r-1")
        assert store.verify("r-1").ok
        assert {"n": 8} == graph.resume(store, "r-1")
        store.delete_run("r-1")
        assert ([], []) == (store.list_runs(), store.read("r-1"))
        assert {"n": 103} == graph.run({"n": 100}, store=store, run_id="r-1")
        assert {} == dict(store.get_run("r-1").info.tags)
        assert [1, 1, 1] == [info.visit for info in store.history("r-1")]
        assert b'"n":8' not in store.export("r-1")
    assert 6 == len(Path(log).read_text(encoding="utf-8").splitlines())
