"""What the library weighs: time and modules of its import, memory of a process, waits for the disk per node."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import milepost
from benchmarks.children import compiled, run_child
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import Rounds, interleave, seconds
from benchmarks.setting import Setting

__all__ = ["UNTRACED", "count_fsyncs", "fsyncs", "importing", "memory"]

_EXTRAS = frozenset(
    {"attrs", "attr", "click", "cryptography", "jsonpatch", "opentelemetry", "psycopg", "pydantic", "rich"}
)
UNTRACED = "fsyncs per node (strace is not there, or may not trace)"
_NEEDED = "asyncio,msgspec,sqlite3,hashlib,logging,dataclasses"
_NAMES = ("Engine", "Graph", "SQLiteStore")
_FIRST = """
import sys
from dataclasses import dataclass

from milepost import Engine, Graph, SQLiteStore


@dataclass
class Count:
    n: int = 0


def add(state: Count) -> Count:
    return Count(state.n + 1)


graph = Graph(Count).add_node("add", add).set_entry("add").add_edge("add", "__end__").compile("first")
with SQLiteStore(sys.argv[1]) as store, Engine(store) as engine:
    assert engine.run(graph.bind(Count())) == Count(1)
"""


def importing(setting: Setting) -> Iterator[Figure]:
    """Imports in a new process with bytecode compiled, and the first run of a program from its start to its end.

    The package loads what is asked for when it is asked for: `import milepost` alone says little, and stands beside the import
    of what most programs ask for, and a whole program that has run one durable node.
    """
    every = [name for name in milepost.__all__ if name != "PostgresStore"]  # which needs an extra
    modules: dict[str, list[str]] = {}
    with compiled() as env, setting.folder(next(iter(setting.places))) as folder:

        def imports(side: str, names: str) -> float:
            command = (sys.executable, "-m", "benchmarks.children", "importing", names)
            told = json.loads(run_child(command, env))
            modules[side] = told["modules"]
            return float(told["seconds"])

        def program(*given: str) -> float:
            (folder / "runs.db").unlink(missing_ok=True)
            return seconds(run_child, (sys.executable, "-c", *given), env)

        found = interleave(
            setting.size.rounds,
            {
                "package": lambda: imports("package", "milepost"),
                "names": lambda: imports("names", ",".join(f"milepost:{name}" for name in _NAMES)),
                "every": lambda: imports("every", ",".join(f"milepost:{name}" for name in every)),
                "needed": lambda: imports("needed", _NEEDED),
                "first": lambda: program(_FIRST, str(folder / "runs.db")),
                "python": lambda: program("pass"),
            },
        )
    yield compare("import milepost", found, ours="package", measure="ours", unit="ms", scale=1e3)
    names = ", ".join(_NAMES)
    yield compare(
        f"import {names}", found, ours="names", measure="ours", unit="ms", scale=1e3, goal=at_most(150),
        aim=at_most(100), note=_loaded(modules["names"]),
    )  # fmt: skip
    yield compare(
        f"import {names} beside asyncio and others", found, ours="names", measure="ratio", unit="ms", scale=1e3,
        limit="needed", limit_is=_NEEDED.replace(",", ", "),
    )  # fmt: skip
    yield compare(
        "import every name", found, ours="every", measure="ours", unit="ms", scale=1e3, note=_loaded(modules["every"])
    )  # fmt: skip
    yield compare(
        "first run: a program imports, builds, runs one node on a new SQLite file and ends", found, ours="first",
        measure="beyond", unit="ms", scale=1e3, limit="python", limit_is="python -c pass", aim=at_most(100),
    )  # fmt: skip


def _loaded(modules: Sequence[str]) -> str:
    own = sum(name.partition(".")[0] == "milepost" for name in modules)
    extras = sorted(_EXTRAS & {name.partition(".")[0] for name in modules})
    return f"{len(modules)} modules, {own} of its own, of the extras {', '.join(extras) or 'none'}"


def memory(setting: Setting) -> Iterator[Figure]:
    """The peak of a process that imports the library and runs nodes on SQLite, beside one that inserts rows."""
    try:
        import resource  # noqa: F401
    except ImportError:  # not on Windows
        return
    place = next(iter(setting.places))

    def side(kind: str) -> float:
        with setting.folder(place) as folder:
            command = (sys.executable, "-m", "benchmarks.children", "memory", str(folder / "runs.db"))
            told = json.loads(run_child((*command, str(setting.size.nodes), kind)))
        return float(told["peak"])

    found = interleave(setting.size.long_rounds, {"ours": lambda: side("library"), "raw": lambda: side("raw")})
    figure = compare(
        f"peak memory, import and {setting.size.nodes} nodes on SQLite", found, measure="ours", unit="MB", scale=1e-6,
        aim=at_most(35),
    )  # fmt: skip
    yield figure
    yield compare(
        "peak memory beside raw inserts", found, measure="beyond", unit="MB", scale=1e-6, limit="raw",
        limit_is="python with sqlite3",
    )  # fmt: skip


def fsyncs(setting: Setting) -> Iterator[Figure]:
    """Waits for the disk, counted by strace: the difference of two runs of different length, so exact per node."""
    if shutil.which("strace") is None:
        return
    few, many = max(setting.size.nodes // 10, 1), setting.size.nodes
    try:
        counts = {
            kind: (_traced(setting, many, kind) - _traced(setting, few, kind)) / (many - few)
            for kind in ("library", "raw")
        }
    except RuntimeError:  # a container may forbid it
        return
    found = Rounds({"ours": (counts["library"],), "raw": (counts["raw"],)})
    yield compare(
        "fsyncs per durable node", found, measure="ours", unit="fsyncs", place=next(iter(setting.places)),
        goal=at_most(1.05), note=f"raw insert {counts['raw']:.3g}; what is above 1 moves the log",
    )  # fmt: skip


def _traced(setting: Setting, times: int, kind: str) -> int:
    with setting.folder(next(iter(setting.places))) as folder:
        command = (sys.executable, "-m", "benchmarks.children", "alone", str(folder / "runs.db"), str(times), kind)
        return count_fsyncs(command, folder / "counted")


def count_fsyncs(command: Sequence[str], counted: Path, env: dict[str, str] | None = None) -> int:
    """The waits for the disk of a command that `strace` runs; `counted` is a file for its table.

    Raises RuntimeError where the command fails or may not be traced.
    """
    run_child(("strace", "-f", "-c", "-o", str(counted), "-e", "trace=fsync,fdatasync", *command), env)
    return _total(counted)


def _total(counted: Path) -> int:
    """The calls in a table of `strace -c`; 0 where nothing was called."""
    return sum(
        int(found[1])
        for found in re.finditer(
            r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?f(?:data)?sync$", counted.read_text(), re.MULTILINE
        )
    )
