"""Faults that users of other libraries met and that need processes, and what must be true instead on every store.

A run is started by two at once; its owner is killed or frozen and another goes on; it is cancelled at the last moment; it is
deleted by a process that dies meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pytest
from processes import Forks, Log, Process, calls_of, die, die_at, process, row, say

from milepost import Engine, MilepostError
from milepost.stores.url import open_store

POLL = 0.1
"""Seconds between two looks of a worker."""
SLACK = 5.0
"""Seconds that a machine with much else to do may take for what should take none."""


# -- the processes under test ----------------------------------------------------------------------------------


def start(url: str, log: str) -> None:
    """Start a run for each line of standard input, and tell how it ended."""
    graph = row(Log(log), lambda node_id: None)
    with open_store(url) as store:
        say("up")
        for line in sys.stdin:
            mode, run_id, _ = json.loads(line)
            try:
                say("done", graph.run([], store=store, run_id=run_id, if_exists=mode))
            except MilepostError as exc:
                say(type(exc).__name__)


def die_in_the_first_node(url: str, log: str, run_id: str) -> None:
    """Begin a run, or go on with it, and die before its first node has done anything."""
    with open_store(url) as store:
        row(Log(log), lambda node_id: die()).run(["begun"], store=store, run_id=run_id, if_exists="resume")


def die_in_a_delete(url: str, moment: int) -> None:
    """Delete a run, and die at a moment of that."""
    with open_store(url) as store:
        die_at(moment, store.delete_run)("r-1")


if __name__ == "__main__":
    start(*sys.argv[1:])
    sys.exit()

# -- who starts ------------------------------------------------------------------------------------------------


def test_processes_that_start_one_id_at_once_execute_it_once(url: str, log: str) -> None:
    refused = {"error": {"RunExistsError"}, "resume": {"done", "RunLockedError"}, "return": {"done"}}
    run_ids = [f"{mode}-{number}" for mode in refused for number in range(2)]
    with process(url, log, file=__file__) as one, process(url, log, file=__file__) as two:
        assert (["up"], ["up"]) == (one.hear(), two.hear())
        for run_id in run_ids:
            mode = run_id.partition("-")[0]
            one.tell(mode, run_id)
            two.tell(mode, run_id)
            told = [one.hear(), two.hear()]
            assert all([*"abc"] == state for _, *states in told for state in states)
            kinds = [kind for kind, *_ in told]
            kinds.remove("done")
            assert set(kinds) <= refused[mode]
    with open_store(url) as store:
        for run_id in run_ids:
            assert [*"abc"] == [call.node_id for call in calls_of(log, run_id)]
            assert store.verify(run_id).ok


# -- who goes on -----------------------------------------------------------------------------------------------


def begin(owner: Process, run_id: str, **options: Any) -> None:
    """Have it begin a run and come to the second node."""
    owner.tell("run", run_id, **options)
    assert ["in", "a"] == owner.hear()
    owner.tell()
    assert ["in", "b"] == owner.hear()


def finish(other: Process) -> None:
    """Let it go on from the second node, where it is, to the end of the run."""
    other.tell()
    assert ["in", "c"] == other.hear()
    other.tell()


def test_a_run_that_was_killed_in_its_first_node_again_and_again_is_listed_and_ends(
    forks: Forks, url: str, log: str
) -> None:
    with open_store(url) as store:
        for crashes in range(3):
            assert forks.call(die_in_the_first_node, url, log, "r-1").was_killed
            (info,) = store.list_runs()
            assert ("r-1", "row", "dead", crashes) == (info.run_id, info.flow, info.status, info.crash_count)
            assert [b'["begun"]'] == [record.payload for record in store.read("r-1", kinds=("start",))]
        assert ["begun", *"abc"] == row(Log(log), lambda node_id: None).resume(store, "r-1")
        assert "finished" == store.get_run("r-1").info.status
    assert [*"aaaabc"] == [call.node_id for call in calls_of(log, "r-1")]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["on this host", "elsewhere"])
def test_a_worker_that_was_up_before_the_kill_goes_on_within_lease_and_poll(
    is_elsewhere: bool, url: str, log: str
) -> None:
    with process("obey", url, log) as owner, process("obey", url, log) as worker, open_store(url) as store:
        assert (["up"], ["up"]) == (owner.hear(), worker.hear())
        if is_elsewhere:
            owner.tell("move away")
            assert ["away"] == owner.hear()
        worker.tell("work", poll=POLL)
        assert ["working"] == worker.hear()
        begin(owner, "r-1", lease=0.6 if is_elsewhere else 3600.0)
        owner.kill()
        killed_at = time.time()
        until = store.get_run("r-1").info.lease_until
        assert until is not None
        assert ["in", "b"] == worker.hear()
        taken_at = time.time()
        # Of a process of this host it is known that it is gone; elsewhere only the end of its lease tells.
        free_at = until.timestamp() if is_elsewhere else killed_at
        assert free_at <= taken_at < free_at + POLL + SLACK
        finish(worker)
        with Engine(store) as engine:
            assert [*"abc"] == engine.handle("r-1", row(Log(log))).result(timeout=SLACK)
        assert [(owner.pid, "a"), (owner.pid, "b"), (worker.pid, "b"), (worker.pid, "c")] == [
            (call.pid, call.node_id) for call in calls_of(log, "r-1")
        ]


def test_of_two_that_resume_a_dead_run_at_once_exactly_one_wins(forks: Forks, url: str, log: str) -> None:
    run_ids = [f"r-{number}" for number in range(4)]
    with process("obey", url, log) as one, process("obey", url, log) as two:
        assert (["up"], ["up"]) == (one.hear(), two.hear())
        for run_id in run_ids:
            assert forks.call(die_in_the_first_node, url, log, run_id).was_killed
            one.tell("resume", run_id)
            two.tell("resume", run_id)
            said = [one.hear(), two.hear()]
            assert [["RunLockedError"], ["in", "a"]] == sorted(said, key=str)
            winner = (one, two)[said.index(["in", "a"])]
            winner.tell()
            assert ["in", "b"] == winner.hear()
            finish(winner)
            assert ["done", ["begun", *"abc"]] == winner.hear()
            assert [*"aabc"] == [call.node_id for call in calls_of(log, run_id)]
    with open_store(url) as store:
        for run_id in run_ids:
            assert store.verify(run_id).ok
            owners = store.read(run_id, kinds=("owner",))
            assert [True] == [record.fields().get("crashed") for record in owners]


def test_a_frozen_owner_that_was_overtaken_starts_no_further_node(url: str, log: str) -> None:
    with process("obey", url, log) as owner, process("obey", url, log) as other:
        assert (["up"], ["up"]) == (owner.hear(), other.hear())
        begin(owner, "r-1", lease=0.6)
        other.tell("resume", "r-1")
        assert ["RunLockedError"] == other.hear()
        owner.freeze()
        other.tell("resume", "r-1", on_locked="wait")
        assert ["in", "b"] == other.hear()
        finish(other)
        assert ["done", [*"abc"]] == other.hear()
        with open_store(url) as store:
            journal = store.read("r-1")
            owner.thaw()
            owner.tell()
            assert ["LeaseLost"] == owner.hear()
            assert journal == store.read("r-1")
            assert "finished" == store.get_run("r-1").info.status
        assert [(owner.pid, "a"), (owner.pid, "b"), (other.pid, "b"), (other.pid, "c")] == [
            (call.pid, call.node_id) for call in calls_of(log, "r-1")
        ]


# -- the end of a run ------------------------------------------------------------------------------------------


def test_a_cancel_just_before_the_last_node_ends_is_the_one_outcome_and_the_process_goes_on(url: str, log: str) -> None:
    with process("obey", url, log) as owner, open_store(url) as store, Engine(store) as engine:
        assert ["up"] == owner.hear()
        begin(owner, "r-1")
        owner.tell()
        assert ["in", "c"] == owner.hear()
        assert "requested" == engine.cancel("r-1", "not needed")
        owner.tell()
        assert ["RunCancelled"] == owner.hear()
        info = store.get_run("r-1").info
        assert ("cancelled", "not needed") == (info.status, info.reason)
        assert ["cancelled"] == [record.fields()["status"] for record in store.read("r-1", kinds=("finish",))]
        owner.tell("resume", "r-1")
        assert ["RunNotResumableError"] == owner.hear()
        begin(owner, "r-2")
        finish(owner)
        assert ["done", [*"abc"]] == owner.hear()


def test_a_delete_that_is_killed_leaves_the_whole_run_or_nothing_of_it(forks: Forks, url: str, log: str) -> None:
    graph, parts, outcomes = row(Log(log), lambda node_id: None), 5, []
    with open_store(url) as store:
        graph.run(["old"], store=store, run_id="r-1", tags={"old": "yes"})
        whole = store.export("r-1")
        ((_, moments),) = forks.call(die_in_a_delete, url, -1).told
        for part in range(parts + 1):
            store.import_run(whole)
            before = store.export("r-1")
            moment = moments * part // parts if part < parts else sys.maxsize
            assert forks.call(die_in_a_delete, url, moment).was_killed
            outcomes.append(bool(store.list_runs()))
            if outcomes[-1]:
                assert before == store.export("r-1")
                assert store.verify("r-1").ok
                store.delete_run("r-1")
            assert ([], []) == (store.list_runs(), store.read("r-1"))
            assert ["new", *"abc"] == graph.run(["new"], store=store, run_id="r-1")
            assert {} == dict(store.get_run("r-1").info.tags)
            assert [1, 1, 1] == [info.visit for info in store.history("r-1")]
            assert b"old" not in store.export("r-1")
            store.delete_run("r-1")
    assert (True, False) == (outcomes[0], outcomes[-1])
