"""`python -m benchmarks.torture`: torture one store or several, and print what became of their runs."""

from __future__ import annotations

import argparse
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from benchmarks.torture.ordeal import Ordeal, Outcome, torture

__all__ = ["main"]

_COLUMNS = (
    "store", "runs", "kills", "freezes", "restarts", "taken over", "nodes run again", "by a stall",
    "late writes offered", "accepted", "store errors", "runs failed by them", "seconds", "faults",
)  # fmt: skip
_TOLD = 20
"""How many faults or errors are told one by one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; 0, or 1 if any fault was found."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torture",
        description="Kill and freeze workers at random moments, then prove that every run ended right.",
    )
    parser.add_argument("--store", action="append", metavar="URL",
                        help="a store that processes share; may be repeated (default: a new SQLite file)")  # fmt: skip
    parser.add_argument("--processes", type=int, default=6, help="at once (6)")
    parser.add_argument("--verbs", type=int, help="how many of these call verbs instead of being workers (a third)")
    parser.add_argument("--concurrency", type=int, default=3, help="runs that a worker has at once (3)")
    parser.add_argument("--runs", type=int, default=200, help="runs in a round (200)")
    parser.add_argument("--nodes", type=int, default=25, help="nodes that each run executes, at least 3 (25)")
    parser.add_argument("--kills", type=int, help="in a round (a fifth of the runs)")
    parser.add_argument("--freezes", type=int, help="in a round (a tenth of the runs)")
    parser.add_argument("--restarts", type=int, default=0, help="of the store's server, in a round (0)")
    parser.add_argument("--restart", metavar="COMMAND", help="the command that restarts it")
    parser.add_argument("--seconds", type=float, default=0.0, help="go on with further rounds for so long (one round)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn: blows, victims, pauses (0)")
    parser.add_argument("--lease", type=float, default=1.0, help="seconds (1)")
    parser.add_argument("--pause", type=float, default=0.012, help="seconds that a node takes, on average (0.012)")
    given = parser.parse_args(arguments)
    if min(given.processes, given.runs) < 1 or given.nodes < 3:
        parser.error("there must be at least one process, one run, and three nodes")
    if given.restarts and not given.restart:
        parser.error("--restarts needs --restart COMMAND")
    ordeal = Ordeal(
        store="",
        name="",
        processes=given.processes,
        verbs=given.processes // 3 if given.verbs is None else given.verbs,
        concurrency=given.concurrency,
        runs=given.runs,
        nodes=given.nodes,
        kills=given.runs // 5 if given.kills is None else given.kills,
        freezes=given.runs // 10 if given.freezes is None else given.freezes,
        restarts=given.restarts,
        seed=given.seed,
        lease=given.lease,
        pause=given.pause,
        restart=_restarting(given.restart),
    )
    rows: list[tuple[str, ...]] = [_COLUMNS]
    is_sound = True
    with tempfile.TemporaryDirectory(prefix="milepost-torture-") as name:
        for url in given.store or [f"sqlite:///{quote(name)}/runs.db"]:
            outcomes = list(_rounds(replace(ordeal, store=url), Path(name), given.seconds))
            rows.append(_row(url, outcomes))
            is_sound = _tell_faults(url, outcomes) and is_sound
    sys.stdout.write(_table(rows) + "\n")
    return 0 if is_sound else 1


def _restarting(command: str | None) -> Callable[[], None] | None:
    if command is None:
        return None
    words = shlex.split(command)

    def restart() -> None:
        # A server may keep its starter's pipes open for as long as it lives.
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return restart


def _rounds(ordeal: Ordeal, folder: Path, seconds: float) -> Iterator[Outcome]:
    """Rounds of new runs until `seconds` have passed, at least one; none after one with a fault."""
    end = time.monotonic() + seconds
    name, number = f"torture-{secrets.token_hex(4)}", 0
    while number == 0 or time.monotonic() < end:
        number += 1
        outcome = torture(replace(ordeal, name=f"{name}-{number}", seed=ordeal.seed + number - 1), folder)
        sys.stderr.write(f"round {number}: {outcome.seconds:.1f} s, {len(outcome.verdict.faults)} faults\n")
        for error, times in outcome.errors.most_common(_TOLD):
            sys.stderr.write(f"  {times} x {error}\n")
        yield outcome
        if outcome.verdict.faults:
            return


def _tell_faults(url: str, outcomes: Sequence[Outcome]) -> bool:
    """Write what is wrong, if anything is, to the errors; whether nothing is."""
    faults = [fault for outcome in outcomes for fault in outcome.verdict.faults]
    for fault in faults[:_TOLD]:
        sys.stderr.write(f"{_shown(url)}: {fault.kind}: {fault.run_id}: {fault.told}\n")
    if len(faults) > _TOLD:
        sys.stderr.write(f"{_shown(url)}: and {len(faults) - _TOLD} more\n")
    return not faults


def _row(url: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    verdicts = [outcome.verdict for outcome in outcomes]
    numbers = (
        sum(outcome.runs for outcome in outcomes),
        sum(outcome.kills for outcome in outcomes),
        sum(outcome.freezes for outcome in outcomes),
        sum(outcome.restarts for outcome in outcomes),
        sum(verdict.takeovers for verdict in verdicts),
        sum(verdict.again for verdict in verdicts),
        sum(verdict.stalled for verdict in verdicts),
        sum(verdict.offered for verdict in verdicts),
        sum(verdict.accepted for verdict in verdicts),
        sum(outcome.errors.total() for outcome in outcomes),
        sum(verdict.rescued for verdict in verdicts),
        round(sum(outcome.seconds for outcome in outcomes)),
        sum(len(verdict.faults) for verdict in verdicts),
    )
    return (_shown(url), *map(str, numbers))


def _shown(url: str) -> str:
    """The kind of store: the rest of a URL may hold a password."""
    return url.partition(":")[0]


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
