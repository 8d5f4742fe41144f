"""A process under torture: `python -m benchmarks.torture.work worker|verbs TASK`, with a `Task` as JSON.

Its nodes append each call to a log outside the store, in one write each, and leave what they did in the state, so that
a node that is lost, doubled or out of order is seen there.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from benchmarks.torture.checking import path_of
from milepost import (
    END,
    CompiledGraph,
    Context,
    Engine,
    Graph,
    LeaseLost,
    RunLockedError,
    Store,
    StoreError,
    open_store,
)
from milepost.events import CheckpointFailed, CheckpointSaved, RunCompleted

__all__ = ["Task"]

T = TypeVar("T")

_POLL = 0.02
_WORKER_POLL = 0.1
_OPEN = ("ready", "running", "dead", "waiting", "interrupted")
_ENDED = {"finished", "failed", "cancelled", "blocked"}


@dataclass(frozen=True, slots=True)
class Task:
    """What every process of an ordeal is given."""

    store: str
    """Its URL."""
    log: str
    """The file that all of them append to."""
    name: str
    """Of the flow, and the beginning of each run's id."""
    runs: int
    nodes: int
    """How many each run executes."""
    seed: int
    lease: float
    pause: float
    """Seconds that a node takes, on average."""
    concurrency: int
    """Of each worker."""
    is_rescuing: bool
    """Whether who calls verbs resumes failed runs too, as people do when the store is back: no worker does."""

    @property
    def run_ids(self) -> list[str]:
        """The ids of all runs."""
        return [f"{self.name}-{number:05d}" for number in range(self.runs)]

    def to_json(self) -> str:
        """The task as an argument of a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The task that `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass
class Walk:
    """Where a run has been."""

    run: str
    trail: list[str] = field(default_factory=list)


class Outside:
    """The log outside the store. Lines of several processes never mix: each is one write to its end."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, *words: object) -> None:
        """Append a line."""
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())

    def add_error(self, error: BaseException) -> None:
        """Append what the store failed at, and with which exception of its driver."""
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        self.add("error", type(error).__name__, "at", getattr(error, "op", None), "by", type(cause).__name__)

    def watch(self, event: Any) -> None:
        """Note what a verb tells of its run; a hook."""
        if type(event) is CheckpointSaved:
            self.add("saved", event.run_id, event.sequence, event.node_id)
        elif type(event) is CheckpointFailed:
            self.add_error(event.error)
        elif type(event) is RunCompleted and isinstance(event.error, LeaseLost):
            self.add("lost", event.run_id)


def flow_of(task: Task, outside: Outside) -> CompiledGraph[Walk]:
    """A flow whose runs follow `path_of(task.nodes)`."""
    path = path_of(task.nodes)
    rounds = path[-1][1]

    def visit(ctx: Context[Any], walk: Walk) -> Walk:
        outside.add("began", ctx.run_id, ctx.node_id, ctx.visit, ctx.attempt, os.getpid(), time.time())
        # Changed before the time in which the process may die: a state that is half done must not come back.
        walk.trail.append(f"{ctx.node_id}#{ctx.visit}")
        draw = random.Random(f"{task.seed} {ctx.run_id} {ctx.node_id} {ctx.visit}")
        time.sleep(draw.uniform(0, 2 * task.pause))
        return walk

    def decide(ctx: Context[Any], walk: Walk) -> str:
        return "turn" if ctx.visit < rounds else END

    graph = Graph(Walk)
    line = list(dict.fromkeys(node_id for node_id, _ in path))
    for node_id in line:
        graph.add_node(node_id, visit)
    for source, target in itertools.pairwise(line):
        graph.add_edge(source, target)
    return graph.add_conditional_edge("back", decide, ["turn", END]).set_entry(line[0]).compile(task.name)


def be_worker(store: Store, flow: CompiledGraph[Walk], task: Task, outside: Outside) -> None:
    """Start the runs that are missing, and be an engine's worker until all have ended."""
    # No number of crashes blocks a run: what dies here was killed from outside.
    engine = Engine(store, flows=[flow], hooks=[outside.watch], lease=task.lease, max_crashes=None, max_iterations=None)
    with engine.worker(concurrency=task.concurrency, poll=_WORKER_POLL):
        _patiently(lambda: _start_missing(engine, flow, task), outside)
        while _patiently(lambda: store.list_runs(flow=task.name, status=_OPEN, limit=1), outside):
            time.sleep(_WORKER_POLL)


def _start_missing(engine: Engine, flow: CompiledGraph[Walk], task: Task) -> None:
    known = {info.run_id for info in engine.list_runs(flow=task.name, limit=task.runs)}
    for run_id in task.run_ids:
        if run_id not in known:
            engine.start(flow, Walk(run_id), run_id=run_id, if_exists="return")


def call_verbs(store: Store, flow: CompiledGraph[Walk], task: Task, outside: Outside) -> None:
    """Run what is missing and resume what nobody executes, one after the other, until all have ended."""
    draw = random.Random()

    def go_on() -> bool:
        run_id = _next_run(store, task, draw)
        if run_id is None:
            return False
        if run_id == "":
            time.sleep(_POLL)
            return True
        with suppress(RunLockedError, LeaseLost):  # another process has it
            flow.run(
                Walk(run_id),
                store=store,
                run_id=run_id,
                if_exists="resume",
                hooks=[outside.watch],
                lease=task.lease,
                max_crashes=None,
                max_iterations=None,
            )
        return True

    while _patiently(go_on, outside):
        pass


def _patiently(act: Callable[[], T], outside: Outside) -> T:
    """What `act` gives, tried again for as long as the store fails."""
    while True:
        try:
            return act()
        except StoreError as exc:
            outside.add_error(exc)
            time.sleep(_POLL)


def _next_run(store: Store, task: Task, draw: random.Random) -> str | None:
    """A run to go on with, or else to start; "" if there is none now, None if all have ended."""
    status = {info.run_id: info.status for info in store.list_runs(flow=task.name, limit=task.runs)}
    resumable = {"dead", "interrupted", "ready", *(["failed"] if task.is_rescuing else [])}
    if len(status) == task.runs and _ENDED.issuperset(status.values()) and not resumable.intersection(status.values()):
        return None
    due = [run_id for run_id, found in status.items() if found in resumable]
    due = due or [run_id for run_id in task.run_ids if run_id not in status]
    return draw.choice(due) if due else ""


def main(arguments: Sequence[str]) -> None:
    """Be one of the processes: a worker, or one that calls verbs itself."""
    _end_with_parent()
    kind, text = arguments
    task = Task.from_json(text)
    outside = Outside(task.log)
    with _patiently(lambda: open_store(task.store), outside) as store:
        (be_worker if kind == "worker" else call_verbs)(store, flow_of(task, outside), task, outside)


def _end_with_parent() -> None:
    """Be killed with the process that started this one: who is frozen could not see its end otherwise."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    main(sys.argv[1:])
