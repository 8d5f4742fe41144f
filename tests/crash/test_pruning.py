"""Processes that prune: killed between two statements, and at work while another process runs flows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from milepost import SQLiteStore
from milepost.store import Release
from milepost.testing.journals import begin, finish, work, write

KILLED = """
import os, signal, sys
from milepost import SQLiteStore

store = SQLiteStore(sys.argv[1])
deadly, how = int(sys.argv[2]), {"age": {"older_than": 0}, "count": {"keep_last": 1}}.get(sys.argv[3])
seen = []

def before(statement):
    if not statement.startswith(("DELETE", "UPDATE", "COMMIT")):
        return
    seen.append(statement)
    if len(seen) == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

store._open().set_trace_callback(before)
store.delete("r", "a") if how is None else store.prune(**how)
print(len(seen))
"""


def prune_and_die(place: Path, statement: int, how: str) -> subprocess.CompletedProcess[str]:
    """Prune in a process that is killed before its n-th statement that changes something; 0: that is not.

    A statement that starts a trigger counts twice.
    """
    command = [sys.executable, "-W", "error", "-c", KILLED, str(place), str(statement), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("how", "statements"), [("age", 5), ("count", 5), ("delete", 6)])
def test_a_process_killed_while_it_deletes_leaves_the_run_whole_or_nothing_of_it(
    tmp_path: Path, how: str, statements: int
) -> None:
    """Each run goes in a write of its own, all or nothing. An id used again never meets old records."""
    place = tmp_path / "runs.db"
    with SQLiteStore(place) as store:
        token = begin(store, "r")
        work(store, token, *"abab")
        store.put_signal("r", "go", b"1", signal_id="once")
        write(store, token, finish("r", 5), release=Release("finished"))
        before = store.export("r")
    for statement in range(1, statements + 1):
        assert -9 == prune_and_die(place, statement, how).returncode
        with SQLiteStore(place) as store:
            assert before == store.export("r")
            assert store.verify("r").ok
    ended = prune_and_die(place, 0, how)
    assert (0, f"{statements}\n") == (ended.returncode, ended.stdout), ended.stderr
    with SQLiteStore(place) as store:
        if how != "age":
            assert (2, True) == (len(store.history("r")), store.verify("r").ok)
            return
        begin(store, "r")
        assert ([], []) == (store.history("r"), store.signals("r"))
        assert "kept" == store.put_signal("r", "go", b"2", signal_id="once")


FLOWS = """
import sys, threading
from milepost import END, Graph, SQLiteStore
from milepost.errors import RunStopped

store = SQLiteStore(sys.argv[1], durability="normal")
graph = Graph(list).add_node("add", lambda trail: [*trail, len(trail)])
graph.add_conditional_edge("add", lambda trail: "add" if len(trail) < 6 else END, ["add", END])
flow = graph.set_entry("add").compile("trail")

def execute(name):
    for n in range(int(sys.argv[2])):
        run_id = f"{name}-{n}"
        if n % 3:
            assert flow.run([], store=store, run_id=run_id) == [*range(6)]
            continue
        try:
            flow.run([], store=store, run_id=run_id, stop_after="add")
        except RunStopped:
            pass

threads = [threading.Thread(target=execute, args=(name,)) for name in "xyz"]
threading.excepthook = lambda told: (print(repr(told.exc_value)), sys.stdout.flush())
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


@pytest.mark.parametrize("count", [8, pytest.param(150, marks=pytest.mark.slow)])
def test_flows_go_on_in_one_process_while_another_prunes(tmp_path: Path, count: int) -> None:
    """No error in either; what has not finished is left alone, and can be gone on with."""
    place = tmp_path / "runs.db"
    with SQLiteStore(place) as store:
        command = [sys.executable, "-W", "error", "-c", FLOWS, str(place), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flows:
            deleted, thinned = set(), set()
            while flows.poll() is None:
                thinned |= set(store.prune(keep_last=1).thinned)
                deleted |= set(store.prune(older_than=0).deleted)
            assert "done\n" == flows.stdout.read()
        deleted |= set(store.prune(older_than=0).deleted)
        left = {f"{name}-{n}" for name in "xyz" for n in range(0, count, 3)}
        assert {f"{name}-{n}" for name in "xyz" for n in range(count)} - left == deleted
        assert thinned <= deleted
        assert left == {info.run_id for info in store.list_runs(limit=1000)}
        assert {"interrupted"} == {info.status for info in store.list_runs(limit=1000)}
        for run_id in left:
            assert store.verify(run_id).ok
            assert ["add"] == [info.node_id for info in store.history(run_id)]
