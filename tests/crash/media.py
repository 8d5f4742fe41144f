"""What tests of broken media share: the stores they try, a flow that logs, runs that nobody may touch, and processes.

A store joins all of them with a line of `MEDIA`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from milepost import END, CompiledGraph, Graph, SQLiteStore, Store
from milepost.errors import RunStopped
from milepost.stores.file.store import FileStore

MEDIA: dict[str, Callable[..., Store]] = {
    "sqlite": lambda folder, **options: SQLiteStore(Path(folder, "runs.db"), **options),
    "file": lambda folder, **options: FileStore(Path(folder, "runs"), **options),
}
"""How the store that lives in a folder is opened."""

every_medium = pytest.mark.parametrize("medium", MEDIA)

BESIDE = Path(__file__).parent


@dataclass
class Count:
    n: int = 0


def line(log: list[str], ids: str = "abcd", **bodies: Callable[[], object]) -> CompiledGraph[Count]:
    """A graph of nodes in a row: each logs its name, adds 1 and does what `bodies` has for it."""
    graph = Graph(Count)
    for name, target in zip(ids, [*ids[1:], END], strict=True):
        graph.add_node(name, _body(name, log, bodies.get(name, lambda: None))).add_edge(name, target)
    return graph.set_entry(ids[0]).compile("line")


def _body(name: str, log: list[str], deed: Callable[[], object]) -> Callable[[Count], Count]:
    def add(state: Count) -> Count:
        log.append(name)
        deed()
        return Count(state.n + 1)

    return add


def call(graph: CompiledGraph[Count], verb: str, *args: Any, is_async: bool = False, **options: Any) -> Any:
    """What a verb or its a-twin gives."""
    if is_async:
        return asyncio.run(getattr(graph, f"a{verb}")(*args, **options))
    return getattr(graph, verb)(*args, **options)


def add_bystanders(store: Store) -> dict[str, bytes]:
    """Add a run that has finished, one that has stopped and one from outside; `told` of them."""
    graph = line([])
    graph.run(Count(), store=store, run_id="done")
    with suppress(RunStopped):
        graph.run(Count(), store=store, run_id="parked", stop_after="b")
    store.save("outside", "a", b"anything")
    return told(store)


def told(store: Store) -> dict[str, bytes]:
    """All that a store tells of the bystanders."""
    ids = {info.run_id for info in store.list_runs()} & {"done", "parked", "outside"}
    return {run_id: store.export(run_id) for run_id in ids if store.verify(run_id).ok}


def in_process(fn: Callable[..., Any], *arguments: Any) -> Any:
    """What `fn`, from a file beside this one, gives when a process of its own calls it; all in JSON.

    AssertionError, with what it wrote, if it raised or warned of anything.
    """
    source = (
        f"import json, sys; from {fn.__module__} import {fn.__name__}; "
        f"print(json.dumps({fn.__name__}(*json.loads(sys.argv[1]))))"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", source, json.dumps(arguments)],
        cwd=BESIDE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
