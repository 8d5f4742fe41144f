"""`python -m benchmarks.peers`: make the environment if need be, measure in it, and tell."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.children import compiled, environment
from benchmarks.peers.chart import to_svg
from benchmarks.peers.environment import cached, installed
from benchmarks.peers.measuring import Bench
from benchmarks.peers.report import Comparison, filled, from_json, to_json, to_markdown
from benchmarks.peers.systems import SYSTEMS
from benchmarks.peers.works import WORKS
from benchmarks.report import machine
from benchmarks.setting import FULL, QUICK, Setting

__all__ = ["main"]

_FULL = replace(FULL, rounds=5, long_rounds=3, process_nodes=250, journals=(10, 1_000, 10_000))
_QUICK = replace(QUICK, rounds=1, long_rounds=1, nodes=200, growth=100, processes=4, journals=(10, 100, 1_000))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Measure the same work in others.")
    parser.add_argument("--venv", type=Path, default=cached(), help="the environment; made if it is not there")
    parser.add_argument("--only", action="append", choices=tuple(WORKS), metavar="WORK",
                        help=f"this work alone; may be repeated: {', '.join(WORKS)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes: a rough look")
    parser.add_argument("--read", type=Path, metavar="FILE", help="tell what --json wrote, and measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value of every round")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the table, between the marks of FILE if any"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the chart")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="a folder on a local disk")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="a folder in memory; skipped if absent")
    given = parser.parse_args(arguments)
    if given.read is None and Path(sys.prefix).resolve() != given.venv.resolve():
        again = sys.argv[1:] if arguments is None else arguments
        command = (str(installed(given.venv)), "-m", "benchmarks.peers", *again)
        return subprocess.run(command, env=environment(), check=False).returncode
    comparison = from_json(given.read.read_text()) if given.read else _measured(given)
    if given.json:
        given.json.write_text(to_json(comparison) + "\n")
    if given.svg:
        given.svg.write_text(to_svg(comparison.lines))
    told = to_markdown(comparison)
    if given.markdown:
        page = given.markdown.read_text() if given.markdown.exists() else ""
        given.markdown.write_text(filled(page, told))
    else:
        sys.stdout.write(told + "\n")
    return 0


def _measured(given: argparse.Namespace) -> Comparison:
    places = {"disk": given.dir} | ({"tmpfs": given.tmpfs} if given.tmpfs.is_dir() else {})
    lines, unmeasured = [], []
    with compiled() as env, ExitStack() as stack:
        bench = Bench(Setting(_QUICK if given.quick else _FULL, places), env, stack)
        for name in given.only or tuple(WORKS):
            sys.stderr.write(f"{name} ...\n")
            found = list(WORKS[name](bench))
            lines += found
            if not found:
                unmeasured.append("fsyncs (strace is not there)" if name == "fsyncs" else name)
    if len(places) == 1:
        unmeasured.append("anything on tmpfs (give a folder on one with --tmpfs)")
    size = bench.setting.size
    facts = {name: value for name, value in machine().items() if name != "pragmas"}
    facts |= {"rounds": f"{size.rounds}, of what takes long {size.long_rounds}", "steps of a run": size.nodes}
    return Comparison(facts, _versions(), bench.settings, lines, bench.failed, unmeasured)


def _versions() -> dict[str, str]:
    found = {}
    for name in sorted({name for system in SYSTEMS.values() for name in system.distributions}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
