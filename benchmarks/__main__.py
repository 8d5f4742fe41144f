"""`python -m benchmarks`: measure everything, or `--only` some of it, and print the report."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.codec import codec
from benchmarks.compile import compiling
from benchmarks.concurrency import concurrency
from benchmarks.files import files
from benchmarks.footprint import UNTRACED, fsyncs, importing, memory
from benchmarks.forks import forks, maps
from benchmarks.keys import keys
from benchmarks.leases import leases
from benchmarks.nodes import everyday, nodes, parts
from benchmarks.postgres import postgres
from benchmarks.report import Figure, print_report
from benchmarks.resume import resume
from benchmarks.saving import big, durable, growth, saves
from benchmarks.setting import FULL, QUICK, Setting
from benchmarks.steps import steps
from benchmarks.takeover import takeover

__all__ = ["BENCHMARKS", "main", "measure"]

BENCHMARKS: dict[str, Callable[[Setting], Iterator[Figure]]] = {
    "nodes": nodes,
    "steps": steps,
    "forks": forks,
    "maps": maps,
    "parts": parts,
    "everyday": everyday,
    "compile": compiling,
    "codec": codec,
    "saves": saves,
    "durable": durable,
    "fsyncs": fsyncs,
    "growth": growth,
    "big": big,
    "resume": resume,
    "concurrency": concurrency,
    "postgres": postgres,
    "keys": keys,
    "leases": leases,
    "files": files,
    "takeover": takeover,
    "memory": memory,
    "import": importing,
}


def measure(setting: Setting, names: Sequence[str]) -> tuple[list[Figure], list[str]]:
    """The figures of the named benchmarks, and in words what could not be measured here."""
    figures: list[Figure] = []
    unmeasured = []
    for name in names:
        sys.stderr.write(f"{name} ...\n")
        found = list(BENCHMARKS[name](setting))
        if not found:
            unmeasured.append(UNTRACED if name == "fsyncs" else name)
        figures += found
    if "tmpfs" not in setting.places:
        unmeasured.append("anything on tmpfs (give a folder on one with --tmpfs)")
    return figures, unmeasured


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; 0, or 3 if a goal was missed and `--check` is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure milepost beside its limits.")
    parser.add_argument("--only", action="append", choices=tuple(BENCHMARKS), metavar="NAME",
                        help=f"measure this alone; may be repeated: {', '.join(BENCHMARKS)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes: a rough look")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help="end with status 3 if a goal is missed")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="a folder on a local disk")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="a folder in memory; skipped if absent")
    given = parser.parse_args(arguments)
    if not given.dir.is_dir():
        parser.error(f"--dir {given.dir}: there is no such folder")
    places = {"disk": given.dir}
    if given.tmpfs.is_dir():
        places["tmpfs"] = given.tmpfs
    figures, unmeasured = measure(Setting(QUICK if given.quick else FULL, places), given.only or tuple(BENCHMARKS))
    print_report(figures, unmeasured, is_json=given.json)
    return 3 if given.check and any(figure.is_reached is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
