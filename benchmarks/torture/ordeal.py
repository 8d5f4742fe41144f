"""The ordeal: workers that are killed, frozen and started anew until all runs have ended.

What is done, to which worker and after how many calls of nodes is drawn from the seed beforehand; how that falls
together with what the workers do is left to the machine.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks.torture.checking import Disturbance, Verdict, judge, path_of
from benchmarks.torture.crew import Crew
from benchmarks.torture.reading import read_journals, read_log
from benchmarks.torture.work import Task

__all__ = ["Ordeal", "Outcome", "torture"]

Kind = Literal["kill", "freeze", "restart"]

_TICK = 0.002


@dataclass(frozen=True, slots=True)
class Ordeal:
    """What is done. `kills`, `freezes` and `restarts` are how often."""

    store: str
    """The URL of a store that processes share."""
    name: str
    """Of the flow, and the beginning of each run's id: new in that store."""
    processes: int = 6
    verbs: int = 2
    """How many of the processes call verbs themselves, instead of being workers."""
    concurrency: int = 3
    """How many runs a worker has at once."""
    runs: int = 200
    nodes: int = 25
    kills: int = 40
    freezes: int = 20
    restarts: int = 0
    seed: int = 0
    lease: float = 1.0
    pause: float = 0.012
    restart: Callable[[], None] | None = None
    """Restarts the store's server, and returns when that is done."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done, and what became of the runs."""

    runs: int
    kills: int
    freezes: int
    restarts: int
    errors: Counter[str]
    """What processes were told of a store that failed, and how often."""
    seconds: float
    verdict: Verdict


def torture(ordeal: Ordeal, folder: Path) -> Outcome:
    """Do it, and judge what is left; the workers' log and what they complain of is kept in `folder`."""
    task = Task(
        store=ordeal.store,
        log=str(folder / f"{ordeal.name}.log"),
        name=ordeal.name,
        runs=ordeal.runs,
        nodes=ordeal.nodes,
        seed=ordeal.seed,
        lease=ordeal.lease,
        pause=ordeal.pause,
        concurrency=ordeal.concurrency,
        is_rescuing=ordeal.restarts > 0,
    )
    began = time.monotonic()
    with Crew(task, ordeal.processes, ordeal.verbs, folder) as crew:
        _strike_until_done(crew, ordeal)
    log = read_log(Path(task.log))
    journals = read_journals(task.store, task.run_ids)
    verdict = judge(task.run_ids, path_of(task.nodes), journals, log, crew.disturbances, task.lease)
    return Outcome(
        runs=task.runs,
        kills=sum(done.kind == "kill" for done in crew.disturbances),
        freezes=sum(done.kind == "freeze" for done in crew.disturbances),
        restarts=sum(done.kind == "restart" for done in crew.disturbances),
        errors=log.errors,
        seconds=time.monotonic() - began,
        verdict=replace(verdict, faults=(*crew.faults, *verdict.faults)),
    )


class _Blow(NamedTuple):
    """One thing to do, once `after` calls of nodes were made and `pause` seconds have passed since."""

    after: int
    pause: float
    kind: Kind
    victim: float
    """Which of the workers that can be hit, from 0 to 1."""
    length: float
    """Seconds to be frozen."""
    is_patient: bool
    """Whether to stay frozen, then, until another worker has gone on with the run."""


def _blows(ordeal: Ordeal) -> list[_Blow]:
    """All that is to be done, in order."""
    draw = random.Random(ordeal.seed)
    calls = ordeal.runs * ordeal.nodes
    times: dict[Kind, int] = {"kill": ordeal.kills, "freeze": ordeal.freezes, "restart": ordeal.restarts}
    blows = [
        _Blow(
            after=draw.randint(1 + calls // 50, 1 + calls * 9 // 10),
            pause=draw.uniform(0, 2 * ordeal.pause),
            kind=kind,
            victim=draw.random(),
            length=ordeal.lease * draw.uniform(1.05, 2),
            is_patient=draw.random() < 0.5,
        )
        for kind, number in times.items()
        for _ in range(number)
    ]
    return sorted(blows)


def _strike_until_done(crew: Crew, ordeal: Ordeal) -> None:
    left = _blows(ordeal)[::-1]
    due = None
    while crew.is_working():
        time.sleep(_TICK)
        now = time.monotonic()
        crew.look(now)
        if crew.is_hopeless(now):
            return
        if not left or crew.calls < left[-1].after:
            continue
        due = now + left[-1].pause if due is None else due
        if now >= due and _strike(crew, left[-1], ordeal.restart):
            left.pop()
            due = None


def _strike(crew: Crew, blow: _Blow, restart: Callable[[], None] | None) -> bool:
    """Do it; False if no worker can be hit now."""
    if blow.kind == "restart":
        if restart is not None:
            began = time.time()
            restart()
            crew.disturbances.append(Disturbance("restart", None, began, time.time()))
        return True
    able = [worker for worker in crew.workers if worker.is_alive() and (blow.kind == "kill" or not worker.is_frozen)]
    if not able:
        return False
    victim = able[int(blow.victim * len(able))]
    if blow.kind == "kill":
        crew.kill(victim)
    else:
        victim.freeze(blow.length, crew.runs_of(victim) if blow.is_patient else set())
    return True
