"""How long a run stands still when its owner is gone: from the kill, or the end of the lease, to the next execution.

Two real processes work on one store. The one that has the run is killed with SIGKILL, which another worker on this host
notices at its next poll; or it is made to look like a process of another host, whose lease must end first.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.children import environment
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import interleave
from benchmarks.setting import Setting
from milepost import END, CompiledGraph, Engine, Graph
from milepost.model.ids import this_process

__all__ = ["takeover", "work"]

LEASE = 2.0
_FLOW = "stands"


def takeover(setting: Setting) -> Iterator[Figure]:
    """The standstill after a kill on this host, and after a host vanished."""
    with setting.folder("disk") as folder:
        found = interleave(
            setting.size.rounds,
            {
                "kill": partial(_standstill, folder, is_foreign=False),
                "host": partial(_standstill, folder, is_foreign=True),
            },
        )
    yield compare(
        "taken over after a kill", found, measure="ours", unit="s", place="disk", ours="kill", goal=at_most(1),
        note="worker with poll=1.0 on the same host",
    )  # fmt: skip
    yield compare(
        "taken over after a host vanished", found, measure="ours", unit="s", place="disk", ours="host", goal=at_most(1),
        note=f"counted from the end of its lease of {LEASE:g} s",
    )  # fmt: skip


def _standstill(folder: Path, *, is_foreign: bool) -> float:
    """Seconds from the moment when the run may be taken to its next execution."""
    name = f"{time.monotonic_ns()}"
    store, log = f"sqlite:///{folder / name}.db", folder / f"{name}.log"
    log.touch()
    owner = _worker(store, log, is_foreign)
    try:
        with Engine(store, flows=[_stands(log)]) as engine:
            handle = engine.start(_stands(log), {})
            _until(lambda: len(_times(log)) == 1)
            other = _worker(store, log, is_foreign=False)
            try:
                _until(lambda: len(_times(log, "up")) == 2)
                time.sleep(random.random())  # anywhere between two polls
                owner.send_signal(signal.SIGKILL)
                owner.wait()
                since = time.monotonic()
                if is_foreign:
                    until = handle.info().lease_until
                    assert until is not None
                    since += until.timestamp() - time.time()
                _until(lambda: len(_times(log)) == 2)
                return _times(log)[1] - since
            finally:
                other.kill()
                other.wait()
    finally:
        owner.kill()
        owner.wait()


def _stands(log: Path) -> CompiledGraph[dict[str, object]]:
    def stand(state: dict[str, object]) -> dict[str, object]:
        _note(log, "run")
        time.sleep(60)
        return state

    graph = Graph(dict).add_node("stand", stand).add_edge("stand", END).set_entry("stand")
    return graph.compile(_FLOW)


def _worker(store: str, log: Path, is_foreign: bool) -> subprocess.Popen[bytes]:
    source = f"from benchmarks.takeover import work; work({store!r}, {str(log)!r}, {is_foreign!r})"
    return subprocess.Popen([sys.executable, "-c", source], env=environment())


def work(store: str, log: str, is_foreign: bool) -> None:
    """Be a worker, until killed; `is_foreign`: one whose process nobody on this host can look for."""
    if is_foreign:
        this_process().name = "another-boot:1:1:1"
    with Engine(store, flows=[_stands(Path(log))], lease=LEASE) as engine:
        _note(Path(log), "up")
        engine.worker().run()


def _note(log: Path, what: str) -> None:
    descriptor = os.open(log, os.O_APPEND | os.O_WRONLY)
    try:
        os.write(descriptor, f"{what} {time.monotonic()}\n".encode())
    finally:
        os.close(descriptor)


def _times(log: Path, what: str = "run") -> list[float]:
    lines = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    return [float(at) for told, at in lines if told == what]


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError("a worker did not do its part within a minute")
        time.sleep(0.002)
