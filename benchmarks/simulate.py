"""`python -m benchmarks.simulate`: how many databases carry a billion nodes a day, and what waits, fills and fails there.

A day is simulated by the second. Nodes arrive along a curve with a peak; a run's nodes go to one shard, which its id decides.
A shard commits `rate` nodes a second and keeps what is over for the next second, so a backlog builds up and is worked off as
it would be. Within a second nodes wait for each other as in a queue with random arrivals and equal work (M/D/1), drawn from
its distribution. Shards do not know of each other, so no more than `SAMPLE` of them are simulated; each stands for others.

Nothing is measured here: what one PostgreSQL carries, and what a node weighs, are options. Their defaults come from
`python -m benchmarks.scale --only workers` (see docs/explanation/scale.md), but for what each option's help says is assumed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

__all__ = ["Day", "Load", "Waits", "curve", "dispersion", "draw_wait", "main", "plan", "simulate", "smallest"]

DAY = 86_400
SAMPLE = 4
"""Shards that are simulated."""
_BUCKETS = 60
"""Buckets of waits for each factor of 10: a percentile is right to 4 %."""
_SHORTEST = 1e-6
_PEAK_HOUR = 15
_MOST_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be carried, and by what. The options of the command."""

    nodes: float = 1e9
    """nodes a day"""
    peak: float = 2.5
    """nodes at the busiest time of the day, as a multiple of the mean (assumed)"""
    nodes_per_run: float = 20.0
    """nodes of a run on average, geometrically distributed (assumed)"""
    run_seconds: float = 60.0
    """seconds over which the nodes of a run are spread (assumed)"""
    rate: float = 1000.0
    """nodes a second that one PostgreSQL carries, with the claims and reads of workers (measured: give your own)"""
    commit: float = 0.003
    """seconds that a commit takes when nobody waits (measured)"""
    bound: float = 0.1
    """seconds that 99 of 100 nodes may wait for their commit at most (chosen)"""
    node_bytes: float = 1200.0
    """bytes of a node on disk: row and two indexes, 700 (measured), and 500 for what changed in its state (assumed)"""
    run_bytes: float = 3200.0
    """bytes of a run on disk beyond its nodes: its row and indexes, start, claim and end (measured)"""
    node_wal: float = 1350.0
    """bytes of log that a node writes: 850 (measured), and 500 for what changed in its state (assumed)"""
    run_wal: float = 7100.0
    """bytes of log that a run writes beyond its nodes (measured)"""
    slack: float = 1.3
    """disk space as a multiple of what is in use: pages half empty after prune (assumed)"""
    retention: float = 7.0
    """days for which runs are kept (chosen)"""
    node_seconds: float = 0.5
    """seconds that the code of a node takes (assumed)"""
    concurrency: float = 50.0
    """runs that a worker process works on at once (chosen)"""
    pool: float = 4.0
    """connections that a worker process opens: it may open up to nine (measured)"""
    max_connections: float = 300.0
    """connections that one PostgreSQL takes without a pooler (assumed)"""
    outage: float = 3600.0
    """seconds for which a dead shard takes no new runs (assumed)"""


@dataclass(slots=True)
class Waits:
    """How long nodes waited, counted in buckets that grow by a constant factor."""

    counts: dict[int, float]
    total: float = 0.0

    def add(self, wait: float, count: float) -> None:
        """Count nodes that waited so many seconds."""
        bucket = round(math.log10(max(wait, _SHORTEST)) * _BUCKETS)
        self.counts[bucket] = self.counts.get(bucket, 0.0) + count
        self.total += count

    def percentile(self, share: float) -> float:
        """Seconds that this share of all nodes waited at most; 0 without nodes."""
        left = share * self.total
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 1e-9 * self.total:
                wait: float = 10.0 ** (bucket / _BUCKETS)
                return wait
        return 0.0


@dataclass(frozen=True, slots=True)
class Day:
    """What became of a day. Waits are for a commit, in seconds, with what the commit itself takes."""

    shards: int
    utilisation: float
    """Of the mean of the day."""
    busiest: float
    """The share of its rate that a shard was asked for in the busiest minute."""
    p50: float
    p99: float
    longest_backlog: float
    """Seconds of work that had piled up on a shard at most."""


def curve(second: float, peak: float) -> float:
    """How busy the day is then, as a multiple of its mean: a wave that is highest in the afternoon and never below 0.

    A peak above 2 has a narrower top, so that the mean stays 1.
    """
    wave = (1 + math.cos(2 * math.pi * (second / DAY - _PEAK_HOUR / 24))) / 2
    power = _power_of(peak)
    return peak * wave**power if peak >= 2 else 1 + (peak - 1) * (2 * wave - 1)


@functools.cache
def _power_of(peak: float) -> float:
    """The power of the wave whose mean is 1 / `peak`, found by halving: the mean of a power falls as it grows."""
    low, high = 0.5, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        # The mean of ((1 + cos) / 2) ** p over a turn.
        mean = math.exp(math.lgamma(middle + 0.5) - math.lgamma(middle + 1)) / math.sqrt(math.pi)
        low, high = (middle, high) if mean > 1 / peak else (low, middle)
    return low


@functools.cache
def _day_of(peak: float) -> tuple[float, ...]:
    return tuple(curve(second, peak) for second in range(DAY))


def dispersion(nodes_per_run: float, run_seconds: float) -> float:
    """The variance of the nodes of a second as a multiple of their mean, where runs come at random (1: nodes do).

    A run has a geometric number of nodes N, and each falls into any of `run_seconds`: 1 + E[N (N - 1)] / (E[N] seconds).
    """
    return 1 + 2 * (nodes_per_run - 1) / max(run_seconds, 1.0)


def draw_wait(chance: random.Random, load: float, rate: float) -> float:
    """How long a node waits for those before it, in a queue with random arrivals and equal work that uses `load` of its rate.

    The share that waits is the load; the rest of the distribution is taken as exponential, with the mean that M/D/1 has,
    load / (2 rate (1 - load)). Source: Pollaczek and Khinchine; the shape is the limit for a high load.
    """
    if load <= 0 or chance.random() >= load:
        return 0.0
    return chance.expovariate(2 * rate * (1 - load))


def simulate(load: Load, shards: int, seed: int = 1, *, dead_at: float | None = None) -> Day:
    """A day with so many shards. `dead_at`: from that second on one of them is gone, and new runs go to the others."""
    chance = random.Random(f"{seed} {shards} {dead_at}")
    gauss, uneven = chance.gauss, dispersion(load.nodes_per_run, load.run_seconds)
    mean = load.nodes / DAY / shards
    asked = [mean * times for times in _day_of(load.peak)]
    if dead_at is not None and shards > 1:
        for second in range(int(dead_at), min(DAY, int(dead_at + load.outage))):
            # All that would have begun on the dead one comes to the others, once what had begun there would be over.
            asked[second] *= 1 + min(1.0, (second - dead_at) / max(load.run_seconds, 1.0)) / (shards - 1)
    waits, rate, longest, busiest, total = Waits({}), load.rate, 0.0, 0.0, 0.0
    sampled = min(shards, SAMPLE)
    for _ in range(sampled):
        backlog = 0.0
        for expected in asked:
            arrived = max(0.0, gauss(expected, math.sqrt(expected * uneven)))
            total += arrived
            # Half of the second's nodes are before a node that comes in the middle of it.
            over = backlog + max(0.0, arrived - rate) / 2
            used = min(arrived / rate, 0.99)
            waits.add(load.commit + over / rate + draw_wait(chance, used, rate), arrived)
            backlog = max(0.0, backlog + arrived - rate)
            longest = max(longest, backlog)
    for minute in range(0, DAY, 60):
        busiest = max(busiest, sum(asked[minute : minute + 60]) / 60 / rate)
    return Day(
        shards,
        total / sampled / DAY / rate,
        busiest,
        waits.percentile(0.5),
        waits.percentile(0.99),
        longest / rate,
    )


def smallest(load: Load, seed: int = 1, *, survives: bool = False, least: int = 1) -> Day:
    """The day with the fewest shards, `least` or more, that keep the bound; with `survives`, also when one dies at the peak.

    ValueError if no number of shards does: the commit alone takes longer.
    """
    if load.commit >= load.bound:
        raise ValueError(f"a commit takes {load.commit:g} s, which is the bound or more: give --bound above it")

    def day(shards: int) -> Day:
        return simulate(load, shards, seed, dead_at=_PEAK_HOUR * 3600.0 if survives else None)

    least = max(least, 1 + survives, math.floor(load.nodes / DAY / load.rate))
    low, high = least - 1, least
    while day(high).p99 > load.bound:
        low, high = high, math.ceil(high * 1.25) + 1
        if high > _MOST_SHARDS:
            raise ValueError(f"{_MOST_SHARDS} shards are not enough: give a higher --rate")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if day(middle).p99 <= load.bound else (middle, high)
    return day(high)


def plan(load: Load, seed: int = 1, shards: int | None = None) -> dict[str, Any]:
    """What it takes: shards, their waits and load, what is left if one dies, connections and bytes."""
    enough = smallest(load, seed) if shards is None else simulate(load, shards, seed)
    safe = smallest(load, seed, survives=True, least=enough.shards) if shards is None else enough
    count = safe.shards
    day = safe if shards is not None else simulate(load, count, seed)
    broken = simulate(load, count, seed, dead_at=_PEAK_HOUR * 3600.0)
    runs = load.nodes / load.nodes_per_run
    workers = math.ceil(load.nodes / DAY * load.peak * load.node_seconds / load.concurrency)
    connections = math.ceil(workers / count) * load.pool
    daily = load.nodes * load.node_bytes + runs * load.run_bytes
    log = load.nodes * load.node_wal + runs * load.run_wal
    return {
        "shards that keep the bound": enough.shards,
        "shards that keep it if one dies at the peak": count,
        "day": asdict(day),
        "day on which one dies": asdict(broken),
        "headroom at the peak": 1 - day.busiest,
        "headroom at the peak without one shard": 1 - broken.busiest,
        "runs a day": runs,
        "nodes a second, mean and peak": (load.nodes / DAY, load.nodes / DAY * load.peak),
        "worker processes": workers,
        "connections of workers on a shard": connections,
        "a pooler is needed": connections > load.max_connections,
        "bytes a day": daily,
        "bytes on disk with retention": daily * load.retention * load.slack,
        "bytes on disk with retention, a shard": daily * load.retention * load.slack / count,
        "bytes of log a day": log,
        "bytes of log a second, a shard at the peak": log / DAY * load.peak / count,
    }


# -- the command -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__.partition("\n")[0])
    for option in fields(Load):
        parser.add_argument(
            f"--{option.name.replace('_', '-')}", type=float, default=option.default, metavar="N",
            help=f"{_DOCUMENTED[option.name]}; {option.default:g} unless given",
        )  # fmt: skip
    parser.add_argument("--shards", type=int, help="simulate so many, instead of looking for the fewest that do")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same day")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    load = replace(Load(), **{option.name: getattr(given, option.name) for option in fields(Load)})
    unusable = [name for name, value in asdict(load).items() if not 0 < value < math.inf]
    if unusable or load.peak < 1 or load.nodes_per_run < 1:
        parser.error(
            f"{', '.join(unusable) or 'peak and nodes-per-run'}: give a number above 0, for these two 1 or more"
        )
    if given.shards is not None and given.shards < 1:
        parser.error("--shards: give 1 or more")
    try:
        found = plan(load, given.seed, given.shards)
    except ValueError as exc:
        parser.error(str(exc))
    told = {"load": asdict(load), "seed": given.seed, **found}
    sys.stdout.write((json.dumps(told, indent=2) if given.json else _lines(told)) + "\n")
    return 0


def _lines(told: dict[str, Any], indent: str = "") -> str:
    lines = []
    for name, value in told.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:", _lines(value, indent + "  ")]
        elif name.startswith("bytes"):
            lines.append(f"{indent}{name}: {_bytes(value)}")
        else:
            shown = " / ".join(map(_shown, value)) if isinstance(value, tuple) else _shown(value)
            lines.append(f"{indent}{name}: {shown}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 1000 else f"{value:.4g}"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"


def _documented() -> dict[str, str]:
    """What the options mean: the lines below the fields of `Load`, of which Python keeps none."""
    import ast
    import inspect

    (tree,) = ast.parse(inspect.getsource(Load)).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for part in tree.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            name = part.target.id
        elif name and isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            found[name] = str(part.value.value).replace("%", "%%")
    return found


_DOCUMENTED = _documented()

if __name__ == "__main__":
    sys.exit(main())
