"""The processes that are measured from outside: `python -m benchmarks.children WHAT ARGUMENTS`.

A child that works beside others says `ready`, waits for a line, works, and writes one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

__all__ = ["compiled", "environment", "peak", "run_child", "run_together", "tell", "wait"]

_ROOT = Path(__file__).resolve().parents[1]


def environment(**changes: str) -> dict[str, str]:
    """What a child is started with, so that it finds the benchmarks."""
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *([known] if known else [])]), **changes}


@contextmanager
def compiled() -> Iterator[dict[str, str]]:
    """The environment of children that share a new cache of bytecode; the first of them fills it."""
    with tempfile.TemporaryDirectory(prefix="milepost-bytecode-") as cache:
        given = environment(PYTHONPYCACHEPREFIX=cache)
        given.pop("PYTHONDONTWRITEBYTECODE", None)
        yield given


def run_child(command: Sequence[str], env: dict[str, str] | None = None, ends_with: int = 0) -> str:
    """Run a command and give what it wrote; raises with its errors if it does not end with the status `ends_with`."""
    done = subprocess.run(command, env=env or environment(), capture_output=True, text=True, check=False)
    if done.returncode != ends_with:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def run_together(
    argument_lists: Sequence[Sequence[str]], module: str = "benchmarks.children", env: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Start a child for each list of arguments, let all begin at once, and give what each wrote."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=env or environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for arguments in argument_lists
    ]
    answers = []
    try:
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RuntimeError(f"a child ended with {child.wait()} before it began")
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            told, _ = child.communicate()
            if child.returncode:
                raise RuntimeError(f"a child ended with {child.returncode}")
            answers.append(json.loads(told))
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    return answers


# -- in the child ----------------------------------------------------------------------------------


def tell(**facts: Any) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def wait() -> None:
    """Say that this process is ready, and wait until all are."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def _nodes(path: str, run_id: str, times: str) -> None:
    """Run a loop of 1 KB nodes on a SQLite file, beside others."""
    from benchmarks.flows import Page, loop, page, turn
    from milepost import SQLiteStore

    graph, begin = loop(Page, turn, int(times)), page(1024)
    with SQLiteStore(path) as store:
        # The first run imports what it needs, and without a cache of bytecode compiles it: 35 ms that are no part of a node.
        loop(Page, turn, 1).run(begin, store=store, run_id=f"{run_id}-first", max_iterations=None)
        wait()
        began = perf_counter()
        state = graph.run(begin, store=store, run_id=run_id, max_iterations=None)
        tell(began=began, ended=perf_counter(), done=state.n)


def _raw(path: str, run_id: str, times: str, table: str, size: str) -> None:
    """Insert rows into a raw table, beside others; the rowid table numbers its rows by process."""
    from benchmarks.raw import connect

    connection = connect(Path(path), table)
    connection.execute("PRAGMA busy_timeout = 10000")
    data = b" " * int(size)
    first = int(run_id) * 1_000_000_000
    wait()
    began = perf_counter()
    for number in range(int(times)):
        connection.execute("INSERT INTO records (run, id, data) VALUES (?, ?, ?)", (run_id, first + number, data))
    tell(began=began, ended=perf_counter(), done=int(times))
    connection.close()


def _alone(path: str, times: str, kind: str) -> None:
    """Run `times` nodes, or insert as many rows, and tell nothing: what is measured is the process."""
    if kind == "raw":
        from benchmarks.raw import connect, insert_each

        connection = connect(Path(path), "rowid")
        insert_each(connection, "run", (1500,), int(times))
        connection.close()
        return
    from benchmarks.flows import Page, loop, page, turn
    from milepost import SQLiteStore

    with SQLiteStore(path) as store:
        loop(Page, turn, int(times)).run(page(1024), store=store, run_id="run", max_iterations=None)


def _memory(path: str, times: str, kind: str) -> None:
    """Do as `alone`, and tell the peak of the process's memory in bytes."""
    _alone(path, times, kind)
    tell(peak=peak())


def _visiting(kind: str, url: str, name: str) -> None:
    """Use a store, and tell the peak of the process's memory in bytes."""
    from benchmarks.scale import visit

    visit(kind, url, name)
    tell(peak=peak())


def _working(*given: str) -> None:
    """Be a worker until nothing is due, beside others."""
    from benchmarks.scale import work

    tell(**work(*given, wait=wait))


def peak() -> int:
    """The most bytes of memory that this process has had."""
    # What getrusage tells begins with the size of the process that started this one; the kernel's own mark does not.
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _importing(names: str) -> None:
    """Import modules, or what is in them (`module:name`), and tell the seconds and what was loaded."""
    before = set(sys.modules)
    began = perf_counter()
    for name in filter(None, names.split(",")):
        module, _, inner = name.partition(":")
        found = import_module(module)
        if inner:
            getattr(found, inner)
    taken = perf_counter() - began
    tell(seconds=taken, modules=sorted(set(sys.modules) - before))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    works: dict[str, Callable[..., None]] = {
        "nodes": _nodes,
        "raw": _raw,
        "alone": _alone,
        "memory": _memory,
        "visiting": _visiting,
        "working": _working,
        "importing": _importing,
    }
    works[what](*arguments)
