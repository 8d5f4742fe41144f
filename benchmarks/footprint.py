"""What the library weighs: time and modules of its import, memory of a process, waits for the disk per node."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.children import compiled, run_child
from benchmarks.report import Figure, at_most, compare
from benchmarks.rounds import Rounds, interleave
from benchmarks.setting import Setting

__all__ = ["UNTRACED", "count_fsyncs", "fsyncs", "importing", "memory"]

_EXTRAS = frozenset(
    {"attrs", "attr", "click", "cryptography", "jsonpatch", "opentelemetry", "psycopg", "pydantic", "rich"}
)
UNTRACED = "fsyncs per node (strace is not there, or may not trace)"


def importing(setting: Setting) -> Iterator[Figure]:
    """Import in a new process with bytecode compiled, beside what the library itself must import."""
    needed = "asyncio,msgspec,sqlite3,hashlib,logging,dataclasses"
    modules: set[str] = set()
    with compiled() as env:

        def side(names: str) -> float:
            command = (sys.executable, "-m", "benchmarks.children", "importing", names)
            told = json.loads(run_child(command, env))
            if names == "milepost":
                modules.update(told["modules"])
            return float(told["seconds"])

        found = interleave(setting.size.rounds, {"ours": lambda: side("milepost"), "needed": lambda: side(needed)})
    extras = sorted(_EXTRAS & {name.partition(".")[0] for name in modules})
    own = sum(name.partition(".")[0] == "milepost" for name in modules)
    figure = compare(
        "import milepost", found, measure="ours", unit="ms", scale=1e3, goal=at_most(150), aim=at_most(100),
        note=f"{len(modules)} modules, {own} of its own, of the extras {', '.join(extras) or 'none'}",
    )  # fmt: skip
    yield figure
    yield compare(
        "import beside what it must import", found, measure="ratio", unit="ms", scale=1e3, limit="needed",
        limit_is="asyncio, msgspec, sqlite3, hashlib, logging, dataclasses",
    )  # fmt: skip


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
