"""The works: which systems do them, and which lines of the report they give."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.children import run_child
from benchmarks.footprint import count_fsyncs
from benchmarks.peers.measuring import DEFAULT, Bench, Side, systems_of
from benchmarks.peers.report import Line
from benchmarks.peers.systems import LIMIT, OURS, SYSTEMS

__all__ = ["WORKS"]

_MICRO, _MILLI = 1e6, 1e3
_STEPS = "milepost-steps"
_UNSAVED = (LIMIT, OURS, _STEPS, "langgraph", "burr", "pydantic-graph", "llama-index")
_ON_SQLITE = (LIMIT, OURS, _STEPS, "langgraph", "dbos", "burr")
_ON_POSTGRES = (LIMIT, OURS, _STEPS, "langgraph", "dbos", "absurd")
_BY_DEFAULT = tuple(name + DEFAULT for name in ("langgraph", "dbos", "burr"))


def _defaults(told: Mapping[str, Any], values: Mapping[str, list[float]], fact: str, scale: float) -> Any:
    """The values of the systems as they come; what has no other defaults stays as it is."""
    own = {name.removesuffix(DEFAULT): rounds for name, rounds in told.items() if name.endswith(DEFAULT)}
    kept = {name: found for name, found in values.items() if name in (LIMIT, OURS, _STEPS)}
    return kept | systems_of(own, fact, scale)


def unsaved(bench: Bench) -> Iterator[Line]:
    """A loop of steps that keeps nothing."""
    times = bench.setting.size.nodes
    sides = {name: partial(bench.child, "unsaved", name, "count", times=times) for name in _UNSAVED}
    told = bench.rounds(bench.setting.size.rounds, sides)
    for name in ("pydantic-graph", "llama-index"):
        bench.settings.setdefault(name, {})
    yield Line("step without a store", "us", systems_of(told, "seconds", _MICRO), chart="step without a store")


def durable(bench: Bench) -> Iterator[Line]:
    """Steps of 1 KB on SQLite, and the memory of such a process."""
    size = bench.setting.size
    for place in bench.setting.places:
        systems = (*_ON_SQLITE, *_BY_DEFAULT) if place == "disk" else _ON_SQLITE
        sides = {
            name: partial(bench.on_a_file, place, "run", name, "page", run_id="run", times=size.nodes)
            for name in systems
        }
        told = bench.rounds(size.rounds, sides)
        values = systems_of(told, "seconds", _MICRO)
        label = f"durable step of 1 KB, SQLite on {place}"
        yield Line(label, "us", values, chart=label)
        if place == "disk":
            yield Line(
                f"{label}, each as it comes", "us", _defaults(told, values, "seconds", _MICRO),
                notes=_default_notes(bench),
            )  # fmt: skip
            peak = systems_of(told, "peak", 1e-6)
            yield Line(f"peak memory, import and {size.nodes} such steps", "MB", peak, chart="peak memory")


def _default_notes(bench: Bench) -> dict[str, str]:
    return {
        name: uses["SQLite by default"].partition("journal_mode=")[2].partition(" ")[0]
        + (', durability="async"' if name == "langgraph" else "")
        for name, uses in bench.settings.items()
        if "SQLite by default" in uses
    }


def fsyncs(bench: Bench) -> Iterator[Line]:
    """Waits for the disk per step, exactly: the difference of a long and a short run."""
    if shutil.which("strace") is None:
        return
    few, many = (20, 120) if bench.setting.size.nodes > 20 else (2, 4)

    def count(system: str, times: int) -> int:
        with bench.setting.folder("disk") as folder:
            place = {"path": str(folder / "runs.db")}
            command = bench.command("run", system, "page", place=place, run_id="run", times=times)
            return count_fsyncs(command, folder / "counted", bench.env)

    told: dict[str, list[dict[str, float]]] = {}
    for name in (*_ON_SQLITE, *_BY_DEFAULT):
        try:
            told[name] = [{"fsyncs": (count(name, many) - count(name, few)) / (many - few)}]
        except RuntimeError as exc:  # a container may forbid it
            sys.stderr.write(f"fsyncs of {name}: {exc}\n")
    values = systems_of(told, "fsyncs")
    yield Line("fsyncs per durable step on SQLite", "fsyncs", values)
    yield Line("fsyncs per durable step on SQLite, each as it comes", "fsyncs", _defaults(told, values, "fsyncs", 1.0))


def growth(bench: Bench) -> Iterator[Line]:
    """A list that grows by 2 KB a step: the time, and the bytes on the disk when it is closed."""
    size = bench.setting.size
    sides = {
        name: partial(bench.on_a_file, "disk", "run", name, "list", run_id="run", times=size.growth)
        for name in (*_ON_SQLITE, "langgraph-delta")
    }
    told = bench.rounds(size.long_rounds, sides)
    for fact, unit, scale, what in (("seconds", "us", _MICRO, "time per step"), ("size", "MB", 1e-6, "bytes on disk")):
        values = systems_of(told, fact, scale)
        delta = values.pop("langgraph-delta", None)
        label = f"list growing by 2 KB for {size.growth} steps, {what}"
        yield Line(label, unit, values, chart=label)
        if delta:
            kept = {name: values[name] for name in (LIMIT, OURS) if name in values}
            yield Line(f"{label}, DeltaChannel (beta)", unit, {**kept, "langgraph": delta})


def big(bench: Bench) -> Iterator[Line]:
    """A state of a megabyte. Where steps are recorded and no state is, a step returns what it changed."""
    size = bench.setting.size
    for task, what in (
        ("rewritten", "rewritten"),
        ("changed", "one record changed"),
        ("untouched", "untouched"),
    ):
        sides = {
            name: partial(bench.on_a_file, "disk", "run", name, task, run_id="run", times=size.big)
            for name in _ON_SQLITE
        }
        told = bench.rounds(size.long_rounds, sides)
        notes = {} if task == "rewritten" else dict.fromkeys((_STEPS, "dbos"), "records outputs, no state")
        label = f"state of 1 MB, {what}"
        yield Line(label, "ms", systems_of(told, "seconds", _MILLI), notes=notes, chart=label)


def resume(bench: Bench) -> Iterator[Line]:
    """From the call that resumes a run to its next step, after a process that was killed."""
    size = bench.setting.size
    with bench.setting.folder("disk") as folder:
        places = {
            (name, length): _interrupted(bench, folder, name, length)
            for name in (*_ON_SQLITE, "absurd")
            for length in size.journals
        }
        os.sync()

        def side(system: str, length: int, *, is_warm: bool = True) -> dict[str, Any]:
            warm = bench.name() if is_warm else None
            facts = {"place": places[system, length], "run_id": _JOURNAL, "times": length + 1, "warm_run_id": warm}
            return bench.child("resumed", system, "page", ends_with=_death(system), **facts)

        notes = {"dbos": "from launch", "absurd": "PostgreSQL"}
        for length in size.journals:
            sides: dict[str, Side] = {name: partial(side, name, length) for name in (*_ON_SQLITE, "absurd")}
            values = systems_of(bench.rounds(size.long_rounds, sides), "seconds", _MILLI)
            chart = f"resume at {length:,} checkpoints" if length == size.journals[-1] else ""
            yield Line(f"resume at {length:,} checkpoints to the next step", "ms", values, notes=notes, chart=chart)
        length = size.journals[1]
        sides = {name: partial(side, name, length, is_warm=False) for name in (*_ON_SQLITE, "absurd")}
        values = systems_of(bench.rounds(size.long_rounds, sides), "seconds", _MILLI)
        yield Line(f"resume at {length:,} checkpoints as the first thing a process does", "ms", values, notes=notes)


_JOURNAL = "interrupted"


def _death(system: str) -> int:
    """How a process ends that dies as this system's do."""
    return 0 if system == "absurd" else -9


def _interrupted(bench: Bench, folder: Path, system: str, length: int) -> dict[str, str]:
    """A run that died after `length` steps; made in memory where that can be, for it takes long."""
    facts: dict[str, Any] = {"run_id": _JOURNAL, "times": length + 1}
    if system == "absurd":
        place = {"dsn": bench.database(f"absurd-{length}")}
        bench.child("interrupted", system, "page", place=place, **facts)
        return place
    name = f"{system}-{length}"
    with bench.setting.folder(list(bench.setting.places)[-1]) as fast:
        made = {"path": str(fast / "runs.db")}
        bench.child("interrupted", system, "page", ends_with=_death(system), place=made, **facts)
        shutil.copytree(fast, folder / name)
    return {"path": str(folder / name / "runs.db")}


def runs(bench: Bench) -> Iterator[Line]:
    """Many runs at once in one process, on one SQLite file."""
    size = bench.setting.size
    names = [bench.name() for _ in range(size.runs)]
    sides = {
        name: partial(bench.on_a_file, "disk", "together", name, "page", run_ids=names, times=size.run_nodes)
        for name in _ON_SQLITE
    }
    told = bench.rounds(size.long_rounds, sides)
    label = f"{size.runs} runs at once, one SQLite file"
    yield Line(label, "steps/s", systems_of(told, "rate"), is_rate=True, chart=label)


def processes(bench: Bench) -> Iterator[Line]:
    """A run each in several processes on one SQLite file, and how many of them were lost."""
    size = bench.setting.size
    lost: dict[str, list[int]] = {}

    def side(system: str) -> dict[str, float]:
        with bench.setting.folder("disk") as folder:
            path = str(folder / "runs.db")
            bench.child("run", system, "page", place={"path": path}, run_id=bench.name(), times=2)  # makes the tables
            facts = [
                {"place": {"path": path, "owner": f"owner-{n}"}, "run_id": bench.name(), "times": size.process_nodes}
                for n in range(size.processes)
            ]
            told = bench.children("beside", system, "page", facts)
        done = [child for child in told if not child["lost"]]
        lost.setdefault(system, []).append(len(told) - len(done))
        taken = max(child["ended"] for child in told) - min(child["began"] for child in told)
        return {"rate": len(done) * size.process_nodes / taken}

    told = bench.rounds(size.long_rounds, {name: partial(side, name) for name in (*_ON_SQLITE, *_BY_DEFAULT)})
    started = size.processes * (size.long_rounds + 1)
    notes = {name: f"{sum(found)} of {started} runs lost" for name, found in lost.items()}
    values = systems_of(told, "rate")
    label = f"{size.processes} processes on one SQLite file"
    yield Line(label, "steps/s", values, is_rate=True, notes=notes, chart=label)
    defaults = notes | {name.removesuffix(DEFAULT): note for name, note in notes.items() if name.endswith(DEFAULT)}
    yield Line(
        f"{label}, each as it comes", "steps/s", _defaults(told, values, "rate", 1.0), is_rate=True,
        notes=defaults,
    )  # fmt: skip


def postgres(bench: Bench) -> Iterator[Line]:
    """One run and many on PostgreSQL, every system in a database of its own."""
    size = bench.setting.size
    places = {name: {"dsn": bench.database(name)} for name in _ON_POSTGRES}

    def alone(system: str) -> dict[str, Any]:
        facts = {"place": places[system], "run_id": bench.name(), "times": size.nodes // 2}
        told = bench.child("run", system, "page", **facts)
        bench.note(system, "PostgreSQL", told)
        return told

    def together(system: str) -> dict[str, Any]:
        names = [bench.name() for _ in range(size.runs)]
        return bench.child("together", system, "page", place=places[system], run_ids=names, times=size.run_nodes)

    told = bench.rounds(size.long_rounds, {name: partial(alone, name) for name in _ON_POSTGRES})
    label = "durable step of 1 KB, PostgreSQL"
    yield Line(label, "us", systems_of(told, "seconds", _MICRO), chart=label)
    told = bench.rounds(size.long_rounds, {name: partial(together, name) for name in _ON_POSTGRES})
    label = f"{size.runs} runs at once, PostgreSQL"
    yield Line(label, "steps/s", systems_of(told, "rate"), is_rate=True, chart=label)


def importing(bench: Bench) -> Iterator[Line]:
    """The import of what a program with a SQLite store needs, bytecode compiled."""

    def side(imports: Sequence[str]) -> dict[str, Any]:
        command = (sys.executable, "-m", "benchmarks.children", "importing", ",".join(imports))
        told: dict[str, Any] = json.loads(run_child(command, bench.env))
        return told

    sides: dict[str, Side] = {name: partial(side, found.imports) for name, found in SYSTEMS.items() if found.imports}
    told = bench.rounds(bench.setting.size.rounds, sides)
    yield Line("import", "ms", systems_of(told, "seconds", _MILLI), chart="import")


WORKS: Mapping[str, Callable[[Bench], Iterator[Line]]] = {
    "unsaved": unsaved,
    "durable": durable,
    "fsyncs": fsyncs,
    "growth": growth,
    "big": big,
    "resume": resume,
    "runs": runs,
    "processes": processes,
    "postgres": postgres,
    "import": importing,
}
