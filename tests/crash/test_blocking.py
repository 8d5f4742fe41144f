"""A node that kills its process each time: its run is parked with the reason, and the other runs go on.

Crashes are counted apart from failed attempts, and both counts are in the store, not in a process. A process under test
runs this file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from milepost import END, CompiledGraph, Context, Graph, MilepostError, Retry, SQLiteStore

OTHERS = [f"other-{number}" for number in range(5)]


# -- the process under test ------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def note(log: str, ctx: Context[Any]) -> int:
    """Add a line to the log; how many lines there are of this run and node."""
    told = f"{ctx.run_id} {ctx.node_id}"
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{told}\n".encode())
    os.close(fd)
    return Path(log).read_text(encoding="utf-8").splitlines().count(told)


def poisoned_graph(log: str) -> CompiledGraph[dict[str, Any]]:
    """Two nodes; the second kills its process if the state says so."""

    def first(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        note(log, ctx)
        return {**state, "first": True}

    def second(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        note(log, ctx)
        if state["deadly"]:
            die()
        return {**state, "second": True}

    graph = Graph(dict).add_node("first", first).add_node("second", second, retry=Retry(max_attempts=2, backoff=0))
    return graph.add_edge("first", "second").add_edge("second", END).set_entry("first").compile("poisoned")


def failing_graph(log: str) -> CompiledGraph[dict[str, Any]]:
    """A node that has three attempts: it fails twice, is killed in the third, and fails again."""

    def fail(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        calls = note(log, ctx)
        if calls == 3:
            die()
        raise OSError(f"call {calls}, attempt {ctx.attempt}")

    graph = Graph(dict).add_node("b", fail, retry=Retry(max_attempts=3, backoff=0)).add_edge("b", END)
    return graph.set_entry("b").compile("failing")


def main() -> None:
    """Do one verb with each of some runs, one after the other, and say how each ended."""
    kind, verb, place, log, options, *run_ids = sys.argv[1:]
    graph = poisoned_graph(log) if kind == "poisoned" else failing_graph(log)
    with SQLiteStore(place) as store:
        for run_id in run_ids:
            try:
                if verb == "run":
                    state = {"deadly": run_id == "deadly"}
                    told = graph.run(state, store=store, run_id=run_id, **json.loads(options))
                else:
                    told = graph.resume(store, run_id, **json.loads(options))
                print(json.dumps([run_id, "finished", told]), flush=True)
            except MilepostError as exc:
                print(json.dumps([run_id, type(exc).__name__, str(exc)]), flush=True)


if __name__ == "__main__":
    main()
    sys.exit()

# -- the test's side -------------------------------------------------------------------------------------------

import pytest  # noqa: E402 - a process under test need not pay for it


class Place:
    """A store and a log, and the processes that use them."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "runs.db"
        self.log = folder / "log"

    def process(self, kind: str, verb: str, *run_ids: str, **options: Any) -> tuple[dict[str, list[str]], bool]:
        """How each run ended in a process of its own that ran them in turn, and whether that was killed."""
        ended = subprocess.run(
            [sys.executable, __file__, kind, verb, str(self.store), str(self.log), json.dumps(options), *run_ids],
            stdout=subprocess.PIPE,
            check=False,
        )
        assert ended.returncode in {0, -signal.SIGKILL}
        told = [json.loads(line) for line in ended.stdout.splitlines()]
        return {run_id: rest for run_id, *rest in told}, ended.returncode != 0

    def calls(self, run_id: str, node_id: str) -> int:
        return self.log.read_text(encoding="utf-8").splitlines().count(f"{run_id} {node_id}")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("limit", [2, 5])
def test_a_run_that_kills_every_process_is_blocked_and_the_others_finish(limit: int, place: Place):
    told, was_killed = place.process("poisoned", "run", *OTHERS, stop_before="second")
    assert {"RunStopped"} == {kind for kind, _ in told.values()}
    assert not was_killed
    told, was_killed = place.process("poisoned", "run", "deadly")
    assert was_killed
    # Each process is a new one that knows nothing of those before it, and takes the deadly run first.
    killed = 0
    while was_killed:
        told, was_killed = place.process("poisoned", "resume", "deadly", *OTHERS, max_crashes=limit)
        killed += was_killed
    assert limit - 1 == killed
    assert "RunNotResumableError" == told["deadly"][0]
    assert "owners in a row died" in told["deadly"][1]
    assert ["finished"] * 5 == [told[run_id][0] for run_id in OTHERS]
    with SQLiteStore(place.store) as store:
        (info,) = store.list_runs(status="blocked")
        assert ("deadly", limit) == (info.run_id, info.crash_count)
        assert info.reason.startswith(f"{limit} owners in a row died")
        assert store.verify("deadly").ok
        # Crashes are no failed attempts: they don't touch the policy's two.
        assert [] == store.read("deadly", kinds=("failure",))
        assert 6 == len(store.list_runs())
    assert (1, limit) == (place.calls("deadly", "first"), place.calls("deadly", "second"))


def test_a_blocked_run_stays_blocked_in_a_later_process_until_it_is_reopened(place: Place):
    place.process("poisoned", "run", "deadly")
    place.process("poisoned", "resume", "deadly", max_crashes=1)
    told, was_killed = place.process("poisoned", "resume", "deadly", max_crashes=9)
    assert not was_killed
    assert "RunNotResumableError" == told["deadly"][0]
    assert "reopen=True" in told["deadly"][1]
    told, was_killed = place.process("poisoned", "resume", "deadly", reopen=True)
    assert was_killed
    with SQLiteStore(place.store) as store:
        assert "dead" == store.get_run("deadly").info.status


def test_a_crash_neither_uses_up_an_attempt_nor_gives_new_ones(place: Place):
    told, was_killed = place.process("failing", "run", "r-1")
    assert was_killed
    told, was_killed = place.process("failing", "resume", "r-1")
    assert not was_killed
    assert "NodeError" == told["r-1"][0]
    assert 4 == place.calls("r-1", "b")
    with SQLiteStore(place.store) as store:
        failures = [record.fields() for record in store.read("r-1", kinds=("failure",))]
        assert [1, 2, 4] == [failure["attempt"] for failure in failures]
        assert [None, None, True] == [failure.get("final") for failure in failures]
        assert "failed" == store.get_run("r-1").info.status
    told, was_killed = place.process("failing", "resume", "r-1")
    assert "RunNotResumableError" == told["r-1"][0]
    assert "used up its 3 attempts" in told["r-1"][1]
    assert 4 == place.calls("r-1", "b")
